"""Trainings and the runs that follow them, each in processes of its own; what was cut off goes on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothcert.errors import ModelError, OutputError
from smoothcert.progress import ProgressBar


def job_name(sigma: float, recipe: str, seed: int) -> str:
    """The directory of a training."""
    return f"{recipe.replace(':', '-').replace(',', '-')}_sigma={_short(sigma)}_seed={seed}"


def _short(number: float) -> str:
    """A number in as few digits as tell it from all others."""
    return repr(float(number)).removesuffix(".0")


def _toml(value: Any) -> str:
    """A setting as TOML writes it, which is JSON but for infinity."""
    if value == math.inf:
        return "inf"
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Job:
    """One training and the runs that certify its network, as settings of the commands that do it."""

    out: Path
    train: dict[str, Any]
    certify: Sequence[dict[str, Any]] = ()
    bound: Sequence[dict[str, Any]] = ()

    @property
    def runs(self) -> list[Path]:
        """Where the runs are."""
        smoothed = [self.out / f"certified_sigma={_short(one['sigma'])}" for one in self.certify]
        return [*smoothed, *(self.out / f"bounded_{one['method']}" for one in self.bound)]

    def commands(self) -> Iterator[list[str]]:
        """What is left to do, as command lines; settings are in files beside the results."""
        yield self._command("train", self.train, self.out, "train.json")
        commands = ["certify"] * len(self.certify) + ["baseline"] * len(self.bound)
        for command, path, settings in zip(commands, self.runs, (*self.certify, *self.bound), strict=True):
            yield self._command(command, {**settings, "model": str(self.out)}, path, "run.json")
        if self.certify:
            yield ["card", str(self.out), *map(str, self.runs[: len(self.certify)])]

    def _command(self, name: str, settings: dict[str, Any], out: Path, begun: str) -> list[str]:
        config = self.out.parent / "settings" / f"{out.relative_to(self.out.parent)}.toml".replace(os.sep, "_")
        config.parent.mkdir(parents=True, exist_ok=True)
        given = {key: value for key, value in settings.items() if value is not None}
        positional = [str(given.pop(key)) for key in ("model", "data") if key in given]
        lines = [f"{key} = {_toml(value)}\n" for key, value in given.items()]
        config.write_text("".join(lines), "utf-8")
        resume = ["--resume"] if (out / begun).exists() else []
        return [name, *positional, "--config", str(config), "--out", str(out), *resume]


def run_jobs(jobs: Sequence[Job], out: Path, *, workers: int) -> None:
    """Work off the jobs, `workers` at a time, each in processes of its own; ModelError naming those that failed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot create {out}: {error.strerror}.") from error
    running: set[subprocess.Popen[bytes]] = set()
    stopping, starting = threading.Event(), threading.Lock()
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}

    def work(job: Job) -> str | None:
        log = out / f"{job.out.name}.log"
        for command in job.commands():
            with log.open("ab") as file:
                with starting:
                    if stopping.is_set():
                        return None
                    process = subprocess.Popen(  # noqa: S603 - our own command
                        [sys.executable, "-m", "smoothcert", *command],
                        stdout=file,
                        stderr=file,
                        env=environment,
                        process_group=0,  # Ctrl-C reaches it through us alone: a second signal would end it unsaved
                    )
                    running.add(process)
                code = process.wait()
                running.discard(process)
            if code and not stopping.is_set():
                return f"{job.out.name} (exit code {code}, see {log})"
        return None

    failures = []
    with ThreadPoolExecutor(workers) as pool, ProgressBar("trainings", len(jobs)) as bar:
        futures = [pool.submit(work, job) for job in jobs]
        for future in futures:
            future.add_done_callback(lambda _: bar.advance())
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            with starting:
                stopping.set()
                for process in list(running):
                    process.terminate()  # it saves its state
            raise
        failures = [found for found in (future.result() for future in futures) if found]
    if failures:
        raise ModelError(f"{len(failures)} of {len(jobs)} trainings failed: {'; '.join(failures)}.")

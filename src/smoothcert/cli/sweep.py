"""`smoothcert sweep`: train networks for several noise levels, recipes and seeds, and certify them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count
from smoothcert.cli.run_command import ending_on_signals
from smoothcert.cli.train import TrainArguments
from smoothcert.errors import ConfigError, ModelError, OutputError
from smoothcert.options import Floats, OptionalFloats, OptionalPath
from smoothcert.progress import ProgressBar
from smoothcert.runs.settings import CertifySettings

# Memory that is given back to the system after every step costs more time than some steps.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "2147483647"}


@dataclass(frozen=True, kw_only=True)
class Sweep(TrainArguments):
    """Train a network for every combination of noise level, recipe and seed; certify each, if asked to.

    Each has a directory of its own, with its settings, log and network. A sweep that was cut off goes on when the same
    command is given again; what is complete stays as it is.
    """

    sigma: tyro.conf.Suppress[float] = 0.0
    recipe: tyro.conf.Suppress[str] = "gaussian"
    seed: tyro.conf.Suppress[int | None] = None
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory in which each training has its own."""
    sigmas: Annotated[tuple[float, ...], tyro.conf.arg(metavar="X ...", help_behavior_hint="(required)")]
    """Noise levels to train at."""
    recipes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("gaussian",)
    """Recipes, each perhaps with settings: gaussian consistency:weight=5."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0,)
    """Seeds."""
    certify: bool = False
    """Certify each network on the test inputs."""
    certify_sigmas: OptionalFloats = None
    """Noise levels to certify at; by default that of the training."""
    every: int = 20
    """Certify every k-th test input."""
    n_max: int = 100_000
    """Most draws per input."""
    radii: Floats = ()
    """Radii to decide upon, instead of finding a radius per input."""
    jobs: int = 1
    """Trainings side by side, which share this machine's threads."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert sweep mnist --sigmas 0.25 0.5 1.0 --recipes gaussian consistency:weight=5 --epochs 20 --out sweep
  smoothcert sweep mnist --sigmas 0.5 --seeds 0 1 2 --jobs 2 --certify --out sweep
  smoothcert sweep cifar10 --sigmas 0.25 0.5 1.0 --certify --certify-sigmas 0.5 --out training-noise
"""

    def run(self, console: Console) -> None:
        """Work off all combinations, then say where they are."""
        self.check()
        jobs = [
            self._job(sigma, recipe, seed) for seed in self.seeds for recipe in self.recipes for sigma in self.sigmas
        ]
        for sigma, recipe in product(self.sigmas, self.recipes):  # says now what cannot be trained
            replace_settings(self, sigma=sigma, recipe=recipe, seed=0).plan()
        with ending_on_signals():
            run_jobs(jobs, self.out, workers=self.jobs)
        for job in jobs:
            console.print(escape(str(job.out)), soft_wrap=True)

    def check(self) -> None:
        """Raise ConfigError for settings out of range, of any of the trainings."""
        check_count("jobs", self.jobs)
        check_count("every", self.every)
        for name in ("sigmas", "recipes", "seeds"):
            if not getattr(self, name) or len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ConfigError(f"Expected different `{name}`, at least one, got {getattr(self, name)!r}.")
        for sigma in self.sigmas:
            for recipe in self.recipes:
                for seed in self.seeds:
                    replace_settings(self, sigma=sigma, recipe=recipe, seed=seed).check()
        if self.certify_sigmas is not None and not self.certify:
            raise ConfigError("Noise levels to certify at were given, but not --certify.")
        if self.certify:
            if any(recipe.startswith("denoiser") for recipe in self.recipes):
                raise ConfigError("A denoiser is certified together with its classifier: drop --certify.")
            for sigma in self.certify_sigmas or self.sigmas:
                if sigma or self.certify_sigmas:
                    CertifySettings(sigma=sigma, n_max=self.n_max, radii=self.radii).check()

    def _job(self, sigma: float, recipe: str, seed: int) -> Job:
        settings = asdict(replace_settings(self, sigma=sigma, recipe=recipe, seed=seed))
        certify = []
        if self.certify:
            common = {
                "data": self.data,
                "data_root": self.data_root,
                "size": self.size,
                "device": self.device,
                "every": self.every,
                "n_max": self.n_max,
                "radii": self.radii,
                "seed": seed,
            }
            certify = [{**common, "sigma": level} for level in self.certify_sigmas or (sigma,) if level]
        return Job(self.out / job_name(sigma, recipe, seed), settings, certify)


def replace_settings(sweep: Sweep, **changes: Any) -> TrainArguments:
    """One training's arguments."""
    names = TrainArguments.__dataclass_fields__
    return replace(TrainArguments(**{name: getattr(sweep, name) for name in names}), **changes)


def job_name(sigma: float, recipe: str, seed: int) -> str:
    """The directory of a training."""
    return f"{recipe.replace(':', '-').replace(',', '-')}_sigma={_short(sigma)}_seed={seed}"


def _short(number: float) -> str:
    """A number in as few digits as tell it from all others."""
    return repr(float(number)).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Job:
    """One training and the runs that certify its network, as settings of the commands that do it."""

    out: Path
    train: dict[str, Any]
    certify: Sequence[dict[str, Any]]

    def commands(self) -> Iterator[list[str]]:
        """What is left to do, as command lines; settings are in files beside the results."""
        yield self._command("train", self.train, self.out, "train.json")
        runs = [self.out / f"certified_sigma={_short(one['sigma'])}" for one in self.certify]
        for path, settings in zip(runs, self.certify, strict=True):
            yield self._command("certify", {**settings, "model": str(self.out)}, path, "run.json")
        if runs:
            yield ["card", str(self.out), *map(str, runs)]

    def _command(self, name: str, settings: dict[str, Any], out: Path, begun: str) -> list[str]:
        config = self.out.parent / "settings" / f"{out.relative_to(self.out.parent)}.toml".replace(os.sep, "_")
        config.parent.mkdir(parents=True, exist_ok=True)
        given = {key: value for key, value in settings.items() if value is not None}
        positional = [str(given.pop(key)) for key in ("model", "data") if key in given]
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}\n" for key, value in given.items()]
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
    environment = {**_KEEP_MEMORY, "OMP_NUM_THREADS": threads, **os.environ}

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

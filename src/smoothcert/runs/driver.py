"""Runs of any kind: hands the work to an engine, and writes the rows in order."""

from __future__ import annotations

import contextlib
import json
import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from smoothcert import __version__
from smoothcert.data.dataset import Dataset
from smoothcert.errors import InputError
from smoothcert.models.classifier import Classifier
from smoothcert.runs.directory import TIMES, Run, Writer
from smoothcert.runs.engines import Done, Processes, run_here
from smoothcert.runs.journal import Journal, Row
from smoothcert.runs.manifest import FORMAT, Manifest
from smoothcert.runs.settings import EngineSettings
from smoothcert.runs.work import Chunk, OnDraws, Task, describe_error

OnStart = Callable[[int, int, str | None], None]
OnRows = Callable[[Sequence[Row], int], None]


@dataclass(frozen=True)
class Job:
    """A run made ready: what is to be done to which inputs, so many at a time, and what its manifest says."""

    task: Task
    classifier: Classifier
    data: Dataset
    indices: list[int]
    chunk: int
    manifest: Manifest
    settings: EngineSettings

    def run(self, numbers: Iterable[int], on_draws: OnDraws) -> Iterator[Done]:
        """The rows of the chunks with these numbers, computed by the engine, in any order."""
        chunks = (read_chunk(self.data, self.indices, self.chunk, number) for number in numbers)
        if self.settings.engine == "ray":
            from smoothcert.runs.ray_engine import run_on_ray

            yield from run_on_ray(self.task, self.settings, chunks, on_draws)
        elif self.settings.workers in (None, 1) and self.settings.timeout is None:
            worker = self.task.start(on_draws=on_draws, classifier=self.classifier)
            yield from run_here(worker, chunks)
        else:
            workers = self.settings.workers or 1
            engine = Processes(self.task, workers, timeout=self.settings.timeout, on_draws=on_draws)
            yield from engine.run(chunks)

    def unfinished(self, done: int, failed: Iterable[int]) -> list[int]:
        """Numbers of the chunks that hold rows after the first `done`, or one of the places in `failed`.

        Chunks begin at fixed places and are always computed as a whole, so that the same draws share a batch.
        """
        places = {*failed, *range(done, len(self.indices))}
        return sorted({place // self.chunk for place in places})


def drive(
    prepare: Callable[[Manifest | None], Job],
    out: Path | Writer,
    *,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_rows: OnRows | None = None,
    on_draws: OnDraws | None = None,
) -> Run:
    """Work a job off into the run directory `out`, or go on with the one that is there.

    `prepare` makes the job, and is told of the manifest that is there already, if one is.
    """
    with contextlib.nullcontext(out) if isinstance(out, Writer) else Writer(out, resume=resume) as writer:
        job = prepare(writer.existing)
        journal = writer.start(job.manifest)
        manifest = writer.existing or job.manifest
        failed = set()
        if job.settings.retry_errors:
            failed = {place for place, row in enumerate(journal.rows) if "error" in row}
        if on_start is not None:
            on_start(len(journal.rows) - len(failed), len(job.indices), journal.notice)
        unfinished = job.unfinished(len(journal.rows), failed)
        if unfinished:
            results = job.run(unfinished, on_draws or (lambda _: None))
            with contextlib.closing(results):
                _write(journal, results, job.chunk, failed, writer.path / TIMES, on_rows)
    return Run(writer.path, manifest, journal.rows)


def read_chunk(data: Dataset, indices: Sequence[int], size: int, number: int) -> Chunk:
    """The inputs of one chunk of a run, read from its data."""
    part = tuple(indices[number * size : (number + 1) * size])
    truths = tuple(None if data.labels is None else int(data.labels[index]) for index in part)
    return Chunk(number, part, tuple(_read(data, index) for index in part), truths)


def _read(data: Dataset, index: int) -> Any:
    try:
        return data[index]
    except Exception as error:  # a damaged image is that input's fault, not the run's
        return describe_error(error)


def first_readable(data: Dataset, indices: Sequence[int]) -> Any:
    """The first of the inputs that can be read; InputError if none can."""
    for index in indices:
        one = _read(data, index)
        if not isinstance(one, str):
            return one
    raise InputError(f"None of the chosen inputs of {data.name} can be read; the first: {_read(data, indices[0])}")


def shared_values(
    classifier: Classifier,
    classes: int,
    data: Dataset,
    indices: list[int],
    chunk: int,
    device: str,
    settings: EngineSettings,
) -> dict[str, Any]:
    """What run.json says whatever the kind of run."""
    return {
        "format": FORMAT,
        "model": {
            "source": classifier.source,
            "kind": classifier.kind,
            "weights_hash": classifier.weights_hash,
            "num_classes": classes,
            "classes": None if classifier.classes is None else list(classifier.classes),
            "input_shape": None if classifier.input_shape is None else list(classifier.input_shape),
            "normalization": classifier.normalization,
            "trained_sigma": classifier.sigma,
            "recipe": classifier.recipe,
            **({} if classifier.design is None else {"design": classifier.design}),
            "notes": list(classifier.notes),
        },
        "data": {
            "name": data.name,
            "inputs": len(data),
            "fingerprint": data.fingerprint(),
            "classes": None if data.classes is None else list(data.classes),
        },
        "indices": indices,
        "plan": {"chunk": chunk},
        "device": _device_name(device),
        "dtype": "float32",
        "versions": _versions(),
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "engine": settings.engine,
        "workers": settings.workers,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str]:
    libraries = {"torch": torch, "numpy": np, "scipy": scipy}
    return {"smoothcert": __version__, **{name: str(library.__version__) for name, library in libraries.items()}}


def _device_name(device: str) -> str:
    """The kind of device: two of the same kind compute the same."""
    if device.startswith("cuda"):
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device


def _write(
    journal: Journal, results: Iterable[Done], size: int, failed: set[int], times: Path, on_rows: OnRows | None
) -> None:
    """Append rows in the order of the indices, whatever order the chunks come in; each chunk once.

    Rows at the places in `failed` are there already, and are replaced.
    """
    waiting: dict[int, tuple[list[Row], float]] = {}
    number, skipped = divmod(len(journal.rows), size)

    def note(rows: Sequence[Row], seconds: float) -> None:
        _note_times(times, rows, seconds)
        if on_rows is not None:
            on_rows(rows, sum(stage["n"] for row in rows for stage in row.get("stages", ())))

    for found, rows, seconds in results:
        redone = {place: row for place, row in enumerate(rows, found * size) if place in failed}
        if redone:
            journal.replace_failed(redone)
            failed -= set(redone)
            note(list(redone.values()), seconds / len(rows))
        if found >= number:
            waiting.setdefault(found, (rows, seconds))
        while number in waiting:
            rows, seconds = waiting.pop(number)
            fresh = rows[skipped:]
            journal.append(fresh)
            number, skipped = number + 1, 0
            note(fresh, seconds / len(rows))


def _note_times(path: Path, rows: Sequence[Row], seconds: float) -> None:
    """How long inputs took, beside the evidence rather than in it: times are never the same twice."""
    lines = "".join(json.dumps({"index": row["index"], "seconds": round(seconds, 4)}) + "\n" for row in rows)
    with contextlib.suppress(OSError), path.open("a", encoding="ascii") as file:
        file.write(lines)

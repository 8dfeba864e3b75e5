"""Certifying or predicting a data set: makes the manifest, hands the work to an engine, writes the rows in order."""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from smoothcert import __version__
from smoothcert.data.dataset import Dataset
from smoothcert.data.selection import select_indices
from smoothcert.errors import InputError
from smoothcert.models.classifier import Classifier
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.directory import TIMES, Run, Writer
from smoothcert.runs.engines import Done, Processes, run_here
from smoothcert.runs.journal import Journal, Row
from smoothcert.runs.manifest import FORMAT, Manifest
from smoothcert.runs.settings import RunSettings
from smoothcert.runs.work import Chunk, Task, Worker, describe_error
from smoothcert.sampling import Plan
from smoothcert.smoothed import Smoothed
from smoothcert.stats.procedures import FixedN, Predict, describe
from smoothcert.streams import make_key

OnRows = Callable[[Sequence[Row], int], None]
_CHUNK_SECONDS = 2.0
_MOST_INPUTS = 16
_GUESSED_DRAWS = 20_000  # of an input, before any was worked on
_TIMED_DRAWS = 256


def run_dataset(
    model: ModelSpec,
    data: Dataset,
    settings: RunSettings,
    out: Path | Writer,
    *,
    classifier: Classifier | None = None,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    on_start: Callable[[int, int, str | None], None] | None = None,
    on_rows: OnRows | None = None,
    on_draws: Callable[[int], None] | None = None,
) -> Run:
    """Certify or predict the inputs of `data` under `indices`, by default all, into the run directory `out`.

    Rows are on disk as soon as they are made, in the order of the indices; a run that was cut off goes on with `resume`
    and ends with the same file. `classifier` is the model if it is loaded already, and `out` may be a `Writer` that
    holds the directory. `on_start(done, total, notice)` is told how much is there, `on_rows(rows, draws)` of each chunk
    written, `on_draws(n)` of draws on the way.
    """
    settings.check()
    chosen = select_indices(len(data), indices=indices).tolist()
    with contextlib.nullcontext(out) if isinstance(out, Writer) else Writer(out, resume=resume) as writer:
        prepared = _Prepared(model, classifier, data, settings, chosen, writer.existing)
        journal = writer.start(prepared.manifest)
        manifest = writer.existing or prepared.manifest
        done = len(journal.rows)
        if on_start is not None:
            on_start(done, len(chosen), journal.notice)
        rows = list(journal.rows)
        if done < len(chosen):
            listener = on_draws or (lambda _: None)
            results = prepared.run(done, listener)
            with contextlib.closing(results):
                rows += _write(journal, results, prepared, done, writer.path / TIMES, on_rows)
    return Run(writer.path, manifest, rows)


class _Prepared:
    """The model loaded, the manifest made, the task described."""

    def __init__(
        self,
        spec: ModelSpec,
        classifier: Classifier | None,
        data: Dataset,
        settings: RunSettings,
        indices: list[int],
        existing: Manifest | None,
    ) -> None:
        self.data, self.settings, self.indices = data, settings, indices
        first = _first_readable(data, indices)
        spec = spec if data.shape is None else replace(spec, fitted=data.shape)
        self.classifier = spec.load(classifier)
        if settings.tests_true_labels and data.labels is None:
            raise InputError(f"Known labels were asked for, but {data.name} has none.")
        old = None if existing is None else existing.values
        key = old["key"] if old and settings.seed is None else make_key(settings.seed).hex()
        smoothed = Smoothed(
            self.classifier,
            settings.sigma,
            noise=settings.noise,
            batch_size=settings.batch_size,
            device=settings.device,
            key=key,
            allow_random=settings.allow_random,
            progress=False,
        )
        classes = smoothed.check(first)
        plan, self.chunk = _plan(smoothed, first, settings, old)
        self.task = Task(
            model=spec,
            weights_hash=self.classifier.weights_hash,
            kind=settings.kind,
            sigma=settings.sigma,
            noise=settings.noise,
            procedure=settings.make_procedure(),
            tests_true_labels=settings.tests_true_labels,
            num_classes=classes,
            key=key,
            plan=plan,
            device=str(smoothed.device),
            secure=settings.secure,
            allow_random=settings.allow_random,
        )
        described = _describe(self.task, self.classifier, data, settings, indices, self.chunk)
        if old and settings.seed is None:
            described["seed"] = old["seed"]  # as its key is the run's
        self.manifest = Manifest(described)

    def run(self, done: int, on_draws: Callable[[int], None]) -> Iterator[Done]:
        """The chunks that have rows left to write, worked off by the engine."""
        chunks = self._chunks(done)
        if self.settings.engine == "ray":
            from smoothcert.runs.ray_engine import run_on_ray

            yield from run_on_ray(self.task, self.settings, chunks, on_draws)
        elif self.settings.workers in (None, 1) and self.settings.timeout is None:
            worker = Worker(self.task, on_draws=on_draws, classifier=self.classifier)
            yield from run_here(worker, chunks)
        else:
            workers = self.settings.workers or 1
            engine = Processes(self.task, workers, timeout=self.settings.timeout, on_draws=on_draws)
            yield from engine.run(chunks)

    def _chunks(self, done: int) -> Iterator[Chunk]:
        """Chunks begin at fixed places: one that was half written is worked off again as a whole."""
        for number in range(done // self.chunk, -(-len(self.indices) // self.chunk)):
            yield read_chunk(self.data, self.indices, self.chunk, number)


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


def _first_readable(data: Dataset, indices: Sequence[int]) -> Any:
    for index in indices:
        one = _read(data, index)
        if not isinstance(one, str):
            return one
    raise InputError(f"None of the chosen inputs of {data.name} can be read; the first: {_read(data, indices[0])}")


def _plan(smoothed: Smoothed, first: Any, settings: RunSettings, old: Any) -> tuple[Plan, int]:
    """Batch size, layout and inputs per chunk: as given, as the run has them, or as measured now."""
    if old is not None:
        plan = Plan(old["plan"]["batch_size"], old["plan"]["channels_last"], threads=old["plan"]["threads"])
        return replace(plan, batch_size=settings.batch_size or plan.batch_size), settings.chunk or old["plan"]["chunk"]
    found = smoothed.plan_for(np.asarray(first).shape)
    # One thread per worker: more of them may add up in another order.
    plan = Plan(found.batch_size, found.channels_last, threads=1 if smoothed.device.type == "cpu" else None)
    if settings.chunk is not None:
        return plan, settings.chunk
    if isinstance(settings.make_procedure(), FixedN | Predict) or settings.timeout is not None:
        return plan, 1  # long stages gain nothing by sharing batches; and who hangs should take no others along
    started = time.monotonic()
    smoothed.predict(first, Predict(n=_TIMED_DRAWS))  # without an index: on noise that no row will rest on
    seconds = (time.monotonic() - started) / _TIMED_DRAWS * _GUESSED_DRAWS
    return plan, max(1, min(_MOST_INPUTS, int(_CHUNK_SECONDS / seconds)))


def _describe(
    task: Task, classifier: Classifier, data: Dataset, settings: RunSettings, indices: list[int], chunk: int
) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "format": FORMAT,
        "kind": settings.kind,
        "sigma": task.sigma,
        "alpha": settings.alpha,
        "noise": task.noise,
        "procedure": describe(task.procedure),
        "known_labels": task.tests_true_labels,
        "secure": task.secure,
        "allow_random": task.allow_random,
        "model": {
            "source": classifier.source,
            "kind": classifier.kind,
            "weights_hash": classifier.weights_hash,
            "num_classes": task.num_classes,
            "classes": None if classifier.classes is None else list(classifier.classes),
            "input_shape": None if classifier.input_shape is None else list(classifier.input_shape),
            "normalization": classifier.normalization,
            "trained_sigma": classifier.sigma,
            "recipe": classifier.recipe,
            "notes": list(classifier.notes),
        },
        "data": {
            "name": data.name,
            "inputs": len(data),
            "fingerprint": data.fingerprint(),
            "classes": None if data.classes is None else list(data.classes),
        },
        "indices": indices,
        "key": task.key,
        "seed": settings.seed,
        "plan": {
            "batch_size": task.plan.batch_size,
            "channels_last": task.plan.channels_last,
            "threads": task.plan.threads,
            "chunk": chunk,
        },
        "device": _device_name(task.device),
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
    journal: Journal, results: Iterable[Done], prepared: _Prepared, done: int, times: Path, on_rows: OnRows | None
) -> list[Row]:
    """Append rows in the order of the indices, whatever order the chunks come in; each chunk once."""
    size = prepared.chunk
    waiting: dict[int, tuple[list[Row], float]] = {}
    number, written = done // size, []
    skipped = done % size
    for found, rows, seconds in results:
        if found >= number:
            waiting.setdefault(found, (rows, seconds))
        while number in waiting:
            rows, seconds = waiting.pop(number)
            fresh = rows[skipped:]
            journal.append(fresh)
            _note_times(times, fresh, seconds / len(rows))
            written += fresh
            number, skipped = number + 1, 0
            if on_rows is not None:
                on_rows(fresh, sum(stage["n"] for row in fresh for stage in row.get("stages", ())))
    return written


def _note_times(path: Path, rows: Sequence[Row], seconds: float) -> None:
    """How long inputs took, beside the evidence rather than in it: times are never the same twice."""
    lines = "".join(json.dumps({"index": row["index"], "seconds": round(seconds, 4)}) + "\n" for row in rows)
    with contextlib.suppress(OSError), path.open("a", encoding="ascii") as file:
        file.write(lines)

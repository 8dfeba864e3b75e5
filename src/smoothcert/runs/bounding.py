"""Runs that certify the base classifier itself, without noise: deterministic, so that α is 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothcert.baselines.methods import Certifier, make_certifier, rough_seconds
from smoothcert.data.dataset import Dataset
from smoothcert.data.selection import select_indices
from smoothcert.errors import InputError, ModelError
from smoothcert.inputs import as_float32, check_values
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import evaluating
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.directory import Run, Writer
from smoothcert.runs.driver import Job, OnRows, OnStart, drive, first_readable, shared_values
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.rows import Row
from smoothcert.runs.settings import BoundSettings
from smoothcert.runs.work import OnDraws, Task, Worker
from smoothcert.sampling import MAX_WORKERS, pick_device, worker_pool
from smoothcert.time_limit import TimeLimit


@dataclass(frozen=True, kw_only=True)
class BoundTask(Task):
    """Bounding a network by a method."""

    method: str

    def start(self, *, on_draws: OnDraws | None = None, classifier: Classifier | None = None) -> BoundWorker:
        """A worker for this task."""
        return BoundWorker(self, self.load(classifier), on_draws)


class BoundWorker(Worker):
    """Certifies inputs by a bound of the network."""

    def __init__(self, task: BoundTask, classifier: Classifier, on_draws: OnDraws | None) -> None:
        super().__init__(classifier.network.to(task.device))
        self._task, self._on_draws = task, on_draws or (lambda _: None)
        self._certifiers: dict[tuple[int, ...], Certifier] = {}

    def results(
        self,
        inputs: npt.NDArray[Any],
        indices: Sequence[int],  # noqa: ARG002 - nothing is random here
        truths: Sequence[int | None],  # noqa: ARG002 - nor looked up
    ) -> Iterator[Row]:
        """The network's answers and their radii, as rows."""
        values = np.stack([as_float32(one) for one in inputs])
        check_values(values, (0.0, 1.0))
        x = torch.from_numpy(values).to(self._task.device)
        shape = tuple(x.shape[1:])
        with evaluating(self._network):
            if shape not in self._certifiers:
                self._certifiers[shape] = self._calm(make_certifier, self._task.method, self._network, shape)
            found = self._bounded(self._certifiers[shape], x)
        self._on_draws(0)
        return ({"label": int(label), "radius": float(radius)} for label, radius in found)

    def _bounded(self, certifier: Certifier, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each input's answer and radius.

        On the CPU one by one, by threads that compute with one thread each: more would add up in another order.
        """
        if x.device.type != "cpu":
            return list(zip(*certifier(x), strict=True))
        futures = [_threads().submit(certifier, one) for one in x.split(1)]
        return [future.result() for future in futures]

    def _calm(self, call: Callable[..., Certifier], *arguments: Any) -> Certifier:
        """The result of a call that is made by one of those threads, for the same reason."""
        if not self._task.device.startswith("cpu"):
            return call(*arguments)
        return _threads().submit(call, *arguments).result()


def _threads() -> ThreadPoolExecutor:
    """Threads that compute with one thread of torch each."""
    return worker_pool(min(torch.get_num_threads(), MAX_WORKERS), 1)


def bound_dataset(
    model: ModelSpec,
    data: Dataset,
    settings: BoundSettings,
    out: Path | Writer,
    *,
    classifier: Classifier | None = None,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_rows: OnRows | None = None,
    on_draws: OnDraws | None = None,
    on_estimate: Callable[[str], None] | None = None,
) -> Run:
    """Certify the base classifier's answers to inputs of `data`, deterministically, into the run directory `out`.

    As `run_dataset` in everything else: rows are on disk as soon as they are made, and `resume` goes on. `on_estimate`
    is told how long the run will take. TimeLimitError if that is longer than `settings.time_limit`.
    """
    settings.check()
    chosen = select_indices(len(data), indices=indices).tolist()
    limit = TimeLimit(settings.time_limit, on_estimate=on_estimate)

    def prepare(begun: Manifest | None) -> Job:
        job = _job(model, classifier, data, settings, chosen)
        if begun is None:  # who resumes has seen the estimate
            shape = as_float32(first_readable(data, chosen)).shape
            with evaluating(job.classifier.network):
                seconds = rough_seconds(settings.method, job.classifier.network, shape)
            limit.check_beforehand(seconds * len(chosen), len(chosen), "inputs")
        return job

    def started(done: int, total: int, notice: str | None) -> None:
        limit.start(total - done, "inputs")
        if on_start is not None:
            on_start(done, total, notice)

    def written(rows: Sequence[Row], draws: int) -> None:
        if on_rows is not None:
            on_rows(rows, draws)
        limit.advance(len(rows))
        if limit.exceeded:
            raise limit.error()

    return drive(prepare, out, resume=resume, on_start=started, on_rows=written, on_draws=on_draws)


def _job(
    spec: ModelSpec, classifier: Classifier | None, data: Dataset, settings: BoundSettings, indices: list[int]
) -> Job:
    first = as_float32(first_readable(data, indices))
    if data.shape is not None:
        spec = replace(spec, fitted=data.shape)
    classifier = spec.load(classifier)
    if classifier.input_shape not in (None, first.shape):
        raise InputError(f"Expected inputs of shape {classifier.input_shape}, got {first.shape}.")
    device = pick_device(classifier.network, settings.device)
    with evaluating(classifier.network):
        make_certifier(settings.method, classifier.network, first.shape)  # says now what it cannot bound
        with torch.no_grad():
            scores = classifier.network.to(device)(torch.from_numpy(first.copy())[None].to(device))
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ModelError(f"Expected scores [B, K] from the network, got {scores.dtype} {tuple(scores.shape)}.")
    data.check_model_classes(scores.shape[1], indices)
    task = BoundTask(model=spec, weights_hash=classifier.weights_hash, device=str(device), method=settings.method)
    values = shared_values(classifier, scores.shape[1], data, indices, settings.batch_size, str(device), settings)
    described = {
        "kind": settings.kind,
        "sigma": 0.0,
        "alpha": 0.0,
        "noise": "none",
        "procedure": {"name": "deterministic", "method": settings.method},
        "known_labels": False,
    }
    return Job(task, classifier, data, indices, settings.batch_size, Manifest({**values, **described}), settings)

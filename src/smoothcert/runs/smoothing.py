"""Runs that certify or predict with a smoothed classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoothcert.data.dataset import Dataset
from smoothcert.data.selection import select_indices
from smoothcert.errors import InputError, ModelError
from smoothcert.execution import calibration_inputs
from smoothcert.models.classifier import Classifier
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.directory import Run, Writer
from smoothcert.runs.driver import Job, OnRows, OnStart, drive, first_readable, shared_values
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.retired import retired_settings
from smoothcert.runs.rows import Row, result_row
from smoothcert.runs.settings import RunSettings
from smoothcert.runs.work import OnDraws, Task, Worker
from smoothcert.sampling import Plan, worker_count
from smoothcert.smoothed import Smoothed
from smoothcert.stats.procedures import FixedN, Predict, Procedure, describe, known_settings
from smoothcert.streams import STREAM_NAMING, make_key

_CHUNK_SECONDS = 2.0
_MOST_INPUTS = 16
_GUESSED_DRAWS = 20_000  # of an input, before any was worked on
_TUNED_SECONDS = 120.0  # runs that will take longer are worth some seconds of looking for the fastest way


@dataclass(frozen=True, kw_only=True)
class SmoothingTask(Task):
    """Certifying or predicting inputs."""

    kind: str
    sigma: float
    noise: str
    procedure: Procedure[Any]
    tests_true_labels: bool
    num_classes: int
    key: str
    plan: Plan
    shape: tuple[int, ...]
    executed: str | None
    calibration: npt.NDArray[np.float32] | None
    secure: bool
    allow_random: bool
    naming: int

    def start(self, *, on_draws: OnDraws | None = None, classifier: Classifier | None = None) -> SmoothingWorker:
        """A worker for this task."""
        return SmoothingWorker(self, self.load(classifier), on_draws)


class SmoothingWorker(Worker):
    """Certifies or predicts."""

    def __init__(self, task: SmoothingTask, classifier: Classifier, on_draws: OnDraws | None) -> None:
        self._task = task
        # As many threads as torch has here, unless the model is one that must not be called from two of them.
        workers = worker_count(classifier.network, torch.device(task.device))
        self._smoothed = Smoothed(
            classifier,
            task.sigma,
            task.num_classes,
            noise=task.noise,
            plan=replace(task.plan, workers=workers),
            calibration=task.calibration,
            device=task.device,
            key=task.key,
            secure=task.secure,
            allow_random=task.allow_random,
            naming=task.naming,
            progress=False,
            on_draws=on_draws,
        )
        executed = self._smoothed.executed(task.shape)
        if executed != task.executed:
            raise ModelError(
                f"Expected to run the model as {task.executed}, it came out as {executed} here: other libraries or "
                "another kind of processor than where the run began. Run it there, or anew with --plan eager."
            )
        super().__init__(self._smoothed.model)

    def results(self, inputs: npt.NDArray[Any], indices: Sequence[int], truths: Sequence[int | None]) -> Iterator[Row]:
        """Certificates or predictions as rows."""
        if self._task.kind == "predict":
            results: Any = self._smoothed.predict(inputs, self._task.procedure, index=indices)
        else:
            labels = truths if self._task.tests_true_labels else None
            results = self._smoothed.certify(inputs, self._task.procedure, label=labels, index=indices)  # type: ignore[arg-type]
        return (result_row(result) for result in results)


def run_dataset(
    model: ModelSpec,
    data: Dataset,
    settings: RunSettings,
    out: Path | Writer,
    *,
    classifier: Classifier | None = None,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_rows: OnRows | None = None,
    on_draws: OnDraws | None = None,
) -> Run:
    """Certify or predict the inputs of `data` under `indices`, by default all, into the run directory `out`.

    Rows are on disk as soon as they are made, in the order of the indices; a run that was cut off goes on with `resume`
    and ends with the same file. `classifier` is the model if it is loaded already, and `out` may be a `Writer` that
    holds the directory. `on_start(done, total, notice)` is told how much is there, `on_rows(rows, draws)` of each chunk
    written, `on_draws(n)` of draws on the way.
    """
    settings.check()
    chosen = select_indices(len(data), indices=indices).tolist()

    def prepare(existing: Manifest | None) -> Job:
        return _job(model, classifier, data, settings, chosen, existing)

    return drive(prepare, out, resume=resume, on_start=on_start, on_rows=on_rows, on_draws=on_draws)


def _job(
    spec: ModelSpec,
    classifier: Classifier | None,
    data: Dataset,
    settings: RunSettings,
    indices: list[int],
    existing: Manifest | None,
) -> Job:
    """The model loaded and checked, the plan made or taken from the run that is there, the manifest written down."""
    first = first_readable(data, indices)
    spec = spec if data.shape is None else replace(spec, fitted=data.shape)
    classifier = spec.load(classifier)
    if settings.tests_true_labels and data.labels is None:
        raise InputError(f"Known labels were asked for, but {data.name} has none.")
    old = None if existing is None else existing.values
    key = old["key"] if old and settings.seed is None else make_key(settings.seed).hex()
    calibration = calibration_inputs(data) if settings.precision == "int8" else None
    smoothed = Smoothed(
        classifier,
        settings.sigma,
        noise=settings.noise,
        **_way_to_run(settings, old),
        calibration=calibration,
        device=settings.device,
        key=key,
        allow_random=settings.allow_random,
        progress=False,
    )
    classes = smoothed.check(first)
    data.check_model_classes(classes, indices)
    shape = np.asarray(first).shape
    if old is None:
        plan, chunk = _plan(smoothed, first, settings, len(indices))
    else:
        plan, chunk = smoothed.plan_for(shape), settings.chunk or old["plan"]["chunk"]
    task = SmoothingTask(
        model=spec,
        weights_hash=classifier.weights_hash,
        kind=settings.kind,
        sigma=settings.sigma,
        noise=settings.noise,
        procedure=settings.make_procedure(),
        tests_true_labels=settings.tests_true_labels,
        num_classes=classes,
        key=key,
        plan=plan,
        shape=shape,
        executed=smoothed.executed(shape),
        calibration=calibration,
        device=str(smoothed.device),
        secure=settings.secure,
        allow_random=settings.allow_random,
        naming=STREAM_NAMING if old is None else recorded_naming(old),
    )
    described = _describe(task, settings)
    if old is not None:
        described["procedure"] = known_settings(task.procedure, old["procedure"]) | retired_settings(old["procedure"])
    if old and settings.seed is None:
        described["seed"] = old["seed"]  # as its key is the run's
    values = shared_values(classifier, classes, data, indices, chunk, task.device, settings)
    plan_values = {**values["plan"], **described.pop("plan")}
    return Job(task, classifier, data, indices, chunk, Manifest({**values, **described, "plan": plan_values}), settings)


def _describe(task: SmoothingTask, settings: RunSettings) -> dict[str, Any]:
    """What run.json says about this kind of run."""
    return {
        "kind": settings.kind,
        "sigma": task.sigma,
        "alpha": settings.alpha,
        "noise": task.noise,
        "procedure": describe(task.procedure),
        "known_labels": task.tests_true_labels,
        "secure": task.secure,
        "allow_random": task.allow_random,
        "key": task.key,
        "seed": settings.seed,
        **({"streams": task.naming} if task.naming > 1 else {}),
        "plan": plan_values(task.plan, task.executed),
    }


def recorded_naming(values: Mapping[str, Any]) -> int:
    """How a run names its streams of noise; runs of version 0.1 do not say, and name them by input and stage."""
    return int(values.get("streams", 1))


def plan_values(plan: Plan, executed: str | None) -> dict[str, Any]:
    """What run.json says about how the model was run; nothing of a backend where it was run as it is."""
    values: dict[str, Any] = {
        "batch_size": plan.batch_size,
        "channels_last": plan.channels_last,
        "threads": plan.threads,
    }
    if not plan.is_plain:
        values.update(backend=plan.backend, precision=plan.precision, executed=executed)
    return values


def recorded_plan(values: Mapping[str, Any]) -> Plan:
    """The plan that run.json tells of."""
    names = ("batch_size", "channels_last", "threads", "backend", "precision")
    return Plan(**{name: values[name] for name in names if name in values})


def _way_to_run(settings: RunSettings, old: Mapping[str, Any] | None) -> dict[str, Any]:
    """How `Smoothed` is to run the model: as asked, or as the run began, but for what is asked otherwise now."""
    if old is None:
        return {"plan": settings.plan, "precision": settings.precision, "batch_size": settings.batch_size}
    begun = recorded_plan(old["plan"])
    backend = begun.backend if settings.plan == "auto" else settings.plan
    size = settings.batch_size or begun.batch_size
    return {"plan": replace(begun, backend=backend, precision=settings.precision, batch_size=size)}


def _plan(smoothed: Smoothed, first: Any, settings: RunSettings, inputs: int) -> tuple[Plan, int]:
    """How the model is run, and how many inputs make a chunk: as given, as remembered, or as measured now."""
    fixed = isinstance(settings.make_procedure(), FixedN | Predict)
    shape = np.asarray(first).shape
    if settings.plan == "auto" and smoothed.tunable(shape):
        draws = inputs * (settings.n_max if fixed else _GUESSED_DRAWS)
        if draws * smoothed.seconds_per_draw(first) > _TUNED_SECONDS:
            smoothed.tune(shape)
    found = smoothed.plan_for(shape)
    # One thread per worker: more of them may add up in another order.
    plan = replace(found, workers=1, threads=1 if smoothed.device.type == "cpu" else None)
    if settings.chunk is not None:
        return plan, settings.chunk
    if fixed or settings.timeout is not None:
        return plan, 1  # long stages gain nothing by sharing batches; and who hangs should take no others along
    seconds = smoothed.seconds_per_draw(first) * _GUESSED_DRAWS
    return plan, max(1, min(_MOST_INPUTS, int(_CHUNK_SECONDS / seconds)))

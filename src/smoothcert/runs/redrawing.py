"""Drawing votes of a run once more, with its model and data: the same noise must bring the same rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from smoothcert.data.dataset import Dataset
from smoothcert.errors import InputError, ModelError
from smoothcert.execution import calibration_inputs
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.bounding import BoundTask
from smoothcert.runs.directory import Run
from smoothcert.runs.driver import first_readable, read_chunk
from smoothcert.runs.smoothing import SmoothingTask, recorded_naming, recorded_plan
from smoothcert.runs.verification import Problem, procedure_of


def draw_again(
    run: Run, spec: ModelSpec, data: Dataset, count: int, on_rows: Callable[[int], None] = lambda _: None
) -> tuple[int, list[Problem]]:
    """Make at least `count` rows again, of chunks chosen at random; how many were made, and what differs.

    `on_rows` is told of the rows done.

    InputError or ModelError if data or model are not the run's. On another kind of processor a vote may fall otherwise
    where two scores differ by rounding alone.
    """
    values = run.manifest.values
    if data.fingerprint() != values["data"]["fingerprint"]:
        raise InputError(f"{data.name} is not the data of {run.path}: its fingerprint is another.")
    spec = spec if data.shape is None else ModelSpec(source=spec.source, settings=spec.settings, fitted=data.shape)
    classifier = spec.load()
    if classifier.weights_hash != values["model"]["weights_hash"]:
        raise ModelError(f"{classifier.source} is not the model of {run.path}: its weights are others.")
    task = _bound_task(values, spec) if run.manifest.kind == "bound" else _task(values, spec, data)
    worker = task.start(classifier=classifier)
    made, problems = 0, []
    for number in _chosen(run, count):
        size = values["plan"]["chunk"]
        recorded = run.rows[number * size : (number + 1) * size]
        rows = worker.work(read_chunk(data, run.manifest.indices, size, number))
        made += len(recorded)
        on_rows(len(recorded))
        problems += _differing(number * size, recorded, rows)
    return made, problems


def _chosen(run: Run, count: int) -> Iterator[int]:
    """Chunks that have all their rows, in an order that nobody knew before, until they hold `count` rows."""
    size = run.manifest.values["plan"]["chunk"]
    total = len(run.manifest.indices)
    whole = [n for n in range(-(-total // size)) if min((n + 1) * size, total) <= len(run.rows)]
    random.SystemRandom().shuffle(whole)
    return iter(whole[: -(-count // size)])


def _bound_task(values: Mapping[str, Any], spec: ModelSpec) -> BoundTask:
    return BoundTask(
        model=spec,
        weights_hash=values["model"]["weights_hash"],
        device=values["device"].partition(" ")[0],
        method=values["procedure"]["method"],
    )


def _task(values: Mapping[str, Any], spec: ModelSpec, data: Dataset) -> SmoothingTask:
    plan = recorded_plan(values["plan"])
    return SmoothingTask(
        model=spec,
        weights_hash=values["model"]["weights_hash"],
        kind=values["kind"],
        sigma=values["sigma"],
        noise=values["noise"],
        procedure=procedure_of(values),
        tests_true_labels=values["known_labels"],
        num_classes=values["model"]["num_classes"],
        key=values["key"],
        plan=plan,
        shape=np.asarray(first_readable(data, values["indices"])).shape,
        executed=values["plan"].get("executed"),
        calibration=calibration_inputs(data) if plan.precision == "int8" else None,
        device=values["device"].partition(" ")[0],
        secure=False,  # whoever checks knows the key, and may
        allow_random=values["allow_random"],
        naming=recorded_naming(values),
    )


def _same(old: Any, new: Any) -> bool:
    """Equal; of numbers that were computed, to nine digits."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=0.0)
    return bool(old == new)


def _differing(first: int, recorded: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Iterator[Problem]:
    for place, (old, new) in enumerate(zip(recorded, rows, strict=False)):
        names = [name for name in new if not _same(old.get(name), new[name])]
        if names:
            yield Problem(first + place + 1, f"drawn again, its {', '.join(names)} came out otherwise")

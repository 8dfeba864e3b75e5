"""The work of a run, apart from who does it: a task holds the settings, a worker the model, a chunk some inputs."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.inputs import as_float32, content_id
from smoothcert.models.classifier import Classifier
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.rows import Row, result_row
from smoothcert.sampling import Plan, worker_count
from smoothcert.smoothed import Smoothed
from smoothcert.stats.procedures import Procedure


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything a worker must know to turn an input into its row, the same on every machine."""

    model: ModelSpec
    weights_hash: str | None
    kind: str
    sigma: float
    noise: str
    procedure: Procedure[Any]
    tests_true_labels: bool
    num_classes: int
    key: str
    plan: Plan
    device: str
    secure: bool
    allow_random: bool


@dataclass(frozen=True)
class Chunk:
    """Inputs that are worked on together: always the same ones, so that the same draws share a batch.

    An input that could not be read is the text of its error.
    """

    number: int
    indices: tuple[int, ...]
    inputs: tuple[npt.NDArray[Any] | str, ...]
    truths: tuple[int | None, ...]


class Worker:
    """Holds the model and works chunks off, one after the other."""

    def __init__(
        self, task: Task, *, on_draws: Callable[[int], None] | None = None, classifier: Classifier | None = None
    ) -> None:
        classifier = classifier or task.model.load()
        if classifier.weights_hash != task.weights_hash:
            raise ModelError(
                f"Expected the model of the run, with weights {task.weights_hash}, got {classifier.weights_hash} in "
                f"{classifier.source}."
            )
        self._task = task
        # As many threads as torch has here, unless the model is one that must not be called from two of them.
        workers = worker_count(classifier.network, torch.device(task.device))
        self._smoothed = Smoothed(
            classifier,
            task.sigma,
            task.num_classes,
            noise=task.noise,
            plan=replace(task.plan, workers=workers),
            device=task.device,
            key=task.key,
            secure=task.secure,
            allow_random=task.allow_random,
            progress=False,
            on_draws=on_draws,
        )
        self._fingerprint = self._weights()

    def work(self, chunk: Chunk) -> list[Row]:
        """The rows of a chunk's inputs, in their order; an input that fails gets a row that says why."""
        readable = [place for place, one in enumerate(chunk.inputs) if not isinstance(one, str)]
        results = self._results(chunk, readable)
        rows = []
        for place, index in enumerate(chunk.indices):
            one = chunk.inputs[place]
            row: Row = {"index": index, "true": chunk.truths[place]}
            if isinstance(one, str):
                rows.append({**row, "error": one})
            else:
                rows.append({**row, "input": _name(one), **results[place]})
        self.check_weights()
        return rows

    def _results(self, chunk: Chunk, places: list[int]) -> dict[int, Row]:
        """Results by place: of all inputs together, or of each alone if together they fail or have several shapes."""
        shapes = {chunk.inputs[place].shape for place in places}  # type: ignore[union-attr]
        if len(places) > 1 and len(shapes) == 1:
            try:
                return dict(zip(places, self._ask(chunk, places), strict=True))
            except Exception:  # noqa: S110 - asked again, one by one, to know which it is
                pass
        found: dict[int, Row] = {}
        for place in places:
            try:
                [found[place]] = self._ask(chunk, [place])
            except Exception as error:
                found[place] = {"error": describe_error(error)}
        return found

    def _ask(self, chunk: Chunk, places: Sequence[int]) -> Iterator[Row]:
        batch = np.stack([chunk.inputs[place] for place in places])
        indices = [chunk.indices[place] for place in places]
        if self._task.kind == "predict":
            results: Any = self._smoothed.predict(batch, self._task.procedure, index=indices)
        else:
            labels = [chunk.truths[place] for place in places] if self._task.tests_true_labels else None
            results = self._smoothed.certify(batch, self._task.procedure, label=labels, index=indices)  # type: ignore[arg-type]
        return (result_row(result) for result in results)

    def check_weights(self) -> None:
        """Raise ModelChangedError unless weights and buffers are still those that were loaded."""
        if self._weights() != self._fingerprint:
            raise ModelChangedError(
                "The model's weights or buffers changed while it was being certified: its draws are not those of one "
                "classifier. Make it leave them alone in eval mode."
            )

    def _weights(self) -> list[int]:
        """A checksum of every tensor; quick, as it guards against accidents rather than forgery."""
        model: Any = self._smoothed.model
        tensors = (one.detach().cpu().contiguous() for one in (*model.parameters(), *model.buffers()))
        return [zlib.crc32(one.reshape(-1).view(torch.uint8).numpy()) for one in tensors]


def describe_error(error: Exception) -> str:
    """An error in one line, for a row."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _name(x: npt.NDArray[Any]) -> str:
    """The hash that tells which input a row is about."""
    return hashlib.sha256(content_id(as_float32(x)).encode()).hexdigest()[:16]

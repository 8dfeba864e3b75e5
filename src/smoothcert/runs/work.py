"""The work of a run, apart from who does it: a task holds the settings, a worker the model, a chunk some inputs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.inputs import as_float32, content_id
from smoothcert.models.classifier import Classifier
from smoothcert.models.hashes import checksums
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.rows import Row

OnDraws = Callable[[int], None]


@dataclass(frozen=True)
class Chunk:
    """Inputs that are worked on together: always the same ones, so that the same draws share a batch.

    An input that could not be read is the text of its error.
    """

    number: int
    indices: tuple[int, ...]
    inputs: tuple[npt.NDArray[Any] | str, ...]
    truths: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Everything a worker must know to turn an input into its row, the same on every machine."""

    model: ModelSpec
    weights_hash: str | None
    device: str

    @abstractmethod
    def start(self, *, on_draws: OnDraws | None = None, classifier: Classifier | None = None) -> Worker:
        """A worker for this task; `classifier` is its model if that is loaded already."""

    def load(self, classifier: Classifier | None = None) -> Classifier:
        """The model; ModelError if it is not the run's."""
        classifier = classifier or self.model.load()
        if classifier.weights_hash != self.weights_hash:
            raise ModelError(
                f"Expected the model of the run, with weights {self.weights_hash}, got {classifier.weights_hash} in "
                f"{classifier.source}."
            )
        return classifier


class Worker(ABC):
    """Holds a model and works chunks off, one after the other."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._fingerprint = checksums(network)

    @abstractmethod
    def results(self, inputs: npt.NDArray[Any], indices: Sequence[int], truths: Sequence[int | None]) -> Iterable[Row]:
        """What a batch of inputs of one shape comes to, a row each."""

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
            except ModelChangedError:
                raise  # not one input's fault: no row after the change is worth anything
            except Exception:  # noqa: S110 - asked again, one by one, to know which it is
                pass
        found: dict[int, Row] = {}
        for place in places:
            try:
                [found[place]] = self._ask(chunk, [place])
            except ModelChangedError:
                raise
            except Exception as error:
                found[place] = {"error": describe_error(error)}
        return found

    def _ask(self, chunk: Chunk, places: Sequence[int]) -> Iterable[Row]:
        batch = np.stack([chunk.inputs[place] for place in places])
        return self.results(batch, [chunk.indices[p] for p in places], [chunk.truths[p] for p in places])

    def check_weights(self) -> None:
        """Raise ModelChangedError unless weights and buffers are still those that were loaded."""
        if checksums(self._network) != self._fingerprint:
            raise ModelChangedError(
                "The model's weights or buffers changed while it was being certified: its draws are not those of one "
                "classifier. Make it leave them alone in eval mode."
            )


def describe_error(error: Exception) -> str:
    """An error in one line, for a row."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _name(x: npt.NDArray[Any]) -> str:
    """The hash that tells which input a row is about."""
    return hashlib.sha256(content_id(as_float32(x)).encode()).hexdigest()[:16]

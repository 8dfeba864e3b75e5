"""What a data set is, wherever it came from: inputs that an index names for good, with labels and class names."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import InputError


class Dataset(ABC):
    """Inputs [*D], each 8-bit or float32, under indices from 0 that never change; labels and class names where known.

    Images are [C, H, W] and stay in 8 bits, so that every pixel is exactly k/255 and sound noise on that grid applies.
    """

    name: str
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...] | None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...] | None:
        """The shape that all inputs have, or None where they differ."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that is another one if an input, a label or the preparation of the inputs is."""

    def batch(self, indices: Iterable[int]) -> npt.NDArray[Any]:
        """The inputs under these indices in one array [N, *D]; InputError where their shapes differ."""
        inputs = [self[int(index)] for index in indices]
        shapes = sorted({one.shape for one in inputs})
        if len(shapes) > 1:
            raise InputError(
                f"The inputs of {self.name} have different shapes, such as {shapes[0]} and {shapes[-1]}. Give a size "
                "to bring them to."
            )
        return np.stack(inputs)

    def check_labels(self) -> None:
        """Raise InputError unless there is one label per input, each with a class name."""
        if self.labels is None:
            return
        if self.labels.shape != (len(self),) or self.labels.dtype != np.int64:
            raise InputError(f"Expected {len(self)} int64 labels, got {self.labels.dtype} {self.labels.shape}.")
        if len(self.labels) and self.labels.min() < 0:
            raise InputError(f"Expected labels of 0 and more in {self.name}, got {self.labels.min()}.")
        if self.classes is not None and len(self.labels) and self.labels.max() >= len(self.classes):
            raise InputError(
                f"Expected labels from 0 to {len(self.classes) - 1} in {self.name}, as there are as many names, "
                f"got {self.labels.max()}."
            )

    def check_model_classes(self, num_classes: int, indices: Sequence[int]) -> None:
        """Raise InputError unless the labels of the inputs `indices` are classes of a model with `num_classes`."""
        if self.labels is None:
            return
        labels = self.labels[np.asarray(indices, dtype=np.int64)]
        outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
        if len(outside):
            first = int(outside[0])
            raise InputError(
                f"Input {indices[first]} of {self.name} has label {labels[first]}, but the model has {num_classes} "
                f"classes (0 to {num_classes - 1}); {len(outside):,} of {len(labels):,} inputs have such labels. Use "
                "the data set that the model was trained on, or a model for these classes."
            )


@dataclass(frozen=True, slots=True, eq=False)
class ArrayData(Dataset):
    """A data set in memory: inputs [N, *D] in 8 bits or float32."""

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    name: str

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or self.inputs.dtype not in (np.uint8, np.float32):
            raise InputError(f"Expected uint8 or float32 inputs [N, *D], got {self.inputs.dtype} {self.inputs.shape}.")
        self.check_labels()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        return self.inputs[index]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every input."""
        return self.inputs.shape[1:]

    def fingerprint(self) -> str:
        """The SHA-256 of all inputs and labels."""
        digest = hashlib.sha256(repr((self.inputs.dtype.str, self.inputs.shape)).encode())
        digest.update(np.ascontiguousarray(self.inputs))
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return f"sha256:{digest.hexdigest()}"

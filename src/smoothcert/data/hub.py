"""Data sets of Hugging Face's `datasets`: a folder that it saved, or a name on its hub."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.dataset import Dataset
from smoothcert.data.images import Preparation, Window, decode_image, read_image
from smoothcert.data.label_files import as_labels
from smoothcert.data.names import printable
from smoothcert.errors import InputError, MissingExtraError

_SAVED = ("dataset_info.json", "dataset_dict.json")
_LABELS = ("label", "labels", "fine_label")


@dataclass(frozen=True, eq=False)
class HubData(Dataset):
    """The images in the column `column` of a table of `datasets`, each decoded when it is asked for."""

    table: Any
    column: str
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    name: str
    preparation: Preparation

    def __post_init__(self) -> None:
        self.check_labels()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        return self.cropped(index, None)

    def cropped(self, index: int, window: Window | None) -> npt.NDArray[np.uint8]:
        """The part of an image in `window`, brought to the size of all images; without a window, the image prepared."""
        content, path = self._stored(index)
        if content is None:
            return read_image(Path(path), self.preparation, window=window)
        return decode_image(content, f"input {index} of {printable(self.name)}", self.preparation, window)

    def _stored(self, index: int) -> tuple[bytes | None, str]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        cell = self.table[int(index)][self.column]
        if cell is None or (cell["bytes"] is None and not cell["path"]):
            raise InputError(f"Expected an image as input {index} of {printable(self.name)}, got none.")
        return cell["bytes"], cell["path"] or ""

    @cached_property
    def shape(self) -> tuple[int, ...] | None:
        """The shape that all images are brought to or have; None at the first that differs."""
        if self.preparation.size is not None:
            return (self.preparation.channels, *self.preparation.size)
        shapes = (self[index].shape for index in range(len(self)))
        first = next(shapes)
        return first if all(shape == first for shape in shapes) else None

    def fingerprint(self) -> str:
        """The SHA-256 of all image files, labels and the preparation."""
        digest = hashlib.sha256(repr(self.preparation).encode())
        for index in range(len(self)):
            content, path = self._stored(index)
            digest.update(hashlib.sha256(Path(path).read_bytes() if content is None else content).digest())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return f"sha256:{digest.hexdigest()}"


def load_hub(name: str, split: str, preparation: Preparation) -> HubData:
    """The split of a data set saved in the folder `name`, or of that name on the hub."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "datasets") from error
    table = _table(datasets, name, split)
    column = next((key for key, kind in table.features.items() if isinstance(kind, datasets.Image)), None)
    if column is None:
        kinds = ", ".join(f"{key}: {type(kind).__name__}" for key, kind in table.features.items())
        raise InputError(f"Expected a column of images in hf:{printable(name)}, got {printable(kinds)}.")
    if not len(table):
        raise InputError(f"Expected images in the split {printable(split)} of hf:{printable(name)}, got none.")
    labels, classes = _labels(datasets, table, name)
    images = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return HubData(images, column, labels, classes, f"{printable(name)} ({split})", preparation)


def _table(datasets: Any, name: str, split: str) -> Any:
    folder = Path(name)
    saved = any((folder / file).is_file() for file in _SAVED)
    try:
        found = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(name, split=split)
    except Exception as error:  # offline, unknown, no such split, damaged: each has an exception of its own
        reason = printable(" ".join(str(error).split()))[:300]
        raise InputError(f"Cannot load hf:{printable(name)}, split {printable(split)}: {reason}") from error
    if not isinstance(found, datasets.DatasetDict):
        return found
    if split not in found:
        raise InputError(
            f"Expected a split of hf:{printable(name)}, one of {printable(', '.join(found))}, got '{printable(split)}'."
        )
    return found[split]


def _labels(datasets: Any, table: Any, name: str) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...] | None]:
    features = table.features
    named = next((key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)), None)
    column = named or next((key for key in _LABELS if key in features), None)
    if column is None:
        return None, None
    values = table.select_columns([column]).with_format("numpy")[:][column]
    labels = as_labels(np.asarray(values), len(table), f"hf:{printable(name)}")
    return labels, tuple(features[column].names) if named else None

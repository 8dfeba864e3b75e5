"""One function for every source of data: `load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data import cifar
from smoothcert.data.arrays import load_arrays
from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.data.digits import load_digits
from smoothcert.data.hub import load_hub
from smoothcert.data.idx import read_idx
from smoothcert.data.image_folder import load_folder
from smoothcert.data.imagenet import load_imagenet
from smoothcert.data.images import Preparation
from smoothcert.data.known import IMAGENET, Found, Known, canonical_name, check_split, expected_files, find, known
from smoothcert.data.names import printable
from smoothcert.data.svhn import read_mat
from smoothcert.errors import ConfigError, InputError
from smoothcert.folders import data_root

_Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def load(
    source: str | Path,
    *,
    split: str = "test",
    root: Path | str | None = None,
    size: int | tuple[int, int] | None = None,
    crop: float = 0.875,
    channels: int | None = None,
    labels: Path | None = None,
) -> Dataset:
    """A data set by name, from a folder of images, from an .npz or .npy file, or from `hf:NAME`.

    Names (see KNOWN) are looked for under `root`, by default `data_root()`. Image files are brought to `size` by
    resizing to size/crop and cutting out the middle, in colour or with `channels=1` in grey. `labels` is a file of
    labels for images or arrays that have none of their own.
    """
    preparation = _preparation(size, crop, channels)
    if isinstance(source, str) and source.startswith("hf:"):
        _refuse(source, labels=labels)
        return load_hub(source.removeprefix("hf:"), split, preparation)
    name = canonical_name(source) if isinstance(source, str) else None
    if name == IMAGENET.name:
        return load_imagenet(data_root(root), split, preparation, labels)
    if name is None and (folder := _existing(source)).is_dir():
        return load_folder(folder, split, preparation, labels=labels)
    if name is None:
        return _as_wanted(load_arrays(Path(source), split, labels), size, channels)
    _refuse(name, labels=labels)
    return _as_wanted(_named(known(name), data_root(root), split), size, channels)


def _preparation(size: int | tuple[int, int] | None, crop: float, channels: int | None) -> Preparation:
    pair = (size, size) if isinstance(size, int) else size
    return Preparation(pair, crop, 3 if channels is None else channels)


def _refuse(source: str, *, labels: Path | None) -> None:
    if labels is not None:
        raise ConfigError(f"Expected no label file for {printable(source)}, which brings its own labels.")


def _existing(source: str | Path) -> Path:
    """The path, if there is something; else the error says the nearest name, or that nothing is there."""
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and not path.suffix and len(path.parts) == 1:
            known(source)
        raise InputError(f"Expected a data set, a folder of images or an array file, there is no {printable(path)}.")
    if path.is_file() and path.suffix not in (".npz", ".npy"):
        raise InputError(f"Expected a folder of images, or a file .npz or .npy, got {printable(path)}.")
    return path


def _as_wanted(data: ArrayData, size: int | tuple[int, int] | None, channels: int | None) -> ArrayData:
    """Arrays stay as they are; a wish for another shape is an error rather than ignored."""
    wanted = (size, size) if isinstance(size, int) else size
    if (wanted is not None and data.shape[1:] != wanted) or (channels is not None and data.shape[0] != channels):
        raise ConfigError(
            f"Expected no other size or channels than those of {printable(data.name)}, {data.shape}; only image files "
            "are resized."
        )
    return data


def _named(data: Known, root: Path, split: str) -> ArrayData:
    check_split(data, split)
    if data.name == "digits":
        return load_digits()[split == "test"]
    found = find(data, root, split)
    if found is None:
        raise InputError(
            f"{data.name} is not there: expected {expected_files(data, root, split)}. Get it by `smoothcert data fetch "
            f"{data.name}`, or name the folder above it as the root of the data."
        )
    images, labels = _READERS[data.name, found.kind](found)
    classes = data.classes or cifar.read_class_names(found.folder)
    if (len(images), images.shape[1:]) != (data.counts[split], data.shape):
        raise InputError(
            f"Expected {data.counts[split]:,} images {data.shape} in {data.name} ({split}), got {len(images):,} "
            f"{images.shape[1:]} in {printable(found.folder)}: those are other data."
        )
    return ArrayData(images, labels, classes, f"{data.name} ({split})")


def _idx(found: Found) -> _Arrays:
    images, labels = read_idx(found.files[0], 3), read_idx(found.files[1], 1)
    return images[:, None], labels.astype(np.int64)


_READERS: dict[tuple[str, str], Callable[[Found], Any]] = {
    ("mnist", "idx"): _idx,
    ("fashion-mnist", "idx"): _idx,
    ("cifar10", "binary"): lambda found: cifar.read_binary(found.files, label_bytes=1),
    ("cifar10", "python"): lambda found: cifar.read_python(found.files, "labels"),
    ("cifar100", "binary"): lambda found: cifar.read_binary(found.files, label_bytes=2),
    ("cifar100", "python"): lambda found: cifar.read_python(found.files, "fine_labels"),
    ("svhn", "mat"): lambda found: read_mat(found.files[0]),
}

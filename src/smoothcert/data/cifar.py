"""CIFAR-10 and CIFAR-100 in their binary and their Python version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.data.pickles import read_pickle
from smoothcert.errors import InputError
from smoothcert.files import read_at_most

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MOST_BYTES = 2**30  # far more than a published batch

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def read_binary(paths: Sequence[Path], label_bytes: int) -> Arrays:
    """Images and labels of binary batches; the last of a record's label bytes is the fine label."""
    records = np.concatenate([_records(path, label_bytes + _PIXELS) for path in paths])
    labels = records[:, label_bytes - 1].astype(np.int64)
    return records[:, label_bytes:].reshape(-1, *_SHAPE), labels


def _records(path: Path, length: int) -> npt.NDArray[np.uint8]:
    content = read_at_most(path, _MOST_BYTES, InputError, printable(path))
    if not content or len(content) % length:
        raise InputError(
            f"Expected records of {length:,} bytes in {printable(path)}, so a multiple of that, got {len(content):,} "
            "bytes. Fetch it again."
        )
    return np.frombuffer(content, np.uint8).reshape(-1, length)


def read_python(paths: Sequence[Path], label_key: str) -> Arrays:
    """Images and labels of pickled batches, read without running anything they hold."""
    batches = [_batch(path, label_key) for path in paths]
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images).reshape(-1, *_SHAPE), np.concatenate(labels)


def _batch(path: Path, label_key: str) -> Arrays:
    content = read_pickle(path)
    images, labels = content.get("data"), content.get(label_key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
        got = f"{images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise InputError(f"Expected an array `data` [N, {_PIXELS}] in {printable(path)}, got {got}.")
    if not _are_labels(labels, len(images)):
        raise InputError(f"Expected {len(images):,} whole numbers `{label_key}` in {printable(path)}, one per image.")
    return images, np.array(labels, np.int64)


def _are_labels(labels: Any, count: int) -> bool:
    return isinstance(labels, list) and len(labels) == count and all(type(x) is int and 0 <= x < 256 for x in labels)


def read_class_names(folder: Path) -> tuple[str, ...] | None:
    """CIFAR-100's fine class names from the file that comes with either version, or None where it is missing."""
    if (folder / "fine_label_names.txt").is_file():
        file = folder / "fine_label_names.txt"
        return tuple(read_at_most(file, 2**20, InputError, printable(file)).decode("utf-8", errors="replace").split())
    if (folder / "meta").is_file():
        names = read_pickle(folder / "meta").get("fine_label_names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None

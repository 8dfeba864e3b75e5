"""Arrays in .npz and .npy files, 8-bit images or floats of any shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.dataset import ArrayData
from smoothcert.data.label_files import as_labels, read_labels
from smoothcert.data.names import printable
from smoothcert.data.numpy_files import read_numpy
from smoothcert.errors import ConfigError, InputError

INPUT_NAMES = ("images", "x", "inputs", "data")
LABEL_NAMES = ("labels", "y", "targets")
_COLOURS = (1, 3)


def load_arrays(path: Path, split: str, labels: Path | None = None) -> ArrayData:
    """The inputs in an .npz or .npy file, with labels from it or from a file of their own."""
    source = printable(path)
    found = read_numpy(path)
    if isinstance(found, np.ndarray):
        key, inputs, own = "", found, None
    else:
        key, inputs, own = _chosen(found, split, source)
    if own is not None and labels is not None:
        raise ConfigError(f"Expected labels in {source} or in {printable(labels)}, got both. Give one of them.")
    prepared = as_inputs(inputs, source)
    known = read_labels(labels, len(prepared)) if labels is not None else None
    if own is not None:
        known = as_labels(own, len(prepared), source)
    name = f"{path.name} ({split})" if key == f"x_{split}" else path.name
    return ArrayData(prepared, known, None, printable(name))


def as_inputs(array: npt.NDArray[Any], source: str) -> npt.NDArray[Any]:
    """8-bit images as [N, C, H, W], floats as float32 [N, *D]; InputError for anything else."""
    if array.dtype == np.uint8 and array.size:
        return _images(array, source)
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size:
        raise InputError(
            f"Expected uint8 images [N, C, H, W], [N, H, W, C] or [N, H, W], or floats [N, ...] in {source}, got "
            f"{array.dtype} {array.shape}."
        )
    with np.errstate(over="ignore"):  # told apart below
        floats = array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1))
    if len(bad):
        raise InputError(f"Expected finite numbers that fit float32 in {source}, input {bad[0]} has others.")
    return floats


def _images(array: npt.NDArray[np.uint8], source: str) -> npt.NDArray[np.uint8]:
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[1] in _COLOURS:
        return array
    if array.ndim == 4 and array.shape[3] in _COLOURS:
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    raise InputError(
        f"Expected uint8 images [N, C, H, W], [N, H, W, C] or [N, H, W] of 1 or 3 channels in {source}, got "
        f"{array.shape}."
    )


def _chosen(
    arrays: Mapping[str, npt.NDArray[Any]], split: str, source: str
) -> tuple[str, npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Inputs and labels by their customary names, those of the split first; or the only array there is."""
    key = _first((f"x_{split}", *INPUT_NAMES), arrays)
    if key is None and len(arrays) == 1:
        key = next(iter(arrays))
    if key is None:
        wanted = ", ".join((f"x_{split}", *INPUT_NAMES))
        raise InputError(
            f"Expected an array {wanted}, or only one, in {source}, got {printable(', '.join(arrays)) or 'none'}."
        )
    label_names = (f"y_{split}",) if key == f"x_{split}" else LABEL_NAMES
    label_key = _first(label_names, arrays)
    return key, arrays[key], None if label_key is None else arrays[label_key]


def _first(names: Iterable[str], arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    return next((name for name in names if name in arrays), None)

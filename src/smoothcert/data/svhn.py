"""Street View House Numbers: cropped digits in MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from smoothcert.data.mat_files import read_mat_arrays
from smoothcert.data.names import printable
from smoothcert.errors import InputError

_MOST = 1_000_000  # the largest part has 531,131


def read_mat(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images [N, 3, 32, 32] and labels 0 to 9; the file calls a zero 10."""
    found = read_mat_arrays(path, _fits)
    images, labels = found.get("X"), found.get("y")
    if images is None or images.dtype != np.uint8 or labels is None or labels.size != images.shape[3]:
        raise InputError(
            f"Expected `X` uint8 (32, 32, 3, N) and `y` (N, 1) in {printable(path)}, the cropped digits, got "
            f"{', '.join(f'{name} {one.dtype} {one.shape}' for name, one in found.items()) or 'neither'}."
        )
    digits = labels.reshape(-1)
    if not np.isin(digits, np.arange(11)).all():
        raise InputError(f"Expected labels from 1 to 10 in {printable(path)}, where 10 is the digit 0.")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), digits.astype(np.int64) % 10


def _fits(name: str, shape: tuple[int, ...]) -> bool:
    if name == "X":
        return len(shape) == 4 and shape[:3] == (32, 32, 3) and 0 < shape[3] <= _MOST
    return name == "y" and len(shape) == 2 and 1 in shape and 0 < max(shape) <= _MOST and min(shape) == 1

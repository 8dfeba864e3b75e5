"""What a user may hand in as input: checked once, copied once, then float32 numpy everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoothcert.errors import InputError

Range = tuple[float, float]


def _as_numpy(x: Any) -> npt.NDArray[Any]:
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided or x.is_quantized or x.device.type == "meta":
            raise InputError(f"Expected a dense tensor with values, got {x.layout} on {x.device}.")
        x = x.detach()
        if x.dtype == torch.bfloat16:
            x = x.float()  # exact, and numpy has no bfloat16
        return x.cpu().numpy()
    try:
        return np.asarray(x)
    except ValueError as error:  # ragged lists
        raise InputError(f"Expected an array or tensor of numbers: {error}.") from error


def as_float32(x: Any) -> npt.NDArray[np.float32]:
    """A fresh, contiguous float32 copy: uint8 is divided by 255, other floats are rounded to float32.

    The certificate speaks of the rounded input. Complex, integer and object arrays are refused.
    """
    array = _as_numpy(x)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array, np.float32) / np.float32(255)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"Expected floating-point values or uint8 (which is divided by 255), got dtype {array.dtype}.")
    with np.errstate(over="ignore"):  # what overflows becomes infinite and is refused as such
        return np.array(array, np.float32, order="C")


def check_values(x: npt.NDArray[np.float32], input_range: Range | None) -> None:
    """Raise InputError if `x` is empty, not finite, or outside the declared range."""
    if x.size == 0:
        raise InputError(f"Expected an input with values, got shape {x.shape}.")
    finite = np.isfinite(x)
    if not finite.all():
        first = np.unravel_index(int((~finite).argmax()), x.shape)
        raise InputError(f"Expected finite values, got {x[first]} at index {tuple(int(i) for i in first)}.")
    if input_range is not None and not (input_range[0] <= x.min() and x.max() <= input_range[1]):
        raise InputError(
            f"Found values outside the declared range [{input_range[0]:g}, {input_range[1]:g}]: got "
            f"[{x.min():g}, {x.max():g}]. Scale the input (8-bit images by 1/255), or declare another input_range, "
            "or input_range=None for data without one."
        )


def split_batch(x: Any, input_shape: Sequence[int] | None) -> tuple[list[npt.NDArray[np.float32]], bool]:
    """The inputs in `x` and whether it was a batch of them.

    With a declared `input_shape`, `x` has that shape or one dimension more. Without one, arrays of one or
    three dimensions (vectors, images) are one input, of two or four a batch of them.
    """
    array = as_float32(x)
    if input_shape is None:
        if array.ndim not in (1, 2, 3, 4):
            raise InputError(
                f"Cannot tell whether an array of shape {array.shape} is one input or a batch; declare input_shape."
            )
        batched = array.ndim in (2, 4)
    else:
        shape = tuple(input_shape)
        if array.shape != shape and array.shape[1:] != shape:
            raise InputError(
                f"Expected one input of shape {shape} or a batch of shape (N, {', '.join(map(str, shape))}), got "
                f"{array.shape}."
            )
        batched = array.shape != shape
    if batched and len(array) == 0:
        raise InputError(f"Expected at least one input, got a batch of shape {array.shape}.")
    return (list(array) if batched else [array]), batched


def content_id(x: npt.NDArray[np.float32]) -> str:
    """A name for an input that has no index: equal inputs get equal noise, so asking again changes nothing."""
    digest = hashlib.sha256(repr(x.shape).encode() + x.tobytes()).hexdigest()
    return f"sha256:{digest}"


def check_labels(labels: Any, num_classes: int) -> npt.NDArray[np.int64]:
    """`labels` as int64 if each is a class from 0 to num_classes − 1, else InputError naming the first."""
    array = _as_numpy(labels)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"Expected whole-number labels from 0 to {num_classes - 1}, got dtype {array.dtype}.")
    bad = (array < 0) | (array >= num_classes)
    if bad.any():
        first = int(bad.reshape(-1).argmax())
        raise InputError(
            f"Expected labels from 0 to {num_classes - 1}, got {array.reshape(-1)[first]} at position {first}."
        )
    return array.astype(np.int64)

"""CIFAR's Python version is pickled, and a pickle can run code. This reader knows no code to run.

Not even numpy's own functions are called: arrays are built here, from the bytes that the file holds.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError
from smoothcert.files import read_at_most

_MOST_BYTES = 2**30
_MOST_CALLS = 100
_CALLS = ("REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST")


class _ByteType:
    """Stands in for numpy.dtype; only unsigned bytes are known."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", "uint8", "|u1"):
            raise pickle.UnpicklingError(f"an array of {code!r}, expected unsigned bytes")

    def __setstate__(self, _: object) -> None:
        """Byte order and the like say nothing about bytes."""


class _Array:
    """Stands in for numpy.ndarray, and for the function that makes an empty one, while the file is read."""

    def __init__(self, *_: object) -> None:
        self.array: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran_order, content = state
        raw = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(kind, _ByteType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of something else than unsigned bytes")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran_order else "C")


class _Bytes:
    """Stands in for the function that turns text into bytes, as pickles wrote bytes before they knew them."""

    def __new__(cls, text: object, encoding: object) -> bytes:  # type: ignore[misc]
        if encoding != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(f"text encoded as {encoding!r}, expected latin1")
        return text.encode("latin1")

    def __setstate__(self, _: object) -> None:
        """Without this, a pickle could give the class attributes."""


# All are classes with a __setstate__ of their own, so that a file cannot change them either.
_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"the function {module}.{name}, which no data set needs")
        return _KNOWN[module, name]

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError(f"an object {pid!r} from elsewhere")


def _check_operations(raw: bytes) -> None:
    """Raise UnpicklingError for a pickle that takes far more memory than its own length.

    Python's unpickler makes room for as many memorised objects as the highest number that one is stored under, and each
    call may copy a long text again. A batch of CIFAR numbers its objects one after the other, and calls a few times.
    """
    calls = 0
    for count, (operation, argument, _) in enumerate(pickletools.genops(raw), start=1):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > count:
            raise pickle.UnpicklingError(f"room for {argument:,} objects, of which it has {count:,}")
        calls += operation.name in _CALLS
        if calls > _MOST_CALLS:
            raise pickle.UnpicklingError(f"more than {_MOST_CALLS} calls")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of plain values and arrays of bytes; InputError for any other, before code runs."""
    try:
        raw = read_at_most(path, _MOST_BYTES, InputError, printable(path))
        _check_operations(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise InputError(
            f"Expected a batch of CIFAR in {printable(path)}, got a file that asks for {printable(error)}. "
            "Nothing of it was run."
        ) from error
    except InputError:
        raise
    except Exception as error:  # a damaged pickle fails in as many ways as there are bytes to flip
        raise InputError(
            f"Expected a batch of CIFAR in {printable(path)}, got one that is damaged: {printable(error)}."
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"Expected a dictionary in {printable(path)}, got {type(content).__name__}.")
    return {key: value.array if isinstance(value, _Array) else value for key, value in content.items()}

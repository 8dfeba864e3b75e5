"""The idx format of MNIST and its relatives: unsigned bytes behind a header that says how many."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError
from smoothcert.files import Limits

_UNSIGNED_BYTES = 8
_MOST_BYTES = 2**31  # far above any published set, far below what would exhaust a machine
_UNPACKED = Limits(ratio=200)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of `dimensions` axes in an idx file, plain or compressed as `.gz`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            shape = _shape(file, path, dimensions)
            size = math.prod(shape)
            _check_size(size, path)
            content = file.read(size + 1)  # one more shows what should have ended
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"Cannot read {printable(path)}: {error}.") from error
    if len(content) != size:
        got = f"more than {size:,}" if len(content) > size else f"{len(content):,}"
        raise InputError(
            f"Expected {size:,} bytes after the header of {printable(path)}, as it says, got {got}. Fetch it again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape).copy()  # writable, as torch wants it


def _shape(file: BinaryIO, path: Path, dimensions: int) -> tuple[int, ...]:
    header = file.read(4 + 4 * dimensions)
    expected = bytes([0, 0, _UNSIGNED_BYTES, dimensions])
    if len(header) < 4 + 4 * dimensions or header[:4] != expected:
        raise InputError(
            f"Expected an idx file of bytes with {dimensions} axes, which starts with {expected.hex()} and "
            f"{dimensions} sizes, got {header[:4].hex() or 'nothing'} at the start of {printable(path)}."
        )
    return struct.unpack(f">{dimensions}I", header[4:])


def _check_size(size: int, path: Path) -> None:
    most = min(_MOST_BYTES, _UNPACKED.in_memory(path.stat().st_size))
    if size > most:
        raise InputError(
            f"Expected at most {most:,} bytes in {printable(path)}, its header asks for {size:,}. Fetch it again."
        )

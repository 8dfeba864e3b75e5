"""Numeric arrays in MATLAB files of version 5.

SciPy's reader can bring the whole process down on a damaged file, so this one is our own.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError
from smoothcert.files import Limits

_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_CLASSES = range(6, 16)  # double to uint64; below are cells, structures, objects, text and sparse arrays
_COMPLEX = 8
_CHUNK = 2**20
_UNPACKED = Limits(ratio=200)

Fits = Callable[[str, tuple[int, ...]], bool]


class _DamagedError(ValueError):
    """The file is not what its own header says."""


class _Element:
    """The content of one element, read piece by piece, and unpacked on the way where it is compressed."""

    def __init__(self, file: IO[bytes], size: int, *, packed: bool) -> None:
        self._file, self._left = file, size
        self._inflate = zlib.decompressobj() if packed else None

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        parts, missing = [], count
        while missing:
            part = self._some(missing)
            if not part:
                raise _DamagedError("it breaks off")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def finish(self) -> None:
        """Read the padding, and with it the checksum of what was compressed."""
        if len(self._some(16)) > 8 or (self._inflate is not None and not self._inflate.eof):
            raise _DamagedError("an array goes on behind its end")

    def _some(self, most: int) -> bytes:
        if self._inflate is None:
            return self._stored(most)
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._stored(_CHUNK)
            part = self._inflate.decompress(packed, min(most, _CHUNK))
            if part or not packed:
                return part
        return b""

    def _stored(self, most: int) -> bytes:
        content = self._file.read(min(most, self._left, _CHUNK))
        self._left -= len(content)
        return content


def read_mat_arrays(path: Path, fits: Fits) -> dict[str, npt.NDArray[Any]]:
    """The arrays in a file whose name and shape fit; the shape is asked about before any memory is taken."""
    try:
        with path.open("rb") as file:
            return _arrays(file, os.fstat(file.fileno()).st_size, fits)
    except OSError as error:
        raise InputError(f"Cannot read {printable(path)}: {error.strerror}.") from error
    except (ValueError, zlib.error, struct.error) as error:
        raise InputError(
            f"Expected a MATLAB file of version 5 in {printable(path)}, got another or a damaged one: {error}. "
            "Fetch it again."
        ) from error


def _arrays(file: IO[bytes], size: int, fits: Fits) -> dict[str, npt.NDArray[Any]]:
    header = file.read(128)
    if header[124:] != b"\x00\x01IM":
        raise _DamagedError(f"it starts with {header[:8]!r}")
    found: dict[str, npt.NDArray[Any]] = {}
    while file.tell() < size:
        kind, length = struct.unpack("<II", file.read(8))
        end = file.tell() + length
        if kind not in (_MATRIX, _COMPRESSED) or end > size:
            raise _DamagedError(
                f"an element of kind {kind} and {length:,} bytes, where {size - file.tell():,} are left"
            )
        element = _Element(file, length, packed=kind == _COMPRESSED)
        if kind == _COMPRESSED and struct.unpack("<I", element.read(8)[:4])[0] != _MATRIX:
            raise _DamagedError("something else than an array is compressed")
        name, array = _array(element, fits, _UNPACKED.in_memory(size))
        if array is not None:
            found[name] = array
        file.seek(end)
    return found


def _array(element: _Element, fits: Fits, most: int) -> tuple[str, npt.NDArray[Any] | None]:
    flags = _part(element)
    shape = tuple(int(side) for side in np.frombuffer(_part(element), "<i4"))
    name = _part(element).decode("ascii", errors="replace")
    if len(flags) != 8 or flags[0] not in _CLASSES or flags[1] & _COMPLEX or not fits(name, shape):
        return name, None
    kind, size, content = _tag(element)
    if kind not in _TYPES or min(shape) < 0 or size != math.prod(shape) * np.dtype(_TYPES[kind]).itemsize:
        raise _DamagedError(f"{size:,} bytes of kind {kind} for an array {shape}")
    if size > most:
        raise _DamagedError(f"an array of {size:,} bytes, more than {most:,} in a file of this size")
    array = np.empty(size, np.uint8)
    for start in range(0, size, _CHUNK):
        stop = min(start + _CHUNK, size)
        array[start:stop] = np.frombuffer(element.read(stop - start) if content is None else content, np.uint8)
    if content is None:
        element.finish()
    return name, array.view(_TYPES[kind]).reshape(shape, order="F")


def _part(element: _Element) -> bytes:
    """A short part of an array's description."""
    _, size, content = _tag(element)
    if content is not None:
        return content
    if size > 256:
        raise _DamagedError(f"{size:,} bytes where a name or a shape should be")
    return element.read(size + -size % 8)[:size]


def _tag(element: _Element) -> tuple[int, int, bytes | None]:
    """Kind and size of what follows; up to four bytes stand in the tag itself."""
    tag = element.read(8)
    word, size = struct.unpack("<II", tag)
    if word >> 16 == 0:
        return word, size, None
    if word >> 16 > 4:
        raise _DamagedError("a tag that is none")
    return word & 0xFFFF, word >> 16, tag[4 : 4 + (word >> 16)]

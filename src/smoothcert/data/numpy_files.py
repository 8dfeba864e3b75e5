"""Reading .npy and .npz files without unpickling anything, and without taking more memory than they can fill."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError
from smoothcert.files import Limits, zip_fault

UNPACKED = Limits(ratio=200)  # images of simple shapes take 1/100 of their size when they are compressed
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_numpy(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """The array in an .npy file, or all arrays in an .npz file by name; InputError if there is something else."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            packed = file.read(2) == b"PK"
            file.seek(0)
            return _arrays(file, size) if packed else _array(file, size)
    except Exception as error:  # numpy parses headers as Python text, and passes on all that can go wrong with it
        raise InputError(
            f"Expected arrays of numbers in {printable(path)}, cannot read them: {printable(error)[:200]}."
        ) from error


def _arrays(file: IO[bytes], size: int) -> dict[str, npt.NDArray[Any]]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        fault = zip_fault(archive, size, UNPACKED)
        if fault is not None:
            raise ValueError(fault)
        for member in archive.infolist():
            with archive.open(member) as content:
                arrays[member.filename.removesuffix(".npy")] = _array(content, member.file_size)
    return arrays


def _array(file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """The array that takes all `size` bytes of a file. numpy itself would take the memory that the header asks for."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not for plain numbers")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    wanted, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if wanted != left:
        raise ValueError(f"the header asks for {wanted:,} bytes of values, and {left:,} follow")
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):  # at the end of a member, zipfile compares its checksum
        raise ValueError("there are bytes behind the array")
    return array

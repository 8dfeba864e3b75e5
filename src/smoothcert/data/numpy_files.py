"""Reading .npy and .npz files without unpickling anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError


def read_numpy(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """The array in an .npy file, or all arrays in an .npz file by name; InputError if there is something else."""
    try:
        with path.open("rb") as file:  # numpy leaves the file open when it fails
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                return {name: loaded[name] for name in loaded.files}
            if file.read(1):
                raise ValueError("there are bytes behind the array")
            return loaded
    except Exception as error:  # numpy parses headers as Python text, and passes on all that can go wrong with it
        why = "it holds Python objects" if "pickle" in str(error) else printable(error)
        raise InputError(f"Expected arrays of numbers in {printable(path)}, cannot read them: {why}.") from error

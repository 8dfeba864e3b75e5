"""Which inputs of a data set to look at: certifying all of them is often more than one can afford."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError


def select_indices(length: int, *, start: int = 0, every: int = 1, first: int | None = None) -> npt.NDArray[np.int64]:
    """Every `every`-th index of a data set of `length` inputs from `start` on, at most `first` of them.

    An empty selection is a ConfigError: it would look like a run in which everything went well.

    >>> select_indices(10, start=1, every=3, first=2).tolist()
    [1, 4]
    """
    check_count("length", length, least=0)
    if length == 0:
        raise ConfigError("Expected a data set with inputs, got none: there is nothing to select.")
    check_count("start", start, least=0, most=length - 1)
    check_count("every", every)
    if first is not None:
        check_count("first", first)
    return np.arange(start, length, every, dtype=np.int64)[:first]

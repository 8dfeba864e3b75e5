"""Which inputs of a data set to look at: certifying all of them is often more than one can afford."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError


def select_indices(
    length: int, *, start: int = 0, every: int = 1, first: int | None = None, indices: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Every `every`-th index of a data set of `length` inputs from `start` on, at most `first` of them.

    Or just `indices`, in their order. An empty selection is a ConfigError: it would look like a run in which
    everything went well.

    >>> select_indices(10, start=1, every=3, first=2).tolist()
    [1, 4]
    >>> select_indices(10, indices=[7, 2]).tolist()
    [7, 2]
    """
    check_count("length", length, least=0)
    if length == 0:
        raise ConfigError("Expected a data set with inputs, got none: there is nothing to select.")
    if indices is not None:
        if (start, every, first) != (0, 1, None):
            raise ConfigError("Expected either `indices` or `start`, `every` and `first`, got both. Give one of them.")
        return _listed(length, indices)
    check_count("start", start, least=0, most=length - 1)
    check_count("every", every)
    if first is not None:
        check_count("first", first)
    return np.arange(start, length, every, dtype=np.int64)[:first]


def _listed(length: int, indices: Sequence[int]) -> npt.NDArray[np.int64]:
    chosen = [check_count("indices", index, least=0, most=length - 1) for index in indices]
    if not chosen:
        raise ConfigError("Expected at least one index in `indices`, got none.")
    if len(set(chosen)) < len(chosen):  # an input that counts twice would bend every average
        twice = next(index for place, index in enumerate(chosen) if index in chosen[:place])
        raise ConfigError(f"Expected `indices` without repetitions, got {twice} more than once.")
    return np.array(chosen, np.int64)

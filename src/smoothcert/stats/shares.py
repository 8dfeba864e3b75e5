"""Whether two groups of votes can come from the same probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln


def same_shares_p_value(first: Sequence[int], second: Sequence[int]) -> float:
    """A p-value for the hypothesis that two vote counts over the same classes come from the same probabilities.

    If they do, then for every a in [0, 1] the p-value is at most a with probability at most a. Each class is tested
    against all others by Fisher's exact test, and Bonferroni's correction pays for the number of classes.
    """
    n_first, n_second = sum(first), sum(second)
    smallest = 1.0
    tested = 0
    for count, other in zip(first, second, strict=True):
        votes = count + other
        if votes == 0:
            continue
        tested += 1
        smallest = min(smallest, 2 * _smaller_tail(count, votes, n_first, n_second))
    return min(1.0, smallest * max(1, tested))


def _smaller_tail(count: int, votes: int, n_first: int, n_second: int) -> float:
    """The smaller of P(X ≤ count) and P(X ≥ count), X being how many of `votes` fall among the first `n_first` draws.

    Given the total number of votes, X is hypergeometric if both groups have the same probabilities.
    """
    possible = np.arange(max(0, votes - n_second), min(votes, n_first) + 1)
    logs = _log_choose(n_first, possible) + _log_choose(n_second, votes - possible)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return float(min(weights[possible <= count].sum(), weights[possible >= count].sum()))


def _log_choose(n: int, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), np.float64)

"""Whether two groups of votes can come from the same probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import hypergeom


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
        distribution = hypergeom(n_first + n_second, votes, n_first)
        tail = min(distribution.cdf(count), distribution.sf(count - 1))
        smallest = min(smallest, 2 * float(tail))
    return min(1.0, smallest * max(1, tested))

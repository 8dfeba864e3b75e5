"""Exact group-sequential tests of "the failure probability is at least q", and when to give up on one.

Draws come in looks: n_1 < n_2 < … < n_K in all. A boundary says with how few failures the claim "failures are rarer
than q" is accepted at each look. It is found by carrying the exact law of the failure count from look to look under
failure probability q, along the paths that have not been accepted yet, so that all looks together accept with
probability at most alpha; a larger failure probability only makes that rarer. Where to give up is a matter of cost:
giving up makes no claim, so it needs no exactness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv

from smoothcert.checks import check_alpha, check_count
from smoothcert.errors import ConfigError

Counts = npt.NDArray[np.int64]

FIRST_LOOK = 100
GROWTH = 1.05
SPENDING_POWER = 0.5  # by look n, alpha·(n/n_max)^power may be spent: the square root keeps most for the late looks
_MARGIN = 1e-6  # of alpha, kept back for rounding in the sums
_NODES = (np.arange(16) + 0.5) / 16  # quantiles that stand for a posterior


@lru_cache(maxsize=64)
def look_schedule(n_max: int) -> tuple[int, ...]:
    """Total numbers of draws at which to look: growing by a twentieth, in hundreds, up to exactly n_max.

    >>> look_schedule(1000)
    (100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
    """
    check_count("n_max", n_max, least=FIRST_LOOK)
    looks = [FIRST_LOOK]
    while looks[-1] < n_max:
        following = math.ceil(looks[-1] * GROWTH / 100) * 100
        # A last step that is nearly nothing is not worth a look of its own.
        looks.append(n_max if following * math.sqrt(GROWTH) >= n_max else following)
    return tuple(looks)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One test: at total `looks[i]`, accept with at most `accept[i]` failures, give up with at least `give_up[i]`."""

    looks: tuple[int, ...]
    accept: tuple[int, ...]
    give_up: tuple[int, ...]


def _increment_law(draws: int, q: float, negligible: float) -> tuple[int, npt.NDArray[np.float64]]:
    """The law of the failures in some draws, as its first value and probabilities, without negligible ends."""
    depth, mean = -math.log(negligible), draws * q
    # Bernstein: further than this from the mean lies less than `negligible`, on either side.
    reach = depth / 3 + math.sqrt(depth**2 / 9 + 2 * mean * (1 - q) * depth)
    low, high = max(0, math.floor(mean - reach)), min(draws, math.ceil(mean + reach))
    # From the ratios of neighbours, scaled to add up to 1: exact to about 1e-12 however many draws there are.
    failures = np.arange(low, high)
    steps = np.log((draws - failures) / (failures + 1)) + (math.log(q) - math.log1p(-q))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    law = np.exp(logs - logs.max())
    return low, law / law.sum()


def _laws(q: float, looks: tuple[int, ...], negligible: float) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """At each look, the law of the failure count along paths not accepted before: first value, probabilities.

    Whoever iterates sets the probabilities of the paths that are accepted at this look to 0.
    """
    start, law, done = 0, np.ones(1), 0
    for n in looks:
        shift, increment = _increment_law(n - done, q, negligible)
        start, law, done = start + shift, np.convolve(law, increment), n
        yield start, law
        alive = np.flatnonzero(law > 0)
        if not alive.size:
            return
        start, law = start + int(alive[0]), law[alive[0] :]


def crossing_probability(
    q: float, looks: tuple[int, ...], accept: tuple[int, ...], *, negligible: float = 1e-18
) -> float:
    """The probability that some look finds at most `accept` failures, when each draw fails with probability q.

    Ends of the laws below `negligible` are left out and counted as if they had been found.
    """
    crossed = 0.0
    for limit, (start, law) in zip(accept, _laws(q, looks, negligible), strict=False):
        reached = max(0, limit - start + 1)
        crossed += float(law[:reached].sum())
        law[:reached] = 0
    return crossed + 2 * len(looks) * negligible


def exact_acceptance(q: float, alpha: float, looks: tuple[int, ...]) -> tuple[int, ...]:
    """The most failures with which each look accepts (−1: none), so that all accept with probability <= alpha at q."""
    negligible = alpha * 1e-9 / len(looks)
    spent = 2 * len(looks) * negligible  # the ends that were cut off, as if they had all been accepted
    accept: list[int] = []
    for n, (start, law) in zip(looks, _laws(q, looks, negligible), strict=False):
        budget = alpha * (n / looks[-1]) ** SPENDING_POWER * (1 - _MARGIN) - spent
        mass = np.cumsum(law)
        reached = int(np.searchsorted(mass, budget, side="right"))
        accept.append(start + reached - 1)  # below `start` no path is left, so the limit never falls
        spent += float(mass[reached - 1]) if reached else 0.0
        law[:reached] = 0
    return (*accept, *[accept[-1]] * (len(looks) - len(accept)))


def _worth_going_on(failures: int, n: int, ahead: Counts, limits: Counts, patience: float) -> bool:
    """Whether `failures` in `n` draws leave, at some later look, a chance that is worth the draws until then.

    `ahead` are the further draws until each later look and `limits` the failures with which it accepts.
    """
    room = limits - failures
    if not (room >= 0).any():
        return False
    ahead, room = ahead[room >= 0, None], room[room >= 0, None]
    posterior = betaincinv(failures + 0.1, n - failures + 0.5, _NODES)
    # P(Bin(ahead, p) <= room), and 1 where that is certain
    chance = betainc(np.maximum(ahead - room, 1e-9), room + 1.0, 1 - posterior)
    return bool(np.any(patience * chance.mean(axis=1, keepdims=True) >= ahead))


def give_up_counts(looks: tuple[int, ...], accept: tuple[int, ...], patience: float) -> tuple[int, ...]:
    """The fewest failures at which each look gives up: going on would take more than `patience` draws per success.

    The chance of success is predicted from the failures so far under a Beta posterior. At the last look everything
    that is not accepted is given up.
    """
    totals, limits, last = np.array(looks), np.array(accept), len(looks) - 1
    give_up: list[int] = []
    for look in range(last):
        # Late looks lie close together: every third tells as much.
        later = np.unique([*range(look + 1, last, 3), last])
        ahead, allowed = totals[later] - looks[look], limits[later]
        low, high = -1, min(looks[look], accept[-1]) + 1  # beyond the last limit nothing is ever accepted
        while high - low > 1:
            middle = (low + high) // 2
            on = _worth_going_on(middle, looks[look], ahead, allowed, patience)
            low, high = (middle, high) if on else (low, middle)
        give_up.append(max(high, accept[look] + 1))
    return (*give_up, accept[-1] + 1)


def new_boundary(q: float, alpha: float, looks: tuple[int, ...], patience: float) -> Boundary:
    """The test that accepts "failures are rarer than q" wrongly with probability at most alpha, over all looks.

    With probability at least 1 − alpha, it does not accept when the failure probability is q or more. `patience` is
    how many draws one more accepted claim is worth.
    """
    check_alpha(alpha)
    if not 0 < q < 1:
        raise ConfigError(f"Expected a failure probability in (0, 1), got {q!r}.")
    if not patience > 0:
        raise ConfigError(f"Expected `patience` > 0, got {patience!r}.")
    accept = exact_acceptance(q, alpha, looks)
    return Boundary(looks, accept, give_up_counts(looks, accept, patience))

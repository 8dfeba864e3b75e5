"""Lower bounds on the true certified accuracy of the inputs that a run certified, here called the test set.

Each certificate may be false with probability α, so the share Y/m of m inputs that are classified correctly and
certified at a radius is only approximately the share for which that is true. Fix the smoothed classifier, the radius
and the test set; call an input good if it is in truth classified correctly within the radius, else bad. Suppose that
every bad input is certified with probability at most α, each with noise of its own, so that these events are
independent. Then the number of bad inputs among the certified is stochastically at most Binomial(bad, α), for it is a
sum of independent indicators with probabilities of at most α.

All bounds here hold with probability at least 1 − ρ over the noise and are rounded down. Nothing is said about inputs
that are not in the test set, such as those between every 20th.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from smoothcert.checks import check_alpha, check_count
from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import OUTWARD, Floats

_MOST_INPUTS = 10**8  # a table of this length is made
_ROUNDING = 1e-14  # above the error of every sum below, whose terms are at most 2


def bernstein_lower_bound(certified: npt.ArrayLike, inputs: int, *, alpha: float, rho: float = 0.001) -> Floats:
    """The paper's bound: (Y/m − α − sqrt(2α(1−α)·ln(1/ρ)/m) − ln(1/ρ)/(3m)) / (1 − α), at least 0.

    With probability at least 1 − rho, at least this share of the `inputs` is good when `certified` of them are
    certified correct. Cohen et al. 2019, Theorem 6 (Appendix D), by Bernstein's inequality. It holds at a radius chosen
    beforehand, not at all radii at once. Arrays of `certified` give arrays.

    >>> 394 / 500 < bernstein_lower_bound(400, 500, alpha=0.001) < 395 / 500
    True
    """
    counts, m = _check(certified, inputs, rho)
    alpha, log = check_alpha(alpha), math.log(1 / rho)
    lost = alpha + math.sqrt(2 * alpha * (1 - alpha) * log / m) + log / (3 * m)
    return _floats(np.maximum((counts / m - lost) / (1 - alpha) - _ROUNDING, 0.0))


def exact_lower_bound(certified: npt.ArrayLike, inputs: int, *, alpha: float, rho: float = 0.001) -> Floats:
    """The smallest share of good inputs that does not make this many certificates too unlikely.

    With probability at least 1 − rho, at least this share of the `inputs` is good when `certified` of them are
    certified correct, at a radius chosen beforehand. It is never below the paper's bound. Arrays give arrays.

    Let b(k) be the (1 − ρ)-quantile of Binomial(k, α). With probability at least 1 − ρ the certified hold at most
    b(m − good) bad inputs, and at most all good ones: Y ≤ good + b(m − good). The smallest number of good inputs with
    that property is the bound. Bernstein's inequality bounds b(k) from above by the paper's terms with k ≤ m in their
    place, so the paper's bound is at most this one.

    >>> 397 / 500 < exact_lower_bound(400, 500, alpha=0.001) <= 398 / 500
    True
    """
    counts, m = _check(certified, inputs, rho)
    good = np.arange(m + 1)
    # Each further bad input raises the quantile by at most one, so this grows; the running maximum covers rounding.
    explained = np.maximum.accumulate(good + most_false(m - good, alpha=alpha, rho=rho))
    return _share(np.searchsorted(explained, counts, side="left"), m)


def simultaneous_lower_bound(certified: npt.ArrayLike, inputs: int, *, alpha: float, rho: float = 0.001) -> Floats:
    """What is left when the (1 − ρ)-quantile of Binomial(m, α) is taken off, at whatever radius, and at all at once.

    With probability at least 1 − rho, at every radius at least this share of the `inputs` is good, `certified` being
    how many are certified correct there. Arrays give arrays: one number per radius.

    A procedure is wrong about an input with probability at most α, whatever the radii at which it is wrong. So the
    inputs that it is wrong about are at most b(m) with probability at least 1 − ρ, and at each radius the bad ones
    among the certified are some of them.

    >>> 395 / 500 < simultaneous_lower_bound(400, 500, alpha=0.001) <= 396 / 500
    True
    """
    counts, m = _check(certified, inputs, rho)
    return _share(np.maximum(counts - most_false(m, alpha=alpha, rho=rho), 0), m)


def most_false(inputs: npt.ArrayLike, *, alpha: float, rho: float) -> npt.NDArray[np.int64]:
    """The (1 − ρ)-quantile of Binomial(inputs, α): the smallest b with P(X > b) ≤ ρ; arrays give arrays.

    >>> most_false([0, 500, 10_000], alpha=0.001, rho=0.001).tolist()
    [0, 4, 21]
    """
    alpha = check_alpha(alpha)
    trials = np.asarray(inputs, np.int64)
    low, high = np.full(trials.shape, -1), trials.copy()  # P(X > −1) = 1 and P(X > trials) = 0
    while np.any(high - low > 1):
        middle = (low + high) // 2
        inner = (middle >= 0) & (middle < trials)
        tail = betainc(np.where(inner, middle + 1, 1), np.where(inner, trials - middle, 1), alpha)
        enough = np.where(inner, tail * OUTWARD <= rho, middle >= trials)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _check(certified: npt.ArrayLike, inputs: int, rho: float) -> tuple[npt.NDArray[np.int64], int]:
    m = check_count("inputs", inputs, most=_MOST_INPUTS)
    counts = np.asarray(certified)
    if not np.issubdtype(counts.dtype, np.integer) or not np.all((counts >= 0) & (counts <= m)):
        raise ConfigError(f"Expected `certified` to be whole numbers from 0 to {m}, got {certified!r}.")
    if not 0 < rho < 1:
        raise ConfigError(f"Expected `rho` in (0, 1), got {rho!r}.")
    return counts.astype(np.int64), m


def _share(counts: npt.NDArray[np.int64], m: int) -> Floats:
    return _floats(np.maximum(np.nextafter(np.asarray(counts / m, np.float64), -1.0), 0.0))


def _floats(values: npt.NDArray[np.float64]) -> Floats:
    return values if values.ndim else float(values)

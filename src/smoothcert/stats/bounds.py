"""Confidence bounds from counts, rounded so that numerical error can only make them weaker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincc, betainccinv, betaincinv

from smoothcert.checks import MAX_DRAWS
from smoothcert.errors import ConfigError

Floats = float | npt.NDArray[np.float64]
Array = npt.NDArray[np.float64]
Beta = Callable[[Array, Array, Array], Any]

OUTWARD = 1 + 1e-9
"""Every bound is moved outward by this factor, above the error of SciPy's inverse in the tested range."""


def _check(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> tuple[npt.NDArray[Any], ...]:
    ks, ns, alphas = np.broadcast_arrays(np.asarray(k), np.asarray(n), np.asarray(alpha, np.float64))
    if not (np.issubdtype(ks.dtype, np.integer) and np.issubdtype(ns.dtype, np.integer)):
        raise ConfigError(f"Expected whole numbers `k` and `n`, got {k!r} and {n!r}.")
    if not np.all((ks >= 0) & (ks <= ns) & (ns >= 1) & (ns <= MAX_DRAWS)):
        raise ConfigError(f"Expected 0 <= k <= n and 1 <= n <= 2^53, got k={k!r}, n={n!r}.")
    if not np.all((alphas > 0) & (alphas < 1)):
        raise ConfigError(f"Expected `alpha` in (0, 1), got {alpha!r}.")
    return ks.astype(np.float64), ns.astype(np.float64), alphas


def _solved(inverse: Beta, tail: Beta, a: Array, b: Array, alphas: Array, *, outward: float) -> npt.NDArray[np.float64]:
    """The p at which tail(a, b, p) = alpha, moved outward so that the tail is at most alpha.

    SciPy's inverse is not taken at its word: it is NaN for alphas around 1e-300 and up to 30 % off where a or b is
    1000. Where the tail just inside or outside its answer disagrees, the equation is solved again by halving.
    """
    p = np.array(inverse(a, b, alphas) * outward, np.float64)
    good = (tail(a, b, np.minimum(p, 1.0)) <= alphas) & (tail(a, b, np.minimum(p / outward**100, 1.0)) > alphas)
    if not good.all():
        a, b, safe = a[~good], b[~good], np.full(a[~good].shape, float(outward > 1))  # at which the tail is 0
        p[~good] = _halved(lambda p: tail(a, b, p), safe, 1 - safe, alphas[~good]) * outward
    return p


def _halved(tail: Callable[[Array], Array], good: Array, bad: Array, alphas: Array) -> Array:
    """The last p that halving finds between `good` and `bad` at which the tail is still at most alpha."""
    while True:
        middle = (good + bad) / 2
        if not np.any((np.minimum(good, bad) < middle) & (middle < np.maximum(good, bad))):  # no number is between them
            return good
        holds = tail(middle) <= alphas
        good, bad = np.where(holds, middle, good), np.where(holds, bad, middle)


def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> Floats:
    """Clopper–Pearson's upper confidence bound on p from k successes in n draws; arrays broadcast.

    With probability at least 1 − alpha, p is at most this. Clopper & Pearson 1934. For the lower bound's
    failure side 1 − p_lower, which keeps its digits as p_lower approaches 1, pass n − k instead of k.

    >>> clopper_pearson_upper(0, 100_000, 0.001) > 6.9e-05
    True
    """
    ks, ns, alphas = _check(k, n, alpha)
    inner = (ks > 0) & (ks < ns)
    a, b = np.where(inner, ks + 1, 1.0), np.where(inner, ns - ks, 1.0)
    solved = _solved(betainccinv, betaincc, a, b, alphas, outward=OUTWARD)
    none = -np.expm1(np.log(alphas) / ns) * OUTWARD
    bound = np.minimum(np.where(ks == 0, none, np.where(ks == ns, 1.0, solved)), 1.0)
    return bound if bound.ndim else float(bound)


def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> Floats:
    """Clopper–Pearson's lower confidence bound on p from k successes in n draws; arrays broadcast.

    With probability at least 1 − alpha, p is at least this. Clopper & Pearson 1934. Radii are computed from
    `clopper_pearson_upper(n - k, n, alpha)` instead, which does not round near 1.

    >>> clopper_pearson_lower(0, 10, 0.05)
    0.0
    """
    ks, ns, alphas = _check(k, n, alpha)
    inner = (ks > 0) & (ks < ns)
    a, b = np.where(inner, ks, 1.0), np.where(inner, ns - ks + 1, 1.0)
    small = _solved(betaincinv, betainc, a, b, alphas, outward=1 / OUTWARD)
    # Above 1/2 the digits are in 1 − p, so that side is moved outward there.
    large = np.nextafter(1 - np.asarray(clopper_pearson_upper(np.asarray(n) - np.asarray(k), n, alpha)), -1)
    bound = np.maximum(np.where(ks == 0, 0.0, np.where(2 * ks > ns, large, small)), 0.0)
    return bound if bound.ndim else float(bound)


def binomial_p_value(k: int, n: int) -> float:
    """Two-sided p-value of k heads in n throws of a fair coin, rounded up.

    The paper's BinomPValue(k, n, 1/2). By symmetry it is twice the larger side's tail, at most 1.

    >>> binomial_p_value(5, 10), binomial_p_value(0, 0)
    (1.0, 1.0)
    """
    larger = max(k, n - k)
    if n == 0 or 2 * larger == n:
        return 1.0
    return min(1.0, 2 * float(betainc(larger, n - larger + 1, 0.5)) * OUTWARD)

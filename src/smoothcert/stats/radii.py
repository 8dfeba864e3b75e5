"""From probabilities to radii, one function per theorem.

All take the failure side `q_a_upper`, an upper bound on 1 − p_A, because 1 − q loses the digits that
large radii are made of, and `p_b_upper`, an upper bound on every rival's probability; without the latter,
1 − p_A bounds it. All return a radius rounded down, and 0.0 where nothing can be claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from smoothcert.checks import MAX_DRAWS, check_alpha, check_count, check_sigma
from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import Floats, clopper_pearson_upper


def _probabilities(q_a: npt.ArrayLike, p_b: npt.ArrayLike | None) -> tuple[npt.NDArray[np.float64], ...]:
    q = np.asarray(q_a, np.float64)
    # A rival can never have more than what A leaves over (Theorem 2 assumes it).
    p = q if p_b is None else np.minimum(np.asarray(p_b, np.float64), q)
    if np.any((q <= 0) | (q > 1) | (p <= 0)):
        raise ConfigError(f"Expected `q_a_upper` and `p_b_upper` in (0, 1], got {q_a!r} and {p_b!r}.")
    return q, p


def cohen_radius(q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike | None = None, *, sigma: float) -> Floats:
    """σ/2·(Φ⁻¹(p_A) − Φ⁻¹(p_B)): Cohen et al. 2019, Theorem 1. Arrays broadcast.

    Whenever the two bounds hold, the smoothed classifier is constant within this L2 radius, and no larger
    radius is true for every base classifier (their Theorem 2). Without `p_b_upper` it is σ·Φ⁻¹(p_A).

    >>> cohen_radius(0.5, sigma=1.0)
    0.0
    """
    sigma = check_sigma(sigma)
    q, p = _probabilities(q_a_upper, p_b_upper)
    a, b = ndtri(q), ndtri(p)
    # The error of ndtri and of the sum is below 4e-15 of each term, also where the terms cancel.
    radius = sigma / 2 * (-a - b - 4e-15 * (np.abs(a) + np.abs(b)))
    # Written so that NaN claims nothing.
    claimed = np.where((q < 1) & (radius > 0), radius, 0.0)
    return claimed if claimed.ndim else float(claimed)


def margin_radius(q_a_upper: float, p_b_upper: float | None = None, *, sigma: float, margin: float = 0.0) -> float:
    """The radius within which class A still leads every other by at least `margin` in probability.

    Whenever the two bounds hold, P(A) ≥ P(any other) + margin at every point within this L2 radius: the
    variant that the paper leaves open (Section 3.2.1), so that PREDICT cannot be made to abstain nearby.
    By the paper's equations for Y, the worst case at distance r leads by
    Φ(Φ⁻¹(p_A) − r/σ) − Φ(Φ⁻¹(p_B) + r/σ), which falls in r; margin 0 is Theorem 1.
    """
    sigma = check_sigma(sigma)
    if not 0 <= margin < 1:
        raise ConfigError(f"Expected `margin` in [0, 1), got {margin!r}.")
    outer = float(cohen_radius(q_a_upper, p_b_upper, sigma=sigma))
    q, p = (float(v) for v in _probabilities(q_a_upper, p_b_upper))
    if margin == 0 or outer == 0:
        return outer

    def leads(radius: float) -> bool:
        z = radius / sigma
        # The 1e-14 covers the error of the difference.
        return bool(ndtr(-ndtri(q) - z) - ndtr(ndtri(p) + z) >= margin + 1e-14)

    low, high = 0.0, outer
    if not leads(low):
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if leads(middle) else (low, middle)
    return low


def _supremum(bound: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]], low: float, high: float) -> float:
    """The largest value of `bound` on a grid over [low, high] that closes in on its best point.

    Every value of the tuning parameter gives a true radius, so stopping early is safe.
    """
    best = 0.0
    for _ in range(12):
        at = np.linspace(low, high, 129)
        values = np.nan_to_num(bound(at), nan=0.0, posinf=0.0, neginf=0.0)
        top = int(values.argmax())
        best = max(best, float(values[top]))
        low, high = float(at[max(top - 2, 0)]), float(at[min(top + 2, 128)])
    return best * (1 - 1e-12)


def lecuyer_radius(q_a_upper: float, p_b_upper: float | None = None, *, sigma: float) -> float:
    """The radius of Lecuyer et al. 2019 by differential privacy, as derived in Cohen et al. 2019, Appendix I.1.

    sup over 0 < β ≤ min(1, ½ ln(p_A/p_B)) of σβ / sqrt(2 ln(1.25(1 + e^β) / (p_A − e^{2β} p_B))). For
    comparison: Theorem 1 is always larger.
    """
    sigma = check_sigma(sigma)
    q, p_b = (float(v) for v in _probabilities(q_a_upper, p_b_upper))
    p_a = 1 - q
    if not p_a > p_b:
        return 0.0

    def bound(beta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        gap = p_a - np.exp(2 * beta) * p_b
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gap > 0, sigma * beta / np.sqrt(2 * np.log(1.25 * (1 + np.exp(beta)) / gap)), 0.0)

    return _supremum(bound, 0.0, min(1.0, 0.5 * math.log(p_a / p_b)))


def _log_cosh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = np.abs(x)
    small = np.log1p(2 * np.sinh(np.minimum(x, 1.0) / 2) ** 2)
    return np.where(x < 1, small, x + np.log1p(np.exp(-2 * x)) - math.log(2))


def li_radius(q_a_upper: float, p_b_upper: float | None = None, *, sigma: float) -> float:
    """The radius of Li et al. 2019 by Rényi divergence.

    sup over a > 0 of σ·sqrt(−(2/a)·ln(1 − p_A − p_B + 2M)), where M is the power mean of p_A and p_B of
    order 1 − a: M = (½(p_A^{1−a} + p_B^{1−a}))^{1/(1−a)}. Cohen et al. 2019, Appendix I.2, print the outer
    exponent as 1 − a. Minimising D_a(Q‖P) over all Q in which A no longer leads puts q_A = q_B ∝ M and
    leaves the other classes in proportion, which gives −ln(1 − p_A − p_B + 2M) with exponent 1/(1−a); that
    form is used here. For comparison: Theorem 1 is always larger.
    """
    sigma = check_sigma(sigma)
    q, p_b = (float(v) for v in _probabilities(q_a_upper, p_b_upper))
    p_a = 1 - q
    if not p_a > p_b:
        return 0.0

    half = 0.5 * math.log(p_a / p_b)

    def bound(log_order: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a = np.exp(log_order)
        power = np.where(np.abs(1 - a) < 1e-9, 1e-9, 1 - a)
        # With g = sqrt(p_A·p_B): p_A + p_B = 2g·cosh(half) and M = g·cosh(power·half)^(1/power). Taking both from
        # their excess over g keeps the digits of the difference near a tie.
        excess = 2 * math.sinh(half / 2) ** 2 - np.expm1(_log_cosh(power * half) / power)
        with np.errstate(invalid="ignore"):
            return sigma * np.sqrt(-2 / a * np.log1p(-2 * math.sqrt(p_a) * math.sqrt(p_b) * excess))

    return _supremum(bound, math.log(1e-4), math.log(1e4))


def max_radius(n: int, alpha: float, sigma: float) -> float:
    """The largest radius that n draws can certify: all n votes for one class, σ·Φ⁻¹(α^{1/n}).

    Cohen et al. 2019, Section 3.2.2. It is 0.0 when n is too small to certify anything.

    >>> floor = max_radius(100_000, 0.001, sigma=1.0)
    >>> 3.81 < floor < 3.813
    True
    """
    n, alpha = check_count("n", n), check_alpha(alpha)
    return float(cohen_radius(clopper_pearson_upper(0, n, alpha), sigma=sigma))


def draws_for(radius: float, sigma: float, alpha: float) -> int:
    """The fewest draws that can certify `radius`, reached when all of them vote for one class.

    The smallest n with `max_radius(n, alpha, sigma) >= radius`; ConfigError when it exceeds 2^53.

    >>> draws_for(2.0, sigma=1.0, alpha=0.001), draws_for(3.0, sigma=1.0, alpha=0.001)
    (301, 5114)
    """
    sigma, alpha = check_sigma(sigma), check_alpha(alpha)
    if not 0 <= radius < math.inf:
        raise ConfigError(f"Expected `radius` to be a finite number >= 0, got {radius!r}.")
    wanted = math.log(alpha) / math.log1p(-float(ndtr(-radius / sigma))) if ndtr(-radius / sigma) > 0 else math.inf
    if not wanted < MAX_DRAWS / 2:
        raise ConfigError(f"No number of draws up to 2^53 certifies radius {radius:g} at sigma {sigma:g}.")
    low, high = 0, max(1, math.ceil(wanted))
    while max_radius(high, alpha, sigma) < radius or max_radius(high, alpha, sigma) == 0:
        low, high = high, high * 2
    while high - low > 1:  # max_radius grows with n
        middle = (low + high) // 2
        enough = max_radius(middle, alpha, sigma) >= max(radius, math.ulp(0))
        low, high = (low, middle) if enough else (middle, high)
    return high

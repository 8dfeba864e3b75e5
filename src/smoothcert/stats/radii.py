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

from smoothcert.checks import MAX_DRAWS, check_alpha, check_count, check_margin, check_sigma
from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import Floats, clopper_pearson_upper

_Array = npt.NDArray[np.float64]


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


def margin_radius(
    q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike | None = None, *, sigma: float, margin: float = 0.0
) -> Floats:
    """The radius within which class A leads every other class by at least `margin` in probability. Arrays broadcast.

    Whenever the two bounds hold, P(A) ≥ P(any other) + margin at every point within this L2 radius: the variant of
    Theorem 1 that Cohen et al. 2019 propose in Section 3.2.1, so that PREDICT cannot be forced to abstain. The worst
    case at distance r leads by Φ(Φ⁻¹(p_A) − r/σ) − Φ(Φ⁻¹(p_B) + r/σ), which falls in r. No larger radius is true for
    every base classifier, and margin 0 is Theorem 1. docs/theory.md has the proof.

    >>> margin_radius(0.1, sigma=1.0, margin=0.8)
    0.0
    """
    sigma, margin = check_sigma(sigma), check_margin(margin)
    outer = np.asarray(cohen_radius(q_a_upper, p_b_upper, sigma=sigma))
    if margin == 0:
        return outer if outer.ndim else float(outer)
    q, p = _probabilities(q_a_upper, p_b_upper)
    # The error of ndtri is below 4e-15 of its value: move both towards the worse side.
    z_a, z_b = (-z - 4e-15 * np.abs(z) for z in (ndtri(q), ndtri(p)))

    def leads(depth: _Array) -> npt.NDArray[np.bool_]:
        # The 1e-14 covers the error of the two probabilities. NaN does not lead.
        return np.asarray(ndtr(z_a - depth) - ndtr(depth - z_b) >= margin + 1e-14)

    low, high = np.zeros(outer.shape), outer / sigma
    for _ in range(64):
        middle = (low + high) / 2
        enough = leads(middle)
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    radius = np.nextafter(sigma * low, 0.0)
    return radius if radius.ndim else float(radius)


def _supremum(bound: Callable[[_Array], _Array], low: _Array, high: _Array) -> _Array:
    """The largest value of `bound` per element, on a grid over [low, high] that closes in on the best point.

    `bound` maps tuning parameters [..., 129] to radii of the same shape. Every value of the tuning parameter gives a
    true radius, so stopping early is safe.
    """
    best = np.zeros(low.shape)
    for _ in range(12):
        at = np.linspace(low, high, 129, axis=-1)
        values = np.nan_to_num(bound(at), nan=0.0, posinf=0.0, neginf=0.0)
        top = values.argmax(axis=-1)[..., None]
        best = np.maximum(best, np.take_along_axis(values, top, axis=-1)[..., 0])
        low = np.take_along_axis(at, np.maximum(top - 2, 0), axis=-1)[..., 0]
        high = np.take_along_axis(at, np.minimum(top + 2, 128), axis=-1)[..., 0]
    return np.asarray(best * (1 - 1e-12))


def _earlier_radius(
    bound: Callable[[_Array, _Array, _Array], _Array],
    span: Callable[[_Array], tuple[_Array, _Array]],
    q_a_upper: npt.ArrayLike,
    p_b_upper: npt.ArrayLike | None,
    sigma: float,
) -> Floats:
    """The supremum of an earlier theorem's `bound` over its tuning parameter, 0 where class A need not lead.

    `span` gives the range of the parameter from ½ ln(p_A/p_B). By Cohen et al. 2019, Theorem 2, no larger
    radius than Theorem 1's is true for every classifier; the minimum keeps that so in floating point, at ties.
    """
    most = np.asarray(cohen_radius(q_a_upper, p_b_upper, sigma=sigma))
    q, p = np.broadcast_arrays(*_probabilities(q_a_upper, p_b_upper))
    leads = most > 0
    q, p = np.where(leads, q, 0.25), np.where(leads, p, 0.25)
    low, high = span(_half_log_ratio(_lower_p_a(q), p))
    found = sigma * _supremum(lambda at: bound(at, q[..., None], p[..., None]), low, high)
    claimed = np.where(leads, np.minimum(found, most), 0.0)
    return claimed if claimed.ndim else float(claimed)


def _lower_p_a(q: _Array) -> _Array:
    """1 − q, rounded down: at a tie the rounding of the difference is as large as the lead itself."""
    return np.nextafter(1 - q, 0.0)


def _half_log_ratio(p_a: _Array, p_b: _Array) -> _Array:
    """½ ln(p_A/p_B), or 0 if A does not lead; precise near a tie, where p_A − p_B is exact."""
    near = p_a < 2 * p_b
    with np.errstate(over="ignore", divide="ignore"):
        far_apart = np.log(p_a) - np.log(p_b)
    logs = np.where(near, np.log1p(np.where(near, p_a - p_b, 0.0) / p_b), far_apart)
    return np.asarray(np.maximum(logs, 0.0) / 2)


def lecuyer_at(beta: npt.ArrayLike, q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The radius of Lecuyer et al. 2019 at σ = 1 for one β; 0 where this β is not allowed.

    β / sqrt(2 ln(1.25(1 + e^β) / (p_A − e^{2β} p_B))) for 0 < β ≤ min(1, ½ ln(p_A/p_B)). Arrays broadcast.
    """
    b, p_b = np.asarray(beta, np.float64), np.asarray(p_b_upper, np.float64)
    gap = _lower_p_a(np.asarray(q_a_upper, np.float64)) - np.exp(2 * b) * p_b
    allowed = (b > 0) & (b <= 1) & (gap > 0)
    ratio = 1.25 * (1 + np.exp(b)) / np.where(allowed, gap, 1.0)
    return np.where(allowed, b / np.sqrt(2 * np.log(ratio)), 0.0)


def lecuyer_radius(q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike | None = None, *, sigma: float) -> Floats:
    """The radius of Lecuyer et al. 2019 by differential privacy, as derived in Cohen et al. 2019, Appendix I.1.

    σ times the supremum of `lecuyer_at` over β. For comparison: Theorem 1 is always larger. Arrays broadcast.
    """

    def span(half: _Array) -> tuple[_Array, _Array]:
        return np.zeros(half.shape), np.minimum(1.0, half)

    return _earlier_radius(lecuyer_at, span, q_a_upper, p_b_upper, sigma)


def _log_cosh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = np.abs(x)
    small = np.log1p(2 * np.sinh(np.minimum(x, 1.0) / 2) ** 2)
    return np.where(x < 1, small, x + np.log1p(np.exp(-2 * x)) - math.log(2))


def li_at(order: npt.ArrayLike, q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The radius of Li et al. 2019 at σ = 1 by the Rényi divergence of one order a > 0. Arrays broadcast.

    sqrt(−(2/a)·ln(1 − p_A − p_B + 2M)), where M is the power mean of p_A and p_B of order 1 − a:
    M = (½(p_A^{1−a} + p_B^{1−a}))^{1/(1−a)}. Cohen et al. 2019, Appendix I.2, print the outer exponent as 1 − a.
    Minimising D_a(Q‖P) over all Q in which A no longer leads puts q_A = q_B ∝ M and leaves the other classes in
    proportion, which gives −ln(1 − p_A − p_B + 2M) with exponent 1/(1−a); that form is used here.
    """
    a, p_b = np.asarray(order, np.float64), np.asarray(p_b_upper, np.float64)
    p_a = _lower_p_a(np.asarray(q_a_upper, np.float64))
    half = _half_log_ratio(p_a, p_b)
    power = np.where(np.abs(1 - a) < 1e-9, 1e-9, 1 - a)
    # With g = sqrt(p_A·p_B): p_A + p_B = 2g·cosh(half) and M = g·cosh(power·half)^(1/power). Taking both from
    # their excess over g keeps the digits of the difference near a tie.
    with np.errstate(over="ignore", invalid="ignore"):
        excess = 2 * np.sinh(half / 2) ** 2 - np.expm1(_log_cosh(power * half) / power)
        squared = -2 / a * np.log1p(-2 * np.sqrt(p_a) * np.sqrt(p_b) * excess)
    return np.sqrt(np.where(squared > 0, squared, 0.0))


def li_radius(q_a_upper: npt.ArrayLike, p_b_upper: npt.ArrayLike | None = None, *, sigma: float) -> Floats:
    """The radius of Li et al. 2019 by Rényi divergence: σ times the supremum of `li_at` over the order.

    For comparison: Theorem 1 is always larger. Arrays broadcast.
    """

    def span(half: _Array) -> tuple[_Array, _Array]:
        return np.full(half.shape, math.log(1e-4)), np.full(half.shape, math.log(1e4))

    def bound(log_order: _Array, q: _Array, p_b: _Array) -> _Array:
        return li_at(np.exp(log_order), q, p_b)

    return _earlier_radius(bound, span, q_a_upper, p_b_upper, sigma)


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
        raise ConfigError(f"No number of draws up to 2^53 certifies radius {radius!r} at sigma {sigma:g}.")
    low, high = 0, max(1, math.ceil(wanted))
    while max_radius(high, alpha, sigma) < radius or max_radius(high, alpha, sigma) == 0:
        low, high = high, high * 2
    while high - low > 1:  # max_radius grows with n
        middle = (low + high) // 2
        enough = max_radius(middle, alpha, sigma) >= max(radius, math.ulp(0))
        low, high = (low, middle) if enough else (middle, high)
    return high

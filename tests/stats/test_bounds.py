import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import bdtr, bdtrc
from scipy.stats import binom, norm

from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import (
    binomial_p_value,
    clopper_pearson_lower,
    clopper_pearson_upper,
)
from smoothcert.stats.radii import cohen_radius
from soundness import (
    binomial_tail,
    check_lower_bound_is_sound,
    check_p_value_is_sound,
    check_upper_bound_is_sound,
    check_upper_bound_is_tight,
    digits,
    fair_coin_tails,
    normal_depth,
)

# How many cases of which sizes: together more than a million.
DECADES = [(0, 4, 740_000), (4, 6, 280_000), (6, 9, 60_000)]


def cases(low, high, count):
    """Random (k, n, alpha): k uniform, or near an end, or exactly at an end or the middle."""
    rng = np.random.default_rng([2019, low])
    n = np.floor(10 ** rng.uniform(low, high, count)).astype(np.int64)
    uniform = rng.integers(0, n + 1)
    few = np.minimum(np.floor(10 ** rng.uniform(0, high, count)).astype(np.int64) - 1, n)
    special = np.choose(rng.integers(0, 5, count), [0 * n, np.minimum(1, n), n - 1, n, n // 2])
    k = np.choose(rng.integers(0, 10, count), [few] * 3 + [n - few] * 2 + [special] + [uniform] * 4)
    alpha = 10 ** rng.uniform(-12, math.log10(0.4), count)
    return k, n, alpha


def first(bad, k, n, alpha):
    where = np.flatnonzero(bad)[:3]
    return f"{bad.sum()} cases, such as {[(int(k[i]), int(n[i]), float(alpha[i])) for i in where]} (k, n, alpha)"


def sum_from_zero(k, n, p):
    """P(Bin(n, p) <= k), term by term from 0, for few successes among many draws."""
    odds, term = p / (1 - p), np.ones(len(k))
    total = term.copy()
    for j in range(int(k.max(initial=0))):
        term = np.where(j < k, term * (odds * (n - j) / (j + 1)), 0.0)
        total += term
    return np.exp(n * np.log1p(-p)) * total


def test_a_million_cases_are_a_million_cases():
    distinct = sum(len(np.unique(np.stack(cases(*decade)), axis=1).T) for decade in DECADES)
    assert distinct >= 10**6


@pytest.mark.parametrize("decade", DECADES)
def test_no_bound_of_a_million_leaves_more_than_alpha_outside(decade):
    k, n, alpha = cases(*decade)
    upper, lower = clopper_pearson_upper(k, n, alpha), clopper_pearson_lower(k, n, alpha)
    assert np.all((lower >= 0) & (lower <= k / n) & (k / n <= upper) & (upper <= 1))

    above = np.where(upper < 1, binom.cdf(k, n, upper), 0.0)
    few = (k <= 300) & (n > 10**5) & (upper < 1)
    above[few] = sum_from_zero(k[few], n[few], upper[few])
    suspects = np.flatnonzero(above > alpha)  # binom.cdf is only good to 1e-7 with a billion draws
    assert len(suspects) < 500
    for i in suspects:
        assert binomial_tail(int(k[i]), int(n[i]), float(upper[i])) <= alpha[i], (k[i], n[i], alpha[i])
    below = np.where(lower > 0, binom.sf(k - 1, n, lower), 0.0)
    suspects = np.flatnonzero(below > alpha)
    assert len(suspects) < 500
    for i in suspects:
        assert binomial_tail(int(n[i] - k[i]), int(n[i]), 1 - digits.mpf(float(lower[i]))) <= alpha[i]

    # The bound is as good as exact: one part in a million further in, too much is left outside. Near 1 the digits
    # are in 1 − p, so that side is the one moved.
    further = binom.cdf(k, n, upper * (1 - 1e-6))
    assert not (further <= alpha).any(), first(further <= alpha, k, n, alpha)
    inner = np.where(2 * k > n, 1 - (1 - lower) * (1 - 1e-6), lower * (1 + 1e-6))
    further = np.where(k > 0, binom.sf(k - 1, n, inner), 1.0)
    visible = (k == 0) | (1 - lower > 1e-9)  # closer to 1 than that, `inner` itself is rounded by more than 1e-6
    assert not (visible & (further <= alpha)).any(), first(visible & (further <= alpha), k, n, alpha)

    # A second judge: Cephes' incomplete beta function, where the library and binom.cdf stand on Boost's. It is
    # itself good to 5e-10 only up to a hundred thousand draws.
    exact = n <= 10**5
    with np.errstate(all="ignore"):
        above = np.where(upper < 1, bdtr(k.astype(float), n, upper), 0.0)
        below = np.where(lower > 0, bdtrc(k - 1.0, n, lower), 0.0)
    assert not (exact & (above > alpha)).any(), first(exact & (above > alpha), k, n, alpha)
    assert not (exact & (below > alpha)).any(), first(exact & (below > alpha), k, n, alpha)


def test_sixty_digits_confirm_the_bounds_up_to_a_billion_draws():
    rng = np.random.default_rng(60)
    for i in range(400):
        n = int(10 ** rng.uniform(8, 9))
        k = int(10 ** rng.uniform(0, 5.5 if i % 20 else 8)) - 1
        alpha = float(10 ** rng.uniform(-12, -0.5))
        upper, lower = clopper_pearson_upper(k, n, alpha), clopper_pearson_lower(n - k, n, alpha)
        assert binomial_tail(k, n, upper) <= alpha, (k, n, alpha)
        assert lower == 0 or binomial_tail(k, n, 1 - digits.mpf(lower)) <= alpha, (k, n, alpha)


def test_every_k_of_small_n_is_sound_and_tight():
    check_upper_bound_is_sound(clopper_pearson_upper)
    check_lower_bound_is_sound(clopper_pearson_lower)
    check_upper_bound_is_tight(clopper_pearson_upper)


@pytest.mark.parametrize("n", [10**7, 10**8, 651_087_091, 10**9])
@pytest.mark.parametrize("alpha", [0.05, 1e-3, 2.3279066915193276e-12])
def test_the_bound_is_tight_where_scipys_inverse_is_not(n, alpha):
    """betainccinv(1000, b, alpha) is up to 30 % too low for large b; the bound must be sound there and still good."""
    upper = clopper_pearson_upper(999, n, alpha)
    assert binomial_tail(999, n, upper) <= alpha
    assert binomial_tail(999, n, upper * (1 - 1e-6)) > alpha


@pytest.mark.parametrize("n", [1, 7, 100, 1000, 100_000])
@pytest.mark.parametrize("alpha", [0.4, 1e-3, 1e-12])
def test_bounds_never_fall_as_the_count_grows(n, alpha):
    k = np.arange(n + 1)
    assert np.all(np.diff(clopper_pearson_upper(k, n, alpha)) >= 0)
    assert np.all(np.diff(clopper_pearson_lower(k, n, alpha)) >= 0)


def test_a_smaller_alpha_never_narrows_the_bounds():
    alphas = np.array([0.4, 0.1, 1e-2, 1e-3, 1e-6, 1e-12, 1e-100, 1e-300])
    for k in (0, 1, 50, 99):
        assert np.all(np.diff(clopper_pearson_upper(k, 100, alphas)) >= 0)
        assert np.all(np.diff(clopper_pearson_lower(100 - k, 100, alphas)) <= 0)


def test_arrays_and_scalars_agree_and_arrays_broadcast():
    k, n, alpha = cases(0, 4, 200)
    for bound in (clopper_pearson_upper, clopper_pearson_lower):
        one_by_one = [bound(int(a), int(b), float(c)) for a, b, c in zip(k, n, alpha, strict=True)]
        assert all(type(value) is float for value in one_by_one)
        np.testing.assert_array_equal(bound(k, n, alpha), one_by_one)
        assert bound(np.arange(5)[:, None], 10, np.array([0.1, 0.01])).shape == (5, 2)


def test_known_values_of_the_closed_forms():
    # No failure in n draws: (1 − q)^n = α. One draw short of all: 1 − p^n = α.
    assert clopper_pearson_upper(0, 100, 0.001) == pytest.approx(1 - 0.001**0.01, rel=1e-8)
    assert clopper_pearson_upper(9, 10, 0.05) == pytest.approx(0.95**0.1, rel=1e-8)
    assert clopper_pearson_lower(10, 10, 0.05) == pytest.approx(0.05**0.1, rel=1e-8)
    # Clopper & Pearson's own chart for 95 % confidence on both sides, n = 10, k = 3: .0667 and .6525.
    assert clopper_pearson_upper(3, 10, 0.025) == pytest.approx(0.6525, abs=5e-5)
    assert clopper_pearson_lower(3, 10, 0.025) == pytest.approx(0.0667, abs=5e-5)


@pytest.mark.parametrize("n", [1, 10, 100_000, 10**9, 2**53])
def test_alpha_of_1e_300_is_neither_rounded_to_zero_nor_lost(n):
    upper = clopper_pearson_upper(0, n, 1e-300)
    exact = -digits.expm1(digits.log(digits.mpf(1e-300)) / n)
    assert exact <= upper <= 1
    assert upper == 1 or float(upper / exact - 1) < 1e-6
    for k in (1, n // 2, n - 1):
        if 0 < k < n <= 10**5:
            upper = clopper_pearson_upper(k, n, 1e-300)
            assert k / n < upper <= 1
            assert upper == 1 or binomial_tail(k, n, upper) <= digits.mpf(1e-300)
            assert 0 <= clopper_pearson_lower(k, n, 1e-300) < k / n


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 10**9, 2**53])
@pytest.mark.parametrize("alpha", [0.4, 1e-3, 1e-12])
def test_the_extremes_give_finite_bounds_and_radii(n, alpha):
    for k in {0, n // 2, n}:
        upper, lower = clopper_pearson_upper(k, n, alpha), clopper_pearson_lower(k, n, alpha)
        assert 0 <= lower <= k / n <= upper <= 1
        radius = cohen_radius(upper, sigma=1.0)
        assert math.isfinite(radius)
        assert (radius > 0) == (upper < 0.5)
    assert clopper_pearson_upper(n, n, alpha) == 1
    assert clopper_pearson_lower(0, n, alpha) == 0
    assert clopper_pearson_upper(n - n // 2, n, alpha) > 0.5, "half of the votes certify nothing"


@pytest.mark.parametrize("failures", [0, 1, 2, 10, 1000, 100_000])
def test_a_billion_draws_at_alpha_1e_12_stay_below_the_sixty_digit_radius(failures):
    n, alpha = 10**9, 1e-12
    q = clopper_pearson_upper(failures, n, alpha)
    radius = cohen_radius(q, sigma=1.0)
    # The radius' own failure side has a tail of at most α, so it is no deeper than the exact bound's.
    assert binomial_tail(failures, n, digits.ncdf(-digits.mpf(radius))) <= alpha
    if failures == 0:
        assert radius <= normal_depth(float(-digits.expm1(digits.log(digits.mpf(alpha)) / n)))
        assert radius == pytest.approx(norm.isf(-math.log(1e-12) / 1e9), rel=1e-6)


@pytest.mark.parametrize(
    ("k", "n", "alpha"),
    [
        (0, 0, 0.1),
        (1, 0, 0.1),
        (-1, 10, 0.1),
        (11, 10, 0.1),
        (2.5, 10, 0.1),
        (2.0, 10, 0.1),
        (2, 10.0, 0.1),
        (1, 2**53 + 1, 0.1),
        (1, 10, 0.0),
        (1, 10, 1.0),
        (1, 10, -0.1),
        (1, 10, math.nan),
        ([1, 2, 30], 10, 0.1),
        (1, 10, [0.1, math.nan]),
        (math.nan, 10, 0.1),
    ],
)
@pytest.mark.parametrize("bound", [clopper_pearson_upper, clopper_pearson_lower])
def test_impossible_counts_and_levels_are_refused(bound, k, n, alpha):
    with pytest.raises(ConfigError, match="Expected"):
        bound(k, n, alpha)


def test_p_values_are_those_of_exact_fractions_rounded_up():
    check_p_value_is_sound(binomial_p_value, range(1, 201))
    for n in range(1, 201):
        for k, exact in enumerate(fair_coin_tails(n)):
            assert binomial_p_value(k, n) <= float(exact) * (1 + 1e-8)


def test_p_values_know_no_side_and_fall_with_the_lead():
    for n in (1, 2, 9, 10, 101, 10**6, 10**9):
        k = sorted({*range(min(n, 50) + 1), n // 2, n // 3})
        assert all(binomial_p_value(a, n) == binomial_p_value(n - a, n) for a in k)
        values = [binomial_p_value(a, n) for a in k if 2 * a <= n]
        assert all(a <= b for a, b in itertools.pairwise(values))
        assert binomial_p_value(n // 2, n) > 0.999 or n == 1
    assert binomial_p_value(0, 0) == 1.0


def test_p_values_of_many_draws_agree_with_sixty_digits():
    for k, n in ((400, 1000), (49_000, 100_000), (499_000, 10**6), (0, 1000)):
        exact = 2 * binomial_tail(k, n, 0.5)
        assert exact <= binomial_p_value(k, n) <= exact * (1 + 1e-8)


def test_the_reference_sum_is_right():
    """The judge is judged: against fractions, term by term."""
    for n, k, p in (
        (10, 2, Fraction(1, 2)),
        (40, 3, Fraction(1, 4)),
        (200, 90, Fraction(1, 2)),
        (7, 0, Fraction(1, 8)),
    ):
        exact = sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k + 1))
        value = binomial_tail(k, n, digits.mpf(p.numerator) / p.denominator)
        assert abs(value * exact.denominator / exact.numerator - 1) < 1e-25

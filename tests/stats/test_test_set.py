"""Bounds of a whole test set, judged by enumerating how many bad inputs are certified."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from smoothcert.errors import ConfigError
from smoothcert.stats.test_set import bernstein_lower_bound, exact_lower_bound, most_false, simultaneous_lower_bound

BOUNDS = [bernstein_lower_bound, exact_lower_bound, simultaneous_lower_bound]
SETTINGS = [(m, alpha, rho) for m in (1, 2, 7, 30) for alpha in (0.001, 0.05, 0.3, 0.49) for rho in (0.001, 0.1, 0.6)]


def binomial(n, alpha):
    """Exact probabilities of 0, 1, …, n."""
    p = Fraction(alpha)
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def error_probability(bound, good, m, alpha, rho, *, spared=0):
    """That the bound exceeds the true share when all but `spared` good inputs are certified, and bad ones by chance."""
    law = binomial(m - good, alpha)
    counts = np.array([good - spared + bad for bad in range(len(law))])
    claims = np.asarray(bound(counts, m, alpha=alpha, rho=rho))
    return sum(p for p, claim in zip(law, claims, strict=True) if Fraction(float(claim)) > Fraction(good, m))


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("m", "alpha", "rho"), SETTINGS)
def test_a_bound_is_wrong_with_probability_at_most_rho_whatever_is_true(bound, m, alpha, rho):
    for good in range(m + 1):
        assert error_probability(bound, good, m, alpha, rho) <= Fraction(rho)
    if m > 1:
        assert error_probability(bound, m // 2, m, alpha, rho, spared=m // 2) <= Fraction(rho)


def test_the_enumeration_catches_a_bound_that_claims_one_input_more():
    def greedy(counts, m, **settings):
        return np.asarray(exact_lower_bound(counts, m, **settings)) + 1 / m

    assert any(error_probability(greedy, good, 30, 0.05, 0.001) > Fraction(0.001) for good in range(31))


@pytest.mark.parametrize(("m", "alpha", "rho"), [*SETTINGS, (500, 0.001, 0.001), (10_000, 0.01, 1e-6)])
def test_the_exact_bound_is_never_below_the_others(m, alpha, rho):
    counts = np.arange(m + 1)
    exact = np.asarray(exact_lower_bound(counts, m, alpha=alpha, rho=rho))
    assert np.all(exact >= bernstein_lower_bound(counts, m, alpha=alpha, rho=rho))
    assert np.all(exact >= simultaneous_lower_bound(counts, m, alpha=alpha, rho=rho))
    assert np.all(exact <= counts / m)


def test_with_many_good_inputs_and_a_large_alpha_solving_for_the_bad_ones_pays():
    """Where nearly all are certified, few can be bad, and so few of the certified can be false."""
    settings = {"alpha": 0.3, "rho": 0.001}
    assert exact_lower_bound(200, 200, **settings) > simultaneous_lower_bound(200, 200, **settings) + 0.2
    assert bernstein_lower_bound(200, 200, **settings) > simultaneous_lower_bound(200, 200, **settings)


def test_the_paper_s_formula():
    alpha, rho, m, y = 0.01, 0.05, 500, 321
    log = math.log(1 / rho)
    expected = (y / m - alpha - math.sqrt(2 * alpha * (1 - alpha) * log / m) - log / (3 * m)) / (1 - alpha)
    assert bernstein_lower_bound(y, m, alpha=alpha, rho=rho) == pytest.approx(expected, abs=1e-12)
    assert bernstein_lower_bound(y, m, alpha=alpha, rho=rho) < expected


@pytest.mark.parametrize(("n", "alpha", "rho"), [(1, 0.4, 0.5), (12, 0.1, 0.01), (40, 0.49, 1e-5), (25, 0.2, 0.9)])
def test_the_quantile_is_that_of_the_binomial_law(n, alpha, rho):
    law = binomial(n, alpha)
    expected = next(b for b in range(n + 1) if sum(law[b + 1 :]) <= Fraction(rho))
    assert int(most_false(n, alpha=alpha, rho=rho)) == expected


def test_as_in_the_paper_the_difference_is_negligible_for_500_inputs():
    counts = np.arange(501)
    for bound, points in ((exact_lower_bound, 0.8), (bernstein_lower_bound, 1.2)):
        lost = counts / 500 - np.asarray(bound(counts, 500, alpha=0.001, rho=0.001))
        assert 100 * lost.max() < points + 1e-9


def test_numbers_give_numbers_arrays_give_arrays_and_nothing_falls_below_0():
    for bound in BOUNDS:
        assert isinstance(bound(3, 10, alpha=0.001), float)
        assert bound([0, 3], 10, alpha=0.001).shape == (2,)
        assert bound(0, 10, alpha=0.4) == 0.0


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"certified": 11}, "`certified` to be whole numbers from 0 to 10"),
        ({"certified": -1}, "`certified`"),
        ({"certified": 0.5}, "`certified`"),
        ({"inputs": 0}, "`inputs`"),
        ({"alpha": 0.5}, "`alpha` in"),
        ({"rho": 0.0}, "`rho` in"),
        ({"rho": math.nan}, "`rho` in"),
    ],
)
def test_bad_settings_are_refused(bound, changed, named):
    settings = {"certified": 5, "inputs": 10, "alpha": 0.001, "rho": 0.001, **changed}
    with pytest.raises(ConfigError, match=named):
        bound(settings.pop("certified"), settings.pop("inputs"), **settings)

"""Plausible mistakes, each of which a check of soundness.py must catch. The same checks pass on the real code."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import bdtri, betainccinv
from scipy.stats import beta, norm

from smoothcert.records import Bounds, Decision, Votes, floor_decimal
from smoothcert.stats.bounds import binomial_p_value, clopper_pearson_lower, clopper_pearson_upper
from smoothcert.stats.procedures import FixedN, Predict
from smoothcert.stats.radii import cohen_radius
from soundness import (
    check_certify_by_simulation,
    check_certify_is_sound,
    check_lower_bound_is_sound,
    check_p_value_is_sound,
    check_predict_is_sound,
    check_radius_is_sound,
    check_rounding,
    check_upper_bound_is_sound,
    check_upper_bound_is_tight,
)

# ---- bounds ------------------------------------------------------------------------------------------------------


def wilson(k, n, alpha):
    z, p = norm.isf(alpha), np.asarray(k) / n
    return (p + z**2 / (2 * n) + z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))) / (1 + z**2 / n)


def wald(k, n, alpha):
    p = np.asarray(k) / n
    return np.minimum(p + norm.isf(alpha) * np.sqrt(p * (1 - p) / n), 1)


def agresti_coull(k, n, alpha):
    z = norm.isf(alpha)
    more = n + z**2
    p = (np.asarray(k) + z**2 / 2) / more
    return np.minimum(p + z * np.sqrt(p * (1 - p) / more), 1)


def jeffreys(k, n, alpha):
    k = np.asarray(k)
    return np.where(k == n, 1.0, beta.isf(alpha, k + 0.5, n - k + 0.5))


def unverified_inverse(k, n, alpha):
    """SciPy's word taken for it, moved outward but never judged."""
    k = np.asarray(k)
    inner = k < n
    return np.where(inner, betainccinv(k + 1.0, np.where(inner, n - k, 1), alpha) * (1 + 1e-9), 1.0)


def old_inverse(k, n, alpha):
    """The inverse of the binomial distribution that older code uses."""
    k = np.asarray(k)
    inner = k < n
    return np.where(inner, bdtri(np.where(inner, k, 0).astype(float), n, alpha), 1.0)


def in_float32(k, n, alpha):
    return np.asarray(clopper_pearson_upper(k, n, alpha)).astype(np.float32)


def real(k, n, alpha):
    return np.asarray(clopper_pearson_upper(k, n, alpha))


UPPER_MUTANTS = {
    "alpha doubled": lambda k, n, alpha: real(k, n, 2 * alpha),
    "alpha a hundredth larger": lambda k, n, alpha: real(k, n, 1.01 * alpha),
    "one failure forgotten": lambda k, n, alpha: real(np.maximum(np.asarray(k) - 1, 0), n, alpha),
    "one draw too many": lambda k, n, alpha: real(k, n + 1, alpha),
    "Wilson": wilson,
    "Wald": wald,
    "Agresti-Coull": agresti_coull,
    "Jeffreys": jeffreys,
    "normal approximation with continuity": lambda k, n, alpha: np.where(
        np.asarray(k) == n, 1.0, wald(np.minimum(np.asarray(k) + 0.5, n), n, alpha)
    ),
    "rounded to nearest at six digits": lambda k, n, alpha: np.round(real(k, n, alpha), 6),
    "rounded inward": lambda k, n, alpha: np.where(np.asarray(k) == n, 1.0, real(k, n, alpha) * (1 - 2e-9)),
    "float32": in_float32,
    "an inverse that nobody checked": unverified_inverse,
    "bdtri": old_inverse,
    "NaN": lambda k, n, alpha: real(k, n, alpha) * np.nan,
}


@pytest.mark.parametrize("mutant", UPPER_MUTANTS.values(), ids=UPPER_MUTANTS.keys())
def test_a_wrong_upper_bound_is_caught(mutant):
    with pytest.raises(AssertionError, match="too low"):
        check_upper_bound_is_sound(mutant)


LOWER_MUTANTS = {
    "alpha doubled": lambda k, n, alpha: clopper_pearson_lower(k, n, 2 * alpha),
    "one vote more": lambda k, n, alpha: clopper_pearson_lower(np.minimum(np.asarray(k) + 1, n), n, alpha),
    "Wald": lambda k, n, alpha: 1 - wald(n - np.asarray(k), n, alpha),
    "float32": lambda k, n, alpha: np.asarray(clopper_pearson_lower(k, n, alpha)).astype(np.float32),
}


@pytest.mark.parametrize("mutant", LOWER_MUTANTS.values(), ids=LOWER_MUTANTS.keys())
def test_a_wrong_lower_bound_is_caught(mutant):
    with pytest.raises(AssertionError, match="too high"):
        check_lower_bound_is_sound(mutant)


WEAK = {
    "alpha halved": lambda k, n, alpha: real(k, n, alpha / 2),
    "Hoeffding": lambda k, n, alpha: np.minimum(np.asarray(k) / n + np.sqrt(-np.log(alpha) / (2 * n)), 1),
    "rounded up at six digits": lambda k, n, alpha: np.minimum(np.ceil(real(k, n, alpha) * 1e6) / 1e6, 1),
    "always one": lambda k, n, alpha: np.maximum(real(k, n, alpha), 1),
}


@pytest.mark.parametrize("mutant", WEAK.values(), ids=WEAK.keys())
def test_a_bound_that_is_true_but_weak_is_caught(mutant):
    with pytest.raises(AssertionError, match="too loose"):
        check_upper_bound_is_tight(mutant)


P_VALUE_MUTANTS = {
    "one-sided": lambda k, n: binomial_p_value(k, n) / 2,
    "strictly more": lambda k, n: binomial_p_value(min(max(k, n - k) + 1, n), n),
    "rounded to nearest": lambda k, n: round(binomial_p_value(k, n), 6),
}


@pytest.mark.parametrize("mutant", P_VALUE_MUTANTS.values(), ids=P_VALUE_MUTANTS.keys())
def test_a_wrong_p_value_is_caught(mutant):
    with pytest.raises(AssertionError, match="too small"):
        check_p_value_is_sound(mutant)


# ---- radii and printing ------------------------------------------------------------------------------------------


def textbook_radius(q, p_b=None, *, sigma):
    """As the formula stands, through p_A = 1 − q."""
    p_b = q if p_b is None else p_b
    return np.maximum(sigma / 2 * (norm.ppf(1 - q) - norm.ppf(p_b)), 0)


def plainly(q, p_b, sigma):
    return sigma / 2 * (norm.isf(q) + norm.isf(q if p_b is None else p_b))


def cautious(q, p_b=None, *, sigma):
    """Theorem 1 with room to spare, so that each mutant below is caught for its own mistake."""
    return float(max(plainly(q, p_b, sigma) - 1e-12 * sigma, 0)) if 0 < q < 1 else 0.0


RADIUS_MUTANTS = {
    "sigma a hundredth larger": lambda q, p_b=None, *, sigma: cautious(q, p_b, sigma=1.01 * sigma),
    "the half forgotten": lambda q, p_b=None, *, sigma: cautious(q, p_b, sigma=2 * sigma),
    "p_A as one minus q": textbook_radius,
    "float32": lambda q, p_b=None, *, sigma: float(np.float32(cautious(q, p_b, sigma=sigma))),
    "rounded up": lambda q, p_b=None, *, sigma: np.nextafter(max(plainly(q, p_b, sigma), 0), np.inf),
    "rounded to six digits": lambda q, p_b=None, *, sigma: round(cautious(q, p_b, sigma=sigma), 6),
    "claims at a tie": lambda q, p_b=None, *, sigma: cautious(q, p_b, sigma=sigma) or 5e-324,
    "NaN claims": lambda q, p_b=None, *, sigma: 1.0 if np.isnan(q) else cautious(q, p_b, sigma=sigma),
    "p_B half of q": lambda q, p_b=None, *, sigma: cautious(q, q / 2 if p_b is None else p_b, sigma=sigma),
}


@pytest.mark.parametrize("mutant", RADIUS_MUTANTS.values(), ids=RADIUS_MUTANTS.keys())
def test_a_wrong_radius_is_caught(mutant):
    with pytest.raises(AssertionError, match=r"too large|without a lead|radius is"):
        check_radius_is_sound(mutant)


PRINT_MUTANTS = {
    "three decimals, rounded to nearest": lambda value: f"{value:.3f}",
    "six decimals, rounded to nearest": lambda value: f"{value:.6f}",
    "four significant digits": lambda value: f"{value:.4g}",
    "through float32": lambda value: repr(float(np.float32(value))),
}


@pytest.mark.parametrize("mutant", PRINT_MUTANTS.values(), ids=PRINT_MUTANTS.keys())
def test_a_number_printed_too_large_is_caught(mutant):
    with pytest.raises(AssertionError, match="is written as"):
        check_rounding(mutant)


# ---- procedures --------------------------------------------------------------------------------------------------


@dataclass
class BrokenCertify:
    """CERTIFY with one line to be broken."""

    n: int
    n0: int
    alpha: float

    def __call__(self):
        first = yield self.n0
        if first.leader is None:
            return Bounds(None)
        second = yield self.n
        return self.bounds(first, second)

    def one_sided(self, label, votes, alpha):
        q_a = clopper_pearson_upper(votes.n - votes.counts[label], votes.n, alpha)
        return Bounds(label, q_a, q_a)

    def two_sided(self, label, votes, rival, alpha):
        q_a = clopper_pearson_upper(votes.n - votes.counts[label], votes.n, alpha)
        return Bounds(label, q_a, min(clopper_pearson_upper(rival, votes.n, alpha), q_a))


class AlphaDoubled(BrokenCertify):
    def bounds(self, first, second):
        return self.one_sided(first.leader, second, 2 * self.alpha)


class SelectionReused(BrokenCertify):
    def bounds(self, first, second):
        return self.one_sided(first.leader, first + second, self.alpha)


class SelectionInsteadOfFreshDraws(BrokenCertify):
    def bounds(self, first, second):
        return self.one_sided(second.leader if second.leader is not None else first.leader, second, self.alpha)


class OneVoteMore(BrokenCertify):
    def bounds(self, first, second):
        failures = max(second.n - second.counts[first.leader] - 1, 0)
        q_a = clopper_pearson_upper(failures, second.n, self.alpha)
        return Bounds(first.leader, q_a, q_a)


class InvalidForgiven(BrokenCertify):
    """Draws without an answer are left out as if they had not been made."""

    def bounds(self, first, second):
        if not sum(second.counts):
            return Bounds(None)
        return self.one_sided(first.leader, Votes(second.counts), self.alpha)


@pytest.mark.parametrize(
    "mutant", [AlphaDoubled, SelectionReused, SelectionInsteadOfFreshDraws, OneVoteMore, InvalidForgiven]
)
def test_a_wrong_certify_is_caught(mutant):
    with pytest.raises(AssertionError, match=r"is false|are false"):
        check_certify_is_sound(mutant)


class AlphaNotSplit(BrokenCertify):
    def bounds(self, first, second):
        return self.two_sided(first.leader, second, second.rival(first.leader), self.alpha)


class SecondRival(BrokenCertify):
    def bounds(self, first, second):
        others = sorted([*np.delete(second.counts, first.leader).tolist(), second.invalid])
        return self.two_sided(first.leader, second, others[-2], self.alpha / 2)


class RivalOfTheSelection(BrokenCertify):
    """The rival's count is that of the runner-up of the selection, who need not be the strongest."""

    def bounds(self, first, second):
        others = [c for c in range(len(first.counts)) if c != first.leader]
        runner_up = max(others, key=lambda c: first.counts[c])
        rival = max(second.counts[runner_up], second.invalid)
        return self.two_sided(first.leader, second, rival, self.alpha / 2)


class NoAnswerIsNoRival(BrokenCertify):
    def bounds(self, first, second):
        rival = int(np.delete(second.counts, first.leader).max())
        return self.two_sided(first.leader, second, rival, self.alpha / 2)


@pytest.mark.parametrize("mutant", [AlphaNotSplit, SecondRival, RivalOfTheSelection, NoAnswerIsNoRival])
def test_a_wrong_rival_bound_is_caught(mutant):
    with pytest.raises(AssertionError, match=r"is false|are false"):
        check_certify_is_sound(mutant, runner_up=True)


@pytest.mark.parametrize("mutant", [SelectionInsteadOfFreshDraws, AlphaDoubled, OneVoteMore])
def test_simulation_catches_what_is_wrong_by_much(mutant):
    with pytest.raises(AssertionError, match="claims are false"):
        check_certify_by_simulation(mutant, [0.1] * 10, repeats=8000)


@dataclass
class BrokenPredict:
    """PREDICT with one line to be broken."""

    n: int
    alpha: float

    def __call__(self):
        votes = yield self.n
        if votes.leader is None:
            return Decision(None, 1.0)
        return Decision(*self.decide(votes, votes.leader))


class TieReturnsTheLowest(BrokenPredict):
    def decide(self, votes, leader):
        p_value = binomial_p_value(votes.counts[leader], votes.counts[leader] + votes.rival(leader))
        return (leader if votes.counts[leader] == votes.rival(leader) or p_value <= self.alpha else None), p_value


class LeaderNotCompared(BrokenPredict):
    """The test has two sides: without asking who leads, losing to "no answer" by far counts as significant."""

    def decide(self, votes, leader):
        p_value = binomial_p_value(votes.counts[leader], votes.counts[leader] + votes.rival(leader))
        return (leader if p_value <= self.alpha else None), p_value


class AgainstAllDraws(BrokenPredict):
    def decide(self, votes, leader):
        p_value = binomial_p_value(votes.counts[leader], votes.n)
        return (leader if p_value <= self.alpha else None), p_value


class AgainstTheThird(BrokenPredict):
    def decide(self, votes, leader):
        first = votes.counts[leader]
        third = sorted([*np.delete(votes.counts, leader).tolist(), votes.invalid])[-2]
        p_value = binomial_p_value(first, first + third)
        return (leader if first > votes.rival(leader) and p_value <= self.alpha else None), p_value


class NeverAbstains(BrokenPredict):
    def decide(self, votes, leader):
        return leader, 0.0


@pytest.mark.parametrize(
    "mutant", [TieReturnsTheLowest, LeaderNotCompared, AgainstAllDraws, AgainstTheThird, NeverAbstains]
)
def test_a_wrong_predict_is_caught(mutant):
    with pytest.raises(AssertionError, match="with probability"):
        check_predict_is_sound(mutant)


# ---- and the real ones pass ----------------------------------------------------------------------------------------


class Unbroken(BrokenCertify):
    def bounds(self, first, second):
        return self.one_sided(first.leader, second, self.alpha)


class UnbrokenTwoSided(BrokenCertify):
    def bounds(self, first, second):
        return self.two_sided(first.leader, second, second.rival(first.leader), self.alpha / 2)


def test_the_checks_pass_on_the_real_code_and_on_an_unbroken_copy():
    check_upper_bound_is_sound(clopper_pearson_upper)
    check_lower_bound_is_sound(clopper_pearson_lower)
    check_p_value_is_sound(binomial_p_value)
    check_rounding(floor_decimal)
    check_radius_is_sound(cautious)
    for procedure in (FixedN, Unbroken):
        check_certify_is_sound(procedure)
        check_certify_by_simulation(procedure, [0.1] * 10, repeats=8000)
    check_certify_is_sound(UnbrokenTwoSided, runner_up=True)
    check_predict_is_sound(Predict)


def test_the_check_of_tightness_passes_on_the_real_code():
    check_upper_bound_is_tight(clopper_pearson_upper)


def test_the_check_of_the_radius_passes_on_the_real_code():
    check_radius_is_sound(cohen_radius)

"""Group-sequential boundaries, judged by recursions of our own: draw by draw, in fractions, and backwards."""

import itertools
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from smoothcert.errors import ConfigError
from smoothcert.stats import boundaries
from smoothcert.stats.boundaries import (
    SPENDING_POWER,
    crossing_probability,
    exact_acceptance,
    give_up_counts,
    look_schedule,
    new_boundary,
)
from smoothcert.stats.grid import WEIGHTS, failure_probability
from smoothcert.stats.grid import tested_depth as depth_tested  # under its own name, pytest would take it for a test
from soundness import binomial_tail

DEPTHS = tuple(float(z) for z in np.arange(0, 4, 0.25))
ALPHAS = (0.4, 0.05, 0.001, 1e-12)
SMALL_LOOKS = ((5,), (5, 10, 15), (1, 2, 3, 4, 5, 6, 7, 8), (7, 20, 21, 60))
LOOKS = look_schedule(2_000)
REAL_LOOKS = look_schedule(100_000)


# ---- references ----------------------------------------------------------------------------------------------------


def crossing_in_fractions(q, looks, accept):
    """Draw by draw, without any rounding: whole numbers over a power of q's denominator."""
    fails, of = Fraction(q).as_integer_ratio()
    law, crossed = [1], Fraction(0)
    for n in range(1, looks[-1] + 1):
        law = [a * (of - fails) + b * fails for a, b in zip([*law, 0], [0, *law], strict=True)]
        if n in looks:
            reached = accept[looks.index(n)] + 1
            crossed += Fraction(sum(law[:reached]), of**n)
            law[:reached] = [0] * len(law[:reached])
    return crossed


def crossing_by_draws(q, looks, accept, give_up=None):
    """Draw by draw in floats; with `give_up`, paths that reach it end there.

    Paths with more failures than any look accepts have no way back and are left out.
    """
    law, crossed, at = np.zeros(max(accept) + 2), 0.0, dict(zip(looks, range(len(looks)), strict=True))
    law[0] = 1
    for n in range(1, looks[-1] + 1):
        law[1:] = law[1:] * (1 - q) + law[:-1] * q
        law[0] *= 1 - q
        if n in at:
            limit = accept[at[n]]
            crossed += math.fsum(law[: limit + 1])
            law[: limit + 1] = 0
            if give_up is not None:
                law[give_up[at[n]] :] = 0
    return crossed


@lru_cache(maxsize=20_000)
def binomial_law(n, q):
    """By the ratios of neighbours, from the largest one outwards: no special function is involved."""
    mode = min(int((n + 1) * q), n)
    up = np.cumprod((n - np.arange(mode, n)) / (np.arange(mode, n) + 1) * (q / (1 - q)))
    down = np.cumprod(np.arange(mode, 0, -1) / (n - np.arange(mode, 0, -1) + 1) * ((1 - q) / q))
    law = np.concatenate([down[::-1], [1.0], up])
    return law / law.sum()


def crossing_backwards(q, looks, accept):
    """From the last look to the first: the chance to be accepted from each count on, by correlation.

    Counts 16 standard deviations (and 60) off the mean are left out: by Bernstein's inequality they have a
    probability below 1e-38.
    """

    def counts(n):
        reach = 16 * math.sqrt(n * q * (1 - q)) + 60
        return max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))

    low, high = counts(looks[-1])
    chance = (np.arange(low, high + 1) <= accept[-1]).astype(float)
    for look in range(len(looks) - 1, -1, -1):
        before = looks[look - 1] if look else 0
        first, last = counts(before)
        fewest, most = counts(looks[look] - before)
        law = binomial_law(looks[look] - before, q)[fewest : most + 1]
        # From count k, the counts k + fewest … k + most follow; those outside low … high do not matter.
        reached = np.arange(first + fewest, last + most + 1)
        inside = (reached >= low) & (reached <= high)
        padded = np.where(inside, chance[np.clip(reached - low, 0, high - low)], 0.0)
        chance = np.correlate(padded, law, mode="valid")
        low, high = first, last
        if look:
            chance = np.where(np.arange(first, last + 1) <= accept[look - 1], 1.0, chance)
    return float(chance[0])


def test_the_references_agree_with_each_other():
    for q in (0.5, 0.3, 0.02):
        accept = exact_acceptance(q, 0.1, (7, 20, 21, 60))
        exact = float(crossing_in_fractions(q, (7, 20, 21, 60), accept))
        assert crossing_by_draws(q, (7, 20, 21, 60), accept) == pytest.approx(exact, rel=1e-12)
        assert crossing_backwards(q, (7, 20, 21, 60), accept) == pytest.approx(exact, rel=1e-12)
        accept = exact_acceptance(q, 0.1, LOOKS)
        assert crossing_by_draws(q, LOOKS, accept) == pytest.approx(crossing_backwards(q, LOOKS, accept), rel=1e-11)


# ---- looks ---------------------------------------------------------------------------------------------------------


def test_looks_grow_and_end_at_exactly_n_max():
    for n_max in (100, 101, 150, 199, 200, 201, 999, 1000, 1001, 12_345, 99_999, 100_000, 1_000_000):
        looks = look_schedule(n_max)
        assert looks[0] == 100
        assert looks[-1] == n_max
        assert all(a < b for a, b in itertools.pairwise(looks))
        assert all(n % 100 == 0 for n in looks[:-1])


def test_the_last_step_is_worth_its_look():
    for n_max in range(2_000, 4_000, 37):
        looks = look_schedule(n_max)
        assert looks[-1] / looks[-2] > 1.02  # half a step of the schedule


@pytest.mark.parametrize("n_max", [99, 0, -1, 100.0, None, True])
def test_too_small_a_budget_is_refused(n_max):
    with pytest.raises(ConfigError, match="`n_max`"):
        look_schedule(n_max)


# ---- soundness -----------------------------------------------------------------------------------------------------


def check_boundary_is_sound(acceptance):
    """`acceptance(q, alpha, looks)` accepts at q, over all looks, with probability at most alpha: exactly."""
    for looks in SMALL_LOOKS:
        for q in (0.5, 0.31, 0.16, 0.02):
            for alpha in (0.4, 0.1, 0.01):
                crossed = crossing_in_fractions(q, looks, acceptance(q, alpha, looks))
                assert crossed <= Fraction(alpha), f"q={q}, alpha={alpha}, looks={looks}: accepts too often"
    for z in DEPTHS[::2]:
        for alpha in ALPHAS:
            q = float(ndtr(-z))
            crossed = crossing_by_draws(q, LOOKS, acceptance(q, alpha, LOOKS))
            assert crossed <= alpha, f"z={z}, alpha={alpha}: accepts too often, {crossed / alpha} of alpha"
    # Levels set so that the next failure would cost one part in two million more than there is.
    for k, n in ((0, 5), (3, 30), (40, 100), (450, 1000)):
        level = float(binomial_tail(k, n, 0.5)) * (1 - 5e-7)
        if level < 0.5:
            assert acceptance(0.5, level, (n,))[0] < k, f"k={k}, n={n}: accepts too often, by a rounding"


def check_boundary_is_tight(acceptance):
    """At least 0.9 alpha is used where single counts have little probability."""
    for z in (0.0, 0.5, 1.0, 1.5):
        q = float(ndtr(-z))
        crossed = crossing_by_draws(q, LOOKS, acceptance(q, 0.05, LOOKS))
        assert crossed >= 0.9 * 0.05, f"z={z}: wasteful, only {crossed / 0.05:.3f} of alpha"


def test_small_and_middling_boundaries_accept_with_probability_at_most_alpha():
    check_boundary_is_sound(exact_acceptance)
    check_boundary_is_tight(exact_acceptance)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_middling_boundary_is_sound_for_all_weights(alpha):
    for z in DEPTHS:
        for weight in (0, *WEIGHTS):
            q = failure_probability(depth_tested(z), weight) * (1 - 1e-12)
            accept = exact_acceptance(q, alpha, LOOKS)
            crossed = crossing_by_draws(q, LOOKS, accept)
            assert crossed <= alpha
            # Relative to alpha: the library adds what its cut-off ends could add.
            assert crossing_probability(q, LOOKS, accept) == pytest.approx(crossed, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("z", DEPTHS)
def test_the_real_schedule_is_sound_at_every_depth_and_weight(z):
    for weight in (0, *WEIGHTS):
        for alpha in (0.001, 1e-12) if weight in (0, 4) else (0.0005,):
            q = failure_probability(depth_tested(z), weight) * (1 - 1e-12)
            accept = exact_acceptance(q, alpha, REAL_LOOKS)
            crossed = crossing_backwards(q, REAL_LOOKS, accept)
            assert crossed <= alpha, f"weight={weight}: {crossed / alpha} of alpha"
            assert crossing_probability(q, REAL_LOOKS, accept) == pytest.approx(crossed, rel=1e-9, abs=2e-16)
            if z <= 2:
                assert crossed >= 0.9 * alpha
            elif max(accept) >= 20:
                assert crossed >= 0.8 * alpha


def test_failures_more_probable_than_q_are_accepted_less():
    for z in DEPTHS:
        q = float(ndtr(-z))
        accept = exact_acceptance(q, 0.05, LOOKS)
        chances = [crossing_by_draws(min(q * more, 1 - 1e-9), LOOKS, accept) for more in (1, 1.001, 1.01, 1.1, 1.5)]
        assert all(a >= b for a, b in itertools.pairwise(chances))


def test_by_each_look_no_more_is_spent_than_its_share():
    for z in (0.0, 1.0, 2.0):
        q = float(ndtr(-z))
        accept = exact_acceptance(q, 0.01, LOOKS)
        for i, n in enumerate(LOOKS):
            spent = crossing_by_draws(q, LOOKS[: i + 1], accept[: i + 1])
            assert spent <= 0.01 * (n / LOOKS[-1]) ** SPENDING_POWER


def test_a_depth_that_can_be_reached_without_failures_is_not_given_up_before():
    """With no failures at all, some look accepts; a path without failures must be let through to it."""
    for z in (3.0, 3.25, 3.5, 3.75):
        for weight in (0, *WEIGHTS):
            q = failure_probability(depth_tested(z), weight)
            test = new_boundary(q, 0.001, REAL_LOOKS, 1e7)
            reached = [i for i, limit in enumerate(test.accept) if limit >= 0]
            if reached:
                assert all(g > 0 for g in test.give_up[: reached[0]]), f"z={z}, weight={weight}: given up at once"


# ---- giving up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_giving_up_never_stops_what_is_accepted_and_cannot_add_claims(alpha):
    for z in DEPTHS:
        q = float(ndtr(-z))
        for patience in (1e2, 1e4, 1e6):
            test = new_boundary(q, alpha, LOOKS, patience)
            assert test.looks == LOOKS
            assert len(test.accept) == len(test.give_up) == len(LOOKS)
            assert all(a < g for a, g in zip(test.accept, test.give_up, strict=True))
            assert test.give_up[-1] == test.accept[-1] + 1, "the last look decides"
            with_giving_up = crossing_by_draws(q, LOOKS, test.accept, test.give_up)
            assert with_giving_up <= crossing_by_draws(q, LOOKS, test.accept) * (1 + 1e-12)


def test_more_patience_gives_up_later():
    for z in DEPTHS:
        q = float(ndtr(-z))
        accept = exact_acceptance(q, 0.01, LOOKS)
        rows = np.array([give_up_counts(LOOKS, accept, patience) for patience in (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)])
        assert (np.diff(rows, axis=0) >= 0).all()


def test_with_much_patience_little_is_lost():
    for z in (0.0, 0.5, 1.0, 2.0):
        q = float(ndtr(-z))
        test = new_boundary(q, 0.01, LOOKS, 1e7)
        better = q * 0.7
        full = crossing_by_draws(better, LOOKS, test.accept)
        assert crossing_by_draws(better, LOOKS, test.accept, test.give_up) >= 0.99 * full


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_failure_probability_outside_0_and_1_is_refused(q):
    with pytest.raises(ConfigError, match="failure probability"):
        new_boundary(q, 0.01, LOOKS, 1e6)


@pytest.mark.parametrize("patience", [0.0, -1.0, math.nan])
def test_no_patience_is_refused(patience):
    with pytest.raises(ConfigError, match="`patience`"):
        new_boundary(0.3, 0.01, LOOKS, patience)


@pytest.mark.parametrize("alpha", [0.0, 0.5, math.nan, -1.0])
def test_a_level_outside_0_and_a_half_is_refused(alpha):
    with pytest.raises(ConfigError, match="`alpha`"):
        new_boundary(0.3, alpha, LOOKS, 1e6)


# ---- mutants -------------------------------------------------------------------------------------------------------


def peeking(q, alpha, looks):
    """Full alpha at every look."""
    k = np.arange(-1, looks[-1] + 1)
    return tuple(int(k[np.searchsorted(binom.cdf(k, n, q), alpha, side="right") - 1]) for n in looks)


def copied(q, alpha, looks, *, cumulative=True, drop=True, power=SPENDING_POWER):
    """The search for a boundary over full binomial laws, with lines to be broken."""
    law, spent, done, accept = np.ones(1), 0.0, 0, []
    for n in looks:
        law, done = np.convolve(law, binom.pmf(np.arange(n - done + 1), n - done, q)), n
        budget = alpha * (n / looks[-1]) ** power * (1 - 1e-6) - spent
        mass = np.cumsum(law)
        reached = int(np.searchsorted(mass, budget, side="right"))
        accept.append(reached - 1)
        if cumulative and reached:
            spent += float(mass[reached - 1])
        if drop:
            law[:reached] = 0
    return tuple(accept)


MUTANTS = {
    "full alpha at every look": peeking,
    "what is spent is forgotten": lambda q, alpha, looks: copied(q, alpha, looks, cumulative=False),
    "all of alpha at the first look and again later": lambda q, alpha, looks: copied(
        q, alpha, looks, cumulative=False, power=0
    ),
    "one failure more": lambda q, alpha, looks: tuple(a + 1 for a in exact_acceptance(q, alpha, looks)),
    "one failure more at the last look": lambda q, alpha, looks: (
        *exact_acceptance(q, alpha, looks)[:-1],
        exact_acceptance(q, alpha, looks)[-1] + 1,
    ),
    "q a hundredth too large": lambda q, alpha, looks: exact_acceptance(1.01 * q, alpha, looks),
    "alpha a hundredth too large": lambda q, alpha, looks: exact_acceptance(q, 1.01 * alpha, looks),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_boundary_that_accepts_too_often_is_caught(mutant):
    with pytest.raises(AssertionError, match="accepts too often"):
        check_boundary_is_sound(mutant)


def test_a_margin_of_the_wrong_sign_is_caught(monkeypatch):
    monkeypatch.setattr(boundaries, "_MARGIN", -boundaries._MARGIN)
    with pytest.raises(AssertionError, match="by a rounding"):
        check_boundary_is_sound(exact_acceptance)


def test_an_unbroken_copy_passes():
    check_boundary_is_sound(copied)
    check_boundary_is_tight(copied)


WASTEFUL = {
    "q a tenth too small": lambda q, alpha, looks: exact_acceptance(0.9 * q, alpha, looks),
    "accepted paths counted again": lambda q, alpha, looks: copied(q, alpha, looks, drop=False),
    "alpha shared among the looks": lambda q, alpha, looks: peeking(q, alpha / len(looks), looks),
}


@pytest.mark.parametrize("mutant", WASTEFUL.values(), ids=WASTEFUL.keys())
def test_a_boundary_that_gives_alpha_away_is_caught(mutant):
    check_boundary_is_sound(mutant)
    with pytest.raises(AssertionError, match="wasteful"):
        check_boundary_is_tight(mutant)

"""Procedures with a margin: the lead that they claim within a radius is there, and it keeps PREDICT from abstaining."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy
from scipy.stats import binom, norm

from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Votes
from smoothcert.stats.bounds import binomial_p_value
from smoothcert.stats.grid import Grid, tested_depth
from smoothcert.stats.planned import PILOTS, Planned
from smoothcert.stats.procedures import FixedN, Predict, question, run
from smoothcert.stats.radii import margin_radius
from soundness import Outcomes, check_rate, compositions, critical, simulate

tested_depth.__test__ = False  # a function to be tested, not a test
pytestmark = pytest.mark.usefixtures("own_cache")

MARGIN = 0.2


def lead(p, label, depth):
    """By how much the class leads the strongest rival at this distance over σ, in the worst case."""
    rival = np.delete(p, label).max()
    return norm.cdf(norm.ppf(p[label]) - depth) - norm.cdf(norm.ppf(rival) + depth)


def is_false(bounds, p, margin):
    """Whether something is claimed, and the worst case has less than the margin at the claimed radius."""
    if bounds.label is None or not bounds.separation:
        return False
    return lead(p, bounds.label, bounds.separation) < margin - 1e-12


# ---- the paper's procedure, exactly -------------------------------------------------------------------------------


def check_lead_is_sound(make, margin):
    """`make(n, n0, alpha)` claims a lead of `margin` within a radius falsely with probability at most α: exactly."""
    alpha = 0.1
    outcomes = Outcomes(make(n=24, n0=6, alpha=alpha), 2)
    failures = [critical(k, 24, alpha) for k in range(24)]
    cases = [(1 - q, q) for q in (*failures, 0.5, 0.4, (1 - margin) / 2, (1 - margin) / 2 + 1e-6) if q < 1]
    _judge(outcomes, cases, margin, alpha)

    outcomes = Outcomes(make(n=12, n0=2, alpha=0.2), 4)
    cases = [(0.25,) * 4, (0.4, 0.3, 0.2, 0.1), (0.5, 0.3, 0.1, 0.1), (0.9, 0.1, 0.0, 0.0)]
    for k_a, k_b in [(1, 0), (2, 1), (4, 0), (4, 2), (6, 1)]:
        q_a, p_b = critical(k_a, 12, 0.1), critical(k_b, 12, 0.1)
        if p_b < q_a < 1:
            cases.append((1 - q_a, p_b, (q_a - p_b) / 2, (q_a - p_b) / 2))
    _judge(outcomes, cases, margin, 0.2)


def _judge(outcomes, cases, margin, alpha):
    for p in cases:
        false = np.array([is_false(bounds, p, margin) for bounds in outcomes.conclusions])
        missed = outcomes.probability(p, false)
        assert missed <= alpha, f"p={p}: the lead is false with probability {missed:.5f} > {alpha}"


@pytest.mark.parametrize("runner_up", [False, True])
@pytest.mark.parametrize("margin", [0.05, MARGIN, 0.5])
def test_certify_claims_false_leads_with_probability_at_most_alpha(margin, runner_up):
    check_lead_is_sound(lambda **settings: FixedN(margin=margin, runner_up=runner_up, **settings), margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDepth(FixedN):
    """CERTIFY with the depth of another claim."""

    kind: str = "ignored"

    def depth(self, bounds):
        """The radius over σ that is claimed."""
        other = {"ignored": 0.0, "half": self.margin / 2, "sign flipped": 0.0}[self.kind]
        depth = margin_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=1.0, margin=other)
        if self.kind == "sign flipped" and depth > 0:
            return depth + norm.ppf((1 + self.margin) / 2)
        return depth

    def __call__(self):
        bounds = yield from FixedN(n=self.n, n0=self.n0, alpha=self.alpha, runner_up=self.runner_up)()
        return bounds if bounds.label is None else replace(bounds, separation=self.depth(bounds))


@pytest.mark.parametrize("runner_up", [False, True])
@pytest.mark.parametrize("kind", ["ignored", "half", "sign flipped"])
def test_a_wrong_margin_is_caught(kind, runner_up):
    def make(**settings):
        return OtherDepth(kind=kind, margin=0.5, runner_up=runner_up, **settings)

    with pytest.raises(AssertionError, match="the lead is false"):
        check_lead_is_sound(make, 0.5)


# ---- all procedures as users get them -----------------------------------------------------------------------------


def edge(depth, p_b, margin, others):
    """Class, rival and a rest in equal parts, with a lead of just the margin at this depth."""
    p_a = float(norm.cdf(depth + norm.ppf(margin + norm.cdf(norm.ppf(p_b) + depth))))
    return (p_a, p_b, *[(1 - p_a - p_b) / others] * others)


CASES = {
    "one-sided": (0.88, 0.12),  # leads by the margin up to depth 0.92, and up to 1.17 at all
    "near the margin": (0.61, 0.39),
    "below the margin": (0.59, 0.41),
    "with a rest": edge(0.48, 0.06, MARGIN, 8),
}
PROCEDURES = {
    "paper": (FixedN(margin=MARGIN), 2000),
    "planned": (Planned(margin=MARGIN), 250),
    "grid": (Grid(radii=(0.0, 0.125, 0.25, 0.375), sigma=0.25, margin=MARGIN), 800),
}


@pytest.mark.parametrize("p", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("procedure", "repeats"), PROCEDURES.values(), ids=PROCEDURES)
def test_with_default_settings_leads_are_false_no_more_often_than_alpha(procedure, repeats, p):
    found = simulate(procedure, p, repeats, seed=9)
    check_rate(sum(is_false(bounds, p, MARGIN) for bounds in found), repeats, procedure.alpha)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("paper", "one-sided"),
        ("planned", "one-sided"),
        ("planned", "with a rest"),
        ("grid", "one-sided"),
        ("grid", "with a rest"),
    ],
)
def test_without_its_margin_the_same_check_fails(name, case):
    procedure, p = replace(PROCEDURES[name][0], margin=0.0), CASES[case]
    found = simulate(procedure, p, 50, seed=9)
    depths = [bounds.separation or margin_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=1.0) for bounds in found]
    claims = [replace(bounds, separation=depth) for bounds, depth in zip(found, depths, strict=True)]
    with pytest.raises(AssertionError, match="claims are false"):
        check_rate(sum(is_false(bounds, p, MARGIN) for bounds in claims), 50, procedure.alpha)


@pytest.mark.parametrize("name", PROCEDURES)
def test_a_clear_lead_is_certified_nearly_as_far_as_it_lasts(name):
    p = (0.97, 0.02, 0.01)
    depth = brentq(lambda z: lead(p, 0, z) - MARGIN, 0, 5)
    for bounds in simulate(PROCEDURES[name][0], p, 20, seed=4):
        assert bounds.label == 0
        assert 0.8 * depth < bounds.separation < depth


def test_the_bounds_are_those_without_a_margin():
    votes = (Votes((90, 10, 0)), Votes((9_000, 600, 400)))
    for runner_up in (False, True):
        settings = {"n": 10_000, "n0": 100, "runner_up": runner_up}
        plain, _ = run(FixedN(**settings), lambda stage, _: votes[stage])
        found, _ = run(FixedN(**settings, margin=0.1), lambda stage, _: votes[stage])
        assert replace(found, separation=None) == plain
        assert found.separation == margin_radius(plain.q_a_upper, plain.p_b_upper, sigma=1.0, margin=0.1)


def test_the_grid_claims_a_radius_as_tested():
    found, _ = run(Grid(radii=(0.0, 0.5), sigma=0.5, margin=0.1), lambda _, n: Votes((n, 0)))
    assert found == Bounds(0, separation=tested_depth(1.0), reason="claimed")


def test_plans_are_made_for_the_radius_with_its_margin():
    """An input that leads by less than the margin is given up after the pilots, where one without margin is not."""

    def draw(_, n):
        return Votes((n * 56 // 100, n - n * 56 // 100))

    _, plain = run(Planned(), draw)
    found, stages = run(Planned(margin=0.3), draw)
    assert len(plain) == 3
    assert (found.label, found.reason) == (None, "futile")
    assert [votes.n for votes in stages] == list(PILOTS[: len(stages)])


# ---- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [FixedN, Planned, lambda **s: Grid(radii=(0.5,), sigma=0.5, **s)])
def test_a_margin_names_its_own_stream_and_none_is_the_one_of_old(make):
    assert question(make(margin=0)) == question(make(margin=0.0)) == question(make())
    assert "margin" not in question(make())
    assert len({question(make(margin=margin)) for margin in (0.0, 0.1, 0.2)}) == 3
    for margin in (-0.1, 1.0, math.nan, True, "0.1", None):
        with pytest.raises(ConfigError, match="margin"):
            make(margin=margin)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("runner_up", [False, True])
def test_the_fewest_draws_are_just_enough_for_a_unanimous_vote(margin, runner_up):
    with pytest.raises(ConfigError, match="need n>=") as refused:
        FixedN(n=2, margin=margin, runner_up=runner_up)
    assert ("margin" in str(refused.value)) == (margin > 0)
    least = int(str(refused.value).split(">=")[1].rstrip("."))
    with pytest.raises(ConfigError, match="can never certify"):
        FixedN(n=least - 1, margin=margin, runner_up=runner_up)
    found, _ = run(FixedN(n=least, margin=margin, runner_up=runner_up), lambda _, n: Votes((n, 0)))
    assert margin_radius(found.q_a_upper, found.p_b_upper, sigma=1.0, margin=margin) > 0


# ---- what it is for: PREDICT does not abstain ---------------------------------------------------------------------


def abstention(n, alpha, p_a):
    """How often PREDICT abstains or errs with two classes: the binomial law summed up."""
    counts = np.arange(n + 1)
    answered = np.array([2 * k > n and binomial_p_value(int(k), n) <= alpha for k in counts])
    return float(binom.pmf(counts[~answered], n, p_a).sum())


@pytest.mark.parametrize(("margin", "at_most"), [(0.0, 1.0), (0.1, 0.6), (0.2, 0.0015), (0.3, 1e-9)])
def test_predict_answers_at_the_worst_point_within_the_radius(margin, at_most):
    """PREDICT with its default settings at the edge of the ball around a two-class worst case."""
    n, alpha = Predict().n, Predict().alpha
    bounds, _ = run(FixedN(margin=margin), lambda _, n: Votes((n * 95 // 100, n - n * 95 // 100)))
    depth = bounds.separation or margin_radius(bounds.q_a_upper, sigma=1.0)
    p_a = float(norm.cdf(norm.isf(bounds.q_a_upper) - depth))  # if the bound were the truth
    assert p_a == pytest.approx((1 + margin) / 2, abs=1e-9)
    promised = abstention(n, alpha, (1 + margin) / 2)
    assert abstention(n, alpha, p_a) <= promised * (1 + 1e-6) <= at_most
    assert margin > 0 or promised > 0.998  # without a margin, an adversary makes it abstain nearly always
    abstained = sum(decision.label != 0 for decision in simulate(Predict(), (p_a, 1 - p_a), 2000, seed=3))
    check_rate(abstained, 2000, promised)


def test_two_classes_are_the_worst_case_of_a_lead():
    """With the same lead over every rival, PREDICT abstains less often where there are more classes: exactly."""
    n, alpha, margin = 60, 0.05, 0.4
    worst = abstention(n, alpha, (1 + margin) / 2)
    ways = np.array(list(compositions(n, 3)))
    log_ways = gammaln(n + 1) - gammaln(ways + 1).sum(axis=1)
    first, rival = ways[:, 0], ways[:, 1:].max(axis=1)
    answered = np.array(
        [a > b and binomial_p_value(int(a), int(a + b)) <= alpha for a, b in zip(first, rival, strict=True)]
    )
    for p_b in np.linspace(0.0, (1 - margin) / 2, 13):
        for p_c in np.linspace(0.0, p_b, 5):
            p_a = 1 - p_b - p_c
            if p_a - p_b >= margin:
                chance = np.exp(log_ways + xlogy(ways, np.array([p_a, p_b, p_c])).sum(axis=1))
                assert chance[~answered].sum() <= worst * (1 + 1e-9)

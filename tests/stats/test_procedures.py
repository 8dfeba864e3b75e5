import math
from dataclasses import FrozenInstanceError
from functools import partial

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm

from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Votes
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.procedures import FixedN, Predict, describe, run
from smoothcert.stats.radii import cohen_radius
from smoothcert.worst_cases import LinearClassifier
from soundness import (
    check_certify_by_simulation,
    check_certify_is_sound,
    check_predict_by_simulation,
    check_predict_is_sound,
    check_rate,
)

BOTH = [pytest.param(FixedN, id="one-sided"), pytest.param(partial(FixedN, runner_up=True), id="runner-up")]


def replay(*stages):
    """A source of votes that hands out these, and notes how many were asked for."""
    asked = []

    def draw(stage, n):
        asked.append(n)
        return stages[stage]

    draw.asked = asked
    return draw


def exact_upper(k, n, alpha):
    return beta.isf(alpha, k + 1, n - k)


# ---- FixedN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", BOTH)
def test_certify_asks_for_selection_draws_and_then_for_fresh_ones(make):
    draw = replay(Votes((30, 10)), Votes((900, 100)))
    bounds, stages = run(make(n=1000, n0=40), draw)
    assert draw.asked == [40, 1000]
    assert stages == (Votes((30, 10)), Votes((900, 100)))
    assert bounds.label == 0


@pytest.mark.parametrize("make", BOTH)
def test_the_class_comes_from_the_first_stage_alone(make):
    bounds, _ = run(make(n=1000, n0=40), replay(Votes((19, 21, 0)), Votes((1000, 0, 0))))
    assert bounds.label == 1
    assert bounds.q_a_upper == 1.0, "the second stage gave this class no vote"


@pytest.mark.parametrize("make", BOTH)
def test_the_votes_of_the_first_stage_do_not_enter_the_bounds(make):
    second = Votes((900, 60, 40))
    narrow, _ = run(make(n=1000, n0=40), replay(Votes((21, 19, 0)), second))
    wide, _ = run(make(n=1000, n0=40), replay(Votes((40, 0, 0)), second))
    assert narrow == wide


def test_the_one_sided_bound_is_clopper_pearson_at_full_alpha():
    bounds, _ = run(FixedN(n=1000, n0=10, alpha=0.01), replay(Votes((10, 0, 0)), Votes((900, 60, 30), invalid=10)))
    assert bounds.q_a_upper == pytest.approx(exact_upper(100, 1000, 0.01), rel=1e-8)
    assert bounds.p_b_upper == bounds.q_a_upper


def test_with_the_runner_up_alpha_is_halved_between_the_two_bounds():
    bounds, _ = run(
        FixedN(n=1000, n0=10, alpha=0.01, runner_up=True), replay(Votes((10, 0, 0)), Votes((900, 60, 30), invalid=10))
    )
    assert bounds.q_a_upper == pytest.approx(exact_upper(100, 1000, 0.005), rel=1e-8)
    assert bounds.p_b_upper == pytest.approx(exact_upper(60, 1000, 0.005), rel=1e-8)


def test_the_rival_never_gets_more_than_the_class_leaves_over():
    bounds, _ = run(FixedN(n=100, n0=10, runner_up=True), replay(Votes((10, 0)), Votes((97, 3))))
    assert bounds.p_b_upper == bounds.q_a_upper
    # Two shares of 3 and 96 votes: the rival's own bound would be far above what A's bound leaves.
    bounds, _ = run(FixedN(n=100, n0=10, runner_up=True), replay(Votes((10, 0, 0)), Votes((4, 96, 0))))
    assert bounds.p_b_upper <= bounds.q_a_upper


def test_draws_without_an_answer_count_against_the_class_and_as_a_rival():
    bounds, _ = run(FixedN(n=1000, n0=10, runner_up=True), replay(Votes((10, 0, 0)), Votes((700, 20, 10), invalid=270)))
    assert bounds.q_a_upper == pytest.approx(exact_upper(300, 1000, 0.0005), rel=1e-8)
    assert bounds.p_b_upper == pytest.approx(exact_upper(270, 1000, 0.0005), rel=1e-8)


@pytest.mark.parametrize("make", BOTH)
def test_without_a_single_valid_vote_nothing_more_is_asked_and_nothing_claimed(make):
    draw = replay(Votes((0, 0), invalid=40))
    bounds, stages = run(make(n=1000, n0=40), draw)
    assert draw.asked == [40]
    assert len(stages) == 1
    assert bounds == Bounds(None)
    assert cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=1.0) == 0.0


def test_a_tie_in_the_selection_takes_the_lowest_class():
    bounds, _ = run(FixedN(n=100, n0=10), replay(Votes((0, 5, 5)), Votes((0, 90, 10))))
    assert bounds.label == 1


@pytest.mark.parametrize("given", [Votes((9, 0)), Votes((11, 0)), Votes((9, 0), invalid=2)])
def test_a_source_that_gives_another_number_of_votes_is_an_error(given):
    with pytest.raises(ValueError, match="asked for 10 draws"):
        run(FixedN(n=100, n0=10), replay(given))


def test_settings_are_frozen_and_recorded():
    common = {"n": 100_000, "n0": 100, "alpha": 0.001, "runner_up": False, "margin": 0.0}
    assert describe(FixedN()) == {"name": "FixedN", **common}
    assert describe(Predict(n=200)) == {"name": "Predict", "n": 200, "alpha": 0.001}
    with pytest.raises(FrozenInstanceError):
        FixedN().alpha = 0.5


@pytest.mark.parametrize("make", [*BOTH, Predict])
@pytest.mark.parametrize("n", [0, -1, 2.5, 1000.0, 2**60, 2**53 + 1, True, None, "1000", math.nan])
def test_a_number_of_draws_that_is_none_is_refused(make, n):
    with pytest.raises(ConfigError, match="`n`"):
        make(n=n)


@pytest.mark.parametrize("n0", [0, -1, 2.5, 2**60, True, None])
def test_a_number_of_selection_draws_that_is_none_is_refused(n0):
    with pytest.raises(ConfigError, match="`n0`"):
        FixedN(n0=n0)


@pytest.mark.parametrize("make", [*BOTH, Predict])
@pytest.mark.parametrize("alpha", [0, -0.1, 0.5, 1, math.nan, math.inf, "abc", None, True])
def test_a_level_that_no_guarantee_can_be_stated_for_is_refused(make, alpha):
    with pytest.raises(ConfigError, match="alpha"):
        make(alpha=alpha)


def test_too_few_draws_for_any_certificate_are_refused_with_the_number_needed():
    with pytest.raises(ConfigError, match=r"n=5 can never certify at alpha=0.001; need n>=10"):
        FixedN(n=5, alpha=0.001)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("alpha", [0.4, 0.25, 0.125, 0.1, 0.05, 0.001, 2**-10, 1e-12, 1e-300])
def test_the_number_said_to_be_needed_is_enough_and_one_less_is_not(make, alpha):
    def certifies(n):
        bounds, _ = run(make(n=n, n0=1, alpha=alpha), replay(Votes((1, 0)), Votes((n, 0))))
        return cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=1.0) > 0

    accepted = []
    for n in range(1, 1100):
        try:
            make(n=n, n0=1, alpha=alpha)
        except ConfigError as error:
            needed = int(str(error).split(">=")[1].rstrip("."))
            assert needed > n
        else:
            accepted.append(n)
    least = accepted[0]
    assert accepted == list(range(least, 1100))
    assert certifies(least)
    if least > 1:
        assert needed == least
        # By the theorem itself: all n votes for one class leave q = 1 − α^(1/n), which must be below a half.
        share = alpha if make is FixedN else alpha / 2
        assert -math.expm1(math.log(share) / (least - 1)) >= 0.5 * (1 - 1e-12)


# ---- Predict -----------------------------------------------------------------------------------------------------


def predicted(counts, invalid=0, alpha=0.001):
    votes = Votes(tuple(counts), invalid)
    draw = replay(votes)
    decision, stages = run(Predict(n=votes.n, alpha=alpha), draw)
    assert draw.asked == [votes.n]
    assert stages == (votes,)
    return decision


@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_predict_is_the_two_sided_binomial_test_of_the_two_largest(alpha):
    rng = np.random.default_rng(3)
    answers = set()
    for _ in range(300):
        counts = rng.multinomial(100, rng.dirichlet([1, 1, 1]))
        second, first = np.sort(counts)[-2:]
        p_value = binomtest(int(first), int(first + second), 0.5).pvalue
        decision = predicted(counts.tolist(), alpha=alpha)
        assert decision.p_value == pytest.approx(p_value, rel=1e-8)
        assert decision.label == (int(np.argmax(counts)) if p_value <= alpha else None)
        answers.add(decision.label)
    assert answers == {None, 0, 1, 2}


def test_predict_abstains_on_a_tie():
    assert predicted([50, 50]).label is None
    assert predicted([40, 20, 40]).p_value == 1.0
    assert predicted([0, 0], invalid=30).label is None


def test_predict_counts_no_answer_as_a_class_that_it_never_returns():
    assert predicted([100, 0], invalid=900).label is None
    assert predicted([480, 0], invalid=520).label is None
    assert predicted([900, 0], invalid=100).label == 0
    assert predicted([500, 20], invalid=480).label is None, "beats class 1 by far, but not the draws without an answer"


def test_too_few_draws_for_any_prediction_are_refused_with_the_number_needed():
    for alpha in (0.4, 0.25, 0.1, 0.001, 2**-10, 1e-12):
        least = next(n for n in range(1, 100) if 2.0 ** (1 - n) <= alpha)
        assert run(Predict(n=least, alpha=alpha), replay(Votes((least, 0))))[0].p_value <= alpha * (1 + 1e-8)
        if least > 1:
            with pytest.raises(ConfigError, match=f"need n>={least}"):
                Predict(n=least - 1, alpha=alpha)


# ---- coverage ----------------------------------------------------------------------------------------------------


def test_certify_is_false_with_probability_at_most_alpha_by_exact_enumeration():
    check_certify_is_sound(FixedN)


def test_certify_with_the_runner_up_is_false_with_probability_at_most_alpha_by_exact_enumeration():
    check_certify_is_sound(partial(FixedN, runner_up=True), runner_up=True)


def test_predict_is_false_with_probability_at_most_alpha_by_exact_enumeration():
    check_predict_is_sound(Predict)


TIES = [
    pytest.param([1 / 2] * 2, id="2 classes"),
    pytest.param([1 / 3] * 3, id="3 classes"),
    pytest.param([1 / 10] * 10, id="10 classes"),
    pytest.param([0.501, 0.499], id="near tie of 2"),
    pytest.param([0.335, 0.3325, 0.3325], id="near tie of 3"),
    pytest.param([0.46, 0.45, *[0.01] * 9], id="near tie above a rest"),
    pytest.param([0.95, 0.04, 0.01], id="clear lead"),
]


@pytest.mark.parametrize("p", TIES)
@pytest.mark.parametrize("make", BOTH)
def test_simulated_certificates_are_false_no_more_often_than_alpha(make, p):
    check_certify_by_simulation(make, p)


@pytest.mark.parametrize("p", TIES)
def test_simulated_predictions_are_false_no_more_often_than_alpha(p):
    check_predict_by_simulation(Predict, p)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001])
@pytest.mark.parametrize("spread", [0.02, 1.0], ids=["near the boundary", "everywhere"])
def test_linear_classifiers_in_3072_dimensions_are_never_certified_beyond_their_boundary(alpha, spread):
    """Smoothing leaves a linear classifier as it is, so the distance to its boundary is the exact radius and any
    larger certificate is false. Together 120,000 certificates."""
    n, n0, sigma, images = 1000, 20, 0.5, 400
    rng = np.random.default_rng([int(1000 * alpha), int(100 * spread)])
    classifiers = [LinearClassifier(rng.standard_normal(3072), 0.0) for _ in range(images)]
    labels, exact, chance = [], [], []
    for classifier in classifiers:
        x = rng.uniform(0, 1, 3072)
        x -= classifier.weights * (x @ classifier.weights) / classifier.norm**2  # onto the boundary, then off it again
        x += classifier.weights / classifier.norm * rng.normal(0, spread * sigma)
        labels.append(classifier.label(x))
        exact.append(classifier.exact_radius(x))
        chance.append(classifier.vote_probability(x, sigma))
    repeats = 50
    labels, exact, chance = (np.repeat(v, repeats) for v in (labels, exact, chance))
    selection, votes = rng.binomial(n0, chance), rng.binomial(n, chance)
    chosen = np.where(2 * selection > n0, 1, 0)
    failures = np.where(chosen == 1, n - votes, votes)
    radius = cohen_radius(clopper_pearson_upper(failures, n, alpha), sigma=sigma)
    claimed = radius > 0
    false = claimed & ((chosen != labels) | (radius > exact))
    assert claimed.sum() > 0.05 * len(claimed) or spread < 1
    check_rate(int(false.sum()), len(false), alpha)
    if alpha >= 0.01:
        assert false.any(), "a test in which nothing is ever false would not notice a bound that is a little too good"

    procedure = FixedN(n=n, n0=n0, alpha=alpha)
    for i in range(0, len(chosen), len(chosen) // 200):
        stages = Votes.of([n0 - selection[i], selection[i]]), Votes.of([n - votes[i], votes[i]])
        bounds, _ = run(procedure, replay(*stages))
        assert bounds.label == chosen[i]
        assert cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=sigma) == radius[i]


def test_the_exact_radius_of_a_linear_classifier_is_theorem_1_of_its_vote_probability():
    """The oracle of the test above is judged too: the probability and the distance belong together."""
    classifier = LinearClassifier([3.0, 4.0], -1.0)
    x = np.array([1.0, 2.0])
    assert classifier.exact_radius(x) == pytest.approx(2.0)
    assert classifier.vote_probability(x, 0.5) == pytest.approx(norm.cdf(4.0))
    assert classifier.label(x) == 1
    assert classifier.label(-x) == 0

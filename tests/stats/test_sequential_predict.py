"""SequentialPredict: the levels of its looks, and its exact and simulated error probability."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import gammaln, xlogy
from scipy.stats import binomtest

from smoothcert.errors import ConfigError
from smoothcert.records import Votes
from smoothcert.stats.bounds import binomial_p_value
from smoothcert.stats.procedures import SequentialPredict, run
from soundness import compositions


@dataclass(frozen=True)
class FullAlphaAtEachLook(SequentialPredict):
    def level(self, look):
        return self.alpha


def decisions_at(procedure, look, counts):
    """What the procedure itself concludes from these totals at this look: a class, "futile", or None to go on.

    It is given the totals of all draws at once, by asking only for this look.
    """
    votes = Votes(counts)
    leader = votes.leader
    first, second = votes.counts[leader], votes.rival(leader)
    if first > second and binomial_p_value(first, first + second) <= procedure.level(look):
        return leader
    if look + 1 < len(procedure.looks) and procedure._hopeless(votes, look):
        return "futile"
    return None


def error_probability(procedure, p):
    """The exact probability that a class other than the most probable one is returned, look by look."""
    p, best, done, wrong = np.asarray(p, float), int(np.argmax(p)), 0, 0.0
    law = {(0,) * len(p): 1.0}
    for look, n in enumerate(procedure.looks):
        steps = np.array(list(compositions(n - done, len(p))))
        chance = np.exp(gammaln(n - done + 1) - gammaln(steps + 1).sum(axis=1) + xlogy(steps, p).sum(axis=1))
        # Carry the law as an array over all but the last class.
        shape = (n + 1,) * (len(p) - 1)
        moved = np.zeros(shape)
        old = np.zeros(shape)
        for counts, weight in law.items():
            old[counts[:-1]] = weight
        for step, weight in zip(steps.tolist(), chance.tolist(), strict=True):
            here = tuple(slice(s, None) for s in step[:-1])
            there = tuple(slice(None, n + 1 - s) for s in step[:-1])
            moved[here] += weight * old[there]
        law, done = {}, n
        for counts in zip(*np.nonzero(moved), strict=True):
            full = (*map(int, counts), n - int(sum(counts)))
            verdict = decisions_at(procedure, look, full)
            if verdict is None:
                law[full] = float(moved[counts])
            elif verdict not in ("futile", best):
                wrong += float(moved[counts])
    return wrong


def check_sequential_predict_is_sound(make, n_max=60, alphas=(0.4, 0.2, 0.05), patience=1e12):
    """`make(n_max, alpha, patience)` returns a wrong class with probability at most alpha: exactly."""
    tie = 1e-9
    for alpha in alphas:
        procedure = make(n_max=n_max, alpha=alpha, patience=patience)
        for p in ((0.5 - tie, 0.5 + tie), (0.5 + tie, 0.5 - tie), (0.45, 0.55)):
            wrong = error_probability(procedure, p)
            assert wrong <= alpha, f"p={p}: the wrong class with probability {wrong:.5f} > {alpha}"


def test_two_classes_are_confused_with_probability_at_most_alpha():
    check_sequential_predict_is_sound(SequentialPredict)
    check_sequential_predict_is_sound(SequentialPredict, n_max=200)
    check_sequential_predict_is_sound(SequentialPredict, patience=3e2)


@pytest.mark.parametrize("alpha", [0.4, 0.05])
def test_three_classes_are_confused_with_probability_at_most_alpha(alpha):
    procedure = SequentialPredict(n_max=60, alpha=alpha, patience=1e12)
    third = 1 / 3
    for p in ((third - 1e-9, third, third + 1e-9), (0.45 - 1e-9, 0.45 + 1e-9, 0.1)):
        assert error_probability(procedure, p) <= alpha


@pytest.mark.parametrize("n_max", [60, 200])
def test_full_alpha_at_each_look_is_caught(n_max):
    with pytest.raises(AssertionError, match="with probability"):
        check_sequential_predict_is_sound(FullAlphaAtEachLook, n_max=n_max, alphas=(0.05, 0.1, 0.2))


@pytest.mark.parametrize("n_max", [12, 16, 17, 20, 60, 1000, 10_000, 12_345])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_levels_add_up_to_no_more_than_alpha_and_the_looks_end_at_n_max(n_max, alpha):
    procedure = SequentialPredict(n_max=n_max, alpha=alpha)
    looks = procedure.looks
    assert looks[-1] == n_max
    assert all(a < b for a, b in itertools.pairwise(looks))
    levels = [procedure.level(i) for i in range(len(looks))]
    assert all(level > 0 for level in levels)
    assert math.fsum(levels) <= alpha * (1 + 1e-15)


def test_the_exact_law_follows_the_procedure_itself():
    rng = np.random.default_rng(11)
    for p in ((0.5, 0.5), (0.7, 0.3), (0.4, 0.35, 0.25), (0.97, 0.03)):
        for patience in (1e2, 3e5):
            procedure = SequentialPredict(n_max=200, alpha=0.05, patience=patience)
            for _ in range(40):
                found, stages = run(procedure, lambda _, n, p=p: Votes.of(rng.multinomial(n, p)))
                totals = [tuple(map(int, t)) for t in np.cumsum([v.counts for v in stages], axis=0)]
                verdicts = [decisions_at(procedure, i, t) for i, t in enumerate(totals)]
                assert set(verdicts[:-1]) <= {None}
                expected = {None: (None, "budget"), "futile": (None, "futile")}.get(
                    verdicts[-1], (verdicts[-1], "claimed")
                )
                assert (found.label, found.reason) == expected


@pytest.mark.parametrize("p", [(0.5, 0.5), (1 / 3,) * 3, (0.1,) * 10, (0.3, 0.3, *(0.05,) * 8)], ids=len)
def test_at_a_tie_a_wrong_answer_is_no_more_frequent_than_alpha(p):
    # All tied classes are as right as each other, so the one in the last place of the tie is named the right one.
    rng, procedure, repeats = np.random.default_rng(len(p)), SequentialPredict(n_max=500, alpha=0.05), 1500
    right = int(np.flatnonzero(np.asarray(p) == max(p))[-1])
    answers = [run(procedure, lambda _, n: Votes.of(rng.multinomial(n, p)))[0].label for _ in range(repeats)]
    wrong = sum(a is not None and a != right for a in answers)
    assert binomtest(wrong, repeats, 0.05, alternative="greater").pvalue > 1e-3


def test_a_clear_case_is_claimed_at_the_first_look_that_can():
    # 16 of 16 votes have the p-value 3e-5, a little above the first look's level.
    found, stages = run(SequentialPredict(), lambda _, n: Votes((0, n, 0)))
    assert (found.label, found.reason) == (1, "claimed")
    assert [v.n for v in stages] == [16, 7]


def test_giving_up_and_running_out_claim_nothing():
    found, stages = run(SequentialPredict(patience=1.0), lambda _, n: Votes((n - n // 2, n // 2)))
    assert (found.label, found.reason) == (None, "futile")
    assert sum(v.n for v in stages) < 10_000
    found, stages = run(SequentialPredict(n_max=500, patience=1e300), lambda _, n: Votes((n - n // 2, n // 2)))
    assert (found.label, found.reason) == (None, "budget")
    assert sum(v.n for v in stages) == 500


def test_draws_without_an_answer_are_never_returned():
    found, stages = run(SequentialPredict(n_max=500), lambda _, n: Votes((0, 0), n))
    assert (found.label, found.reason) == (None, "budget")
    assert sum(v.n for v in stages) == 500
    found, _ = run(SequentialPredict(n_max=500), lambda _, n: Votes((1, 0), n - 1))
    assert found.label is None


@pytest.mark.parametrize(
    "settings",
    [
        {"n_max": 0},
        {"n_max": 10.5},
        {"n_max": 5},
        {"n_max": 11, "alpha": 0.001},
        {"alpha": 0.0},
        {"alpha": 0.5},
        {"alpha": math.nan},
        {"patience": 0.0},
        {"patience": -1.0},
        {"patience": math.nan},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        SequentialPredict(**settings)


def test_the_fewest_draws_that_are_allowed_can_answer():
    found, _ = run(SequentialPredict(n_max=12, alpha=0.001), lambda _, n: Votes((n, 0)))
    assert found.label == 0

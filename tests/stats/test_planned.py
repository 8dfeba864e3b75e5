"""Planned: what the pilots settle, and that the bounds rest on the last draws alone."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from smoothcert.errors import ConfigError
from smoothcert.records import Votes
from smoothcert.stats.planned import EFFORTS, PILOTS, Planned
from smoothcert.stats.procedures import fixed_bounds, run


class PilotAdded(Planned):
    """The pilots' votes are counted once more in the bound."""

    __slots__ = ()

    def __call__(self):
        steps, pilots = super().__call__(), []
        wanted = next(steps)
        while True:
            votes = yield wanted
            pilots.append(votes)
            try:
                wanted = steps.send(votes)
            except StopIteration as stop:
                found = stop.value
                break
        if found.label is None:
            return found
        votes = pilots[0] + pilots[1] + pilots[2]
        return fixed_bounds(votes, found.label, self.alpha, runner_up=found.p_b_upper < found.q_a_upper)


def multinomial(p, rng):
    return lambda _, n: Votes.of(rng.multinomial(n, p))


def is_false(found, p):
    """Whether the claimed class has less, or a rival more, than the bounds say."""
    if found.label is None:
        return False
    others = [x for i, x in enumerate(p) if i != found.label]
    return found.q_a_upper < sum(others) or found.p_b_upper < max(others)


def check_bounds_by_simulation(make, p, repeats, seed, alpha=0.05, n_max=500):
    rng = np.random.default_rng(seed)
    procedure = make(n_max=n_max, alpha=alpha, effort=1e-9)
    false = sum(is_false(run(procedure, multinomial(p, rng))[0], p) for _ in range(repeats))
    p_value = binomtest(false, repeats, alpha, alternative="greater").pvalue
    assert p_value > 1e-3, f"p={p}: {false} of {repeats} bounds are false at alpha={alpha}"


CASES = {
    "tie of 2": (0.5, 0.5),
    "tie of 3": (1 / 3,) * 3,
    "tie of 10": (0.1,) * 10,
    "near tie": (0.52, 0.48),
    "clear": (0.8, 0.2),
    "clear with a rest": (0.6, *(0.05,) * 8),
    "rare failures": (0.99, 0.01),
    "near tie with a rest": (0.31, 0.29, *(0.05,) * 8),
}


@pytest.mark.parametrize("p", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("n_max", "rival"), [(500, True), (2000, True), (1000, False)])
def test_the_bounds_are_false_no_more_often_than_alpha(p, n_max, rival):
    check_bounds_by_simulation(lambda **settings: Planned(rival=rival, **settings), p, 120, n_max, n_max=n_max)


@pytest.mark.slow
@pytest.mark.parametrize("p", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rival", [False, True])
def test_the_bounds_are_false_no_more_often_than_alpha_over_many_inputs(p, rival):
    check_bounds_by_simulation(lambda **settings: Planned(rival=rival, **settings), p, 8000, 77, n_max=1000)


@pytest.mark.parametrize("p", [(0.8, 0.2), (0.5, *(0.05,) * 10), (0.97, 0.02, 0.01), (0.4, 0.3, 0.3)], ids=len)
def test_the_bounds_are_those_of_the_last_votes_alone(p):
    rng, finished = np.random.default_rng(5), 0
    for _ in range(20):
        found, stages = run(Planned(n_max=3000, alpha=0.01), multinomial(p, rng))
        if found.label is None:
            continue
        finished += 1
        pilot = stages[0] + stages[1]
        assert [v.n for v in stages[:2]] == list(PILOTS)
        assert len(stages) == 3
        assert found.label == pilot.leader
        assert found in [fixed_bounds(stages[2], found.label, 0.01, runner_up=r) for r in (False, True)]
    assert finished


def request_after(procedure, pilots, final=None):
    """How many draws are asked for after the pilots, and the conclusion if they are then answered."""
    steps = procedure()
    wanted = [next(steps), steps.send(pilots[0]), steps.send(pilots[1])]
    if final is None:
        return wanted, None
    with pytest.raises(StopIteration) as stop:
        steps.send(final(wanted[-1]))
    return wanted, stop.value.value


def test_the_plan_depends_on_the_pilots_only():
    pilots = Votes((80, 15, 5)), Votes((800, 150, 50))
    procedure = Planned(n_max=20_000)
    endings = [
        None,
        lambda n: Votes((n, 0, 0)),
        lambda n: Votes((0, n, 0)),
        lambda n: Votes((n // 2, n - n // 2, 0)),
        lambda n: Votes((0, 0, 0), n),
    ]
    found = [request_after(procedure, pilots, final) for final in endings]
    assert len({tuple(wanted) for wanted, _ in found}) == 1
    # The class stays the pilots' even where the last votes went to another.
    assert {conclusion.label for _, conclusion in found[1:]} == {0}
    assert found[2][1].q_a_upper == 1.0


def test_the_kind_of_bound_is_settled_before_the_last_votes():
    procedure = Planned(n_max=20_000)
    spread, alone = (Votes((50, *(5,) * 10)), Votes((500, *(50,) * 10))), (Votes((80, 20)), Votes((800, 200)))
    # Whatever the last votes are, the first plan bounds the rival and the second does not.
    for lead in (0.9, 0.5, 0.3):
        _, found = request_after(procedure, spread, lambda n, lead=lead: _leading(n, lead, 11))
        n = request_after(procedure, spread)[0][-1]
        assert found == fixed_bounds(_leading(n, lead, 11), 0, 0.001, runner_up=True)
        _, found = request_after(procedure, alone, lambda n, lead=lead: _leading(n, lead, 2))
        n = request_after(procedure, alone)[0][-1]
        assert found == fixed_bounds(_leading(n, lead, 2), 0, 0.001, runner_up=False)


def _leading(n, lead, classes):
    others = [int(n * (1 - lead)) // (classes - 1)] * (classes - 1)
    return Votes((n - sum(others), *others))


@pytest.mark.parametrize("counts", [(34, 33, 33), (25,) * 4, (10,) * 10], ids=len)
@pytest.mark.parametrize("rival", [False, True])
def test_hopeless_inputs_stop_after_the_pilots(counts, rival):
    found, stages = run(Planned(rival=rival), lambda _, n: Votes(tuple(c * n // 100 for c in counts)))
    assert (found.label, found.reason) == (None, "futile")
    assert sum(v.n for v in stages) in (100, 1100)


def test_an_input_that_only_the_second_pilot_shows_to_be_hopeless_stops_there():
    answers = [Votes((52, 24, 24)), Votes((400, 300, 300))]
    found, stages = run(Planned(rival=False), lambda stage, _: answers[stage])
    assert (found.label, found.reason) == (None, "futile")
    assert sum(v.n for v in stages) == 1100


def test_an_input_without_any_answer_is_given_up_at_once():
    found, stages = run(Planned(), lambda _, n: Votes((0, 0), n))
    assert (found.label, found.reason) == (None, "futile")
    assert [v.n for v in stages] == [100]


def test_more_effort_asks_for_more_draws():
    pilots = Votes((90, 10)), Votes((900, 100))
    wanted = [request_after(Planned(effort=word), pilots)[0][-1] for word in ("quick", "balanced", "full")]
    assert wanted == sorted(wanted)
    assert wanted[0] < wanted[-1] <= 100_000
    for word, value in EFFORTS.items():
        assert request_after(Planned(effort=word), pilots) == request_after(Planned(effort=value), pilots)


@pytest.mark.parametrize("n_max", [10, 150, 1000])
def test_never_more_than_n_max_draws_are_asked_for(n_max):
    found, stages = run(Planned(n_max=n_max, alpha=0.05, effort=1e-12), lambda _, n: Votes((n - n // 20, n // 20)))
    assert found.label == 0
    assert stages[2].n <= n_max


@pytest.mark.parametrize(
    "settings",
    [
        {"n_max": 0},
        {"n_max": 9, "alpha": 0.001},
        {"n_max": 100.5},
        {"alpha": 0.0},
        {"alpha": 0.5},
        {"alpha": math.nan},
        {"effort": "heroic"},
        {"effort": 0.0},
        {"effort": -1e-6},
        {"effort": math.nan},
        {"effort": math.inf},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        Planned(**settings)


def test_counting_the_pilots_again_is_caught():
    # At a tie the pilots' leader is ahead by chance, and that chance is then counted as evidence.
    with pytest.raises(AssertionError, match="bounds are false"):
        check_bounds_by_simulation(PilotAdded, (0.5, 0.5), 800, 3, n_max=1000)
    check_bounds_by_simulation(Planned, (0.5, 0.5), 800, 3, n_max=1000)


def test_counting_the_pilots_again_gives_other_bounds():
    plain, mutant = (
        run(make(n_max=1000, alpha=0.05), lambda _, n: Votes((n - n // 10, n // 10)))[0]
        for make in (Planned, PilotAdded)
    )
    assert plain != mutant

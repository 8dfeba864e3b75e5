"""The grid of radii against an adversary: the lemmas of its proof, the worst nuisance, weights chosen to harm."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from smoothcert.errors import ConfigError
from smoothcert.records import Votes
from smoothcert.stats.boundaries import exact_acceptance, look_schedule
from smoothcert.stats.grid import EFFORTS, WEIGHTS, Grid, failure_probability, make_test
from smoothcert.stats.grid import tested_depth as depth_tested  # under its own name, pytest would take it for a test
from smoothcert.stats.procedures import run
from soundness import check_rate

ALL_WEIGHTS = (0, *WEIGHTS)


pytestmark = pytest.mark.usefixtures("own_cache")


# ---- the lemmas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [*WEIGHTS, 3, 64])
def test_the_tangent_lies_below_the_failures_of_every_false_claim_and_touches(weight):
    """In relative terms, by x = Φ⁻¹(p_B): 1 − p_A = Φ(−x − 2z) keeps its digits."""
    for z in (0.01, 0.25, 0.5, 1.0, 1.75, 2.5, 3.75, 6.0):
        near = -math.log(weight) / (2 * z) - z + np.linspace(-1e-3, 1e-3, 201)
        x = np.concatenate([np.linspace(-15, 15, 60_001), near])
        fails = (ndtr(-x - 2 * z) + weight * ndtr(x)) / (1 + weight)
        q = failure_probability(z, weight)
        assert (fails >= q * (1 - 1e-13)).all()
        assert fails.min() <= q * (1 + 1e-9)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_coins_give_at_least_the_rounded_down_share_with_probability_a_half(weight):
    """The step that doubles alpha, in exact fractions. With the share rounded up it would be false, but for fair coins,
    whose law is symmetric."""
    falls_short = 0
    for rest in range(151):
        ways = [math.comb(rest, k) * weight**k for k in range(rest + 1)]
        total = (1 + weight) ** rest
        share = rest * weight // (1 + weight)
        assert Fraction(sum(ways[share:]), total) >= Fraction(1, 2)
        falls_short += Fraction(sum(ways[-(-rest * weight // (1 + weight)) :]), total) < Fraction(1, 2)
    assert (falls_short > 0) == (weight > 1)


# ---- exact size, at the worst nuisance -----------------------------------------------------------------------------


def failures_against(test, a, b, n):
    """Failures if B is the rival that counts; the largest rival in its place can only make more of them."""
    return n - a - ((n - a - b) * test.weight // (1 + test.weight) if test.weight else 0)


def accepted_probability(tests, p):
    """For rows p = (A, B, rest) the probability that any of `tests` accepts A at any look, draw by draw.

    B is taken for the strongest rival however few votes it has, as in the proof: nothing makes acceptance likelier.
    """
    looks = tests[0].boundary.looks
    size = looks[-1] + 1
    a, b = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    law, accepted = np.zeros((len(p), size, size)), np.zeros(len(p))
    law[:, 0, 0] = 1
    p_a, p_b, rest = (np.asarray(p)[:, i, None, None] for i in range(3))
    for n in range(1, size):
        moved = law * rest
        moved[:, 1:] += law[:, :-1] * p_a
        moved[:, :, 1:] += law[:, :, :-1] * p_b
        law = moved
        if n in looks:
            limits = [test.boundary.accept[looks.index(n)] for test in tests]
            reached = [failures_against(t, a, b, n) <= limit for t, limit in zip(tests, limits, strict=True)]
            here = np.any(reached, axis=0) & (a + b <= n)
            accepted += law[:, here].sum(axis=1)
            law[:, here] = 0
    assert np.allclose(accepted + law.sum(axis=(1, 2)), 1, atol=1e-9)
    return accepted


@pytest.mark.parametrize("weight", ALL_WEIGHTS)
def test_the_exact_law_counts_failures_as_the_library_does(weight):
    test, rng = make_test(0.5, weight, 0.1, (20,), 1e9), np.random.default_rng(weight)
    for _ in range(300):
        votes = Votes.of(rng.multinomial(int(rng.integers(1, 60)), rng.dirichlet(np.ones(5))))
        b = max(votes.counts[1:])
        assert test.failures(votes, 0) == failures_against(test, votes.counts[0], b, votes.n)
        for fewer in votes.counts[1:]:
            assert test.failures(votes, 0) >= failures_against(test, votes.counts[0], fewer, votes.n)


def edge_points(z, count=12):
    """(A, B, rest) on the edge of the claim at depth z, for rivals from strong to negligible."""
    p_b = np.concatenate([np.linspace(1, 0.05, count), np.geomspace(0.03, 1e-4, 4)]) * ndtr(-z)
    p_a = ndtr(ndtri(p_b) + 2 * z)
    return np.stack([p_a, p_b, np.maximum(1 - p_a - p_b, 0)], axis=1)


@pytest.mark.parametrize("weight", ALL_WEIGHTS)
@pytest.mark.parametrize("alpha", [0.2, 0.1, 0.05, 0.001])
def test_over_a_few_looks_no_nuisance_makes_a_false_claim_likelier_than_alpha(weight, alpha):
    for z in (0.0, 0.25, 0.5, 1.0):
        for looks in ((20, 40, 60), (10, 30, 50, 70, 90)):
            test = make_test(z, weight, alpha, looks, 1e9)
            assert accepted_probability([test], edge_points(z)).max() <= alpha


def test_even_all_tests_of_one_depth_together_stay_below_alpha():
    """Weights are the pilot's choice, which no proof restricts: here an adversary has them all at once."""
    for z in (0.0, 0.5, 1.0):
        tests = [make_test(z, weight, 0.1, (20, 40, 60), 1e9) for weight in ALL_WEIGHTS]
        assert accepted_probability(tests, edge_points(z)).max() <= 0.1


# ---- why a radius counts only with all smaller ones ----------------------------------------------------------------


def crossing(q, looks, accept):
    law, crossed = np.zeros(max(accept) + 2), 0.0
    law[0] = 1
    for n in range(1, looks[-1] + 1):
        law[1:] = law[1:] * (1 - q) + law[:-1] * q
        law[0] *= 1 - q
        if n in looks:
            reached = accept[looks.index(n)] + 1
            crossed += law[:reached].sum()
            law[:reached] = 0
    return crossed


def test_claiming_the_largest_accepted_radius_instead_is_unsound():
    """Every radius spends alpha on a lattice of its own, so that the boundaries of near ones are not nested.

    At p_A = Φ(z) all ten claims are false. The first alone, which all others need, is accepted with at most alpha; any
    of the ten with more.
    """
    z, alpha, looks = 0.25, 0.2, look_schedule(1000)
    q = float(ndtr(-z))
    rows = [exact_acceptance(float(ndtr(-depth_tested(z * (1 + 0.005 * i)))), alpha, looks) for i in range(10)]
    assert crossing(q, looks, rows[0]) <= alpha
    assert crossing(q, looks, tuple(np.max(rows, axis=0).tolist())) > 1.02 * alpha


# ---- giving up -----------------------------------------------------------------------------------------------------


def test_a_grid_that_claims_what_it_gives_up_is_caught():
    rng, grid = np.random.default_rng(8), Grid(radii=(0.0,), sigma=1.0, alpha=0.05, n_max=500, effort=1e4)
    found = [run(grid, lambda _, n: Votes.of(rng.multinomial(n, (0.5, 0.5))))[0] for _ in range(400)]
    check_rate(sum(b.label is not None for b in found), len(found), 0.05)
    with pytest.raises(AssertionError, match="claims are false"):
        check_rate(sum(b.label is not None or b.reason == "futile" for b in found), len(found), 0.05)


@pytest.mark.parametrize("depth", [3.0, 3.25, 3.5, 3.75])
def test_what_unanimous_votes_can_reach_is_claimed(depth):
    """99,900 votes of one class without an exception certify every depth up to 3.81 at alpha = 0.001."""
    for settings in ({"label": 0, "rival": False}, {}):
        found, _ = run(Grid(radii=(depth,), sigma=1.0, effort="full", **settings), lambda _, n: Votes((n, 0, 0)))
        assert (found.label, found.reason) == (0, "claimed"), settings


# ---- simulation at the paper's level -------------------------------------------------------------------------------


def simulated_claims(radii, weights, alpha, n_max, p, repeats, seed):
    """How many of the radii, from the first on, class 0 is claimed for; giving up is left out, as it only removes."""
    rng, looks = np.random.default_rng(seed), look_schedule(n_max)
    tests = [make_test(z, weight, alpha, looks, 1e9) for z, weight in zip(radii, weights, strict=True)]
    counts, accepted = np.zeros((repeats, len(p)), int), np.zeros((repeats, len(radii)), bool)
    for look, step in enumerate(np.diff([0, *looks])):
        counts += rng.multinomial(step, p, size=repeats)
        first, rival, n = counts[:, 0], counts[:, 1:].max(axis=1), looks[look]
        for i, test in enumerate(tests):
            rest = (n - first - rival) * test.weight // (1 + test.weight) if test.weight else 0
            accepted[:, i] |= n - first - rest <= test.boundary.accept[look]
    return np.where(accepted.all(axis=1), len(radii), accepted.argmin(axis=1))


EDGES = [(z, share) for z in (0.0, 0.5, 1.0, 1.5) for share in (1.0, 0.7, 0.3)]


def check_edges(alpha, n_max, repeats):
    """The radius on the edge and two above it are false; one below is true. Weights differ between neighbours."""
    total = 0
    for seed, (z, share) in enumerate(EDGES):
        p_b = share * float(ndtr(-z))
        p_a = float(ndtr(ndtri(p_b) + 2 * z))
        rest = max(1 - p_a - p_b, 0.0)
        p = np.array([p_a, p_b, *[rest / 12] * 12])
        radii = (z, z + 0.01, z + 0.02) if z == 0 else (z - 0.1, z, z + 0.01, z + 0.02)
        weights = (1, 0, 1, 2)[-len(radii) :] if seed % 2 else (0, 1, 2, 0)[: len(radii)]
        assert max(p[1:]) == p_b, "B is the strongest rival, so the edge is where it should be"
        claimed = simulated_claims(radii, weights, alpha, n_max, p / p.sum(), repeats, seed)
        false = int((claimed > radii.index(z)).sum())
        check_rate(false, repeats, alpha)
        total += false
    assert total > 0, "a test in which nothing is ever false would not notice much"


def test_simulated_edges_are_claimed_no_more_often_than_alpha():
    check_edges(alpha=0.01, n_max=1000, repeats=8_000)


@pytest.mark.slow
def test_simulated_edges_are_claimed_no_more_often_than_alpha_at_the_level_of_the_paper():
    check_edges(alpha=0.001, n_max=3000, repeats=200_000)


# ---- settings that are odd but allowed, and those that are not -----------------------------------------------------


def test_the_radius_that_is_claimed_lies_between_the_one_asked_for_and_the_next():
    radii, sigma = (0.0, 0.1, 0.25, 0.5), 0.25
    grid = Grid(radii=radii, sigma=sigma, label=0, rival=False, n_max=2000)
    for claimed, lead in ((0, 0.55), (1, 0.75), (2, 0.93), (3, 1.0)):
        found, _ = run(grid, lambda _, n, lead=lead: Votes((round(lead * n), n - round(lead * n))))
        assert radii[claimed] <= sigma * found.separation < [*radii, math.inf][claimed + 1]
        assert sigma * found.separation == pytest.approx(radii[claimed], abs=1e-11)


def test_a_word_for_effort_that_is_nearly_right_is_suggested():
    with pytest.raises(ConfigError, match="Did you mean 'balanced'"):
        Grid(radii=(0.5,), sigma=0.5, effort="balancd")
    assert set(EFFORTS) == {"quick", "balanced", "full"}


def test_a_radius_beyond_any_number_of_draws_is_not_claimed_and_spoils_no_other():
    """At 40 sigma, Φ(−z) is 0 in floats."""
    found, _ = run(Grid(radii=(0.5, 10.0), sigma=0.25), lambda _, n: Votes((n, 0, 0)))
    assert found.label == 0
    assert found.separation == depth_tested(2.0)


NUMPY = {
    "n_max": {"n_max": np.int64(1000)},
    "alpha": {"alpha": np.float32(0.001)},
    "alpha as a fraction": {"alpha": Fraction(1, 1000)},
    "radii": {"radii": tuple(np.float32([0.1, 0.5]))},
    "sigma": {"sigma": np.float32(0.25)},
}


@pytest.mark.parametrize("settings", NUMPY.values(), ids=NUMPY)
def test_numbers_of_other_types_that_pass_the_checks_work(settings):
    grid = Grid(**{"radii": (0.1, 0.5), "sigma": 0.25, **settings})
    found, _ = run(grid, lambda _, n: Votes((n, 0, 0)))
    assert (found.label, found.reason) == (0, "claimed")


@pytest.mark.parametrize("settings", [{"effort": None}, {"radii": ("a",)}, {"radii": 0.5}], ids=str)
def test_settings_of_a_wrong_type_are_refused_in_our_words(settings):
    with pytest.raises(ConfigError):
        Grid(**{"radii": (0.5,), "sigma": 0.25, **settings})

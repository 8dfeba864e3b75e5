"""Wide: the step from a wider noise to the smoothing noise, held against worst cases that can be computed exactly."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest, chi2, nct, ncx2, t

from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Votes
from smoothcert.stats import wide
from smoothcert.stats.bounds import clopper_pearson_upper, randomized_upper
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import fixed_bounds, run
from smoothcert.stats.radii import cohen_radius
from smoothcert.stats.wide import FAR, TRIAL, Wide, good_width, wide_depth

CASES = [(1, 2.0), (2, 2.5), (8, 1.5), (64, 1.09), (300, 1.02), (784, 1.0074), (3072, 1.002), (10_000, 1.0006)]
DEPTHS = (0.3, 1.0, 2.0, 3.7996)


def in_ball(square, dimension, distance):
    """The probability that standard normal noise is in a ball at this distance, by another formula: along the axis
    through its centre, and across it."""
    side = math.sqrt(square)

    def slice_(along):
        left = max(0.0, square - (along - distance) ** 2)
        across = chi2.cdf(left, dimension - 1) if dimension > 1 else 1.0
        return math.exp(-along * along / 2) / math.sqrt(2 * math.pi) * across

    low, high = max(distance - side, -9.0), min(distance + side, 9.0)
    return quad(slice_, low, high, epsabs=0, epsrel=1e-11, limit=400)[0] if low < high else 0.0


def worst_ball(depth, width, dimension, share=0.5):
    """Of the sets that the noise about a point at this depth gives `share`, the one that draws give least; that."""
    centre = depth / (1 - width**-2)
    square = ncx2.ppf(share, dimension, (centre - depth) ** 2)
    return in_ball(square / width**2, dimension, centre / width)


def check_depth_is_sound(depth_of):
    """A base classifier that errs in the worst ball for a depth must not be certified beyond it."""
    for dimension, width in CASES:
        for depth in DEPTHS:
            drawn = worst_ball(depth, width, dimension)
            found = depth_of(drawn, drawn, width=width, dimension=dimension)
            assert found <= depth, f"{found} is certified where {depth} is true: {dimension} values, width {width}"


def check_two_classes_are_sound(depth_of):
    """A and one rival, each with its own worst ball: the noise at `depth` gives these shares that add up to 1."""
    for dimension, width in CASES:
        for depth in DEPTHS[1:]:
            q_a, p_b = (worst_ball(depth, width, dimension, share) for share in (0.7, 0.3))
            found = depth_of(q_a, p_b, width=width, dimension=dimension)
            assert found <= depth, f"{found} is certified where {depth} is true: {dimension} values, width {width}"


def test_no_classifier_is_certified_beyond_its_radius():
    check_depth_is_sound(wide_depth)
    check_two_classes_are_sound(wide_depth)


MUTANTS = {
    "the draws taken for the smoothing noise": lambda q, p, **_: float(cohen_radius(q, p, sigma=1.0)),
    "and their width for σ": lambda q, p, width, **_: float(cohen_radius(q, p, sigma=width)),
    "half the values": lambda q, p, width, dimension: wide_depth(q, p, width=width, dimension=max(1, dimension // 2)),
    "one value less": lambda q, p, width, dimension: wide_depth(q, p, width=width, dimension=max(1, dimension - 1)),
    "wider by a tenth": lambda q, p, width, dimension: wide_depth(q, p, width=1.1 * width, dimension=dimension),
    "a thousandth more": lambda q, p, width, dimension: 1.001 * wide_depth(q, p, width=width, dimension=dimension),
    "rounded to nearest": lambda q, p, width, dimension: round(wide_depth(q, p, width=width, dimension=dimension), 3),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_step_is_caught(mutant):
    with pytest.raises(AssertionError, match="is certified where"):
        check_depth_is_sound(mutant)


def test_a_rival_that_is_forgotten_is_caught():
    with pytest.raises(AssertionError, match="is certified where"):
        check_two_classes_are_sound(lambda _, p, **about: wide_depth(p, p, **about))


@pytest.mark.parametrize(("dimension", "width"), CASES)
@pytest.mark.parametrize("depth", DEPTHS)
def test_nothing_is_given_away_but_rounding(dimension, width, depth):
    drawn = worst_ball(depth, width, dimension)
    assert wide_depth(drawn, drawn, width=width, dimension=dimension) == pytest.approx(depth, abs=1e-6)


def balls_and_others(q, depth, width, dimension):
    """Sets that the draws give q, and what noise at this depth gives them."""
    yield "half space", ndtr(depth + width * ndtri(q))
    yield "half space behind", ndtr(width * ndtri(q) - depth)
    yield "ball about the input", ncx2.cdf(chi2.ppf(q, dimension) * width**2, dimension, depth**2)
    yield "all but a ball about it", ncx2.sf(chi2.isf(q, dimension) * width**2, dimension, depth**2)
    if dimension > 1:
        yield "cone", nct.sf(t.isf(q, dimension - 1), dimension - 1, depth)
    for nearer in (0.7, 0.95, 1.05, 1.5):
        centre = nearer * depth / (1 - width**-2)
        square = ncx2.ppf(q, dimension, (centre / width) ** 2) * width**2
        yield f"ball at {nearer}", ncx2.cdf(square, dimension, (centre - depth) ** 2)


@pytest.mark.parametrize(("dimension", "width"), CASES)
def test_no_other_set_is_worse_than_the_ball(dimension, width):
    for q in (7e-5, 1e-3, 0.05, 0.3):
        for depth in DEPTHS:
            most = wide._most(q, depth, width, dimension)
            for name, share in balls_and_others(q, depth, width, dimension):
                assert share <= most + 1e-12, f"a {name} gets {share}, more than {most}"


@pytest.mark.parametrize(("dimension", "width"), CASES)
@pytest.mark.parametrize("q", [7e-5, 0.01, 0.3])
def test_the_most_is_what_another_formula_says_and_grows_with_the_distance(dimension, width, q):
    found = [wide._most(q, depth, width, dimension) for depth in DEPTHS]
    for depth, most in zip(DEPTHS, found, strict=True):
        centre = depth / (1 - width**-2)
        square = ncx2.ppf(q, dimension, (centre / width) ** 2) * width**2
        assert in_ball(square / width**2, dimension, centre / width) == pytest.approx(q, rel=1e-9)
        assert in_ball(square, dimension, centre - depth) == pytest.approx(most, rel=1e-9)
    finer = [wide._most(q, depth, width, dimension) for depth in np.linspace(0.001, 5, 60)]
    assert all(a < b or b > 1 - 1e-9 for a, b in pairwise(finer))


def test_a_wrong_ball_only_costs(monkeypatch):
    """The root-finder is not trusted: whatever ball it gives, what is claimed stays true."""
    right = wide_depth.__wrapped__(7e-5, 7e-5, width=1.09, dimension=64)

    class Careless:
        cdf = staticmethod(ncx2.cdf)
        ppf = staticmethod(lambda q, *about: ncx2.ppf(q, *about) * 1.01)

    monkeypatch.setattr("scipy.stats.ncx2", Careless)
    assert 0 < wide_depth.__wrapped__(7e-5, 7e-5, width=1.09, dimension=64) < right
    Careless.ppf = staticmethod(lambda *_: math.nan)
    assert wide_depth.__wrapped__(7e-5, 7e-5, width=1.09, dimension=64) == 0.0


def test_nothing_is_claimed_where_the_probabilities_are_not_known_well_enough():
    """Of noises that are nearly as wide as each other the worst ball is huge, and SciPy loses digits."""
    assert wide._most(7e-5, 3.8, 1 + 1e-6, 784) == math.inf
    assert wide._most(7e-5, math.nan, 1.01, 784) == math.inf
    assert wide_depth(7e-5, 7e-5, width=1 + 1e-6, dimension=784) < 0.1


@pytest.mark.parametrize(("n_max", "dimension"), [(10, 784), (10, 10_000), (300, 10_000), (100_000, 10_000)])
def test_every_default_width_is_one_that_is_taken(n_max, dimension):
    assert Wide(n_max=n_max).settled(dimension).width >= wide.LEAST_WIDTH


def test_the_fewer_the_values_the_more_a_unanimous_vote_certifies():
    q = float(clopper_pearson_upper(0, 100_000, 0.001))
    usual = float(cohen_radius(q, sigma=1.0))
    gains = [
        wide_depth(q, q, width=good_width(d, 100_000, 0.001), dimension=d) / usual - 1 for d in (20, 64, 784, 10_000)
    ]
    assert gains == sorted(gains, reverse=True)
    assert [math.floor(1000 * gain) for gain in gains] == [180, 55, 4, 0]


@pytest.mark.parametrize("dimension", [64, 784])
def test_the_usual_width_is_nearly_the_best_for_a_unanimous_vote(dimension):
    """No noise without a preferred direction does better than this: cones in the direction of the perturbation."""
    q = float(clopper_pearson_upper(0, 100_000, 0.001))
    limit = next(z for z in np.arange(5, 3, -0.0005) if nct.sf(t.isf(q, dimension - 1), dimension - 1, z) <= 0.5)
    usual = float(cohen_radius(q, sigma=1.0))
    found = wide_depth(q, q, width=good_width(dimension, 100_000, 0.001), dimension=dimension)
    assert 0.9 * (limit - usual) < found - usual < limit - usual


@pytest.mark.parametrize("q", [0.5, 0.6, 1.0])
def test_nothing_is_claimed_without_a_majority(q):
    assert wide_depth(q, q, width=1.01, dimension=784) == 0.0


# The procedure


def world(rng, narrow, wide):
    """Votes of a base classifier with these probabilities under the smoothing noise, and under wider ones."""
    return lambda _, wanted: Votes.of(rng.multinomial(wanted, narrow if wanted.width == 1 else wide))


def half_space(rng, distance):
    """Votes of a classifier that is wrong beyond a plane at this distance."""

    def draw(_, wanted):
        wrong = rng.binomial(wanted, ndtr(-distance / wanted.width))
        return Votes((int(wanted) - wrong, wrong))

    return draw


@pytest.mark.parametrize("p", [(0.97, 0.02, 0.01), (0.6, 0.4), (0.1,) * 10], ids=len)
def test_without_unanimity_it_is_planned(p):
    found, stages = run(Wide(n_max=3000, dimension=64, width=1.08), world(np.random.default_rng(1), p, p))
    assert found == run(Planned(n_max=3000), lambda stage, _: stages[stage])[0]
    assert [one.n for one in stages[:2]] == [100, 1000][: len(stages)]


def test_a_unanimous_vote_is_certified_by_wider_draws():
    wanted = []

    def draw(_, n):
        wanted.append((int(n), n.width))
        return Votes((n, 0))

    found, _ = run(Wide(n_max=50_000, dimension=64, width=1.08, effort="full"), draw)
    assert wanted == [(100, 1.0), (1000, 1.0), (TRIAL, FAR), (50_000, 1.08)]
    q = float(clopper_pearson_upper(0, 50_000, 0.001))
    assert found == Bounds(0, q, q, wide_depth(q, q, width=1.08, dimension=64))
    assert found.separation > cohen_radius(q, sigma=1.0)


def test_a_coin_certifies_more_by_wider_draws_too():
    settings = {"n_max": 50_000, "dimension": 64, "width": 1.08, "effort": "full"}
    found, stages = run(Wide(**settings, randomized=True), lambda _, n: Votes((n, 0)), lambda: 0.5)
    assert [votes.coin for votes in stages] == [None, None, None, 0.5]
    q = float(randomized_upper(0, 50_000, 0.001, 0.5))
    assert found == Bounds(0, q, q, wide_depth(q, q, width=1.08, dimension=64))
    plain, _ = run(Wide(**settings), lambda _, n: Votes((n, 0)))
    assert found.separation > plain.separation
    # Where wider draws promise nothing it is Planned, coin and all.
    near = half_space(np.random.default_rng(6), 2.5)
    found, stages = run(Wide(**settings, randomized=True), near, lambda: 0.5)
    assert (found.separation, stages[-1].coin) == (None, 0.5)


def test_wider_draws_are_not_made_where_a_trial_says_that_they_certify_less():
    """A half space 3.4 σ away in two dimensions: under noise of 2.6 times the width, answers are often wrong."""
    procedure = Wide(effort="full").settled(2)
    assert procedure.width > FAR
    found, stages = run(procedure, half_space(np.random.default_rng(4), 3.4))
    assert [one.n for one in stages] == [100, 1000, TRIAL, 100_000]
    assert stages[2].counts[1] > 50
    assert found.separation is None
    assert found == fixed_bounds(stages[3], 0, 0.001, runner_up=found.p_b_upper < found.q_a_upper)


@pytest.mark.parametrize("dimension", [64, 120, 784])
def test_what_is_lost_by_a_wrong_choice_is_little_beside_what_wider_draws_gain(dimension):
    """Half spaces near and far: hardly worse than Planned anywhere, and better where they are far."""
    rng, procedure = np.random.default_rng(dimension), Wide(effort="full").settled(dimension)
    gains = {}
    for distance in (3.2, 3.6, 3.9, 4.2, 4.6, 5.0):
        depths = []
        for one in [procedure, Planned(effort="full")] * 150:
            found, _ = run(one, half_space(rng, distance))
            depths.append(-ndtri(found.q_a_upper) if found.separation is None else found.separation)
        gains[distance] = np.mean(depths[::2]) - np.mean(depths[1::2])
    usual = float(cohen_radius(clopper_pearson_upper(0, 100_000, 0.001), sigma=1.0))
    q = float(clopper_pearson_upper(0, 100_000, 0.001))
    most = wide_depth(q, q, width=procedure.width, dimension=dimension) - usual
    assert min(gains.values()) > -0.03
    assert gains[5.0] > 0.8 * most


def test_the_trial_is_not_counted():
    """The bound of wider draws is on the last of them alone."""
    stages = [Votes((100, 0)), Votes((1000, 0)), Votes((TRIAL, 0)), Votes((49_990, 10))]
    procedure = Wide(n_max=50_000, dimension=64, width=1.08, effort="full")
    found, _ = run(procedure, lambda stage, _: stages[stage])
    assert found.q_a_upper == float(clopper_pearson_upper(10, 50_000, 0.001))


@pytest.mark.parametrize("dimension", [4, 64, 784])
@pytest.mark.parametrize("randomized", [False, True])
def test_false_radii_are_no_more_frequent_than_alpha(dimension, randomized):
    """In the worst case for a depth, where a claim beyond it is false: a ball far from the input."""
    procedure = Wide(n_max=2000, alpha=0.05, effort=1e-9, randomized=randomized).settled(dimension)
    unanimous = float(clopper_pearson_upper(0, 2000, 0.05))
    depth = wide_depth(unanimous, unanimous, width=procedure.width, dimension=dimension) - 1e-3
    wrong = worst_ball(depth, procedure.width, dimension)
    rng, repeats = (
        np.random.default_rng(dimension),
        400 if randomized else 1000,
    )  # each coin has a depth to be solved for
    found = [run(procedure, world(rng, (1, 0), (1 - wrong, wrong)), rng.random)[0] for _ in range(repeats)]
    wider = [one for one in found if one.separation is not None]
    assert len(wider) > repeats / 5
    false = sum(one.separation > depth for one in wider)
    assert binomtest(false, len(wider), 0.05, alternative="greater").pvalue > 1e-3
    assert false  # or this would not be the worst case


def test_what_is_not_settled_is_not_run():
    with pytest.raises(ConfigError, match="Expected `dimension`"):
        next(Wide()())
    settled = Wide().settled(784)
    assert (settled.dimension, settled.width) == (784, good_width(784, 100_000, 0.001))
    assert settled.settled(500) == settled  # an answer that depends on fewer values depends on these
    assert Wide(width=1.05).settled(784).width == 1.05


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 1.0}, r"`width` in \[1.0001, 10\], got 1.0"),
        ({"width": 1.00001}, r"`width` in \[1.0001, 10\]"),
        ({"width": math.nan}, "`width`"),
        ({"dimension": 0}, "`dimension`"),
        ({"dimension": 150_528}, "gain less than 0.1 % for inputs of more than 10,000 values, got 150,528: use"),
        ({"alpha": 0.0}, "`alpha`"),
        ({"n_max": 5}, "can never certify"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Wide(**settings)


def test_a_dimension_below_the_models_is_refused():
    with pytest.raises(ConfigError, match="at least 784"):
        Wide(dimension=300).settled(784)

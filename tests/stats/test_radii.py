import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.radii import cohen_radius, draws_for, lecuyer_radius, li_radius, margin_radius, max_radius
from soundness import binomial_tail, check_radius_is_sound, digits, normal_depth

LOSS = 2e-6  # of σ: the most that a radius may stay below the exact one


def certain_failures(rng, count, largest):
    """Random (failures, n, alpha), mostly with few failures, as certificates have."""
    for _ in range(count):
        n = int(10 ** rng.uniform(1, largest))
        k = int(rng.integers(0, n // 2 + 1)) if rng.random() < 0.3 else int(n ** rng.uniform(0, 0.9)) - 1
        yield k, n, float(10 ** rng.uniform(-12, -0.7))


def test_seven_thousand_one_sided_radii_are_the_sixty_digit_ones_rounded_down():
    """No root is searched: Clopper–Pearson's q is where the tail is α, so R is below the exact radius if the tail at
    Φ(−R/σ) is at most α, and at most LOSS below it if the tail at Φ(−(R/σ + LOSS)) is more."""
    rng, claimed = np.random.default_rng(7), 0
    for k, n, alpha in certain_failures(rng, 9_500, 5):
        sigma = float(10 ** rng.uniform(-2, 1))
        radius = cohen_radius(clopper_pearson_upper(k, n, alpha), sigma=sigma)
        depth = digits.mpf(radius) / digits.mpf(sigma)
        if radius > 0:
            claimed += 1
            assert binomial_tail(k, n, digits.ncdf(-depth)) <= alpha, (k, n, alpha, sigma)
        assert binomial_tail(k, n, digits.ncdf(-depth - LOSS)) > alpha, (k, n, alpha, sigma)
    assert claimed >= 7_000


def test_three_thousand_two_sided_radii_are_the_sixty_digit_ones_rounded_down():
    """Here both bounds enter: each is sound and within LOSS of the exact one in depth, and Theorem 1 is evaluated at
    them in 60 digits."""
    rng, claimed = np.random.default_rng(8), 0
    for k, n, alpha in certain_failures(rng, 4_000, 5):
        k_b, sigma = int(rng.integers(0, k + 1)), float(10 ** rng.uniform(-2, 1))
        q_a, p_b = clopper_pearson_upper(k, n, alpha / 2), clopper_pearson_upper(k_b, n, alpha / 2)
        radius = cohen_radius(q_a, p_b, sigma=sigma)
        depths = normal_depth(q_a), normal_depth(min(p_b, q_a))
        exact = digits.mpf(sigma) / 2 * sum(depths)
        assert digits.mpf(radius) <= max(exact, 0), (k, k_b, n, alpha, sigma)
        assert radius >= exact - digits.mpf(sigma) * 1e-9
        for count, depth in zip((k, k_b), depths, strict=True):
            assert binomial_tail(count, n, digits.ncdf(-depth)) <= alpha / 2
            assert binomial_tail(count, n, digits.ncdf(-depth - LOSS)) > alpha / 2
        claimed += radius > 0
    assert claimed >= 3_000


def test_radii_of_a_hundred_million_to_a_billion_draws_are_the_sixty_digit_ones_rounded_down():
    rng = np.random.default_rng(9)
    for i in range(60):
        n, alpha = int(10 ** rng.uniform(8, 9)), float(10 ** rng.uniform(-12, -2))
        k = int(10 ** rng.uniform(0, 5)) - 1 if i % 10 else int(n * rng.uniform(0.01, 0.49))
        radius = cohen_radius(clopper_pearson_upper(k, n, alpha), sigma=1.0)
        assert radius > 0
        assert binomial_tail(k, n, digits.ncdf(-digits.mpf(radius))) <= alpha
        assert binomial_tail(k, n, digits.ncdf(-digits.mpf(radius) - LOSS)) > alpha


def test_theorem_1_is_never_exceeded_on_a_grid_of_probabilities():
    check_radius_is_sound(cohen_radius)


def test_theorem_1_is_never_exceeded_by_a_rounding_error():
    """The inverse normal is wrong by a few units in the last place, which rounding down has to cover."""
    rng = np.random.default_rng(10)
    for q in [*rng.uniform(0, 0.5, 2000), *10 ** rng.uniform(-300, -0.31, 2000)]:
        radius = cohen_radius(q, sigma=1.0)
        assert normal_depth(q) * (1 - 1e-12) <= radius <= normal_depth(q), q


def test_a_radius_loses_nothing_worth_mentioning_to_rounding():
    for q in (1e-300, 1e-12, 1e-3, 0.1, 0.4, 0.49999):
        assert cohen_radius(q, sigma=2.0) == pytest.approx(2 * norm.isf(q), rel=1e-12)
        assert cohen_radius(q, q / 5, sigma=2.0) == pytest.approx(norm.isf(q) + norm.isf(q / 5), rel=1e-12)


def test_nothing_is_claimed_without_a_lead():
    for q in (0.5, np.nextafter(0.5, 1), 0.7, 1.0, math.nan):
        assert cohen_radius(q, sigma=1.0) == 0.0
    assert cohen_radius(0.6, 0.4, sigma=1.0) == 0.0
    assert cohen_radius(1.0, 0.01, sigma=1.0) == 0.0
    assert cohen_radius(0.1, math.nan, sigma=1.0) == 0.0
    for radius in (lecuyer_radius, li_radius, margin_radius):
        assert radius(0.5, sigma=1.0) == 0.0
        assert radius(0.75, 0.25, sigma=1.0) == 0.0


def test_a_rival_has_no_more_than_is_left_over():
    assert cohen_radius(0.1, 0.9, sigma=1.0) == cohen_radius(0.1, sigma=1.0)


def test_arrays_of_radii_are_those_of_their_elements():
    q, p_b = np.array([0.001, 0.1, 0.5, math.nan]), np.array([1e-4, 0.05, 0.3, 0.1])
    np.testing.assert_array_equal(
        cohen_radius(q, p_b, sigma=0.5), [cohen_radius(a, b, sigma=0.5) for a, b in zip(q, p_b, strict=True)]
    )


@pytest.mark.parametrize("radius", [cohen_radius, lecuyer_radius, li_radius, margin_radius])
@pytest.mark.parametrize(("q", "p_b"), [(0.0, None), (-0.1, None), (1.1, None), (0.1, 0.0), (0.1, -1.0)])
def test_probabilities_of_zero_or_outside_are_refused(radius, q, p_b):
    with pytest.raises(ConfigError, match="q_a_upper"):
        radius(q, p_b, sigma=1.0)


@pytest.mark.parametrize("radius", [cohen_radius, lecuyer_radius, li_radius, margin_radius])
@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, "abc", None, True])
def test_a_sigma_that_is_no_noise_level_is_refused(radius, sigma):
    with pytest.raises(ConfigError, match="sigma"):
        radius(0.1, sigma=sigma)


# ---- the earlier theorems ----------------------------------------------------------------------------------------


def brute_force_lecuyer(p_a, p_b):
    beta = np.linspace(0, min(1, 0.5 * math.log(p_a / p_b) * (1 - 1e-9)), 200_001)[1:]
    return float((beta / np.sqrt(2 * np.log(1.25 * (1 + np.exp(beta)) / (p_a - np.exp(2 * beta) * p_b)))).max())


def brute_force_li(p_a, p_b):
    """The Rényi divergence to the nearest distribution without a lead, written out in 30 digits around its best a."""

    def at(a):
        a = digits.mpf(a)
        mean = ((digits.mpf(p_a) ** (1 - a) + digits.mpf(p_b) ** (1 - a)) / 2) ** (1 / (1 - a))
        return digits.sqrt(-2 / a * digits.log(1 - digits.mpf(p_a) - digits.mpf(p_b) + 2 * mean))

    orders = np.exp(np.linspace(math.log(1e-3), math.log(1e3), 601)) * (1 + 1e-7)  # never exactly 1
    return float(max(digits.re(at(a)) for a in orders))


PAIRS = [
    (0.99, 0.01),
    (0.9, 0.1),
    (0.7, 0.3),
    (0.51, 0.49),
    (0.5001, 0.4999),
    (0.9, 1e-6),
    (0.6, 0.3),
    (0.3, 0.2),
    (0.999, 1e-9),
]


@pytest.mark.parametrize(("p_a", "p_b"), PAIRS)
def test_the_earlier_radii_are_the_suprema_of_a_brute_force_grid(p_a, p_b):
    assert lecuyer_radius(1 - p_a, p_b, sigma=1.0) == pytest.approx(brute_force_lecuyer(p_a, p_b), rel=1e-6)
    found, grid = li_radius(1 - p_a, p_b, sigma=1.0), brute_force_li(p_a, p_b)
    assert grid * (1 - 1e-9) <= found <= grid * (1 + 1e-3), "the finer search finds a little more, and not much"


def test_the_earlier_radii_are_no_larger_than_the_newer_on_a_grid():
    for q in (1e-9, 1e-4, 0.01, 0.1, 0.2, 0.3, 0.4, 0.45, 0.49, 0.499, 0.4999, 0.6, 0.7):
        rivals = {q, q / 2, q / 10, 1e-8 * q, 1e-30, (1 - q) * 0.5, (1 - q) * 0.999, (1 - q) * (1 - 1e-6)}
        for p_b in rivals:
            if p_b > q or p_b >= 1 - q:
                continue
            lecuyer, li = lecuyer_radius(q, p_b, sigma=0.5), li_radius(q, p_b, sigma=0.5)
            cohen = cohen_radius(q, p_b, sigma=0.5)
            assert 0 <= lecuyer <= li <= cohen, (q, p_b, lecuyer, li, cohen)
            assert cohen > 0
            assert li > 0 or 1 - q - p_b < 1e-5


def near_ties():
    """Bounds in which A leads by some 1e-16, with and without a third class."""
    for p_a in (0.5, 0.4, 0.25, 0.05):
        for steps in range(-40, 41):
            q = float(1 - p_a + steps * 2.0**-55)
            for below in (0.0, 2.0**-56, 2.0**-54, 2.0**-53, 2.0**-52, 2.0**-50, 1e-14):
                yield q, p_a - below


def test_the_earlier_radii_do_not_exceed_theorem_1_at_ties():
    pairs = list(near_ties())
    q, p_b = np.array(pairs).T
    cohen = np.asarray(cohen_radius(q, p_b, sigma=1.0))
    li, lecuyer = li_radius(q, p_b, sigma=1.0), lecuyer_radius(q, p_b, sigma=1.0)
    assert np.any(cohen > 0)
    for name, radii in (("Li", li), ("Lecuyer", lecuyer)):
        above = [(pair, a, b) for pair, a, b in zip(pairs, radii, cohen, strict=True) if a > b]
        assert not above, (name, len(above), above[:3])


def test_the_earlier_radii_never_exceed_the_exact_theorem_1_at_ties():
    """In 50 digits: the bounds as they are given, not as 1 − q is rounded."""
    for q, p_b in [pair for pair in near_ties() if pair[0] >= 0.5][::7]:
        # Both z are so close that the exact radius is the lead over twice the density, to many digits.
        exact = (normal_depth(q) + normal_depth(min(p_b, q))) / 2
        for radius in (li_radius, lecuyer_radius):
            assert radius(q, p_b, sigma=1.0) <= max(exact, 0), (q, p_b)


@pytest.mark.parametrize("radius", [lecuyer_radius, li_radius])
def test_arrays_of_earlier_radii_are_those_of_their_elements(radius):
    q, p_b = np.array([[0.001, 0.1, 0.4], [0.5, 0.7, 1.0]]), np.array([1e-4, 0.05, 0.3])
    found = radius(q, p_b, sigma=0.5)
    assert found.shape == (2, 3)
    each = [[radius(a, b, sigma=0.5) for a, b in zip(row, p_b, strict=True)] for row in q.tolist()]
    np.testing.assert_array_equal(found, each)


def test_the_curve_of_the_radius_against_p_a_has_the_papers_order_and_shape():
    """Cohen et al. 2019, Figure 5 (left): the three theorems at σ = 1 and p_B = 1 − p_A."""
    p_a = np.linspace(0.505, 0.999, 60)
    curves = [[float(radius(1 - p, sigma=1.0)) for p in p_a] for radius in (lecuyer_radius, li_radius, cohen_radius)]
    for lower, higher in itertools.pairwise(curves):
        assert all(a < b for a, b in zip(lower, higher, strict=True))
    for curve in curves:
        assert np.all(np.diff(curve) > 0)


def test_known_radii():
    assert cohen_radius(0.01, sigma=1.0) == pytest.approx(2.3263478740, abs=1e-9)
    assert cohen_radius(0.001, sigma=0.5) == pytest.approx(0.5 * 3.0902323062, abs=1e-9)
    assert cohen_radius(0.1, 0.01, sigma=1.0) == pytest.approx((1.2815515655 + 2.3263478740) / 2, abs=1e-9)
    # At a = 1 Li's bound is −2·ln(1 − p_A − p_B + 2·sqrt(p_A·p_B)), and for p_B = 1 − p_A near the best.
    at_one = math.sqrt(-2 * math.log(2 * math.sqrt(0.7 * 0.3)))
    assert at_one <= li_radius(0.3, sigma=1.0) <= at_one * 1.1


@pytest.mark.parametrize("radius", [cohen_radius, lecuyer_radius, li_radius])
def test_radii_are_proportional_to_sigma(radius):
    assert radius(0.1, 0.02, sigma=3.0) == pytest.approx(3 * radius(0.1, 0.02, sigma=1.0), rel=1e-9)


# ---- the margin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "p_b"), [(0.1, None), (0.01, 0.001), (0.3, 0.1), (1e-9, None), (0.49, 0.3), (0.6, 0.2)])
def test_without_a_margin_it_is_theorem_1(q, p_b):
    assert margin_radius(q, p_b, sigma=0.5) == cohen_radius(q, p_b, sigma=0.5)


@pytest.mark.parametrize(
    ("q", "p_b"),
    [(0.1, None), (0.01, 0.001), (0.3, 0.1), (1e-9, None), (0.6, 0.2), (1e-30, 1e-40), (1e-300, None), (0.05, 1e-300)],
)
@pytest.mark.parametrize("margin", [1e-6, 0.01, 0.1, 0.19, 0.5, 0.9])
def test_the_margin_holds_up_to_the_radius_and_no_further(q, p_b, margin):
    sigma = 0.5
    radius = margin_radius(q, p_b, sigma=sigma, margin=margin)
    z_a, z_b = normal_depth(q), normal_depth(q if p_b is None else p_b)

    def lead(at):
        z = digits.mpf(at) / digits.mpf(sigma)
        return digits.ncdf(z_a - z) - digits.ncdf(z - z_b)

    if radius > 0:
        assert lead(radius) >= margin
        assert radius <= cohen_radius(q, p_b, sigma=sigma)
    assert lead(radius + 1e-6 * sigma) < margin


def test_margin_radii_of_arrays_are_those_of_their_elements():
    q, p_b = np.array([[0.1], [0.3], [0.5], [1.0]]), np.array([0.01, 0.2, 0.5])
    found = margin_radius(q, p_b, sigma=0.25, margin=0.15)
    assert found.shape == (4, 3)
    for place in np.ndindex(found.shape):
        assert found[place] == margin_radius(q[place[0], 0], p_b[place[1]], sigma=0.25, margin=0.15)
    assert (found[0] > 0).all()
    assert not found[3].any()


@pytest.mark.parametrize("q", [0.3, 0.01, 1e-9])
@pytest.mark.parametrize("margin", [0.01, 0.2, 0.39])
def test_with_two_classes_a_margin_shortens_the_radius_by_a_constant(q, margin):
    expected = cohen_radius(q, sigma=0.5) - 0.5 * norm.ppf((1 + margin) / 2)
    assert margin_radius(q, sigma=0.5, margin=margin) == pytest.approx(expected, abs=1e-12)


def test_a_larger_margin_never_widens_the_radius():
    radii = [margin_radius(0.05, 0.02, sigma=1.0, margin=m) for m in (0, 1e-9, 1e-3, 0.1, 0.3, 0.6, 0.9, 0.94, 0.99)]
    assert all(a >= b for a, b in itertools.pairwise(radii))
    assert radii[0] > radii[-2] == 0.0


@pytest.mark.parametrize("margin", [-0.1, 1.0, 2, math.nan])
def test_a_margin_outside_is_refused(margin):
    with pytest.raises(ConfigError, match="margin"):
        margin_radius(0.1, sigma=1.0, margin=margin)


# ---- planning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "radius"), [(10**3, 2.463), (10**4, 3.199), (10**5, 3.811), (10**6, 4.347)])
def test_the_largest_radii_of_the_paper(n, radius):
    assert round(max_radius(n, 0.001, sigma=1.0), 3) == radius
    exact = -norm.ppf(-math.expm1(math.log(0.001) / n))
    assert exact * (1 - 1e-8) <= max_radius(n, 0.001, sigma=1.0) <= exact


def test_no_result_of_n_draws_has_a_larger_radius():
    for n in (10, 57, 1000):
        most = max_radius(n, 0.001, sigma=1.0)
        assert most == max(cohen_radius(clopper_pearson_upper(np.arange(n + 1), n, 0.001), sigma=1.0))


@pytest.mark.parametrize(("z", "draws"), [(0, 10), (2, 301), (3, 5114)])
def test_known_numbers_of_draws(z, draws):
    assert draws_for(z, sigma=1.0, alpha=0.001) == draws
    assert draws_for(z * 0.25, sigma=0.25, alpha=0.001) == draws


def test_a_hundred_thousand_draws_are_needed_for_about_3_81():
    assert 9.5e4 < draws_for(3.81, sigma=1.0, alpha=0.001) < 1e5 < draws_for(3.8125, sigma=1.0, alpha=0.001)


def test_draws_for_is_the_exact_inverse_of_max_radius():
    rng = np.random.default_rng(11)
    for _ in range(200):
        radius, sigma, alpha = rng.uniform(0.001, 5), rng.uniform(0.7, 3), 10 ** rng.uniform(-12, -0.4)
        n = draws_for(radius, sigma, alpha)
        assert max_radius(n, alpha, sigma) >= radius
        assert n == 1 or max_radius(n - 1, alpha, sigma) < radius


def test_the_radius_zero_needs_enough_draws_to_claim_anything():
    for alpha in (0.4, 0.1, 0.001, 1e-12):
        n = draws_for(0.0, sigma=1.0, alpha=alpha)
        assert max_radius(n, alpha, sigma=1.0) > 0
        assert n == 1 or max_radius(n - 1, alpha, sigma=1.0) == 0
    assert max_radius(9, 0.001, sigma=1.0) == 0.0


@pytest.mark.parametrize("radius", [9.0, 40.0, 1e300, math.inf, math.nan, -1.0])
def test_a_radius_that_no_number_of_draws_certifies_is_refused(radius):
    with pytest.raises(ConfigError, match="radius"):
        draws_for(radius, sigma=1.0, alpha=0.001)


@pytest.mark.parametrize("n", [0, -1, 2.5, 2**53 + 1, True, math.nan])
def test_an_impossible_number_of_draws_has_no_largest_radius(n):
    with pytest.raises(ConfigError, match="n"):
        max_radius(n, 0.001, sigma=1.0)

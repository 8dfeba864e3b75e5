"""The theorems' extreme cases as oracles: certificates reach them and never pass them."""

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, norm

from smoothcert import FixedN, Grid, Predict, Smoothed
from smoothcert.errors import ConfigError
from smoothcert.stats.bounds import binomial_p_value
from smoothcert.stats.radii import cohen_radius, margin_radius
from smoothcert.worst_cases import LinearClassifier, RobustEverywhere, WorstCase

RNG = np.random.default_rng(11)


def shares(model, x, sigma, n=20_000, classes=3):
    noisy = torch.from_numpy(x + sigma * RNG.standard_normal((n, x.size)))
    output = model(noisy)
    labels = output if output.ndim == 1 else output.argmax(1)
    return np.bincount(labels.numpy(), minlength=classes) / n


def test_the_linear_classifiers_vote_probability_is_what_sampling_finds():
    f = LinearClassifier([1.0, -2.0, 0.5], 0.3)
    for x in RNG.standard_normal((5, 3)):
        observed = round(shares(f, x, 0.7, classes=2)[1] * 20_000)
        assert binomtest(observed, 20_000, f.vote_probability(x, 0.7)).pvalue > 1e-4


def test_theorem_1_with_true_probabilities_gives_the_linear_classifiers_distance():
    """Proposition 4; within the outward rounding, and never beyond."""
    for _ in range(200):
        f = LinearClassifier(RNG.standard_normal(20), RNG.standard_normal())
        x, sigma = RNG.standard_normal(20), RNG.uniform(0.1, 2)
        p = f.vote_probability(x, sigma)
        q = min(p, 1 - p)
        if q < 1e-12:
            continue
        assert cohen_radius(q, sigma=sigma) == pytest.approx(f.exact_radius(x), rel=1e-6, abs=1e-9)


def test_one_step_beyond_its_distance_the_linear_classifier_changes():
    """Proposition 5."""
    for _ in range(50):
        f = LinearClassifier(RNG.standard_normal(8), RNG.standard_normal())
        x = RNG.standard_normal(8)
        radius = f.exact_radius(x)
        assert f.label(x + f.nearest_change(x, radius * 0.999)) == f.label(x)
        assert f.label(x + f.nearest_change(x, radius * 1.001)) != f.label(x)
        assert np.linalg.norm(f.nearest_change(x, 2.0)) == pytest.approx(2.0)


def sets_of(cells):
    """All subsets of a number of cells, as rows of 0 and 1."""
    return (np.arange(2**cells)[:, None] >> np.arange(cells)) & 1


def test_a_set_with_the_smallest_likelihood_ratios_is_the_least_probable_under_the_other_law():
    """Lemma 3, Neyman & Pearson, by enumeration of all sets; in whole numbers, so without rounding."""
    tried = 0
    for _ in range(20):
        under_x, under_y = RNG.integers(1, 50, (2, 12))
        ratios = under_y / under_x
        sets = sets_of(12)
        for threshold in ratios:
            s = ratios <= threshold
            at_least = sets[sets @ under_x >= s @ under_x]
            assert np.all(at_least @ under_y >= s @ under_y)
            at_most = sets[sets @ under_x <= (ratios >= threshold) @ under_x]
            assert np.all(at_most @ under_y <= (ratios >= threshold) @ under_y)
            tried += len(at_least)
    assert tried > 100_000


@pytest.mark.parametrize("shift", [0.1, 0.7, 2.0])
def test_no_set_falls_below_the_half_space_as_gaussian_noise_moves(shift):
    """Lemma 4, Neyman & Pearson for Gaussians, on all unions of 14 intervals; `WorstCase` has the half-spaces."""
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, 2.5, 13), [np.inf]])
    at_x, moved = np.diff(norm.cdf(edges)), np.diff(norm.cdf(edges - shift))
    sets = sets_of(14)[1:-1]
    before, after = sets @ at_x, sets @ moved
    assert np.all(after >= norm.cdf(norm.ppf(before) - shift) - 1e-12)
    assert np.all(after <= norm.cdf(norm.ppf(before) + shift) + 1e-12)
    worst = WorstCase([0.0], [1.0], 0.7, 0.2, sigma=1.0)
    assert worst.vote_probabilities(shift)[0] == pytest.approx(norm.cdf(norm.ppf(0.7) - shift))
    assert worst.vote_probabilities(shift)[1] == pytest.approx(norm.cdf(norm.ppf(0.2) + shift))


def test_of_all_intervals_of_a_width_the_one_around_zero_is_the_most_probable():
    """Lemma 5."""
    start, half = np.meshgrid(np.linspace(-9, 9, 361), np.linspace(0.01, 4, 60))
    anywhere = norm.cdf(start + 2 * half) - norm.cdf(start)
    assert np.all(anywhere <= norm.cdf(half) - norm.cdf(-half) + 1e-15)


CASES = [(0.9, 0.1), (0.99, 0.01), (0.6, 0.1), (0.5, 0.3), (0.4, 0.35)]


@pytest.mark.parametrize(("p_a", "p_b"), CASES)
def test_the_worst_case_has_the_probabilities_it_was_made_for(p_a, p_b):
    x, delta = RNG.standard_normal(6), RNG.standard_normal(6)
    f = WorstCase(x, delta, p_a, p_b, sigma=0.5)
    assert f.vote_probabilities(0.0) == pytest.approx([p_a, p_b, 1 - p_a - p_b])
    assert shares(f, x, 0.5) == pytest.approx([p_a, p_b, 1 - p_a - p_b], abs=0.015)


@pytest.mark.parametrize(("p_a", "p_b"), CASES)
def test_the_worst_case_changes_just_outside_the_radius_and_not_inside(p_a, p_b):
    """Theorem 2: Theorem 1's radius cannot be improved."""
    sigma = 0.5
    radius = cohen_radius(1 - p_a, p_b, sigma=sigma)
    f = WorstCase(np.zeros(4), np.ones(4), p_a, p_b, sigma)
    inside, outside = f.vote_probabilities(radius * 0.999), f.vote_probabilities(radius * 1.001)
    assert inside[0] > inside[1]
    assert outside[0] < outside[1]


def test_the_smoothed_worst_case_is_certified_and_changes_beyond_its_true_radius():
    """Through the sampler: certified inside, another class just outside."""
    rng = np.random.default_rng(3)
    x = rng.random(64).astype(np.float32)
    delta = rng.standard_normal(64)
    delta /= np.linalg.norm(delta)
    f = WorstCase(x, delta, 0.9, 0.1, sigma=0.5)
    g = Smoothed(f, 0.5, 3, noise="gaussian", input_range=None, seed=2)
    certificate = g.certify(x, FixedN(n=20_000, alpha=0.001))
    truth = 0.5 * norm.ppf(0.9)
    assert certificate.label == 0
    assert 0.9 * truth < certificate.radius <= truth
    beyond = g.predict(x + delta * truth * 1.1, Predict(n=20_000))
    assert beyond.label == 1
    within = g.predict(x + delta * certificate.radius * 0.9, Predict(n=20_000))
    assert within.label == 0


@pytest.mark.parametrize("margin", [0.05, 0.2, 0.5])
@pytest.mark.parametrize(("p_a", "p_b"), [*CASES[:2], (0.8, 0.1), (0.7, 0.15)])
def test_the_worst_case_leads_by_the_margin_up_to_its_radius_and_no_further(p_a, p_b, margin):
    """The margin variant of Section 3.2.1, and that its radius cannot be improved."""
    radius = margin_radius(1 - p_a, p_b, sigma=0.5, margin=margin)
    assert radius > 0
    f = WorstCase(np.zeros(4), np.ones(4), p_a, p_b, 0.5)
    for shift in np.linspace(0, radius, 9):
        here = f.vote_probabilities(shift)
        assert here[0] - here[1] >= margin - 1e-12
    beyond = f.vote_probabilities(radius * 1.001)
    assert beyond[0] - beyond[1] < margin


ASKED = {
    "default": {},
    "paper": {"procedure": "paper", "n_max": 20_000},
    "grid": {"radii": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)},
    "grid, one-sided": {"procedure": Grid(radii=(0.0, 0.1, 0.2, 0.3, 0.4), sigma=0.5, rival=False, margin=0.2)},
}


def lead_at(f, radius):
    """By how much class 0 leads at this distance in the worst direction."""
    first, *others = f.vote_probabilities(radius)
    return first - max(others)


@pytest.mark.parametrize(("p_a", "p_b"), [(0.9, 0.1), (0.85, 0.05), (0.75, 0.13)])
@pytest.mark.parametrize("asked", ASKED)
def test_a_certified_lead_is_there_at_the_worst_point_within_the_radius(asked, p_a, p_b):
    """Through the sampler, for every procedure; the radius without a margin would be too large for the same claim."""
    margin, settings = 0.2, ASKED[asked]
    f = WorstCase(np.zeros(16), np.ones(16), p_a, p_b, sigma=0.5)
    g = Smoothed(f, 0.5, 3, noise="gaussian", input_range=None, seed=2)
    own = {} if "one-sided" in asked else {"margin": margin}
    found = g.certify(np.zeros(16, np.float32), **settings, **own)
    assert (found.label, found.margin) == (0, margin)
    assert lead_at(f, found.radius) >= margin
    truth = margin_radius(1 - p_a, max(p_b, 1 - p_a - p_b), sigma=0.5, margin=margin)
    step = 0.1 if "grid" in asked else 0.0
    assert found.radius > 0.4 * truth - step
    assert f"class 0 leads by at least 0.2 within L2 radius {found.radius:.1f}"[:-1] in repr(found)
    if asked in ("default", "paper"):
        plain = g.certify(np.zeros(16, np.float32), **settings)
        assert plain.margin == 0
        assert plain.radius > found.radius
        assert (p_a, p_b) != (0.9, 0.1) or lead_at(f, plain.radius) < margin / 2


def test_within_the_radius_of_a_lead_predict_is_not_forced_to_abstain():
    """Section 3.2.1: near Theorem 1's radius PREDICT abstains at a high rate, within that of a margin it answers."""
    f = WorstCase(np.zeros(16), np.ones(16), 0.9, 0.1, sigma=0.5)
    g = Smoothed(f, 0.5, 3, noise="gaussian", input_range=None, seed=5)
    x, ahead, repeats = np.zeros(16, np.float32), np.full(16, 0.25), 60
    abstained = {}
    for margin in (0.0, 0.2):
        found = g.certify(x, "paper", n_max=50_000, margin=margin)
        point = (found.radius * ahead).astype(np.float32)
        answers = g.predict(np.stack([point] * repeats), Predict(), index=range(repeats))
        assert {answer.label for answer in answers} <= {0, None}
        abstained[margin] = sum(answer.abstained for answer in answers)
    answered = [k for k in range(501, 1001) if binomial_p_value(k, 1000) <= 0.001]
    promised = 1 - binom.pmf(answered, 1000, 0.6).sum()
    assert promised < 0.002
    assert binomtest(abstained[0.2], repeats, promised, alternative="greater").pvalue > 1e-4
    assert abstained[0.0] > 0.5 * repeats


def test_a_procedure_has_its_own_margin():
    g = Smoothed(LinearClassifier([1.0, 0.0], 1.0), 0.5, 2, noise="gaussian", input_range=None, seed=5)
    x = np.zeros(2, np.float32)
    with pytest.raises(ConfigError, match="A procedure has its own margin"):
        g.certify(x, FixedN(n=1000), margin=0.1)
    with pytest.raises(ConfigError, match="margin"):
        g.certify(x, margin=1.0)


def test_no_step_within_a_certified_radius_changes_a_smoothed_network():
    """Random and worst-case directions inside R: the prediction is the certified class or None, never another."""
    from smoothcert.models.architectures import mlp

    torch.random.manual_seed(0)
    model = mlp(16, 32, classes=4)
    g = Smoothed(model, 0.5, input_range=None, noise="gaussian", batch_size=1000, seed=4)
    rng = np.random.default_rng(8)
    attacked = 0
    for x in rng.standard_normal((12, 16)).astype(np.float32) * 2:
        certificate = g.certify(x, FixedN(n=3000, alpha=1e-4))
        if certificate.label is None:
            continue
        point = torch.tensor(x, requires_grad=True)
        noise = 0.5 * torch.from_numpy(rng.standard_normal((500, 16))).float()
        loss = -model(point + noise).log_softmax(1)[:, certificate.label].mean()
        (gradient,) = torch.autograd.grad(loss, point)
        for direction in (gradient.numpy(), rng.standard_normal(16)):
            step = direction / np.linalg.norm(direction) * certificate.radius * 0.99
            assert g.predict(x + step.astype(np.float32), Predict(n=3000, alpha=1e-4)).label in (
                certificate.label,
                None,
            )
            attacked += 1
    assert attacked >= 10


@pytest.mark.parametrize("tau", [0.01, 0.5, 2.0])
def test_a_classifier_robust_everywhere_is_certified_only_up_to_tau(tau):
    """Proposition 6."""
    f = RobustEverywhere(tau)
    assert min(f.vote_probability(x) for x in np.linspace(-30, 30, 2001)) > 0.5
    assert cohen_radius(1 - f.vote_probability(0.0), sigma=1.0) == pytest.approx(tau, rel=1e-6)
    assert shares(f, np.zeros(1), 1.0, classes=2)[1] == pytest.approx(norm.cdf(tau), abs=0.015)


def test_sampling_certifies_that_classifier_up_to_tau_at_most():
    g = Smoothed(RobustEverywhere(1.0), 1.0, 2, noise="gaussian", input_range=None, seed=3)
    certificate = g.certify(np.zeros(1), FixedN(n=50_000))
    assert certificate.label == 1
    assert 0.95 < certificate.radius <= 1.0
    assert g.predict(np.array([40.0]), Predict(n=1000)).label == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearClassifier([0.0, 0.0], 1.0),
        lambda: WorstCase([0.0], [1.0], 0.7, 0.4, 1.0),
        lambda: WorstCase([0.0], [1.0], 0.2, 0.3, 1.0),
        lambda: RobustEverywhere(0.0),
    ],
)
def test_cases_that_do_not_exist_are_refused(make):
    with pytest.raises(ConfigError):
        make()

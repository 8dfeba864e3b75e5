"""The illustrations of smoothing: what they draw is true of the classifiers they draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from smoothcert import FixedN, Smoothed
from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.models import load
from smoothcert.records import ceil_decimal, floor_decimal, radius_text
from smoothcert.report.figures import decision_regions as regions
from smoothcert.report.figures import draw_figure, save_figure
from smoothcert.report.figures.half_spaces import WavyClassifier
from smoothcert.report.figures.pinwheel import CLASSES, pinwheel_data, pinwheel_network
from smoothcert.report.figures.plane import MOST_CLASSES, pixel_centres, region_color
from smoothcert.stats.procedures import fixed_bounds
from smoothcert.stats.radii import cohen_radius
from smoothcert.worst_cases import LinearClassifier, WorstCase

CASES = [(0.9, None), (0.8, 0.05), (0.45, 0.2)]


def circles(axes):
    """The circles of some axes: (centre, radius), the bold one of the certified radius apart."""
    drawn = [patch for patch in axes.patches if isinstance(patch, Circle)]
    bold = [patch for patch in drawn if patch.get_linewidth() == 2.0]
    rings = [patch for patch in drawn if patch not in bold]
    return [[(patch.center, patch.radius) for patch in group] for group in (rings, bold)]


def texts(figure):
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    within = [text.get_text() for axes in figure.axes for text in axes.texts]
    return legends + within + [axes.get_title() for axes in figure.axes]


def colours(axes):
    return np.asarray(axes.get_images()[0].get_array())


def colour(label):
    return np.rint(255 * np.array(region_color(label)))


def columns(axes, label):
    """The ends, along x, of the drawn region of a class in the middle row."""
    row = colours(axes)[colours(axes).shape[0] // 2]
    left, right, *_ = axes.get_images()[0].get_extent()
    places = np.flatnonzero(np.all(row == colour(label), axis=1))
    return left + (right - left) * places[0] / len(row), left + (right - left) * (places[-1] + 1) / len(row)


# Figure 1: decision regions, level sets of the noise, votes and bounds


@pytest.fixture(scope="module")
def toy():
    return pinwheel_network(0)


def votes_of(axes):
    return [int(text.get_text().replace(",", "")) for text in axes.texts if text.get_text().replace(",", "").isdigit()]


def test_the_drawn_votes_are_those_of_the_samples_and_the_bounds_those_of_the_votes(toy):
    figure = draw_figure("decision-regions", [], {"n": [2_000], "seed": 0})
    plane, bars = figure.axes
    [(centre, radius)] = circles(plane)[1]
    x = np.array(centre, np.float32)
    procedure = FixedN(n=2_000, alpha=0.001, runner_up=True)
    certificate = Smoothed(toy, 0.12, noise="gaussian", input_range=None, seed=0).certify(x, procedure)
    samples = regions.noisy_samples(certificate, x, procedure, 2_000)
    with torch.no_grad():
        counts = np.bincount(toy(torch.from_numpy(samples)).argmax(1), minlength=CLASSES)
    assert votes_of(bars) == counts.tolist() == list(certificate.stages[1].counts)
    assert [patch.get_height() for patch in bars.patches] == pytest.approx(counts / 2_000)

    bounds = fixed_bounds(certificate.stages[1], certificate.label, 0.001, runner_up=True)
    lower, upper = (line.get_ydata()[0] for line in bars.get_lines())
    assert (lower, upper) == (bounds.p_a_lower, bounds.p_b_upper)
    assert lower < counts.max() / 2_000
    assert upper > np.sort(counts)[-2] / 2_000
    assert radius == cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=0.12)
    said = " ".join(texts(figure))
    for printed in (floor_decimal(lower), ceil_decimal(upper), radius_text(radius), "α = 0.001"):
        assert printed in said
    shown = plane.get_lines()[0].get_xydata()
    np.testing.assert_array_equal(shown, samples[: len(shown)])


def test_the_regions_have_the_colours_of_the_classes_and_the_rings_the_radii_of_the_noise(toy):
    plane, bars = draw_figure("decision-regions", [], {}).axes
    rings, [(x, _)] = circles(plane)
    assert [radius for _, radius in rings] == pytest.approx([0.12, 0.24, 0.36])
    assert all(np.array_equal(centre, x) for centre, _ in rings)
    points = pixel_centres(x, 3.3 * 0.12)
    with torch.no_grad():
        labels = toy(torch.from_numpy(points.reshape(-1, 2)).float()).argmax(1).numpy()
    palette = np.array([colour(label) for label in range(CLASSES)])
    np.testing.assert_array_equal(colours(plane).reshape(-1, 3), palette[labels])
    assert [to_rgb(patch.get_facecolor()) for patch in bars.patches] == [
        region_color(label) for label in range(CLASSES)
    ]


def test_the_circle_holds_in_truth(toy):
    """On its edge, the leader of very many draws is the certified class."""
    [(x, radius)] = circles(draw_figure("decision-regions", [], {}).axes[0])[1]
    generator = torch.Generator().manual_seed(5)
    for angle in np.linspace(0, 2 * np.pi, 12, endpoint=False):
        moved = torch.tensor(x + radius * np.array([np.cos(angle), np.sin(angle)])).float()
        with torch.no_grad():
            labels = toy(moved + 0.12 * torch.randn(50_000, 2, generator=generator)).argmax(1)
        assert int(labels.bincount().argmax()) == 0


def test_where_nothing_can_be_certified_there_is_no_circle():
    figure = draw_figure("decision-regions", [], {"point": (0.5, 0.5)})
    assert circles(figure.axes[0])[1] == []
    assert "nothing certified at α = 0.001" in texts(figure)
    assert not any("certified radius" in text for text in texts(figure))
    lower, upper = (line.get_ydata()[0] for line in figure.axes[1].get_lines())
    assert lower <= upper


def test_the_toy_network_has_learned_and_leaves_random_state_alone(toy):
    data = pinwheel_data(0)
    with torch.no_grad():
        answers = toy(torch.from_numpy(data.inputs)).argmax(1).numpy()
    assert np.mean(answers == data.labels) > 0.95
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    draw_figure("decision-regions", [], {})
    assert torch.equal(before[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_models_with_scores_and_with_labels_are_drawn():
    def disc(batch):
        return (batch.norm(dim=1) > 1).long()

    def scores(batch):
        return torch.nn.functional.one_hot(disc(batch), 2).float()

    options = {"point": (0.0, 0.0), "sigma": 0.3}
    drawn = [draw_figure("decision-regions", [], {**options, "model": load(model)}) for model in (disc, scores)]
    assert votes_of(drawn[0].axes[1]) == votes_of(drawn[1].axes[1])
    np.testing.assert_array_equal(colours(drawn[0].axes[0]), colours(drawn[1].axes[0]))
    truth = 1 - np.exp(-0.5 / 0.3**2)
    assert binomtest(votes_of(drawn[0].axes[1])[0], 1_000, truth).pvalue > 1e-4


def test_samples_without_an_answer_are_a_bar_of_their_own_and_white():
    def half_blind(batch):
        scores = torch.stack([batch[:, 0], -batch[:, 0]], dim=1)
        return torch.where(batch[:, 1:] > 0.1, torch.nan, scores)

    figure = draw_figure("decision-regions", [], {"point": (0.2, 0.0), "sigma": 0.2, "model": load(half_blind)})
    plane, bars = figure.axes
    assert [tick.get_text() for tick in bars.get_xticklabels()] == ["0", "1", "none"]
    assert binomtest(votes_of(bars)[2], 1_000, ndtr(-0.5)).pvalue > 1e-4
    np.testing.assert_array_equal(colours(plane)[0], 255)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"point": (0.1,)}, ConfigError, "two finite numbers"),
        ({"point": (0.1, np.nan)}, ConfigError, "two finite numbers"),
        ({"sigma": 0.0}, ConfigError, "`sigma`"),
        ({"n": [10, 20]}, ConfigError, "one number of draws"),
        ({"n": [5]}, ConfigError, "can never certify"),
        ({"alpha": 0.7}, ConfigError, "`alpha`"),
        ({"model": load(LinearClassifier([1, 1], 0))}, ConfigError, "give `point` and `sigma`"),
        ({"model": load(LinearClassifier([1, 1, 1], 0)), "point": (0, 0), "sigma": 1}, ModelError, "two-dimensional"),
        (
            {"model": load(LinearClassifier([1, 1], 0), input_shape=(3, 8, 8)), "point": (0, 0), "sigma": 1},
            InputError,
            r"shape \(3, 8, 8\)",
        ),
        (
            {"model": load(lambda batch: torch.full((len(batch),), MOST_CLASSES)), "point": (0, 0), "sigma": 1},
            ConfigError,
            "at most 12 classes",
        ),
        (
            {"model": load(lambda batch: batch[:, :1].repeat(1, 100)), "point": (0, 0), "sigma": 1},
            ConfigError,
            "at most 12 classes",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        draw_figure("decision-regions", [], options)


# Figures 3 and 9: the worst case and the proof


@pytest.mark.parametrize(("p_a", "p_b"), CASES)
def test_another_classifier_with_the_same_probabilities_at_x(p_a, p_b):
    p_b = 1 - p_a if p_b is None else p_b
    wavy = WavyClassifier(p_a, p_b, 0.5)
    worst = WorstCase((0, 0), (1, 0), p_a, p_b, 0.5)
    assert wavy.vote_probabilities(0) == pytest.approx([p_a, p_b, max(0, 1 - p_a - p_b)], abs=1e-9)
    generator = np.random.default_rng(2)
    for shift in (0.0, 0.3, 0.8):
        labels = wavy(0.5 * generator.standard_normal((40_000, 2)) + (shift, 0))
        for label, probability in enumerate(wavy.vote_probabilities(shift)[:2]):
            assert binomtest(int(np.sum(labels == label)), 40_000, probability).pvalue > 1e-4
    for shift in np.linspace(0.01, 3, 50):  # as the proof of Theorem 1 says of every classifier
        assert wavy.vote_probabilities(shift)[0] >= worst.vote_probabilities(shift)[0]
        assert wavy.vote_probabilities(shift)[1] <= worst.vote_probabilities(shift)[1]


@pytest.mark.parametrize(("p_a", "p_b"), CASES)
def test_the_drawn_half_spaces_have_the_probabilities_and_the_circle_ends_midway(p_a, p_b):
    sigma = 0.25
    figure = draw_figure("worst-case", [], {"p_a": p_a, "p_b": p_b, "sigma": sigma})
    straight = figure.axes[1]
    pixel = np.ptp(straight.get_xlim()) / 700
    (_, below), (above, _) = columns(straight, 0), columns(straight, 1)
    p_b = 1 - p_a if p_b is None else p_b
    assert below == pytest.approx(sigma * ndtri(p_a), abs=pixel)
    assert above == pytest.approx(-sigma * ndtri(p_b), abs=pixel)
    [(centre, radius)] = circles(straight)[1]
    assert centre == (0.0, 0.0)
    assert radius == pytest.approx((below + above) / 2, abs=pixel)  # without a gap: it touches the boundary
    assert radius <= sigma / 2 * (ndtri(p_a) - ndtri(p_b))
    assert f"certified radius $R$ = {radius_text(radius)}" in texts(figure)


@pytest.mark.parametrize(("p_a", "p_b"), CASES)
def test_the_worst_case_meets_its_rival_at_the_radius_and_no_sooner(p_a, p_b):
    figure = draw_figure("worst-case", [], {"p_a": p_a, "p_b": p_b})
    other, leading, rival, mark = figure.axes[2].get_lines()
    [(_, radius)] = circles(figure.axes[0])[1]
    assert mark.get_xdata()[0] == radius
    distances = leading.get_xdata()
    inside = distances < radius * 0.999
    assert np.all((leading.get_ydata() > rival.get_ydata()) == inside)
    assert np.all(other.get_ydata() >= leading.get_ydata() - 1e-9)


def test_the_rings_are_around_x_and_x_plus_delta_and_delta_is_within_the_radius():
    bent, straight, _ = draw_figure("worst-case", [], {"sigma": 0.5}).axes
    for axes in (bent, straight):
        rings, [(_, radius)] = circles(axes)
        assert [size for _, size in rings] == pytest.approx([0.5, 1.0, 1.5] * 2)
        assert {centre for centre, _ in rings} == {(0.0, 0.0), (0.6 * radius, 0.0)}


@pytest.mark.parametrize(("p_a", "p_b"), [(0.8, 0.05), (0.9, None), (0.45, 0.2)])
def test_the_proofs_shaded_areas_are_the_probabilities_and_the_titles_are_true(p_a, p_b):
    figure = draw_figure("proof", [], {"p_a": p_a, "p_b": p_b, "sigma": 0.5})
    worst = WorstCase((0, 0), (1, 0), p_a, 1 - p_a if p_b is None else p_b, 0.5)
    for column, relation in ((0, np.greater), (1, np.less)):
        plane, density = figure.axes[column], figure.axes[2 + column]
        [(_, radius)] = circles(plane)[1]
        distance = density.get_xticks()[1]
        assert relation(radius, distance)
        expected = worst.vote_probabilities(distance)[:2]
        assert relation(*expected)
        assert (r"P(Y \in A) > P(Y \in B)" in plane.get_title()) == (column == 0)
        areas = [area(collection.get_paths()[0].vertices) for collection in density.collections]
        assert areas == pytest.approx(expected, abs=2e-3)  # the tails end at the panel's edge
        printed = [float(text.get_text().split("= ")[1]) for text in density.texts]
        assert printed[0] <= expected[0] < printed[0] + 0.001
        assert printed[1] - 0.001 < expected[1] <= printed[1]
        assert plane.get_xlim() == density.get_xlim()


def area(vertices):
    """The area of a polygon, by the shoelace formula."""
    x, y = vertices.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


# Figures 10 and 11: linear classifiers


@pytest.mark.parametrize("p_a", [0.6, 0.85, 0.999])
@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_the_circle_touches_the_linear_boundary_and_delta_crosses_it(p_a, sigma):
    left, right, touching, beyond = draw_figure("linear", [], {"p_a": p_a, "sigma": sigma}).axes
    classifier = LinearClassifier([1.0, 1.0], 0.0)
    for axes, label in ((left, 0), (right, 1)):
        rings, _ = circles(axes)
        x = rings[0][0]
        assert classifier.label(x) == label
        assert abs(classifier.vote_probability(x, sigma) - (1 - label)) == pytest.approx(p_a)
        assert f"= {label})$ = {p_a:g}" in axes.get_title()
    for axes in (touching, beyond):
        [(x, radius)] = circles(axes)[1]
        assert radius <= classifier.exact_radius(x)
        assert radius == pytest.approx(classifier.exact_radius(x), rel=1e-6)
    changed = beyond.get_lines()[-1].get_xydata()[0]
    assert np.linalg.norm(changed - x) > radius
    assert classifier.label(changed) != classifier.label(x)
    drawn = colours(touching)
    np.testing.assert_array_equal(drawn[-1, 0], colour(0))
    np.testing.assert_array_equal(drawn[0, -1], colour(1))


def test_draws_certify_nearly_the_drawn_radius_of_the_linear_classifier():
    [(x, radius)] = circles(draw_figure("linear", [], {}).axes[2])[1]
    smoothed = Smoothed(LinearClassifier([1.0, 1.0], 0.0), 0.5, noise="gaussian", input_range=None, seed=1)
    radii = [smoothed.certify(np.float32(x), FixedN(n=n)).radius for n in (1_000, 100_000)]
    assert radii[0] < radii[1] < radius
    assert radii[1] > 0.97 * radius


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("worst-case", {"p_a": 0.5}, "`p_a` > `p_b`"),
        ("worst-case", {"p_a": 0.3}, "p_b <= p_a"),
        ("worst-case", {"p_a": 0.9, "p_b": 0.2}, "p_a \\+ p_b <= 1"),
        ("proof", {"p_a": 0.4, "p_b": 0.4}, "`p_a` > `p_b`"),
        ("proof", {"p_a": np.nan}, "p_a"),
        ("proof", {"sigma": -1}, "`sigma`"),
        ("linear", {"p_a": 1.0}, r"`p_a` in \(0, 1\)"),
        ("linear", {"p_a": 0.2}, "`p_a` > `p_b`"),
        ("linear", {"p_b": 0.2}, "`p_b` has no meaning"),
    ],
)
def test_probabilities_without_a_radius_are_refused(kind, options, said):
    with pytest.raises(ConfigError, match=said):
        draw_figure(kind, [], options)


@pytest.mark.parametrize("kind", ["decision-regions", "worst-case", "proof", "linear"])
def test_the_same_illustration_is_the_same_file(tmp_path, kind):
    for suffix in (".png", ".svg", ".pdf"):
        for name in ("a", "b"):
            save_figure(draw_figure(kind, [], {}), tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_another_seed_draws_other_samples():
    first, second = (draw_figure("decision-regions", [], {"seed": seed}).axes[0].get_lines()[0] for seed in (0, 1))
    assert not np.array_equal(first.get_xydata(), second.get_xydata())

"""What each kind of figure draws from runs is what a toy gives by hand."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from page_fixtures import made_run
from smoothcert.cli.plot import Plot
from smoothcert.errors import ConfigError, InputError
from smoothcert.records import Votes
from smoothcert.report.figures import FIGURES, draw_figure, load_norms, recorded_run, save_figure
from smoothcert.report.figures.attacks import success_curve
from smoothcert.report.figures.images import averaged
from smoothcert.report.figures.theorems import COHEN, LECUYER, LI, theorem_radii
from smoothcert.runs.directory import Run
from smoothcert.runs.exchange import import_log
from smoothcert.runs.manifest import Manifest
from smoothcert.stats.accuracy import accuracy_curve, certified_accuracy
from smoothcert.stats.radii import cohen_radius, lecuyer_radius, li_radius, max_radius
from smoothcert.stats.test_set import bernstein_lower_bound, simultaneous_lower_bound

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
# index, true class, predicted class, radius
ROWS = [(0, 1, 1, 0.4), (1, 1, 1, 0.2), (2, 0, 0, 0.4), (3, 0, 1, 0.3), (4, 0, -1, 0.0)]


@pytest.fixture
def log(tmp_path):
    """Make a run of a log with these rows."""

    def make(rows=ROWS, sigma=0.25, alpha=0.01, n=100_000, name="run", header=HEADER):
        lines = []
        for index, true, label, *radius in rows:
            right = int(true == label and label >= 0)
            lines.append("\t".join(map(str, (index, true, label, *radius, right, 0.1))) + "\n")
        path = tmp_path / f"{name}.tsv"
        path.write_text(header + "".join(lines))
        return import_log(path, tmp_path / name, sigma=sigma, alpha=alpha, n=n)

    return make


@pytest.fixture
def votes(tmp_path):
    """A run of CERTIFY on eight rows of votes."""
    counts = np.array([[900, 100, 100], [1100, 0, 0], [700, 300, 100], [100, 900, 100]] * 2)
    np.save(tmp_path / "votes.npy", counts)
    np.save(tmp_path / "labels.npy", [0, 0, 0, 1] * 2)
    return recorded_run(tmp_path / "votes.npy", sigma=0.5, labels=tmp_path / "labels.npy")


def predicted(tmp_path, n, labels, truths=(0, 0, 1, 1), votes=None):
    """A run of PREDICT with these answers, with or without votes."""
    values = {
        "kind": "predict",
        "sigma": 0.25,
        "alpha": 0.001,
        "procedure": {"name": "Predict", "n": n},
        "indices": list(range(len(labels))),
        "model": {"num_classes": 3},
        "data": {"name": "toy"},
        "key": "",
    }
    rows = [
        {"index": i, "true": true, "label": label} for i, (true, label) in enumerate(zip(truths, labels, strict=True))
    ]
    for row, counts in zip(rows, votes or [], strict=False):
        sparse = {str(k): count for k, count in enumerate(counts) if count}
        row |= {
            "noise": "gaussian",
            "stages": [{"n": sum(counts), "votes": sparse}],
            "p_value": 0.0,
            "reason": "budget",
        }
    return Run(tmp_path / f"predict-{n}", Manifest(values), rows)


def lines(figure, axes=0):
    return {line.get_label(): line for line in figure.axes[axes].get_lines()}


def assert_curve(line, radii, correct):
    """The line is the certified accuracy of these claims, at its corners and between them."""
    at, shares = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert line.get_drawstyle() == "steps-pre"
    np.testing.assert_allclose(shares[:-1], 100 * certified_accuracy(radii, correct, at[:-1]))
    assert shares[-1] == 0
    middles = (at[1:-1] + at[:-2]) / 2  # a step holds up to the corner at its right
    np.testing.assert_allclose(shares[1:-1], 100 * certified_accuracy(radii, correct, middles))


# Certified accuracy


def test_certified_accuracy_has_a_step_curve_per_run_and_the_undefended_one(log):
    runs = [log(name="a"), log([(0, 1, 1, 0.9), (1, 1, 0, 0.5)], sigma=0.5, name="b")]
    drawn = lines(draw_figure("certified-accuracy", runs, {"undefended": [0.0, 0.1, 0.3, np.inf]}))
    assert list(drawn) == ["σ = 0.25", "σ = 0.5", "undefended (upper bound)"]
    np.testing.assert_allclose(drawn["σ = 0.25"].get_xdata(), [0, 0.2, 0.4, 0.4])
    np.testing.assert_allclose(drawn["σ = 0.25"].get_ydata(), [60, 60, 40, 0])
    np.testing.assert_allclose(drawn["σ = 0.5"].get_ydata(), [50, 50, 0])
    attacked = drawn["undefended (upper bound)"]
    assert attacked.is_dashed()
    np.testing.assert_allclose(attacked.get_ydata(), [75, 75, 50, 25])


def test_the_curve_of_a_grid_run_has_dots_at_its_radii_and_ends_at_the_last(log):
    run = made_run("grid", 40)
    drawn = lines(draw_figure("certified-accuracy", [run, made_run("planned", 40)], {}))
    curve, table = drawn["Grid"], run.table()
    np.testing.assert_array_equal(curve.get_xdata(), [0.0, 0.25, 0.5])
    expected = 100 * certified_accuracy(table["radius"], np.array(table["correct"]), [0.0, 0.25, 0.5])
    np.testing.assert_allclose(curve.get_ydata(), expected)
    assert curve.get_ydata()[-1] > 0, "it does not fall to 0 where nothing was asked"
    assert curve.get_drawstyle() == "steps-pre"
    assert curve.get_marker() == "o"
    assert drawn["Planned"].get_marker() == "None"
    assert drawn["Planned"].get_ydata()[-1] == 0


def test_below_its_first_radius_a_grid_curve_is_at_the_height_of_that_radius():
    at, accuracy = accuracy_curve([0.25, 0.5, 0.0], np.array([True, True, True]), (0.25, 0.5, 0.75))
    assert at.tolist() == [0.0, 0.25, 0.5, 0.75]
    np.testing.assert_allclose(accuracy, [2 / 3, 2 / 3, 1 / 3, 0])


def test_lower_bounds_of_a_grid_run_end_with_it_and_name_its_inputs():
    figure = draw_figure("lower-bound", [made_run("grid", 40)], {})
    for line in lines(figure).values():
        assert line.get_xdata()[-1] == 0.5
    assert lines(figure)["approximate, 40 inputs"].get_ydata()[-1] > 0
    assert figure.axes[0].get_title().startswith("all 40 inputs\n")


def test_training_noise_of_grid_runs_ends_at_the_last_radius_too():
    figure = draw_figure("training-noise", [made_run("grid", 40)], {"trained": [0.5]})
    (curve,) = lines(figure).values()
    assert curve.get_xdata()[-1] == 0.5
    assert curve.get_ydata()[-1] > 0


def test_class_accuracy_refuses_a_radius_that_was_not_tested():
    run = made_run("grid", 40)
    with pytest.raises(ConfigError, match=r"did not test radius 0\.3, only 0, 0\.25, 0\.5"):
        draw_figure("class-accuracy", [run], {"radii": [0.25, 0.3]})
    draw_figure("class-accuracy", [run], {"radii": [0.25, 5.0]})


def test_the_legend_is_not_in_the_way_of_a_curve_that_ends_high():
    run = made_run("grid", 40)
    high = [{**row, "true": row["label"]} for row in run.rows if row["radius"] >= 0.5]
    for rows, place in ((high, 3), (run.rows, 3 if np.mean([r["radius"] >= 0.5 for r in run.rows]) > 0.5 else 1)):
        figure = draw_figure("certified-accuracy", [Run(run.path, run.manifest, rows)], {})
        assert figure.axes[0].get_legend()._loc == place


def test_names_and_the_largest_radius_can_be_given(log):
    figure = draw_figure("certified-accuracy", [log()], {"names": ["mine"], "limit": 0.3})
    assert list(lines(figure)) == ["mine"]
    assert figure.axes[0].get_xlim() == (0, 0.3)


def test_without_labels_every_claim_counts_and_the_axis_says_so(log):
    run = log([(0, -1, 1, 0.4), (1, -1, -1, 0.0)])
    figure = draw_figure("certified-accuracy", [run], {})
    assert figure.axes[0].get_ylabel() == "certified inputs (%)"
    np.testing.assert_allclose(lines(figure)["σ = 0.25"].get_ydata(), [50, 50, 0])
    with pytest.raises(ConfigError, match="do not mean the same"):
        draw_figure("certified-accuracy", [run, log(name="b")], {})


def test_training_noise_orders_by_training_and_marks_the_matched_one(log):
    runs = [log(name="a"), log([(0, 1, 1, 0.1)], name="b")]
    drawn = lines(draw_figure("training-noise", runs, {"trained": [0.25, 0.12]}))
    assert list(drawn) == ["trained at σ = 0.12", "trained at σ = 0.25"]
    assert drawn["trained at σ = 0.25"].get_linewidth() > drawn["trained at σ = 0.12"].get_linewidth()
    np.testing.assert_allclose(drawn["trained at σ = 0.12"].get_ydata(), [100, 100, 0])


def test_training_noise_needs_one_prediction_noise_and_known_trainings(log):
    with pytest.raises(ConfigError, match="give --trained"):
        draw_figure("training-noise", [log(name="a")], {})
    with pytest.raises(ConfigError, match="each of the 1 runs, got 2"):
        draw_figure("training-noise", [log(name="b")], {"trained": [0.1, 0.2]})
    with pytest.raises(ConfigError, match=r"one noise level, got σ = 0.25, 0.5"):
        draw_figure("training-noise", [log(name="c"), log(sigma=0.5, name="d")], {"trained": [0.1, 0.2]})


def test_the_lower_bounds_are_those_of_the_counts(log):
    rows = [(i, 1, 1, 0.1 + 0.001 * i) for i in range(80)] + [(i, 1, 0, 0.5) for i in range(80, 100)]
    approximate, exact, papers = lines(draw_figure("lower-bound", [log(rows)], {"rho": 0.05})).values()
    counts = np.rint(approximate.get_ydata()).astype(int)
    assert counts.tolist()[:3] == [80, 80, 79]
    settings = {"alpha": 0.01, "rho": 0.05}
    np.testing.assert_allclose(exact.get_ydata(), 100 * simultaneous_lower_bound(counts, 100, **settings))
    np.testing.assert_allclose(papers.get_ydata(), 100 * bernstein_lower_bound(counts, 100, **settings))
    with pytest.raises(ConfigError, match="`rho` in"):
        draw_figure("lower-bound", [log(name="b")], {"rho": 1.5})


# Theorems and projections


def test_the_three_theorems_agree_with_their_functions_and_theorem_1_is_largest(votes):
    radii = theorem_radii(votes)
    for place, certificate in enumerate(votes.certificates):
        q, p = certificate.bounds.q_a_upper, certificate.bounds.p_b_upper
        assert radii[COHEN][place] == cohen_radius(q, p, sigma=0.5)
        for name, function in ((LI, li_radius), (LECUYER, lecuyer_radius)):
            assert radii[name][place] == function(q, p, sigma=0.5)
    assert np.all(radii[COHEN] > radii[LI])
    assert np.all(radii[LI] > radii[LECUYER])


def test_theorem_accuracy_draws_these_radii(votes):
    drawn = lines(draw_figure("theorem-accuracy", [votes], {}))
    for name, radii in theorem_radii(votes).items():
        assert_curve(drawn[name], radii, np.full(8, True))


def test_of_a_log_the_radius_tells_the_probability(log):
    run = log()
    radii = theorem_radii(run)
    np.testing.assert_allclose(radii[COHEN], run.table()["radius"], rtol=1e-12)
    assert radii[LI][4] == radii[LECUYER][4] == 0.0  # it abstained


def test_a_grid_of_radii_bounds_no_probabilities(votes, tmp_path):
    rows = [{**row, "bounds": {"label": 0, "separation": 0.4}} for row in votes.rows]
    with pytest.raises(ConfigError, match="certified at a grid of radii"):
        draw_figure("theorem-accuracy", [Run(tmp_path, votes.manifest, rows)], {})


@pytest.mark.parametrize("kind", ["certified-accuracy", "lower-bound", "training-noise", "other-n", "other-alpha"])
def test_the_axis_says_which_lead_is_certified(kind):
    options = {"trained": [0.5]} if kind == "training-noise" else {}
    figure = draw_figure(kind, [made_run("paper-margin", 40)], options)
    assert figure.axes[0].get_ylabel().endswith("certified accuracy, lead ≥ 0.1 (%)")
    assert "lead" not in draw_figure(kind, [made_run("paper", 40)], options).axes[0].get_ylabel()


def test_runs_with_different_margins_have_their_leads_in_their_names():
    runs = [made_run("paper", 40), made_run("paper-margin", 40)]
    figure = draw_figure("certified-accuracy", runs, {})
    assert [name.endswith("lead ≥ 0.1") for name in lines(figure)] == [False, True]
    assert figure.axes[0].get_ylabel() == "certified accuracy (%)"
    with pytest.raises(ConfigError, match="one margin"):
        draw_figure("training-noise", runs, {"trained": [0.25, 0.5]})
    with pytest.raises(ConfigError, match="with a margin"):
        draw_figure("theorem-accuracy", runs[1:], {})
    assert "lead ≥ 0.1" in draw_figure("class-accuracy", runs[1:], {}).axes[0].get_xlabel()


def test_a_projection_to_its_own_settings_has_the_radii_of_its_margin():
    run = made_run("paper-margin", 40)
    (own,) = lines(draw_figure("certified-accuracy", [run], {})).values()
    for kind, options in (("other-n", {"n": [1000]}), ("other-alpha", {"alphas": [0.001]})):
        (same,) = lines(draw_figure(kind, [run], options)).values()
        np.testing.assert_allclose(same.get_xydata(), own.get_xydata(), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"), [("other-n", {"n": [100, 10**6]}), ("other-alpha", {"alphas": [0.1, 1e-5]})]
)
def test_projections_are_called_so_in_the_figure(votes, kind, options):
    figure = draw_figure(kind, [votes], options)
    axes = figure.axes[0]
    assert "projection, not a certificate" in axes.get_title(loc="left")
    assert axes.get_ylabel() == "projected certified accuracy (%)"
    weak, strong = lines(figure).values() if kind == "other-n" else reversed(lines(figure).values())
    assert weak.get_xdata()[-1] < strong.get_xdata()[-1]
    with pytest.raises(ConfigError, match="at least one number"):
        draw_figure(kind, [votes], {name: [] for name in options})


def test_with_its_own_n_and_alpha_a_projection_is_the_run_s_own_curve(votes):
    own = lines(draw_figure("certified-accuracy", [votes], {}))["σ = 0.5"]
    for kind, options in (("other-n", {"n": [1000]}), ("other-alpha", {"alphas": [0.001]})):
        (same,) = lines(draw_figure(kind, [votes], options)).values()
        np.testing.assert_array_equal(same.get_xydata(), own.get_xydata())


def test_the_best_radius_is_that_of_unanimous_votes():
    curve, marks = draw_figure("best-radius", [], {"sigma": 2.0, "alpha": 0.01, "n": [1000]}).axes[0].get_lines()
    assert marks.get_ydata()[0] == max_radius(1000, 0.01, 2.0)
    assert curve.get_ydata()[-1] == max_radius(1_000_000, 0.01, 2.0)


def test_tuning_has_the_supremum_over_all_settings_and_its_best_point():
    figure = draw_figure("tuning", [], {})
    for axes, function in ((figure.axes[0], lecuyer_radius), (figure.axes[1], li_radius)):
        best, *settings = axes.get_lines()
        p_a = best.get_xdata()
        for place in range(0, len(p_a), 29):
            assert best.get_ydata()[place] == function(1 - p_a[place], sigma=1.0)
        for line in settings:
            assert np.nanmax(line.get_ydata() - best.get_ydata()) < 1e-6
    for axes, function, q, p in (
        (figure.axes[2], lecuyer_radius, 0.2, 0.2),
        (figure.axes[3], li_radius, 0.001, 0.0001),
    ):
        curve, top = axes.get_lines()
        assert top.get_ydata()[0] == max(curve.get_ydata())
        assert top.get_ydata()[0] == pytest.approx(function(q, p, sigma=1.0), rel=1e-3)


# Predictions, attacks


def test_the_table_of_predictions_counts_correct_accurate_and_abstained(tmp_path):
    votes = [[90, 10, 0], [40, 50, 10], [0, 100, 0], [10, 20, 70]]  # g: 0, 1, 1, 2
    standard = predicted(tmp_path, 100, [0, 1, 1, None], votes=votes)
    few = predicted(tmp_path, 10, [0, 0, None, 2])
    figure = draw_figure("predictions", [standard, few], {})
    cells = [text.get_text() for text in figure.axes[1].texts]
    # correct and accurate; correct but not g's; g's but wrong; neither; none
    assert cells == ["25.0", "25.0", "25.0", "0.0", "25.0"]
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [25, 25, 25, 0, 25]


def test_without_votes_the_standard_s_answers_stand_for_g(tmp_path):
    figure = draw_figure(
        "predictions", [predicted(tmp_path, 10, [0, 0, 1, 1]), predicted(tmp_path, 99, [0, 1, None, 1])], {}
    )
    cells = [text.get_text() for text in figure.axes[1].texts]
    assert cells == ["50.0", "50.0", "0.0", "0.0", "0.0"]


def test_predictions_must_be_comparable(tmp_path, log):
    run = predicted(tmp_path, 10, [0, 0, 1, 1])
    for other, message in (
        (log(), "holds certificates"),
        (predicted(tmp_path, 10, [0, 0, 1, 1]), "another number of draws"),
        (predicted(tmp_path, 20, [0], [0]), "same inputs"),
        (predicted(tmp_path, 20, [0, 0, 0, 0], [None] * 4), "true class of every input"),
    ):
        with pytest.raises(ConfigError, match=message):
            draw_figure("predictions", [run, other], {})
    unknown = log([(0, 1, 1)], n=None, header="idx\tlabel\tpredict\tcorrect\ttime\n", name="predicted")
    with pytest.raises(ConfigError, match="import its log with --n"):
        draw_figure("predictions", [run, unknown], {})
    with pytest.raises(ConfigError, match="have no radii"):
        draw_figure("certified-accuracy", [run], {})


def test_attack_success_is_measured_in_certified_radii(log):
    norms = [0.6, 0.5, np.inf, 0.1, 0.1]  # the last two are wrong or not certified
    figure = draw_figure("attack-success", [log()], {"norms": [norms]})
    curve = lines(figure)["σ = 0.25, 3 inputs"]
    assert curve.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(curve.get_xdata(), [0, 1.5, 2.5, 3])
    np.testing.assert_allclose(curve.get_ydata(), [0, 100 / 3, 200 / 3, 200 / 3])
    assert lines(figure)["certified radius R"].get_xdata() == [1, 1]


def test_attack_success_without_runs_is_in_units_of_the_input_and_of_inputs_that_were_right():
    figure = draw_figure("attack-success", [], {"norms": [[0.0, 0.2, 0.4]], "names": ["DeepFool"]})
    (curve,) = lines(figure).values()
    assert curve.get_label() == "DeepFool, 2 inputs"
    np.testing.assert_allclose(curve.get_ydata(), [0, 50, 100, 100])


def test_norms_must_fit_the_run(log):
    for norms, message in (([[0.1]], "each of the 5 inputs"), ([[0.1] * 5] * 2, "a list of norms for each of the 1")):
        with pytest.raises(ConfigError, match=message):
            draw_figure("attack-success", [log(name=f"run{len(norms)}")], {"norms": norms})
    nothing = log([(0, 1, -1, 0.0)], name="nothing")
    with pytest.raises(ConfigError, match="no radius to measure"):
        draw_figure("attack-success", [nothing], {"norms": [[0.1]]})


def test_success_rises_to_the_share_that_was_found():
    at, success = success_curve(np.array([2.0, 1.0, np.inf, 1.0]), 5.0)
    np.testing.assert_allclose(at, [0, 1, 2, 5])
    np.testing.assert_allclose(success, [0, 0.5, 0.75, 0.75])
    assert success_curve(np.array([]), 1.0)[1].tolist() == [0, 0]


def test_norms_are_read_from_arrays_and_json(tmp_path):
    norms = np.array([0.0, 0.5, np.inf])
    np.save(tmp_path / "a.npy", norms)
    np.savez(tmp_path / "b.npz", norms=norms, other=[1])
    np.savez(tmp_path / "c.npz", only=norms)
    (tmp_path / "d.json").write_text("[0, 0.5, null]")
    (tmp_path / "e.json").write_text(json.dumps({"norms": [0, 0.5, None]}))
    for name in ("a.npy", "b.npz", "c.npz", "d.json", "e.json"):
        np.testing.assert_array_equal(load_norms(tmp_path / name), norms)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.json", None),
        ("none.npy", None),
        ("a.json", "[-1]"),
        ("a.json", "[NaN]"),
        ("a.json", "[]"),
        ("a.json", "{}"),
        ("a.json", "7"),
        ("a.json", "[["),
        ("a.npy", "text"),
        ("a.npz", "PK"),
    ],
)
def test_files_that_hold_no_norms_are_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=r"norms"):
        load_norms(tmp_path / name)


# Images and distributions


def test_low_resolution_is_the_mean_over_squares():
    image = np.arange(32, dtype=np.uint8).reshape(1, 1, 4, 8)
    figure = draw_figure("resolution", [], {"images": image, "factor": 2, "sigma": 0.5, "seed": 3})
    assert [axes.get_title() for axes in figure.axes] == ["2 × 4", "4 × 8", "2 × 4, σ = 0.5", "4 × 8, σ = 0.5"]
    small, large = (np.asarray(figure.axes[i].get_images()[0].get_array())[..., 0] for i in (0, 1))
    np.testing.assert_array_equal(large, image[0, 0])
    np.testing.assert_array_equal(small, np.rint(image[0, 0].reshape(2, 2, 4, 2).mean(axis=(1, 3))))
    with pytest.raises(ConfigError, match="divide the image's 4 × 8"):
        averaged(np.zeros((4, 8, 1)), 3)


def test_noise_has_a_row_per_image():
    figure = draw_figure("noise", [], {"images": np.zeros((3, 3, 4, 4), np.uint8), "sigmas": [0.5]})
    assert len(figure.axes) == 6
    with pytest.raises(ConfigError, match="`seed`"):
        draw_figure("noise", [], {"images": np.zeros((1, 3, 4, 4), np.uint8), "seed": -1})


def test_draws_are_counted_over_all_stages(votes, log, tmp_path):
    half = Run(tmp_path, votes.manifest, votes.rows[:4])
    rows = [{**row, "stages": row["stages"][:1]} if row["index"] == 3 else row for row in half.rows]
    (curve,) = lines(draw_figure("draws", [Run(tmp_path, votes.manifest, rows)], {})).values()
    assert curve.get_label() == "σ = 0.5: mean 850"
    np.testing.assert_allclose(curve.get_xdata(), [100, 100, 1100])
    np.testing.assert_allclose(curve.get_ydata(), [0, 25, 100])
    with pytest.raises(ConfigError, match="holds no votes"):
        draw_figure("draws", [log()], {})


def test_each_class_has_its_own_accuracy(log):
    figure = draw_figure("class-accuracy", [log()], {"radii": [0, 0.3], "names": ["cat", "dog"]})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(widths, [[100 / 3, 100], [100 / 3, 50]])  # at radius 0, then at 0.3


def test_of_very_many_classes_the_strongest_and_the_weakest_are_shown(log):
    rows = [(i, i, i if i >= 50 else 0, 0.1 + 0.001 * i) for i in range(1, 100)]
    figure = draw_figure("class-accuracy", [log(rows)], {"radii": [0, 0.195]})
    names = [int(label.get_text()) for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 30
    assert set(names[:15]) >= {95, 96, 97, 98, 99}
    assert max(names[15:]) < 50


def test_class_accuracy_needs_classes_and_few_radii(log):
    with pytest.raises(ConfigError, match="no true classes"):
        draw_figure("class-accuracy", [log([(0, -1, 1, 0.1)])], {})
    for radii in ([0, 1, 2, 3, 4], [-1], [float("nan")], []):
        with pytest.raises(ConfigError, match="one to 4 finite `radii`"):
            draw_figure("class-accuracy", [log(name=f"run{len(radii)}{radii[:1]}")], {"radii": radii})


def test_the_histogram_counts_correct_claims_and_names_the_rest(log):
    figure = draw_figure("radius-histogram", [log()], {"limit": 0.6})
    filled, outline = figure.axes[0].patches
    assert outline.get_label() == "σ = 0.25: 20.0 % abstained, 20.0 % wrong"
    counts = outline.get_data().values
    assert counts.sum() == pytest.approx(60)
    assert counts[10] == pytest.approx(20)  # 0.2 opens the eleventh of thirty bins
    assert counts[20] == pytest.approx(40)
    np.testing.assert_array_equal(filled.get_data().values, counts)


# All kinds


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_an_axis_must_end_somewhere(log, limit):
    for kind, options in (
        ("certified-accuracy", {}),
        ("radius-histogram", {}),
        ("attack-success", {"norms": [[1.0] * 5]}),
    ):
        with pytest.raises(ConfigError, match="`limit`"):
            draw_figure(kind, [log(name=kind)], {**options, "limit": limit})


def test_a_run_without_rows_is_refused(tmp_path, votes):
    empty = Run(tmp_path, votes.manifest, [])
    for kind in (
        "certified-accuracy",
        "lower-bound",
        "other-n",
        "theorem-accuracy",
        "class-accuracy",
        "radius-histogram",
    ):
        with pytest.raises(ConfigError, match="none yet"):
            draw_figure(kind, [empty], {})


def test_another_number_of_runs_or_unknown_options_are_refused(log):
    run = log()
    for kind, runs, options, message in (
        ("certified-acuracy", [run], {}, "Did you mean 'certified-accuracy'"),
        ("certified-accuracy", [], {}, "at least one run"),
        ("predictions", [run], {}, "at least 2 runs"),
        ("lower-bound", [run, run], {}, "exactly 1 run for lower-bound, got 2"),
        ("tuning", [run], {}, "no run for tuning"),
        ("draws", [run], {"rho": 0.1}, "`rho` has no meaning for draws; its own are: names"),
        ("tuning", [], {"rho": 0.1}, "its own are: none"),
        ("noise", [], {}, "For noise, `images` must be given"),
        ("certified-accuracy", [run], {"names": ["a", "b"]}, "a name for each of the 1 runs"),
    ):
        with pytest.raises(ConfigError, match=message):
            draw_figure(kind, runs, options)


def test_figures_of_all_sorts_are_the_same_file_twice(tmp_path, log, votes):
    pair = [predicted(tmp_path, 10, [0, 0, 1, 1]), predicted(tmp_path, 99, [0, 1, None, 1])]
    for kind, runs, options in (
        ("certified-accuracy", [log(name="a"), log(sigma=0.5, name="b")], {}),  # lines
        ("theorem-accuracy", [votes], {}),  # from votes that are put in random order
        ("predictions", pair, {}),  # bars and text
        ("noise", [], {"images": np.zeros((1, 3, 8, 8), np.uint8)}),  # images of random noise
    ):
        for name in ("first.svg", "second.svg"):
            save_figure(draw_figure(kind, runs, options), tmp_path / name)
        assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes(), kind


def test_every_option_of_a_kind_is_one_of_the_command():
    flags = {field.name for field in fields(Plot)} | {"images"}  # which --data stands for
    assert {name for kind in FIGURES.values() for name in kind.options} <= flags


def test_votes_on_record_must_be_enough_and_equal_and_fit_the_labels(tmp_path):
    path, labels = tmp_path / "votes.npy", tmp_path / "labels.npy"
    for counts, message in (
        ([[90, 10], [91, 10]], "same number of votes"),
        ([[90, 10]], "more than 100"),
        ([[0, 0]], "at least one vote"),
    ):
        np.save(path, np.array(counts))
        with pytest.raises(InputError, match=message):
            recorded_run(path, sigma=0.5)
    np.save(path, np.array([[900, 100]]))
    for truths in ([0, 1], [2], [-1]):
        np.save(labels, np.array(truths))
        with pytest.raises(InputError, match="1 labels from 0 to 1"):
            recorded_run(path, sigma=0.5, labels=labels)
    assert recorded_run(path, sigma=0.5).votes.tolist() == [[900, 100]]
    assert recorded_run(path, sigma=0.5).certificates[0].stages[0].n == Votes.of([50, 50]).n

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from smoothcert.errors import ConfigError, InputError, MissingExtraError, OutputError
from smoothcert.report import figures
from smoothcert.stats.radii import cohen_radius, max_radius

CURVES = {0.5: ([0.4, 0.0, 1.0], [True, False, True]), 0.25: ([0.3, 0.2, 0.1], [True, True, False])}


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_there_is_one_step_curve_per_sigma_labelled_and_in_order():
    drawn = lines(figures.certified_accuracy_figure(CURVES))
    assert list(drawn) == ["σ = 0.25", "σ = 0.5"]
    half = drawn["σ = 0.5"]
    assert half.get_drawstyle() == "steps-pre"
    np.testing.assert_allclose(half.get_xdata(), [0, 0.4, 1, 1])
    np.testing.assert_allclose(half.get_ydata(), [200 / 3, 200 / 3, 100 / 3, 0])
    assert len({line.get_color() for line in drawn.values()}) == 2


def test_the_undefended_curve_is_dashed_black_and_called_an_upper_bound():
    drawn = lines(figures.certified_accuracy_figure(CURVES, undefended=[0.0, 0.2, np.inf]))
    attacked = drawn["undefended (upper bound)"]
    assert attacked.get_color() == "black"
    assert attacked.is_dashed()
    np.testing.assert_allclose(attacked.get_ydata(), [200 / 3, 200 / 3, 100 / 3])


def test_refuses_a_figure_without_curves():
    with pytest.raises(InputError, match="at least one curve"):
        figures.certified_accuracy_figure({})


def test_the_noise_panel_has_a_row_per_image_and_a_column_per_sigma_after_the_clean_one():
    images = np.full((2, 1, 8, 8), 128, np.uint8)
    figure = figures.noise_panel(images, [0.12, 1.0])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["clean", "σ = 0.12", "σ = 1", "", "", ""]
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert all(one.dtype == np.uint8 for one in shown)  # as a screen has them
    np.testing.assert_array_equal(shown[0], 128)
    assert 0.05 < shown[1].std() / 255 < 0.2
    assert shown[2].min() == 0  # clipped for display
    assert shown[2].max() == 255
    assert not np.array_equal(shown[1], shown[4])


def test_the_noise_panel_shows_colour_images_and_refuses_other_shapes():
    noisy = figures.noise_panel(np.zeros((1, 3, 4, 4), np.uint8), [0.5]).axes[1].get_images()[0]
    assert noisy.get_array().shape == (4, 4, 3)
    for images in (np.zeros((1, 2, 4, 4), np.uint8), np.zeros((1, 3, 4, 4), np.float32), np.zeros((0, 3, 4, 4), "u1")):
        with pytest.raises(InputError, match="Expected 8-bit images"):
            figures.noise_panel(images, [0.5])
    with pytest.raises(ConfigError, match="sigma"):
        figures.noise_panel(np.zeros((1, 1, 4, 4), np.uint8), [0.0])


def test_the_same_seed_draws_the_same_noise_panel():
    def pixels(seed):
        figure = figures.noise_panel(np.zeros((1, 1, 4, 4), np.uint8), [0.5], seed=seed)
        return np.asarray(figure.axes[1].get_images()[0].get_array())

    np.testing.assert_array_equal(pixels(1), pixels(1))
    assert not np.array_equal(pixels(1), pixels(2))


def test_the_largest_radius_is_drawn_against_draws_and_marks_are_rounded_down():
    figure = figures.radius_by_draws_figure(0.25, 0.001, [1_000, 100_000])
    curve, marks = figure.axes[0].get_lines()
    assert curve.get_ydata()[-1] == pytest.approx(max_radius(1_000_000, 0.001, 0.25))
    np.testing.assert_allclose(marks.get_ydata(), [max_radius(n, 0.001, 0.25) for n in (1_000, 100_000)])
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.615", "0.952"]


def test_theorem_1_lies_above_the_bounds_before_it():
    drawn = lines(figures.prior_bounds_figure())
    cohen, li, lecuyer = (line.get_ydata() for line in drawn.values())
    p_a = next(iter(drawn.values())).get_xdata()
    np.testing.assert_allclose(cohen, cohen_radius(1 - p_a, sigma=1.0))
    assert np.all(cohen > li)
    assert np.all(li > lecuyer)


def test_saves_by_suffix_and_leaves_nothing_else(tmp_path):
    figure = figures.certified_accuracy_figure(CURVES)
    for name in ("a.png", "a.SVG", "a.pdf"):
        figures.save_figure(figure, tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.SVG", "a.pdf", "a.png"]
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")
    assert matplotlib.image.imread(tmp_path / "a.png").shape[:2] == (510, 780)
    text = "".join(ElementTree.parse(tmp_path / "a.SVG").getroot().itertext())
    assert "σ = 0.25" in text
    assert "certified accuracy (%)" in text


def test_equal_figures_are_equal_files(tmp_path):
    for suffix in figures.SUFFIXES:
        for name in ("a", "b"):
            figures.save_figure(figures.certified_accuracy_figure(CURVES), tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_pdf_has_no_date_and_its_letters_are_letters(tmp_path):
    figures.save_figure(figures.certified_accuracy_figure(CURVES), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"CreationDate" not in content
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content or b"/TrueType" in content


def test_refuses_other_suffixes_and_folders_that_do_not_exist(tmp_path):
    figure = figures.certified_accuracy_figure(CURVES)
    with pytest.raises(ConfigError, match=r"ends in .png, .svg or .pdf, got 'a.gif'"):
        figures.save_figure(figure, tmp_path / "a.gif")
    with pytest.raises(OutputError, match="there is no folder"):
        figures.save_figure(figure, tmp_path / "none" / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_says_which_extra_to_install_when_matplotlib_is_missing(monkeypatch):
    monkeypatch.setattr(figures.canvas, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"matplotlib is needed.*smoothcert\[plot\]"):
        figures.prior_bounds_figure()


def test_drawing_leaves_matplotlibs_settings_alone():
    before = dict(matplotlib.rcParams)
    figures.radius_by_draws_figure(0.25, 0.001)
    assert dict(matplotlib.rcParams) == before


def test_drawing_loads_neither_pyplot_nor_torch(tmp_path):
    code = (
        "import pathlib, sys; sys.modules['torch'] = None\n"
        "from smoothcert.report import figures, tables\n"
        "assert 'matplotlib' not in sys.modules\n"
        "figures.save_figure(figures.prior_bounds_figure(), pathlib.Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    target = tmp_path / "a.png"
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert target.stat().st_size > 1000

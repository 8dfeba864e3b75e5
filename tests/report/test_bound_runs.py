"""Deterministic bounds and attacks where certificates are shown: beside them, by their own names, never as more."""

import csv
import io
import json
import shlex

import numpy as np
import pytest
import torch

from attack_fixtures import (
    attack,
    attack_base,
    bound,
    certified,
    pixels,
    relu_network,
    with_small_attacks,
)
from page_fixtures import written
from smoothcert import runs
from smoothcert.cli import _parse, main
from smoothcert.cli.baseline import Baseline
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError, InputError
from smoothcert.report.figures import FIGURES, draw_figure, load_norms
from smoothcert.report.naming import run_names
from smoothcert.report.page import write_report
from smoothcert.report.page.commands import repeat_command
from smoothcert.report.page.runs import shown_runs
from smoothcert.report.run_tables import LOWER_BOUNDS, as_csv, run_table
from smoothcert.runs.attack_summary import outcomes
from smoothcert.runs.directory import Run
from smoothcert.runs.manifest import Manifest

METHODS = ("lipschitz", "dual", "crown")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bounds by every method, a smoothed run of the same network on the same inputs, and attacks on both kinds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        bound(path / method, method=method)
    certified(path / "smoothed", pixels(), network=relu_network())
    linear_run = certified(path / "linear")
    with pytest.MonkeyPatch.context() as patch:
        with_small_attacks(patch)
        attack(linear_run, path / "attacked", attacks=("paper", "abstain"), factor=(1.0, 2.0))
    attack_base(path / "undefended", pixels(), network=relu_network())
    torch.set_num_threads(before)
    return path


@pytest.fixture
def opened(folder):
    return lambda *names: [runs.open(folder / name) for name in names]


def accuracy(run, radius):
    return float(np.mean([row["label"] == row["true"] and row["radius"] >= radius for row in run.rows]))


def cells(table, row):
    return {column.heading: column.cells[row] for column in table.columns}


# ---- names ---------------------------------------------------------------------------------------------------------


def test_bounds_go_by_their_method_and_smoothed_runs_by_their_noise(opened):
    assert run_names(opened(*METHODS, "smoothed")) == ["Lipschitz margin", "dual", "CROWN", "σ = 0.5"]
    assert run_names(opened("crown")) == ["CROWN"]


def test_smoothed_runs_beside_a_bound_are_told_apart_as_ever(opened):
    [crown, smoothed] = opened("crown", "smoothed")
    other = Run(smoothed.path, Manifest({**smoothed.manifest.values, "alpha": 0.01}), smoothed.rows)
    assert run_names([crown, smoothed, other]) == ["CROWN", "σ = 0.5, α = 0.001", "σ = 0.5, α = 0.01"]


def test_two_bounds_by_one_method_are_told_apart_by_recipe_or_place(opened, tmp_path):
    [run] = opened("crown")
    values = run.manifest.values
    robust = Run(run.path, Manifest({**values, "model": {**values["model"], "recipe": "dual"}}), run.rows)
    assert len(set(run_names([run, robust]))) == 2
    assert "dual" in run_names([run, robust])[1]
    assert len(set(run_names([run, Run(tmp_path / "elsewhere", run.manifest, run.rows)]))) == 2


# ---- tables --------------------------------------------------------------------------------------------------------


def test_a_table_has_the_shares_that_the_rows_give(opened):
    found = opened(*METHODS, "smoothed")
    radii = (0.0, 0.02, 0.05, 0.1)
    table = run_table(found, radii)
    for row, run in enumerate(found[:3]):
        shown = cells(table, row)
        for radius in radii:
            share = accuracy(run, radius)
            assert 0 <= 100 * share - float(shown[f"{radius:g}"]) < 0.1
        assert shown["abst."] == "0.0"
        correct = np.mean([one["label"] == one["true"] for one in run.rows])
        assert 0 <= 100 * correct - float(shown["std."]) < 0.1
    assert any("deterministic" in note for note in table.notes)
    assert not any("deterministic" in note for note in run_table(found[3:], radii).notes)


@pytest.mark.parametrize("kind", LOWER_BOUNDS)
def test_lower_bounds_leave_what_is_deterministic_as_it_is(opened, kind):
    found, radii = opened("crown", "smoothed"), (0.0, 0.02, 0.05)
    plain = run_table(found, radii)
    lower = run_table(found, radii, lower_bound=0.001, bound=kind)
    for before, after in zip(plain.columns[:3], lower.columns[:3], strict=True):
        assert after.values[0] == before.values[0]
    assert lower.columns[0].values[1] < plain.columns[0].values[1], "the smoothed run's may be false"


def test_grouped_bounds_are_their_mean(opened):
    [run] = opened("dual")
    other = Run(run.path, run.manifest, [{**row, "radius": row["radius"] / 2} for row in run.rows])
    table = run_table([run, other], (0.0, 0.05), group=True, lower_bound=0.01)
    assert len(table.names) == 1
    assert table.columns[1].values[0] == pytest.approx((accuracy(run, 0.05) + accuracy(other, 0.05)) / 2)


def test_bounds_by_different_methods_do_not_share_a_row(opened):
    assert len(run_table(opened(*METHODS), group=True).names) == 3


def test_the_command_prints_and_writes_them(folder, tmp_path, capsys):
    paths = [str(folder / name) for name in ("crown", "smoothed")]
    assert main(["table", *paths, "--radii", "0", "0.05"]) == 0
    assert "CROWN" in capsys.readouterr().out
    assert main(["table", *paths, "--radii", "0", "0.05", "--out", str(tmp_path / "t.csv")]) == 0
    [head, first, _] = csv.reader(io.StringIO((tmp_path / "t.csv").read_text()))
    assert (first[0], head[1:3]) == ("CROWN", ["0", "0.05"])
    assert as_csv(run_table([runs.open(path) for path in paths], (0.0, 0.05))) == (tmp_path / "t.csv").read_text()


@pytest.mark.parametrize("name", ["attacked", "undefended"])
def test_attacks_are_no_certificates_for_a_table(folder, capsys, name):
    assert main(["table", str(folder / name)]) == 2
    assert "attacks: see `smoothcert plot attack-success`" in capsys.readouterr().err


# ---- figures -------------------------------------------------------------------------------------------------------


def test_a_curve_of_bounds_falls_where_the_rows_say(opened):
    found = opened("crown", "smoothed")
    figure = draw_figure("certified-accuracy", found, {})
    curves = {line.get_label(): line for line in figure.axes[0].lines}
    at, shares = curves["CROWN"].get_data()
    for radius in (0.01, 0.03, 0.06):
        drawn = shares[np.searchsorted(at, radius, side="left")]
        assert drawn == pytest.approx(100 * accuracy(found[0], radius))


# Kinds that need votes or noise say that they do, and of which run; all others draw.
DRAWN = ("certified-accuracy", "class-accuracy", "radius-histogram")


@pytest.mark.parametrize("kind", [name for name, one in FIGURES.items() if one.most and name != "attack-success"])
def test_every_figure_of_bounds_is_drawn_or_refused_in_a_line(folder, tmp_path, capsys, kind):
    words = ["--n", "100"] if kind == "other-n" else ["--alphas", "0.1"] if kind == "other-alpha" else []
    paths = [str(folder / "crown")] * (2 if FIGURES[kind].least == 2 else 1)
    code = main(["plot", kind, *paths, *words, "--out", str(tmp_path / "figure.svg")])
    captured = capsys.readouterr()
    assert (code == 0) == (kind in DRAWN) == (tmp_path / "figure.svg").exists()
    if code:
        assert code == 2
        assert captured.err.count("\n") == 1
        assert str(folder / "crown") in captured.err


@pytest.mark.parametrize("kind", [name for name, one in FIGURES.items() if one.most and name != "attack-success"])
@pytest.mark.parametrize("name", ["attacked", "undefended"])
def test_no_figure_takes_attacks_for_certificates(folder, tmp_path, capsys, kind, name):
    words = ["--n", "100"] if kind == "other-n" else ["--alphas", "0.1"] if kind == "other-alpha" else []
    paths = [str(folder / name)] * (2 if FIGURES[kind].least == 2 else 1)
    assert main(["plot", kind, *paths, *words, "--out", str(tmp_path / "figure.svg")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "figure.svg").exists()


def test_an_attacked_network_is_the_dashed_line(folder, tmp_path, opened):
    norms = load_norms(folder / "undefended")
    rows = runs.open(folder / "undefended").rows
    assert norms.tolist() == [np.inf if row["norm"] is None else row["norm"] for row in rows]
    figure = draw_figure("certified-accuracy", opened("crown"), {"undefended": norms})
    dashed = [line for line in figure.axes[0].lines if "undefended" in line.get_label()]
    assert len(dashed) == 1
    at, shares = dashed[0].get_data()
    middle = float(np.median(norms[norms > 0])) * 1.001
    assert shares[np.searchsorted(at, middle, side="left")] == pytest.approx(100 * np.mean(norms > middle))
    words = ["plot", "certified-accuracy", str(folder / "crown"), "--undefended", str(folder / "undefended")]
    assert main([*words, "--out", str(tmp_path / "figure.svg")]) == 0


@pytest.mark.parametrize("name", ["crown", "smoothed", "attacked"])
def test_only_an_attack_on_a_network_has_norms(folder, name):
    with pytest.raises(ConfigError, match="Expected a run of `smoothcert attack-base`"):
        load_norms(folder / name)


def test_an_attack_without_rows_yet_has_no_norms(folder, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes((folder / "undefended" / "run.json").read_bytes())
    with pytest.raises(InputError, match="norms"):
        load_norms(tmp_path / "run")


def test_the_success_of_attacks_is_drawn_with_what_was_counted(opened):
    [run] = opened("attacked")
    axes = draw_figure("attack-success", [run], {}).axes[0]
    drawn = {container.get_label(): container[0].get_data() for container in axes.containers}
    for attack_name in ("paper", "abstain"):
        own = [one for one in outcomes(run) if one.attack == attack_name]
        at, shares = drawn[f"{attack_name}: another class"]
        assert list(at) == pytest.approx([1.0, 2.0], abs=0.05)  # beside each other where they would overlap
        assert list(shares) == pytest.approx([100 * one.successes / one.attempts for one in own])
    dotted = {line.get_label(): line.get_ydata() for line in axes.lines if "abstained" in str(line.get_label())}
    own = [100 * one.abstentions / one.attempts for one in outcomes(run) if one.attack == "abstain"]
    assert list(dotted["abstain: abstained"]) == pytest.approx(own)
    assert max(own) > 0


def test_the_success_of_several_runs_and_of_none(opened, folder, tmp_path, capsys):
    [run] = opened("attacked")
    other = Run(tmp_path / "other", run.manifest, run.rows)
    labels = [one.get_label() for one in draw_figure("attack-success", [run, other], {}).axes[0].containers]
    assert len(set(labels)) == len(labels) == 4
    empty = Run(tmp_path / "empty", run.manifest, [])
    draw_figure("attack-success", [empty], {})
    for words in ([], [str(folder / "crown")], [str(folder / "undefended")]):
        assert main(["plot", "attack-success", *words, "--out", str(tmp_path / "figure.svg")]) == 2
        assert "smoothcert attack" in capsys.readouterr().err


# ---- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_page_of_bounds_speaks_of_no_chance(opened, tmp_path, method):
    page = written(opened(method), tmp_path / "report.html", data=pixels())
    assert "deterministic: each statement is true" in page.text
    assert "changes the network's answer" in page.text
    assert "For certain. Nothing is random" in page.text
    assert "Bounds of a network." in page.text
    assert {"lipschitz": "Tsuzuku", "dual": "Wong & Kolter", "crown": "Zhang"}[method] in page.text
    for word in ("smoothed classifier's", "Not the network by itself", "draws in all", "recorded votes"):
        assert word not in page.text
    assert "α" not in page.text
    assert "σ" not in page.text


def test_a_page_of_bounds_shows_no_noisy_copies(opened, tmp_path):
    page = written(opened("crown"), tmp_path / "report.html", data=pixels())
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert shown, "the inputs are shown"
    assert not any("Noisy" in one for one in shown)


def test_the_headline_of_bounds_is_the_share_that_the_rows_give(opened, tmp_path):
    [run] = opened("crown")
    page = written([run], tmp_path / "report.html")
    [one] = page.data["runs"]
    assert one["index"] == [row["index"] for row in run.rows]
    assert one["label"] == [row["label"] for row in run.rows]
    assert all(shown <= row["radius"] for shown, row in zip(one["radius"], run.rows, strict=True))
    right = sum(row["label"] == row["true"] for row in run.rows)
    assert f"11: {right} certified with their true class; {11 - right} with another class; 0 abstained" in page.text


def test_a_page_of_bounds_and_smoothing_says_which_is_which(opened, tmp_path):
    page = written(opened("dual", "smoothed"), tmp_path / "report.html")
    for words in (
        "deterministic: each statement is true",
        "each statement is false with probability at most α = 0.001",
        "Bounds of a network.",
        "Not the network by itself.",
        "changes the network's answer",
        "changes the smoothed classifier's answer",
    ):
        assert words in page.text


SELECTIONS = [None, [0, 3, 6, 9], [0, 1, 2], [5, 2, 7]]


@pytest.mark.parametrize("indices", SELECTIONS)
def test_the_command_that_makes_bounds_again_is_one_that_the_command_line_takes(tmp_path, indices):
    run = bound(tmp_path / "run", indices=indices, method="lipschitz", batch_size=3)
    words = shlex.split(repeat_command(shown_runs([run])[0]))
    command = _parse(words[1:])
    assert isinstance(command, Baseline)
    assert (command.method, command.batch_size, command.data) == ("lipschitz", 3, "pixels.npz")
    assert command.model == run.manifest.values["model"]["source"]
    assert command.select(pixels()).tolist() == run.manifest.indices
    command.check()


def test_the_page_has_that_command_and_the_one_that_verifies(opened, tmp_path):
    [run] = opened("crown")
    page = written([run], tmp_path / "report.html")
    assert repeat_command(shown_runs([run])[0]) in page.text
    assert f"smoothcert verify {run.path}" in page.text
    assert "with --again, bounds are computed once more" in page.text


def test_the_part_of_the_data_is_in_the_command(tmp_path):
    data = pixels()
    run = bound(tmp_path / "run", ArrayData(data.inputs, data.labels, None, "digits (train)"))
    assert _parse(shlex.split(repeat_command(shown_runs([run])[0]))[1:]).split == "train"


@pytest.mark.parametrize("name", ["attacked", "undefended"])
def test_a_page_does_not_take_attacks_for_certificates(opened, tmp_path, name):
    with pytest.raises(ConfigError, match="attack"):
        write_report(opened(name), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


# ---- other commands ------------------------------------------------------------------------------------------------


def test_show_says_what_bounds_are_and_nothing_of_draws(folder, capsys):
    assert main(["show", str(folder / "crown"), "--radii", "0", "0.05"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "deterministic (method=crown)" in shown
    assert "11, complete; 0 abstained" in shown
    for word in ("σ", "α", "draws"):
        assert word not in shown
    assert main(["show", str(folder / "crown"), "--radii", "0", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = runs.open(folder / "crown")
    assert found["certified"] == [accuracy(run, 0.0), accuracy(run, 0.05)]
    assert (found["kind"], found["alpha"], found["draws"]) == ("bound", 0.0, 0)
    assert main(["show", str(folder / "crown"), "--index", "3"]) == 0
    assert str(run.rows[3]["radius"]) in capsys.readouterr().out


def test_bounds_are_exported_rounded_down(folder, tmp_path, capsys):
    run = runs.open(folder / "crown")
    for ending in ("tsv", "csv", "parquet"):
        assert main(["export", str(folder / "crown"), "--out", str(tmp_path / f"run.{ending}")]) == 0
    lines = list(csv.DictReader(io.StringIO((tmp_path / "run.tsv").read_text()), delimiter="\t"))
    assert [int(line["predict"]) for line in lines] == [row["label"] for row in run.rows]
    for line, row in zip(lines, run.rows, strict=True):
        assert 0 <= row["radius"] - float(line["radius"]) < 1e-8
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "run.parquet")
    assert table["radius"].to_pylist() == [row["radius"] for row in run.rows]
    about = json.loads(table.schema.metadata[b"smoothcert"])
    assert (about["kind"], about["alpha"], about["procedure"]["method"]) == ("bound", 0.0, "crown")


@pytest.mark.parametrize("name", ["attacked", "undefended"])
def test_attacks_are_not_exported_as_certificates(folder, tmp_path, capsys, name):
    assert main(["export", str(folder / name), "--out", str(tmp_path / "run.tsv")]) == 2
    assert "attack" in capsys.readouterr().err
    assert not (tmp_path / "run.tsv").exists()


def test_bounds_have_a_page_and_figures_without_torch(folder, tmp_path):
    import subprocess
    import sys

    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': raise ImportError('blocked')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from smoothcert.cli import main\n"
        "run, out = sys.argv[1:]\n"
        "assert main(['show', run]) == 0\n"
        "assert main(['table', run]) == 0\n"
        "assert main(['verify', run]) == 0\n"
        "assert main(['report', run, '--out', out + '/a.html']) == 0\n"
        "assert main(['plot', 'certified-accuracy', run, '--out', out + '/a.svg']) == 0\n"
    )
    words = [sys.executable, "-c", code, str(folder / "crown"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_half_of_a_run_of_bounds_is_shown_with_a_notice(opened, tmp_path):
    [run] = opened("crown")
    half = Run(run.path, run.manifest, run.rows[:5])
    assert "not complete" in written([half], tmp_path / "report.html").text
    assert any("not complete" in note for note in run_table([half], (0.0,)).notes)

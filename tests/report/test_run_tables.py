"""Tables of runs: every number from the rows, none rounded up, the same in every form."""

import csv
import io
import re

import numpy as np
import pytest

from page_fixtures import made_run
from smoothcert.cli import main
from smoothcert.errors import ConfigError
from smoothcert.report.naming import run_names
from smoothcert.report.run_tables import as_csv, as_latex, as_markdown, run_table, table_radii
from smoothcert.runs.directory import Run, open_run
from smoothcert.runs.exchange import import_log
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.summary import summarize
from smoothcert.stats.test_set import bernstein_lower_bound, exact_lower_bound

HEAD = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


def log(rows):
    """The paper's form of (true, answer or −1, radius)."""
    body = [f"{i}\t{true}\t{answer}\t{radius}\t{int(true == answer)}\t1.0\n" for i, (true, answer, radius) in rows]
    return HEAD + "".join(body)


@pytest.fixture
def make_run(tmp_path):
    def make(name, rows, sigma=0.5, alpha=0.001):
        path = tmp_path / f"{name}.tsv"
        path.write_text(log(enumerate(rows)))
        return import_log(path, tmp_path / name, sigma=sigma, alpha=alpha, n=100_000, data="toy")

    return make


THREE = [(0, 0, 0.5), (1, 1, 0.3), (2, 0, 0.9)]  # right, right, wrong


def cells(table, row=0):
    return {column.heading: column.cells[row] for column in table.columns}


def test_accuracies_are_shares_of_all_rows_and_rounded_down(make_run):
    table = run_table([make_run("run", THREE)], [0, 0.4, 0.5, 0.6])
    shown = cells(table)
    assert [shown["0"], shown["0.4"], shown["0.5"], shown["0.6"]] == ["66.6", "33.3", "33.3", "0.0"]
    assert shown["ACR"] == "0.266"


def test_abstentions_are_rounded_up_and_count_as_not_certified(make_run):
    table = run_table([make_run("run", [*THREE, (0, -1, 0.0), (0, -1, 0.0), (1, -1, 0.0)])], [0])
    assert cells(table) == {"0": "33.3", "ACR": "0.133", "abst.": "50.0", "std.": "33.3"}


def test_the_best_of_each_column_is_marked_ties_all_and_zeros_never(make_run):
    runs = [make_run("a", THREE, 0.5), make_run("b", [(0, 0, 1.5), (1, 2, 0.1), (2, 2, 0.3)], 1.0)]
    table = run_table(runs, [0, 0.4, 1.0, 2.0])
    assert [sorted(column.best) for column in table.columns] == [[0, 1], [0, 1], [1], [], [1], [], []]


def test_one_run_alone_has_no_best(make_run):
    assert all(not column.best for column in run_table([make_run("a", THREE)], [0]).columns)


@pytest.mark.parametrize(("bound", "function"), [("exact", exact_lower_bound), ("paper", bernstein_lower_bound)])
def test_lower_bounds_are_of_the_inputs_of_the_run_and_the_note_says_so(make_run, bound, function):
    rows = [(0, 0, 0.5)] * 400 + [(0, 1, 0.5)] * 100
    table = run_table([make_run("run", rows)], [0.25], lower_bound=0.001, bound=bound)
    expected = float(function(400, 500, alpha=0.001, rho=0.001))
    assert table.columns[0].values[0] == expected < 0.8
    assert float(table.columns[0].cells[0]) <= 100 * expected
    [note] = [note for note in table.notes if "lower bounds" in note]
    assert "0.999" in note
    assert "these inputs" in note
    assert "nothing about other inputs" in note
    assert "whole test set" not in " ".join(table.notes)


HASHED = {"source": "net.safetensors", "weights_hash": "sha256:ab"}


def test_groups_show_the_mean_of_runs_that_differ_in_inputs_only(make_run):
    runs = [make_run("a", THREE), make_run("b", [(0, 0, 0.5)] * 3), make_run("c", THREE, sigma=1.0)]
    table = run_table([named(run, **HASHED) for run in runs], [0], group=True)
    assert len(table.names) == 2
    assert "mean of 2" in table.names[0]
    assert cells(table)["0"] == "83.3"  # of 2/3 and 1, rounded down


@pytest.mark.parametrize(
    "changes",
    [
        {"weights_hash": "sha256:cd"},
        {"source": "other.py:make"},  # another architecture may have the same weights
        {"input_shape": [1, 28, 28]},
        {"recipe": "macer"},
        {"kind": "onnx"},
        {"top": {"data": {"name": "toy", "fingerprint": "sha256:ef"}}},
        {"top": {"plan": {"executed": "int8 of it"}}},
    ],
)
def test_runs_of_other_models_or_data_are_not_averaged(make_run, changes):
    one, other = make_run("a", THREE), make_run("b", [(0, 0, 0.5)] * 3)
    first, second = named(one, **HASHED), named(named(other, **HASHED), **changes)
    assert len(run_table([first, named(other, **HASHED)], [0], group=True).names) == 1
    assert len(run_table([first, second], [0], group=True).names) == 2


def test_trainings_that_differ_in_their_seed_are_averaged(make_run):
    runs = [named(make_run(name, THREE), **HASHED) for name in "ab"]
    first = named(runs[0], design="sha256:12", weights_hash="sha256:34", source="a/model.safetensors")
    second = named(runs[1], design="sha256:12", weights_hash="sha256:56", source="b/model.safetensors")
    other = named(runs[1], design="sha256:78", weights_hash="sha256:56", source="b/model.safetensors")
    assert len(run_table([first, second], [0], group=True).names) == 1
    assert len(run_table([first, other], [0], group=True).names) == 2


def test_runs_of_unknown_models_are_not_averaged(make_run):
    runs = [make_run("a", THREE), make_run("b", THREE)]
    assert len(run_table(runs, [0], group=True).names) == 2


def test_a_mean_of_lower_bounds_shares_its_error_among_the_runs(make_run):
    rows = [(0, 0, 0.5)] * 400 + [(0, 1, 0.5)] * 100
    runs = [named(make_run(name, rows), **HASHED) for name in "ab"]
    table = run_table(runs, [0.25], group=True, lower_bound=0.001, bound="exact")
    assert table.columns[0].values[0] == float(exact_lower_bound(400, 500, alpha=0.001, rho=0.0005))


def test_rows_whose_votes_give_less_than_is_recorded_count_by_their_votes():
    run = made_run("paper", 12)
    better = [{**row, "radius": 9.0} for row in run.rows]
    table = run_table([Run(run.path, run.manifest, better)], [0, 5])
    honest = run_table([run], [0, 5])
    assert [c.cells for c in table.columns] == [c.cells for c in honest.columns]
    assert "do not give what is recorded" in table.notes[-1]
    assert "do not give what is recorded" not in " ".join(honest.notes)


def test_all_forms_show_the_same_cells(make_run):
    table = run_table([make_run("a", THREE, 0.5), make_run("b", THREE, 1.0)], [0, 0.5])
    rows = [[column.cells[row] for column in table.columns] for row in range(2)]
    markdown = [line for line in as_markdown(table).splitlines() if line.startswith("| σ")]
    assert [re.findall(r"[\d.]+", line.split("|", 2)[2]) for line in markdown] == rows
    latex = [line for line in as_latex(table).splitlines() if line.startswith("$")]
    assert [re.findall(r"\d[\d.]*", line.split("&", 1)[1]) for line in latex] == rows
    assert as_latex(table).count(r"\toprule") == as_latex(table).count(r"\bottomrule") == 1


def test_csv_has_all_digits(make_run):
    table = run_table([make_run("a", THREE, 0.5), make_run("b", [(0, 0, 0.123456789), (1, 1, 0.3)], 1.0)], [0, 0.5])
    head, *lines = csv.reader(io.StringIO(as_csv(table)))
    assert head == ["run", "0", "0.5", "ACR", "abst.", "std."]
    for row, line in enumerate(lines):
        assert [float(cell) for cell in line[1:]] == [column.values[row] for column in table.columns]
    assert lines[0][1] == repr(2 / 3)
    assert lines[1][3] == repr((0.123456789 + 0.3) / 2)


# ---- radii that were not tested ------------------------------------------------------------------------------------


def grid_and_plan():
    """A run that tested 0, 0.25 and 0.5, and one with a radius per input."""
    return [made_run("grid", 40), made_run("planned", 40, draws=1)]


def test_a_radius_that_was_not_tested_has_no_number_and_no_best():
    grid, plan = grid_and_plan()
    table = run_table([grid, plan], [0.0, 0.1, 0.25, 0.75, 1.0, 2.0])
    shown, others = cells(table, 0), cells(table, 1)
    assert [shown[radius] for radius in ("0.1", "0.75", "1")] == ["–"] * 3
    assert all(others[radius] != "–" for radius in ("0", "0.1", "0.25", "0.75", "1", "2"))
    assert (shown["2"], others["2"]) == ("0.0", "0.0"), "no run of 2,000 draws certifies this far"
    best = {column.heading: sorted(column.best) for column in table.columns}
    assert best["0.1"] == best["0.75"] == best["1"] == []
    assert best["0"] != []
    assert any("did not test this radius" in note for note in table.notes)


def test_a_grid_run_is_not_beaten_where_it_was_not_asked(make_run):
    """A run that is weaker at 0.25 used to be the best at 0.3, where the grid run's next test is at 0.5."""
    grid = made_run("grid", 40)
    quarter, half = (round(40 * share) for share in summarize(grid, [0.25, 0.5])["certified"])
    assert quarter - 1 > half
    weaker = make_run("weaker", [(0, 0, 0.4)] * (quarter - 1) + [(0, 1, 0.4)] * (41 - quarter))
    tested, between = run_table([grid, weaker], [0.25, 0.3]).columns[:2]
    assert tested.best == {0}
    assert between.best == frozenset()


def test_averages_of_tested_radii_and_of_radii_stand_in_columns_of_their_own():
    table = run_table(grid_and_plan(), [0.0])
    shown = {column.heading: column for column in table.columns}
    assert shown["ACR"].values[0] is None
    assert shown["grid ACR"].values[1] is None
    assert shown["ACR"].cells[0] == shown["grid ACR"].cells[1] == "–"
    assert shown["ACR"].best == shown["grid ACR"].best == frozenset()
    assert any("not comparable with ACR" in note for note in table.notes)
    alone = run_table([made_run("grid", 40)], [0.0])
    assert "ACR" not in [column.heading for column in alone.columns]


def test_grid_averages_are_compared_between_equal_grids_only():
    first = made_run("grid", 40)
    values = {**first.manifest.values, "procedure": {**first.manifest.values["procedure"], "radii": [0.0, 0.25]}}
    other = Run(first.path / "other", Manifest(values), first.rows)

    def best(runs):
        [column] = [column for column in run_table(runs, [0.0]).columns if column.heading == "grid ACR"]
        return sorted(column.best)

    assert best([first, other]) == []
    assert best([first, made_run("grid", 40, draws=3)]) != []


def test_radii_with_and_without_a_margin_are_told_apart_and_not_compared():
    plain, other, margin = made_run("planned", 40), made_run("planned", 40, draws=1), made_run("margin", 40, draws=1)
    mixed = run_table([plain, margin], [0.0, 0.25])
    assert mixed.names[1] == "σ = 0.5, lead ≥ 0.1"
    assert "lead" not in mixed.names[0]
    assert not any(column.best for column in mixed.columns)
    assert any("leads every other class by at least m" in note for note in mixed.notes)
    assert any("not comparable" in note for note in mixed.notes)
    alike = run_table([margin, made_run("margin", 40, draws=2)], [0.0, 0.25])
    assert any(column.best for column in alike.columns)
    assert all(name.endswith("lead ≥ 0.1") for name in alike.names)
    assert any("leads every other" in note for note in alike.notes)
    assert not any("not comparable" in note for note in alike.notes)
    assert not any("lead" in note for note in run_table([plain, other], [0.0]).notes)


def test_a_mean_is_taken_of_runs_with_one_margin_only():
    runs = [made_run(name, 40, draws=draws) for name, draws in (("planned", 0), ("margin", 1), ("margin", 2))]
    assert len(run_table(runs, [0.0], group=True).names) == 2


def test_a_run_that_records_a_retired_setting_as_off_is_averaged_with_one_that_does_not_have_it():
    new, other = made_run("planned", 40, draws=0), made_run("planned", 40, draws=1)
    old = [other.manifest.values["procedure"] | {"randomized": switch} for switch in (False, True)]
    off, on = (Run(other.path, Manifest({**other.manifest.values, "procedure": one}), other.rows) for one in old)
    assert len(run_table([new, off], [0.0], group=True).names) == 1
    assert len(run_table([new, on], [0.0], group=True).names) == 2


def test_unknown_cells_are_dashes_in_every_form_and_empty_in_csv():
    table = run_table(grid_and_plan(), [0.0, 0.1])
    [markdown] = [line for line in as_markdown(table).splitlines() if line.startswith("| Grid")]
    [latex] = [line for line in as_latex(table).splitlines() if line.startswith("Grid")]
    [line] = [line for line in csv.reader(io.StringIO(as_csv(table))) if line[0] == "Grid"]
    assert markdown.split("|")[3].strip() == "–"
    assert latex.split("&")[2].strip() == "--"
    assert line[2] == ""
    assert "textbf{--}" not in as_latex(table)
    assert "**–**" not in as_markdown(table)


def test_the_columns_are_the_radii_that_runs_have_in_common_and_what_lies_beyond():
    grid, plan = grid_and_plan()
    radii = table_radii([grid, plan])
    assert radii[:3] == (0.0, 0.25, 0.5)
    assert radii[3:] == (1.0,) or all(radius > 0.5 for radius in radii[3:])
    first = {**grid.manifest.values, "procedure": {**grid.manifest.values["procedure"], "radii": [0.0, 0.3, 0.5]}}
    assert table_radii([grid, Run(grid.path, Manifest(first), grid.rows)]) == (0.0, 0.5)


def test_headings_have_all_digits_of_a_radius(make_run):
    """Rounded to six digits, 0.3000004 would be 0.3, and 0.12345678 more than was tested."""
    table = run_table([make_run("a", THREE)], [0.12345678, 0.3000004])
    assert [column.heading for column in table.columns[:2]] == ["0.12345678", "0.3000004"]
    assert cells(table)["0.3000004"] == "33.3"


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_notes_say_which_inputs_the_shares_are_about(make_run):
    run = made_run("paper", 40)
    assert "Inputs: data.npz, all 40 inputs." in run_table([run], [0.0]).notes
    few = Run(run.path, Manifest({**run.manifest.values, "indices": [1, 4, 30]}), [run.rows[k] for k in (1, 4, 30)])
    assert "Inputs: data.npz, 3 chosen inputs: not a sample of the 40." in run_table([few], [0.0]).notes
    both = run_table([run, few], [0.0]).notes
    assert [note for note in both if "not a sample" in note] == [
        f"Inputs of {few.path}: data.npz, 3 chosen inputs: not a sample of the 40."
    ]


def test_names_with_letters_that_latex_reads_otherwise_are_escaped(make_run):
    runs = [make_run("a_1%", THREE), make_run("b&2", THREE)]
    shown = as_latex(run_table(runs, [0]))
    assert r"a\_1\%" in shown
    assert r"b\&2" in shown


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _: [], "at least one run"),
        (lambda make: [_without_labels(make("a", THREE))], "true classes are not known"),
        (lambda make: [_empty(make("a", THREE))], "no rows"),
    ],
)
def test_what_has_no_accuracy_is_a_clear_error(make_run, change, named):
    with pytest.raises(ConfigError, match=named):
        run_table(change(make_run))


def _without_labels(run):
    return Run(run.path, run.manifest, [{**row, "true": None} for row in run.rows])


def _empty(run):
    return Run(run.path, run.manifest, [])


def test_radii_suit_the_runs(make_run):
    runs = [make_run("a", THREE, 0.5), make_run("b", [(0, 0, 3.4)] * 3, 1.0)]
    radii = table_radii(runs)
    assert radii[0] == 0
    assert np.allclose(np.diff(radii), radii[1])
    assert 3.4 - radii[1] < radii[-1] <= 3.4


def named(run, **changes):
    values = {**run.manifest.values, **changes.pop("top", {})}
    return Run(run.path, Manifest({**values, "model": {**values["model"], **changes}}), run.rows)


def test_names_tell_what_differs_and_no_more(make_run):
    run = make_run("a", THREE)
    assert run_names([run]) == ["σ = 0.5"]
    assert run_names([run, make_run("b", THREE, 1.0)]) == ["σ = 0.5", "σ = 1"]
    assert run_names([named(run, recipe="macer"), named(run, recipe="gaussian")]) == ["macer", "gaussian"]
    assert run_names([named(run, trained_sigma=0.25), named(run, trained_sigma=0.5)]) == ["trained at 0.25", "σ = 0.5"]
    assert run_names([run, make_run("c", THREE)]) == ["a", "c"]
    assert run_names([run, run]) == ["1", "2"]


def test_the_command_prints_and_writes(make_run, tmp_path, capsys):
    run = make_run("a", THREE)
    assert main(["table", str(run.path), "--radii", "0", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "66.6" in shown
    assert "rounded down" in shown
    assert main(["table", str(run.path), "--out", str(tmp_path / "t.csv")]) == 0
    assert (tmp_path / "t.csv").read_text().startswith("run,0,")
    assert main(["table", str(run.path), "--out", str(tmp_path / "t.doc")]) == 2
    assert ".md, .tex or .csv" in capsys.readouterr().err


def test_a_wide_table_is_not_cut_off(make_run, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    run = make_run("a", THREE)
    main(["table", str(run.path), "--radii", *(str(k / 20) for k in range(12))])
    assert "…" not in capsys.readouterr().out


def test_a_run_is_opened_from_its_directory(make_run):
    run = make_run("a", THREE)
    assert run_table([open_run(run.path)], [0]) == run_table([run], [0])

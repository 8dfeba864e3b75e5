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
def test_lower_bounds_are_those_of_the_whole_test_set(make_run, bound, function):
    rows = [(0, 0, 0.5)] * 400 + [(0, 1, 0.5)] * 100
    table = run_table([make_run("run", rows)], [0.25], lower_bound=0.001, bound=bound)
    expected = float(function(400, 500, alpha=0.001, rho=0.001))
    assert table.columns[0].values[0] == expected < 0.8
    assert float(table.columns[0].cells[0]) <= 100 * expected
    assert "0.999" in table.notes[1]


def test_groups_show_the_mean_of_runs_that_differ_in_inputs_only(make_run):
    runs = [make_run("a", THREE), make_run("b", [(0, 0, 0.5)] * 3), make_run("c", THREE, sigma=1.0)]
    table = run_table(runs, [0], group=True)
    assert len(table.names) == 2
    assert "mean of 2" in table.names[0]
    assert cells(table)["0"] == "83.3"  # of 2/3 and 1, rounded down


def test_a_mean_of_lower_bounds_shares_its_error_among_the_runs(make_run):
    rows = [(0, 0, 0.5)] * 400 + [(0, 1, 0.5)] * 100
    runs = [make_run("a", rows), make_run("b", rows)]
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
    from_csv = list(csv.reader(io.StringIO(as_csv(table))))
    assert [line[1:] for line in from_csv[1:]] == rows
    markdown = [line for line in as_markdown(table).splitlines() if line.startswith("| σ")]
    assert [re.findall(r"[\d.]+", line.split("|", 2)[2]) for line in markdown] == rows
    latex = [line for line in as_latex(table).splitlines() if line.startswith("$")]
    assert [re.findall(r"\d[\d.]*", line.split("&", 1)[1]) for line in latex] == rows
    assert as_latex(table).count(r"\toprule") == as_latex(table).count(r"\bottomrule") == 1


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

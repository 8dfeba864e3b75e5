"""The forms of the paper's Tables 1 (ImageNet: best σ by radius) and 4 (PREDICT by n), in every format."""

import csv
import io
import re

import numpy as np
import pytest

from evidence import LOGS
from page_fixtures import made_run
from smoothcert.cli import main
from smoothcert.errors import ConfigError
from smoothcert.report.predictions import prediction_table
from smoothcert.report.run_tables import as_csv, as_latex, as_markdown, best_table, run_table
from smoothcert.runs.exchange import import_log
from smoothcert.stats.accuracy import ceil_percent, floor_percent
from smoothcert.stats.test_set import exact_lower_bound, simultaneous_lower_bound

published = pytest.mark.skipif(not LOGS.is_dir(), reason=f"the published logs are not there: {LOGS}")


def certified(tmp_path, name, rows, sigma, alpha=0.001):
    """A run of (true, answer, radius)."""
    lines = [f"{i}\t{true}\t{answer}\t{radius}\t{int(true == answer)}\t1.0" for i, (true, answer, radius) in rows]
    path = tmp_path / f"{name}.tsv"
    path.write_text("\n".join(["idx\tlabel\tpredict\tradius\tcorrect\ttime", *lines]) + "\n")
    return import_log(path, tmp_path / name, sigma=sigma, alpha=alpha, n=100_000, data="toy")


def predicted(tmp_path, n, answers, truths, alpha=0.001):
    """A run of PREDICT with these answers; −1 abstains."""
    rows = enumerate(zip(truths, answers, strict=True))
    lines = [f"{i}\t{true}\t{answer}\t{int(true == answer)}\t1.0" for i, (true, answer) in rows]
    path = tmp_path / f"predicted-{n}.tsv"
    path.write_text("\n".join(["idx\tlabel\tpredict\tcorrect\ttime", *lines]) + "\n")
    return import_log(path, tmp_path / f"predicted-{n}", sigma=0.25, alpha=alpha, n=n, data="toy")


@pytest.fixture
def runs(tmp_path):
    """Three inputs at three noise levels: the lower one certifies more inputs, the higher one larger radii."""
    small = [(0, 0, 0.4), (1, 1, 0.4), (2, 2, 0.3)]
    middle = [(0, 0, 1.2), (1, 1, 0.4), (2, 0, 0.3)]
    large = [(0, 0, 1.2), (1, 0, 2.4), (2, -1, 0.0)]
    return [
        certified(tmp_path, name, enumerate(rows), sigma)
        for name, rows, sigma in (("a", small, 0.25), ("b", middle, 0.5), ("c", large, 1.0))
    ]


def rows_of(table):
    return [(name, *(column.cells[row] for column in table.columns)) for row, name in enumerate(table.names)]


# ---- the best run by radius ----------------------------------------------------------------------------------------


def test_each_radius_has_its_best_run_with_certified_and_standard_accuracy(runs):
    table = best_table(runs, [0.25, 0.4, 1.0, 3.0])
    assert [column.heading for column in table.columns] == ["best", "certified", "std."]
    assert rows_of(table) == [
        ("0.25", "σ = 0.25", "100.0", "100.0"),
        ("0.4", "σ = 0.25", "66.6", "100.0"),  # as many as σ = 0.5 certifies, and the higher standard accuracy
        ("1", "σ = 0.5", "33.3", "66.6"),  # as many as σ = 1 certifies
        ("3", "–", "0.0", "–"),
    ]


def test_equal_runs_are_told_apart_by_standard_accuracy_and_not_by_their_order(runs):
    assert rows_of(best_table(runs[::-1], [0.4, 1.0])) == rows_of(best_table(runs, [0.4, 1.0]))


def test_the_best_has_the_numbers_of_the_table_of_runs(runs):
    radii = [0, 0.3, 0.4, 1.2]
    by_run, by_radius = run_table(runs, radii), best_table(runs, radii)
    for row, column in enumerate(by_run.columns[: len(radii)]):
        place = by_run.names.index(by_radius.columns[0].values[row])
        assert by_radius.columns[1].values[row] == column.values[place] == max(column.values)
        assert by_radius.columns[2].values[row] == by_run.columns[-1].values[place]


def test_there_is_no_best_where_a_run_did_not_test_the_radius():
    grid, plan = made_run("grid", 40), made_run("planned", 40, draws=1)
    table = best_table([grid, plan], [0.25, 0.3])
    assert table.columns[0].values[0] in ("Grid", "Planned")
    assert [column.cells[1] for column in table.columns] == ["–", "–", "–"]
    assert any("did not test it" in note for note in table.notes)


@pytest.mark.parametrize(
    ("bound", "function"), [("exact", exact_lower_bound), ("simultaneous", simultaneous_lower_bound)]
)
def test_lower_bounds_share_their_error_among_the_runs_that_were_compared(tmp_path, bound, function):
    """The best of k bounds holds only if all of them may be relied on: each gets ρ/k, not ρ."""
    pair = [
        certified(tmp_path, name, enumerate([(0, 0, 0.3)] * right + [(0, 1, 0.3)] * (500 - right)), sigma, alpha=0.01)
        for name, right, sigma in (("a", 400, 0.25), ("b", 390, 0.5))
    ]
    table = best_table(pair, [0.25], lower_bound=0.001, bound=bound)
    value = table.columns[1].values[0]
    assert value == float(function([400], 500, alpha=0.01, rho=0.0005)[0])
    assert value < run_table(pair, [0.25], lower_bound=0.001, bound=bound).columns[0].values[0]


def test_the_best_of_many_lower_bounds_is_rarely_above_the_truth():
    """Simulated: 20 equal classifiers, the best of their bounds. With ρ for each, it fails far more often than ρ."""
    from scipy.stats import binomtest

    rng, alpha, rho, count, k = np.random.default_rng(0), 0.05, 0.05, 100, 20
    # In truth half of the inputs are robust; every other one is certified falsely with probability α.
    certified_counts = 50 + rng.binomial(50, alpha, (400, k))
    highest = certified_counts.max(axis=1)

    def failures(part):
        return int(sum(float(exact_lower_bound(int(y), count, alpha=alpha, rho=part)) > 0.5 for y in highest))

    assert binomtest(failures(rho / k), 400, rho, alternative="greater").pvalue > 1e-3
    assert binomtest(failures(rho), 400, rho, alternative="greater").pvalue < 1e-3


# ---- PREDICT -------------------------------------------------------------------------------------------------------


def test_answers_are_counted_in_the_five_categories_against_the_run_with_the_most_draws(tmp_path):
    truths = [0, 0, 0, 1, 1, 2]
    gold = predicted(tmp_path, 100_000, [0, 0, 1, 1, 0, 0], truths)
    few = predicted(tmp_path, 100, [0, -1, 0, 0, 0, -1], truths)
    more = predicted(tmp_path, 1_000, [0, 0, 1, 1, 0, 1], truths)
    table = prediction_table([gold, more, few])
    assert [column.heading for column in table.columns] == [
        "correct, accurate",
        "correct, inaccurate",
        "incorrect, accurate",
        "incorrect, inaccurate",
        "abstained",
    ]
    assert table.names == ("100", "1000")
    counts = np.array([column.values for column in table.columns]).T * 6
    np.testing.assert_allclose(counts, [[1, 1, 1, 1, 2], [3, 0, 2, 1, 0]])
    assert rows_of(table)[0][1:] == ("16.6", "16.6", "16.7", "16.7", "33.4")  # correct down, all else up
    assert "n = 100,000" in " ".join(table.notes)


def test_runs_that_do_not_answer_the_same_questions_are_refused(tmp_path, runs):
    one = predicted(tmp_path, 100, [0, 0], [0, 1])
    with pytest.raises(ConfigError, match="at least 2 runs"):
        prediction_table([one])
    with pytest.raises(ConfigError, match="differ in alpha"):
        prediction_table([one, predicted(tmp_path, 1_000, [0, 0], [0, 1], alpha=0.01)])
    with pytest.raises(ConfigError, match="holds certificates"):
        prediction_table([one, runs[0]])


# ---- formats and the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["best", "predictions"])
def test_all_formats_have_the_same_cells(tmp_path, runs, form):
    if form == "best":
        table = best_table(runs, [0.25, 1.0, 3.0])
    else:
        table = prediction_table([predicted(tmp_path, n, [0, 1, -1], [0, 0, 0]) for n in (100, 1_000, 10_000)])
    markdown = [re.split(r" *\| *", line)[1:-1] for line in as_markdown(table).splitlines() if line.startswith("|")]
    assert markdown[0] == [table.corner, *(column.heading for column in table.columns)]
    assert [tuple(line) for line in markdown[2:]] == rows_of(table)
    latex = [line.removesuffix(r" \\") for line in as_latex(table).splitlines() if line.endswith(r"\\")]
    assert latex[0].startswith(f"{table.corner} & ")
    plain = [line.replace(r"$\sigma$", "σ").replace("--", "–").split(" & ") for line in latex[1:]]
    assert [tuple(line) for line in plain] == rows_of(table)
    head, *lines = csv.reader(io.StringIO(as_csv(table)))
    assert head == [table.corner, *(column.heading for column in table.columns)]
    for row, line in enumerate(lines):
        values = ["" if column.values[row] is None else column.values[row] for column in table.columns]
        assert [
            cell if isinstance(value, str) else float(cell) for cell, value in zip(line[1:], values, strict=True)
        ] == (values)


def test_the_command_makes_both_forms(tmp_path, runs, capsys):
    paths = [str(run.path) for run in runs]
    assert main(["table", *paths, "--best", "--radii", "0.25", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"radius +best +certified +std\.", shown)
    assert re.search(r"0\.25 +σ = 0\.25 +100\.0 +100\.0", shown)
    answers = [str(predicted(tmp_path, n, [0, 1, -1], [0, 0, 0]).path) for n in (100, 1_000)]
    assert main(["table", *answers, "--format", "markdown"]) == 0
    assert "| 100 | 33.3 | 0.0 | 33.4 | 0.0 | 33.4 |" in capsys.readouterr().out
    assert main(["table", *answers, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("100,0.333")
    for flags in (["--radii", "0"], ["--best"], ["--group"], ["--lower-bound", "0.001"]):
        assert main(["table", *answers, *flags]) == 2
        assert f"{flags[0]} is for runs that certify" in capsys.readouterr().err
    assert main(["table", answers[0], paths[0]]) == 2
    assert "needs runs that predict only" in capsys.readouterr().err


# ---- beside the paper ----------------------------------------------------------------------------------------------


@published
def test_the_paper_s_table_1_but_for_the_row_that_contradicts_its_table_2(tmp_path):
    """Printed at r = 2: σ = 0.50, 19 %, standard accuracy 57 %. Table 2 of ImageNet has 0 % there for σ = 0.50."""
    logs = [
        import_log(
            LOGS / f"certify/imagenet/resnet50/noise_{s}/test/sigma_{s}", tmp_path / s, sigma=float(s), alpha=0.01
        )
        for s in ("0.25", "0.50", "1.00")
    ]
    table = best_table(logs, [0.5, 1, 2, 3])
    names, shares, standard = (column.values for column in table.columns)
    assert names == ("σ = 0.25", "σ = 0.5", "σ = 1", "σ = 1")
    assert [round(100 * share) for share in shares] == [49, 37, 19, 12]
    assert [round(100 * share) for share in standard] == [67, 57, 44, 44]
    half = run_table(logs, [2.0]).columns[0].values[1]
    assert half == 0, "σ = 0.5 certifies nothing at 2: what is printed in Table 1 cannot be"


@published
def test_the_paper_s_table_4_up_to_its_failure_probability(tmp_path):
    """PREDICT by n; the logs abstain less than the printed 12, 4 and 1 %, as they would at α = 0.01."""
    runs = [
        import_log(
            LOGS / f"predict/imagenet/resnet50/noise_0.25/test/N_{n}", tmp_path / str(n), sigma=0.25, alpha=0.01, n=n
        )
        for n in (100, 1_000, 10_000, 100_000)
    ]
    table = prediction_table(runs)
    cells = [[column.cells[row] for column in table.columns] for row in range(3)]
    assert cells == [
        [floor_percent(0.66), "0.0", ceil_percent(0.248), "0.0", ceil_percent(0.092)],
        [floor_percent(0.68), "0.0", ceil_percent(0.288), "0.0", ceil_percent(0.032)],
        [floor_percent(0.69), "0.0", ceil_percent(0.3), "0.0", ceil_percent(0.01)],
    ]

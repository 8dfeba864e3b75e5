"""What the numbers of a run are about: radii that were tested or are out of reach, and inputs chosen by a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from page_fixtures import PROCEDURES, made_run
from smoothcert.noise import GaussianNoise
from smoothcert.records import Votes
from smoothcert.runs.directory import Run
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.scope import inputs_in_words, is_decided, largest_possible_radius, radii_tested
from smoothcert.runs.summary import summarize
from smoothcert.stats.grid import Grid
from smoothcert.stats.procedures import run as run_procedure
from smoothcert.stats.radii import max_radius

# ---- radii ---------------------------------------------------------------------------------------------------------


def test_only_grid_runs_have_tested_radii():
    assert radii_tested(made_run("grid", 4)) == (0.0, 0.25, 0.5)
    for name in ("paper", "planned"):
        run = made_run(name, 4)
        assert radii_tested(run) is None
        assert is_decided(run, 0.123)


def test_a_grid_run_decides_what_it_tested_and_what_is_out_of_reach():
    run = made_run("grid", 4)
    assert [is_decided(run, radius) for radius in (0.0, 0.25, 0.5)] == [True] * 3
    assert [is_decided(run, radius) for radius in (0.1, 0.3, 0.75, 1.0)] == [False] * 4
    reach = max_radius(2_000, 0.001, 0.5)
    assert not is_decided(run, reach)
    assert [is_decided(run, radius) for radius in (1.01 * reach, 5.0)] == [True] * 2


def claimed_on_unanimous_votes(procedure: Grid) -> float:
    """The radius that a procedure claims if every draw votes for one class."""
    bounds, _ = run_procedure(procedure, lambda _, n: Votes.of([n, 0, 0]))
    return GaussianNoise(procedure.sigma).radius(bounds)


@pytest.mark.parametrize("rival", [False, True])
@pytest.mark.parametrize("label", [None, 0])
@pytest.mark.parametrize(
    ("n_max", "alpha", "margin"),
    [(200, 0.001, 0.0), (2_000, 0.001, 0.0), (2_000, 0.05, 0.0), (30_000, 1e-6, 0.0), (2_000, 0.001, 0.3)],
)
def test_no_grid_certifies_beyond_its_reach_even_on_unanimous_votes(n_max, alpha, margin, rival, label):
    run = made_run("grid", 1, alpha=alpha)
    settings = {**run.manifest.values["procedure"], "n_max": n_max, "margin": margin}
    reach = largest_possible_radius(Run(run.path, Manifest({**run.manifest.values, "procedure": settings}), run.rows))
    radii, common = (0.0, 0.9 * reach, 1.0001 * reach), {"n_max": n_max, "alpha": alpha, "margin": margin}
    claimed = claimed_on_unanimous_votes(Grid(radii=radii, sigma=0.5, rival=rival, label=label, **common))
    assert 0 < claimed < 1.0001 * reach
    assert rival or claimed >= 0.9 * reach, "what is called out of reach begins where reach ends"


@pytest.mark.parametrize("weight", [0, 1, 2, 4, 8, 16])
def test_no_test_of_any_weight_accepts_beyond_reach(weight, monkeypatch):
    """The pilot may choose any weight: all of them stay within the reach of the one-sided test."""
    monkeypatch.setattr("smoothcert.stats.grid.choose_weight", lambda *_: weight)
    reach = max_radius(2_000, 0.001, 0.5)
    grid = replace(PROCEDURES["grid"], radii=tuple(k / 50 * reach for k in range(1, 56)))
    assert 0.8 * reach < claimed_on_unanimous_votes(grid) <= reach * (1 + 1e-9)


def test_a_summary_has_none_where_a_radius_was_not_tested():
    run = made_run("grid", 40)
    summary = summarize(run, [0.0, 0.1, 0.25, 0.5, 0.75, 9.0])
    zero, between, quarter, half, beyond, out_of_reach = summary["certified"]
    assert zero >= quarter >= half > 0
    assert (between, beyond, out_of_reach) == (None, None, 0.0)
    assert summary["tested_radii"] == (0.0, 0.25, 0.5)
    assert None not in summarize(made_run("planned", 40), [0.0, 0.1, 9.0])["certified"]


# ---- inputs --------------------------------------------------------------------------------------------------------


def about(indices, total, **data) -> str:
    run = made_run("paper", 1)
    values = {**run.manifest.values, "indices": list(indices)}
    values["data"] = {"name": "toy", **({} if total is None else {"inputs": total}), **data}
    return inputs_in_words(Run(run.path, Manifest(values), [{"index": index} for index in indices]))


@pytest.mark.parametrize(
    ("indices", "total", "words"),
    [
        (range(500), 500, "all 500 inputs"),
        (range(0, 10_000, 20), 10_000, "every 20th of 10,000 inputs"),
        (range(0, 9_999, 20), 9_999, "every 20th of 9,999 inputs"),
        (range(7, 10_000, 20), 10_000, "every 20th of 10,000 inputs, from index 7"),
        (range(0, 600, 20), 10_000, "the first 30 when taking every 20th of 10,000 inputs"),
        (range(100), 10_000, "the first 100 of 10,000 inputs"),
        (range(0, 10, 3), 10, "every 3rd of 10 inputs"),
        ([40 * k + k * k for k in range(40)], 10_000, "40 chosen inputs: not a sample of the 10,000"),
        (range(100, 140), 10_000, "40 chosen inputs: not a sample of the 10,000"),
        ([*range(0, 9_980, 20), 9_981], 10_000, "500 chosen inputs: not a sample of the 10,000"),
        (range(0, 9_960, 20), 10_000, "the first 498 when taking every 20th of 10,000 inputs"),
        ([0, 499], 500, "2 chosen inputs: not a sample of the 500"),
        ([3], 500, "1 chosen input: not a sample of the 500"),
        (range(0, 1_000, 20), 500, "50 inputs whose indices do not fit data of 500 inputs"),
        ([1, 1, 2], 500, "3 inputs whose indices do not fit data of 500 inputs"),
        (range(0, 1_000, 20), None, "50 inputs, every 20th index from 0 to 980; the size of the data is not recorded"),
        ([5, 9, 2], None, "3 inputs, chosen by a rule that is not recorded"),
        ([], 500, "no inputs"),
    ],
)
def test_a_rule_is_named_only_if_it_gives_exactly_these_indices(indices, total, words):
    assert about(indices, total) == words


def test_the_order_of_the_rows_does_not_matter():
    assert about(range(95, -1, -5), 100) == "every 5th of 100 inputs"


def test_the_rows_count_and_not_what_the_manifest_lists():
    run = made_run("paper", 40)
    assert inputs_in_words(run) == "all 40 inputs"
    assert inputs_in_words(Run(run.path, run.manifest, run.rows[:12])) == "the first 12 of 40 inputs"
    assert inputs_in_words(Run(run.path, run.manifest, run.rows[::3][:-1])) == (
        "the first 13 when taking every 3rd of 40 inputs"
    )
    odd = [row for row in run.rows if row["index"] in (1, 4, 30)]
    assert inputs_in_words(Run(run.path, run.manifest, odd)) == "3 chosen inputs: not a sample of the 40"

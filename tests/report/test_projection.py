"""Projections are what CERTIFY computes from the same shares, rounded to the weak side."""

from __future__ import annotations

import numpy as np
import pytest

from smoothcert.errors import ConfigError
from smoothcert.records import Votes
from smoothcert.report.figures import recorded_run
from smoothcert.report.projection import SettledVotes, projected_radii, settled_votes
from smoothcert.runs.directory import Run
from smoothcert.runs.exchange import import_log
from smoothcert.runs.manifest import Manifest
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.procedures import fixed_bounds
from smoothcert.stats.radii import cohen_radius, max_radius

VOTES = np.array([[9000, 600, 500], [5500, 4500, 100], [10_100, 0, 0], [3000, 3000, 4100]])
LABELS = np.array([0, 0, 1, 2])


def settled(own, n, rival=None, correct=True):
    own = np.array(own)
    rivals = None if rival is None else np.array(rival)
    return SettledVotes(np.full(own.shape, n), own, rivals, np.full(own.shape, correct))


@pytest.fixture
def votes_run(tmp_path):
    np.save(tmp_path / "votes.npy", VOTES)
    np.save(tmp_path / "labels.npy", LABELS)
    return recorded_run(tmp_path / "votes.npy", sigma=0.5, labels=tmp_path / "labels.npy")


def make_log(path, rows, header="idx\tlabel\tpredict\tradius\tcorrect\ttime\n"):
    path.write_text(header + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


def test_votes_on_record_are_split_into_choosing_and_bounding(votes_run):
    for row, certificate, counts in zip(votes_run.rows, votes_run.certificates, VOTES, strict=True):
        selection, estimation = certificate.stages
        assert (selection.n, estimation.n) == (100, 10_000)
        assert (selection + estimation).counts == tuple(counts)
        assert certificate.bounds.label == selection.leader
        expected = fixed_bounds(estimation, selection.leader, 0.001, runner_up=False)
        assert row["radius"] == cohen_radius(expected.q_a_upper, sigma=0.5)
    assert [row["label"] for row in votes_run.rows] == [0, 0, 0, None]  # no majority, no claim


def test_the_same_file_gives_the_same_run(tmp_path, votes_run):
    again = recorded_run(tmp_path / "votes.npy", sigma=0.5, labels=tmp_path / "labels.npy")
    assert again.rows == votes_run.rows


def test_a_run_s_own_settings_give_its_own_radii(votes_run):
    radii = projected_radii(settled_votes(votes_run), sigma=0.5, alpha=0.001)
    np.testing.assert_array_equal(radii, votes_run.table()["radius"])
    assert settled_votes(votes_run).correct.tolist() == [True, True, False, True]


def test_another_number_of_draws_keeps_the_shares_and_rounds_to_the_weak_side():
    votes = settled([901, 1000], 1000)
    for n, own in ((10_000, [9010, 10_000]), (50, [45, 50]), (10_000_000, [9_010_000, 10_000_000])):
        expected = cohen_radius(clopper_pearson_upper(n - np.array(own), n, 0.001), sigma=1.0)
        np.testing.assert_array_equal(projected_radii(votes, sigma=1.0, alpha=0.001, n=n), expected)
    assert projected_radii(votes, sigma=1.0, alpha=0.001, n=77)[1] == max_radius(77, 0.001, 1.0)


def test_another_alpha_is_computed_from_the_votes_as_they_are():
    radii = projected_radii(settled([900], 1000), sigma=0.25, alpha=0.01)
    assert radii[0] == cohen_radius(clopper_pearson_upper(100, 1000, 0.01), sigma=0.25)


def test_the_rival_is_bounded_as_fixed_n_bounds_it():
    votes = settled([700], 1000, rival=[101])
    bounds = fixed_bounds(Votes.of([700, 101, 100, 99]), 0, 0.001, runner_up=True)
    found = projected_radii(votes, sigma=1.0, alpha=0.001, runner_up=True)
    assert found[0] == cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=1.0)
    fewer = projected_radii(votes, sigma=1.0, alpha=0.001, n=100, runner_up=True)
    weak = fixed_bounds(Votes.of([70, 11, 10, 9]), 0, 0.001, runner_up=True)  # 10.1 votes become 11
    assert fewer[0] == cohen_radius(weak.q_a_upper, weak.p_b_upper, sigma=1.0)


def test_inputs_without_settled_draws_get_nothing():
    votes = SettledVotes(np.array([0, 1000]), np.array([0, 1000]), None, np.array([True, True]))
    radii = projected_radii(votes, sigma=1.0, alpha=0.001, n=10**6)
    assert radii[0] == 0.0
    assert radii[1] > 4


@pytest.mark.parametrize("n", [0, -5, 10**10])
def test_refuses_numbers_of_draws_out_of_range(n):
    with pytest.raises(ConfigError, match="`n`"):
        projected_radii(settled([900], 1000), sigma=1.0, alpha=0.001, n=n)


def test_the_votes_of_a_log_are_those_whose_radius_comes_closest(tmp_path):
    own = np.array([99_999, 100_000, 90_000, 60_000, 51_000])
    radii = np.asarray(cohen_radius(clopper_pearson_upper(100_000 - own, 100_000, 0.01), sigma=0.25))
    rows = [(i, 1, 1, f"{radius:.3g}", 1, 0.1) for i, radius in enumerate(radii)] + [(9, 1, -1, 0.0, 0, 0.1)]
    run = import_log(make_log(tmp_path / "log", rows), tmp_path / "run", sigma=0.25, alpha=0.01, n=100_000)
    votes = settled_votes(run)
    assert votes.rival is None
    assert votes.n.tolist() == [100_000] * 5 + [0]
    assert votes.own[:2].tolist() == [99_999, 100_000]
    np.testing.assert_allclose(votes.own[2:5], own[2:], rtol=0.001)
    found = projected_radii(votes, sigma=0.25, alpha=0.01)
    assert [f"{radius:.3g}" for radius in found[:5]] == [f"{radius:.3g}" for radius in radii]


def test_a_log_without_its_number_of_draws_cannot_be_projected(tmp_path):
    log = make_log(tmp_path / "log", [(0, 1, 1, 0.5, 1, 0.1)])
    run = import_log(log, tmp_path / "run", sigma=0.25, alpha=0.01)
    with pytest.raises(ConfigError, match="import --n N"):
        settled_votes(run)


@pytest.mark.parametrize("name", ["Grid", "SequentialPredict", "made up"])
def test_votes_that_stopped_when_they_pleased_cannot_be_projected(tmp_path, votes_run, name):
    values = {**votes_run.manifest.values, "procedure": {"name": name}}
    run = Run(tmp_path, Manifest(values), votes_run.rows)
    with pytest.raises(ConfigError, match=f"cannot be projected: {name} does not draw a fixed number"):
        settled_votes(run)

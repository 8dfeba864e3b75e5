"""Votes recovered from the paper's ImageNet logs (github.com/locuslab/smoothing), which have radii only."""

import numpy as np
import pytest

import draws
from smoothcert.runs.exchange import read_log
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.radii import cohen_radius

# Cohen et al. 2019, Table 2 (ImageNet), in percent at r = 0, 0.5, 1, …
TABLE = {"0.25": [67, 49], "0.50": [57, 46, 37, 29], "1.00": [44, 38, 33, 26, 19, 15, 12]}

needs_logs = pytest.mark.skipif(not draws.LOGS.exists(), reason=f"the paper's logs are not there: {draws.LOGS}")


def radii_of(case):
    failures = draws.N - case.votes[:, 0]
    return np.asarray(cohen_radius(clopper_pearson_upper(failures, draws.N, draws.LOGS_ALPHA), sigma=case.sigma))


@needs_logs
@pytest.mark.parametrize("name", TABLE)
def test_recovered_votes_give_each_printed_radius_back(name):
    case = draws.imagenet_case(name)
    rows = read_log(draws.LOGS / f"noise_{name}" / "test" / f"sigma_{name}").rows
    answered = [row["label"] is not None for row in rows]
    assert np.all(case.votes.sum(axis=1) == draws.N)
    printed = [float(f"{radius:.3g}") for radius in radii_of(case)[answered]]
    assert printed == [row["radius"] for row in rows if row["label"] is not None]
    assert len(printed) < len(rows)
    assert np.all(case.votes[~np.array(answered)] == draws.N // 2)


@needs_logs
@pytest.mark.parametrize("name", TABLE)
def test_recovered_votes_give_the_papers_table(name):
    case = draws.imagenet_case(name)
    radii = np.array([float(f"{radius:.3g}") for radius in radii_of(case)])  # as the logs have them
    right = (case.labels == 0) & (radii > 0)
    shares = [100 * np.mean(right & (radii >= radius)) for radius in case.radii]
    assert np.round(shares).tolist() == TABLE[name]


def test_with_the_most_votes_that_fit_an_abstention_certify_abstains_and_with_one_more_it_does_not():
    most = draws.most_abstained()
    bounds = clopper_pearson_upper(draws.N - np.array([most, most + 1]), draws.N, draws.LOGS_ALPHA)
    assert bounds[0] >= 0.5 > bounds[1]


def test_repeated_inputs_are_replayed_with_draws_of_their_own():
    case = draws.Case("0.50", np.array([[90, 10], [40, 60]]), np.array([0, 1]), (0.0,))
    twice = draws.repeated(case)
    assert twice.votes.shape == (2 * draws.REPEATS, 2)
    assert twice.labels.tolist() == [0, 1] * draws.REPEATS
    assert twice.radii == case.radii

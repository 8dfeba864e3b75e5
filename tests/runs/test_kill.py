"""kill -9 at any point: no row is lost, doubled or torn, and what is resumed ends as if nothing had happened."""

import os
import random
import signal

import pytest

from run_fixtures import INPUTS, ROWS, arguments, certify, crash, finished, launch, size_of, wait_for
from smoothcert import runs

pytest_plugins = ["run_fixtures"]


def test_a_hundred_kills_at_random_points_change_nothing(files, whole, reference, tmp_path):
    found = crash(files, tmp_path, whole / ROWS, kills=100, seed=0)
    assert found["kills"] == 100
    assert found["torn"] >= 10  # or the kills would have missed what they are for
    for run in tmp_path.iterdir():
        assert (run / ROWS).read_bytes() == reference


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_more_kills_change_nothing(files, whole, tmp_path, seed):
    assert crash(files, tmp_path, whole / ROWS, kills=400, seed=seed)["kills"] == 400

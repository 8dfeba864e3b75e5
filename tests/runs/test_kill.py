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


def killed_by_size(out, goal, words):
    """Start the command and kill -9 it once the file is longer than that; False if it was done before."""
    process = launch(words)
    wait_for(lambda: size_of(out / ROWS) > goal, process)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate()
    assert "Traceback" not in err
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)], ids=["a few times", "many times"])
def test_the_real_command_killed_again_and_again_ends_as_if_nothing_had_happened(files, reference, tmp_path, kills):
    generator = random.Random(kills)
    out, killed, runs_done = tmp_path / "run", 0, 0
    while killed < kills:
        goal = size_of(out / ROWS) + generator.randrange(-1, len(reference) // 3)  # past the end, it is left to finish
        if killed_by_size(out, goal, arguments(files, out, "--resume")):
            killed += 1
        else:
            assert (out / ROWS).read_bytes() == reference
            runs_done += 1
            out = tmp_path / f"run-{runs_done}"
        assert reference.startswith((out / ROWS).read_bytes() if (out / ROWS).exists() else b"")
    done = finished(arguments(files, out, "--resume"))
    assert done.code == 0
    assert (out / ROWS).read_bytes() == reference
    indices = [row["index"] for row in runs.open(out).rows]
    assert indices == list(range(INPUTS))


def test_what_a_kill_leaves_can_be_read_at_any_time(files, reference, tmp_path):
    """A reader sees whole rows only, however the file ends."""
    certify(files, tmp_path / "run")
    generator = random.Random(0)
    for length in generator.sample(range(len(reference)), 50):
        (tmp_path / "run" / ROWS).write_bytes(reference[:length])
        run = runs.open(tmp_path / "run")
        assert len(run.rows) == len(run.certificates) == reference[:length].count(b"\n")
        assert not run.complete

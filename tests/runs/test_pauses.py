"""Time during which a run was stopped does not count, what hangs is tried again, and failed inputs can be redone."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from run_fixtures import INPUTS, ROWS, arguments, certify, finished, launch, size_of, wait_for, wilful, wilful_data
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.errors import OutputError
from smoothcert.runs import engines, journal
from smoothcert.runs.journal import Journal, read_lines

pytest_plugins = ["run_fixtures"]

TIMEOUT = 4.0
STOPPED = 1.5 * TIMEOUT
BRIGHT = {"quarter_0": 5, "quarter_1": 9, "quarter_2": 14}


def save(folder, data):
    np.savez(folder / "data.npz", images=data.inputs, labels=data.labels)
    return folder / "data.npz"


def workers_of(driver):
    """The worker processes of a driver."""
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{entry}/stat") as file, open(f"/proc/{entry}/cmdline") as command:
                parent = int(file.read().rpartition(")")[2].split()[1])
                if parent == driver and "spawn_main" in command.read():
                    found.append(int(entry))
        except (OSError, ValueError):
            continue
    return found


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes in /proc")


# Stopped by a signal, as a paused container or machine is


@pytest.fixture(scope="module")
def unhurried(tmp_path_factory):
    """A model that takes its time where SLOW is set, its data, and the rows it leads to."""
    folder = tmp_path_factory.mktemp("unhurried")
    # In many short steps: one long sleep would be over as soon as the process is continued.
    body = """
def forward(self, x):
    for _ in range(20):
        time.sleep(float(os.environ.get("SLOW", 0)) / 20)
    return super().forward(x)
"""
    choice = {"model": wilful(folder, body), "data": save(folder, wilful_data())}
    assert main(arguments(None, folder / "run", "--first", "5", **choice, chunk=1)) == 0
    return choice, (folder / "run" / ROWS).read_bytes()


def started(unhurried, out):
    """The command with a timeout, in a group of its own, once its worker has done the first inputs."""
    choice, _ = unhurried
    words = arguments(None, out, "--first", "5", "--workers", "1", "--timeout", str(TIMEOUT), **choice, chunk=1)
    process = launch(words, env={**os.environ, "SLOW": "0.25"}, start_new_session=True)
    assert wait_for(lambda: size_of(out / ROWS) > 0, process)
    return process


def test_time_during_which_all_processes_are_stopped_does_not_count(unhurried, tmp_path):
    process = started(unhurried, tmp_path / "run")
    for _ in range(2):
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(STOPPED)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.8)  # about half an input
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "run" / ROWS).read_bytes() == unhurried[1]


@needs_proc
def test_time_during_which_a_worker_is_stopped_does_not_count(unhurried, tmp_path):
    process = started(unhurried, tmp_path / "run")
    [worker] = workers_of(process.pid)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(STOPPED)
    assert workers_of(process.pid) == [worker]
    os.kill(worker, signal.SIGCONT)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "run" / ROWS).read_bytes() == unhurried[1]


def test_only_short_ticks_count(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    clock = engines.Clock(60.0)
    total = 0.0
    for seconds in (0.5, 3600.0, 0.1, 86_400.0, 0.4):
        now[0] += seconds
        total += clock.passed()
    assert total == pytest.approx(0.5 + 1.0 + 0.1 + 1.0 + 0.4)
    assert engines.Clock(0.8).tick == pytest.approx(0.1)


# Tried again


def test_an_input_that_hangs_once_is_tried_again_and_one_that_hangs_twice_is_given_up(tmp_path):
    body = """
def quarter_0(self):
    if multiprocessing.parent_process() is not None and not (MARKS / "hung").exists():
        (MARKS / "hung").touch()
        time.sleep(3600)

def quarter_1(self):
    if multiprocessing.parent_process() is not None:
        with (MARKS / "tries").open("a") as file:
            file.write("x")
        time.sleep(3600)
"""
    calm = wilful(tmp_path, "def quarter_0(self): pass\n\ndef quarter_1(self): pass")
    choice = {"data": wilful_data(quarter_0=1, quarter_1=2), "sigma": 0.25, "chunk": 1, "indices": range(4)}
    expected = certify(None, tmp_path / "calm", model=calm, **choice).rows
    run = certify(None, tmp_path / "run", model=wilful(tmp_path, body), workers=1, timeout=TIMEOUT, **choice)
    assert (tmp_path / "hung").exists()
    assert (tmp_path / "tries").read_text() == "xx"
    assert [row["index"] for row in run.errors] == [2]
    assert run.errors[0]["error"] == f"ModelError: no forward pass was done within {TIMEOUT:g} seconds"
    assert [run.rows[place] for place in (0, 1, 3)] == [expected[place] for place in (0, 1, 3)]


# Failed inputs, done again

MOODY = """
def quarter_0(self): self.fail()
def quarter_1(self): self.fail()
def quarter_2(self): self.fail()

def fail(self):
    if (MARKS / "bad day").exists():
        raise ValueError("not today")
"""


@pytest.fixture
def failed(tmp_path):
    """The words of a run in which three inputs failed on a bad day that is over now, and where the run is."""
    choice = {"model": wilful(tmp_path, MOODY), "data": save(tmp_path, wilful_data(**BRIGHT)), "sigma": 0.25}
    words = arguments(None, tmp_path / "run", **choice)
    (tmp_path / "bad day").touch()
    assert main(words) == 3
    (tmp_path / "bad day").unlink()
    return words, tmp_path / "run"


def unfailing(words, folder):
    """The rows of the same run where nothing fails."""
    out = folder / "good"
    assert main([str(out) if word == str(folder / "run") else word for word in words]) == 0
    return (out / ROWS).read_bytes()


def test_failed_inputs_stay_so_unless_they_are_to_be_redone(failed, tmp_path, capsys):
    words, out = failed
    before = (out / ROWS).read_bytes()
    assert main([*words, "--resume"]) == 3
    assert "Add --resume --retry-errors to redo them." in capsys.readouterr().err
    assert (out / ROWS).read_bytes() == before
    assert main([*words, "--retry-errors"]) == 2  # it must be said that the run is to be resumed
    assert (out / ROWS).read_bytes() == before


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["here", "in processes"])
def test_redone_inputs_end_with_the_bytes_of_a_run_that_never_failed(failed, tmp_path, capsys, workers):
    words, out = failed
    expected = unfailing(words, tmp_path)
    capsys.readouterr()
    assert main([*words, "--resume", "--retry-errors", *workers]) == 0
    captured = capsys.readouterr()
    assert f"{INPUTS - 3} of {INPUTS} inputs are there already." in captured.out
    assert captured.err == ""
    assert (out / ROWS).read_bytes() == expected
    assert main(["verify", str(out)]) == 0
    assert sorted(entry.name for entry in out.iterdir()) == [ROWS, "lock", "run.json", "times.jsonl"]


@pytest.mark.parametrize("kept", [6, 8, 10, 17])
def test_an_incomplete_run_is_completed_and_its_failed_inputs_are_redone(failed, tmp_path, kept):
    words, out = failed
    expected = unfailing(words, tmp_path)
    lines = (out / ROWS).read_bytes().splitlines(keepends=True)
    (out / ROWS).write_bytes(b"".join(lines[:kept]))
    assert main([*words, "--resume", "--retry-errors"]) == 0
    assert (out / ROWS).read_bytes() == expected


def test_inputs_that_fail_again_are_marked_again(failed, tmp_path, capsys):
    words, out = failed
    before = (out / ROWS).read_bytes()
    (tmp_path / "bad day").touch()
    capsys.readouterr()
    assert main([*words, "--resume", "--retry-errors"]) == 3
    assert "3 of 31 inputs failed" in capsys.readouterr().err
    assert (out / ROWS).read_bytes() == before


def test_only_chunks_with_failed_inputs_are_computed(failed, tmp_path, monkeypatch):
    words, _ = failed
    worked, work = [], engines.Worker.work
    monkeypatch.setattr(engines.Worker, "work", lambda self, chunk: worked.append(chunk.number) or work(self, chunk))
    assert main([*words, "--resume", "--retry-errors"]) == 0
    assert worked == [1, 2, 3]


def test_killed_while_failed_inputs_are_redone_a_run_keeps_all_rows(failed, tmp_path):
    """At every point each row is the one of before or the one of the run that never failed."""
    words, out = failed
    expected, before = unfailing(words, tmp_path), (out / ROWS).read_bytes()
    shutil.copytree(out, tmp_path / "copy")
    for killed in ("write", "replace"):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "copy", out)
        script = f"""
import os, signal, sys
import smoothcert.runs.journal as journal
really, calls = journal.Path.replace, []
def replace(self, target):
    calls.append(target)
    if len(calls) == 2:
        {"really(self, target); " if killed == "replace" else ""}os.kill(os.getpid(), signal.SIGKILL)
    return really(self, target)
journal.Path.replace = replace
from smoothcert.cli import main
sys.exit(main({[*words, "--resume", "--retry-errors"]!r}))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL
        files = (before, expected, (out / ROWS).read_bytes())
        lines = list(zip(*(content.splitlines() for content in files), strict=True))
        assert all(now in (failed_row, good) for failed_row, good, now in lines)
        redone = sum(now == good for failed_row, good, now in lines if failed_row != good)
        assert redone == (1 if killed == "write" else 2)
        assert len(runs.open(out).rows) == INPUTS
        assert main([*words, "--resume", "--retry-errors"]) == 0
        assert (out / ROWS).read_bytes() == expected


RUN = "run"
GOOD = {"index": 0, "true": 1, "label": 1}
BAD = {"index": 1, "true": 1, "error": "ValueError: no"}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        file.append([GOOD, BAD])
    return path


def test_rows_are_appended_after_those_that_were_replaced(rows):
    last = {"index": 2, "true": 0, "label": 5}
    with Journal(rows, RUN) as file:
        file.replace_failed({1: {**GOOD, "index": 1}})
        file.append([last])
        assert file.rows == [GOOD, {**GOOD, "index": 1}, last]
    assert read_lines(rows, RUN)[0] == [GOOD, {**GOOD, "index": 1}, last]


def test_a_result_is_never_replaced(rows):
    before = rows.read_bytes()
    with Journal(rows, RUN) as file, pytest.raises(ValueError, match="only rows of inputs that failed"):
        file.replace_failed({0: BAD})
    assert rows.read_bytes() == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_failed_rows(rows, monkeypatch, call):
    before = rows.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(rows, RUN) as file:
        monkeypatch.setattr(journal.os, call, full)
        with pytest.raises(OutputError, match="No space left"):
            file.replace_failed({1: GOOD})
        monkeypatch.undo()
        assert file.rows == [GOOD, BAD]
        file.append([{**GOOD, "index": 2}])
    assert rows.read_bytes().startswith(before)
    assert [entry.name for entry in rows.parent.iterdir()] == ["rows"]


def test_the_help_says_how_failed_inputs_are_redone():
    assert "--retry-errors" in finished(["certify", "--help"]).out

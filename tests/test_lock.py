"""One writer per run: of many that come at once one wins, and a holder that died is no obstacle."""

import errno
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from run_fixtures import ROWS, arguments, finished, launch, wait_for
from smoothcert import runs
from smoothcert.errors import ConfigError, OutputError
from smoothcert.lock import SOFT, Lock
from smoothcert.runs.directory import Writer

pytest_plugins = ["run_fixtures"]

# Takes the directory once all are there, says so, and holds it until its input ends.
CONTENDER = """
import pathlib, sys, time
from smoothcert.errors import SmoothcertError
from smoothcert.runs.directory import Writer
print("ready", flush=True)
sys.stdin.readline()
try:
    with Writer(pathlib.Path(sys.argv[1]), resume=True):
        print("won", flush=True)
        sys.stdin.readline()
except SmoothcertError as error:
    print(error, flush=True)
"""


def contender(folder):
    words = [sys.executable, "-c", CONTENDER, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def end(processes):
    for process in processes:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_of_eight_writers_that_come_at_once_one_wins(tmp_path):
    folder = tmp_path / "run"
    processes = [contender(folder) for _ in range(8)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            go(process)
        answers = [process.stdout.readline().strip() for process in processes]
        assert answers.count("won") == 1
        assert sum("is locked by" in answer for answer in answers) == 7
        late = contender(folder)
        processes.append(late)
        go(late)
        assert late.stdout.readline() == "ready\n"
        winner = processes[answers.index("won")]
        assert f"is locked by process {winner.pid} on {socket.gethostname()}" in late.stdout.readline()
    finally:
        end(processes)


def test_a_holder_that_was_killed_is_no_obstacle(tmp_path):
    folder = tmp_path / "run"
    holder = contender(folder)
    try:
        go(holder)
        assert [holder.stdout.readline(), holder.stdout.readline()] == ["ready\n", "won\n"]
        with pytest.raises(OutputError, match=f"process {holder.pid} on"):
            Writer(folder, resume=True)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert str(holder.pid) in (folder / "lock").read_text()
        with Writer(folder, resume=True), pytest.raises(OutputError, match=f"process {os.getpid()} on"):
            Lock(folder / "lock")
    finally:
        end([holder])


def test_a_lock_left_by_another_host_is_no_obstacle(tmp_path):
    (tmp_path / "lock").write_text("process 1 on elsewhere\n")
    with Writer(tmp_path, resume=False):
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_the_command_that_comes_second_is_told_at_once_who_came_first(files, tmp_path):
    out = tmp_path / "run"
    with Writer(out, resume=False):
        second = finished(arguments(files, out))
    assert second.code == 6
    assert second.out == ""
    [line] = second.err.splitlines()
    assert f"is locked by process {os.getpid()} on {socket.gethostname()}" in line


def test_of_commands_that_come_at_once_one_wins_and_nothing_is_torn(files, reference, tmp_path):
    out = tmp_path / "run"
    processes = [launch(arguments(files, out)) for _ in range(4)]
    results = [(process.communicate(), process.returncode) for process in processes]
    codes = sorted(code for _, code in results)
    assert codes.count(0) == 1
    assert set(codes) <= {0, 2, 6}  # 2 if the winner is done already
    for (_, err), code in results:
        assert {0: "", 2: "already", 6: "is locked by"}[code] in err
        assert len(err.splitlines()) == (code != 0)
    assert (out / ROWS).read_bytes() == reference


def test_the_processes_of_a_run_do_not_hold_its_lock(files, reference, tmp_path):
    out = tmp_path / "run"
    driver = launch([*arguments(files, out), "--workers", "1", "--timeout", "600"])
    assert wait_for(lambda: (out / ROWS).exists(), driver)
    driver.kill()
    driver.communicate()
    with Writer(out, resume=True) as writer:
        assert writer.existing is not None


def test_a_lock_can_be_had_again_once_it_is_released(tmp_path):
    first = Lock(tmp_path / "lock")
    first.release()
    first.release()
    with Lock(tmp_path / "lock"), pytest.raises(OutputError, match="locked by"):
        Lock(tmp_path / "lock")
    Lock(tmp_path / "lock").release()


def test_a_lock_that_was_removed_meanwhile_is_not_taken(tmp_path, monkeypatch):
    really = fcntl.flock

    def removing(*arguments):
        (tmp_path / "lock").unlink()
        return really(*arguments)

    monkeypatch.setattr(fcntl, "flock", removing)
    with pytest.raises(OutputError, match="locked by"):
        Lock(tmp_path / "lock")


def unsupported(code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    return flock


NO_LOCKS = {
    "always granted": lambda *_: None,
    **{errno.errorcode[code]: unsupported(code) for code in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)},
}


@pytest.mark.parametrize("flock", NO_LOCKS)
def test_where_the_file_system_has_no_locks_two_writers_are_told_apart_and_it_is_said_once(
    tmp_path, monkeypatch, caplog, flock
):
    monkeypatch.setattr(fcntl, "flock", NO_LOCKS[flock])
    folder = tmp_path / "run"
    with caplog.at_level(logging.WARNING, logger="smoothcert"), Writer(folder, resume=False):
        with pytest.raises(OutputError, match=f"is locked by process {os.getpid()} on .* delete .*{SOFT}"):
            Writer(folder, resume=True)
        [record] = caplog.records
    assert "does not support locks" in record.getMessage()
    assert not folder.exists()  # nothing came of it
    with Writer(folder, resume=False) as writer:
        assert writer.existing is None


def test_a_soft_lock_of_a_process_that_was_killed_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", NO_LOCKS["ENOSYS"])
    script = """
import errno, fcntl, os, pathlib, signal, sys
def flock(*_):
    raise OSError(errno.ENOSYS, "")
fcntl.flock = flock
from smoothcert.lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "lock")], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / SOFT).exists()
    Lock(tmp_path / "lock").release()
    assert not (tmp_path / SOFT).exists()


def test_a_lock_that_cannot_be_taken_for_another_reason_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", unsupported(errno.EIO))
    with pytest.raises(OutputError, match=r"Cannot lock .*: Input/output error"):
        Lock(tmp_path / "lock")


def test_where_locks_work_nothing_is_said(tmp_path, caplog):
    with Lock(tmp_path / "lock"):
        assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
    assert not caplog.records


def test_a_reader_needs_no_lock(whole):
    with Lock(whole / "lock"):
        assert runs.open(whole).complete


@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_that_nothing_came_of_is_as_before(tmp_path, existing):
    folder = tmp_path / "run"
    if existing:
        folder.mkdir()
    Writer(folder, resume=False).close()
    assert list(tmp_path.iterdir()) == [folder] * existing
    assert not existing or list(folder.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, resume):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match=r"holds 'thesis\.tex'"):
        Writer(tmp_path, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def tree(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_is_there_is_not_overwritten(files, whole):
    before = tree(whole)
    with pytest.raises(ConfigError, match="Add --resume"):
        Writer(whole, resume=False)
    after = tree(whole)
    del before["lock"], after["lock"]
    assert after == before


PLACES = {
    "a file": lambda base: (base / "file").write_text("") or base / "file",
    "below a file": lambda base: (base / "file").write_text("") or base / "file" / "run",
    "no parent": lambda base: base / "no" / "run",
    "a full device": lambda base: base.__class__("/dev/full"),
    "below a device": lambda base: base.__class__("/dev/full/run"),
    "a loop": lambda base: (base / "loop").symlink_to(base / "loop") or base / "loop",
    "below a loop": lambda base: (base / "loop").symlink_to(base / "loop") or base / "loop" / "run",
    "a link to nothing": lambda base: (base / "link").symlink_to(base / "gone") or base / "link",
    "too long a name": lambda base: base / ("x" * 300),
    "too long a path": lambda base: base / "/".join(["x" * 200] * 30),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_cannot_be_a_run_is_an_error_of_ours(tmp_path, place):
    out = PLACES[place](tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputError) as caught:
        Writer(out, resume=False)
    assert str(caught.value).startswith("Cannot ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_an_error_of_ours(tmp_path):
    tmp_path.chmod(0o500)
    try:
        for out in (tmp_path, tmp_path / "run"):
            with pytest.raises(OutputError, match="Permission denied"):
                Writer(out, resume=False)
    finally:
        tmp_path.chmod(0o700)

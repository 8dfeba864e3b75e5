"""Bad models, full disks, odd places, signals and strange machines: a run ends well, or with one clear line."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from run_fixtures import (
    INPUTS,
    ROWS,
    arguments,
    certify,
    finished,
    launch,
    make_images,
    size_of,
    wait_for,
    wilful,
    wilful_data,
)
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.errors import OutputError, SmoothcertError
from smoothcert.stats.boundary_cache import boundary

pytest_plugins = ["run_fixtures"]


def save(folder, data):
    np.savez(folder / "data.npz", images=data.inputs, labels=data.labels)
    return folder / "data.npz"


def only_line(err):
    [line] = err.splitlines()
    return line


# Inputs that fail


@pytest.fixture(scope="module")
def obedient(tmp_path_factory):
    """The rows of the wilful network's inputs when it does nothing but classify."""
    folder = tmp_path_factory.mktemp("obedient")
    model = wilful(folder, "def quarter_0(self): pass")
    return certify(None, folder / "run", data=wilful_data(quarter_0=9), model=model, sigma=0.25).rows


def test_an_input_on_which_the_model_fails_has_a_row_that_says_so(tmp_path, obedient, capsys):
    model = wilful(tmp_path, 'def quarter_0(self): raise ValueError("no\\nsuch picture")')
    data = save(tmp_path, wilful_data(quarter_0=9))
    assert main(arguments(None, tmp_path / "run", model=model, data=data, sigma=0.25)) == 3
    captured = capsys.readouterr()
    assert "no such picture" in only_line(captured.err)
    assert f"1 of {INPUTS} inputs failed" in captured.err
    assert "of which 1 failed" in captured.out
    run = runs.open(tmp_path / "run")
    assert run.complete
    assert run.errors == [run.rows[9]]
    assert run.rows[9]["index"] == 9
    assert "no such picture" in run.rows[9]["error"]
    assert [row for row in run.rows if row["index"] != 9] == [row for row in obedient if row["index"] != 9]


def test_a_run_with_failed_inputs_says_so_again_when_it_is_resumed_or_shown(tmp_path, capsys):
    model = wilful(tmp_path, "def quarter_0(self): raise ValueError")
    data = save(tmp_path, wilful_data(quarter_0=1))
    words = arguments(None, tmp_path / "run", "--first", "3", "--json", model=model, data=data, sigma=0.25)
    assert main(words) == 3
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["errors"]) == (3, 1)
    assert main([*words, "--resume"]) == 3
    assert json.loads(capsys.readouterr().out) == summary
    assert main(["show", str(tmp_path / "run"), "--index", "1"]) == 0
    assert "ValueError" in capsys.readouterr().out


def test_a_model_that_fails_on_every_input_fails_before_the_run(tmp_path, capsys):
    model = wilful(tmp_path, "def forward(self, x): raise ValueError('never')")
    data = save(tmp_path, wilful_data())
    assert main(arguments(None, tmp_path / "run", model=model, data=data)) == 3
    assert "never" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_damaged_image_is_that_inputs_fault_alone(files, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    for number, pixels in enumerate(make_images()[0][:6]):
        place = folder / f"class {number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels[0]).save(place / f"{number}.png")
    assert main(arguments(files, tmp_path / "good", data=folder)) == 0
    damaged = folder / "class 0" / "2.png"  # the second of its class
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert main(arguments(files, tmp_path / "bad", data=folder)) == 3
    good, bad = runs.open(tmp_path / "good").rows, runs.open(tmp_path / "bad").rows
    assert bad[1]["error"].startswith("InputError: ")
    assert "2.png" in bad[1]["error"]
    assert "input" not in bad[1]
    assert [row for row in bad if row["index"] != 1] == [row for row in good if row["index"] != 1]


def test_where_memory_is_short_batches_are_halved_and_the_rows_are_the_same(tmp_path, obedient, caplog):
    body = """
def quarter_0(self): pass

def forward(self, x):
    if len(x) > 24:
        raise MemoryError
    return super().forward(x)
"""
    run = certify(None, tmp_path / "run", data=wilful_data(quarter_0=9), model=wilful(tmp_path, body), sigma=0.25)
    assert run.rows == obedient
    assert "out of memory at batch size 32; going on with 16" in caplog.text


def test_where_memory_is_short_for_a_single_copy_the_row_says_so(tmp_path, obedient):
    model = wilful(tmp_path, "def quarter_0(self): raise MemoryError('not even one')")
    run = certify(None, tmp_path / "run", data=wilful_data(quarter_0=9), model=model, sigma=0.25)
    assert [row["index"] for row in run.errors] == [9]
    assert "not even one" in run.errors[0]["error"]
    assert [row for row in run.rows if row["index"] != 9] == [row for row in obedient if row["index"] != 9]


# Full disks


class Disk:
    """Stands for os.pwrite on a disk with room for so many bytes of one file."""

    def __init__(self, path, room, code):
        self.path, self.room, self.code, self.really = path, room, code, os.pwrite

    def pwrite(self, file, content, offset):
        if not (self.path.exists() and os.fstat(file).st_ino == self.path.stat().st_ino):
            return self.really(file, content, offset)
        if offset >= self.room:
            raise OSError(self.code, os.strerror(self.code))
        return self.really(file, content[: self.room - offset], offset)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_is_full_again_and_again_loses_nothing(files, reference, tmp_path, monkeypatch, capsys, code):
    offsets = sorted(random.Random(code).sample(range(len(reference)), 20 if code == errno.ENOSPC else 4))
    out = tmp_path / "run"
    for room in offsets:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", Disk(out / ROWS, room, code).pwrite)
            assert main(arguments(files, out, "--resume")) == 6
        line = only_line(capsys.readouterr().err)
        assert os.strerror(code) in line
        assert "rows before are safe" in line
        content = (out / ROWS).read_bytes()
        assert reference.startswith(content)
        assert content.endswith(b"\n") or not content
        assert len(content) <= room
    assert main(arguments(files, out, "--resume")) == 0
    assert (out / ROWS).read_bytes() == reference


def test_a_disk_that_cannot_sync_is_an_error_at_the_start_and_nothing_is_left(files, tmp_path, monkeypatch, capsys):
    def fsync(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert main(arguments(files, tmp_path / "run")) == 6
    assert "Input/output error" in only_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_sync_the_rows_any_more_keeps_those_before(files, reference, tmp_path, monkeypatch, capsys):
    out, really, calls = tmp_path / "run", os.fsync, []

    def fsync(file):
        if (out / ROWS).exists() and os.fstat(file).st_ino == (out / ROWS).stat().st_ino:
            calls.append(file)
            if len(calls) > 3:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert main(arguments(files, out)) == 6
    assert "The 12 rows before are safe" in only_line(capsys.readouterr().err)
    assert (out / ROWS).read_bytes() == b"".join(reference.splitlines(keepends=True)[:12])
    assert main(arguments(files, out, "--resume")) == 0
    assert (out / ROWS).read_bytes() == reference


def test_a_limit_on_the_size_of_files_is_an_error_like_a_full_disk(files, reference, tmp_path):
    limit = len(reference) // 2
    done = finished(
        arguments(files, tmp_path / "run"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.code == 6
    assert "File too large" in only_line(done.err)
    content = (tmp_path / "run" / ROWS).read_bytes()
    assert content.endswith(b"\n")
    assert len(content) > limit // 2
    certify(files, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / ROWS).read_bytes() == reference


def test_a_disk_that_is_really_full_is_an_error_and_the_run_goes_on_elsewhere(files, reference, tmp_path):
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=12k none '{disk}'"
    try:
        allowed = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if allowed.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    script = f"{mounted} || exit 99; \"$@\"; code=$?; cp -r '{disk}/run' '{copy}'; exit $code"
    command = [sys.executable, "-m", "smoothcert", *arguments(files, disk / "run")]
    words = ["unshare", "-m", "sh", "-c", script, "sh", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "No space left" in only_line(done.stderr)
    content = (copy / ROWS).read_bytes()
    assert 0 < len(content) < len(reference)
    assert reference.startswith(content)
    certify(files, copy, resume=True)
    assert (copy / ROWS).read_bytes() == reference


# Places where no run can be


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("file", 6),
        ("no/run", 6),
        ("/dev/full", 6),
        ("/dev/full/run", 6),
        ("loop", 6),
        ("loop/run", 6),
        ("x" * 300, 6),
        ("foreign", 2),
        ("run", 2),
    ],
)
def test_a_place_where_no_run_can_be_is_told_before_the_model_is_even_looked_for(tmp_path, whole, capsys, place, code):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("all of it")
    shutil.copytree(whole, tmp_path / "run")
    before = sorted(path for path in tmp_path.rglob("*"))
    words = ["certify", "no-such-model.onnx", "no-such-data", "--sigma", "0.5", "--out", str(tmp_path / place)]
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert len(captured.err.splitlines()) == 1
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["file", "no/run", "foreign", "loop"])
def test_a_place_where_no_run_can_be_costs_no_forward_pass(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("all of it")
    calls = []
    with pytest.raises(SmoothcertError):
        certify(None, tmp_path / place, model=lambda batch: calls.append(batch), data=wilful_data())
    assert calls == []


def test_a_read_only_disk_is_told_at_once(files, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o ro none '{disk}'"
    try:
        allowed = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if allowed.returncode:
        pytest.skip("mounting a read-only disk is not allowed here")
    for out in (disk, disk / "run"):
        command = [sys.executable, "-m", "smoothcert", *arguments(files, out)]
        words = ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh", *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 6
        assert "Read-only file system" in only_line(done.stderr)


def test_a_folder_that_cannot_be_written_to_is_an_error_of_ours(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        certify(None, tmp_path, model=lambda _: None, data=wilful_data())


# Clocks


def test_a_clock_that_runs_backwards_does_not_matter(files, reference, tmp_path, monkeypatch):
    ticks = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))
    certify(files, tmp_path / "run")
    assert (tmp_path / "run" / ROWS).read_bytes() == reference
    times = [json.loads(line) for line in (tmp_path / "run" / "times.jsonl").read_text().splitlines()]
    assert [one["index"] for one in times] == list(range(INPUTS))
    assert all(0 <= one["seconds"] < 600 for one in times)


def test_times_that_cannot_be_noted_do_not_matter(files, reference, tmp_path):
    certify(files, tmp_path / "run", indices=range(INPUTS))
    (tmp_path / "run" / "times.jsonl").unlink()
    (tmp_path / "run" / "times.jsonl").mkdir()
    (tmp_path / "run" / ROWS).unlink()
    certify(files, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / ROWS).read_bytes() == reference


# Signals


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes its time where SLOW is set, its data, and the rows it leads to."""
    folder = tmp_path_factory.mktemp("slow")
    body = """
def forward(self, x):
    time.sleep(float(os.environ.get("SLOW", 0)))
    return super().forward(x)
"""
    choice = {"model": wilful(folder, body), "data": save(folder, wilful_data())}
    assert main(arguments(None, folder / "run", **choice)) == 0
    return choice, (folder / "run" / ROWS).read_bytes()


def slowly(seconds):
    return {**os.environ, "SLOW": str(seconds)}


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
)
def test_a_signal_ends_a_run_in_one_line_and_it_goes_on_as_if_nothing_had_happened(tmp_path, slow, number, code, word):
    choice, expected = slow
    words = arguments(None, tmp_path / "run", **choice)
    process = launch(words, env=slowly(0.03))
    assert wait_for(lambda: size_of(tmp_path / "run" / ROWS) > 0, process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert only_line(err) == f"error: {word}"
    content = (tmp_path / "run" / ROWS).read_bytes()
    assert content.endswith(b"\n") or not content  # not, if the signal came before the first rows were synced
    assert len(content) < len(expected)
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "run" / ROWS).read_bytes() == expected


def test_an_interruption_while_the_model_is_loaded_leaves_nothing_in_the_way(tmp_path, slow):
    choice, expected = slow
    words = arguments(None, tmp_path / "run", **choice)
    process = launch(words)
    assert wait_for((tmp_path / "run" / "lock").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert only_line(err) == "error: interrupted"
    assert not (tmp_path / "run").exists() or [path.name for path in (tmp_path / "run").iterdir()] in ([], ["lock"])
    assert main(words) == 0
    assert (tmp_path / "run" / ROWS).read_bytes() == expected


@pytest.mark.parametrize("moment", ["run.json", ROWS])
def test_a_key_press_that_reaches_all_processes_is_one_line_too(tmp_path, slow, moment):
    """A terminal sends Ctrl-C to the worker processes as well; while they load torch, or while they work."""
    choice, expected = slow
    words = arguments(None, tmp_path / "run", **choice)
    process = launch([*words, "--workers", "2"], env=slowly(0.03), start_new_session=True)
    started = wait_for(lambda: size_of(tmp_path / "run" / moment) > 0, process)
    if started and moment == "run.json":
        time.sleep(0.7)  # any moment will do; here the processes are likely to be on their way
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert only_line(err) == "error: interrupted"
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "run" / ROWS).read_bytes() == expected


def test_a_second_key_press_ends_a_run_at_once_even_if_the_model_hangs(tmp_path):
    body = """
def quarter_0(self):
    (MARKS / "hangs").touch()
    time.sleep(3600)
"""
    data = save(tmp_path, wilful_data(quarter_0=9))
    process = launch(arguments(None, tmp_path / "run", model=wilful(tmp_path, body), data=data, sigma=0.25))
    assert wait_for((tmp_path / "hangs").exists, process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)  # two signals at the same moment are one
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("it did not end")
    assert process.returncode == 130
    assert only_line(err) == "error: interrupted"
    assert len(runs.open(tmp_path / "run").rows) == 8


@pytest.mark.parametrize("resumed", [False, True])
def test_a_reader_that_has_gone_does_not_stop_the_run(tmp_path, files, whole, reference, resumed):
    out = tmp_path / "run"
    if resumed:
        shutil.copytree(whole, out)
        (out / ROWS).write_bytes(b"".join(reference.splitlines(keepends=True)[:5]))
    read, write = os.pipe()
    os.close(read)
    try:
        done = finished([*arguments(files, out), *["--resume"] * resumed], stdout=write)
    finally:
        os.close(write)
    assert "Traceback" not in done.err
    assert "error" not in done.err
    assert (out / ROWS).read_bytes() == reference


# Strange machines

ODD = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
MACHINES = {
    "German, one thread": ({"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "OMP_NUM_THREADS": "1"}, "ergebnisse"),
    "C locale, name in Greek": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "σ = ½ [bold]"),
    "no home, no cache": ({"HOME": "/nonexistent", "SMOOTHCERT_CACHE": "/dev/null/cache", "TERM": "dumb"}, "run"),
    "a name that is not UTF-8": ({}, ODD),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_strange_machines_make_the_same_certificates(files, reference, tmp_path, machine):
    environment, name = MACHINES[machine]
    out = tmp_path / name
    done = finished(arguments(files, out), env={**os.environ, **environment}, encoding="utf-8", errors="replace")
    assert (done.code, done.err) == (0, "")
    assert (out / ROWS).read_bytes() == reference
    assert "complete" in done.out


def test_few_open_files_make_the_same_certificates_or_one_line(files, reference, tmp_path):
    done = finished(
        arguments(files, tmp_path / "run"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    )
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "run" / ROWS).read_bytes() == reference


def test_names_that_are_not_utf_8_can_be_resumed_and_shown(files, reference, tmp_path, capsys):
    out = tmp_path / ODD
    certify(files, out)
    (out / ROWS).write_bytes(reference[:-10])
    assert main(arguments(files, out, "--resume")) == 0
    assert "was cut off" in capsys.readouterr().err
    assert main(["show", str(out)]) == 0
    assert (out / ROWS).read_bytes() == reference


def test_a_model_and_data_whose_names_are_not_utf_8_can_be_certified(files, tmp_path, capsys):
    model, data = tmp_path / f"{ODD}.safetensors", tmp_path / f"{ODD}.npz"
    shutil.copy(files.model, model)
    shutil.copy(files.data, data)
    assert main(arguments(files, tmp_path / "run", model=model, data=data)) == 0
    assert main(arguments(files, tmp_path / "run", "--resume", model=model, data=data)) == 0
    assert main(["show", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cache", ["/dev/null/cache", "a file"])
def test_a_cache_that_cannot_be_written_makes_the_same_certificates(files, tmp_path, monkeypatch, cache):
    """The sequential procedures keep their boundaries there."""
    choice = {"procedure": "grid", "radii": (0.1, 0.2), "n_max": 300, "indices": range(6)}
    certify(files, tmp_path / "first", **choice)
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("SMOOTHCERT_CACHE", str(tmp_path / cache))
    boundary.cache_clear()
    try:
        certify(files, tmp_path / "second", **choice)
    finally:
        boundary.cache_clear()
    assert (tmp_path / "second" / ROWS).read_bytes() == (tmp_path / "first" / ROWS).read_bytes()

"""A driver that is killed leaves no process behind, whatever its workers are doing."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from run_fixtures import ROWS, arguments, launch, size_of, wait_for, wilful, wilful_data
from smoothcert.runs import ray_guardian

pytest_plugins = ["run_fixtures"]
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes in /proc")

HANGING = {
    "while other threads run": "time.sleep(3600)",
    "while no other thread runs": "ctypes.PyDLL(None).sleep(3600)",  # keeps the lock of the interpreter
}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid):
    """All processes that come from this one."""
    family, processes = {pid}, ray_guardian._processes()
    for _ in range(10):
        family |= {one for one, (parent, _) in processes.items() if parent in family}
    return family - {pid}


def save(folder, data):
    np.savez(folder / "data.npz", images=data.inputs, labels=data.labels)
    return folder / "data.npz"


# Output that is read to its end would have the test wait for the processes that hold it open.
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def ends(processes, seconds=30.0):
    return wait_for(lambda: not any(alive(pid) for pid in processes), seconds=seconds)


@pytest.mark.parametrize("how", HANGING)
def test_a_worker_whose_model_hangs_ends_with_its_driver(tmp_path, how):
    body = f"""
def quarter_0(self):
    import ctypes
    if multiprocessing.parent_process() is not None:
        (MARKS / "hangs").write_text(str(os.getpid()))
        {HANGING[how]}
"""
    model, data = wilful(tmp_path, body), save(tmp_path, wilful_data(quarter_0=2))
    words = arguments(None, tmp_path / "run", "--workers", "1", "--timeout", "600", model=model, data=data)
    driver = launch(words, **SILENT)
    worker = None
    try:
        assert wait_for(lambda: size_of(tmp_path / "hangs") > 0, driver)
        worker = int((tmp_path / "hangs").read_text())
        assert worker in descendants(driver.pid)
        driver.kill()
        driver.wait()
        assert ends([worker])
    finally:
        if worker is not None and alive(worker):
            os.kill(worker, signal.SIGKILL)


# A driver whose child ends with it, as those of Ray do, and a grandchild that would stay.
DRIVER = """
import subprocess, sys, time
from smoothcert.runs.ray_guardian import environment, guarding

CHILD = '''
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9))
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env={})
print(grandchild.pid, flush=True)
time.sleep(3600)
'''
with guarding() as marks:
    with environment(marks):
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    print(f'[{child.pid}, {child.stdout.readline().strip()}, {other.pid}]', flush=True)
    if sys.stdin.readline():
        child.kill()
"""


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "at its end"])
def test_the_guardian_ends_what_was_started_under_it_and_nothing_else(killed):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    other = None
    try:
        child, grandchild, other = json.loads(driver.stdout.readline())
        assert alive(grandchild)

        time.sleep(1)  # the guardian has looked several times by then
        if killed:
            os.kill(driver.pid, signal.SIGKILL)
        else:
            driver.stdin.write("\n")
            driver.stdin.flush()
        assert ends([child, grandchild])
        assert alive(other)
    finally:
        if other is not None:
            os.kill(other, signal.SIGKILL)  # before the output is read to its end, which it holds open too
        driver.kill()
        driver.communicate()


def test_the_environment_is_as_before(monkeypatch):
    before = dict(os.environ)
    with ray_guardian.guarding() as marks, ray_guardian.environment(marks):
        assert set(os.environ) - set(before) == set(marks)
        assert marks
    assert dict(os.environ) == before


def test_a_ray_instance_of_ours_ends_with_a_driver_that_is_killed(tmp_path):
    pytest.importorskip("ray")
    body = """
def quarter_0(self):
    if not (MARKS / "driver").exists():
        return
    (MARKS / "hangs").write_text(str(os.getpid()))
    time.sleep(3600)
"""
    model, data = wilful(tmp_path, body), save(tmp_path, wilful_data(quarter_0=2))
    (tmp_path / "driver").touch()
    words = arguments(None, tmp_path / "run", "--engine", "ray", "--workers", "1", model=model, data=data, chunk=1)
    driver = launch(words, **SILENT)
    assert wait_for(lambda: size_of(tmp_path / "hangs") > 0, driver, seconds=180)
    assert size_of(tmp_path / "run" / ROWS) > 0
    processes = descendants(driver.pid)
    assert len(processes) >= 5  # the guardian, Ray's servers and agents, an actor
    driver.kill()
    driver.wait()
    assert ends(processes)

"""A process that ends a local Ray instance when the driver that started it has ended, however it ended (Linux only).

When a driver is killed, the kernel ends the processes that Ray started for it, but not those that these started in
turn: Ray's agents stay. So the family of processes is followed while the driver runs. Elsewhere Ray ends all of them
itself. This module is also the script of the process, so it imports nothing that is slow to load.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_VARIABLE = "SMOOTHCERT_RAY_INSTANCE"
_PROC = Path("/proc")
_GRACE_SECONDS = 5.0  # for processes that are about to end by themselves
_SHORTEST, _LONGEST = 0.1, 5.0  # seconds between two looks: first often, since Ray starts most processes at once


@contextmanager
def guarding() -> Iterator[dict[str, str]]:
    """Guard what we start with the environment variables that this yields: it is ended when the block or we end."""
    if not (_PROC / "self" / "stat").exists():
        yield {}
        return
    mark = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark]
    # In a session of its own, signals to our group of processes do not reach it.
    guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own script
    try:
        yield {_VARIABLE: mark}
    finally:
        guardian.communicate()  # closes its input


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started in this block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def _processes() -> dict[int, tuple[int, str]]:
    """The parent of every process and the time at which it started, which tells it from a later one of its number."""
    found = {}
    for folder in _PROC.iterdir():
        with suppress(OSError):  # it has ended
            if folder.name.isdecimal():
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found[int(folder.name)] = (int(fields[1]), fields[19])
    return found


def _is_marked(process: int, mark: str) -> bool:
    try:
        return f"{_VARIABLE}={mark}".encode() in (_PROC / str(process) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _family(known: dict[int, str], driver: int, mark: str) -> dict[int, str]:
    """Those of the known processes that are alive, the driver's marked children, and the children of all of these."""
    alive = _processes()
    family = {one: started for one, started in known.items() if one in alive and alive[one][1] == started}
    # Only the driver's own children are asked for the mark: a process that changes its title may overwrite it.
    family |= {one: start for one, (parent, start) in alive.items() if parent == driver and _is_marked(one, mark)}
    grown = True
    while grown:
        children = {one: start for one, (parent, start) in alive.items() if parent in family and one not in family}
        family |= children
        grown = bool(children)
    return family


def _main(driver: int, mark: str) -> None:
    family: dict[int, str] = {}
    wait = _SHORTEST
    while not select.select([sys.stdin], [], [], wait)[0]:  # readable when the driver has closed it, or ended
        family = _family(family, driver, mark)
        wait = min(1.05 * wait, _LONGEST)
    deadline = time.monotonic() + _GRACE_SECONDS
    while family := _family(family, driver, mark):
        if time.monotonic() > deadline:
            for process in family:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(_SHORTEST)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])

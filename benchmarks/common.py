"""What the benchmarks share: contenders that take turns, each in a process of its own, and figures with targets.

Only ratios are compared, of rates that were measured in turns in one run: a machine that is busy slows all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from smoothcert.plan_cache import processor

ROUNDS = 5
SECONDS = 1.5  # of each measurement
Work = Callable[[], int]
"""Does something and says how much."""


@dataclass(frozen=True)
class Figure:
    """A ratio that was measured, what it should be, and what it was made of."""

    name: str
    value: float
    target: str = ""
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None without one."""
        if not self.target:
            return None
        sign, bound = self.target.split()
        return self.value >= float(bound) if sign == "≥" else self.value <= float(bound)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The figure as a row of a table."""
        mark = {None: "", True: "yes", False: "no"}[self.met]
        digits = 0 if abs(self.value) >= 20 else 2
        return self.name, f"{self.value:,.{digits}f}", f"{self.target} {mark}".strip(), self.detail


HEADINGS = ("figure", "ratio", "target, met", "made of")


def show(figures: Iterable[Figure], title: str) -> None:
    """Print figures as a table."""
    table = Table(*HEADINGS, title=title)
    for figure in figures:
        table.add_row(*figure.cells)
    Console().print(f"{machine()}; medians of {ROUNDS} rounds in turns")
    Console().print(table)


def machine() -> str:
    """Processor, cores and versions."""
    packages = ("torch", "onnxruntime", "openvino")
    return f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, " + ", ".join(
        map(_version, packages)
    )


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def rate(work: Work, seconds: float = SECONDS) -> float:
    """Units per second."""
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        done += work()
    return done / elapsed


def rates_by_size(sizes: Iterable[int], work_of: Callable[[int], Work], seconds: float) -> dict[int, float]:
    """Units per second at growing sizes, warmed up, until one is a fifth slower than the best: larger ones are too."""
    rates: dict[int, float] = {}
    for size in sizes:
        work = work_of(size)
        work()
        rates[size] = rate(work, seconds)
        if rates[size] < 0.8 * max(rates.values()):
            break
    return rates


class Contender:
    """Work that is measured in a process of its own: neither memory nor settings of others touch it.

    `make(*arguments)` is called there and returns the work, and a note about it.
    """

    def __init__(self, make: Callable[..., tuple[Work, str]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.note: str = self._pipe.recv()

    def rate(self, seconds: float = SECONDS) -> float:
        """Units per second, now."""
        self._pipe.send(seconds)
        return float(self._pipe.recv())

    def close(self) -> float:
        """End it; the most memory that it held, in MiB."""
        self._pipe.send(None)
        peak = float(self._pipe.recv())
        self._process.join()
        return peak


def _serve(pipe: Any, make: Callable[..., tuple[Work, str]], arguments: tuple[Any, ...]) -> None:
    work, note = make(*arguments)
    work()
    pipe.send(note)
    while (seconds := pipe.recv()) is not None:
        pipe.send(rate(work, seconds))
    pipe.send(_peak())


def _peak() -> float:
    """The most memory that this process held, in MiB."""
    if sys.platform == "linux":
        # Not ru_maxrss, which a process inherits from the one that started it.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_turns(contenders: Mapping[str, Contender], seconds: float = SECONDS) -> dict[str, list[float]]:
    """The rates of all, round by round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            rates[name].append(contender.rate(seconds))
    return rates


def ratio(mine: list[float], theirs: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))

"""How the time of a certification grows with draws, inputs, classes and workers; writes docs/images/growth.png.

Draws and inputs: seconds against their number, which should lie on a line through the origin. Classes: certification
beside the same network's forward passes, which grow too. Workers: draws per second against one worker.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from torch import nn

from common import ROUNDS, Figure, rate, show
from smoothcert import FixedN, Smoothed
from smoothcert.models.architectures import lenet
from smoothcert.sampling import Plan

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "growth.png"
SHAPE = (1, 28, 28)
DRAWS = (1_000, 2_000, 4_000, 8_000, 16_000)
INPUTS = (1, 2, 4, 8, 16)
CLASSES = (10, 100, 1_000)
BATCH = 128


def images(count: int) -> np.ndarray:
    """8-bit images of noise."""
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def smoothed(model: nn.Module, workers: int) -> Smoothed:
    """Run in eager mode, to have the same for all."""
    return Smoothed(model, 0.25, seed=0, plan=Plan(BATCH, True, workers=workers, threads=1), progress=False)


def medians(cases: Sequence[int], work: Callable[[int], object]) -> list[float]:
    """Seconds of each case, measured in turns."""
    work(cases[0])
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(ROUNDS):
        for place, case in enumerate(cases):
            start = time.perf_counter()
            work(case)
            times[place].append(time.perf_counter() - start)
    return [statistics.median(one) for one in times]


def per_unit(cases: Sequence[int], seconds: Sequence[float]) -> float:
    """Time per unit of the largest case, as a multiple of the middle one's: 1 is linear."""
    middle = len(cases) // 2
    return seconds[-1] / cases[-1] / (seconds[middle] / cases[middle])


def with_classes(count: int) -> Callable[[], float]:
    """Measures certification's draws per second over forward passes per second, for a network with so many classes."""
    model = nn.Sequential(lenet()[:-1], nn.Linear(500, count)).eval().to(memory_format=torch.channels_last)
    whole, image = smoothed(model, 1), images(1)[0]
    batch = torch.rand(BATCH, *SHAPE).contiguous(memory_format=torch.channels_last)

    def forward() -> int:
        with torch.inference_mode():
            model(batch)
        return BATCH

    def certify() -> int:
        return whole.certify(image, FixedN(n=4_000)).draws

    certify()
    return lambda: rate(certify, 1.0) / rate(forward, 1.0)


def measure() -> list[Figure]:
    """All four, and the picture."""
    model, cores = lenet().eval(), os.cpu_count() or 1
    both = smoothed(model, min(2, cores))
    of_draws = medians(DRAWS, lambda n: both.certify(images(1)[0], FixedN(n=n)))
    of_inputs = medians(INPUTS, lambda count: both.certify(images(count), FixedN(n=1_000)))
    workers = list(range(1, min(4, cores) + 1))
    of_workers = medians(workers, lambda count: smoothed(model, count).certify(images(1)[0], FixedN(n=8_000)))
    torch.set_num_threads(1)
    ratios = [with_classes(count) for count in CLASSES]
    rounds = [[one() for one in ratios] for _ in range(ROUNDS)]  # in turns
    of_classes = [statistics.median(found) for found in zip(*rounds, strict=True)]
    _draw(of_draws, of_inputs, of_classes, workers, of_workers)
    return [
        Figure(f"{DRAWS[-1]:,} draws: time per draw ÷ that of {DRAWS[2]:,}", per_unit(DRAWS, of_draws), "≤ 1.15"),
        Figure(f"{INPUTS[-1]} inputs: time per input ÷ that of {INPUTS[2]}", per_unit(INPUTS, of_inputs), "≤ 1.15"),
        Figure("1,000 classes: certification ÷ forward, over the same of 10", of_classes[-1] / of_classes[0], "≥ 0.9"),
        Figure(f"{workers[-1]} workers ÷ 1 worker", of_workers[0] / of_workers[-1]),
    ]


def _draw(
    draws: list[float], inputs: list[float], classes: list[float], workers: list[int], of_workers: list[float]
) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained")
    for ax, cases, seconds, name in ((axes[0], DRAWS, draws, "draws"), (axes[1], INPUTS, inputs, "inputs")):
        ax.plot(cases, seconds, "o-")
        ax.plot([0, cases[-1]], [0, seconds[-1]], "--", color="0.6", zorder=0)
        ax.set(xlabel=name, ylabel="seconds", xlim=0, ylim=0)
    axes[2].semilogx(CLASSES, classes, "o-")
    axes[2].set(xlabel="classes", ylabel="certification ÷ forward", ylim=(0, 1.1 * max(classes)))
    axes[3].plot(workers, [of_workers[0] / one for one in of_workers], "o-")
    axes[3].plot(workers, workers, "--", color="0.6", zorder=0)
    axes[3].set(xlabel="worker threads", ylabel="times as fast", xticks=workers, ylim=0)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    show(measure(), "growth")

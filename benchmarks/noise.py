"""Noise beside torch's normal_, on one thread and into warm memory: nanoseconds per value."""

from __future__ import annotations

import numpy as np
import torch

from common import Contender, Figure, Work, in_turns, ratio, show
from smoothcert.noise import GaussianNoise, GridGaussianNoise, Noise, rows_per_block
from smoothcert.streams import Stream, make_key

SIZE = 3 * 32 * 32
NANOSECONDS = 3.0


def torchs_normal() -> tuple[Work, str]:
    """The generator of torch, in contiguous memory."""
    torch.set_num_threads(1)
    buffer = torch.empty(rows_per_block(SIZE), SIZE)
    return lambda: buffer.normal_().numel(), ""


def filling(noise: Noise) -> tuple[Work, str]:
    """A block of noisy copies of a 32×32 image: noise, addition and scale."""
    out = np.empty((rows_per_block(SIZE), SIZE), np.float32)
    centre, stream = noise.centre(np.zeros(SIZE, np.float32)), Stream(make_key(0), "index:0", 0)

    def work() -> int:
        noise.fill(centre, stream, 0, out)
        return out.size

    return work, ""


def measure() -> list[Figure]:
    """Grid noise at three levels, and Gaussian noise."""
    noises = (GridGaussianNoise(0.12), GridGaussianNoise(0.25), GridGaussianNoise(1.0), GaussianNoise(0.25))
    contenders = {f"{one.name} noise, σ = {one.sigma:g}": Contender(filling, one) for one in noises}
    everyone = {"torch": Contender(torchs_normal), **contenders}
    rates = in_turns(everyone, 0.3)
    for contender in everyone.values():
        contender.close()
    figures = []
    for name in contenders:
        nanoseconds = 1e9 / np.median(rates[name])
        detail = f"{nanoseconds:.2f} ns per value; torch's normal_ alone {1e9 / np.median(rates['torch']):.2f} ns"
        target = "≤ 1.00" if name.startswith("grid") else ""
        figures.append(Figure(f"{name}: time ÷ normal_", ratio(rates["torch"], rates[name]), target, detail))
        if name.startswith("grid"):
            figures.append(Figure(f"{name}: ns per value", float(nanoseconds), f"≤ {NANOSECONDS:g}"))
    return figures


if __name__ == "__main__":
    show(measure(), "noise")

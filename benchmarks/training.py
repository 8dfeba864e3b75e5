"""An epoch of the Gaussian recipe beside the same network's pure forward and backward passes on random tensors.

Both see the same number of inputs in batches of the same size and layout, in turn, round by round; the median of the
rounds' ratios is what noise, data, optimiser and bookkeeping cost. At most 1.15 is the aim.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch.nn import functional

from common import Figure, show
from smoothcert.data.dataset import ArrayData
from smoothcert.models.architectures import ARCHITECTURES, build
from smoothcert.training.loop import Trainer, seeded
from smoothcert.training.settings import TrainSettings

ROUNDS = 7
BATCH = 256
CASES = {"lenet": 40, "resnet20": 4}  # steps per round


def pure_step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One forward and backward pass, and nothing else."""
    model.zero_grad()
    functional.cross_entropy(model(x), y).backward()


def ratio(name: str, steps: int) -> tuple[float, float]:
    """The median ratio of training to pure passes, and the training's inputs per second."""
    shape = ARCHITECTURES[name].input_shape
    rng = np.random.default_rng(0)
    count = BATCH * steps
    data = ArrayData(
        rng.integers(256, size=(count, *shape), dtype=np.uint8), rng.integers(10, size=count), None, "random"
    )
    settings = TrainSettings(sigma=0.25, epochs=1000, batch_size=BATCH, learning_rate=0.01, seed=0, device="cpu")
    trainer = Trainer(seeded(lambda: build(name, classes=10), 0), data, settings)
    other = seeded(lambda: build(name, classes=10), 0).to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, *shape).to(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,))
    for _ in range(3):
        pure_step(other, x, y)
        trainer.advance()
    ratios, rates = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(steps):
            pure_step(other, x, y)
        middle = time.perf_counter()
        for _ in range(steps):
            trainer.advance()
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - start))
        rates.append(count / (end - middle))
    return statistics.median(ratios), statistics.median(rates)


def measure() -> list[Figure]:
    """One figure per network."""
    figures = []
    for name, steps in CASES.items():
        found, speed = ratio(name, steps)
        detail = f"{speed:,.0f} inputs/s in batches of {BATCH}, {torch.get_num_threads()} threads"
        figures.append(Figure(f"{name}: an epoch ÷ pure passes", found, "≤ 1.15", detail))
    return figures


if __name__ == "__main__":
    show(measure(), "training, gaussian recipe")

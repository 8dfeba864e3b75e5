"""The paper's attack on a smoothed LeNet beside the same network's pure forward and backward passes.

Both count gradients by the input of noisy copies. The pure passes repeat one random batch, of the size and layout
at which they are fastest; attack and passes take turns, and the median of the rounds' ratios is what noise, objective,
sums and projection cost. At least 0.8 is the aim.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from common import Figure, show
from smoothcert.attacks.on_smoothed import PaperAttack, Target
from smoothcert.models.architectures import ARCHITECTURES, build
from smoothcert.sampling import in_layout
from smoothcert.training.loop import seeded

ROUNDS = 7
COPIES = 1024
SIZES = (64, 128, 256, 512, 1024)


def pure_rate(model: nn.Module, shape: tuple[int, ...], size: int, *, channels_last: bool) -> float:
    """Gradients per second of forward and backward passes, and nothing else."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.rand(size, *shape).contiguous(memory_format=layout).requires_grad_()
    y = torch.zeros(size, dtype=torch.long)
    laid = in_layout(model, channels_last=channels_last)
    start = time.perf_counter()
    for _ in range(2 * COPIES // size):
        torch.autograd.grad(functional.cross_entropy(laid(x), y), x)
    return 2 * COPIES / (time.perf_counter() - start)


def attack_rate(target: Target) -> float:
    """Gradients per second of a short attack, start and end included."""
    attack, generator = PaperAttack(steps=2, most_steps=2, copies=COPIES), torch.Generator().manual_seed(0)
    start = time.perf_counter()
    attack(target, 1.0, generator)
    return 2 * COPIES / (time.perf_counter() - start)


def measure() -> list[Figure]:
    """The attack's rate beside that of the fastest pure passes."""
    shape = ARCHITECTURES["lenet"].input_shape
    model = seeded(lambda: build("lenet", classes=10), 0).eval().requires_grad_(False)
    target = Target(model, torch.rand(shape, generator=torch.Generator().manual_seed(0)), 0, 0.5)
    cases = [(size, layout) for size in SIZES for layout in (False, True)]
    tried = {case: [] for case in cases}
    attack_rate(target)
    for _ in range(3):
        for size, layout in cases:
            tried[size, layout].append(pure_rate(model, shape, size, channels_last=layout))
    size, layout = max(cases, key=lambda case: statistics.median(tried[case]))
    pure, attack = [], []
    for _ in range(ROUNDS):
        pure.append(pure_rate(model, shape, size, channels_last=layout))
        attack.append(attack_rate(target))
    ratio = statistics.median(a / p for a, p in zip(attack, pure, strict=True))
    detail = (
        f"attack {statistics.median(attack):,.0f} gradients/s, pure passes {statistics.median(pure):,.0f} in batches "
        f"of {size}{', channels last' if layout else ''}; {torch.get_num_threads()} threads"
    )
    return [Figure("paper's attack on a smoothed LeNet ÷ pure passes", ratio, "≥ 0.8", detail)]


if __name__ == "__main__":
    show(measure(), "attack")

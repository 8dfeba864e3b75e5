"""What checking the contract for every input costs: certifying with the samples classified again, over without.

    python benchmarks/reclassification.py

Both sides certify the same inputs with the same noise, in turns. The figure is the median of the rounds' ratios of
time, beside the ratio of the number of forward rows.
"""

from __future__ import annotations

import statistics
import time
from unittest import mock

import numpy as np
import torch

from smoothcert import Smoothed, sampling
from smoothcert.models.architectures import build
from smoothcert.reclassification import Reclassification

ROUNDS = 7
INPUTS = 4
NETWORKS = {"lenet": (1, 28, 28), "resnet20": (3, 32, 32)}


def seconds(g: Smoothed, images: np.ndarray) -> float:
    """The time to certify all images, with default settings."""
    start = time.perf_counter()
    g.certify(images, index=0)
    return time.perf_counter() - start


def measure(name: str, shape: tuple[int, ...]) -> None:
    """Print the overhead for one network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build(name, classes=10, input_shape=shape).eval()
    images = np.random.default_rng(0).integers(0, 256, (INPUTS, *shape)).astype(np.uint8)
    g = Smoothed(network, 0.25, 10, seed=0)
    draws = sum(certificate.draws for certificate in g.certify(images, index=0))
    kept = 0
    keep = Reclassification.keep

    def counting(self: Reclassification, request: int, inputs: torch.Tensor, answers: torch.Tensor) -> None:
        nonlocal kept
        kept += len(inputs)
        keep(self, request, inputs, answers)

    with mock.patch.object(Reclassification, "keep", counting):
        g.certify(images, index=0)
    ratios = []
    for _ in range(ROUNDS):
        checked = seconds(g, images)
        with mock.patch.object(sampling.Reclassification, "check"):
            unchecked = seconds(g, images)
        ratios.append(checked / unchecked)
    print(f"{name}: {draws:,} draws, {kept} classified again ({kept / draws:.3%} of the draws)")
    print(f"{name}: time with the check over time without: {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    for name, shape in NETWORKS.items():
        measure(name, shape)

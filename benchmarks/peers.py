"""Certification beside its peers: the paper's loop, and the Adversarial Robustness Toolbox (ART).

    python benchmarks/peers.py                  same number of draws, on LeNet and ResNet-20
    python benchmarks/peers.py --model DIR      and the certified-accuracy table of 100 CIFAR-10 test images

The peers run as they come: the paper's loop with batches of 1000, ART with its default of 32. Certifying 100 images
with 100,000 draws would take them hours, so their time is that of fewer draws, multiplied: both are linear in the
number of draws. ART is no part of our environment: `make bench` puts it into a folder of its own.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from common import SECONDS, Contender, Figure, Work, in_turns, ratio, show
from smoothcert import FixedN, Smoothed, models
from smoothcert.data import load
from smoothcert.models.architectures import cifar_resnet, lenet
from smoothcert.stats.accuracy import certified_accuracy
from smoothcert.stats.bounds import clopper_pearson_lower
from throughput import TRAINED

SIGMA, ALPHA = 0.25, 0.001
N0, N, BATCH = 100, 100_000, 1000
RADII = (0.0, 0.25, 0.5, 0.75)
IMAGES = 100
PEERS = Path(__file__).resolve().parent.parent / ".venv" / "peers"
NAMES = {"loop": "the paper's loop", "art": "ART"}
OURS = {"smoothcert": "fp32", "smoothcert in int8": "int8"}
SAME_DRAWS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "LeNet": (lenet, (1, 28, 28), "≥ 2"),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), "≥ 3"),
}
Certify = Callable[[npt.NDArray[np.uint8], int], object]


class PapersLoop:
    """CERTIFY as the paper describes it, in the plain way: repeat the image, add noise, classify, count."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.model, self.classes = model.eval(), classes

    def certify(self, x: Tensor, n0: int, n: int) -> tuple[int, float]:
        """The class and a lower bound on its probability."""
        label = int(self._counts(x, n0).argmax())
        return label, float(clopper_pearson_lower(int(self._counts(x, n)[label]), n, ALPHA))

    @torch.no_grad()
    def _counts(self, x: Tensor, n: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(self.classes, np.int64)
        while n > 0:
            size = min(BATCH, n)
            n -= size
            batch = x.repeat(size, 1, 1, 1)
            answers = self.model(batch + torch.randn_like(batch) * SIGMA).argmax(1)
            for answer in answers.numpy():
                counts[answer] += 1
        return counts


def have_art() -> bool:
    """True if ART is where `make bench` puts it."""
    return (PEERS / "art").exists()


def certifier(peer: str, model: nn.Module, shape: tuple[int, ...]) -> tuple[Certify, str]:
    """A peer's way to certify one 8-bit image with n draws."""
    if peer in OURS:
        calibration = np.random.default_rng(0).random((64, *shape), np.float32) if OURS[peer] == "int8" else None
        smoothed = Smoothed(model, SIGMA, seed=0, precision=OURS[peer], calibration=calibration, progress=False)
        note = smoothed.tune(shape).execution
        return lambda image, n: smoothed.certify(image, FixedN(n=n, n0=N0, alpha=ALPHA)), note
    if peer == "loop":
        loop = PapersLoop(model, 10)
        return lambda image, n: loop.certify(torch.from_numpy(image).float() / 255, N0, n), f"batch {BATCH}"
    sys.path.append(str(PEERS))
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    art = PyTorchRandomizedSmoothing(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=shape,
        nb_classes=10,
        channels_first=True,
        clip_values=(0, 1),
        sample_size=N0,
        scale=SIGMA,
        alpha=ALPHA,
        device_type="cpu",
    )
    return lambda image, n: art.certify((image / np.float32(255))[None], n=n), "batch 32"


def of_network(peer: str, name: str) -> tuple[Work, str]:
    """Certifying an image with an untrained network, with as many draws as take about a second."""
    factory, shape, _ = SAME_DRAWS[name]
    certify, note = certifier(peer, factory().eval(), shape)
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    certify(image, 1000)
    start = time.perf_counter()
    certify(image, 1000)
    n = max(1000, int(1000 * SECONDS / (time.perf_counter() - start)))

    def work() -> int:
        certify(image, n)
        return N0 + n

    return work, note


def same_draws() -> list[Figure]:
    """Draws per second of each, for the same number of draws."""
    figures = []
    for name, (_, _, target) in SAME_DRAWS.items():
        peers = ["loop", "art"] if have_art() else ["loop"]
        contenders = {peer: Contender(of_network, peer, name) for peer in (*OURS, *peers)}
        rates = in_turns(contenders)
        peaks = {peer: contender.close() for peer, contender in contenders.items()}
        for ours, peer in itertools.product(OURS, peers):
            detail = "; ".join(
                f"{NAMES.get(one, one)} {np.median(rates[one]):,.0f}/s ({contenders[one].note}), {peaks[one]:,.0f} MiB"
                for one in (ours, peer)
            )
            title = f"{name}, same draws, {OURS[ours]}: faster than {NAMES[peer]}"
            figures.append(Figure(title, ratio(rates[ours], rates[peer]), target, detail))
    return figures


def peers_table_rate(peer: str, source: str) -> tuple[Work, str]:
    """A peer's draws on test images, some thousand each."""
    classifier, data = models.load(source), load("cifar10")
    certify, note = certifier(peer, classifier.network.eval(), data.shape)
    images = iter(np.tile(np.arange(0, len(data), len(data) // IMAGES), 1000).tolist())

    def work() -> int:
        certify(data[next(images)], 5000)
        return N0 + 5000

    return work, note


def headline(source: Path = TRAINED) -> list[Figure]:
    """The certified-accuracy table of CIFAR-10 test images: our way, and what the peers would take."""
    if not source.exists():
        return []
    classifier, data = models.load(str(source)), load("cifar10")
    chosen = np.arange(0, len(data), len(data) // IMAGES)[:IMAGES]
    inputs, labels = data.batch(chosen.tolist()), data.labels[chosen]
    smoothed = Smoothed(classifier, SIGMA, seed=0, progress=False)
    plan = smoothed.tune(inputs.shape[1:])
    smoothed.certify(inputs[:2], radii=RADII, label=labels[:2].tolist())  # builds, and has the boundaries in the cache
    start = time.perf_counter()
    found = smoothed.certify(inputs, radii=RADII, label=labels.tolist())
    seconds = time.perf_counter() - start
    assert isinstance(found, list)
    shares = certified_accuracy(
        np.array([one.radius for one in found]), np.array([one.label is not None for one in found]), RADII
    )
    accuracy = ", ".join(f"{100 * share:.0f} % at {radius:g}" for radius, share in zip(RADII, shares, strict=True))
    draws = sum(one.draws for one in found)
    figures = []
    peers = ["loop", "art"] if have_art() else ["loop"]
    contenders = {peer: Contender(peers_table_rate, peer, str(source)) for peer in peers}
    rates = in_turns(contenders, 3.0)
    for peer in peers:
        contenders[peer].close()
        theirs = IMAGES * (N0 + N) / float(np.median(rates[peer]))
        detail = (
            f"{seconds:.0f} s, {draws:,} draws ({plan.execution}; {accuracy}); {theirs / 60:,.0f} minutes for "
            f"{IMAGES * (N0 + N):,} draws, extrapolated from {np.median(rates[peer]):,.0f}/s"
        )
        name = f"certified-accuracy table of {IMAGES} CIFAR-10 images: faster than {NAMES[peer]}"
        figures.append(Figure(name, theirs / seconds, "≥ 50", detail))
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TRAINED, help="a trained ResNet-20")
    show([*same_draws(), *headline(parser.parse_args().model)], "peers")

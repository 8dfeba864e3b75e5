"""Certification beside its peers: the paper's loop, and the Adversarial Robustness Toolbox (ART).

    python benchmarks/peers.py                               same number of draws, on LeNet and ResNet-20
    python benchmarks/peers.py --model DIR [--images 100]    and the certified-accuracy table of CIFAR-10 test images

All rates are measured in turns in one run. The peers run as they come: the paper's loop with batches of 1000, ART with
its default of 32. Certifying 100 images with 100,000 draws would take them hours, so their time is that of fewer draws,
multiplied: both are linear in the number of draws.

ART is no part of our environment: `make bench` puts it into a folder of its own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from smoothcert import FixedN, Smoothed, models
from smoothcert.data import load
from smoothcert.models.architectures import cifar_resnet, lenet
from smoothcert.stats.accuracy import certified_accuracy
from smoothcert.stats.bounds import clopper_pearson_lower

ROUNDS = 5
SIGMA, ALPHA = 0.25, 0.001
N0, N, BATCH = 100, 100_000, 1000
RADII = (0.0, 0.25, 0.5, 0.75)
PEERS = Path(__file__).resolve().parent.parent / ".venv" / "peers"
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "LeNet": (lenet, (1, 28, 28), 2.0),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), 3.0),
}


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


def art_classifier(model: nn.Module, shape: tuple[int, ...]) -> object | None:
    """ART's smoothed classifier, or None where ART is not there."""
    sys.path.append(str(PEERS))
    try:
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    except ImportError:
        return None
    return PyTorchRandomizedSmoothing(
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


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def contenders(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Callable[[npt.NDArray[np.uint8], int], object]]:
    """Each peer's way to certify one 8-bit image with n draws."""
    loop, art = PapersLoop(model, 10), art_classifier(model, shape)
    ours = Smoothed(model, SIGMA, seed=0, progress=False)
    found: dict[str, Callable[[npt.NDArray[np.uint8], int], object]] = {
        "smoothcert": lambda image, n: ours.certify(image, FixedN(n=n, n0=N0, alpha=ALPHA)),
        "the paper's loop": lambda image, n: loop.certify(torch.from_numpy(image).float() / 255, N0, n),
    }
    if art is not None:
        found["ART"] = lambda image, n: art.certify((image / np.float32(255))[None], n=n)  # type: ignore[attr-defined]
    return found


def rates_in_turns(model: nn.Module, shape: tuple[int, ...]) -> dict[str, list[float]]:
    """Draws per second of each peer, round by round."""
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    peers = contenders(model, shape)
    draws = {}
    for peer, work in peers.items():  # as many as take about two seconds
        work(image, 1000)
        draws[peer] = max(1000, int(1000 * 2.0 / timed(partial(work, image, 1000))))
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer, work in peers.items():
            rates[peer].append((draws[peer] + N0) / timed(partial(work, image, draws[peer])))
    return rates


def same_draws(console: Console) -> None:
    """Draws per second of each, for the same number of draws."""
    table = Table(
        "model", "peer", "draws/s", "smoothcert is", "target", title=f"same number of draws, {ROUNDS} rounds in turns"
    )
    for name, (factory, shape, target) in MODELS.items():
        rates = rates_in_turns(factory().eval(), shape)
        for peer, own in rates.items():
            faster = statistics.median(a / b for a, b in zip(rates["smoothcert"], own, strict=True))
            shown = ("", "") if peer == "smoothcert" else (f"{faster:.1f}×", f"≥ {target:g}×")
            table.add_row(name, peer, f"{statistics.median(own):,.0f}", *shown)
    console.print(table)


def headline(console: Console, source: str, images: int) -> None:
    """The certified-accuracy table of some CIFAR-10 test images: our way, and what the peers would take."""
    classifier, data = models.load(source), load("cifar10")
    chosen = np.arange(0, len(data), len(data) // images)[:images]
    inputs, labels = data.batch(chosen.tolist()), data.labels[chosen]
    smoothed = Smoothed(classifier, SIGMA, seed=0, progress=None)
    found: list[object] = []
    seconds = timed(lambda: found.extend(smoothed.certify(inputs, radii=RADII, label=labels.tolist())))
    draws = sum(one.draws for one in found)
    shares = certified_accuracy([one.radius for one in found], [one.label is not None for one in found], RADII)
    table = Table(
        "", "seconds", "draws", "faster", *(f"r = {r:g}" for r in RADII), title=f"{images} CIFAR-10 test images"
    )
    cells = [f"{100 * share:.0f} %" for share in np.atleast_1d(shares)]
    table.add_row("smoothcert", f"{seconds:,.1f}", f"{draws:,}", "", *cells)
    shape = inputs.shape[1:]
    for peer, work in contenders(classifier.network.eval(), shape).items():
        if peer == "smoothcert":
            continue
        work(inputs[0], 1000)
        times = [timed(partial(work, inputs[i], 5000)) for i in range(ROUNDS)]
        whole = statistics.median(times) / (5000 + N0) * (N + N0) * images
        table.add_row(
            f"{peer}, n = {N:,} (extrapolated)", f"{whole:,.0f}", f"{(N + N0) * images:,}", f"{whole / seconds:,.0f}×"
        )
    console.print(table)
    console.print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--images", type=int, default=100)
    arguments = parser.parse_args()
    out = Console()
    out.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    same_draws(out)
    if arguments.model:
        headline(out, arguments.model, arguments.images)

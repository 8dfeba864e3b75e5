"""Certification beside its peers: the paper's loop, and the Adversarial Robustness Toolbox (ART).

    python benchmarks/peers.py                  same number of draws, on LeNet and ResNet-20
    python benchmarks/peers.py --model MODEL    and the certified-accuracy table of 50 CIFAR-10 test images

Each peer runs at its fastest batch size, found by a short search whose rates are printed, and otherwise as it comes.

The table: we certify at four radii with known labels, which takes few draws; the peers know only CERTIFY with 100,100
draws per image. So the ratio of times has two factors, and both are shown: how many draws are saved, which is a count,
and how much faster a draw is, the median of five rounds in which we certify a fifth of the images and then each peer
certifies for a few seconds. The peers' whole tables would take hours: their times are extrapolated from these rates.

ART is no part of our environment: `make bench` puts it into a folder of its own.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from common import ROUNDS, SECONDS, Contender, Figure, Work, in_turns, rates_by_size, ratio, show
from smoothcert import FixedN, Smoothed, models
from smoothcert.data import load
from smoothcert.models.architectures import cifar_resnet, lenet
from smoothcert.records import Certificate
from smoothcert.stats.accuracy import certified_accuracy, floor_percent
from smoothcert.stats.bounds import clopper_pearson_lower
from throughput import TRAINED

SIGMA, ALPHA = 0.25, 0.001
N0, N = 100, 100_000
RADII = (0.0, 0.25, 0.5, 0.75)
IMAGES = 50
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
PEERS = Path(__file__).resolve().parent.parent / ".venv" / "peers"
NAMES = {"loop": "the paper's loop", "art": "ART"}
OURS = {"smoothcert": "fp32", "smoothcert in int8": "int8"}
SAME_DRAWS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "LeNet": (lenet, (1, 28, 28), "≥ 2"),
    "ResNet-20": (lambda: cifar_resnet(20), (3, 32, 32), "≥ 3"),
}
Image = npt.NDArray[np.uint8]
Certify = Callable[[Image, int], object]
BatchCertify = Callable[[Image, int, int], object]
"""Certifies an image with n draws in batches of a size."""


class PapersLoop:
    """CERTIFY as the paper describes it, in the plain way: repeat the image, add noise, classify, count."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.model, self.classes = model.eval(), classes

    def certify(self, x: Tensor, n0: int, n: int, batch_size: int) -> tuple[int, float]:
        """The class and a lower bound on its probability."""
        label = int(self._counts(x, n0, batch_size).argmax())
        return label, float(clopper_pearson_lower(int(self._counts(x, n, batch_size)[label]), n, ALPHA))

    @torch.no_grad()
    def _counts(self, x: Tensor, n: int, batch_size: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(self.classes, np.int64)
        while n > 0:
            size = min(batch_size, n)
            n -= size
            batch = x.repeat(size, 1, 1, 1)
            answers = self.model(batch + torch.randn_like(batch) * SIGMA).argmax(1)
            for answer in answers.numpy():
                counts[answer] += 1
        return counts


def have_art() -> bool:
    """True if ART is where `make bench` puts it, or installed."""
    if str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))
    return find_spec("art") is not None


def certifier(peer: str, model: nn.Module, shape: tuple[int, ...], image: Image) -> tuple[Certify, str]:
    """A contender's fastest way to certify one 8-bit image with n draws; `image` is for trying."""
    if peer in OURS:
        calibration = np.random.default_rng(0).random((64, *shape), np.float32) if OURS[peer] == "int8" else None
        smoothed = Smoothed(model, SIGMA, seed=0, precision=OURS[peer], calibration=calibration, progress=False)
        note = smoothed.tune(shape).execution
        return lambda image, n: smoothed.certify(image, FixedN(n=n, n0=N0, alpha=ALPHA)), note
    certify = loop_certifier(model) if peer == "loop" else art_certifier(model, shape)
    size = best_batch_size(peer, certify, image)
    return lambda image, n: certify(image, n, size), f"batch {size}"


def best_batch_size(peer: str, certify: BatchCertify, image: Image, sizes: tuple[int, ...] = BATCHES) -> int:
    """The size at which a peer makes the most draws per second; prints the rates of all that were tried."""

    def work_of(size: int) -> Work:
        def work() -> int:
            certify(image, max(sizes), size)
            return N0 + max(sizes)

        return work

    rates = rates_by_size(sizes, work_of, 0.5)
    listed = ", ".join(f"{size}: {found:,.0f}" for size, found in rates.items())
    print(f"{NAMES[peer]}, draws per second by batch size: {listed}", flush=True)
    return max(rates, key=lambda size: rates[size])


def loop_certifier(model: nn.Module) -> BatchCertify:
    """The paper's loop for one image."""
    loop = PapersLoop(model, 10)
    return lambda image, n, size: loop.certify(torch.from_numpy(image).float() / 255, N0, n, size)


def art_certifier(model: nn.Module, shape: tuple[int, ...]) -> BatchCertify:
    """ART for one image."""
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
    return lambda image, n, size: art.certify((image / np.float32(255))[None], n=n, batch_size=size)


def of_network(peer: str, name: str) -> tuple[Work, str]:
    """Certifying an image with an untrained network, with as many draws as take about a second."""
    factory, shape, _ = SAME_DRAWS[name]
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    certify, note = certifier(peer, factory().eval(), shape, image)
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
    certify, note = certifier(peer, classifier.network.eval(), data.shape, data[0])
    images = itertools.cycle(chosen_images(len(data)).tolist())

    def work() -> int:
        certify(data[next(images)], 1000)
        return N0 + 1000

    return work, note


def chosen_images(count: int) -> npt.NDArray[np.int64]:
    """Every k-th test image."""
    return np.arange(0, count, count // IMAGES)[:IMAGES]


def headline(source: Path = TRAINED) -> list[Figure]:
    """The certified-accuracy table of CIFAR-10 test images: our way, and what the peers would take."""
    if not source.exists():
        return []
    classifier, data = models.load(str(source)), load("cifar10")
    chosen = chosen_images(len(data))
    inputs, labels = data.batch(chosen.tolist()), data.labels[chosen]
    smoothed = Smoothed(classifier, SIGMA, seed=0, progress=False)
    plan = smoothed.tune(inputs.shape[1:])
    smoothed.certify(inputs[:2], radii=RADII, label=labels[:2].tolist())  # builds, and has the boundaries in the cache
    peers = ["loop", "art"] if have_art() else ["loop"]
    contenders = {peer: Contender(peers_table_rate, peer, str(source)) for peer in peers}
    found: list[Certificate] = []
    seconds: list[float] = []
    ours: list[float] = []
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    for part in np.array_split(np.arange(IMAGES), ROUNDS):
        start = time.perf_counter()
        results = smoothed.certify(inputs[part], radii=RADII, label=labels[part].tolist())
        seconds.append(time.perf_counter() - start)
        assert isinstance(results, list)
        found += results
        ours.append(sum(one.draws for one in results) / seconds[-1])
        for peer in peers:
            rates[peer].append(contenders[peer].rate(3.0))
    notes = {peer: contenders[peer].note for peer in peers}
    for contender in contenders.values():
        contender.close()
    size = sum(parameter.numel() for parameter in classifier.network.parameters())
    title = f"certified-accuracy table of {IMAGES} CIFAR-10 images, network of {size / 1e6:.2f} million parameters"
    return table_figures(title, found, sum(seconds), ours, rates, {"ours": str(plan.execution), **notes})


def table_figures(
    title: str,
    found: list[Certificate],
    seconds: float,
    ours: list[float],
    rates: Mapping[str, list[float]],
    notes: Mapping[str, str],
) -> list[Figure]:
    """The two factors, draws saved and speed of a draw, and their product, for each peer."""
    shares = certified_accuracy(
        np.array([one.radius for one in found]), np.array([one.label is not None for one in found]), RADII
    )
    accuracy = ", ".join(
        f"{floor_percent(share, 0)} % at {radius:g}" for radius, share in zip(RADII, shares, strict=True)
    )
    draws, theirs = sum(one.draws for one in found), len(found) * (N0 + N)
    fewer = theirs / draws
    detail = f"{draws:,} draws at {len(RADII)} radii with known labels ({accuracy}); CERTIFY takes {theirs:,}"
    figures = [Figure(f"{title}: fewer draws", fewer, "", detail)]
    for peer, name in NAMES.items():
        if peer not in rates:
            continue
        faster, rate = ratio(ours, rates[peer]), float(np.median(rates[peer]))
        detail = f"{np.median(ours):,.0f}/s ({notes['ours']}); {name} {rate:,.0f}/s ({notes[peer]})"
        figures.append(Figure(f"{title}: faster draws than {name}", faster, "", detail))
        detail = (
            f"{fewer:.1f} × {faster:.2f}; {seconds:.0f} s in all; {name} would take {theirs / rate / 60:,.0f} minutes, "
            "extrapolated"
        )
        figures.append(Figure(f"{title}: less time than {name}", fewer * faster, "≥ 50", detail))
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TRAINED, help="a network trained for CIFAR-10 at σ = 0.25")
    show([*same_draws(), *headline(parser.parse_args().model)], "peers")

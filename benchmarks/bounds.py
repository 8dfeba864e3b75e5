"""What deterministic bounds cost: seconds per image of each method, including the search for the largest radius.

    python benchmarks/bounds.py [--wong FILE] [--save FILE]

The networks are the 7-layer MLP of CROWN's authors (six hidden layers of 1024 units) and the convolutional network of
Wong & Kolter 2018, briefly trained on digits that are enlarged to their input, so that radii are those of a network
that has learnt something. --wong adds the CIFAR-10 network that Wong et al. released: `cifar_small_36px.pth` of
github.com/locuslab/convex_adversarial, the first of its cascade. --save writes the radii, to compare two versions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from common import Figure, show
from smoothcert.baselines.methods import make_certifier
from smoothcert.data import load
from smoothcert.models.architectures import mlp, wong_cnn
from smoothcert.models.layers import Normalize

IMAGES, SIDE, STEPS = 20, 28, 300


def digits() -> tuple[Tensor, Tensor]:
    """All training digits, enlarged, and their labels."""
    data = load("digits", split="train")
    images = torch.from_numpy(np.stack([data[i] for i in range(len(data))])).float()
    images = images / 255 if images.max() > 1 else images
    return functional.interpolate(images, (SIDE, SIDE), mode="bilinear"), torch.as_tensor(data.labels)


def trained(model: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """The network after a few steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        rows = torch.arange(step * 64, step * 64 + 64) % len(images)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval()


def released(path: Path) -> tuple[nn.Module, Tensor]:
    """The network of Wong et al., and CIFAR-10 test images."""
    network = wong_cnn(10, (3, 32, 32))
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["state_dict"][0])
    data = load("cifar10", split="test")
    images = np.stack([data[i] for i in range(0, len(data), len(data) // IMAGES)])
    scaled = torch.from_numpy(images).float()
    scaled = scaled / 255 if scaled.max() > 1 else scaled
    return nn.Sequential(Normalize([0.485, 0.456, 0.406], [0.225] * 3), network).eval(), scaled


def measure(wong: Path | None = None, save: Path | None = None) -> list[Figure]:
    """Seconds per image of each method. Images are bounded one by one, as in runs on the CPU."""
    images, labels = digits()
    torch.manual_seed(0)
    layers = trained(mlp(SIDE * SIDE, *[1024] * 6), images, labels)
    convolutions = trained(wong_cnn(10, (1, SIDE, SIDE)), images, labels)
    networks: dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]] = {
        "the 7-layer MLP": (layers, images[:IMAGES], ("lipschitz", "dual", "crown")),
        "wong-cnn": (convolutions, images[:IMAGES], ("lipschitz", "dual", "crown")),
    }
    if wong is not None:
        networks["the network of Wong et al."] = *released(wong), ("dual", "crown")
    figures, found = [], dict[str, list[float]]()
    for network, (model, x, methods) in networks.items():
        for method in methods:
            certifier = make_certifier(method, model, tuple(x.shape[1:]))
            certifier(x[-1:])  # norms are computed once for a network
            wall, cpu, radii = time.perf_counter(), time.process_time(), list[float]()
            for one in x.split(1):
                radii += certifier(one)[1].tolist()
            seconds, busy = (time.perf_counter() - wall) / len(x), (time.process_time() - cpu) / len(x)
            median, threads = statistics.median(radii), torch.get_num_threads()
            detail = f"CPU {busy:.2f} s, median radius {median:.4f}, {len(x)} images, threads: {threads}"
            found[f"{method} on {network}"] = radii
            figures.append(Figure(f"{method} on {network}: seconds per image", seconds, detail=detail))
    if save is not None:
        save.write_text(json.dumps(found), "utf-8")
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds per image of deterministic bounds.")
    parser.add_argument("--wong", type=Path, help="cifar_small_36px.pth of Wong et al.")
    parser.add_argument("--save", type=Path, help="JSON file for the radii")
    arguments = parser.parse_args()
    show(measure(arguments.wong, arguments.save), "deterministic bounds")

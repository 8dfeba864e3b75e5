"""What deterministic bounds cost: seconds per image of each method.

The network is the 7-layer MLP of CROWN's authors (six hidden layers of 1024 units), briefly trained on digits that are
enlarged to its input, so that radii are those of a network that has learnt something. Times include the search for the
largest radius.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch.nn import functional

from common import Figure, show
from smoothcert.baselines.lipschitz import lipschitz_radii
from smoothcert.baselines.network import read_network
from smoothcert.baselines.search import RelaxedNetwork
from smoothcert.data import load
from smoothcert.models.architectures import mlp

IMAGES, SIDE, STEPS = 20, 28, 300


def trained() -> tuple[torch.nn.Module, torch.Tensor]:
    """The network and some images."""
    torch.manual_seed(0)
    data = load("digits", split="train")
    images = torch.from_numpy(np.stack([data[i] for i in range(len(data))])).float()
    images = images / 255 if images.max() > 1 else images
    images = functional.interpolate(images, (SIDE, SIDE), mode="bilinear")
    labels = torch.as_tensor(data.labels)
    model = mlp(SIDE * SIDE, *[1024] * 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(STEPS):
        rows = torch.arange(step * 64, step * 64 + 64) % len(images)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval(), images[:IMAGES]


def measure() -> list[Figure]:
    """Seconds per image of each method."""
    model, images = trained()
    shape = tuple(images.shape[1:])
    relaxed = RelaxedNetwork.of(model, shape)
    exact = read_network(model.double(), shape)
    methods = {
        "lipschitz": lambda x: lipschitz_radii(exact, x.double())[1],
        "dual": lambda x: relaxed.radii(x, ("same",))[1],
        "crown": lambda x: relaxed.radii(x, ("same", "adaptive"))[1],
    }
    figures = []
    for name, method in methods.items():
        started, radii = time.perf_counter(), []
        for part in images.split(10):
            radii += method(part).tolist()
        seconds = (time.perf_counter() - started) / IMAGES
        detail = f"median radius {statistics.median(radii):.4f}, {IMAGES} images, threads: {torch.get_num_threads()}"
        figures.append(Figure(f"{name} on the 7-layer MLP: seconds per image", seconds, detail=detail))
    return figures


if __name__ == "__main__":
    show(measure(), "deterministic bounds")

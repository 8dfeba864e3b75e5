"""A small network on a toy problem in the plane, for the illustrations of smoothing."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from smoothcert.data.dataset import ArrayData
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded, train
from smoothcert.training.settings import TrainSettings

CLASSES = 4
_POINTS = 150  # of each class
_EPOCHS = 80


def pinwheel_data(seed: int = 0) -> ArrayData:
    """Points of four classes in the unit square, each class an arm of a pinwheel."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), _POINTS)
    distance = 0.02 + 0.46 * np.sqrt(generator.random(len(labels)))
    angle = labels * 2 * np.pi / CLASSES + 6.5 * distance + 0.2 * generator.standard_normal(len(labels))
    points = 0.5 + distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return ArrayData(points.astype(np.float32), labels, None, "pinwheel")


def pinwheel_network(seed: int = 0) -> nn.Module:
    """A ReLU network trained on the pinwheel, with a little Gaussian noise; takes about a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for a network this small, and the same rounding on every machine
    try:
        settings = TrainSettings(
            sigma=0.03, epochs=_EPOCHS, batch_size=100, learning_rate=0.3, seed=seed, device="cpu", augment=()
        )
        return train(seeded(partial(mlp, 2, 64, 64, classes=CLASSES), seed), pinwheel_data(seed), settings)
    finally:
        torch.set_num_threads(threads)

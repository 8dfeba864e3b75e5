"""Plain networks: fully connected, and of a few convolutions."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, *hidden: int, classes: int = 10) -> nn.Sequential:
    """A fully connected ReLU network on flattened inputs."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else inputs, classes))


def small_cnn(classes: int = 10) -> nn.Sequential:
    """Two convolutions and a linear layer for 8×8 greyscale images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def lenet(classes: int = 10) -> nn.Sequential:
    """LeNet for 28×28 greyscale images: 20 and 50 convolutions of 5×5, 500 hidden units, 431,080 parameters.

    Pooling comes before ReLU: the result is the same, on a quarter of the values.
    """
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )

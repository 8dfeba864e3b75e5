"""The networks of the paper's experiments and comparisons, and small ones for the demo and the tests.

`build(name, classes=…)` makes any of `ARCHITECTURES`. Weights are random, drawn from torch's generator: of the residual
networks the convolutions as He et al. 2015 have it (normal, variance 2 / fan-out), everything else as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from smoothcert.checks import check_choice, check_count
from smoothcert.errors import ConfigError
from smoothcert.models.architectures.lipschitz import lipschitz_cnn, wong_cnn
from smoothcert.models.architectures.plain import lenet, mlp, small_cnn
from smoothcert.models.architectures.residual import (
    ImageNetResNet,
    cifar_resnet,
    resnet18,
    resnet50,
    wide_resnet,
    wong_resnet,
)

__all__ = [
    "ALIASES",
    "ARCHITECTURES",
    "Architecture",
    "ImageNetResNet",
    "build",
    "cifar_resnet",
    "lenet",
    "lipschitz_cnn",
    "mlp",
    "outline",
    "resnet18",
    "resnet50",
    "small_cnn",
    "wide_resnet",
    "wong_cnn",
    "wong_resnet",
]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Takes:
    """Which input shapes a network can take, as a test and in words."""

    fits: Callable[[Shape], bool]
    words: str


def _images(least: int, multiple: int = 1) -> _Takes:
    def fits(shape: Shape) -> bool:
        return len(shape) == 3 and all(side >= least and side % multiple == 0 for side in shape[1:])

    steps = f", multiples of {multiple}" if multiple > 1 else ""
    return _Takes(fits, f"(channels, height, width) with sides of at least {least}{steps}")


def _only(*shape: int) -> _Takes:
    return _Takes(lambda given: given == shape, str(shape))


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network by name: how to make it, the input it was made for, which others it takes, who described it."""

    make: Callable[[int, Shape], nn.Module]
    input_shape: Shape
    takes: _Takes
    reference: str

    def factory(self, classes: int) -> nn.Module:
        """The network for its natural input."""
        return self.make(classes, self.input_shape)


def _cifar_resnet(depth: int) -> Architecture:
    # Convolution and shortcut both round up where they halve, so that any sides fit; from 8 on they mean something.
    return Architecture(
        lambda classes, shape: cifar_resnet(depth, classes, shape[0]),
        (3, 32, 32),
        _images(least=8),
        "He et al. 2016, Deep residual learning for image recognition",
    )


ARCHITECTURES: dict[str, Architecture] = {
    "mlp-7": Architecture(
        lambda classes, shape: mlp(prod(shape), *[1024] * 6, classes=classes),
        (3, 32, 32),
        _Takes(lambda shape: len(shape) > 0, "any"),
        "Zhang et al. 2018, CROWN: the paper's cifar_7_1024, six hidden layers and an output layer",
    ),
    "small-cnn": Architecture(
        lambda classes, _: small_cnn(classes), (1, 8, 8), _only(1, 8, 8), "smoothcert's demo on handwritten digits"
    ),
    "lenet": Architecture(
        lambda classes, _: lenet(classes),
        (1, 28, 28),
        _only(1, 28, 28),
        "LeCun et al. 1998, in the form of Caffe's LeNet with ReLU",
    ),
    "resnet20": _cifar_resnet(20),
    "resnet32": _cifar_resnet(32),
    "resnet44": _cifar_resnet(44),
    "resnet56": _cifar_resnet(56),
    "resnet110": _cifar_resnet(110),
    "wrn-16-4": Architecture(
        lambda classes, shape: wide_resnet(16, 4, classes, shape[0]),
        (3, 32, 32),
        _images(least=8),
        "Zagoruyko & Komodakis 2016, Wide residual networks",
    ),
    "wong-resnet": Architecture(
        wong_resnet,
        (3, 32, 32),
        _images(least=4, multiple=4),
        "Wong et al. 2018, Scaling provable adversarial defenses",
    ),
    "wong-cnn": Architecture(
        wong_cnn,
        (1, 28, 28),
        _images(least=4, multiple=4),
        "Wong & Kolter 2018, Provable defenses via the convex outer adversarial polytope",
    ),
    "lipschitz-cnn": Architecture(
        lipschitz_cnn,
        (1, 28, 28),
        _images(least=4, multiple=4),
        "Serrurier et al. 2021, Achieving robustness in classification using optimal transport",
    ),
    "resnet18": Architecture(
        lambda classes, shape: resnet18(classes, shape[0]),
        (3, 224, 224),
        _images(least=32),
        "He et al. 2016, Deep residual learning for image recognition",
    ),
    "resnet50": Architecture(
        lambda classes, shape: resnet50(classes, shape[0]),
        (3, 224, 224),
        _images(least=32),
        "He et al. 2016, Deep residual learning for image recognition; stride as in torchvision",
    ),
}

# What the code of Cohen et al. 2019 calls them.
ALIASES = {"cifar_resnet20": "resnet20", "cifar_resnet110": "resnet110"}


# The same layers without parametrizations, which compute with values and so cannot be built on the meta device.
_PLAIN = {"lipschitz-cnn": "wong-cnn"}


def outline(name: str, *, classes: int, input_shape: tuple[int, ...] | None = None) -> nn.Module:
    """The network as `build` makes it, on the meta device: names and shapes without memory.

    Parametrized layers appear as plain ones, whose weights are fewer.
    """
    name = ALIASES.get(name, name)
    try:
        with torch.device("meta"):
            return build(_PLAIN.get(name, name), classes=classes, input_shape=input_shape)
    except (OverflowError, RuntimeError) as error:  # sizes that do not fit 64 bits
        raise ConfigError(f"Cannot build {name}: its `classes` or `input_shape` are too large.") from error


def build(name: str, *, classes: int, input_shape: tuple[int, ...] | None = None) -> nn.Module:
    """Make a network of `ARCHITECTURES` (or `ALIASES`) with random weights, for inputs of its natural shape or another.

    Raises ConfigError for an unknown name and for a shape that the network cannot take.
    """
    check_choice("architecture", name, [*ARCHITECTURES, *ALIASES])
    check_count("classes", classes, least=2)
    architecture = ARCHITECTURES[ALIASES.get(name, name)]
    if input_shape is None:
        return architecture.factory(classes)
    shape = tuple(check_count("input_shape", side) for side in input_shape)
    if not architecture.takes.fits(shape):
        raise ConfigError(f"Expected `input_shape` for {name} to be {architecture.takes.words}, got {shape}.")
    return architecture.make(classes, shape)

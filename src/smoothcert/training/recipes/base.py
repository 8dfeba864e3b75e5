"""What a recipe is: the loss of a batch of inputs, given noise to draw from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError


class Losses(NamedTuple):
    """What a recipe says about a batch of B inputs: each one's loss, and the part of its noisy copies that is right."""

    values: Tensor
    accuracy: Tensor


class Draws:
    """The randomness of one step: noise for the inputs at `places` of a batch of `total`.

    Noise is drawn for the whole batch, whoever computes which part of it, so that several processes train on the same
    noise as one.
    """

    def __init__(self, sigma: float, generator: torch.Generator, places: Tensor, total: int) -> None:
        self.sigma = sigma
        self._generator, self._places, self._whole = generator, places, len(places) == total
        self._total = total

    def noises(self, x: Tensor, copies: int = 1) -> Tensor:
        """Fresh Gaussian noises [copies, B, *D] for x [B, *D]."""
        shape = (copies, self._total, *x.shape[1:])
        noise = torch.empty(shape, device=x.device).normal_(0, self.sigma or 1.0, generator=self._generator)
        if not self.sigma:
            noise.zero_()
        return noise if self._whole else noise[:, self._places]

    def uniform(self, x: Tensor, copies: int = 1) -> Tensor:
        """Fresh numbers [copies, B] between 0 and 1 for x [B, *D]."""
        numbers = torch.rand((copies, self._total), device=x.device, generator=self._generator)
        return numbers if self._whole else numbers[:, self._places]


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A way to train; its fields are its settings, by default those of its paper."""

    name: ClassVar[str]
    paper: ClassVar[str] = "no publication given"
    needs_classifier: ClassVar[bool] = False
    """Whether what is trained stands in front of a classifier that is given."""
    not_compiled_because: ClassVar[str] = ""
    """Why torch.compile does not work with this recipe; empty if it does."""

    @abstractmethod
    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """The losses of inputs x [B, *D] with labels y [B]; `strength` grows from 0 to 1 as the recipe warms up."""

    def rough_seconds(self, model: nn.Module, x: Tensor) -> float:  # noqa: ARG002 - recipes that take long look at them
        """A rough estimate of the time that a training input takes, before any is trained on; 0 if it is short."""
        return 0.0

    def begin(self, model: nn.Module) -> None:
        """Put `model` into the mode it is trained in."""
        model.train()

    def strength(self, epoch: float, epochs: int) -> float:  # noqa: ARG002 - recipes that warm up look at them
        """How much of its special part the recipe uses at this point of the training."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class WarmingUp(Recipe):
    """A recipe whose special part grows from nothing during the first epochs."""

    warmup: int = 10
    """Epochs until the recipe has its full strength, but never more than a tenth of them all."""

    def __post_init__(self) -> None:
        check_count("warmup", self.warmup, least=0)

    def strength(self, epoch: float, epochs: int) -> float:
        """Linear in the epochs."""
        until = min(float(self.warmup), epochs / 10)
        return 1.0 if until == 0 else min(1.0, epoch / until)


def check_at_least(least: float, **settings: float) -> None:
    """Raise ConfigError unless all settings are finite numbers of at least `least`."""
    for name, value in settings.items():
        if not least <= value < float("inf"):
            raise ConfigError(f"Expected `{name}` to be a finite number >= {least:g}, got {value!r}.")


def check_counts(**settings: int) -> None:
    """Raise ConfigError unless all settings are whole numbers of at least 1."""
    for name, value in settings.items():
        check_count(name, value)


def cross_entropies(scores: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy [m, B] of each copy's scores [m, B, K] with its input's label."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.repeat(len(scores)), reduction="none").view(
        scores.shape[:2]
    )


def accuracies(scores: Tensor, labels: Tensor) -> Tensor:
    """The part [B] of an input's copies whose scores [m, B, K] are highest for its label."""
    return (scores.detach().argmax(dim=2) == labels).float().mean(dim=0)

"""What an attack on the smoothed classifier is: a search that is not trusted, and what keeps it within its bounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from smoothcert.attacks.access import attacked, check_differentiable
from smoothcert.attacks.copies import NoisyCopies, prefers_channels_last
from smoothcert.attacks.geometry import strictly_within, within_ball
from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError
from smoothcert.models.contract import Model
from smoothcert.sampling import in_layout


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What is attacked: the win of class `label` at x [*D] when `model` is smoothed with noise of level `sigma`.

    The model is what `models.load` gives, a module, or any function from inputs [B, *D] to scores [B, K] that torch can
    differentiate. With `clip`, results are to lie in [0, 1], where x must be too.
    """

    model: Model
    x: Tensor
    label: int
    sigma: float
    clip: bool = False

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        check_count("label", self.label, least=0)
        if self.x.dtype != torch.float32 or self.x.numel() == 0 or not self.x.isfinite().all():
            raise InputError(f"Expected finite float32 values, got {self.x.dtype} of shape {tuple(self.x.shape)}.")
        if self.clip and not (self.x.min() >= 0 and self.x.max() <= 1):
            raise InputError(f"Expected values in [0, 1], got [{float(self.x.min()):g}, {float(self.x.max()):g}].")

    def moved(self, delta: Tensor, radius: float) -> Tensor:
        """`delta` [*D] cut to the radius, and to what leaves x in [0, 1] if results are clipped."""
        delta = within_ball(delta[None], radius)[0]
        return (self.x + delta).clamp(0, 1) - self.x if self.clip else delta


@dataclass(frozen=True, kw_only=True)
class SmoothedAttack(ABC):
    """An attack on the smoothed classifier; its fields are its settings."""

    name: ClassVar[str]
    batch_size: int = 256
    """Noisy copies in a forward and backward pass."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the search. bf16: mixed precision, which makes gradients coarser but no result less trustworthy."""

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_choice("precision", self.precision, ("fp32", "bf16"))

    @abstractmethod
    def search(self, target: Target, radius: float, generator: torch.Generator) -> Tensor:
        """A point [*D] that should be within `radius` of the target's x, where its label should not win any more."""

    def __call__(self, target: Target, radius: float, generator: torch.Generator, *, clip: bool = False) -> Tensor:
        """What the search finds, as a float32 input [*D] at a distance from x of less than `radius`, taken in float64.

        With `clip` it lies in [0, 1]. All randomness comes from `generator`, wherever that is. The model runs
        in eval mode and its weights get no gradients; afterwards it is as it was.
        """
        if isinstance(radius, bool) or not 0 < radius < math.inf:
            raise ConfigError(f"Expected `radius` to be a finite number > 0, got {radius!r}.")
        with attacked(target.model) as as_given:
            network = in_layout(as_given, channels_last=prefers_channels_last(as_given, target.x))
            aim = replace(target, model=network, x=target.x.detach().clone(), clip=clip or target.clip)
            check_differentiable(network, aim.x[None], torch.tensor([aim.label]))
            with torch.autocast(aim.x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                found = self.search(aim, radius, generator).detach()
        x = target.x.detach()  # the search may have changed its own
        found = strictly_within(x, found.to(x.device).view_as(x), radius)
        return found.clamp(0, 1) if aim.clip else found  # towards x, which lies in there

    def _copies(self, target: Target) -> NoisyCopies:
        channels_last = prefers_channels_last(target.model, target.x)
        return NoisyCopies(target.model, target.sigma, self.batch_size, channels_last)

"""Adaptive training: each input is trained on its worst noise within a radius of its own, as far as it can be held."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import frozen, pgd
from smoothcert.errors import ConfigError
from smoothcert.training.recipes.base import Draws, Losses, Recipe, check_at_least, check_counts

_STEP = 0.7  # of the radius: two steps reach the sphere, and the second can still turn


@dataclass(frozen=True, kw_only=True)
class Adaptive(Recipe):
    """(1 − F(x + ε*)_y^q) / q, where ε* is the worst noise within a radius ρ(x) of a drawn one.

    ρ(x) is remembered from one epoch to the next: it grows a little where f(x + ε*) is right and shrinks where it is
    wrong, so that in the long run the part `wrong` of these answers is wrong. If wrong answers are a half space, ρ(x)
    is the smoothed classifier's radius at x less a constant, and what is pushed is each input's own radius, whether it
    is small or large: the average certified radius. Cross-entropy looks at hard inputs, a ρ for all at those near it.

    Radii per example are those of Balaji, Goldstein & Hoffman (2019), who attack inputs with them; the attack on noises
    is that of `CatRs`; the loss, which gives up what cannot be held, is Zhang & Sabuncu's (2018, arXiv:1805.07836).
    """

    name = "adaptive"
    paper = "after Balaji, Goldstein & Hoffman 2019, arXiv:1910.08051"

    steps: int = 2
    """Steps of the search for the worst noise."""
    wrong: float = 0.25
    """The part of answers to the worst noises that ρ keeps wrong."""
    first: float = 0.0
    """ρ at the start, in units of σ; 2.8 for a network that was trained under noise before."""
    rate: float = 0.5
    """By how much ρ grows and shrinks: rate·wrong and rate·(1 − wrong), in units of σ."""
    largest: float = 3.6
    """The largest ρ, in units of σ."""
    revisit: float = 0.35
    """How often inputs that have reached it are looked at, that time may go to others."""
    power: float = 0.5
    """q: 0 would be cross-entropy, 1 is the probability of a wrong answer."""

    def __post_init__(self) -> None:
        check_counts(steps=self.steps)
        check_at_least(0, first=self.first, rate=self.rate, largest=self.largest)
        for name in ("wrong", "revisit", "power"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"Expected `{name}` in (0, 1], got {getattr(self, name)!r}.")

    @property
    def remembers(self) -> float:
        """ρ, in units of σ."""
        return self.first

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """The loss at the worst noise; 0 for inputs that are not looked at this time, which count as right."""
        noise, radii = draws.noises(x)[0], draws.remembered.clamp_max(self.largest)
        looked = (radii < self.largest) | (draws.uniform(x)[0] < self.revisit)
        looked |= ~looked.any()
        noisy, labels = (x + noise)[looked], y[looked]
        pushes = self.worst(model, noisy, labels, draws.sigma * radii[looked])
        scores = model(noisy + pushes)
        own = functional.log_softmax(scores, 1).gather(1, labels[:, None])[:, 0]
        right = (scores.detach().argmax(1) == labels).to(radii.dtype)
        moved = radii[looked] + self.rate * (right - (1 - self.wrong))
        draws.remembered = radii.masked_scatter(looked, moved.clamp(0, self.largest))
        values = own.new_zeros(len(x)).masked_scatter(looked, (1 - (self.power * own).exp()) / self.power)
        return Losses(values, right.new_ones(len(x)).masked_scatter(looked, right))

    def worst(self, model: nn.Module, noisy: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """Pushes [B, *D], each within its own radius [B], along which another class gains most on the label's."""
        scale = radii.view(-1, *[1] * (noisy.ndim - 1))

        def lead_of_others(unit: Tensor) -> Tensor:
            scores = model(noisy + scale * unit).float()
            label = functional.one_hot(labels, scores.shape[1]).bool()
            return scores.masked_fill(label, -torch.inf).logsumexp(1) - scores[label]

        with frozen(model):
            start = torch.zeros_like(noisy)
            return scale * pgd(lead_of_others, start, radius=1.0, steps=self.steps, step_size=_STEP, pixels=False)

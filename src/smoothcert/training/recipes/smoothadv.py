"""Adversarial training of the smoothed classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from smoothcert.attacks.soft import ddn, frozen, noisy_scores, pgd, soft_log_probabilities, soft_objective
from smoothcert.errors import ConfigError
from smoothcert.training.recipes.base import (
    Draws,
    Losses,
    WarmingUp,
    accuracies,
    check_at_least,
    check_counts,
    cross_entropies,
)


@dataclass(frozen=True, kw_only=True)
class SmoothAdv(WarmingUp):
    """(1/m) Σᵢ −log F(x̂ + εᵢ)_y at x̂ = argmax over ‖x̂ − x‖₂ ≤ ε of −log (1/m) Σᵢ F(x̂ + εᵢ)_y.

    Salman et al. 2019, Section 2.2 and Algorithm 1: the attack is on the soft smoothed classifier, with the noises
    that the loss is then taken at. The attack's radius grows linearly during the warm-up.
    """

    name = "smoothadv"
    paper = "Salman et al. 2019, arXiv:1906.04584"

    copies: int = 4
    """m, noises per input."""
    steps: int = 10
    """Steps of the attack."""
    radius: float = 1.0
    """ε, how far the attack may go, in L2."""
    attack: Literal["pgd", "ddn"] = "pgd"
    """Steepest ascent within the ball, or decoupled direction and norm, which looks for the nearest change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(copies=self.copies, steps=self.steps)
        check_at_least(0, radius=self.radius)
        if self.attack not in ("pgd", "ddn"):
            raise ConfigError(f"Expected `attack` to be pgd or ddn, got {self.attack!r}.")

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy under noise around adversarial inputs."""
        noises = draws.noises(x, self.copies)
        with frozen(model):
            found = self.attacked(model, x, y, noises, strength * self.radius)
        scores = noisy_scores(model, found, noises)
        return Losses(cross_entropies(scores, y).mean(0), accuracies(scores, y))

    def attacked(self, model: nn.Module, x: Tensor, y: Tensor, noises: Tensor, radius: float) -> Tensor:
        """Adversarial inputs within `radius` of x."""
        if radius == 0:
            return x
        objective = soft_objective(model, y, noises)
        if self.attack == "pgd":
            return pgd(objective, x, radius=radius, steps=self.steps)

        def fooled(point: Tensor) -> Tensor:
            return soft_log_probabilities(noisy_scores(model, point, noises)).argmax(1) != y

        return ddn(objective, fooled, x, radius=radius, steps=self.steps)

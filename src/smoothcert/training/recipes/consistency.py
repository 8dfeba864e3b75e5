"""Consistency regularisation: all noisy copies of an input shall be answered alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import noisy_scores, soft_log_probabilities
from smoothcert.training.recipes.base import (
    Draws,
    Losses,
    Recipe,
    accuracies,
    check_at_least,
    check_counts,
    cross_entropies,
)


@dataclass(frozen=True, kw_only=True)
class Consistency(Recipe):
    """(1/m) Σᵢ [−log F(x + εᵢ)_y + λ·KL(F̄ ‖ F(x + εᵢ))] + η·H(F̄), F̄ = (1/m) Σᵢ F(x + εᵢ).

    Jeong & Shin 2020, equations 6 and 8.
    """

    name = "consistency"
    paper = "Jeong & Shin 2020, arXiv:2006.04062"

    copies: int = 2
    """m, noises per input."""
    weight: float = 10.0
    """λ, of the divergence among the copies."""
    entropy: float = 0.5
    """η, of the entropy of their mean."""

    def __post_init__(self) -> None:
        check_counts(copies=self.copies)
        check_at_least(0, weight=self.weight, entropy=self.entropy)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """Cross-entropy under noise, divergence among the copies, entropy of their mean."""
        scores = noisy_scores(model, x, draws.noises(x, self.copies))
        log_mean = soft_log_probabilities(scores)
        mean = log_mean.exp()
        divergence = (mean * (log_mean - functional.log_softmax(scores, dim=2))).sum(2).mean(0)
        entropy = -(mean * log_mean).sum(1)
        losses = cross_entropies(scores, y).mean(0) + self.weight * divergence + self.entropy * entropy
        return Losses(losses, accuracies(scores, y))

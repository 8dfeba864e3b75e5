"""Maximising the certified radius itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import noisy_scores, soft_log_probabilities
from smoothcert.errors import ConfigError
from smoothcert.training.recipes.base import Draws, Losses, Recipe, accuracies, check_at_least, check_counts


@dataclass(frozen=True, kw_only=True)
class Macer(Recipe):
    """−log F̄(x)_y + λ·(σ/2)·max(0, γ − ξ(x))·[x is classified right], ξ = Φ⁻¹(ẑ₁) − Φ⁻¹(ẑ₂).

    F̄ averages softmax f(x + εᵢ) over m noises and ẑ the sharper softmax β·f(x + εᵢ); ẑ₁ is that of the label and ẑ₂
    the largest other one, so that σ·ξ/2 is the radius of Theorem 1 for the soft classifier. Zhai et al. 2020,
    Section 4 and Algorithm 1. Inputs whose ξ is beyond γ, or not finite, have no robustness loss.
    """

    name = "macer"
    paper = "Zhai et al. 2020, arXiv:2001.02378"

    copies: int = 16
    """m, noises per input."""
    weight: float = 16.0
    """λ, of the robustness loss; the authors' comparisons take 16 on MNIST, 6 at σ = 1."""
    sharpness: float = 16.0
    """β, the inverse temperature."""
    margin: float = 8.0
    """γ, beyond which a larger radius is not asked for."""
    deferred: float = 0.0
    """The part of the training that goes by before the robustness loss sets in."""

    def __post_init__(self) -> None:
        check_counts(copies=self.copies)
        check_at_least(0, weight=self.weight, sharpness=self.sharpness, margin=self.margin, deferred=self.deferred)
        if self.deferred >= 1:
            raise ConfigError(f"Expected `deferred` to be a part of the training, less than 1, got {self.deferred!r}.")

    def strength(self, epoch: float, epochs: int) -> float:
        """Nothing until the robustness loss sets in."""
        return float(epoch >= self.deferred * epochs)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy of the soft smoothed classifier, and what is missing of the margin."""
        scores = noisy_scores(model, x, draws.noises(x, self.copies)).to(x.dtype)  # Φ⁻¹ needs the digits
        classification = functional.nll_loss(soft_log_probabilities(scores), y, reduction="none")
        missing = self.missing(scores, y) if strength else torch.zeros_like(classification)
        return Losses(classification + strength * self.weight * draws.sigma / 2 * missing, accuracies(scores, y))

    def missing(self, scores: Tensor, y: Tensor) -> Tensor:
        """What each input's ξ lacks of the margin [B], from scores [m, B, K]; 0 where it is not asked for."""
        probabilities = functional.softmax(self.sharpness * scores, dim=2).mean(0)
        top, classes = probabilities.topk(2, dim=1)
        # A probability of 0 or 1 has no finite quantile and no gradient: such inputs are left out.
        usable = (classes[:, 0] == y) & (top[:, 0] < 1) & (top[:, 1] > 0)
        inner = torch.where(usable[:, None], top, 0.5)
        gap = torch.special.ndtri(inner[:, 0]) - torch.special.ndtri(inner[:, 1])
        return torch.where(usable & (gap <= self.margin), self.margin - gap, 0.0)

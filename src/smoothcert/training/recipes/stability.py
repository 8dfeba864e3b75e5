"""Stability training: the answer under noise shall be the answer without."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.training.recipes.base import Draws, Losses, WarmingUp, accuracies, check_at_least


@dataclass(frozen=True, kw_only=True)
class Stability(WarmingUp):
    """−log F(x)_y + λ·H(F(x), F(x + ε)), where F = softmax f and H(p, q) = −Σ p·log q.

    Li, Chen, Wang & Carin 2019, Section 3.4 (after Zheng et al. 2016); λ = 2 as in the comparisons of Jeong & Shin.
    """

    name = "stability"
    paper = "Li, Chen, Wang & Carin 2019, arXiv:1809.03113"

    weight: float = 2.0
    """λ, of the cross-entropy between the answers without and with noise."""
    warmup: int = 0
    """Epochs in which λ grows from nothing; a λ of 5 and more from the start can make all answers the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(0, weight=self.weight)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy without noise, and between the answers without and with it."""
        noisy = x + draws.noises(x)[0]
        clean_scores, noisy_scores = model(torch.cat([x, noisy])).chunk(2)
        instability = -(functional.softmax(clean_scores, 1) * functional.log_softmax(noisy_scores, 1)).sum(1)
        losses = functional.cross_entropy(clean_scores, y, reduction="none") + strength * self.weight * instability
        return Losses(losses, accuracies(noisy_scores[None], y))

"""Confidence-aware training: easy inputs are trained on their worst noise, hard ones on their best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import frozen, noisy_scores, pgd, soft_log_probabilities
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
class CatRs(Recipe):
    """L_low + λ·[K = m]·L_high, where K ~ Binomial(m, p̂) and p̂ is the part of the m noises classified right.

    L_low = (1/m)·(the sum of the max(K, 1) smallest of −log F(x + εᵢ)_y), and L_high = maxᵢ of KL(F̄(x) ‖ F(x + ε*ᵢ))
    where ε*ᵢ is the worst noise within a radius of εᵢ. Jeong, Kim & Shin 2023, Section 4: the base classifier's
    confidence tells inputs that can be made robust from those that cannot.
    """

    name = "cat-rs"
    paper = "Jeong, Kim & Shin 2023, arXiv:2212.09000"

    copies: int = 4
    """m, noises per input."""
    steps: int = 4
    """Steps of the search for the worst noise."""
    radius: float = 1.0
    """How far from a drawn noise the worst may be, in L2."""
    weight: float = 1.0
    """λ, of the worst noise's loss; the authors take 0.5, 1 and 2 at σ = 0.25, 0.5 and 1 on CIFAR."""

    def __post_init__(self) -> None:
        check_counts(copies=self.copies, steps=self.steps)
        check_at_least(0, radius=self.radius, weight=self.weight)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """The best noises' cross-entropy, and the worst noise's divergence where all were right."""
        noises = draws.noises(x, self.copies)
        scores = noisy_scores(model, x, noises)
        right = accuracies(scores, y)
        kept = (draws.uniform(x, self.copies) < right).sum(0)  # binomial
        low = self.bottom(cross_entropies(scores, y), kept)
        sure = kept == self.copies
        if not sure.any():
            return Losses(low, right)
        answer = soft_log_probabilities(scores[:, sure]).exp().detach()
        high = torch.zeros_like(low).masked_scatter(sure, self.worst(model, x[sure], noises[:, sure], answer))
        return Losses(low + self.weight * high, right)

    def bottom(self, losses: Tensor, kept: Tensor) -> Tensor:
        """The sum of the `kept` smallest of each input's losses [m, B], at least one, over m."""
        ranks = torch.arange(len(losses), device=losses.device)[:, None]
        return torch.where(ranks < kept.clamp_min(1), losses.sort(dim=0).values, 0.0).mean(0)

    def worst(self, model: nn.Module, x: Tensor, noises: Tensor, answer: Tensor) -> Tensor:
        """The largest divergence [B] from `answer` [B, K] among the worst noises near the given ones."""
        targets = answer.repeat(len(noises), 1)

        def divergence(noisy: Tensor) -> Tensor:
            return functional.kl_div(functional.log_softmax(model(noisy), 1), targets, reduction="none").sum(1)

        noisy = (x + noises).flatten(0, 1)
        with frozen(model):
            worst = pgd(divergence, noisy, radius=self.radius, steps=self.steps, pixels=False)
        return divergence(worst).view(len(noises), len(x)).amax(0)

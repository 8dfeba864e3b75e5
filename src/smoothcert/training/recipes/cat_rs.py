"""Confidence-aware training: easy inputs are trained on their worst noise, hard ones on their best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import frozen, noisy_scores, pgd, soft_log_probabilities
from smoothcert.errors import ConfigError
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

    L_low = (1/m)·(the sum of the max(K, 1) smallest of −log F(x + εᵢ)_y), and L_high = maxᵢ of KL(ŷ ‖ F(x + ε*ᵢ))
    where ε*ᵢ is the worst noise within a radius of εᵢ and ŷ the target. Jeong, Kim & Shin 2023, Section 4: the base
    classifier's confidence tells inputs that can be made robust from those that cannot.
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
    target: Literal["answer", "label"] = "answer"
    """ŷ: the classifier's own mean `answer` F̄(x) to the m noises, or the `label`. The authors' programs take the votes
    of a classifier trained with `gaussian` before, which for most inputs are nearly all for the label."""

    def __post_init__(self) -> None:
        check_counts(copies=self.copies, steps=self.steps)
        check_at_least(0, radius=self.radius, weight=self.weight)
        if self.target not in ("answer", "label"):
            raise ConfigError(f"Expected `target` to be answer or label, got {self.target!r}.")

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
        if self.target == "label":
            target = functional.one_hot(y[sure], scores.shape[2]).to(scores.dtype)
        else:
            target = soft_log_probabilities(scores[:, sure]).exp().detach()
        high = torch.zeros_like(low).masked_scatter(sure, self.worst(model, x[sure], noises[:, sure], target))
        return Losses(low + self.weight * high, right)

    def bottom(self, losses: Tensor, kept: Tensor) -> Tensor:
        """The sum of the `kept` smallest of each input's losses [m, B], at least one, over m."""
        ranks = torch.arange(len(losses), device=losses.device)[:, None]
        return torch.where(ranks < kept.clamp_min(1), losses.sort(dim=0).values, 0.0).mean(0)

    def worst(self, model: nn.Module, x: Tensor, noises: Tensor, target: Tensor) -> Tensor:
        """The largest divergence [B] from `target` [B, K] among the worst noises near the given ones."""
        targets = target.repeat(len(noises), 1)

        def divergence(noisy: Tensor) -> Tensor:
            return functional.kl_div(functional.log_softmax(model(noisy), 1), targets, reduction="none").sum(1)

        noisy = (x + noises).flatten(0, 1)
        with frozen(model):
            worst = pgd(divergence, noisy, radius=self.radius, steps=self.steps, pixels=False)
        return divergence(worst).view(len(noises), len(x)).amax(0)

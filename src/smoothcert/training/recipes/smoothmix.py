"""Mixing inputs with adversarial ones far away, where the smoothed classifier shall not be sure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.soft import frozen, pgd, soft_log_probabilities, soft_objective
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
class SmoothMix(WarmingUp):
    """(1/m) Σᵢ [−log F(x + εᵢ)_y + η·KL(ỹ ‖ F(x̃ + εᵢ))], x̃ = (1 − λ)x + λx*, ỹ = (1 − λ)F̄(x) + λ/K, λ ~ U[0, ½].

    The second term is for inputs that F̄ classifies right, and ỹ a constant in it. x* comes from `steps` steps of length
    `step_size` that make the soft smoothed classifier F̄ wrong about x, bound by no ball; λ/K is the uniform answer that
    fits halfway to it. Jeong et al. 2021, Section 3. With `one_step` the input after the attack's first step takes the
    place of x.
    """

    name = "smoothmix"
    paper = "Jeong et al. 2021, arXiv:2111.09277"

    copies: int = 4
    """m, noises per input."""
    steps: int = 4
    """Steps of the attack; the paper takes 2, 4 and 8 at σ = 0.25, 0.5 and 1 on MNIST."""
    step_size: float = 1.0
    """Length of a step."""
    weight: float = 5.0
    """η, of the mixed inputs' loss."""
    one_step: bool = False
    """Take inputs after the attack's first step in place of the clean ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(copies=self.copies, steps=self.steps)
        check_at_least(0, step_size=self.step_size, weight=self.weight)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy under noise, and divergence of the answers to mixed inputs from mixed answers."""
        noises = draws.noises(x, self.copies)
        share = (draws.uniform(x)[0] / 2).to(x.dtype)
        with frozen(model):
            first, far = self.attacked(model, x, y, noises)
        near = first if self.one_step else x
        mixed = torch.lerp(near, far, share.view(-1, *[1] * (x.ndim - 1)))
        scores, mixed_scores = (
            model(torch.cat([(near + noises).flatten(0, 1), (mixed + noises).flatten(0, 1)]))
            .unflatten(0, (2, self.copies, len(x)))
            .unbind(0)
        )
        answer = soft_log_probabilities(scores).exp().detach().to(x.dtype)
        target = torch.lerp(answer, torch.full_like(answer, 1 / answer.shape[1]), share[:, None])
        log_answers = functional.log_softmax(mixed_scores, dim=2)
        divergence = functional.kl_div(log_answers, target.expand_as(log_answers), reduction="none").sum(2).mean(0)
        right = answer.argmax(1) == y
        losses = cross_entropies(scores, y).mean(0) + strength * self.weight * torch.where(right, divergence, 0.0)
        return Losses(losses, accuracies(scores, y))

    def attacked(self, model: nn.Module, x: Tensor, y: Tensor, noises: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs after the first step of the attack and after the last."""
        objective = soft_objective(model, y, noises)

        def walk(start: Tensor, steps: int) -> Tensor:
            return pgd(objective, start, radius=math.inf, steps=steps, step_size=self.step_size) if steps else start

        first = walk(x, 1)
        return first, walk(first, self.steps - 1)

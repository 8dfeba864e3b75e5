"""Gaussian data augmentation, the paper's own recipe."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from smoothcert.attacks.soft import noisy_scores
from smoothcert.training.recipes.base import Draws, Losses, Recipe, accuracies, cross_entropies


@dataclass(frozen=True, kw_only=True)
class Gaussian(Recipe):
    """E[−log softmax f(x + ε)_y], ε ~ N(0, σ²I), with one fresh ε per input and step.

    Cohen et al. 2019, Section 3.3 (after Lecuyer et al. 2019): g is accurate only if f classifies noisy inputs well.
    With σ = 0 the result is an undefended classifier.
    """

    name = "gaussian"
    paper = "Cohen, Rosenfeld & Kolter 2019, arXiv:1902.02918"

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """Cross-entropy under noise."""
        scores = noisy_scores(model, x, draws.noises(x))
        return Losses(cross_entropies(scores, y)[0], accuracies(scores, y))

"""A denoiser in front of a classifier that stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.training.recipes.base import Draws, Losses, Recipe, accuracies, check_at_least


@dataclass(frozen=True, kw_only=True)
class Denoiser(Recipe):
    """a·‖D(x + ε) − x‖²/d + b·(−log F(D(x + ε))_ŷ), ŷ = the classifier's own answer to x.

    Salman et al. 2020, Section 3: the mean squared error keeps the image, the stability term what the classifier makes
    of it. The model is a denoiser D followed by a frozen classifier; only D learns, and no labels are needed.
    """

    name = "denoiser"
    paper = "Salman et al. 2020, arXiv:2003.01908"
    needs_classifier = True
    not_compiled_because = "it is trained together with its classifier"

    mse: float = 1.0
    """a, of the mean squared error."""
    stability: float = 0.01
    """b, of the cross-entropy with the classifier's own answer; 0 for a denoiser that knows no classifier."""

    def __post_init__(self) -> None:
        check_at_least(0, mse=self.mse, stability=self.stability)

    def begin(self, model: nn.Module) -> None:
        """Only the denoiser learns; the classifier works as it always does."""
        denoiser, classifier = model
        denoiser.train()
        classifier.eval().requires_grad_(False)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """Distance from the clean image, and from the classifier's answer to it."""
        denoiser, classifier = model
        restored = denoiser(x + draws.noises(x)[0])
        error = (restored - x).square().flatten(1).mean(1)
        scores = classifier(restored)
        with torch.no_grad():
            own = classifier(x).argmax(1)
        losses = self.mse * error + self.stability * functional.cross_entropy(scores, own, reduction="none")
        return Losses(losses, accuracies(scores[None], y))

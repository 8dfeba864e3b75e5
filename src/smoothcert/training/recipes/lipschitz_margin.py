"""Lipschitz-margin training: margins as large as the network's Lipschitz constant demands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from smoothcert.baselines.lipschitz import margin_slopes
from smoothcert.baselines.spectral import norm_estimate
from smoothcert.training.recipes.base import Draws, Losses, WarmingUp, accuracies, check_at_least, check_counts
from smoothcert.training.recipes.reading import exactly, layers_of


@dataclass(frozen=True, kw_only=True)
class LipschitzMargin(WarmingUp):
    """−log softmax(z)_y, z_y = f(x)_y and z_j = f(x)_j + c·L_yj for the other classes.

    L_yj bounds how fast f_y − f_j can change, so that nothing within c of x changes the answer if z_y is the largest.
    Tsuzuku, Sato & Sugiyama 2018, Algorithm 1, with their bound for each pair of classes. Norms of layers are estimated
    by power iteration, which is never too large: good enough to train by, while certificates take proved bounds. The
    margin grows during the warm-up.
    """

    name = "lipschitz-margin"
    paper = "Tsuzuku, Sato & Sugiyama 2018, arXiv:1802.04034"
    not_compiled_because = "it bounds layer after layer"

    margin: float = 0.5
    """c, the radius to be robust at, in L2 and in units of pixels."""
    steps: int = 10
    """Of power iteration, for each layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps)
        check_at_least(0, margin=self.margin)

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy of scores from which the margin is taken off."""
        noisy = x + draws.noises(x)[0]
        scores = model(noisy)
        with exactly(noisy):
            slopes = margin_slopes(layers_of(model, noisy), partial(norm_estimate, steps=self.steps)).to(noisy)
            handicaps = slopes[y].scatter(1, y[:, None], 0.0)
            lowered = scores.to(noisy.dtype) + strength * self.margin * handicaps
            values = functional.cross_entropy(lowered, y, reduction="none")
        return Losses(values, accuracies(scores[None], y))

"""Training on the bounds of linear relaxation: what is certified is what is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from smoothcert.baselines.cost import seconds_per_pass
from smoothcert.baselines.network import Network
from smoothcert.baselines.relaxation import margin_rows
from smoothcert.baselines.windows import TrainingRelaxation, largest
from smoothcert.errors import ConfigError
from smoothcert.training.recipes.base import Draws, Losses, Recipe, accuracies, check_at_least
from smoothcert.training.recipes.reading import exactly, layers_of

_MOST_COEFFICIENTS = 2**22  # of one layer that are held at a time; the step needs some twenty times as many


@dataclass(frozen=True, kw_only=True)
class Dual(Recipe):
    """(1 − κ)·log(1 + Σ_j exp(−m_j)) + κ·(−log F(x)_y), m_j ≤ f(x̂)_y − f(x̂)_j for all ‖x̂ − x‖₂ ≤ ε.

    The first term is the cross-entropy at the worst that linear relaxation cannot exclude, an upper bound on that at
    any point of the ball. Wong & Kolter 2018, Theorem 2, in L2 as Wong et al. 2018, with all bounds exact: no random
    projections. ε grows linearly at first, as theirs does. For ReLU networks of a few layers: bounds of all values of
    all layers cost hundreds of times a forward pass.
    """

    name = "dual"
    paper = "Wong & Kolter 2018, arXiv:1711.00851"
    not_compiled_because = "it bounds layer after layer"

    epsilon: float = 0.5
    """ε, the radius to be robust at, in L2 and in units of pixels."""
    ramp: float = 0.5
    """The part of the training in which ε grows from 0."""
    mix: float = 0.0
    """κ, the share of the plain cross-entropy."""

    def __post_init__(self) -> None:
        check_at_least(0, epsilon=self.epsilon, ramp=self.ramp, mix=self.mix)
        for name in ("ramp", "mix"):
            if getattr(self, name) > 1:
                raise ConfigError(f"Expected `{name}` to be a share from 0 to 1, got {getattr(self, name)!r}.")

    def strength(self, epoch: float, epochs: int) -> float:
        """Linear in the epochs."""
        until = self.ramp * epochs
        return 1.0 if until == 0 else min(1.0, epoch / until)

    def rough_seconds(self, model: nn.Module, x: Tensor) -> float:
        """The time of bounds of all layers, and as much again for their gradients."""
        return 2 * seconds_per_pass(layers_of(model, x), "same")

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:
        """Cross-entropy of the bounds on margins, and of the scores."""
        noisy = x + draws.noises(x)[0]
        scores = model(noisy)
        margins = self.margins(layers_of(model, noisy), noisy, y, strength * self.epsilon)
        worst = torch.cat([margins.new_zeros(len(margins), 1), -margins], 1).logsumexp(1)
        plain = functional.cross_entropy(scores, y, reduction="none")
        return Losses((1 - self.mix) * worst + self.mix * plain, accuracies(scores[None], y))

    def margins(self, network: Network, x: Tensor, y: Tensor, radius: float) -> Tensor:
        """Lower bounds [B, K − 1] of the label's score minus the others' within `radius`, a few inputs at a time."""
        size = max(1, _MOST_COEFFICIENTS // largest(network))
        parts = [
            self._part(network, some, labels, torch.full((len(some),), radius, dtype=x.dtype, device=x.device))
            for some, labels in zip(x.split(size), y.split(size), strict=True)
            if len(some)  # a process may have no input of the last batch
        ]
        return torch.cat([x.new_zeros(0, network.nodes[-1].shape[0] - 1), *parts])

    def _part(self, network: Network, x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        """Bounds without gradients first: only units that can bend have one, and in the end they are few.

        What leads to the gradient is computed again when it is needed rather than kept.
        """
        with torch.no_grad(), exactly(x):
            known = TrainingRelaxation(network, x, eps).intervals

        def bounded(some: Tensor) -> Tensor:
            with exactly(some):
                rows = margin_rows(y, network.nodes[-1].shape[0], some)
                return TrainingRelaxation(network, some, eps, known).lower(rows)

        return checkpoint(bounded, x, use_reentrant=False, preserve_rng_state=False)

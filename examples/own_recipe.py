"""A training recipe of your own: Gaussian augmentation with label smoothing.

    smoothcert train digits --sigma 0.25 --recipe examples/own_recipe.py:SmoothedLabels:share=0.2 --epochs 5 --out net
    smoothcert certify net digits --sigma 0.25 --out run

A recipe says what the loss of each input is. Its fields are its settings, which `--recipe` can set by name. Noise comes
from `draws` alone, so that a training can be resumed and split among several processes without changing its result.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from smoothcert.training.recipes import Draws, Losses, Recipe


@dataclass(frozen=True, kw_only=True)
class SmoothedLabels(Recipe):
    """Cross-entropy under noise, with a share of each label spread evenly over all classes."""

    name = "smoothed-labels"
    share: float = 0.1
    """The part of the label that is spread."""

    def losses(self, model: nn.Module, x: Tensor, y: Tensor, draws: Draws, strength: float) -> Losses:  # noqa: ARG002
        """The loss of each input x [B, *D] with its label y [B], and whether its noisy sample is classified right."""
        noisy = x + draws.noises(x)[0]
        scores = model(noisy)
        values = functional.cross_entropy(scores, y, label_smoothing=self.share, reduction="none")
        return Losses(values, (scores.argmax(1) == y).float())

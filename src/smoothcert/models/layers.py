"""Layers that put a base classifier into the coordinates in which the noise is added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError, ModelError


class Normalize(nn.Module):
    """(x − mean) / std per channel, for models trained on standardised inputs: Sequential(Normalize(…), model).

    Noise is added before this layer, in pixels, so that certified radii are in pixels too.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(s > 0 for s in std):
            raise ConfigError(f"Expected one mean and one std > 0 per channel, got {mean!r} and {std!r}.")
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Standardise a batch [B, C, H, W]."""
        return (x - self.mean) / self.std


class AvgPooled(nn.Module):
    """A classifier of small images turned into one of images `factor` times as large: pool, then classify.

    Smoothed with factor·σ it predicts what `model` smoothed with σ predicts on the pooled image, and is certified
    at `factor` times the radius: Cohen et al. 2019, Proposition 7 (the average of factor² independent normals of
    standard deviation factor·σ has standard deviation σ).
    """

    def __init__(self, model: nn.Module, factor: int = 2) -> None:
        super().__init__()
        self.model, self.factor = model, check_count("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, C, H, W] whose sides are multiples of the factor."""
        return self.model(functional.avg_pool2d(x, self.factor))


class Resized(nn.Module):
    """A classifier that takes images of any size and resizes them to the one its `model` was made for.

    The certificate holds in the pixels of the image as given, since resizing is part of the base classifier.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.model, self.size = model, (check_count("size", size[0]), check_count("size", size[1]))

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, C, H, W]."""
        return self.model(functional.interpolate(x, self.size, mode="bilinear", align_corners=False, antialias=True))


class Ensemble(nn.Module):
    """The mean of several classifiers' scores, as one classifier."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise ConfigError("Expected at least one member of an ensemble, got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, *D] by every member; ModelError where one gives labels, which have no mean."""
        scores = [member(x) for member in self.members]
        if any(one.ndim != 2 or not one.is_floating_point() for one in scores):
            raise ModelError("Expected scores [B, K] of every member of an ensemble, got labels or another shape.")
        return torch.stack(scores).mean(dim=0)

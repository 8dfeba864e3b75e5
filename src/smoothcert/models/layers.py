"""Layers that put a base classifier into the coordinates in which the noise is added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.contract import Model


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


class Projected(nn.Module):
    """Shows the model behind it an input's projection on a space of few dimensions: Sequential(Projected(…), model).

    What is orthogonal to the `directions` [k, *D] is dropped, so that the answer is a function of k numbers, the
    coordinates of the input. Noise on an input is the same noise on its coordinates, and no change of an input is
    larger there. So `Smoothed` adds noise to the coordinates, and certificates are as of inputs of k values (see
    `Wide`). Nothing is lost by that if the dropped directions hold little but noise (see `principal_directions`).

    Args:
        directions: orthonormal, to four digits; scaled down by a millionth, lest rounding make them lengthen anything.
    """

    directions: Tensor

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        if directions.ndim < 2 or not directions.is_floating_point() or not directions.numel():
            raise ConfigError(f"Expected `directions` [k, *D], got {directions.dtype} {list(directions.shape)}.")
        self.register_buffer("directions", (directions.double() * (1 - 1e-6)).float())
        self.check()

    def check(self) -> None:
        """Raise ConfigError unless the directions are orthonormal to four digits and lengthen nothing."""
        flat = self.directions.cpu().double().flatten(1)
        products = flat @ flat.T
        far = (products - torch.eye(len(flat), dtype=flat.dtype)).abs().max()
        if not (far <= 1e-4 and torch.linalg.matrix_norm(products, 2) <= 1):  # nor if they are NaN
            raise ConfigError("Expected `directions` to be orthonormal, and as the layer was made with, got others.")

    @property
    def count(self) -> int:
        """How many coordinates there are."""
        return len(self.directions)

    def coordinates(self, x: Tensor) -> Tensor:
        """The coordinates [B, k] of a batch [B, *D]."""
        return functional.linear(x.flatten(1), self.directions.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """Project a batch [B, *D]."""
        return self.lifted(self.coordinates(x))

    def lifted(self, coordinates: Tensor) -> Tensor:
        """The batch [B, *D] that has these coordinates [B, k], and nothing else."""
        return (coordinates @ self.directions.flatten(1)).unflatten(1, self.directions.shape[1:])


class Lifted(nn.Module):
    """The other half of a projection: from coordinates [B, k] to a batch [B, *D]."""

    def __init__(self, projection: Projected) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, coordinates: Tensor) -> Tensor:
        """Lift a batch."""
        return self.projection.lifted(coordinates)


def front_projection(model: object) -> Projected | None:
    """The projection that all of a model is behind, if it is behind one."""
    first = model[0] if _does_as_written(model, nn.Sequential) and len(model) else None
    return first if _does_as_written(first, Projected) else None


def _does_as_written(module: object, kind: type[nn.Module]) -> bool:
    """True for a module of just this kind: a subclass, hooks or a forward of its own may do anything."""
    return type(module) is kind and not (
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    )


def split_projection(model: Model) -> tuple[Projected | None, Model]:
    """The projection that a model begins with, if it does, and what is behind it as a function of coordinates."""
    projection = front_projection(model)
    if projection is None:
        return None, model
    return projection, nn.Sequential(Lifted(projection), *list(model)[1:])  # type: ignore[call-overload]


def principal_directions(inputs: Tensor, count: int) -> Tensor:
    """The `count` directions [count, *D] in which inputs [N, *D] are longest in the mean square."""
    check_count("count", count, most=inputs[0].numel())
    flat = inputs.double().flatten(1)
    _, vectors = torch.linalg.eigh(flat.T @ flat)  # in the order of growing lengths
    return vectors[:, -count:].flip(1).T.unflatten(1, inputs.shape[1:]).contiguous()


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

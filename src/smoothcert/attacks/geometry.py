"""Lengths and directions of perturbations, one per input of a batch."""

from __future__ import annotations

from torch import Tensor


def lengths(perturbations: Tensor) -> Tensor:
    """The L2 norm of each perturbation [B, *D], in a shape that multiplies with them."""
    return perturbations.flatten(1).norm(dim=1).view(-1, *[1] * (perturbations.ndim - 1))


def directions(perturbations: Tensor) -> Tensor:
    """Each perturbation [B, *D] scaled to length 1; 0 stays 0."""
    tiny = 1e-12  # below it a gradient in float32 says nothing
    return perturbations / lengths(perturbations).clamp_min(tiny)


def within_ball(perturbations: Tensor, radius: float) -> Tensor:
    """The nearest perturbations [B, *D] of length at most `radius`."""
    return perturbations * (radius / lengths(perturbations).clamp_min(1e-12)).clamp_max(1.0)

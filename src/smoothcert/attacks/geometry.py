"""Lengths and directions of perturbations, one per input of a batch."""

from __future__ import annotations

import math

import torch
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


def unit(vector: Tensor) -> Tensor:
    """One vector [*D] scaled to length 1 however short it is; 0 stays 0, and what is not finite becomes 0."""
    exact = vector.double()  # in which even the smallest float32 can be squared
    length = float(exact.norm())
    return (exact / length).to(vector.dtype) if 0 < length < math.inf else torch.zeros_like(vector)


def strictly_within(x: Tensor, found: Tensor, radius: float) -> Tensor:
    """The float32 input [*D] nearest to `found`, or nearly, whose distance to x, taken in float64, is below `radius`.

    Each value is rounded towards that of x, so that rounding can only shorten the way.
    """
    delta = found.double() - x.double()
    length = float(delta.norm())
    if not math.isfinite(length):
        return x.clone()
    if length > (limit := radius * (1 - 1e-6)):
        delta = delta * (limit / length)
    nearest = (x.double() + delta).float()
    too_far = (nearest.double() - x.double()).abs() > delta.abs()
    result = torch.where(too_far, torch.nextafter(nearest, x), nearest)
    return result if float((result.double() - x.double()).norm()) < radius else x.clone()

"""The deterministic certifiers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.baselines import lirpa
from smoothcert.baselines.cost import seconds_per_input
from smoothcert.baselines.lipschitz import lipschitz_radii, margin_slopes
from smoothcert.baselines.network import read_network
from smoothcert.baselines.operations import Shape
from smoothcert.baselines.reading import Reading
from smoothcert.baselines.relaxation import Slopes
from smoothcert.baselines.search import RelaxedNetwork
from smoothcert.checks import check_choice
from smoothcert.errors import ModelError

Certifier = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From inputs x [B, *D] to the network's answers [B] and radii [B] within which these cannot change."""


def _lipschitz(model: nn.Module, shape: Shape) -> Certifier:
    reading = Reading.of(model, shape)
    slopes = margin_slopes(reading.network)
    return lambda x: lipschitz_radii(reading.network, x, slopes, reading.answers(x))


def _dual(model: nn.Module, shape: Shape) -> Certifier:
    return partial(RelaxedNetwork.of(model, shape).radii, slopes=_SLOPES["dual"])


def _crown(model: nn.Module, shape: Shape) -> Certifier:
    return partial(RelaxedNetwork.of(model, shape).radii, slopes=_SLOPES["crown"])


def _lirpa(model: nn.Module, shape: Shape) -> Certifier:  # noqa: ARG001 - auto_LiRPA learns it from the inputs
    lirpa.require()
    return partial(lirpa.lirpa_radii, model)


_SLOPES: dict[str, tuple[Slopes, ...]] = {"dual": ("same",), "crown": ("adaptive", "same")}
METHODS: dict[str, tuple[Callable[[nn.Module, Shape], Certifier], str]] = {
    "lipschitz": (_lipschitz, "Tsuzuku et al. 2018, margin over the product of the layers' norms"),
    "dual": (_dual, "Wong & Kolter 2018, linear relaxation with the same slopes"),
    "crown": (_crown, "Zhang et al. 2018, linear relaxation with the better of two kinds of slopes"),
    "auto-lirpa": (_lirpa, "Xu et al. 2020, CROWN as auto_LiRPA computes it, if that is installed"),
}


def make_certifier(method: str, model: Any, shape: Shape) -> Certifier:
    """The certifier of a network by a method of `METHODS`, for inputs of `shape`; ModelError for other models."""
    check_choice("method", method, METHODS)
    if not isinstance(model, nn.Module):
        raise ModelError(f"Bounds of a network need its layers, as a torch module; got {type(model).__name__}.")
    make, _ = METHODS[method]
    return torch.no_grad()(make(model, shape))


def rough_seconds(method: str, model: nn.Module, shape: Shape) -> float:
    """A rough estimate of the time that a method takes per input, at most a few seconds in the making.

    0 for methods that are fast or cannot be estimated without bounding an input.
    """
    if method not in _SLOPES:
        return 0.0
    return seconds_per_input(read_network(model, shape), _SLOPES[method])

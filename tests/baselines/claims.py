"""Checks that a certificate claims no more than it may, which serve the real code and deliberately broken copies.

Each takes what is to be checked as an argument and gives back what it found wrong, in words; nothing if all is well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache

import torch
from torch import Tensor, nn

from baselines.oracles import FAMILIES, Case, random_case
from smoothcert.baselines.lipschitz import lipschitz_radii
from smoothcert.baselines.network import Network
from smoothcert.baselines.relaxation import Relaxation
from smoothcert.baselines.search import RelaxedNetwork

Method = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]
"""Answers [B] and certified radii [B] of a model in float64 at inputs [B, *D] in float64."""

_ROUNDING = 1e-9  # how far the oracle itself may be off, relative


@lru_cache(maxsize=16)
def _read(model: nn.Module, shape: tuple[int, ...]) -> RelaxedNetwork:
    return RelaxedNetwork.of(model, shape)


def _lipschitz(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return lipschitz_radii(_read(model, tuple(x.shape[1:])).exact, x)


def _same(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return _read(model, tuple(x.shape[1:])).radii(x, ("same",))


def _adaptive(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return _read(model, tuple(x.shape[1:])).radii(x, ("adaptive",))


def _both(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return _read(model, tuple(x.shape[1:])).radii(x, ("same", "adaptive"))


METHODS: dict[str, Method] = {"lipschitz": _lipschitz, "same": _same, "adaptive": _adaptive, "both": _both}


# ---- radii against the exhaustive search --------------------------------------------------------------------------


@cache
def tiny_case(family: str, seed: int) -> Case:
    """A random tiny network with true radii; kept, as many tests want the same."""
    return random_case(family, seed)


def tiny_cases(count: int, families: Iterable[str] = tuple(FAMILIES)) -> Iterator[Case]:
    """So many networks of each family."""
    for seed in range(count):
        for family in families:
            yield tiny_case(family, seed)


def judged(method: Method, case: Case) -> tuple[list[str], Tensor]:
    """What a method claims too much about a case, and which parts [B] of the true radii it certifies.

    Too much is a radius above the true one, and an answer that is not the network's. Where the true radius is beyond
    the oracle's reach the part is 0.
    """
    labels, radii = method(case.model, case.inputs)
    wrong = []
    if not torch.equal(labels, case.labels):
        wrong.append(f"{case.name}: answers {labels.tolist()}, the network's are {case.labels.tolist()}")
    for radius, true in zip(radii.tolist(), case.radii.tolist(), strict=True):
        if not 0 <= radius <= true * (1 + _ROUNDING):
            wrong.append(f"{case.name}: certified {radius}, but the true radius is {true}")
    return wrong, radii / case.radii


def overclaims(method: Method, cases: Iterable[Case]) -> Iterator[str]:
    """What a method claims too much about cases, one after the other."""
    for case in cases:
        yield from judged(method, case)[0]


# ---- radii against attacks ----------------------------------------------------------------------------------------


def in_balls(count: int, x: Tensor, radii: Tensor, generator: torch.Generator) -> Tensor:
    """Points [count, B, *D] within the balls around x [B, *D], half of them on the surface."""
    steps = torch.randn(count, *x.shape, dtype=x.dtype, generator=generator)
    lengths = torch.rand(count, len(x), dtype=x.dtype, generator=generator) ** (1 / x[0].numel())
    lengths[: (count + 1) // 2] = 1
    factors = lengths * radii / steps.flatten(2).norm(dim=2)
    return x + steps * factors.view(count, len(x), *[1] * (x.ndim - 1))


def fooled(model: nn.Module, x: Tensor, labels: Tensor, radii: Tensor, *, starts: int, steps: int) -> int:
    """How many of `starts` gradient ascents per input, each from a random point of its ball, change an answer.

    Ascents go along the surface of balls a little smaller than certified, and every point they pass is tried.
    """
    x, limits = x.repeat(starts, *[1] * (x.ndim - 1)), (radii * (1 - 1e-6)).repeat(starts)
    labels = labels.repeat(starts)
    parts = in_balls(1, x, limits, torch.Generator().manual_seed(0))[0]
    changed = torch.zeros(len(x), dtype=torch.bool)
    for step in range(steps + 1):
        parts = parts.detach().requires_grad_()
        scores = model(parts)
        changed |= scores.argmax(1) != labels
        lead = scores.scatter(1, labels[:, None], -math.inf).amax(1) - scores.gather(1, labels[:, None])[:, 0]
        (slope,) = torch.autograd.grad(lead.sum(), parts)
        size = (limits * 0.7 * (1 - step / (steps + 1))).view(-1, *[1] * (x.ndim - 1))
        parts = projected(parts + size * _unit(slope), x, limits)
    return int(changed.sum())


def projected(points: Tensor, x: Tensor, radii: Tensor) -> Tensor:
    """The nearest points within the balls."""
    way = points - x
    factor = (radii / way.flatten(1).norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
    return x + way * factor.view(-1, *[1] * (x.ndim - 1))


def _unit(slope: Tensor) -> Tensor:
    return slope / slope.flatten(1).norm(dim=1).clamp_min(1e-300).view(-1, *[1] * (slope.ndim - 1))


# ---- intervals and lower bounds against points --------------------------------------------------------------------


def escapes(relaxed: Relaxation, network: Network, x: Tensor, eps: Tensor, count: int = 200) -> Iterator[str]:
    """Values of nodes, at points of the balls, outside of the intervals that were found for them."""
    points = in_balls(count, x, eps, torch.Generator().manual_seed(1))
    values = [value.unflatten(0, (count, len(x))) for value in network.values(points.flatten(0, 1))]
    for place, (low, high) in relaxed.intervals.items():
        slack = 1e-9 * values[place].abs().amax().clamp_min(1)
        outside = (values[place] < low - slack) | (values[place] > high + slack)
        if bool(outside.any()):
            yield f"node {place}: {int(outside.sum())} values outside"


def undercuts(relaxed: Relaxation, network: Network, x: Tensor, eps: Tensor, rows: Tensor) -> Iterator[str]:
    """Linear functions [B, S, K] of the scores whose least value, as far as descents find it, is below its bound."""
    bounds = relaxed.lower(rows)
    for number in range(rows.shape[1]):
        least = _least(network, x, eps, rows[:, number])
        below = least < bounds[:, number] - 1e-9 * least.abs().clamp_min(1)
        if bool(below.any()):
            yield f"function {number}: {least[below].tolist()} where the bound is {bounds[below, number].tolist()}"


def _least(network: Network, x: Tensor, eps: Tensor, rows: Tensor, starts: int = 20, steps: int = 10) -> Tensor:
    """The least values [B] of functions of the scores that descents from random points of the balls come by."""
    points = in_balls(starts, x, eps, torch.Generator().manual_seed(2)).flatten(0, 1)
    center, radii, least = x.repeat(starts, *[1] * (x.ndim - 1)), eps.repeat(starts), []
    for step in range(steps + 1):
        points = points.detach().requires_grad_()
        values = (network(points).unflatten(0, (starts, len(x))) * rows).sum(2)
        least.append(values.detach().amin(0))
        (slope,) = torch.autograd.grad(values.sum(), points)
        size = (radii * 0.7 * (1 - step / (steps + 1))).view(-1, *[1] * (x.ndim - 1))
        points = projected(points - size * _unit(slope), center, radii)
    return torch.stack(least).amin(0)

"""How long linear relaxation of a network takes, from the bounds of a few units of each layer.

For networks so large that not even one input can be bounded to see how long it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from smoothcert.baselines.network import Network
from smoothcert.baselines.relaxation import Interval, Slopes, bends
from smoothcert.baselines.windows import WindowRelaxation

_SAMPLE = 256  # units of each layer whose bounds are computed
_PASSES = {"same": 8, "adaptive": 10}  # of the search, its confirmation in float64 counted twice


def seconds_per_input(
    network: Network, slopes: tuple[Slopes, ...], clock: Callable[[], float] = time.perf_counter
) -> float:
    """A rough estimate of how long the search for one input's radius takes; up to a few times too high."""
    quick = network.to(torch.float32)
    return max(_PASSES[kind] * seconds_per_pass(quick, kind, clock) for kind in slopes)


@torch.no_grad()
def seconds_per_pass(network: Network, slopes: Slopes, clock: Callable[[], float] = time.perf_counter) -> float:
    """A rough estimate of how long bounds of all layers take within one ball."""
    like = next(value for node in network.nodes for value in vars(node.operation).values() if isinstance(value, Tensor))
    x = torch.full((1, *network.nodes[0].shape), 0.5, dtype=like.dtype, device=like.device)
    return _Sampled(network, x, slopes, clock).seconds


class _Sampled(WindowRelaxation):
    """Times the bounds of a few units of each layer. Those of the others are made up, which takes as long."""

    def __init__(self, network: Network, x: Tensor, slopes: Slopes, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._now = clock
        super().__init__(network, x, torch.ones(1, dtype=x.dtype, device=x.device), slopes)

    def _interval(self, place: int, known: Interval | None) -> Interval:  # noqa: ARG002 - nothing is known
        if bends(self._nodes, place):
            count = prod(self._nodes[place].shape)
            units = torch.linspace(0, count - 1, min(count, _SAMPLE), device=self._x.device).long()[None]
            began = self._now()
            self._of_units(place, units)
            self.seconds += (self._now() - began) * count / units.shape[1]
        values = self._values[place]
        return values - 1, values.abs() + 1  # as wide as when all units bend

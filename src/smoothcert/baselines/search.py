"""The largest radius at which linear relaxation certifies an input, found by trying radii.

A radius counts only if the bound at it, or at a larger one, came out above zero: nothing rests on the bound falling
steadily with the radius. The search is in float32, what it finds is confirmed in float64, where rounding errors, the
module's and our own, are covered by proved bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from smoothcert.baselines.entry import find_entry
from smoothcert.baselines.lipschitz import deviations, of_numbers_only
from smoothcert.baselines.network import Network
from smoothcert.baselines.operations import MaxPool, Relu, Shape
from smoothcert.baselines.reading import Reading
from smoothcert.baselines.relaxation import Interval, Relaxation, Slopes, margin_rows
from smoothcert.baselines.windows import WindowRelaxation

Margin = Callable[[Tensor, Tensor], Tensor]
"""A lower bound [B] on the margin within radii eps [B], of the inputs at some places [B] of a batch."""

_TRIALS = 40
_TOLERANCE = 1e-3  # between a radius that holds and one that does not, relative
_OUTWARD = 1 + 1e-6  # of slopes that may be kept in float32
_STEP_BACK = 1 - 1e-6


@dataclass(frozen=True)
class RelaxedNetwork:
    """A module ready for linear relaxation: as a network in float32 to search with, in float64 to confirm with."""

    reading: Reading
    quick: Network

    @property
    def exact(self) -> Network:
        """The network in float64."""
        return self.reading.network

    @classmethod
    def of(cls, model: nn.Module, shape: Shape) -> RelaxedNetwork:
        """The network that `model` is for inputs of `shape`; ModelError if it has other layers than ReLU networks."""
        reading = Reading.of(model, shape)
        return cls(reading, reading.network.to(torch.float32))

    @torch.no_grad()
    def radii(self, x: Tensor, slopes: tuple[Slopes, ...]) -> tuple[Tensor, Tensor]:
        """Answers [B] and certified radii [B] for a batch x [B, *D]: for each input the best of the kinds of slopes.

        The module gives the answer to every input of its precision within the radius, for all rounding errors that
        `rounding` allows for. ModelError if its scores for x are not the network's.
        """
        labels = self.reading.answers(x)
        first = self._first_radius(x.float(), labels)
        radii = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for kind in slopes:
            found = largest_radius(_Margins(self.quick, x.float(), labels, kind), first, least=radii.to(first))
            exact = _Margins(self.exact, x.double(), labels, kind, remember=False)
            # Confirmed before the next kind is searched: a radius that float64 rejects must not rule out others.
            radii = torch.maximum(radii, confirmed(exact, torch.where(found > radii, found, 0.0)))
        return labels, of_numbers_only(x, radii)

    def _first_radius(self, x: Tensor, labels: Tensor) -> Tensor:
        """Where the search starts: the distance [B] to the boundary if the network were linear, shortened by its depth.

        Each layer of ReLUs costs a bound about a factor of √2, on the networks that this was measured with.
        """
        layers = sum(isinstance(node.operation, Relu) for node in self.quick.nodes)
        return _linear_distance(self.quick, x, labels) * 0.5 ** (layers / 2)


@lru_cache(maxsize=8)
def _row_norms(network: Network) -> dict[int, Tensor]:  # noqa: ARG001 - a place for each network
    """Where relaxations of a network, whose weights must not change, keep the norms of rows for the next ones."""
    return {}


class _Margins:
    """Bounds on margins within balls; what holds within a ball that failed is remembered for the smaller ones."""

    def __init__(self, network: Network, x: Tensor, labels: Tensor, slopes: Slopes, *, remember: bool = True) -> None:
        self._network, self._x, self._labels, self._slopes = network, x, labels, slopes
        self._rows = margin_rows(labels, network.nodes[-1].shape[0], x)
        self._remember = remember
        self._within = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        self._known: dict[int, Interval] = {}
        self._norms, self._deviations = _row_norms(network), deviations(network)
        bounded = {node.inputs[0] for node in network.nodes if isinstance(node.operation, Relu | MaxPool)}
        self._unit_slopes = {at: self._deviations.slopes[at].to(x) * _OUTWARD for at in bounded}

    def __call__(self, eps: Tensor, places: Tensor) -> Tensor:
        """The least margin [B] over the other classes."""
        eps = eps.to(self._x)
        known = {at: (low[places], high[places]) for at, (low, high) in self._known.items()}
        known = known if bool((eps <= self._within[places]).all()) else {}
        relaxed = WindowRelaxation(
            self._network,
            self._x[places],
            eps,
            self._slopes,
            known=known,
            unit_slopes=self._unit_slopes,
            norms=self._norms,
            entry=find_entry(self._network),
            deviations=self._deviations,
        )
        margins = relaxed.lower(self._rows[places]).amin(1)
        failed = margins <= 0
        if self._remember and bool(failed.any()):
            self._keep(relaxed, eps, places, failed)
        return margins

    def _keep(self, relaxed: Relaxation, eps: Tensor, places: Tensor, failed: Tensor) -> None:
        for at, interval in relaxed.intervals.items():
            if at not in self._known:
                shape = (len(self._x), *interval[0].shape[1:])
                self._known[at] = interval[0].new_full(shape, -torch.inf), interval[1].new_full(shape, torch.inf)
            for kept, new in zip(self._known[at], interval, strict=True):
                kept[places[failed]] = new[failed]
        self._within[places[failed]] = eps[failed]


def _linear_distance(network: Network, x: Tensor, labels: Tensor) -> Tensor:
    """How far the nearest boundary would be if the network were linear: where to begin."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        scores = network(point)
        margins = scores.gather(1, labels[:, None]) - scores
        rival = margins.detach().scatter(1, labels[:, None], torch.inf).argmin(1, keepdim=True)
        nearest = margins.gather(1, rival).squeeze(1)
        (slope,) = torch.autograd.grad(nearest.sum(), point)
    return nearest.detach() / slope.flatten(1).norm(dim=1).clamp_min(1e-12)


def largest_radius(margin: Margin, first: Tensor, least: Tensor | None = None) -> Tensor:
    """The largest radius [B] that was tried and has a margin above 0, by secants from both sides.

    Each input starts at its radius in `first` and stops when a radius that fails is near. Secants are drawn through
    log(m₀ − m) over log r, for the margin m at radius r and m₀ at 0: what a bound loses grows about as a power of the
    radius. Where `least` [B] is above 0, only larger radii are of use: the search starts just above it, and stops with
    0 if that fails.
    """
    least = torch.zeros_like(first) if least is None else least * (1 + _TOLERANCE)
    everywhere = torch.arange(len(first), device=first.device)
    low, high = torch.zeros_like(first), torch.full_like(first, torch.inf)
    lost_low, lost_high = torch.full_like(first, -torch.inf), torch.full_like(first, torch.inf)
    whole = margin(low, everywhere)
    active, moved = everywhere[whole > 0], torch.zeros_like(everywhere)  # moves in a row, up or (negative) down
    trial = torch.where(least > 0, least, first.clamp_min(1e-6))
    for _ in range(_TRIALS):
        if len(active) == 0:
            break
        eps = trial[active]
        value = margin(eps, active)
        held = value > 0
        lost = (1 - value / whole[active]).log()
        up, down = active[held], active[~held]
        # The side that stays a second time counts half from then on, or secants creep along a curve (Illinois method).
        lost_high[up] = torch.where(moved[up] > 0, lost_high[up] / 2, lost_high[up])
        lost_low[down] = torch.where(moved[down] < 0, lost_low[down] / 2, lost_low[down])
        low[up], lost_low[up], moved[up] = eps[held], lost[held], moved[up].clamp_min(0) + 1
        high[down], lost_high[down], moved[down] = eps[~held], lost[~held], moved[down].clamp_max(0) - 1
        apart = (high - low > _TOLERANCE * low.clamp_min(1e-9)) & (high > least)
        active = active[apart[active]]
        trial = torch.where(
            high.isinf(),
            low.clamp_min(1e-6) * _step_up(lost_low, moved),
            torch.where(low == 0, high * _step_down(lost_high), _between(low, high, lost_low, lost_high)),
        )
    return low


def _step_up(lost: Tensor, moved: Tensor) -> Tensor:
    """The factor to the next radius while none has failed, from the logarithm of the share of the margin lost."""
    factor = (-lost / 3).exp().clamp(1.05, 2.0)
    return torch.where((moved > 1) | ~lost.isfinite(), 2.0, factor)


def _step_down(lost: Tensor) -> Tensor:
    """The factor to the next radius while none has held: bounds of several layers lose about as the third power."""
    return torch.where(lost.isfinite(), (-lost / 3).exp().clamp(0.01, 0.9), 0.1)


def _between(low: Tensor, high: Tensor, lost_low: Tensor, lost_high: Tensor) -> Tensor:
    """Where the line through both sides says that the whole margin is lost; the middle if there is no such line."""
    usable = lost_low.isfinite() & lost_high.isfinite()
    share = torch.where(usable, lost_low / (lost_low - lost_high), 0.5)
    root = low * (high / low) ** share
    # A little beyond the root, on the farther side: then both sides end up near it.
    room = torch.minimum(0.4 * _TOLERANCE * high, 0.3 * (high - low))
    beyond = torch.where(share < 0.5, root + room, root - room)
    return beyond.clamp(low + room, torch.maximum(low + room, high - room))


def confirmed(margin: Margin, found: Tensor, rounding: Tensor | None = None) -> Tensor:
    """`found` [B], or a little less, at which the margin is above `rounding` [B], default 0, in float64; else 0."""
    rounding = torch.zeros_like(found) if rounding is None else rounding
    radii = found.double().clone()
    result = torch.zeros_like(radii)
    active = torch.nonzero(radii > 0).squeeze(1)
    back = 1 - _STEP_BACK
    while len(active):
        held = margin(radii[active], active) > rounding[active]
        result[active[held]] = radii[active[held]]
        active = active[~held] if back < 1 else active[:0]
        radii[active] = found.double()[active] * (1 - back)
        back *= 10
    return result

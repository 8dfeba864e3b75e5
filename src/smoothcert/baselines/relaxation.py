"""Linear relaxation: scores bounded by affine functions of the input, found backwards from the scores.

Between known bounds l < 0 < u of its input, ReLU lies below the chord u·(z − l)/(u − l) and above any line through 0
of a slope from 0 to 1. With the chord's own slope this is the bound of Wong & Kolter 2018, dual to a linear program;
with slope 0 or 1, whichever leaves less room, it is CROWN (Zhang et al. 2018). All bounds l and u are found the same
way, layer after layer. Coefficients go back through transposed convolutions, never as a dense matrix of the layer.

To cover rounding, each operation is treated as the exact operation plus an unknown error within proved bounds (see
`rounding`). In the backward pass this error is one more variable: with coefficient c it costs |c| times its bound. The
same bounds cover the rounding of the coefficients themselves, so the result holds for all executions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from smoothcert.baselines.entry import Entry
from smoothcert.baselines.lipschitz import Deviation, Deviations
from smoothcert.baselines.network import Network, Node
from smoothcert.baselines.operations import Affine, Input, Linear, MaxPool, Relu, Shape, Sum, unit_vectors
from smoothcert.errors import ModelError

Slopes = Literal["same", "adaptive"]
Interval = tuple[Tensor, Tensor]
"""Lower and upper bounds [B, *D] of a node's values."""

_MOST_VALUES = 2**24  # coefficients of one node that are held at a time


@dataclass(frozen=True, slots=True)
class Lines:
    """Around ReLU [B, *D]: at least `lower`·z, at most `upper`·z + `intercept`."""

    lower: Tensor
    upper: Tensor
    intercept: Tensor


def relu_lines(low: Tensor, high: Tensor, slopes: Slopes) -> Lines:
    """Lines around ReLU between bounds of its input."""
    unstable = ~(low >= 0) & ~(high <= 0)  # so written, NaN is: what comes of it certifies nothing
    width = torch.where(unstable, high - low, 1.0)
    chord = torch.where(unstable, high / width, (low >= 0).to(low))
    intercept = torch.where(unstable, -low * high / width, 0.0)
    if slopes == "same":
        return Lines(chord, chord, intercept)
    return Lines(torch.where(unstable, (high >= -low).to(low), chord), chord, intercept)


@dataclass(frozen=True, slots=True)
class Pooled:
    """Around the largest of each window [B, C, L].

    At least the value at place `at` of the channel, and just that where it is `sure`, as no other can be larger;
    elsewhere at most `most`.
    """

    at: Tensor
    sure: Tensor
    most: Tensor


def pool_bounds(low: Tensor, high: Tensor, pool: MaxPool) -> Pooled:
    """What bounds of all pixels [B, C, H, W] say about the largest of each window."""
    lows, highs = _windows(low, pool, -torch.inf), _windows(high, pool, -torch.inf)
    pixels = torch.arange(low.shape[2] * low.shape[3], device=low.device).view(1, 1, *low.shape[2:])
    places = _windows(pixels.to(low), pool, -1.0).long()
    best = lows.argmax(2, keepdim=True)
    others = highs.scatter(2, best, -torch.inf).amax(2)
    sure = lows.gather(2, best).squeeze(2) >= others
    return Pooled(places.expand(*best.shape[:2], -1, -1).gather(2, best).squeeze(2), sure, highs.amax(2))


def contenders(low: Tensor, high: Tensor, pool: MaxPool) -> Tensor:
    """The pixels [B, C, H, W] that may be the largest of a window in which that is not settled."""
    lows, highs = _windows(low, pool, -torch.inf), _windows(high, pool, -torch.inf)
    pixels = torch.arange(low.shape[2] * low.shape[3], device=low.device).view(1, 1, *low.shape[2:])
    places = _windows(pixels.to(low), pool, -1.0).long().expand_as(lows).flatten(2)
    rivals = highs >= lows.amax(2, keepdim=True)
    open_ = (rivals & (rivals.sum(2, keepdim=True) > 1)).flatten(2)
    counts = torch.zeros(low.flatten(2).shape, dtype=torch.int32, device=low.device)
    counts.scatter_add_(2, places.clamp_min(0), (open_ & (places >= 0)).to(torch.int32))
    return (counts > 0).view_as(low)


def _windows(values: Tensor, pool: MaxPool, outside: float) -> Tensor:
    """The values [B, C, H, W] of each window: [B, C, pixels of a window, windows]."""
    down, across = pool.padding
    padded = functional.pad(values, (across, across, down, down), value=outside)
    views = padded.unfold(2, pool.size[0], pool.stride[0]).unfold(3, pool.size[1], pool.stride[1])
    return views.flatten(4).flatten(2, 3).transpose(2, 3)


class Relaxation:
    """Bounds of a network's values for inputs within L2 balls around x [B, *D], of radii eps [B].

    `known` are bounds of nodes' values that hold already, such as those within a larger ball, and `unit_slopes` say how
    fast values can change at most: what they decide is not computed again. `norms` keeps what depends on the weights
    alone, for the next relaxation of the same network; `entry` is the network's `find_entry`. With the network's
    `deviations` bounds hold for all executions, which the module in floating point is one of, and are proved if the
    network is in float64; without, they hold in exact arithmetic.
    """

    def __init__(
        self,
        network: Network,
        x: Tensor,
        eps: Tensor,
        slopes: Slopes,
        *,
        known: Mapping[int, Interval] | None = None,
        unit_slopes: Mapping[int, Tensor] | None = None,
        norms: dict[int, Tensor] | None = None,
        entry: Entry | None = None,
        deviations: Deviations | None = None,
    ) -> None:
        self._nodes, self._x, self._eps, self._slopes = list(network.nodes), x, eps, slopes
        # With the same slopes below and above, both bounds have the same coefficients.
        self._joint = slopes == "same" and not any(isinstance(node.operation, MaxPool) for node in network.nodes)
        self._values = network.values(x)
        self._norms: dict[int, Tensor] = {} if norms is None else norms
        self._lines: dict[int, Lines] = {}
        self._pools: dict[int, Pooled] = {}
        self._entry = entry
        self._deviations = deviations
        self._outward = 1.0 if deviations is None else 1 + deviations.rounding.own
        self._deviated: list[Deviation] = []
        self._local: list[Tensor] = []  # bounds [B, *D] on the rounding errors of each operation
        self._sizes: list[Tensor] = []  # bounds [B, *D] on the absolute values of each node
        self._kept: Tensor | slice = slice(None)  # the units of the entry that were not removed
        self.intervals: dict[int, Interval] = {}
        for place, node in enumerate(network.nodes):
            if isinstance(node.operation, Relu | MaxPool):
                source = node.inputs[0]
                low, high = self._interval(source, self._cheaply(source, known or {}, unit_slopes or {}))
                self.intervals[source] = low, high
                if deviations is not None:
                    self._sizes[source] = torch.maximum(low.abs(), high.abs())
                if isinstance(node.operation, Relu):
                    self._lines[place] = relu_lines(low, high, slopes)
                else:
                    self._pools[place] = pool_bounds(low, high, node.operation)
            elif not isinstance(node.operation, Affine | Sum | Input):
                kind = type(node.operation).__name__
                raise ModelError(f"Linear relaxation is for ReLU networks; this one has a {kind}.")
            if deviations is not None:
                self._round(place, deviations)
            if isinstance(node.operation, Relu):
                self._remove_inactive(place)

    def _remove_inactive(self, place: int) -> None:
        """Remove the units of a fully connected layer that the ReLU at `place` turns off in every ball of the batch.

        Their coefficients are zero in all backward passes through this ReLU, and matrix products get smaller without
        them. `intervals` still has all units.
        """
        source = self._nodes[place].inputs[0]
        layer = self._nodes[source].operation
        users = [at for at, node in enumerate(self._nodes) if place in node.inputs]
        readers = [self._nodes[at].operation for at in users]
        single = [at for at, node in enumerate(self._nodes) if source in node.inputs] == [place]
        if not (single and isinstance(layer, Linear) and len(self._nodes[place].shape) == 1):
            return
        if not all(isinstance(reader, Linear) for reader in readers):
            return
        high = self.intervals[source][1]
        kept = (~(high <= 0)).any(0).nonzero().squeeze(1)  # written so that NaN is kept
        if len(kept) == high.shape[1]:
            return
        shape = (len(kept),)
        bias = None if layer.bias is None else layer.bias[kept]
        self._nodes[source] = replace(self._nodes[source], operation=Linear(layer.weight[kept], bias), shape=shape)
        self._nodes[place] = replace(self._nodes[place], shape=shape)
        for at in users:
            reader = cast(Linear, self._nodes[at].operation)
            self._nodes[at] = replace(self._nodes[at], operation=Linear(reader.weight[:, kept], reader.bias))
        lines = self._lines[place]
        self._lines[place] = Lines(lines.lower[:, kept], lines.upper[:, kept], lines.intercept[:, kept])
        if self._deviations is not None:
            self._local[source] = self._local[source][:, kept]
        if self._entry is not None and source == self._entry.place:
            self._entry = self._entry.only(kept)
            self._kept = kept

    def _round(self, place: int, deviations: Deviations) -> None:
        """Note how large the values of a node are, and by how much its operation may be off."""
        operation, inputs = self._nodes[place].operation, self._nodes[place].inputs
        if isinstance(operation, Input):
            terms = self._x.abs() + self._eps.view(-1, *[1] * (self._x.ndim - 1))
            local = deviations.rounding.own * terms
        elif isinstance(operation, Relu | MaxPool):
            low, high = (operation(one) for one in self.intervals[inputs[0]])
            terms = torch.maximum(low.abs(), high.abs())
            local = deviations.rounding.own * terms
        else:
            terms = deviations.terms(place, self._values, self._sizes, self._deviated, self._eps)
            local = deviations.rounding.local(place, terms)
        self._deviated.append(deviations.after(place, self._deviated, local))
        self._local.append(local)
        self._sizes.append(terms + local)

    def lower(self, rows: Tensor) -> Tensor:
        """Lower bounds [B, S] of linear functions of the scores, with coefficients rows [B, S, K]."""
        last = len(self._nodes) - 1
        slack = rows.new_zeros(rows.shape[:2])
        if self._deviations is not None:
            slack = self._deviations.rounding.own * _weighed(rows, self._sizes[last])
        coefficients, below, _ = self._back({last: rows}, rows.new_zeros(rows.shape[:2]), slack)
        center, reach = self._at_input(coefficients)
        return center + below - reach

    def _interval(self, place: int, known: Interval | None) -> Interval:
        """Bounds of a node's values."""
        operation, shape = self._nodes[place].operation, self._nodes[place].shape
        if isinstance(operation, MaxPool):
            return tuple(operation(one) for one in self.intervals[self._nodes[place].inputs[0]])  # type: ignore[return-value]
        if not bends(self._nodes, place):
            reach = self._eps[:, None] * self._row_norms(place) * self._outward + self._deviation(place).flatten(1)
            values = self._values[place].flatten(1)
            return (values - reach).unflatten(1, shape), (values + reach).unflatten(1, shape)
        if known is None:
            units = torch.arange(int(torch.Size(shape).numel()), device=self._x.device).expand(len(self._x), -1)
            low, high = self._of_units(place, units)
            return low.unflatten(1, shape), high.unflatten(1, shape)
        return self._narrowed(place, known)

    def _cheaply(self, place: int, known: Mapping[int, Interval], unit_slopes: Mapping[int, Tensor]) -> Interval | None:
        """Bounds of a node's values that cost nothing, if there are any."""
        found = [known[place]] if place in known else []
        if place in unit_slopes:
            reach = self._eps.view(-1, *[1] * unit_slopes[place].ndim) * unit_slopes[place] + self._deviation(place)
            found.append((self._values[place] - reach, self._values[place] + reach))
        if not found:
            return None
        return torch.stack([low for low, _ in found]).amax(0), torch.stack([high for _, high in found]).amin(0)

    def _deviation(self, place: int) -> Tensor:
        """How far values of a node can be from the exact ones [B, *D]."""
        return torch.zeros_like(self._values[place]) if self._deviations is None else self._deviated[place].each

    def _narrowed(self, place: int, known: Interval) -> Interval:
        """Bounds that hold already, made tighter where they leave open what the next operation does."""
        low, high = (one.flatten(1).clone() for one in known)
        undecided = self._undecided(place, *known).flatten(1)
        most = int(undecided.sum(1).max())
        if most > 0:
            units = torch.argsort(undecided.to(torch.uint8), dim=1, descending=True, stable=True)[:, :most]
            new_low, new_high = self._of_units(place, units)
            low.scatter_(1, units, torch.maximum(new_low, low.gather(1, units)))
            high.scatter_(1, units, torch.minimum(new_high, high.gather(1, units)))
        return low.unflatten(1, self._nodes[place].shape), high.unflatten(1, self._nodes[place].shape)

    def _undecided(self, place: int, low: Tensor, high: Tensor) -> Tensor:
        """Which values [B, *D] may still be on either side of a ReLU, or be the largest of a window or not."""
        found = torch.zeros_like(low, dtype=torch.bool)
        for node in self._nodes[place + 1 :]:
            if place in node.inputs and isinstance(node.operation, Relu):
                found |= (low < 0) & (high > 0)
            elif place in node.inputs and isinstance(node.operation, MaxPool):
                found |= contenders(low, high, node.operation)
        return found

    def _of_units(self, place: int, units: Tensor) -> Interval:
        """Bounds [B, S] of some values of a node, by their places [B, S] in it."""
        widest = max(int(torch.Size(node.shape).numel()) for node in self._nodes[: place + 1])
        size = max(1, _MOST_VALUES // (len(units) * widest * (1 if self._joint else 2)))
        parts = [self._both(place, part) for part in units.split(size, dim=1)]
        return torch.cat([low for low, _ in parts], 1), torch.cat([high for _, high in parts], 1)

    def _both(self, place: int, units: Tensor) -> Interval:
        """Lower and upper bounds [B, S] of units of a node."""
        pending, constant = start(self._nodes, place, units.flatten(), self._x)
        pending = {at: rows.unflatten(0, units.shape) for at, rows in pending.items()}
        constant = constant.view(units.shape)
        slack = torch.zeros_like(constant)
        if self._deviations is not None:
            slack = self._skipped(place).flatten(1).gather(1, units)
        if not self._joint:  # the upper bound is minus the lower bound of the negative
            pending = {at: torch.cat([rows, -rows], 1) for at, rows in pending.items()}
            constant, slack = torch.cat([constant, -constant], 1), torch.cat([slack, slack], 1)
        coefficients, below, above = self._back(pending, constant, slack)
        center, reach = self._at_input(coefficients)
        if self._joint:
            return center + below - reach, center + above + reach
        low, negative = (center + below - reach).chunk(2, dim=1)
        return low, -negative

    def _skipped(self, place: int) -> Tensor:
        """The rounding errors [B, *D] of the operations that `start` leaves behind."""
        node = self._nodes[place]
        total = self._local[place]
        if isinstance(node.operation, Sum):
            for source in node.inputs:
                if isinstance(self._nodes[source].operation, Affine | Sum):
                    total = total + self._skipped(source)
        return total

    def _at_input(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """The value at x, and how far it changes within the ball, of linear functions [B, S, *D] of the input.

        Of functions of the entry's values, if the network has an entry.
        """
        eps = self._eps[:, None] * self._outward
        if self._entry is not None:
            values, errors = self._at_entry(self._entry.place)
            center = torch.einsum("bsd,bd->bs", coefficients, values)
            return center, eps * self._entry.norms(coefficients) + _weighed(coefficients, errors)
        flat = coefficients.flatten(2)
        center = torch.einsum("bsd,bd->bs", flat, self._x.flatten(1))
        # A norm has no gradient at 0.
        return center, eps * flat.square().sum(2).clamp_min(1e-30).sqrt()

    def _at_entry(self, place: int) -> tuple[Tensor, Tensor]:
        """The values [B, D] of the entry at x, and bounds on what rounding may change in them and in their products."""
        values = self._values[place][:, self._kept]
        if self._deviations is None:
            return values, torch.zeros_like(values)
        products = self._sizes[place] + 2 * self._eps[:, None] * self._row_norms(place)
        errors = self._deviated[place].each + self._deviations.rounding.own * products
        return values, errors[:, self._kept]

    def _back(
        self, pending: dict[int, Tensor], constant: Tensor, slack: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Functions of nodes' values, with coefficients `pending` [B, S, *D], as ones of the input or of the entry.

        Their coefficients, and constants [B, S] with which they bound from below and, if both are joint, from above.
        `slack` [B, S] is what rounding may change already; without it, rounding is left out.
        """
        below = above = constant
        end = 0 if self._entry is None or slack is None else self._entry.place
        for here in range(max(pending), end, -1):
            node = self._nodes[here]
            if here not in pending:
                continue
            rows = pending.pop(here)
            if slack is not None and self._deviations is not None and self._rounds(here):
                slack = slack + _weighed(rows, self._local[here])
            if isinstance(node.operation, Affine):
                offset = node.operation.offset()
                if offset is not None:
                    shift = (rows * offset).flatten(2).sum(2)
                    below, above = below + shift, above + shift
                flat = node.operation.transpose(rows.flatten(0, 1), self._nodes[node.inputs[0]].shape)
                rows = flat.unflatten(0, rows.shape[:2])
            elif isinstance(node.operation, Relu):
                rows, down, up = self._through_relu(rows, self._lines[here])
                below, above = below + down, above + up
            elif isinstance(node.operation, MaxPool):
                rows, down, up = self._through_pool(rows, self._pools[here], self._nodes[node.inputs[0]].shape)
                below, above = below + down, above + up
            for source in node.inputs:  # of a sum: each gets them all
                _put(pending, source, rows)
        if slack is not None:
            below, above = below - slack, above + slack
        if end not in pending:
            pending[end] = self._x.new_zeros(*below.shape, *self._nodes[end].shape)
        return pending[end], below, above

    def _rounds(self, place: int) -> bool:
        """True for operations that round.

        ReLU and max-pooling do not, and their lines round by less than what the operations after them are charged: they
        are steep only where values are small, and no coefficient is larger than the terms that it is the sum of.
        """
        operation = self._nodes[place].operation
        return isinstance(operation, Sum) or (isinstance(operation, Affine) and operation.roundings > 0)

    def _through_relu(self, rows: Tensor, lines: Lines) -> tuple[Tensor, Tensor, Tensor]:
        """A lower bound by the line below where a coefficient is positive, by the one above where it is negative."""
        negative, intercept = rows.clamp_max(0), lines.intercept.flatten(1)
        below = torch.einsum("bsd,bd->bs", negative.flatten(2), intercept)
        if self._joint:
            above = torch.einsum("bsd,bd->bs", (rows - negative).flatten(2), intercept)
            return rows * lines.upper[:, None], below, above
        return (rows - negative) * lines.lower[:, None] + negative * lines.upper[:, None], below, below

    def _through_pool(self, rows: Tensor, pooled: Pooled, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
        """The pixel that is surely the largest; else one that may be for a lower bound, the most for an upper one."""
        flat = rows.flatten(3)  # [B, S, C, windows]
        negative = flat.clamp_max(0)
        open_ = torch.where(pooled.sure, 0.0, pooled.most)[:, None]
        below = (negative * open_).flatten(2).sum(2)
        kept = torch.where(pooled.sure[:, None], flat, flat - negative)
        return _scattered(kept, pooled.at, shape), below, below

    def _row_norms(self, place: int) -> Tensor:
        """The norms [D] of the rows of a node that is an affine function of the input."""
        if place not in self._norms:
            nodes, shape = self._nodes, self._nodes[place].shape
            units = torch.arange(int(torch.Size(shape).numel()), device=self._x.device)
            size = max(1, _MOST_VALUES // max(int(torch.Size(node.shape).numel()) for node in nodes[: place + 1]))
            found = [self._back(*_single(start(nodes, place, part, self._x)), None)[0] for part in units.split(size)]
            self._norms[place] = torch.cat([one.flatten(2).norm(dim=2).squeeze(0) for one in found])
        return self._norms[place]


def _weighed(rows: Tensor, errors: Tensor) -> Tensor:
    """Errors [B, *D] times the absolute coefficients [B, S, *D] that they have: [B, S]."""
    return torch.einsum("bsd,bd->bs", rows.flatten(2).abs(), errors.flatten(1))


def _single(begun: tuple[dict[int, Tensor], Tensor]) -> tuple[dict[int, Tensor], Tensor]:
    """Rows for one input alone."""
    return {at: rows[None] for at, rows in begun[0].items()}, begun[1][None]


def _put(pending: dict[int, Tensor], place: int, rows: Tensor) -> None:
    pending[place] = pending[place] + rows if place in pending else rows


def _scattered(values: Tensor, at: Tensor, shape: Shape) -> Tensor:
    """Windows' values [B, S, C, L] as an image [B, S, C, H, W], each put or added at its place [B, C, L]."""
    image = values.new_zeros(*values.shape[:3], shape[1] * shape[2])
    return image.scatter_add(3, at[:, None].expand_as(values), values).unflatten(3, shape[1:])


def bends(nodes: Sequence[Node], place: int) -> bool:
    """True unless a node's values are an affine function of the input."""
    node = nodes[place]
    return isinstance(node.operation, Relu | MaxPool) or any(bends(nodes, i) for i in node.inputs)


def start(nodes: Sequence[Node], place: int, units: Tensor, like: Tensor) -> tuple[dict[int, Tensor], Tensor]:
    """Units [N] of a node as functions of the nodes before it: coefficients by node, and constants [N].

    Quicker than to begin with unit vectors, as a layer's rows are known.
    """
    node = nodes[place]
    constant = like.new_zeros(len(units))
    if isinstance(node.operation, Sum):
        pending: dict[int, Tensor] = {}
        for source in node.inputs:
            part, shift = start(nodes, source, units, like)
            constant = constant + shift
            for at, rows in part.items():
                _put(pending, at, rows)
        return pending, constant
    if not isinstance(node.operation, Affine):
        return {place: unit_vectors(units, node.shape, like)}, constant
    before, offset = nodes[node.inputs[0]].shape, node.operation.offset()
    if offset is not None:
        constant = constant + offset.expand(node.shape).flatten()[units]
    return {node.inputs[0]: node.operation.rows(units, before, node.shape, like)}, constant


def margin_rows(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Coefficients [B, K − 1, K] of the label's score minus each other class's."""
    units = torch.eye(classes, dtype=like.dtype, device=like.device)
    others = torch.arange(classes - 1, device=labels.device).expand(len(labels), -1)
    others = others + (others >= labels[:, None])
    return units[labels][:, None] - units[others]

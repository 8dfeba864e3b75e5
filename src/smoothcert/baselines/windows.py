"""Linear relaxation by windows: the bounds of `Relaxation`, quicker where values depend on a part of the image.

A value of a convolutional layer depends on a window of the layers before, so that its coefficients are zero elsewhere.
Only those of the window are computed here, for all places of the image at once by one matrix product: on a network of
two convolutions that is a tenth of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from smoothcert.baselines.network import Network, Node
from smoothcert.baselines.operations import Conv, Input, MaxPool, Relu, Scale
from smoothcert.baselines.relaxation import _MOST_VALUES, Interval, Relaxation, bends


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a node's image [C, H, W] that values at (i, j) depend on: it begins at (i, j)·stride − before."""

    size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)

    def through(self, conv: Conv) -> Window:
        """The window that this one depends on in the node before a convolution."""
        kernel = conv.weight.shape[2:]
        reach = [step * (n - 1) + 1 for n, step in zip(self.size, conv.stride, strict=True)]
        grown = [one + gap * (n - 1) for one, n, gap in zip(reach, kernel, conv.dilation, strict=True)]
        stride = [a * b for a, b in zip(self.stride, conv.stride, strict=True)]
        before = [a * b + pad for a, b, pad in zip(self.before, conv.stride, conv.padding, strict=True)]
        return Window((grown[0], grown[1]), (stride[0], stride[1]), (before[0], before[1]))

    def of(self, image: Tensor, places: tuple[int, int]) -> Tensor:
        """The windows [B, L, C, h, w] of an image [B, C, H, W] that belong to the L places; 0 outside the image."""
        margins: list[int] = []
        for axis in (1, 0):
            end = (places[axis] - 1) * self.stride[axis] + self.size[axis] - self.before[axis]
            margins += [self.before[axis], end - image.shape[2 + axis]]
        views = functional.pad(image, margins)  # a negative margin cuts off
        views = views.unfold(2, self.size[0], self.stride[0]).unfold(3, self.size[1], self.stride[1])
        return views.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Values as functions of another node's: coefficients [B, *U, C, h, w] in a window of it, and constants [B, *U].

    U is (O, L), all channels at all places of the image, or (S,), some of them. What does not depend on the input or on
    the place yet has 1 there.
    """

    values: Tensor
    window: Window
    below: Tensor  # the constants of the lower bounds, and of the upper
    above: Tensor
    slack: Tensor  # what rounding may change

    def shifted(self, offset: Tensor | None) -> _Rows:
        """With an offset [C, 1, 1] of the node taken into the constants."""
        if offset is None:
            return self
        shift = self.values.flatten(-3) @ offset.expand(self.values.shape[-3:]).flatten()
        return replace(self, below=self.below + shift, above=self.above + shift)

    def scaled(self, factor: Tensor) -> _Rows:
        """With a factor for each coefficient."""
        return replace(self, values=self.values * factor)

    def before(self, conv: Conv, window: Window) -> _Rows:
        """As functions of a convolution's input, of which they depend on the larger window."""
        shifted, count = self.shifted(conv.offset()), prod(self.values.shape[-3:])
        units = torch.eye(count, dtype=self.values.dtype, device=self.values.device)
        units = units.view(count, *self.values.shape[-3:])
        matrix = functional.conv_transpose2d(units, conv.weight, stride=conv.stride, dilation=conv.dilation)
        values = (self.values.flatten(-3) @ matrix.flatten(1)).unflatten(-1, (matrix.shape[1], *window.size))
        return replace(shifted, values=values, window=window)


def largest(network: Network) -> int:
    """How many coefficients of one input are held at a time at most, in the bounds of all nodes."""
    nodes, found = network.nodes, [prod(node.shape) for node in network.nodes]
    for node in nodes:
        if isinstance(node.operation, Relu | MaxPool):
            found.append(_coefficients(nodes, node.inputs[0]))
    return max(found)


def _coefficients(nodes: Sequence[Node], place: int) -> int:
    """How many coefficients the values of a node have together, at most, in any node before it."""
    units, path = prod(nodes[place].shape), _path(nodes, place)
    if path is None:
        return units * max(prod(node.shape) for node in nodes[: place + 1])
    return units * max(nodes[at].shape[0] * prod(window.size) for at, window in path)


def _path(nodes: Sequence[Node], place: int) -> list[tuple[int, Window]] | None:
    """The nodes that lead to a node from the input, backwards, with the window of each that a value depends on.

    None where windows do not help: unless they are all images with convolutions between them, and smaller than those.
    """
    found, window = [(place, Window())], Window()
    while not isinstance(nodes[place].operation, Input):
        operation = nodes[place].operation
        if isinstance(operation, Conv) and operation.groups == 1:
            window = window.through(operation)
        elif not (isinstance(operation, Relu) or (isinstance(operation, Scale) and _by_channel(operation))):
            return None
        place = nodes[place].inputs[0]
        if len(nodes[place].shape) != 3 or prod(window.size) >= prod(nodes[place].shape[1:]):
            return None
        found.append((place, window))
    return found if window.size != (1, 1) else None


def _by_channel(scale: Scale) -> bool:
    return all(part is None or part.shape[-2:] == (1, 1) for part in (scale.factor, scale.shift))


class WindowRelaxation(Relaxation):
    """Bounds as `Relaxation` has them, those of convolutional layers by windows."""

    def _interval(self, place: int, known: Interval | None) -> Interval:
        """Bounds of a node's values."""
        if known is not None or self._path(place) is None or not bends(self._nodes, place):
            return super()._interval(place, known)
        low, high = self._by_windows(place, None)
        return low.view(-1, *self._nodes[place].shape), high.view(-1, *self._nodes[place].shape)

    def _of_units(self, place: int, units: Tensor) -> Interval:
        """Bounds [B, S] of some values of a node, by their places [B, S] in it."""
        if self._path(place) is None:
            return super()._of_units(place, units)
        count, batch = prod(self._nodes[place].shape), len(units)
        coefficients = _coefficients(self._nodes, place) // count * batch * (1 if self._joint else 2)
        if 2 * units.shape[1] > count and count * coefficients <= _MOST_VALUES:  # quicker all at once
            low, high = (one.flatten(1).gather(1, units) for one in self._by_windows(place, None))
            return low, high
        size = max(1, _MOST_VALUES // coefficients)
        parts = [self._by_windows(place, part) for part in units.split(size, dim=1)]
        return torch.cat([low for low, _ in parts], 1), torch.cat([high for _, high in parts], 1)

    def _row_norms(self, place: int) -> Tensor:
        """The norms [D] of the rows of a node that is an affine function of the input."""
        if self._path(place) is None:
            return super()._row_norms(place)
        if place not in self._norms:
            channels, *places = self._nodes[place].shape
            rows = self._along(place, None).values[0, :channels]  # the rest are the same with the other sign
            norms = rows.flatten(-3).square().sum(-1).clamp_min(1e-30).sqrt()  # a norm has no gradient at 0
            self._norms[place] = norms.expand(channels, prod(places)).flatten()
        return self._norms[place]

    def _path(self, place: int) -> list[tuple[int, Window]] | None:
        return _path(self._nodes, place)

    def _by_windows(self, place: int, units: Tensor | None) -> Interval:
        """Bounds [B, O, L] of all values of a node, or of some [B, S]."""
        rows = self._along(place, units)
        if units is not None and not self._joint:
            units = torch.cat([units, units], 1)
        center = _products(rows.values, self._seen(self._x, rows.window, place, units))
        squares = rows.values.flatten(-3).square().sum(-1)
        eps = self._eps.view(-1, *[1] * (center.ndim - 1))
        reach = eps * squares.clamp_min(1e-30).sqrt() * self._outward + rows.slack
        low, high = center + rows.below - reach, center + rows.above + reach
        if self._joint:
            return low, high
        low, negative = low.chunk(2, dim=1)
        return low, -negative

    def _along(self, place: int, units: Tensor | None) -> _Rows:
        """Values of a node as functions of the input; unless both bounds are joint, followed by their negatives."""
        path, (channels, *places) = self._path(place) or [], self._nodes[place].shape
        values = torch.eye(channels, dtype=self._x.dtype, device=self._x.device).view(1, channels, 1, channels, 1, 1)
        if units is not None:
            values = values.view(channels, channels, 1, 1)[units // prod(places)]
        if not self._joint:
            values = torch.cat([values, -values], 1)
            units = None if units is None else torch.cat([units, units], 1)
        nothing = values.new_zeros(values.shape[:-3])
        rows = _Rows(values, Window(), nothing, nothing, nothing)
        for (here, _), (before, window) in pairwise(path):
            operation, after = self._nodes[here].operation, self._nodes[before].operation
            rounds = here == place or self._rounds(here)
            if rounds and self._deviations is not None and bends(self._nodes, place):
                errors = self._seen(self._local[here], rows.window, place, units)
                rows = replace(rows, slack=rows.slack + _products(rows.values.abs(), errors))
            if isinstance(operation, Relu):
                rows = self._bent(rows, here, place, units)
            elif isinstance(operation, Scale):
                rows = rows.shifted(operation.offset()).scaled(operation.factor)
            elif isinstance(operation, Conv):
                rows = rows.before(operation, window)
                if not isinstance(after, Relu):  # whose slopes are 0 where there is no image
                    image = self._x.new_ones(1, 1, *self._nodes[before].shape[1:])
                    rows = rows.scaled(self._seen(image, window, place, units))
        return rows

    def _bent(self, rows: _Rows, here: int, place: int, units: Tensor | None) -> _Rows:
        """Through the lines around ReLU: by the line above where a coefficient is negative, else by the one below."""
        lines, negative = self._lines[here], rows.values.clamp_max(0)
        upper, intercept = (self._seen(one, rows.window, place, units) for one in (lines.upper, lines.intercept))
        below = _products(negative, intercept)
        if self._joint:
            above = _products(rows.values, intercept) - below
            values = rows.values * upper
        else:
            above = below
            lower = self._seen(lines.lower, rows.window, place, units)
            values = (rows.values - negative) * lower + negative * upper
        return replace(rows, values=values, below=rows.below + below, above=rows.above + above)

    def _seen(self, image: Tensor, window: Window, place: int, units: Tensor | None) -> Tensor:
        """The windows of an image that a node's values see: [B, 1, L, C, h, w] for all, [B, S, C, h, w] for some."""
        places = self._nodes[place].shape[1:]
        found = window.of(image, (places[0], places[1]))
        if units is None:
            return found[:, None]
        at = units % prod(places)
        if len(found) == 1:
            return found[0][at]
        return found[torch.arange(len(units), device=units.device)[:, None], at]


class TrainingRelaxation(WindowRelaxation):
    """Bounds with gradients, with the same slopes below and above.

    `known` may be the intervals of a relaxation of the same network around the same inputs. They say which units can
    bend, and only the bounds of these are computed again: no others have a gradient.
    """

    def __init__(self, network: Network, x: Tensor, eps: Tensor, known: Mapping[int, Interval] | None = None) -> None:
        super().__init__(network, x, eps, "same", known=known)

    def _narrowed(self, place: int, known: Interval) -> Interval:
        """Known bounds, computed again where they leave open what the next operation does."""
        undecided = self._undecided(place, *known).flatten(1)
        most = int(undecided.sum(1).max())
        if 2 * most > undecided.shape[1]:  # all together are quicker than one by one
            return self._interval(place, None)
        units = torch.argsort(undecided.to(torch.uint8), dim=1, descending=True, stable=True)[:, :most]
        found = zip(known, self._of_units(place, units) if most else known, strict=True)
        low, high = (old.flatten(1).scatter(1, units, new.flatten(1)).view_as(old) for old, new in found)
        return low, high


def _products(values: Tensor, windows: Tensor) -> Tensor:
    """Coefficients [B, *U, *D] times the values of their windows: [B, *U]."""
    return torch.einsum("...n,...n->...", values.flatten(-3), windows.flatten(-3))

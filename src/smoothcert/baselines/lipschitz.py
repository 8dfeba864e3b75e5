"""Lipschitz margin: no score can change faster than the product of the layers' norms (Tsuzuku et al. 2018).

The constant is the whole network's, so the bound is cheap and loose; networks are trained for it (the recipe
lipschitz-margin), or built of layers that bring no two inputs further apart (deel-torchlip).

Rounding errors grow through the layers as differences of inputs do, so that the same constants bound how far the scores
of the module, computed in floating point, can be from the exact ones (`Deviations`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from smoothcert.baselines.network import Network, Node
from smoothcert.baselines.operations import (
    Affine,
    Conv,
    Input,
    Linear,
    MaxPool,
    Relu,
    Reshape,
    Scale,
    Shape,
    Sorting,
    Sum,
)
from smoothcert.baselines.rounding import FLOAT64, Rounding, gamma
from smoothcert.baselines.spectral import kind_of, norm_upper, overlap
from smoothcert.errors import ModelError

Norm = Callable[[Affine, Shape, Shape], Tensor]


def margin_slopes(network: Network, norm: Norm = norm_upper) -> Tensor:
    """How fast the difference of two classes' scores can change at most, per unit of L2 distance: [K, K].

    The affine layers at the end are taken together, and for each pair of classes by itself, so that a linear network's
    slopes are exact.
    """
    place, rows, errors = _head(network)
    apart = (rows[:, None] - rows[None]).flatten(2)
    # A norm has no gradient at 0, and the diagonal is 0.
    distances = (apart.square().sum(2) + torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).sqrt()
    return (distances + errors[:, None] + errors[None]) * lipschitz_constant(network, place, norm)


def lipschitz_constant(network: Network, place: int, norm: Norm = norm_upper) -> Tensor:
    """An upper bound on the Lipschitz constant of a node's values as a function of the input."""
    nodes = _merged(network)
    found: dict[int, Tensor] = {}

    def constant(place: int) -> Tensor:
        if place not in found:
            found[place] = _growth(nodes, place, norm, [constant(i) for i in nodes[place].inputs])
        return found[place]

    return constant(place)


def _growth(nodes: list[Node], place: int, norm: Norm, inputs: list[Tensor]) -> Tensor:
    """The constant of a node from those of the nodes that it takes values from."""
    operation, after = nodes[place].operation, nodes[place].shape
    if isinstance(operation, Input):
        return torch.ones((), dtype=torch.float64, device=kind_of(*(node.operation for node in nodes)).device)
    if isinstance(operation, Affine):
        return inputs[0] * norm(operation, _taken(operation, nodes[nodes[place].inputs[0]].shape, after), after)
    if isinstance(operation, Sum):
        return torch.stack(inputs).sum(0)
    if isinstance(operation, MaxPool):
        return inputs[0] * overlap(operation.size, operation.stride, after) ** 0.5
    if isinstance(operation, Relu | Sorting):
        return inputs[0]
    raise ModelError(f"There is no Lipschitz constant of {type(operation).__name__}.")


def _taken(operation: Affine, before: Shape, after: Shape) -> Shape:
    """The shape that an operation takes, which need not be that of its input after merging: values may be flattened."""
    if isinstance(operation, Linear):
        return (operation.weight.shape[1],)
    return after if isinstance(operation, Scale) else before


def lipschitz_radii(
    network: Network, x: Tensor, slopes: Tensor | None = None, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Answers [B] and certified radii [B] for a batch x [B, *D]: margin / slope, the smallest over the other classes.

    `labels` are the module's answers (default: those of the network as read). The module gives the same answer to every
    input of its own precision within the radius: margins are reduced by the largest rounding error of any execution
    (see `rounding`). `slopes` are the network's `margin_slopes`, if already computed.
    """
    if kind_of(*(node.operation for node in network.nodes)).dtype != torch.float64:
        network = network.to(torch.float64)
    values = network.values(x.double())
    scores = values[-1]
    labels = scores.argmax(1) if labels is None else labels
    slopes = (margin_slopes(network) if slopes is None else slopes).to(scores)[labels]
    margins = scores.gather(1, labels[:, None]) - scores
    # Errors grow with the radius: those within the radius that exact arithmetic has bound those within a smaller one.
    errors = deviations(network).of_margins(values, _smallest_ratio(margins, slopes, labels), labels)
    radii = _smallest_ratio(margins - errors, slopes, labels)
    return labels, of_numbers_only(x, radii * (1 - 1e-9))


def _smallest_ratio(margins: Tensor, slopes: Tensor, labels: Tensor) -> Tensor:
    """The smallest margin / slope [B] over the other classes, 0 if it is negative, NaN or infinite."""
    ratios = (margins / slopes).scatter(1, labels[:, None], torch.inf).amin(1)
    return ratios.nan_to_num(0.0, posinf=0.0, neginf=0.0).clamp_min(0.0)


def of_numbers_only(x: Tensor, radii: Tensor) -> Tensor:
    """The radii [B], but 0 for inputs that are not finite: units that such a value switches off leave scores finite."""
    return torch.where(x.flatten(1).isfinite().all(1), radii, 0.0)


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far the values of a node can be from the exact ones, in any execution within the ball (see `rounding`)."""

    each: Tensor
    """Bounds [B, *D] of each value's deviation."""
    total: Tensor
    """Bounds [B] of the L2 norm of all of them."""
    recent: Tensor
    """The part [B, *D] that arose since the node from which a merged operation leads here."""


class Deviations:
    """Carries rounding errors through a network: those of an operation, and what it makes of those before it."""

    slopes: list[Tensor]
    """How fast each value [*D] of each node can change at most, per unit of L2 distance of the input."""

    def __init__(self, network: Network) -> None:
        self.rounding = Rounding(network)
        self._nodes, self._merged = network.nodes, _merged(network)
        places = range(len(self._nodes))
        self._is_merged = [self._nodes[at].inputs != self._merged[at].inputs for at in places]
        self._inside = {self._nodes[at].inputs[0] for at in places if self._is_merged[at]}
        self._row_norms = [_row_norms(self._nodes, at) for at in places]
        self._merged_row_norms = [_row_norms(self._merged, at) for at in places]
        self._norms: dict[int, Tensor] = {}
        self._constants = self._all_constants()
        self.slopes = self._all_slopes()

    def _all_constants(self) -> list[Tensor]:
        """The Lipschitz constants of all nodes; NaN inside of merged operations, where they take long to compute."""
        constants: list[Tensor] = []
        for place, node in enumerate(self._nodes):
            if place in self._inside and not isinstance(node.operation, Scale | Reshape):
                constants.append(torch.full_like(constants[0], torch.nan))
            else:
                constants.append(self._grown(place, constants))
        return constants

    def _all_slopes(self) -> list[Tensor]:
        constants, slopes = self._constants, list[Tensor]()
        for place, node in enumerate(self._merged):
            rows = self._merged_row_norms[place]
            if rows is not None:
                slopes.append(rows * constants[node.inputs[0]])
            elif isinstance(node.operation, Relu):
                slopes.append(slopes[node.inputs[0]])
            elif isinstance(node.operation, Sum):
                slopes.append(torch.stack([slopes[i] for i in node.inputs]).sum(0))
            else:
                slopes.append(constants[place].expand(node.shape))
        return slopes

    def _grown(self, place: int, totals: Sequence[Tensor]) -> Tensor:
        """What differences of these L2 norms become at a node."""

        def norm(operation: Affine, before: Shape, after: Shape) -> Tensor:
            if place not in self._norms:
                self._norms[place] = norm_upper(operation, before, after)
            return self._norms[place]

        return _growth(self._merged, place, norm, [totals[i] for i in self._merged[place].inputs])

    def of_scores(self, values: Sequence[Tensor], eps: Tensor) -> Tensor:
        """How far each score [B, K] can be from the exact one, within eps [B] of inputs that give `values` in float64.

        As far too, then, from one in float64.
        """
        return self._all(values, eps)[-1].each

    def of_margins(self, values: Sequence[Tensor], eps: Tensor, labels: Tensor) -> Tensor:
        """How far the labels' scores minus the others' [B, K] can be from the exact ones within eps [B], likewise."""
        found = self._all(values, eps)
        scores, head = found[-1], self._nodes[-1].operation
        apart = scores.each.gather(1, labels[:, None]) + scores.each
        if not isinstance(head, Linear) or self._is_merged[-1]:
            return apart
        # What is off before the last layer moves both scores: their weights' difference counts.
        differences = (head.weight[labels][:, None] - head.weight).norm(dim=2)
        before = found[self._nodes[-1].inputs[0]].total[:, None]
        local = scores.recent.gather(1, labels[:, None]) + scores.recent
        return torch.minimum(apart, differences * before * (1 + 1e-9) + local)

    def _all(self, values: Sequence[Tensor], eps: Tensor) -> list[Deviation]:
        """The deviations of all nodes within eps [B] of inputs that give `values` in float64."""
        sizes: list[Tensor] = []
        found: list[Deviation] = []
        for place, value in enumerate(values):
            local = torch.zeros_like(value)
            if place:
                local = self.rounding.local(place, self.terms(place, values, sizes, found, eps))
            found.append(self.after(place, found, local))
            reach = eps.view(-1, *[1] * (value.ndim - 1)) * self.slopes[place]
            sizes.append(value.abs() + reach + found[-1].each)
        return found

    def terms(
        self, place: int, values: Sequence[Tensor], sizes: Sequence[Tensor], found: Sequence[Deviation], eps: Tensor
    ) -> Tensor:
        """Bounds [B, *D] on the sums of absolute terms that the operation of a node adds up, within eps [B].

        By the `sizes` of its inputs, or, if that is less, by their values at x and by how far these can change
        together, in L2: Σ|wᵢ·zᵢ| ≤ Σ|wᵢ·zᵢ(x)| + ‖w‖·‖z − z(x)‖.
        """
        by_sizes, rows = self.rounding.terms(place, sizes), self._row_norms[place]
        if rows is None:
            return by_sizes
        before = self._nodes[place].inputs[0]
        change = (eps * self._constants[before].to(eps) + found[before].total).view(-1, *[1] * rows.ndim)
        at_x = self.rounding.terms(place, {before: values[before].abs()})
        return torch.fmin(by_sizes, at_x + change * rows.to(by_sizes))  # where the constant is NaN, by sizes

    def after(self, place: int, found: Sequence[Deviation], local: Tensor) -> Deviation:
        """The deviation of a node from those of all nodes before, and the rounding error [B, *D] of its operation."""
        node = self._nodes[place]
        if not node.inputs:
            return Deviation(local, local.flatten(1).norm(dim=1), local)
        recent = local
        if self._is_merged[place]:
            recent = local + self._through(place, [found[i].recent for i in node.inputs])
        each = self._through(place, [found[i].each for i in node.inputs]) + local
        rows = self._merged_row_norms[place]
        if rows is not None:
            before = found[self._merged[place].inputs[0]].total
            each = torch.minimum(each, before.view(-1, *[1] * rows.ndim) * rows.to(each) + recent)
        total = each.flatten(1).norm(dim=1)
        if place not in self._inside:
            grown = self._grown(place, [one.total for one in found]) + recent.flatten(1).norm(dim=1)
            total = torch.minimum(total, grown)
            each = torch.minimum(each, total.view(-1, *[1] * (each.ndim - 1)))
        return Deviation(each, total, recent)

    def _through(self, place: int, inputs: Sequence[Tensor]) -> Tensor:
        """What deviations [B, *D] of each input value become at most."""
        operation, absolute = self._nodes[place].operation, self.rounding.absolute[place]
        if absolute is not None:
            return absolute.linear(inputs[0])
        if isinstance(operation, Sum):
            return torch.stack(list(inputs)).sum(0)
        if isinstance(operation, MaxPool):
            return operation(inputs[0])
        if isinstance(operation, Relu):
            return inputs[0]
        # Sorted values are no further apart than the values at their largest distance.
        return inputs[0].flatten(1).amax(1).view(-1, *[1] * (inputs[0].ndim - 1)).expand_as(inputs[0])


def _row_norms(nodes: Sequence[Node], place: int) -> Tensor | None:
    """The norms [*D] in float64 of the rows of an affine operation; None for others."""
    operation, shape = nodes[place].operation, nodes[place].shape
    if not isinstance(operation, Affine):
        return None
    before = _taken(operation, nodes[nodes[place].inputs[0]].shape, shape)
    squares = operation.squared().linear(torch.ones(1, *before).to(kind_of(operation)))
    return squares[0].double().sqrt()


@lru_cache(maxsize=8)
def deviations(network: Network) -> Deviations:
    """The deviations of a network whose weights do not change."""
    return Deviations(network)


def _head(network: Network) -> tuple[int, Tensor, Tensor]:
    """The scores as an affine function of an earlier node: its place, and the rows [K, *D] of the matrix.

    And bounds [K] on the norms of the rounding errors of the rows, in float64.
    """
    used = Counter(i for node in network.nodes for i in node.inputs)
    place = len(network.nodes) - 1
    operation = network.nodes[place].operation
    like = kind_of(*(node.operation for node in network.nodes))
    rows = sizes = torch.eye(network.nodes[place].shape[0], dtype=like.dtype, device=like.device)
    count = 0
    while isinstance(operation, Affine):
        count += math.prod(network.nodes[place].shape)
        before = network.nodes[place].inputs[0]
        rows = operation.transpose(rows, network.nodes[before].shape)
        with torch.no_grad():
            sizes = operation.absolute().transpose(sizes, network.nodes[before].shape)
        place, operation = before, network.nodes[before].operation
        if used[place] > 1:
            break
    return place, rows, gamma(2 * count, FLOAT64) * sizes.flatten(1).norm(dim=1)


def _merged(network: Network) -> list[Node]:
    """The nodes with scaling taken into the layer before or after it: the norm of both is less than their norms.

    Only norms are right afterwards: offsets are left out.
    """
    used = Counter(i for node in network.nodes for i in node.inputs)
    nodes = list(network.nodes)
    for place, node in enumerate(network.nodes):
        if not node.inputs or not isinstance(node.operation, Affine):
            continue
        before = nodes[node.inputs[0]]
        if used[node.inputs[0]] == 1 and isinstance(before.operation, Affine):
            both = _composed(before.operation, node.operation, nodes[node.inputs[0]].shape)
            if both is not None:
                nodes[place] = Node(both, before.inputs, node.shape)
    return nodes


def _composed(first: Affine, second: Affine, between: Shape) -> Affine | None:
    """The second operation after the first as one, but for offsets; None if that is not simple."""
    if isinstance(first, Scale) and isinstance(second, Reshape):
        return Scale(first.factor.expand(between).reshape(second.shape))
    if isinstance(first, Scale) and isinstance(second, Linear) and first.factor.ndim <= 1:
        return Linear(second.weight * first.factor, None)
    if isinstance(first, Scale) and isinstance(second, Conv) and _by_channel(first):
        factor = first.factor.expand(between[0], 1, 1)
        parts = factor.reshape(second.groups, 1, -1, 1, 1).expand(-1, len(second.weight) // second.groups, -1, 1, 1)
        return replace(second, weight=second.weight * parts.flatten(0, 1), bias=None)
    if isinstance(first, Linear) and isinstance(second, Scale) and second.factor.ndim <= 1:
        return Linear(first.weight * second.factor.expand(len(first.weight))[:, None], None)
    if isinstance(first, Conv) and isinstance(second, Scale) and _by_channel(second):
        return replace(first, weight=first.weight * second.factor.expand(len(first.weight), 1, 1)[..., None], bias=None)
    return None


def _by_channel(scale: Scale) -> bool:
    return scale.factor.ndim == 3 and scale.factor.shape[1:] == (1, 1)

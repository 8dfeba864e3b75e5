"""Lipschitz margin: no score can change faster than the product of the layers' norms (Tsuzuku et al. 2018).

The constant is the whole network's, so the bound is cheap and loose; networks are trained for it (the recipe
lipschitz-margin), or built of layers that bring no two inputs further apart (deel-torchlip).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

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
from smoothcert.baselines.spectral import kind_of, norm_upper, overlap
from smoothcert.errors import ModelError

Norm = Callable[[Affine, Shape, Shape], Tensor]


def margin_slopes(network: Network, norm: Norm = norm_upper) -> Tensor:
    """How fast the difference of two classes' scores can change at most, per unit of L2 distance: [K, K].

    The affine layers at the end are taken together, and for each pair of classes by itself, so that a linear network's
    slopes are exact.
    """
    place, rows = _head(network)
    apart = (rows[:, None] - rows[None]).flatten(2)
    # A norm has no gradient at 0, and the diagonal is 0.
    distances = (apart.square().sum(2) + torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).sqrt()
    return distances * lipschitz_constant(network, place, norm)


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
        return torch.stack(inputs).sum()
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


def lipschitz_radii(network: Network, x: Tensor, slopes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Answers [B] and certified radii [B] for a batch x [B, *D]: margin / slope, the smallest over the other classes.

    Give a network in float64: radii are rounded down by more than its rounding errors. `slopes` are its `margin_slopes`
    if they are known already.
    """
    scores = network(x)
    labels = scores.argmax(1)
    slopes = (margin_slopes(network) if slopes is None else slopes).to(scores)
    margins = scores.gather(1, labels[:, None]) - scores
    radii = (margins / slopes[labels]).scatter(1, labels[:, None], torch.inf).amin(1)
    return labels, of_numbers_only(x, (radii * (1 - 1e-9)).nan_to_num(0.0, posinf=0.0).clamp_min(0.0))


def of_numbers_only(x: Tensor, radii: Tensor) -> Tensor:
    """The radii [B], but 0 for inputs that are not finite: units that such a value switches off leave scores finite."""
    return torch.where(x.flatten(1).isfinite().all(1), radii, 0.0)


def unit_slopes(network: Network, place: int) -> Tensor:
    """How fast each value [*D] of a node can change at most, which must be an affine operation or a sum of such."""
    node = network.nodes[place]
    if isinstance(node.operation, Sum):
        return torch.stack([unit_slopes(network, i) for i in node.inputs]).sum(0)
    if not isinstance(node.operation, Affine):
        return lipschitz_constant(network, place).expand(node.shape)
    before = node.inputs[0]
    ones = torch.ones(1, *network.nodes[before].shape).to(kind_of(node.operation))
    squares = node.operation.squared().linear(ones)
    return squares[0].double().sqrt() * lipschitz_constant(network, before)


def _head(network: Network) -> tuple[int, Tensor]:
    """The scores as an affine function of an earlier node: its place, and the rows [K, *D] of the matrix."""
    used = Counter(i for node in network.nodes for i in node.inputs)
    place = len(network.nodes) - 1
    operation = network.nodes[place].operation
    like = kind_of(*(node.operation for node in network.nodes))
    rows = torch.eye(network.nodes[place].shape[0], dtype=like.dtype, device=like.device)
    while isinstance(operation, Affine):
        before = network.nodes[place].inputs[0]
        rows = operation.transpose(rows, network.nodes[before].shape)
        place, operation = before, network.nodes[before].operation
        if used[place] > 1:
            break
    return place, rows


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

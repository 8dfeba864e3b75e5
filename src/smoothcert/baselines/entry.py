"""A smaller matrix with the norms of a wide first layer.

Backward passes end with coefficients c of the first layer's units. From there the bound needs c·(Wx + b), and the norm
of c·W. For a fully connected layer of n units on more than n inputs this norm is that of c·L, with L an n × n matrix
for which L·Lᵀ = W·Wᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from smoothcert.baselines.network import Network
from smoothcert.baselines.operations import Affine, Linear, Reshape, Scale
from smoothcert.baselines.rounding import FLOAT64, gamma
from smoothcert.baselines.spectral import kind_of


@dataclass(frozen=True, slots=True)
class Entry:
    """The layer through which alone a network depends on its input, as a node's place, and its matrix W [n, D]."""

    place: int
    root: Tensor
    """L [n, n], and after `only` some of its rows."""
    gap: float
    """A bound on ‖W·Wᵀ − L·Lᵀ‖."""

    def norms(self, rows: Tensor) -> Tensor:
        """Upper bounds [B, S] on the norms of c·W, up to the rounding of sums, for coefficients c [B, S, n].

        ‖c·W‖² = c·W·Wᵀ·cᵀ is at most ‖c·L‖² + gap·‖c‖². The rounding of c·L is covered: half of what the gap adds for
        rounding is meant for it (see `_gap`), and a relative error of a few γ_D is left to the caller.
        """
        squares = (rows @ self.root).square().sum(2) + self.gap * rows.square().sum(2)
        return squares.clamp_min(1e-30).sqrt()

    def only(self, units: Tensor) -> Entry:
        """The same for some units of the layer."""
        return replace(self, root=self.root[units])


@lru_cache(maxsize=8)
@torch.no_grad()
def find_entry(network: Network) -> Entry | None:
    """The first layer of a network whose weights do not change, if it has more inputs than units; else None."""
    nodes, place = network.nodes, 0
    passed: list[int] = []
    while True:
        users = [at for at, node in enumerate(nodes) if place in node.inputs]
        if len(users) != 1:
            return None
        (place,) = users
        operation = nodes[place].operation
        if isinstance(operation, Linear):
            break
        if not isinstance(operation, Scale | Reshape):
            return None
        passed.append(place)
    if len(nodes[place].shape) != 1 or prod(nodes[place].shape) >= prod(nodes[0].shape):
        return None
    rows = operation.weight.double()
    for at in reversed(passed):
        before, step = nodes[nodes[at].inputs[0]].shape, nodes[at].operation.to(torch.float64)
        assert isinstance(step, Affine)  # noqa: S101 - only these were passed
        rows = step.transpose(rows.reshape(-1, *nodes[at].shape), before)
    matrix = rows.flatten(1)
    root = torch.linalg.qr(matrix.T, mode="r").R.T.contiguous()
    return Entry(place, root.to(kind_of(operation)), _gap(matrix, root))


def _gap(matrix: Tensor, root: Tensor) -> float:
    """A bound on ‖W·Wᵀ − L·Lᵀ‖, by the Frobenius norm of the difference and the rounding errors of both products.

    An entry of a product of two rows is off by at most γ_D times the product of their norms, so both products are off
    by at most γ_D·(‖W‖² + ‖L‖²) in Frobenius norms. Twice that is added, for the rounding of c·L: it is off by
    e ≤ γ_D·‖L‖·‖c‖, and (a + e)² ≤ (1 + 2γ_D)·a² + (1 + 1/(2γ_D))·e², whose last term is less than γ_D·‖L‖²·‖c‖².
    """
    difference = torch.linalg.matrix_norm(matrix @ matrix.T - root @ root.T)
    sizes = matrix.square().sum() + root.square().sum()
    underflow = 2 * matrix.numel() * torch.finfo(torch.float64).tiny
    return float(difference + 2 * gamma(matrix.shape[1] + 16, FLOAT64) * sizes + underflow) * (1 + 1e-6)

"""Proved bounds on the rounding error of each operation of a network.

The standard model of floating-point arithmetic (Higham 2002, sections 2.2 and 3.1): each product, sum, quotient or root
equals the exact result times 1 + δ with |δ| ≤ u, or differs from it by less than the smallest normal number if it
underflows. A sum of n products, in any order and with or without fused multiply-adds, then has an error of at most
γ_n·Σ|wᵢ·xᵢ|, γ_n = n·u / (1 − n·u). Algorithms that do not compute sums of products directly (Winograd, FFT) are not
covered by this model.

An *execution* of a network on an input assigns a value to each node such that the error of each operation, applied to
the values of its inputs, stays within its bound. The module in its own precision is one execution; exact arithmetic and
the float64 network that bounds are computed with are two others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from smoothcert.baselines.network import Network
from smoothcert.baselines.operations import Affine, MaxPool, Sum
from smoothcert.baselines.spectral import kind_of

FLOAT64 = 2.0**-53  # the unit roundoff of the numbers that bounds are computed with
_REDUCED = 2.0**-8  # bfloat16, the coarsest that torch may compute float32 products in
_OUTWARD = 1 + 2.0**-20  # covers the rounding of the error bounds themselves, which are computed in float64


def unit_roundoff(dtype: torch.dtype, device: torch.device) -> float:
    """The unit roundoff u of `dtype`: the largest relative error of one rounding.

    For float32 this is the unit roundoff of bfloat16 if torch may use reduced precision for products (TF32, bfloat16).
    """
    if dtype == torch.float32 and _reduced(device):
        return _REDUCED
    return torch.finfo(dtype).eps / 2


def _reduced(device: torch.device) -> bool:
    """True if torch may compute float32 products in fewer digits."""
    if torch.get_float32_matmul_precision() != "highest":
        return True
    if device.type == "cuda":
        return torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    mkldnn = (getattr(torch.backends.mkldnn, part, None) for part in ("matmul", "conv"))
    return any(getattr(part, "fp32_precision", "none") not in ("none", "ieee") for part in mkldnn)


def gamma(count: int, unit: float) -> float:
    """γ_n = n·u / (1 − n·u), the bound on the relative error of n roundings; inf if there is none."""
    return count * unit / (1 - count * unit) if count * unit < 1 else math.inf


class Rounding:
    """Bounds on the rounding errors of each operation of a network, in float64."""

    own: float
    """γ_n in float64, for an n larger than the number of roundings in any sum that bounds are computed from.

    A backward step through an operation is a sum of products as well: its error, multiplied by the values of the
    inputs, is at most this number times `terms`.
    """

    def __init__(self, network: Network) -> None:
        nodes = network.nodes
        self._nodes = nodes
        self.absolute = [one.operation.absolute() if isinstance(one.operation, Affine) else None for one in nodes]
        self._unit = unit_roundoff(network.dtype, kind_of(*(node.operation for node in nodes)).device)
        self._smallest, self._largest = torch.finfo(network.dtype).tiny, torch.finfo(network.dtype).max / 2
        most = max(math.prod(node.shape) for node in nodes)
        most += max((one.operation.roundings for one in nodes if isinstance(one.operation, Affine)), default=0)
        self.own = gamma(8 * most + 64 * len(nodes), FLOAT64)

    def terms(self, place: int, sizes: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """The sums [B, *D] of absolute terms that the values of a node consist of, given bounds on all earlier nodes.

        Up to the rounding error of this operation, they bound the absolute values of the node in any execution.
        """
        node, absolute = self._nodes[place], self.absolute[place]
        inputs = [sizes[i] for i in node.inputs]
        if absolute is not None:
            return absolute(inputs[0])
        if isinstance(node.operation, Sum):
            return torch.stack(inputs).sum(0)
        if isinstance(node.operation, MaxPool):
            return node.operation(inputs[0])
        return inputs[0]

    def local(self, place: int, terms: Tensor) -> Tensor:
        """Bounds [B, *D] on the error of one operation, in the module's precision plus in float64, from its `terms`."""
        count = self._roundings(place)
        bound = (gamma(count, self._unit) + self.own) * _OUTWARD * terms + count * self._smallest
        if count == 0:
            return bound
        return torch.where(terms < self._largest, bound, torch.inf)  # the module may overflow

    def _roundings(self, place: int) -> int:
        operation = self._nodes[place].operation
        if isinstance(operation, Affine):
            return operation.roundings
        return len(self._nodes[place].inputs) if isinstance(operation, Sum) else 0

"""What floating point can add to each operation of a network: proved bounds on rounding errors.

The model is the standard one (Higham 2002, sections 2.2 and 3.1). Each product, sum, quotient or root is the exact
one times 1 + δ, |δ| ≤ u, or off by less than the smallest normal number where it underflows. A sum of n products, in any
order, with or without fused multiply-adds, is then off by at most γ_n·Σ|wᵢ·xᵢ|, γ_n = n·u / (1 − n·u). Algorithms that
are no sums of products (Winograd, FFT) are outside of this model.

An *execution* of a network on an input is any choice of values such that each operation, applied to the values that
it takes, is off by no more than its bound. The module in its own precision is one, exact arithmetic is another, and the
network in float64, with which bounds are computed, is a third.
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
_OUTWARD = 1 + 2.0**-20  # far more than bounds on errors lose themselves, as float64 numbers


def unit_roundoff(dtype: torch.dtype, device: torch.device) -> float:
    """U: how far a number of this precision can be from the exact one, relative.

    Of float32 it is that of bfloat16 where torch is allowed to multiply in fewer digits (TF32, bfloat16).
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
    """A bound on the relative error of anything that bounds are computed from in float64.

    A step backwards through an operation is a sum of products too. Its error times the values that it applies to is at
    most this times the sum of absolute terms, which `terms` is. No such sum has more terms than counted here.
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
        """The sum [B, *D] of the absolute terms of each value, given the largest absolute values of all nodes before.

        No value of an execution is larger, but for the rounding error of the last operation.
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
        """Bounds [B, *D] on the error of one operation, in the module's precision and in float64, by its `terms`."""
        count = self._roundings(place)
        bound = (gamma(count, self._unit) + self.own) * _OUTWARD * terms + count * self._smallest
        if count == 0:
            return bound
        return torch.where(terms < self._largest, bound, torch.inf)  # beyond, the module may overflow

    def _roundings(self, place: int) -> int:
        operation = self._nodes[place].operation
        if isinstance(operation, Affine):
            return operation.roundings
        return len(self._nodes[place].inputs) if isinstance(operation, Sum) else 0

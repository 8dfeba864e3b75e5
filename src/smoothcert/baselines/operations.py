"""What the networks that we can bound are made of: affine maps, sums, ReLU, max-pooling, and sorting.

Operations hold a module's own parameters, not copies, so that bounds can be trained through them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]

_BESIDE = 3  # roundings beside those of n products' sum: of a bias, a division, a weight that was read
_NORMALISING = 24  # at most 12 in a batch norm, in any order of evaluation, and 12 when it was read


class Operation(ABC):
    """A map from the values [B, *D] of one node, or of several, to another node's."""

    @abstractmethod
    def __call__(self, *values: Tensor) -> Tensor:
        """The values of a batch."""

    def to(self, dtype: torch.dtype) -> Self:
        """The same operation with its parameters converted to `dtype`."""
        converted = {name: one.to(dtype) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **converted)  # type: ignore[type-var]


class Affine(Operation):
    """x ↦ A·x + b."""

    def __call__(self, *values: Tensor) -> Tensor:
        """A·x + b."""
        value, offset = self.linear(values[0]), self.offset()
        return value if offset is None else value + offset

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """A·x for x [B, *D_in]."""

    @abstractmethod
    def transpose(self, rows: Tensor, shape: Shape) -> Tensor:
        """rows·A for rows [N, *D_out]: [N, *D_in], where `shape` is D_in."""

    @abstractmethod
    def offset(self) -> Tensor | None:
        """b, in a shape that broadcasts to D_out; None if it is 0."""

    @abstractmethod
    def squared(self) -> Affine:
        """The map whose matrix has the squares of A's entries, without offset: of ones it gives A's squared rows."""

    @abstractmethod
    def absolute(self) -> Affine:
        """The map with the absolute values of A's entries and of all terms that b is the sum of."""

    @property
    @abstractmethod
    def roundings(self) -> int:
        """The number of roundings that a term of one output undergoes at most, in any order of evaluation.

        Includes those made when this operation was read, such as of the reciprocals that a batch norm became.
        """

    def rows(self, units: Tensor, before: Shape, after: Shape, like: Tensor) -> Tensor:
        """The rows [N, *D_in] of A that belong to some of the outputs, given by their places [N] in D_out."""
        return self.transpose(unit_vectors(units, after, like), before)


@dataclass(frozen=True, eq=False)
class Input(Operation):
    """The input itself."""

    def __call__(self, *values: Tensor) -> Tensor:
        """As given."""
        return values[0]


@dataclass(frozen=True, eq=False)
class Sum(Operation):
    """The sum of several nodes' values, as at the end of a residual block."""

    def __call__(self, *values: Tensor) -> Tensor:
        """The sum."""
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total


@dataclass(frozen=True, eq=False)
class Relu(Operation):
    """max(0, x)."""

    def __call__(self, *values: Tensor) -> Tensor:
        """Of each value by itself."""
        return functional.relu(values[0])


@dataclass(frozen=True, eq=False)
class MaxPool(Operation):
    """The largest value of each window."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __call__(self, *values: Tensor) -> Tensor:
        """As torch has it: padding is never the largest."""
        return functional.max_pool2d(values[0], self.size, self.stride, self.padding)


@dataclass(frozen=True, eq=False)
class Sorting(Operation):
    """Values sorted within groups: an operation that brings no two inputs further apart."""

    sort: Callable[[Tensor], Tensor]

    def __call__(self, *values: Tensor) -> Tensor:
        """The same values in another order."""
        return self.sort(values[0])


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """The same values in another shape."""

    shape: Shape

    def linear(self, x: Tensor) -> Tensor:
        """In the other shape."""
        return x.reshape(-1, *self.shape)

    def transpose(self, rows: Tensor, shape: Shape) -> Tensor:
        """In the shape they had."""
        return rows.reshape(-1, *shape)

    def offset(self) -> None:
        """None."""

    def squared(self) -> Reshape:
        """The same."""
        return self

    def absolute(self) -> Reshape:
        """The same."""
        return self

    @property
    def roundings(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True, eq=False)
class Linear(Affine):
    """A fully connected layer on the last dimension."""

    weight: Tensor
    bias: Tensor | None

    def linear(self, x: Tensor) -> Tensor:
        """W·x."""
        return functional.linear(x, self.weight)

    def transpose(self, rows: Tensor, shape: Shape) -> Tensor:  # noqa: ARG002 - the weights tell it too
        """rows·W."""
        return rows @ self.weight

    def rows(self, units: Tensor, before: Shape, after: Shape, like: Tensor) -> Tensor:
        """Rows of W."""
        if len(after) > 1:
            return super().rows(units, before, after, like)
        return self.weight[units]

    def offset(self) -> Tensor | None:
        """B."""
        return self.bias

    def squared(self) -> Linear:
        """With the squared weights."""
        return Linear(self.weight.square(), None)

    def absolute(self) -> Linear:
        """|W| and |b|."""
        return Linear(self.weight.abs(), _absolute(self.bias))

    @property
    def roundings(self) -> int:
        """Of its product, of the sum over the inputs, of the bias."""
        return self.weight.shape[1] + _BESIDE


@dataclass(frozen=True, eq=False)
class Conv(Affine):
    """A two-dimensional convolution with zeros around the image."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def linear(self, x: Tensor) -> Tensor:
        """As torch has it."""
        return functional.conv2d(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def transpose(self, rows: Tensor, shape: Shape) -> Tensor:
        """The transposed convolution; pixels that no window reaches get 0."""
        rest = tuple(
            side - ((count - 1) * step - 2 * pad + gap * (width - 1) + 1)
            for side, count, step, pad, gap, width in zip(
                shape[1:],
                rows.shape[2:],
                self.stride,
                self.padding,
                self.dilation,
                self.weight.shape[2:],
                strict=True,
            )
        )
        return functional.conv_transpose2d(
            rows, self.weight, None, self.stride, self.padding, rest, self.groups, self.dilation
        )

    def rows(self, units: Tensor, before: Shape, after: Shape, like: Tensor) -> Tensor:
        """The kernel, put where each output's window is."""
        if self.groups > 1:
            return super().rows(units, before, after, like)
        channel, place = units // (after[1] * after[2]), units % (after[1] * after[2])
        row, column = place // after[2], place % after[2]
        height, width = (side + 2 * pad for side, pad in zip(before[1:], self.padding, strict=True))
        first = row * self.stride[0] * width + column * self.stride[1]
        steps = [torch.arange(count, device=units.device) for count in self.weight.shape[1:]]
        each, down, across = torch.meshgrid(*steps, indexing="ij")
        window = each * height * width + down * self.dilation[0] * width + across * self.dilation[1]
        empty = like.new_zeros(len(units), before[0] * height * width)
        filled = empty.scatter(1, first[:, None] + window.flatten(), self.weight[channel].flatten(1))
        whole = filled.view(-1, before[0], height, width)
        return whole[:, :, self.padding[0] : height - self.padding[0], self.padding[1] : width - self.padding[1]]

    def offset(self) -> Tensor | None:
        """The bias of each channel."""
        return None if self.bias is None else self.bias.view(-1, 1, 1)

    def squared(self) -> Conv:
        """With the squared weights."""
        return replace(self, weight=self.weight.square(), bias=None)

    def absolute(self) -> Conv:
        """With the absolute weights and biases."""
        return replace(self, weight=self.weight.abs(), bias=_absolute(self.bias))

    @property
    def roundings(self) -> int:
        """Of its product, of the sum over the window, of the bias."""
        return self.weight[0].numel() + _BESIDE


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """Each value, or each channel's, times a factor, plus a shift: in shapes that broadcast to the value's.

    `shift_terms` is the sum of the absolute terms that the shift was computed from, if they may cancel.
    """

    factor: Tensor
    shift: Tensor | None = None
    shift_terms: Tensor | None = None

    def linear(self, x: Tensor) -> Tensor:
        """factor·x."""
        return x * self.factor

    def transpose(self, rows: Tensor, shape: Shape) -> Tensor:  # noqa: ARG002 - the same on both sides
        """factor·rows."""
        return rows * self.factor

    def offset(self) -> Tensor | None:
        """The shift."""
        return self.shift

    def squared(self) -> Scale:
        """With the squared factors."""
        return Scale(self.factor.square())

    def absolute(self) -> Scale:
        """With the absolute factors and terms."""
        terms = _absolute(self.shift) if self.shift_terms is None else self.shift_terms
        return Scale(self.factor.abs(), terms)

    @property
    def roundings(self) -> int:
        """Those of a batch norm, which are more than those of normalisation."""
        return _NORMALISING


def _absolute(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.abs()


def unit_vectors(units: Tensor, shape: Shape, like: Tensor) -> Tensor:
    """Vectors [N, *D] of zeros with a 1 at the place that `units` [N] says."""
    vectors = like.new_zeros(len(units), int(torch.Size(shape).numel()))
    vectors[torch.arange(len(units), device=units.device), units] = 1.0
    return vectors.unflatten(1, shape)


def batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, dimensions: int) -> Scale:
    """Batch normalisation with its running statistics, on values of so many dimensions."""
    view = (-1, *[1] * (dimensions - 1))
    # Both are there: whoever reads a network has checked.
    mean, variance = cast(Tensor, module.running_mean), cast(Tensor, module.running_var)
    factor = (variance + module.eps).rsqrt()
    if module.affine:
        factor = factor * module.weight
    shift = -mean * factor
    terms = shift.abs()
    if module.affine:
        shift, terms = shift + module.bias, terms + module.bias.abs()
    return Scale(factor.view(view), shift.view(view), terms.view(view))


def average_pool(channels: int, size: tuple[int, int], stride: tuple[int, int], like: Tensor) -> Conv:
    """Average pooling as a convolution of each channel by itself."""
    kernel = torch.full((channels, 1, *size), 1.0 / (size[0] * size[1]), dtype=like.dtype, device=like.device)
    return Conv(kernel, None, stride, groups=channels)

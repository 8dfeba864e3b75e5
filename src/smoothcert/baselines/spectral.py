"""Largest singular values of layers: proved upper bounds to certify with, and cheap estimates to train with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smoothcert.baselines.operations import Affine, Conv, Linear, Operation, Reshape, Scale, Shape
from smoothcert.errors import ModelError

_OUTWARD = 1 + 1e-9  # far more than float64 loses in what is done here


def norm_upper(operation: Affine, before: Shape, after: Shape) -> Tensor:  # noqa: ARG001 - as `norm_estimate` has it
    """An upper bound on the largest singular value of an affine map from inputs of shape `before` to `after`.

    For a linear layer and for scaling it is the norm itself, for a convolution the smaller of two bounds.
    """
    if isinstance(operation, Reshape):
        return torch.ones((), dtype=torch.float64)
    if isinstance(operation, Scale):
        return operation.factor.double().abs().max()
    if isinstance(operation, Linear):
        return _matrix_norm(operation.weight.double()) * _OUTWARD
    if isinstance(operation, Conv):
        return torch.minimum(_by_frequencies(operation, after), _by_windows(operation, after)) * _OUTWARD
    raise ModelError(f"There is no bound on the norm of {type(operation).__name__}.")  # pragma: no cover


def norm_estimate(operation: Affine, before: Shape, after: Shape, steps: int = 10) -> Tensor:  # noqa: ARG001
    """The norm as power iteration finds it: never too large, but differentiable and cheap. Only for training."""
    vector = _start(before, operation)
    with torch.no_grad():
        for _ in range(steps):
            vector = operation.transpose(operation.linear(vector), before)
            vector = vector / vector.norm().clamp_min(1e-30)
    return operation.linear(vector).norm()


def _start(shape: Shape, operation: Affine) -> Tensor:
    """A vector with no preferred direction, always the same one, so that a training can be repeated."""
    count = math.prod(shape)
    numbers = torch.cos(torch.arange(1, count + 1, dtype=torch.float64) ** 2 * 0.6180339887)
    return (numbers / numbers.norm()).view(1, *shape).to(kind_of(operation))


def kind_of(*operations: Operation) -> Tensor:
    """A tensor of the kind and on the device of some operations' parameters."""
    found = (one for operation in operations for one in vars(operation).values() if isinstance(one, Tensor))
    return next(found, torch.zeros(()))


def overlap(size: tuple[int, int], stride: tuple[int, int], after: Shape) -> int:
    """In how many windows a pixel can lie at most."""
    pairs = zip(size, stride, after[-2:], strict=True)
    return math.prod(min(count, -(-width // step)) for width, step, count in pairs)


def _matrix_norm(matrix: Tensor) -> Tensor:
    """The largest singular value of each matrix [..., a, b], by the eigenvalues of the smaller of its squares."""
    wide = matrix.shape[-2] <= matrix.shape[-1]
    square = matrix @ matrix.mH if wide else matrix.mH @ matrix
    return torch.linalg.eigvalsh(square)[..., -1].clamp_min(0).sqrt().max()


def _spread(operation: Conv) -> Tensor:
    """The kernel in float64 with its dilation written out as zeros, by group: [g, out / g, in / g, h, w]."""
    weight = operation.weight.double()
    sizes = [gap * (width - 1) + 1 for gap, width in zip(operation.dilation, weight.shape[2:], strict=True)]
    kernel = weight.new_zeros(*weight.shape[:2], *sizes)
    kernel[:, :, :: operation.dilation[0], :: operation.dilation[1]] = weight
    return kernel.unflatten(0, (operation.groups, -1))


def _by_windows(operation: Conv, after: Shape) -> Tensor:
    """‖W‖·√(windows that share a pixel), W being the kernel as a matrix: ‖y‖² = Σ ‖W·window‖² ≤ ‖W‖²·Σ ‖window‖².

    Exact where windows do not overlap.
    """
    kernel = _spread(operation)
    shared = overlap((kernel.shape[3], kernel.shape[4]), operation.stride, after)
    return _matrix_norm(kernel.flatten(2)) * math.sqrt(shared)


def _by_frequencies(operation: Conv, after: Shape) -> Tensor:
    """The norm of the convolution on a torus that is large enough for nothing to meet itself.

    Zeros around the image put it into that torus, and the outputs are a part of the torus's: the norm cannot be
    larger. On the torus the convolution is a matrix for each frequency (Sedghi et al. 2019). With a stride, the
    pixels of each phase count as channels of their own, which turns it into a convolution without one.
    """
    (down, across), kernel = operation.stride, _spread(operation)
    height, width = -(-kernel.shape[3] // down), -(-kernel.shape[4] // across)
    phases = kernel.new_zeros(*kernel.shape[:3], height * down, width * across)
    phases[..., : kernel.shape[3], : kernel.shape[4]] = kernel
    phases = phases.unflatten(4, (width, across)).unflatten(3, (height, down))
    phases = phases.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)  # [g, out, in · phases, h, w]
    torus = (after[1] + height - 1, after[2] + width - 1)
    return _matrix_norm(torch.fft.rfft2(phases, s=torus).permute(0, 3, 4, 1, 2))

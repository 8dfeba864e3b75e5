"""Largest singular values of layers: proved upper bounds to certify with, and cheap estimates to train with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smoothcert.baselines.operations import Affine, Conv, Linear, Operation, Reshape, Scale, Shape
from smoothcert.errors import ModelError

_OUTWARD = 1 + 1e-9  # more than products of a few numbers lose in float64
_FLOAT64 = 2.0**-53


def norm_upper(operation: Affine, before: Shape, after: Shape) -> Tensor:  # noqa: ARG001 - as `norm_estimate` has it
    """An upper bound on the largest singular value of an affine map from inputs of shape `before` to `after`.

    For a linear layer and for scaling it is the norm itself, for a convolution the smaller of two bounds.
    """
    if isinstance(operation, Reshape):
        return torch.ones((), dtype=torch.float64)
    if isinstance(operation, Scale):
        return operation.factor.double().abs().max() * _OUTWARD
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


def _matrix_norm(matrix: Tensor, errors: Tensor | float = 0.0) -> Tensor:
    """An upper bound on the largest singular value of all matrices [..., a, b], the largest of them.

    By the eigenvalues of the smaller of its squares G, which `_proved` checks. `errors` bound the Frobenius norms of
    what the matrices are off by.
    """
    wide = matrix.shape[-2] <= matrix.shape[-1]
    square = matrix @ matrix.mH if wide else matrix.mH @ matrix
    estimate = torch.linalg.eigvalsh(square)[..., -1].clamp_min(0).max()
    with torch.no_grad():
        frobenius = torch.linalg.matrix_norm(matrix).square().max()
        # A sum of n complex products is off by at most γ_(n + 4) times the sum of absolute terms.
        product = (max(matrix.shape[-2:]) + 4) * 2 * _FLOAT64 * frobenius
        excess = _proved(square.detach(), estimate.detach()) + product - estimate.detach()
    return (estimate + excess).sqrt() + errors


def _proved(square: Tensor, estimate: Tensor) -> Tensor:
    """A number that no eigenvalue of the Hermitian matrices [..., n, n] is above, near an estimate of the largest.

    If a Cholesky factorisation of c·1 − G runs through in floating point, that matrix has no eigenvalue below
    −γ_(n + 1) / (1 − γ_(n + 1)) times its trace (Rump 2006, "Verification of positive definiteness").
    """
    n = square.shape[-1]
    unit = torch.eye(n, dtype=square.dtype, device=square.device)
    traces = square.diagonal(dim1=-2, dim2=-1).real.sum(-1).max()
    for digits in (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-6):
        bound = estimate * (1 + digits)
        _, failed = torch.linalg.cholesky_ex(bound * unit - square)
        if not bool(failed.any()):
            return bound + (n + 8) * 4 * _FLOAT64 * n * bound
    return traces * _OUTWARD  # the sum of all eigenvalues, none of which is negative


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
    return _matrix_norm(*_frequencies(phases, torus))


def _frequencies(kernel: Tensor, torus: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The Fourier transform of kernels [g, out, in, h, w] on a torus, of half of all frequencies: [g, H, W', out, in].

    And a bound on the Frobenius norm of its error. Computed as sums of products, whose rounding error is known.
    """
    waves = []
    for side, width in zip((torus[0], torus[1]), kernel.shape[3:], strict=True):
        steps = torch.arange(side, device=kernel.device)[:, None] * torch.arange(width, device=kernel.device)
        angles = (steps % side).double() * (-2 * math.pi / side)
        waves.append(torch.complex(angles.cos(), angles.sin()))
    waves[1] = waves[1][: torus[1] // 2 + 1]
    found = torch.einsum("goihw,fh,kw->gfkoi", kernel.to(torch.complex128), *waves)
    # Angles below 2π are off by a few units in the last place, and so are sines and cosines.
    count = kernel.shape[3] * kernel.shape[4] + 32
    sizes = kernel.detach().abs().sum((3, 4)).flatten(1).norm(dim=1).max()
    return found, 2 * count * _FLOAT64 * sizes

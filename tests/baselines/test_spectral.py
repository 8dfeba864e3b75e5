from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from baselines.oracles import dense
from smoothcert.baselines.operations import Affine, Conv, Linear, Reshape, Scale, average_pool
from smoothcert.baselines.spectral import norm_estimate, norm_upper, overlap

Shape = tuple[int, ...]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def true_norm(operation: Affine, before: Shape) -> float:
    return float(np.linalg.svd(dense(operation.linear, before)[0], compute_uv=False)[0])


def shape_after(operation: Affine, before: Shape) -> Shape:
    return tuple(operation.linear(torch.zeros(1, *before, dtype=torch.float64)).shape[1:])


def upper(operation: Affine, before: Shape) -> float:
    return float(norm_upper(operation, before, shape_after(operation, before)))


def random_convolution(seed: int) -> tuple[Conv, Shape]:
    """Any convolution that fits into its image, with weights that are all alike, of both signs, or of one channel."""
    numbers = np.random.default_rng(seed)
    size, stride, dilation = (tuple(int(n) for n in numbers.integers(1, most + 1, 2)) for most in (4, 3, 2))
    padding = tuple(int(numbers.integers(0, width + 1)) for width in size)
    groups, per_group = int(numbers.integers(1, 3)), int(numbers.integers(1, 3))
    reach = [gap * (width - 1) + 1 - 2 * pad for gap, width, pad in zip(dilation, size, padding, strict=True)]
    sides = [max(1, least) + int(numbers.integers(0, 4)) for least in reach]
    weight = drawn(groups * int(numbers.integers(1, 3)), per_group, *size, seed=seed)
    weight = {0: weight, 1: weight.abs(), 2: torch.ones_like(weight)}[seed % 3]
    return Conv(weight, drawn(len(weight)), stride, padding, dilation, groups), (groups * per_group, *sides)


# ---- upper bounds -------------------------------------------------------------------------------------------------


def test_no_convolution_has_a_larger_norm_than_its_bound():
    for seed in range(400):
        operation, before = random_convolution(seed)
        exact = true_norm(operation, before)
        assert upper(operation, before) >= exact, f"seed {seed}: {operation}"


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_not_far_above_for_usual_convolutions(seed):
    channels = [(1, 4), (3, 8), (8, 8)][seed % 3]
    operation, before = (
        Conv(drawn(channels[1], channels[0], 3, 3, seed=seed), None, padding=(1, 1)),
        (channels[0], 8, 8),
    )
    exact = true_norm(operation, before)
    assert exact <= upper(operation, before) <= 1.25 * exact


def test_the_bound_gets_tighter_the_larger_the_image():
    kernel = drawn(3, 2, 3, 3)
    ratios = []
    for side in (4, 8, 16):
        operation = Conv(kernel, None, padding=(1, 1))
        ratios.append(upper(operation, (2, side, side)) / true_norm(operation, (2, side, side)))
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 1.03


EXACT: dict[str, tuple[Affine, Shape]] = {
    "wide linear": (Linear(drawn(3, 7), None), (7,)),
    "tall linear": (Linear(drawn(7, 3), drawn(7)), (3,)),
    "linear of rank one": (Linear(drawn(4, 1) @ drawn(1, 6), None), (6,)),
    "scale": (Scale(drawn(3, 1, 1)), (3, 2, 2)),
    "negative scale": (Scale(torch.tensor([-5.0, 2.0], dtype=torch.float64)), (2,)),
    "reshape": (Reshape((6,)), (1, 2, 3)),
    "1×1 convolution": (Conv(drawn(4, 3, 1, 1), None), (3, 4, 4)),
    "patches": (Conv(drawn(5, 2, 3, 3), None, (3, 3)), (2, 9, 6)),
    "patches with pixels left over": (Conv(drawn(5, 2, 2, 2), None, (3, 2)), (2, 8, 7)),
    "patches of each group": (Conv(drawn(6, 2, 2, 2), None, (2, 2), groups=3), (6, 4, 4)),
    "average of patches": (average_pool(3, (2, 2), (2, 2), drawn(1)), (3, 6, 6)),
    "average of all": (average_pool(3, (5, 4), (1, 1), drawn(1)), (3, 5, 4)),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_the_norm_itself_where_windows_do_not_overlap(name):
    operation, before = EXACT[name]
    exact = true_norm(operation, before)
    assert exact * (1 - 1e-13) <= upper(operation, before) <= exact * (1 + 2e-9)


def test_it_is_computed_in_float64_whatever_the_weights_are_kept_in():
    weight = drawn(4, 3, 3, 3).float()
    operation = Conv(weight, None, padding=(1, 1))
    found = norm_upper(operation, (3, 5, 5), (4, 5, 5))
    assert found.dtype == torch.float64
    assert float(found) == upper(Conv(weight.double(), None, padding=(1, 1)), (3, 5, 5))


def test_it_grows_with_the_weights_and_is_0_for_none():
    weight = drawn(2, 2, 3, 3)
    one, two = (upper(Conv(factor * weight, None, padding=(1, 1)), (2, 5, 5)) for factor in (1, 2))
    assert two == pytest.approx(2 * one)
    assert upper(Conv(0 * weight, None, padding=(1, 1)), (2, 5, 5)) == 0


def test_overlap_is_the_largest_number_of_windows_that_hold_one_pixel():
    for size, stride, sides in itertools.product([(1, 1), (2, 3), (3, 3)], [(1, 1), (2, 1), (2, 3)], [(3, 3), (6, 7)]):
        counts = np.zeros(sides, dtype=int)
        after = tuple((side - width) // step + 1 for side, width, step in zip(sides, size, stride, strict=True))
        for row, column in itertools.product(range(after[0]), range(after[1])):
            top, left = row * stride[0], column * stride[1]
            counts[top : top + size[0], left : left + size[1]] += 1
        assert overlap(size, stride, (5, *after)) == counts.max()


# ---- estimates ----------------------------------------------------------------------------------------------------

ESTIMATED: dict[str, tuple[Affine, Shape]] = {
    "linear": (Linear(drawn(6, 5), None), (5,)),
    "scale": (Scale(drawn(4, 1, 1)), (4, 2, 2)),
    "convolution": (Conv(drawn(4, 3, 3, 3) + 0.5, None, padding=(1, 1)), (3, 6, 6)),
    "strided": (Conv(drawn(4, 2, 3, 3), None, (2, 2), (1, 1), groups=2), (4, 6, 6)),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_estimates_are_never_above_the_norm_and_converge_from_below(name):
    operation, before = ESTIMATED[name]
    exact, after = true_norm(operation, before), shape_after(operation, before)
    found = [float(norm_estimate(operation, before, after, steps)) for steps in (0, 1, 2, 5, 10, 30, 300)]
    assert max(found) <= exact * (1 + 1e-12)
    assert found == sorted(found) or np.all(np.diff(found) > -1e-12)
    assert found[-1] == pytest.approx(exact, rel=1e-3)
    assert found[1] < 0.97 * exact  # so that there was something to converge


def test_the_estimate_is_the_same_every_time():
    operation, before = ESTIMATED["convolution"]
    after = shape_after(operation, before)
    assert torch.equal(norm_estimate(operation, before, after), norm_estimate(operation, before, after))


@pytest.mark.parametrize("name", ["linear", "convolution", "strided"])
def test_gradients_of_estimates_and_of_bounds_agree_with_finite_differences(name):
    operation, before = ESTIMATED[name]
    after, weight = shape_after(operation, before), operation.weight

    def with_weight(value: torch.Tensor) -> Affine:
        return Linear(value, None) if isinstance(operation, Linear) else _replaced(operation, value)

    def converged(value: torch.Tensor) -> torch.Tensor:
        # Where power iteration has converged its vector may count as constant: the gradient is that of the norm.
        return norm_estimate(with_weight(value), before, after, steps=2000)

    def bound(value: torch.Tensor) -> torch.Tensor:
        return norm_upper(with_weight(value), before, after)

    direction = drawn(*weight.shape, seed=9)
    for function in (converged, bound):
        point = weight.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(point), point)
        step = 1e-5
        difference = (function(weight + step * direction) - function(weight - step * direction)) / (2 * step)
        assert float((slope * direction).sum()) == pytest.approx(float(difference), rel=1e-4)


def _replaced(operation: Affine, weight: torch.Tensor) -> Conv:
    assert isinstance(operation, Conv)
    return Conv(weight, None, operation.stride, operation.padding, operation.dilation, operation.groups)

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from baselines.oracles import dense
from smoothcert.baselines.operations import (
    Affine,
    Conv,
    Input,
    Linear,
    MaxPool,
    Relu,
    Reshape,
    Scale,
    Sorting,
    Sum,
    average_pool,
    batch_norm,
    unit_vectors,
)

Shape = tuple[int, ...]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def convolutions() -> dict[str, tuple[Affine, Shape]]:
    """Kernel sizes, strides, paddings, dilations and groups, among them such that leave pixels at the edge unused."""
    found = {}
    settings = itertools.product([(1, 1), (3, 3), (2, 3)], [(1, 1), (2, 2), (3, 1)], [(0, 0), (1, 2)], [(1, 1), (2, 1)])
    for number, (size, stride, padding, dilation) in enumerate(settings):
        for groups in (1, 2):
            weight = drawn(4, 4 // groups, *size, seed=number)
            name = f"kernel {size}, stride {stride}, padding {padding}, dilation {dilation}, groups {groups}"
            found[name] = Conv(weight, drawn(4), stride, padding, dilation, groups), (4, 5, 6)
    return found


AFFINE: dict[str, tuple[Affine, Shape]] = {
    "linear": (Linear(drawn(5, 3), drawn(5)), (3,)),
    "linear without bias": (Linear(drawn(2, 3), None), (3,)),
    "linear on the last dimension": (Linear(drawn(5, 3), drawn(5)), (4, 3)),
    "reshape": (Reshape((12,)), (3, 2, 2)),
    "scale each value": (Scale(drawn(3, 2, 2), drawn(3, 2, 2)), (3, 2, 2)),
    "scale each channel": (Scale(drawn(3, 1, 1), drawn(3, 1, 1)), (3, 2, 2)),
    "scale all alike": (Scale(torch.tensor(-0.3, dtype=torch.float64)), (4,)),
    "average": (average_pool(3, (2, 3), (1, 2), drawn(1)), (3, 4, 6)),
    **convolutions(),
}
every_affine = pytest.mark.parametrize("name", AFFINE)


def shape_after(operation: Affine, before: Shape) -> Shape:
    return tuple(operation(torch.zeros(1, *before, dtype=torch.float64)).shape[1:])


@every_affine
def test_linear_and_offset_are_the_two_parts_of_the_map(name):
    operation, before = AFFINE[name]
    matrix, offset = dense(operation, before)
    own, nothing = dense(operation.linear, before)
    np.testing.assert_allclose(own, matrix, atol=1e-14)
    assert not nothing.any()
    shift = operation.offset()
    after = shape_after(operation, before)
    expected = np.zeros(after) if shift is None else np.broadcast_to(shift.numpy(), after)
    np.testing.assert_allclose(offset, expected.flatten(), atol=1e-14)


@every_affine
def test_transpose_is_the_transposed_matrix_for_any_rows(name):
    operation, before = AFFINE[name]
    matrix, _ = dense(operation.linear, before)
    rows = drawn(7, *shape_after(operation, before), seed=3)
    found = operation.transpose(rows, before)
    assert found.shape == (7, *before)
    np.testing.assert_allclose(found.flatten(1).numpy(), rows.flatten(1).numpy() @ matrix, atol=1e-12)


@every_affine
def test_rows_are_those_of_the_matrix_in_any_order_and_repeated(name):
    operation, before = AFFINE[name]
    matrix, _ = dense(operation.linear, before)
    units = torch.randint(len(matrix), (9,), generator=torch.Generator().manual_seed(1))
    found = operation.rows(units, before, shape_after(operation, before), drawn(1))
    assert found.shape == (9, *before)
    np.testing.assert_allclose(found.flatten(1).numpy(), matrix[units.numpy()], atol=1e-14)


@every_affine
def test_squared_has_the_squares_of_the_entries_and_no_offset(name):
    operation, before = AFFINE[name]
    matrix, _ = dense(operation.linear, before)
    squares, nothing = dense(operation.squared(), before)
    np.testing.assert_allclose(squares, matrix**2, atol=1e-14)
    assert not nothing.any()
    ones = torch.ones(1, *before, dtype=torch.float64)
    norms = np.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(operation.squared()(ones).sqrt().flatten().numpy(), norms, atol=1e-12)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), groups=2),
        nn.Conv2d(4, 3, 3, padding=1, bias=False),
    ],
    ids=["grouped", "plain"],
)
def test_a_convolution_is_torchs(module):
    module = module.double()
    operation = Conv(module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups)
    x = drawn(2, 4, 7, 6)
    torch.testing.assert_close(operation(x), module(x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.BatchNorm2d, (3, 4, 5)), (nn.BatchNorm1d, (3,)), (nn.BatchNorm1d, (3, 7))]
)
def test_batch_norm_is_torchs_in_eval_mode(kind, shape, affine):
    module = kind(3, affine=affine, eps=0.1).double().eval()
    module.running_mean.copy_(drawn(3))
    module.running_var.copy_(drawn(3, seed=1).square() + 0.1)
    if affine:
        module.weight.data, module.bias.data = drawn(3, seed=2), drawn(3, seed=3)
    x = drawn(6, *shape, seed=4)
    torch.testing.assert_close(batch_norm(module, len(shape))(x), module(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "stride"), [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((4, 5), (1, 1))])
def test_average_pooling_is_torchs(size, stride):
    x = drawn(2, 3, 4, 5)
    expected = functional.avg_pool2d(x, size, stride)
    torch.testing.assert_close(average_pool(3, size, stride, x)(x), expected, rtol=0, atol=1e-14)


def test_what_is_not_affine_computes_as_torch_does():
    x, y = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4, seed=1)
    assert torch.equal(Input()(x), x)
    assert torch.equal(Sum()(x, y, x), x + y + x)
    assert torch.equal(Relu()(x), functional.relu(x))
    assert torch.equal(MaxPool((3, 2), (2, 1), (1, 0))(x), functional.max_pool2d(x, (3, 2), (2, 1), (1, 0)))
    assert torch.equal(Sorting(lambda values: values.sort(1).values)(x), x.sort(1).values)


def test_unit_vectors_have_their_one_where_they_were_told():
    found = unit_vectors(torch.tensor([5, 0, 5]), (2, 3), torch.zeros(1, dtype=torch.float64))
    assert found.dtype == torch.float64
    expected = [[[0, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 1]]]
    assert found.tolist() == expected


@pytest.mark.parametrize("how", ["value", "transpose", "rows", "squared", "offset"])
@pytest.mark.parametrize(
    "module",
    [nn.Linear(3, 4), nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(2)],
    ids=["linear", "convolution", "grouped", "batch norm"],
)
def test_gradients_reach_the_modules_own_parameters(module, how):
    module = module.double()
    before = (3,) if isinstance(module, nn.Linear) else (2, 4, 4)
    if isinstance(module, nn.Linear):
        operation: Affine = Linear(module.weight, module.bias)
    elif isinstance(module, nn.Conv2d):
        operation = Conv(module.weight, module.bias, padding=module.padding, groups=module.groups)
    else:
        operation = batch_norm(module, 3)
    after = shape_after(operation, before)
    results = {
        "value": lambda: operation(drawn(1, *before)),
        "transpose": lambda: operation.transpose(drawn(1, *after), before),
        "rows": lambda: operation.rows(torch.tensor([0, 1]), before, after, drawn(1)),
        "squared": lambda: operation.squared()(drawn(1, *before)),
        "offset": operation.offset,
    }
    results[how]().sum().backward()
    wanted = module.bias if how == "offset" else module.weight
    assert wanted.grad is not None
    assert wanted.grad.abs().sum() > 0

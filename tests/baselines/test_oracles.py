"""The exhaustive search itself, held against grids of points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from baselines.claims import tiny_case
from baselines.oracles import FAMILIES, Residual, dense, nearest, nearest_other, random_network, steps, windows

IN_THE_PLANE = ["one layer", "two layers", "residual", "residual, then ReLU"]


def planar(family: str, count: int) -> list[nn.Module]:
    found = [random_network(family, seed) for seed in range(12 * count)]
    return [model for model, shape in found if shape == (2,)][:count]


@pytest.mark.parametrize("family", IN_THE_PLANE)
def test_in_the_plane_no_point_of_a_grid_with_another_class_is_nearer_and_some_are_nearly_as_near(family):
    angles = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)[:-1]
    shares = torch.linspace(0.004, 1, 250, dtype=torch.float64)
    compared = 0
    for number, model in enumerate(planar(family, 6)):
        x = torch.from_numpy(np.random.default_rng(number).uniform(-1, 1, 2))
        label = int(model(x[None]).argmax())
        found = nearest_other(model, x.numpy(), (2,), label)
        reach = 1.25 * found.distance if math.isfinite(found.distance) else 4.0
        lengths = (shares * reach)[:, None]
        points = x + torch.stack([lengths * angles.cos(), lengths * angles.sin()], 2)
        changed = (model(points.flatten(0, 1)).argmax(1) != label).view(len(shares), -1).any(1)
        first = reach * float(shares[changed][0]) if changed.any() else math.inf
        assert first >= found.distance * (1 - 1e-9)
        assert first <= found.distance * 1.02  # the grid's step, and wedges between its directions
        compared += math.isfinite(found.distance)
    assert compared >= 4


@pytest.mark.parametrize("family", FAMILIES)
def test_at_the_point_found_another_class_is_level_and_it_lies_at_the_distance_stated(family):
    for seed in range(4):
        model, shape = random_network(family, seed)
        x = np.random.default_rng([seed, 1]).uniform(-1, 1, math.prod(shape))
        scores = model(torch.from_numpy(x).view(1, *shape))[0]
        label = int(scores.argmax())
        found = nearest_other(model, x, shape, label)
        if found.point is not None:
            assert np.linalg.norm(found.point - x) == pytest.approx(found.distance, rel=1e-12)
            there = model(torch.from_numpy(found.point).view(1, *shape))[0]
            rival = max(float(score) for k, score in enumerate(there) if k != label)
            assert rival - float(there[label]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_random_point_with_another_class_is_nearer(family):
    generator = torch.Generator().manual_seed(0)
    for seed in range(4):
        case = tiny_case(family, seed)
        for x, label, radius in zip(case.inputs, case.labels, case.radii.clamp_max(4.0), strict=True):
            directions = torch.randn(20_000, x.numel(), dtype=torch.float64, generator=generator)
            points = x.flatten() + radius * (1 - 1e-9) * directions / directions.norm(dim=1, keepdim=True)
            answers = case.model(points.view(-1, *x.shape)).argmax(1)
            assert (answers == label).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_point_of_a_polytope_is_the_one_a_general_solver_finds(seed):
    numbers = np.random.default_rng(seed)
    size, count = int(numbers.integers(2, 5)), int(numbers.integers(1, 7))
    x, inside = numbers.normal(size=(2, size))
    rows = numbers.normal(size=(count, size))
    constants = numbers.uniform(0, 0.5, count) - rows @ inside  # so that there is a point
    found = nearest(x, rows, constants)
    assert found is not None
    assert np.min(rows @ found + constants) > -1e-9
    conditions = {"type": "ineq", "fun": lambda y: rows @ y + constants, "jac": lambda _: rows}
    other = minimize(
        lambda y: np.sum((y - x) ** 2), inside, jac=lambda y: 2 * (y - x), constraints=conditions, tol=1e-14
    )
    assert np.linalg.norm(found - x) == pytest.approx(np.sqrt(other.fun), rel=1e-5, abs=1e-6)


def test_an_empty_polytope_has_no_nearest_point():
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert nearest(np.zeros(2), rows, np.array([-1.0, 0.5])) is None
    assert nearest(np.zeros(2), np.zeros((1, 2)), np.array([-1.0])) is None
    assert nearest(np.zeros(2), rows, np.array([-1.0, 1.5])) is not None


def test_a_radius_that_can_be_told_by_hand():
    # Scores |x| and 1: the answer changes where |x| = 1.
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        model[2].bias.copy_(torch.tensor([0.0, 1.0]))
    model.requires_grad_(False)
    assert nearest_other(model, np.array([0.3]), (1,), 1).distance == pytest.approx(0.7)
    assert nearest_other(model, np.array([-3.0]), (1,), 0).distance == pytest.approx(2.0)
    assert nearest_other(model, np.array([-9.0]), (1,), 0).distance == math.inf  # beyond its reach


def test_the_steps_of_a_model_compute_what_it_computes():
    for family in FAMILIES:
        model, shape = random_network(family, 5)
        x = np.random.default_rng(0).normal(size=math.prod(shape))
        program, after = steps(model, shape)
        stack = [x]
        for kind, *details in program:
            value = stack.pop()
            if kind == "affine":
                stack.append(details[0] @ value + details[1])
            elif kind == "relu":
                stack.append(np.maximum(value, 0))
            elif kind == "max":
                stack.append(np.array([max(value[i] for i in window) for window in details[0]]))
            elif kind == "copy":
                stack += [value, value]
            else:
                other = stack.pop()
                stack += [value, other] if kind == "swap" else [value + other]
        expected = model(torch.from_numpy(x).view(1, *shape))[0]
        np.testing.assert_allclose(stack, [expected.numpy()], atol=1e-10)
        assert after == tuple(expected.shape)


def test_windows_are_those_of_torch():
    pool = nn.MaxPool2d((2, 3), (2, 1), (1, 1))
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    found = [max(float(x.flatten()[i]) for i in window) for window in windows(pool, (2, 5, 4))]
    assert found == pool(x).flatten().tolist()


def test_the_dense_matrix_is_that_of_the_layer():
    layer = nn.Linear(3, 2).double()
    matrix, offset = dense(layer, (3,))
    np.testing.assert_allclose(matrix, layer.weight.detach().numpy(), atol=1e-15)
    np.testing.assert_allclose(offset, layer.bias.detach().numpy(), atol=1e-15)
    matrix, _ = dense(Residual(nn.Flatten(), nn.Flatten()), (2, 2))
    np.testing.assert_array_equal(matrix, 2 * np.eye(4))

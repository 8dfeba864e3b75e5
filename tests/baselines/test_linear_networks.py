"""On linear networks the true radius is known: the smallest over the other classes of margin / ‖w_c − w_j‖."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from baselines.claims import METHODS
from baselines.oracles import Residual, dense
from smoothcert.models.layers import AvgPooled, Normalize
from smoothcert.training.loop import seeded

Shape = tuple[int, ...]


def batch_norm(kind: type[nn.BatchNorm1d] | type[nn.BatchNorm2d], features: int) -> nn.Module:
    module = kind(features)
    for values, low, high in ((module.running_mean, -1, 1), (module.running_var, 0.2, 2), (module.weight, -2, 2)):
        nn.init.uniform_(values, low, high)
    nn.init.uniform_(module.bias, -1, 1)
    return module


def blocks() -> nn.Module:
    """A residual sum of linear branches between affine layers."""
    inner = Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1)), nn.Identity())
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), inner, nn.Flatten(), nn.Linear(32, 4))


CHAINS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 3)), (5,)),
    "two classes": (lambda: nn.Sequential(nn.Linear(5, 2)), (5,)),
    "ten classes, no bias": (lambda: nn.Sequential(nn.Linear(20, 10, bias=False)), (20,)),
    "three linear": (lambda: nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 4), nn.Linear(4, 3)), (5,)),
    "normalised": (
        lambda: nn.Sequential(Normalize([0.3, 0.5], [0.2, 0.4]), nn.Flatten(), nn.Linear(18, 5)),
        (2, 3, 3),
    ),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(48, 4)), (2, 4, 4)),
    "strided, in groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.Flatten(), nn.Linear(36, 4)),
        (2, 5, 5),
    ),
    "dilated": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2, dilation=2), nn.Flatten(), nn.Linear(18, 3)), (1, 5, 5)),
    "average": (lambda: nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)), (2, 4, 4)),
    "average of three": (lambda: nn.Sequential(nn.AvgPool2d(3, 1), nn.Flatten(), nn.Linear(8, 3)), (2, 4, 4)),
    "pooled": (lambda: AvgPooled(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), (1, 4, 4)),
    "global average": (
        lambda: nn.Sequential(nn.Conv2d(1, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)),
        (1, 4, 4),
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), batch_norm(nn.BatchNorm2d, 3), nn.Flatten(), nn.Linear(27, 3)),
        (1, 4, 4),
    ),
    "batch norm at the end": (lambda: nn.Sequential(nn.Linear(4, 3), batch_norm(nn.BatchNorm1d, 3)), (4,)),
    "convolution to the scores": (lambda: nn.Sequential(nn.Conv2d(2, 3, 4), nn.Flatten()), (2, 4, 4)),
    "average to the scores": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.AvgPool2d(2), nn.Flatten()), (1, 4, 4)),
}
SUMS = {
    "residual sum": (blocks, (1, 4, 4)),
    "sum with the input": (
        lambda: nn.Sequential(Residual(nn.Linear(4, 4), nn.Identity()), nn.Linear(4, 3)),
        (4,),
    ),
    "sum at the end": (lambda: Residual(nn.Linear(4, 3), nn.Linear(4, 3)), (4,)),
    "sum of sums": (
        lambda: nn.Sequential(
            Residual(Residual(nn.Linear(4, 4), nn.Identity()), nn.Linear(4, 4)), nn.Linear(4, 3, bias=False)
        ),
        (4,),
    ),
}


def model_and_inputs(name: str) -> tuple[nn.Module, torch.Tensor]:
    factory, shape = {**CHAINS, **SUMS}[name]
    model = seeded(factory, seed=3).double().eval().requires_grad_(False)
    return model, torch.rand(8, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def exact_radii(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    matrix, offset = dense(copy.deepcopy(model), tuple(x.shape[1:]))
    radii = []
    for row in x.flatten(1).numpy():
        scores = matrix @ row + offset
        c = int(scores.argmax())
        others = [j for j in range(len(scores)) if j != c]
        radii.append(min((scores[c] - scores[j]) / np.linalg.norm(matrix[c] - matrix[j]) for j in others))
    return np.array(radii)


@pytest.mark.parametrize("name", CHAINS)
def test_lipschitz_radii_of_chains_are_exact(name):
    model, x = model_and_inputs(name)
    labels, radii = METHODS["lipschitz"](model, x)
    exact = exact_radii(model, x)
    assert torch.equal(labels, model(x).argmax(1))
    np.testing.assert_allclose(radii.numpy(), exact, rtol=1e-8)
    assert (radii.numpy() <= exact).all()


@pytest.mark.parametrize("name", SUMS)
def test_lipschitz_radii_of_sums_are_never_above_the_true_ones(name):
    model, x = model_and_inputs(name)
    _, radii = METHODS["lipschitz"](model, x)
    exact = exact_radii(model, x)
    assert (radii.numpy() <= exact).all()
    assert (radii.numpy() >= 0.1 * exact).all()


@pytest.mark.parametrize("method", ["same", "adaptive", "both"])
@pytest.mark.parametrize("name", [*CHAINS, *SUMS])
def test_relaxed_radii_are_exact_up_to_the_tolerance_of_the_search(name, method):
    model, x = model_and_inputs(name)
    labels, radii = METHODS[method](model, x)
    exact = exact_radii(model, x)
    assert torch.equal(labels, model(x).argmax(1))
    np.testing.assert_allclose(radii.numpy(), exact, rtol=2e-3)
    assert (radii.numpy() <= exact).all()


@pytest.mark.parametrize("method", METHODS)
def test_relu_that_never_bends_changes_nothing(method):
    """With biases that keep every unit on, a ReLU network is linear where it matters."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), seed=2).double()
    model[0].weight.data = torch.linalg.qr(model[0].weight.data).Q * 2  # so that its norm is exact in all directions
    model[0].bias.data += 1000
    x = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    linear = nn.Sequential(model[0], model[2]).requires_grad_(False)
    exact = exact_radii(linear, x)
    _, radii = METHODS[method](model, x)
    np.testing.assert_allclose(radii.numpy(), exact, rtol=2e-3)
    assert (radii.numpy() <= exact).all()


@pytest.mark.parametrize("method", METHODS)
def test_where_two_classes_are_level_nothing_is_certified(method):
    model = nn.Sequential(nn.Linear(3, 3)).double().requires_grad_(False)
    model[0].weight.copy_(torch.eye(3, dtype=torch.float64))
    model[0].bias.zero_()
    x = torch.tensor([[0.5, 0.5, 0.1], [0.9, 0.1, 0.1], [0.2, 0.2, 0.2]], dtype=torch.float64)
    _, radii = METHODS[method](model, x)
    assert radii[[0, 2]].tolist() == [0.0, 0.0]
    assert radii[1] == pytest.approx(0.8 / 2**0.5, rel=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_of_inputs_that_are_no_numbers_nothing_is_certified(method):
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), seed=0)
    model.double().requires_grad_(False)
    model[0].weight[:, 1] = -model[0].weight[:, 1].abs()  # infinity switches all units off, and scores are finite
    x = torch.tensor([[0.5, math.nan, 0.1], [0.5, math.inf, 0.1], [0.5, 0.1, 0.1]], dtype=torch.float64)
    assert model(x)[1].isfinite().all()
    _, radii = METHODS[method](model, x)
    assert radii[:2].tolist() == [0.0, 0.0]
    assert 0 < radii[2] < math.inf

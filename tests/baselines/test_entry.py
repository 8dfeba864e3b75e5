from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

from baselines.oracles import Residual
from smoothcert.baselines.entry import _gap, find_entry
from smoothcert.baselines.network import Network, read_network
from smoothcert.baselines.operations import Linear
from smoothcert.models.layers import Normalize
from smoothcert.training.loop import seeded

WIDE = {
    "linear": ([nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)], (12,)),
    "flattened": ([nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)], (3, 2, 2)),
    "normalised": (
        [Normalize([0.1, 0.2, 0.3], [0.5, 2.0, 1.0]), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)],
        (3, 2, 2),
    ),
    "dependent rows": ([nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)], (12,)),
}
OTHERS = {
    "as many units as inputs": ([nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3)], (5,)),
    "convolution": ([nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(4, 3)], (1, 3, 3)),
    "ReLU first": ([nn.ReLU(), nn.Linear(9, 3)], (9,)),
    "a shortcut from the input": ([Residual(nn.Linear(9, 3), nn.Linear(9, 3)), nn.ReLU(), nn.Linear(3, 2)], (9,)),
}


def network_of(layers: list[nn.Module], shape: tuple[int, ...], *, dependent: bool = False) -> Network:
    model = seeded(lambda: nn.Sequential(*layers), seed=0).double().requires_grad_(False)
    if dependent:
        model[0].weight[1] = 3 * model[0].weight[0]
        model[0].weight[2] = 0
    return read_network(model, shape)


@pytest.mark.parametrize("name", WIDE)
def test_norms_are_those_of_the_jacobian_and_never_below(name):
    network = network_of(*WIDE[name], dependent=name == "dependent rows")
    entry = find_entry(network)
    assert entry is not None
    assert isinstance(network.nodes[entry.place].operation, Linear)
    x = torch.zeros(1, *network.nodes[0].shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda point: network.values(point)[entry.place], x).view(5, 12)
    rows = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = (rows @ jacobian).norm(dim=2)
    assert (entry.norms(rows) >= expected * (1 - 1e-14)).all()
    torch.testing.assert_close(entry.norms(rows), expected, rtol=1e-10, atol=1e-10)
    kept = torch.tensor([0, 3])
    torch.testing.assert_close(entry.only(kept).norms(rows[..., kept]), (rows[..., kept] @ jacobian[kept]).norm(dim=2))


@pytest.mark.parametrize("name", OTHERS)
def test_only_a_wide_first_layer_is_an_entry(name):
    assert find_entry(network_of(*OTHERS[name])) is None


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-6, 0.1])
def test_the_gap_bounds_what_a_wrong_root_misses(size):
    """Whatever the factorisation returns, norms are never too small."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(6, 20, dtype=torch.float64, generator=generator)
    root = torch.linalg.qr(matrix.T, mode="r").R.T
    root = root - size * torch.rand(6, 6, dtype=torch.float64, generator=generator) * root.sign()
    gap = _gap(matrix, root)
    assert gap >= torch.linalg.matrix_norm(matrix @ matrix.T - root @ root.T, 2)
    rows = torch.randn(500, 6, dtype=torch.float64, generator=generator)
    reached = ((rows @ root).square().sum(1) + gap * rows.square().sum(1)).sqrt()
    assert (reached >= (rows @ matrix).norm(dim=1)).all()


def exact_squares(rows: torch.Tensor, matrix: torch.Tensor) -> list[Fraction]:
    """‖c·W‖² for each row c, in rational arithmetic."""
    weights = [[Fraction(value) for value in row] for row in matrix.tolist()]
    found = []
    for row in rows.tolist():
        coefficients = [Fraction(value) for value in row]
        columns = [sum(c * w[at] for c, w in zip(coefficients, weights, strict=True)) for at in range(len(weights[0]))]
        found.append(sum(value * value for value in columns))
    return found


def test_norms_of_rows_that_nearly_cancel_are_not_below_the_exact_ones():
    generator = torch.Generator().manual_seed(3)
    missed = 0
    for size in (1e-4, 1e-8, 1e-12, 1e-15):
        network = network_of([nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)], (12,))
        weight = network.nodes[1].operation.weight
        weight[1] = weight[0] + size * torch.randn(12, dtype=torch.float64, generator=generator)
        weight[3] = size * weight[2]
        entry = find_entry(network)
        rows = torch.randn(40, 5, dtype=torch.float64, generator=generator)
        rows[:, 2:] *= size
        rows[:, 1] = -rows[:, 0]
        rows[20:, 3] = 1.0
        exact = exact_squares(rows, weight)
        for one, square in zip(rows, exact, strict=True):
            allowed = Fraction(float(entry.norms(one[None, None]))) * (1 + Fraction(1, 2**45))
            assert allowed**2 >= square
            without = Fraction(float(replace(entry, gap=0.0).norms(one[None, None]))) * (1 + Fraction(1, 2**45))
            missed += without**2 < square
    assert missed > 10  # the gap is what makes it a bound


def test_products_of_weights_that_underflow_are_covered():
    matrix = torch.full((3, 9), 1e-170, dtype=torch.float64)
    assert not (matrix @ matrix.T).any()
    assert Fraction(_gap(matrix, torch.zeros(3, 3, dtype=torch.float64))) >= 27 * Fraction(1e-170) ** 2

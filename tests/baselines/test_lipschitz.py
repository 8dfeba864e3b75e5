from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from baselines.claims import METHODS, judged
from baselines.oracles import FAMILIES, Residual, dense, random_network, steep_case
from smoothcert.baselines.lipschitz import Deviations, lipschitz_constant, lipschitz_radii, margin_slopes
from smoothcert.baselines.network import Network, Node, read_network
from smoothcert.baselines.operations import Input, Linear, Operation, Sorting
from smoothcert.baselines.spectral import norm_estimate
from smoothcert.errors import ModelError
from smoothcert.models.layers import Normalize
from smoothcert.training.loop import seeded

Shape = tuple[int, ...]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def read(model: nn.Module, shape: Shape) -> Network:
    return read_network(model.double().eval().requires_grad_(False), shape)


def with_statistics(module: nn.BatchNorm2d) -> nn.BatchNorm2d:
    module.running_var.copy_(torch.linspace(0.3, 2, module.num_features))
    module.weight.data = torch.linspace(-2, 3, module.num_features)
    return module


# ---- no value changes faster than said ----------------------------------------------------------------------------

MORE: dict[str, tuple[nn.Module, Shape]] = {
    "normalised": (
        seeded(
            lambda: nn.Sequential(
                Normalize([0.1, 0.2], [0.2, 0.7]),
                nn.Conv2d(2, 4, 3, padding=1, groups=2, bias=False),
                with_statistics(nn.BatchNorm2d(4)),
                nn.ReLU(),
                nn.MaxPool2d(3, 1, 1),
                nn.Conv2d(4, 2, 2, dilation=2),
                nn.Flatten(),
                nn.Linear(8, 3),
            ),
            seed=1,
        ),
        (2, 4, 4),
    ),
    "scaled, flattened, linear": (
        seeded(
            lambda: nn.Sequential(
                Normalize([0.1, 0.2], [0.2, 0.7]), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2)
            ),
            seed=2,
        ),
        (2, 2, 2),
    ),
    "residual on the input": (
        seeded(lambda: nn.Sequential(Residual(nn.Linear(3, 3), nn.Identity()), nn.ReLU(), nn.Linear(3, 2)), seed=3),
        (3,),
    ),
    "ReLU first": (seeded(lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), seed=4), (3,)),
    "max-pool first": (
        seeded(lambda: nn.Sequential(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(4, 2)), seed=4),
        (1, 3, 3),
    ),
}
NETWORKS = {
    **{family: partial(random_network, family, 2) for family in FAMILIES},
    **{name: partial(lambda pair: pair, pair) for name, pair in MORE.items()},
}


def differences(network: Network, shape: Shape, count: int = 3000) -> tuple[list[Tensor], Tensor]:
    """How far the values of all nodes are apart at pairs of inputs, near ones and far ones; and their distances."""
    x = drawn(count, *shape, seed=1)
    steps = drawn(count, *shape, seed=2) * torch.logspace(-4, 1, count, dtype=torch.float64).view(-1, *[1] * len(shape))
    ends = network.values(x + steps)
    return [(b - a).flatten(1) for a, b in zip(network.values(x), ends, strict=True)], steps.flatten(1).norm(dim=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_nodes_values_change_faster_than_its_constant(name):
    model, shape = NETWORKS[name]()
    network = read(model, shape)
    apart, distances = differences(network, shape)
    for place, changes in enumerate(apart):
        measured = (changes.norm(dim=1) / distances).max()
        assert measured <= lipschitz_constant(network, place) * (1 + 1e-9), place


@pytest.mark.parametrize("name", NETWORKS)
def test_no_margin_changes_faster_than_its_slope(name):
    model, shape = NETWORKS[name]()
    network = read(model, shape)
    apart, distances = differences(network, shape)
    slopes = margin_slopes(network)
    changes = (apart[-1][:, :, None] - apart[-1][:, None]).abs() / distances[:, None, None]
    assert (changes.amax(0) <= slopes * (1 + 1e-9)).all()
    torch.testing.assert_close(slopes, slopes.T)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_single_value_changes_faster_than_its_unit_slope(name):
    model, shape = NETWORKS[name]()
    network = read(model, shape)
    apart, distances = differences(network, shape)
    for place, changes in list(enumerate(apart))[1:]:
        slopes = Deviations(network).slopes[place]
        assert slopes.shape == network.nodes[place].shape
        measured = (changes.abs() / distances[:, None]).amax(0)
        assert (measured <= slopes.flatten() * (1 + 1e-9)).all(), place


def test_each_value_of_the_input_changes_as_fast_as_the_input():
    network = read(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), (3,))
    assert Deviations(network).slopes[0].tolist() == [1.0, 1.0, 1.0]


# ---- and some change as fast --------------------------------------------------------------------------------------


def test_the_slopes_of_a_linear_network_are_the_distances_of_its_rows():
    network = read(seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 4)), seed=0), (1, 3, 3))
    matrix, _ = dense(network, (1, 3, 3))
    expected = np.linalg.norm(matrix[:, None] - matrix[None], axis=2)
    np.testing.assert_allclose(margin_slopes(network).numpy() * (1 - np.eye(4)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(6, 9), (6,)),
        (lambda: nn.Conv2d(2, 3, 2, stride=2), (2, 4, 4)),
        (lambda: nn.Conv2d(2, 3, 1), (2, 3, 3)),
    ],
    ids=["linear", "patches", "1×1"],
)
def test_the_radius_is_exact_where_a_network_is_as_steep_as_its_layers_allow(layer, shape):
    case = steep_case("", seeded(layer, seed=1), shape)
    wrong, shares = judged(METHODS["lipschitz"], case)
    assert wrong == []
    assert float(shares) >= 1 - 1e-7


@pytest.mark.parametrize("side", [3, 6])
def test_with_padding_it_is_not_above_the_true_radius_and_not_far_below(side):
    case = steep_case("", seeded(lambda: nn.Conv2d(2, 3, 3, padding=1), seed=1), (2, side, side))
    wrong, shares = judged(METHODS["lipschitz"], case)
    assert wrong == []
    assert float(shares) >= 0.7


# ---- layers taken together ----------------------------------------------------------------------------------------

MERGED: dict[str, tuple[nn.Module, Shape]] = {
    "convolution and batch norm": (
        seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 2, 2), with_statistics(nn.BatchNorm2d(3))), seed=0),
        (2, 4, 4),
    ),
    "normalisation and convolution": (
        seeded(lambda: nn.Sequential(Normalize([0.0] * 4, [0.1, 0.5, 1, 2]), nn.Conv2d(4, 4, 2, 2, groups=2)), seed=1),
        (4, 4, 4),
    ),
    "normalisation, flatten and linear": (
        seeded(lambda: nn.Sequential(Normalize([0.0] * 2, [0.1, 2]), nn.Flatten(), nn.Linear(8, 5)), seed=2),
        (2, 2, 2),
    ),
    "linear and batch norm": (seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), seed=3), (4,)),
    "three": (
        seeded(
            lambda: nn.Sequential(
                Normalize([0.0] * 2, [0.1, 2]), nn.Conv2d(2, 3, 2, 2), with_statistics(nn.BatchNorm2d(3))
            ),
            seed=4,
        ),
        (2, 4, 4),
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_scaling_is_taken_into_its_neighbour_so_that_the_norm_is_that_of_both(name):
    layers, shape = MERGED[name]
    if isinstance(layers[-1], nn.BatchNorm1d):
        layers[-1].running_var.copy_(torch.linspace(0.1, 3, 5))
    network = read(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()), shape)
    place = len(layers)
    exact = float(np.linalg.svd(dense(layers, shape)[0], compute_uv=False)[0])
    assert exact <= float(lipschitz_constant(network, place)) <= exact * (1 + 1e-8)


def test_a_scaling_that_two_branches_use_is_not_taken_into_one_of_them():
    block = Residual(nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU()), nn.Identity())
    model = nn.Sequential(Normalize([0.0] * 2, [0.1, 2]), block, nn.Flatten(), nn.Linear(8, 2))
    network = read(seeded(lambda: model, seed=0), (2, 2, 2))
    apart, distances = differences(network, (2, 2, 2))
    for place, changes in enumerate(apart):
        assert (changes.norm(dim=1) / distances).max() <= lipschitz_constant(network, place) * (1 + 1e-9)


# ---- radii --------------------------------------------------------------------------------------------------------


def test_a_radius_is_the_smallest_of_margin_over_slope():
    network = read(seeded(lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)), seed=5), (3,))
    x = drawn(5, 3)
    labels, radii = lipschitz_radii(network, x)
    slopes, scores = margin_slopes(network), network(x)
    for row, label, radius in zip(scores, labels, radii, strict=True):
        expected = min(float((row[label] - row[k]) / slopes[label, k]) for k in range(4) if k != label)
        assert float(radius) == pytest.approx(expected, rel=1e-8)
        assert float(radius) < expected


def test_a_network_that_ends_otherwise_than_in_a_linear_layer_keeps_its_float64():
    """Slopes in float32 would be rounded by more than the radii are."""
    ends: dict[str, nn.Module] = {
        "flatten": nn.Sequential(nn.Linear(4, 3), nn.Flatten()),
        "ReLU": nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        "sum": nn.Sequential(Residual(nn.Linear(4, 3), nn.Linear(4, 3))),
        "batch norm": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    }
    for name, model in ends.items():
        assert margin_slopes(read(model, (4,))).dtype == torch.float64, name


def test_a_network_of_float32_parameters_works_too():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)), seed=5)
    network = read_network(model, (3,))
    x = drawn(5, 3).float()
    _, radii = lipschitz_radii(network, x)
    _, exact = lipschitz_radii(read(model, (3,)), x.double())
    torch.testing.assert_close(radii.double(), exact, rtol=1e-4, atol=1e-6)


def test_a_rival_that_can_never_catch_up_does_not_count():
    model = nn.Sequential(nn.Linear(2, 3)).double()
    model[0].weight.data = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    model[0].bias.data = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    _, radii = lipschitz_radii(read(model, (2,)), torch.zeros(1, 2, dtype=torch.float64))
    assert float(radii) == pytest.approx(0.5, rel=1e-8)


# ---- other operations ---------------------------------------------------------------------------------------------


def chain(*operations: Operation, sizes: tuple[int, ...]) -> Network:
    nodes = [Node(Input(), (), (sizes[0],))]
    nodes += [Node(one, (i,), (size,)) for i, (one, size) in enumerate(zip(operations, sizes[1:], strict=True))]
    return Network(tuple(nodes))


def test_sorting_brings_no_two_inputs_further_apart():
    sort = Sorting(lambda x: x.sort(1).values)
    network = chain(Linear(drawn(4, 3), None), sort, Linear(drawn(2, 4), None), sizes=(3, 4, 4, 2))
    assert lipschitz_constant(network, 2) == lipschitz_constant(network, 1)
    apart, distances = differences(network, (3,))
    assert (apart[2].norm(dim=1) / distances).max() <= lipschitz_constant(network, 2)
    labels, radii = lipschitz_radii(network, drawn(4, 3))
    assert torch.equal(labels, network(drawn(4, 3)).argmax(1))
    assert (radii > 0).all()


def test_an_operation_without_a_constant_is_refused():
    class Cube(Operation):
        def __call__(self, *values: Tensor) -> Tensor:
            return values[0] ** 3

    with pytest.raises(ModelError, match="Cube"):
        lipschitz_constant(chain(Cube(), sizes=(2, 2)), 1)


# ---- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["one layer", "residual", "batch norm and average", "max-pool, then ReLU"])
def test_gradients_of_slopes_with_converged_estimates_agree_with_finite_differences(family):
    model, shape = random_network(family, 4)
    weight = next(p for p in model.parameters() if p.ndim > 1)
    norm = partial(norm_estimate, steps=500)

    def total() -> Tensor:
        return margin_slopes(read_network(model, shape), norm).sum()

    weight.requires_grad_()
    (slope,) = torch.autograd.grad(total(), weight)
    direction, step = drawn(*weight.shape, seed=8), 1e-6
    ends = []
    with torch.no_grad():
        for sign in (1, -1):
            weight.add_(sign * step * direction)
            ends.append(float(total()))
            weight.sub_(sign * step * direction)
    assert float((slope * direction).sum()) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)
    assert math.isfinite(float(slope.sum()))


def test_estimated_slopes_are_not_above_the_proved_ones():
    for family in FAMILIES:
        model, shape = random_network(family, 6)
        network = read(model, shape)
        estimated = margin_slopes(network, partial(norm_estimate, steps=3))
        assert (estimated <= margin_slopes(network) * (1 + 1e-9)).all()

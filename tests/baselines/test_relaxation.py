from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from baselines.claims import escapes, undercuts
from baselines.oracles import FAMILIES, Residual, random_network
from smoothcert.baselines import relaxation
from smoothcert.baselines.entry import find_entry
from smoothcert.baselines.lipschitz import Deviations
from smoothcert.baselines.network import Network, Node, read_network
from smoothcert.baselines.operations import Input, MaxPool, Relu, Sorting
from smoothcert.baselines.relaxation import (
    Interval,
    Relaxation,
    bends,
    contenders,
    margin_rows,
    pool_bounds,
    relu_lines,
    start,
)
from smoothcert.errors import ModelError
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded

SLOPES = ("same", "adaptive")
Shape = tuple[int, ...]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def larger() -> tuple[nn.Module, Shape]:
    """A network of everything: convolutions, max-pooling that overlaps, a residual block, average pooling."""
    block = Residual(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 1)), nn.Identity())
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1), block, nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4)), (1, 4, 4)


def shortcut_from_the_input() -> tuple[nn.Module, Shape]:
    block = Residual(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), nn.Identity())
    return nn.Sequential(block, nn.ReLU(), nn.Linear(3, 3)), (3,)


def pooled_twice() -> tuple[nn.Module, Shape]:
    layers = nn.MaxPool2d(2, 1, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers), (1, 3, 3)


NETWORKS = {
    **{family: lambda family=family: random_network(family, 1) for family in FAMILIES},
    "larger": lambda: seeded_pair(larger),
    "shortcut from the input": lambda: seeded_pair(shortcut_from_the_input),
    "ReLU first": lambda: seeded_pair(lambda: (nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), (3,))),
    "ReLU twice": lambda: seeded_pair(lambda: (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.ReLU()), (3,))),
    "pooled twice": lambda: seeded_pair(pooled_twice),
    "linear": lambda: seeded_pair(lambda: (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), (3,))),
}
every_network = pytest.mark.parametrize("name", NETWORKS)
both_slopes = pytest.mark.parametrize("slopes", SLOPES)


def seeded_pair(make) -> tuple[nn.Module, Shape]:
    shapes: list[Shape] = []

    def factory() -> nn.Module:
        model, shape = make()
        shapes.append(shape)
        return model

    return seeded(factory, seed=0).double().eval().requires_grad_(False), shapes[0]


def setting(name: str, batch: int = 4) -> tuple[Network, Tensor, Tensor]:
    """A network, inputs, and radii from small to so large that everything is unstable."""
    model, shape = NETWORKS[name]()
    return read_network(model, shape), drawn(batch, *shape, seed=5), torch.logspace(-1.5, 0.5, batch).double()


def slopes_of(network: Network) -> dict[int, Tensor]:
    places = {node.inputs[0] for node in network.nodes if isinstance(node.operation, Relu | MaxPool)}
    found = Deviations(network).slopes
    return {place: found[place] for place in places}


def with_what_is_known(network: Network, x: Tensor, eps: Tensor, slopes, how: str) -> Relaxation:
    known = Relaxation(network, x, 1.5 * eps, slopes).intervals if "known" in how else None
    fast = slopes_of(network) if "slopes" in how else None
    entry = find_entry(network) if "entry" in how else None
    return Relaxation(network, x, eps, slopes, known=known, unit_slopes=fast, entry=entry)


# ---- intervals and lower bounds hold ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nothing", "known", "slopes", "known and slopes", "entry", "known, slopes, entry"])
@both_slopes
@every_network
def test_at_no_point_of_the_ball_a_value_is_outside_its_interval(name, slopes, how):
    network, x, eps = setting(name)
    relaxed = with_what_is_known(network, x, eps, slopes, how)
    wanted = {node.inputs[0] for node in network.nodes if isinstance(node.operation, Relu | MaxPool)}
    assert set(relaxed.intervals) == wanted
    assert list(escapes(relaxed, network, x, eps)) == []


@both_slopes
@every_network
def test_no_point_of_the_ball_is_below_the_bound_of_a_linear_function(name, slopes):
    network, x, eps = setting(name)
    classes = network.nodes[-1].shape[0]
    rows = torch.cat([drawn(4, 3, classes, seed=3), torch.eye(classes, dtype=torch.float64).expand(4, -1, -1)], 1)
    for how in ("nothing", "known and slopes", "known, slopes, entry"):
        relaxed = with_what_is_known(network, x, eps, slopes, how)
        assert list(undercuts(relaxed, network, x, eps, rows)) == []


@both_slopes
@every_network
def test_within_a_ball_of_no_extent_bounds_are_values(name, slopes):
    network, x, _ = setting(name)
    nothing = torch.zeros(len(x), dtype=torch.float64)
    relaxed, values = Relaxation(network, x, nothing, slopes), network.values(x)
    for place, (low, high) in relaxed.intervals.items():
        torch.testing.assert_close(low, values[place], rtol=0, atol=1e-12)
        torch.testing.assert_close(high, values[place], rtol=0, atol=1e-12)
    rows = drawn(4, 3, network.nodes[-1].shape[0])
    expected = torch.einsum("bsk,bk->bs", rows, values[-1])
    torch.testing.assert_close(relaxed.lower(rows), expected, rtol=0, atol=1e-11)


@both_slopes
@every_network
def test_what_is_known_changes_bounds_only_for_the_better(name, slopes):
    """What decides already is not computed anew, so that intervals may be wider, but not where it matters."""
    network, x, eps = setting(name)
    rows = margin_rows(network(x).argmax(1), network.nodes[-1].shape[0], x)
    plain = Relaxation(network, x, eps, slopes)
    informed = with_what_is_known(network, x, eps, slopes, "known and slopes")
    first = next(
        (place for place, node in enumerate(network.nodes) if isinstance(node.operation, Relu | MaxPool)), None
    )
    if first is not None:  # nothing bends before it, so that its bounds are exact either way
        source = network.nodes[first].inputs[0]
        torch.testing.assert_close(informed.intervals[source], plain.intervals[source])
    if slopes == "same" and not any(isinstance(node.operation, MaxPool) for node in network.nodes):
        assert (informed.lower(rows) >= plain.lower(rows) - 1e-9).all()


@both_slopes
def test_bounds_known_to_decide_everything_make_the_network_linear(slopes):
    model = seeded(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), seed=0
    )
    network = read_network(model.double().requires_grad_(False), (3,))
    x, eps = drawn(1, 3), torch.tensor([1e-3], dtype=torch.float64)
    relaxed = Relaxation(network, x, eps, slopes)
    assert all(((low > 0) | (high < 0)).all() for low, high in relaxed.intervals.values())
    rows = margin_rows(network(x).argmax(1), 2, x)
    slope = torch.autograd.functional.jacobian(lambda point: (network(point) * rows[:, 0]).sum(), x)
    exact = (network(x) * rows[:, 0]).sum() - eps * slope.norm()
    torch.testing.assert_close(relaxed.lower(rows)[0], exact)


@both_slopes
@every_network
def test_a_batch_gets_the_bounds_that_its_inputs_get_alone(name, slopes):
    network, x, eps = setting(name)
    rows = drawn(4, 2, network.nodes[-1].shape[0])
    for how in ("nothing", "known and slopes"):
        together = with_what_is_known(network, x, eps, slopes, how)
        for i in range(len(x)):
            one = slice(i, i + 1)
            alone = with_what_is_known(network, x[one], eps[one], slopes, how)
            torch.testing.assert_close(together.lower(rows)[one], alone.lower(rows[one]), rtol=1e-9, atol=1e-9)


@both_slopes
def test_working_in_small_parts_gives_the_same(monkeypatch, slopes):
    network, x, eps = setting("larger")
    rows = drawn(4, 2, 4)
    whole = Relaxation(network, x, eps, slopes)
    monkeypatch.setattr(relaxation, "_MOST_VALUES", 500)
    parts = Relaxation(network, x, eps, slopes)
    for place, interval in whole.intervals.items():
        torch.testing.assert_close(parts.intervals[place], interval, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.lower(rows), whole.lower(rows), rtol=1e-12, atol=1e-12)


def test_norms_that_depend_on_the_weights_alone_are_kept_and_used():
    network, x, eps = setting("two layers")
    norms: dict[int, Tensor] = {}
    first = Relaxation(network, x, eps, "same", norms=norms)
    assert set(norms) == {1}
    torch.testing.assert_close(norms[1], network.nodes[1].operation.weight.norm(dim=1))
    norms[1] = 2 * norms[1]
    wider = Relaxation(network, x, eps, "same", norms=norms)
    width = wider.intervals[1][1] - wider.intervals[1][0]
    torch.testing.assert_close(width, 2 * (first.intervals[1][1] - first.intervals[1][0]))


# ---- against an independent computation ---------------------------------------------------------------------------


def by_hand(model: nn.Sequential, x: np.ndarray, eps: float, slopes: str, row: np.ndarray) -> float:
    """The lower bound of row·scores of a fully connected network, written with dense matrices and loops."""
    layers = [(part.weight.numpy(), part.bias.numpy()) for part in model if isinstance(part, nn.Linear)]
    lines: list[list[tuple[float, float, float]]] = []

    def lower(start: np.ndarray, depth: int) -> float:
        coefficients, constant = start.copy(), 0.0
        for level in range(depth, -1, -1):
            weight, bias = layers[level]
            constant += float(coefficients @ bias)
            coefficients = coefficients @ weight
            if level > 0:
                for i, (below, above, shift) in enumerate(lines[level - 1]):
                    constant += min(coefficients[i], 0) * shift
                    coefficients[i] *= below if coefficients[i] > 0 else above
        return float(coefficients @ x) + constant - eps * float(np.linalg.norm(coefficients))

    for level in range(len(layers) - 1):
        found = []
        for unit in np.eye(len(layers[level][0])):
            low, high = lower(unit, level), -lower(-unit, level)
            if low < 0 < high:
                chord = high / (high - low)
                below = chord if slopes == "same" else float(high >= -low)
                found.append((below, chord, -low * chord))
            else:
                found.append((float(low >= 0), float(low >= 0), 0.0))
        lines.append(found)
    return lower(row, len(layers) - 1)


@both_slopes
@pytest.mark.parametrize("seed", range(4))
def test_bounds_of_a_fully_connected_network_are_those_of_the_papers_formulas(seed, slopes):
    model, shape = random_network("two layers", seed)
    network, x = read_network(model, shape), drawn(3, *shape, seed=seed)
    eps = torch.tensor([0.05, 0.3, 1.0], dtype=torch.float64)
    rows = drawn(3, 2, network.nodes[-1].shape[0], seed=seed)
    found = Relaxation(network, x, eps, slopes).lower(rows)
    for i, j in itertools.product(range(3), range(2)):
        expected = by_hand(model, x[i].numpy(), float(eps[i]), slopes, rows[i, j].numpy())
        assert float(found[i, j]) == pytest.approx(expected, rel=1e-10, abs=1e-10)


# ---- lines around ReLU --------------------------------------------------------------------------------------------


@both_slopes
def test_lines_enclose_relu_between_the_bounds_and_touch_it(slopes):
    ends = [-3.0, -1.0, -0.2, 0.0, 0.2, 1.0, 3.0]
    low, high = torch.tensor([(a, b) for a in ends for b in ends if a <= b], dtype=torch.float64).T
    lines = relu_lines(low, high, slopes)
    z = low + torch.linspace(0, 1, 101, dtype=torch.float64)[:, None] * (high - low)
    z = torch.cat([z, torch.zeros_like(low).clamp(low, high)[None]])
    above, below = lines.upper * z + lines.intercept - z.relu(), z.relu() - lines.lower * z
    assert above.min() > -1e-12
    assert below.min() > -1e-12
    assert above.amin(0).abs().max() < 1e-12
    assert below.amin(0).abs().max() < 1e-12
    decided = (low >= 0) | (high <= 0)
    assert above[:, decided].abs().max() < 1e-12
    assert below[:, decided].abs().max() < 1e-12


def test_the_adaptive_slope_is_the_one_that_leaves_less_room():
    low, high = torch.tensor([-1.0, -2.0, -1.0]), torch.tensor([2.0, 1.0, 1.0])
    assert relu_lines(low, high, "adaptive").lower.tolist() == [1.0, 0.0, 1.0]
    same = relu_lines(low, high, "same")
    assert torch.equal(same.lower, same.upper)


# ---- units that are off -------------------------------------------------------------------------------------------


def wide_and_deep() -> Network:
    model = seeded(lambda: nn.Sequential(*mlp(9, 8, 8, 8)[1:]), seed=3)
    return read_network(model.double().requires_grad_(False), (9,))


@both_slopes
@pytest.mark.parametrize("entered", [False, True])
def test_removing_units_that_are_off_changes_no_bound(monkeypatch, slopes, entered):
    network, x = wide_and_deep(), drawn(3, 9, seed=2)
    eps = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)
    rows = margin_rows(network(x).argmax(1), 10, x)
    for inputs in (slice(None), slice(0, 1)):  # off for all of a batch, or for one input
        found = []
        for removing in (True, False):
            with monkeypatch.context() as patch:
                if not removing:
                    patch.setattr(Relaxation, "_remove_inactive", lambda *_: None)
                entry = find_entry(network) if entered else None
                given = network, x[inputs], eps[inputs], slopes
                relaxed = Relaxation(*given, entry=entry, deviations=Deviations(network))
            found.append([relaxed.lower(rows[inputs]), *(one for pair in relaxed.intervals.values() for one in pair)])
            smaller = [len(node.shape) and node.shape[0] < 8 for node in relaxed._nodes[1:-1]]
            assert any(smaller) == removing
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_units_that_are_no_numbers_are_not_removed():
    network = wide_and_deep()
    relaxed = Relaxation(network, torch.full((1, 9), torch.nan).double(), torch.ones(1).double(), "same")
    assert [node.shape for node in relaxed._nodes] == [node.shape for node in network.nodes]
    assert relaxed.lower(torch.ones(1, 1, 10).double()).isnan().all()


# ---- max-pooling --------------------------------------------------------------------------------------------------

POOLS = [MaxPool((2, 2), (2, 2), (0, 0)), MaxPool((3, 2), (1, 2), (1, 1)), MaxPool((2, 2), (1, 1), (0, 1))]


def intervals(seed: int, *shape: int) -> Interval:
    low = drawn(*shape, seed=seed)
    return low, low + drawn(*shape, seed=seed + 50).abs() * (seed % 3)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_about_the_largest_of_a_window_holds_for_all_values_within_the_bounds(pool, seed):
    low, high = intervals(seed, 2, 3, 5, 4)
    pooled = pool_bounds(low, high, pool)
    for share in (*torch.rand(30, *low.shape, generator=torch.Generator().manual_seed(seed)).double(), 0.0, 1.0):
        values = low + share * (high - low)
        largest = pool(values).flatten(2)
        named = values.flatten(2).gather(2, pooled.at)
        assert (largest >= named).all()
        assert (largest == named)[pooled.sure].all()
        assert (largest <= pooled.most).all()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(6))
def test_contenders_are_the_pixels_that_may_be_the_largest_of_a_window_with_several_such(pool, seed):
    low, high = intervals(seed, 1, 2, 5, 4)
    found = contenders(low, high, pool)[0]
    expected = torch.zeros_like(found)
    for channel in range(2):
        numbers = torch.arange(1, 21, dtype=torch.float64).view(1, 1, 5, 4)
        padded = functional.pad(numbers, (pool.padding[1],) * 2 + (pool.padding[0],) * 2)
        windows = padded.unfold(2, pool.size[0], pool.stride[0]).unfold(3, pool.size[1], pool.stride[1])
        for window in windows.reshape(-1, pool.size[0] * pool.size[1]).long().tolist():
            inside = [(i - 1) for i in window if i > 0]
            best = max(float(low[0, channel].flatten()[i]) for i in inside)
            able = [i for i in inside if float(high[0, channel].flatten()[i]) >= best]
            if len(able) > 1:
                expected[channel].view(-1)[able] = True
    assert torch.equal(found, expected)


def test_where_it_is_sure_which_pixel_is_largest_pooling_loses_nothing():
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)).double().requires_grad_(False)
    network = read_network(model, (1, 4, 4))
    x = torch.arange(16, dtype=torch.float64).view(1, 1, 4, 4)
    rows = margin_rows(network(x).argmax(1), 2, x)
    row = (model[2].weight[0] - model[2].weight[1]).norm()
    eps = torch.tensor([0.4], dtype=torch.float64)  # pixels of a window are 1 apart or more
    margin = (network(x) * rows[:, 0]).sum()
    for slopes in SLOPES:
        torch.testing.assert_close(Relaxation(network, x, eps, slopes).lower(rows)[0, 0], margin - 0.4 * row)


# ---- parts --------------------------------------------------------------------------------------------------------


@every_network
def test_units_of_a_node_are_begun_as_functions_of_the_nodes_before(name):
    network, x, _ = setting(name, batch=2)
    values = network.values(x)
    for place in range(len(network.nodes)):
        units = torch.arange(values[place][0].numel())
        pending, constant = start(network.nodes, place, units, x)
        total = constant.expand(2, -1)
        for at, rows in pending.items():
            assert at <= place
            total = total + values[at].flatten(1) @ rows.flatten(1).T
        torch.testing.assert_close(total, values[place].flatten(1), rtol=1e-12, atol=1e-12)


def test_what_bends_is_told_from_what_does_not():
    network, _, _ = setting("larger")
    first = next(place for place, node in enumerate(network.nodes) if isinstance(node.operation, Relu))
    assert [bends(network.nodes, place) for place in range(first)] == [False] * first
    assert all(bends(network.nodes, place) for place in range(first, len(network.nodes)))


def test_margin_rows_compare_the_label_with_each_other_class_once():
    rows = margin_rows(torch.tensor([0, 2, 1]), 3, drawn(1))
    scores = torch.tensor([[5.0, 1.0, 2.0], [1.0, 2.0, 9.0], [0.0, 7.0, 3.0]], dtype=torch.float64)
    found = torch.einsum("bsk,bk->bs", rows, scores)
    assert found.tolist() == [[4.0, 3.0], [8.0, 7.0], [7.0, 4.0]]


def test_operations_without_lines_are_refused():
    nodes = Node(Input(), (), (2,)), Node(Sorting(lambda x: x.sort(1).values), (0,), (2,))
    with pytest.raises(ModelError, match="has a Sorting"):
        Relaxation(Network(nodes), drawn(1, 2), torch.ones(1), "same")


# ---- training -----------------------------------------------------------------------------------------------------


@both_slopes
@pytest.mark.parametrize("name", ["two layers", "residual, then ReLU", "max-pool, then ReLU", "larger"])
def test_gradients_of_bounds_agree_with_finite_differences(name, slopes):
    model, shape = NETWORKS[name]()
    x, eps = drawn(2, *shape, seed=5), torch.tensor([0.1, 0.4], dtype=torch.float64)

    def total() -> Tensor:
        network = read_network(model, shape)
        labels = network(x).argmax(1)
        return Relaxation(network, x, eps, slopes).lower(margin_rows(labels, network.nodes[-1].shape[0], x)).sum()

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(total_with(parameters, total), parameters)
    directions, step = [drawn(*p.shape, seed=i) for i, p in enumerate(parameters)], 1e-6
    ends = []
    for sign in (1, -1):
        moved(parameters, directions, sign * step)
        ends.append(float(total().detach()))
        moved(parameters, directions, -sign * step)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


def total_with(parameters: list[nn.Parameter], total) -> Tensor:
    for one in parameters:
        one.requires_grad_()
    return total()


@torch.no_grad()
def moved(parameters: list[nn.Parameter], directions: list[Tensor], step: float) -> None:
    for one, direction in zip(parameters, directions, strict=True):
        one.add_(step * direction)

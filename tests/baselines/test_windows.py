"""Bounds by windows against those of the whole layers, on networks of every kind of geometry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from smoothcert.baselines.lipschitz import Deviations
from smoothcert.baselines.network import read_network
from smoothcert.baselines.operations import Conv
from smoothcert.baselines.relaxation import Relaxation, margin_rows
from smoothcert.baselines.windows import TrainingRelaxation, Window, WindowRelaxation, largest
from smoothcert.models.layers import Normalize


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 1)

    def forward(self, x):
        return self.first(x) + self.second(x)


def head(features: int) -> list[nn.Module]:
    return [nn.ReLU(), nn.Flatten(), nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, 3)]


SHAPE = (2, 9, 12)
NETWORKS = {
    "two strides": [nn.Conv2d(2, 4, 4, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, (1, 2), (0, 1)), *head(5 * 2 * 3)],
    "three layers": [
        nn.Conv2d(2, 3, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(3, 3, (1, 3), 1, (1, 0)),
        nn.ReLU(),
        nn.Conv2d(3, 2, 3, 2),
        *head(2 * 5 * 4),
    ],
    "dilation": [nn.Conv2d(2, 3, (2, 3), 1, 2, dilation=(3, 1)), nn.ReLU(), nn.Conv2d(3, 3, 2, 2), *head(3 * 5 * 7)],
    "no ReLU between": [nn.Conv2d(2, 3, 3, 2, 1), nn.Conv2d(3, 4, 2, 1, 1), *head(4 * 6 * 7)],
    "no ReLU and no bias between": [
        nn.Conv2d(2, 3, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2, 1, 1, bias=False),
        nn.Conv2d(2, 4, 2, 2, 1),
        *head(4 * 6 * 7),
    ],
    "batch norm": [
        Normalize([0.2, 0.6], [0.5, 2.0]),
        nn.Conv2d(2, 3, 3, 1, 1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, 2, 1, bias=False),
        nn.BatchNorm2d(3),
        *head(3 * 5 * 6),
    ],
    "pixels that no window reaches": [nn.Conv2d(2, 3, 2, 3), nn.ReLU(), nn.Conv2d(3, 3, 2, 2), *head(3 * 1 * 2)],
}
ELSEWHERE = {
    "fully connected": [nn.Flatten(), nn.Linear(216, 8), *head(8)],
    "residual": [Residual(), *head(3 * 9 * 12)],
    "groups": [nn.Conv2d(2, 4, 3, groups=2), *head(4 * 7 * 10)],
    "max-pooling": [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), *head(2 * 2 * 4)],
    "windows as large as the image": [nn.Conv2d(2, 3, 7, 1, 3), nn.ReLU(), nn.Conv2d(3, 3, 7, 1, 3), *head(3 * 108)],
}


def made(layers: list[nn.Module]) -> nn.Module:
    model = nn.Sequential(*layers).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in model.state_dict().values():
            if one.is_floating_point() and one.ndim > 0:
                one.copy_(torch.rand(one.shape, generator=generator) - 0.5)
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_var += 1
            if isinstance(part, Normalize):
                part.std += 1
    return model


def inputs(radius: float = 1.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1)).double()
    return x, torch.tensor([0, 2, 1]), torch.tensor([0.0, 0.1 * radius, radius]).double()


def whole(network, x, eps):
    return Relaxation(network, x, eps, "same")


def again(network, x, eps):
    """Only what bends is computed a second time."""
    with torch.no_grad():
        known = TrainingRelaxation(network, x, eps).intervals
    return TrainingRelaxation(network, x, eps, known)


@pytest.mark.parametrize("kind", [TrainingRelaxation, again])
@pytest.mark.parametrize("name", [*NETWORKS, *ELSEWHERE])
def test_bounds_and_gradients_are_those_of_the_whole_layers(name, kind):
    model, (x, y, eps) = made({**NETWORKS, **ELSEWHERE}[name]), inputs()
    found = []
    for make in (whole, kind):
        relaxed = make(read_network(model, SHAPE), x, eps)
        margins = relaxed.lower(margin_rows(y, 3, x))
        gradients = torch.autograd.grad(margins.sin().sum(), [*model.parameters()])
        found.append([*(one for pair in relaxed.intervals.values() for one in pair), margins, *gradients])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    shares = [((low < 0) & (high > 0)).double().mean().item() for low, high in relaxed.intervals.values()]
    assert all(0 < share < 1 for share in shares), "bounds of units of one kind alone would prove little"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("slopes", ["same", "adaptive"])
@pytest.mark.parametrize("name", [*NETWORKS, *ELSEWHERE])
@torch.no_grad()
def test_certified_bounds_are_those_of_the_whole_layers(name, slopes, known):
    model, (x, y, eps) = made({**NETWORKS, **ELSEWHERE}[name]), inputs(0.5)
    network = replace(read_network(model, SHAPE), dtype=torch.float32)  # so that rounding errors are not tiny
    deviations = Deviations(network)
    unit_slopes = dict(enumerate(deviations.slopes))
    found = []
    for kind in (Relaxation, WindowRelaxation):
        options = {"deviations": deviations, "unit_slopes": unit_slopes if known else None}
        relaxed = kind(network, x, eps, slopes, **options)
        without = kind(network, x, eps, slopes, unit_slopes=options["unit_slopes"])
        margins = relaxed.lower(margin_rows(y, 3, x))
        assert (margins < without.lower(margin_rows(y, 3, x)) - 1e-8).all(), "rounding is not charged"
        found.append([*(one for pair in relaxed.intervals.values() for one in pair), margins])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


FEW_BEND = {"two strides": 0.1, "three layers": 0.3, "no ReLU between": 0.3}  # elsewhere at a radius of 0.5


@pytest.mark.parametrize("name", NETWORKS)
def test_only_units_that_bend_are_computed_a_second_time(name, monkeypatch):
    model, (x, y, eps) = made(NETWORKS[name]), inputs(FEW_BEND.get(name, 0.5))
    asked, real = [], TrainingRelaxation._of_units
    expected = whole(read_network(model, SHAPE), x, eps)
    known = {place: tuple(one.detach() for one in pair) for place, pair in expected.intervals.items()}
    monkeypatch.setattr(
        TrainingRelaxation,
        "_of_units",
        lambda self, place, units: asked.append((place, units.shape[1])) or real(self, place, units),
    )
    found = TrainingRelaxation(read_network(model, SHAPE), x, eps, known)
    bent = {place: ((low < 0) & (high > 0)).flatten(1).sum(1).max() for place, (low, high) in known.items()}
    sizes = {place: pair[0][0].numel() for place, pair in known.items()}
    assert all(count == (bent[place] if 2 * bent[place] <= sizes[place] else sizes[place]) for place, count in asked)
    assert any(0 < count < sizes[place] for place, count in asked)
    slopes = [
        torch.autograd.grad(one.lower(margin_rows(y, 3, x)).sum(), [*model.parameters()]) for one in (expected, found)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [*NETWORKS, *ELSEWHERE])
def test_windows_are_used_where_they_help_and_there_only(name, monkeypatch):
    used = []
    real = TrainingRelaxation._along
    monkeypatch.setattr(
        TrainingRelaxation, "_along", lambda self, place, units: used.append(place) or real(self, place, units)
    )
    network, (x, _, eps) = read_network(made({**NETWORKS, **ELSEWHERE}[name]), SHAPE), inputs()
    relaxed = TrainingRelaxation(network, x, eps)
    images = [place for place in relaxed.intervals if len(network.nodes[place].shape) == 3]
    if name in NETWORKS:
        assert used == images
    elif name == "windows as large as the image":
        assert used == images[:1]
    elif name == "max-pooling":
        assert used == images[:2]
    else:
        assert used == []


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("before", [(0, 0), (2, 1)])
def test_a_window_holds_the_pixels_that_it_says_and_zeros_outside(before, stride):
    image = torch.arange(1, 2 * 5 * 7 + 1).view(1, 2, 5, 7).double()
    found = Window((3, 2), stride, before).of(image, (3, 4)).view(3, 4, 2, 3, 2)
    for i, j, channel, down, across in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        row, column = i * stride[0] - before[0] + down, j * stride[1] - before[1] + across
        inside = 0 <= row < 5 and 0 <= column < 7
        assert found[i, j, channel, down, across] == (image[0, channel, row, column] if inside else 0)


def test_a_window_grows_through_a_convolution_by_all_that_it_touches():
    weight = torch.ones(1, 1, 3, 4)
    first = Window().through(Conv(weight, None, stride=(1, 2), padding=(1, 0)))
    assert first == Window((3, 4), (1, 2), (1, 0))
    second = first.through(Conv(weight, None, stride=(2, 1), padding=(0, 3), dilation=(2, 1)))
    assert second == Window((2 * 2 + 2 * 2 + 1, 3 + 3 + 1), (2, 2), (2, 3))


def test_the_largest_number_of_coefficients_is_told_from_the_shapes():
    windows = read_network(made(NETWORKS["two strides"]), SHAPE)  # 4 × 4 × 6 and 5 × 2 × 3 values
    assert largest(windows) == max(4 * 4 * 6 * 2 * 4 * 4, 5 * 2 * 3 * max(4 * 3 * 3, 2 * 8 * 8), 7 * 216)
    whole = read_network(made(ELSEWHERE["residual"]), SHAPE)
    assert largest(whole) == (3 * 108) * (3 * 108)

"""Estimates of the time that bounds take, with a clock that the work itself moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smoothcert.baselines import cost, methods
from smoothcert.baselines.network import Network, read_network
from smoothcert.baselines.windows import WindowRelaxation

PER_UNIT = 0.25  # seconds on the clock of these tests

NETWORKS: dict[str, tuple[list[nn.Module], tuple[int, ...], int]] = {
    # The last number: units whose bounds need a backward pass. Those of the first layer are affine in the input.
    "small": ([nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)], (4,), 7),
    "wide": ([nn.Linear(4, 900), nn.ReLU(), nn.Linear(900, 700), nn.ReLU(), nn.Linear(700, 3)], (4,), 700),
    "convolutions": (
        [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 9), nn.ReLU()],
        (1, 16, 16),
        576 + 9,
    ),
    "one hidden layer": ([nn.Linear(4, 900), nn.ReLU(), nn.Linear(900, 3)], (4,), 0),
}


class Clock:
    """A clock that moves by `PER_UNIT` for each unit that is bounded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.units = 50.0, 0
        real = WindowRelaxation._of_units

        def counted(relaxation, place, units):
            self.now += PER_UNIT * units.numel()
            self.units += units.numel()
            return real(relaxation, place, units)

        monkeypatch.setattr(WindowRelaxation, "_of_units", counted)

    def __call__(self) -> float:
        return self.now


def network_of(name: str) -> tuple[Network, int]:
    layers, shape, units = NETWORKS[name]
    return read_network(nn.Sequential(*layers).requires_grad_(False), shape), units


@pytest.mark.parametrize("slopes", ["same", "adaptive"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_is_estimated_from_at_most_256_units_of_each_layer(monkeypatch, name, slopes):
    network, units = network_of(name)
    clock = Clock(monkeypatch)
    assert cost.seconds_per_pass(network, slopes, clock) == pytest.approx(units * PER_UNIT)
    assert clock.units <= min(units, 2 * 256)


def test_an_input_takes_the_passes_of_its_search(monkeypatch):
    network, units = network_of("wide")
    clock = Clock(monkeypatch)
    per_pass = units * PER_UNIT
    assert cost.seconds_per_input(network, ("same",), clock) == pytest.approx(8 * per_pass)
    assert cost.seconds_per_input(network, ("adaptive", "same"), clock) == pytest.approx(10 * per_pass)


def test_a_search_makes_about_as_many_passes_as_are_estimated(monkeypatch):
    """Else the factor would be out of date."""
    layers, shape, _ = NETWORKS["small"]
    torch.manual_seed(0)
    model = nn.Sequential(*layers).requires_grad_(False)
    passes = 0
    real = WindowRelaxation.__init__

    def counted(self, *given, **options):
        nonlocal passes
        passes += 1
        real(self, *given, **options)

    monkeypatch.setattr(WindowRelaxation, "__init__", counted)
    x = torch.rand(20, *shape)
    for method, kind in (("dual", "same"), ("crown", "adaptive")):
        passes = 0
        certifier = methods.make_certifier(method, model, shape)
        for one in x.split(1):
            certifier(one)
        assert cost._PASSES[kind] / 3 < passes / len(x) < cost._PASSES[kind] * 3


def test_methods_that_are_fast_are_not_estimated(monkeypatch):
    monkeypatch.setattr(methods, "seconds_per_input", lambda *_: 7.0)
    model = nn.Sequential(*NETWORKS["small"][0])
    found = {method: methods.rough_seconds(method, model, (4,)) for method in methods.METHODS}
    assert found == {"lipschitz": 0.0, "dual": 7.0, "crown": 7.0, "auto-lirpa": 0.0}

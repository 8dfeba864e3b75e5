"""No attack succeeds within a certified radius: 10,000 gradient ascents from random points, and DeepFool."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from baselines.claims import METHODS, fooled
from baselines.oracles import Residual
from smoothcert.attacks.deepfool import deepfool
from smoothcert.data.digits import load_digits
from smoothcert.training.loop import seeded

TRIES = 10_000  # of each method, over all networks
INPUTS = 5


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def residual() -> nn.Module:
    block = Residual(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Identity())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), block, nn.ReLU(), nn.Linear(16, 10))


def convolutional() -> nn.Module:
    first = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU()
    second = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 10))


def untrained() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, 4))


NETWORKS = {"perceptron": perceptron, "residual": residual, "convolutional": convolutional, "untrained": untrained}


@cache
def network(name: str) -> tuple[nn.Module, Tensor]:
    """A small network, trained on digits except for one, in float64; and inputs."""
    data, _ = load_digits()
    images = torch.from_numpy(data.inputs[:600]).float() / 255
    model = seeded(NETWORKS[name], seed=0)
    if name != "untrained":
        train(model, images, torch.from_numpy(data.labels[:600]))
    return model.eval().double().requires_grad_(False), images[:INPUTS].double()


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_attack_succeeds_within_a_certified_radius(name, method):
    model, x = network(name)
    labels, radii = METHODS[method](model, x)
    assert (radii > 0).all()
    starts = TRIES // (len(NETWORKS) * INPUTS)
    assert fooled(model, x, labels, radii, starts=starts, steps=6) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_deepfool_finds_nothing_nearer_than_any_certified_radius(name):
    model, x = network(name)
    copy = seeded(NETWORKS[name], seed=0)
    copy.load_state_dict(model.state_dict())
    for method in METHODS.values():
        labels, radii = method(model, x)
        norms = deepfool(copy.eval(), x.float(), labels).norms
        assert norms.isfinite().any()
        assert (norms > radii * (1 - 1e-5)).all()  # the attack is in float32


def test_the_attacks_do_succeed_a_little_further_out():
    """Else their failing would say nothing: at a few times the radius of the better bounds they get through."""
    for name in NETWORKS:
        model, x = network(name)
        labels, radii = METHODS["both"](model, x)
        assert fooled(model, x, labels, 4 * radii, starts=20, steps=6) > 20

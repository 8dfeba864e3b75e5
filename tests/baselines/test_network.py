from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from baselines.oracles import FAMILIES, Residual, random_network
from smoothcert.baselines.network import Network, read_network
from smoothcert.baselines.operations import Affine, Conv, Linear, MaxPool, Relu, Sum
from smoothcert.errors import ModelError
from smoothcert.models.architectures import ARCHITECTURES, build, mlp, resnet18
from smoothcert.models.layers import AvgPooled, Normalize
from smoothcert.training.loop import seeded

SMALL = {"resnet18": (3, 32, 32), "resnet50": (3, 32, 32), "wong-resnet": (3, 8, 8), "mlp-7": (1, 4, 4)}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norm as after a training: neither means of 0 nor variances of 1."""
    generator = torch.Generator().manual_seed(5)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            part.running_mean.copy_(0.3 * torch.randn(part.num_features, generator=generator))
            part.running_var.copy_(torch.rand(part.num_features, generator=generator) + 0.5)
            nn.init.uniform_(part.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(part.bias, 0.0, 0.2, generator=generator)
    return model


def kinds(network: Network) -> list[str]:
    return [type(node.operation).__name__ for node in network.nodes]


# ---- networks that can be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in ("resnet44", "resnet56", "resnet110")])
def test_every_architecture_is_read_as_it_computes(name):
    shape = SMALL.get(name, ARCHITECTURES[name].input_shape if ARCHITECTURES[name].input_shape[0] == 1 else (3, 16, 16))
    model = with_statistics(seeded(lambda: build(name, classes=5, input_shape=shape), seed=1)).double()
    network = read_network(model, shape)
    x = drawn(3, *shape, seed=2, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network(x), model.eval()(x), rtol=1e-6, atol=1e-6)
    assert network.nodes[0].shape == shape
    assert network.nodes[-1].shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet44", "resnet56", "resnet110"])
def test_deep_architectures_are_read_as_they_compute(name):
    test_every_architecture_is_read_as_it_computes(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_networks_are_read_as_they_compute_in_float64(family):
    model, shape = random_network(family, 3)
    x = drawn(5, *shape, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(read_network(model, shape)(x), model(x), rtol=1e-12, atol=1e-12)


class Functions(nn.Module):
    """The same operations as functions and methods, in several spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        y = functional.relu(y, inplace=False) + functional.max_pool2d(y, 3, stride=1, padding=1)
        y = functional.avg_pool2d(y, (2, 1))
        y = functional.max_pool2d(y, kernel_size=2, stride=1)
        y = functional.adaptive_avg_pool2d(y, 1).relu()
        y += y
        return self.fc(torch.flatten(y, 1))


class Means(nn.Module):
    """Global averages in their three spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        first = y.mean((2, 3)) + torch.mean(y.relu(), dim=(-1, -2))
        return self.fc(first + y.mean(dim=[-2, -1], keepdim=True).flatten(1))


READ: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "functions": (Functions(), (1, 6, 6)),
    "means": (Means(), (1, 6, 6)),
    "normalised and pooled": (
        AvgPooled(nn.Sequential(Normalize([0.4] * 3, [0.2, 0.3, 0.4]), mlp(12, 5, classes=4))),
        (3, 4, 4),
    ),
    "dropout and identity": (
        nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 6), nn.Identity(), nn.ReLU(), nn.Linear(6, 2)),
        (4,),
    ),
    "batch norm of vectors": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)), (4,)),
    "batch norm without parameters": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False)), (4,)),
    "convolution to the scores": (nn.Sequential(nn.Conv2d(2, 3, 4), nn.Flatten()), (2, 4, 4)),
    "residual on the input": (
        nn.Sequential(Residual(nn.Linear(3, 3), nn.Identity()), nn.ReLU(), nn.Linear(3, 2)),
        (3,),
    ),
    "the same layer twice": (nn.Sequential(*[nn.Linear(4, 4), nn.ReLU()] * 2), (4,)),
    "dilation and groups": (
        nn.Sequential(nn.Conv2d(4, 4, 2, dilation=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        (4, 5, 5),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_other_networks_are_read_as_they_compute(name):
    model, shape = READ[name]
    model = with_statistics_if_any(copy.deepcopy(model))
    network = read_network(model, shape)
    x = drawn(6, *shape, seed=7)
    with torch.no_grad():
        torch.testing.assert_close(network(x), model.eval()(x), rtol=1e-4, atol=1e-5)


def with_statistics_if_any(model: nn.Module) -> nn.Module:
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_(generator=torch.Generator().manual_seed(1))
            part.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(2))
    return model


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Flatten(), nn.ReLU()], ids=lambda layer: type(layer).__name__)
def test_a_model_that_is_a_single_layer_is_read(layer):
    x = drawn(2, 4)
    torch.testing.assert_close(read_network(layer, (4,))(x), layer(x))


def test_values_are_those_of_all_nodes_in_order():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), seed=0)
    network = read_network(model, (1, 2, 2))
    assert kinds(network) == ["Input", "Reshape", "Linear", "Relu", "Linear"]
    x = drawn(2, 1, 2, 2)
    values = network.values(x)
    assert [tuple(value.shape[1:]) for value in values] == [node.shape for node in network.nodes]
    expected = x
    for part, value in zip(model, values[1:], strict=True):
        expected = part(expected)
        torch.testing.assert_close(value, expected)


def test_a_residual_network_shares_what_both_branches_start_from():
    network = read_network(seeded(lambda: resnet18(4, 1), seed=0), (1, 32, 32))
    sums = [node for node in network.nodes if isinstance(node.operation, Sum)]
    assert len(sums) == 8
    assert all(len(node.inputs) == 2 for node in sums)
    assert sum(isinstance(node.operation, Conv) and node.operation.groups == 1 for node in network.nodes) == 20
    assert sum(isinstance(node.operation, Relu) for node in network.nodes) == 17
    assert sum(isinstance(node.operation, MaxPool) for node in network.nodes) == 1


def test_it_holds_the_models_own_parameters_and_follows_them():
    model = seeded(lambda: mlp(4, 5, classes=3), seed=0)
    network = read_network(model, (4,))
    layers = [node.operation for node in network.nodes if isinstance(node.operation, Linear)]
    assert layers[0].weight is model[1].weight
    assert layers[1].bias is model[3].bias
    with torch.no_grad():
        model[3].weight.mul_(-2)
    x = drawn(3, 4)
    torch.testing.assert_close(network(x), model(x))
    network(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_model_stays_as_it_is():
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2)),
        seed=0,
    )
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    read_network(model, (1, 4, 4))
    assert [part.training for part in model] == [True, False, True, True, True]
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_model_in_training_mode_is_read_as_it_is_in_eval_mode():
    model = Forward(lambda self, x: self.fc(x) + self.fc(x) if self.training else self.fc(x)).train()
    x = drawn(2, 4)
    torch.testing.assert_close(read_network(model, (4,))(x), model.fc(x))
    assert model.training


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    read_network(mlp_of(0), (4,))
    before = torch.get_rng_state()
    read_network(nn.Sequential(nn.Dropout(0.5), mlp_of(0)).train(), (4,))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(state, before)


def mlp_of(seed: int) -> nn.Module:
    return seeded(lambda: mlp(4, 5, classes=3), seed=seed)


# ---- networks that cannot -----------------------------------------------------------------------------------------


class Forward(nn.Module):
    """A linear layer `fc` and what is done with it."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.fc, self.other, self.single = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.register_buffer("factor", torch.ones(4))
        self.function = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def unused(self: Forward, x: torch.Tensor) -> torch.Tensor:
    y = self.fc(x)
    self.other(y)
    return y


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


VECTORS = {
    "leaky": (nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU()), "'1', LeakyReLU"),
    "softmax": (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), "'1', Softmax"),
    "inside a block": (nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), "'0.1', Tanh"),
    "layer norm": (nn.Sequential(nn.LayerNorm(4)), "'0', LayerNorm"),
    "batch norm of the batch": (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "running statistics"),
    "function": (Forward(lambda self, x: torch.sigmoid(self.fc(x))), "'sigmoid'"),
    "method": (Forward(lambda self, x: self.fc(x).tanh()), "'tanh'"),
    "product": (Forward(lambda self, x: self.fc(x) * self.other(x)), "'mul'"),
    "buffer": (Forward(lambda self, x: self.fc(x) + self.factor), "'factor'"),
    "sum with a fraction": (Forward(lambda self, x: self.fc(x) + 0.5), "A sum with a number"),
    "sum with a whole number": (Forward(lambda self, x: self.fc(x) + 1), "A sum with a number"),
    "sum with a larger number": (Forward(lambda self, x: self.fc(x) + 100), "A sum with a number"),
    "sum of shapes": (Forward(lambda self, x: self.fc(x) + self.single(x)), "A sum of different shapes"),
    "weighted sum": (Forward(lambda self, x: torch.add(self.fc(x), x, alpha=2)), "alpha"),
    "control flow": (Forward(lambda self, x: self.fc(x) if x.sum() > 0 else x), "could not be followed"),
    "an output before the last": (Forward(unused), "not what was computed last"),
    "two outputs": (Forward(lambda self, x: (self.fc(x), x)), "not what was computed last"),
}
IMAGES = {
    "reflected": (images(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")), "reflect"),
    "padding by a word": (images(nn.Conv2d(1, 1, 3, padding="same")), "same"),
    "transposed": (images(nn.ConvTranspose2d(1, 1, 3)), "'0', ConvTranspose2d"),
    "maxima rounded up": (images(nn.MaxPool2d(3, ceil_mode=True)), "ceil_mode"),
    "maxima with gaps": (images(nn.MaxPool2d(2, dilation=2)), "dilation"),
    "averages with padding": (images(nn.AvgPool2d(2, padding=1)), "padding"),
    "averages rounded up": (images(nn.AvgPool2d(3, ceil_mode=True)), "ceil_mode"),
    "averages by another number": (images(nn.AvgPool2d(2, divisor_override=3)), "divisor"),
    "averages of parts": (images(nn.AdaptiveAvgPool2d(2)), "Adaptive pooling"),
    "flattened in part": (nn.Sequential(nn.Flatten(2), nn.Flatten()), "Flattening"),
    "images as scores": (nn.Sequential(nn.Conv2d(1, 1, 3)), r"Expected scores \[B, K\]"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_what_is_not_supported_is_named(name):
    model, named = VECTORS[name]
    with pytest.raises(ModelError, match=named):
        read_network(model, (4,))


@pytest.mark.parametrize("name", IMAGES)
def test_what_is_not_supported_of_images_is_named(name):
    model, named = IMAGES[name]
    with pytest.raises(ModelError, match=named):
        read_network(model, (1, 7, 7))


def test_a_mean_over_one_dimension_is_refused():
    class OneMean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(2).flatten(1)

    with pytest.raises(ModelError, match="mean"):
        read_network(OneMean(), (2, 4, 4))


def test_what_is_no_module_is_refused():
    with pytest.raises(ModelError, match="torch module; got function"):
        read_network(mlp_of, (4,))


def test_a_module_that_computes_otherwise_than_its_layers_say_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda _, __, result: result + 1)
    with pytest.raises(ModelError, match="scores differ"):
        read_network(model, (4,))


def test_refusing_leaves_the_modes_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Sigmoid())
    model[1].eval()
    with pytest.raises(ModelError):
        read_network(model, (4,))
    assert [part.training for part in model] == [True, False, True]


def test_every_operation_of_a_read_network_is_one_that_bounds_know():
    network = read_network(READ["functions"][0], (1, 6, 6))
    assert all(isinstance(node.operation, Affine | Relu | MaxPool | Sum) for node in network.nodes[1:])

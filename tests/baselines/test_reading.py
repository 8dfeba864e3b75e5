"""A network is bounded only as the module computes it: what tracing does not show is found out, or refused."""

from __future__ import annotations

import copy
from types import MethodType

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from smoothcert.baselines.methods import make_certifier
from smoothcert.baselines.network import read_network
from smoothcert.baselines.reading import Reading
from smoothcert.errors import InputError, ModelError
from smoothcert.models.layers import Normalize
from smoothcert.training.loop import seeded

METHODS = ("lipschitz", "dual", "crown")

# ---- operations in place -------------------------------------------------------------------------------------------


class Reused(nn.Module):
    """Scores (0.1, r − y) of y = x₁ − 0.3, where r is meant to be relu(y).

    On the inputs that a network is tried on when it is read, y is not negative, so that it makes no difference there
    whether y itself is overwritten. At (0.5, 0) it is: r − y is 0.3 if y is kept, and 0 if it is overwritten by r.
    """

    def __init__(self, change) -> None:
        super().__init__()
        self.fc, self.new, self.old = nn.Linear(2, 1), nn.Linear(1, 2), nn.Linear(1, 2, bias=False)
        self.relu, self.same, self.dropout = nn.ReLU(inplace=True), nn.Identity(), nn.Dropout(inplace=True)
        self.change = change
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[0.0, 1.0]]))
            self.fc.bias.fill_(-0.3)
            self.new.weight.copy_(torch.tensor([[0.0], [1.0]]))
            self.new.bias.copy_(torch.tensor([0.1, 0.0]))
            self.old.weight.copy_(torch.tensor([[0.0], [-1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        r, y = self.change(self, y)
        return self.new(r) + self.old(y)


def of_a_view(self: Reused, y: Tensor) -> tuple[Tensor, Tensor]:
    return y.flatten(1).relu_(), y


def of_what_a_view_shows(self: Reused, y: Tensor) -> tuple[Tensor, Tensor]:
    view = torch.flatten(y, 1)
    return y.relu_(), view


def sum_in_place(self: Reused, y: Tensor) -> tuple[Tensor, Tensor]:
    """fx records a sum in place as another value, as if r were still the old one."""
    r = y
    y += functional.relu(self.same(y))
    return r, y


OVERWRITTEN = {
    "module": lambda self, y: (self.relu(y), y),
    "function": lambda _, y: (functional.relu(y, inplace=True), y),
    "function by position": lambda _, y: (functional.relu(y, True), y),
    "torch.relu_": lambda _, y: (torch.relu_(y), y),
    "functional.relu_": lambda _, y: (functional.relu_(y), y),
    "method": lambda _, y: (y.relu_(), y),
    "of a view": of_a_view,
    "of what a view shows": of_what_a_view_shows,
    "under another name": lambda self, y: (self.relu(self.same(y)), y),
    "behind dropout": lambda self, y: (self.relu(self.dropout(y)), y),
    "sum": sum_in_place,
    "method of a sum": lambda _, y: (y.add_(functional.relu(y)), y),
}
POINT = torch.tensor([[0.5, 0.0]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_value_that_is_overwritten_in_place_and_used_again_is_refused(name, method):
    with pytest.raises(ModelError, match=r"overwritten in place before '\w+' uses it again"):
        make_certifier(method, Reused(OVERWRITTEN[name]), (2,))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_network_that_keeps_the_value_is_certified(method):
    model = Reused(lambda _, y: (functional.relu(y), y))
    [label], [radius] = make_certifier(method, model, (2,))(POINT)
    assert int(label) == int(model(POINT).argmax()) == 1
    assert 0.05 < float(radius) <= 0.2
    assert int(Reused(OVERWRITTEN["module"])(POINT).argmax()) == 0


class Block(nn.Module):
    """A residual block as torchvision writes them: in place wherever it is safe."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.norm, self.relu = nn.BatchNorm2d(2), nn.ReLU(inplace=inplace)
        self.drop, self.inplace = nn.Dropout(0.5, inplace=inplace), inplace

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.relu(self.norm(self.first(x))))
        y = self.second(y)
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.relu(y)


def residual(inplace: bool) -> nn.Module:
    relu = nn.ReLU(inplace=inplace)
    layers = relu, nn.Conv2d(1, 2, 3), relu, Block(inplace), Block(inplace), nn.Flatten(), nn.Linear(18, 3)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("method", METHODS)
def test_operations_in_place_whose_input_is_not_used_again_are_the_same_as_others(method):
    x = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(0)) - 0.3
    before = x.clone()
    inside, outside = (seeded(lambda each=each: residual(each), seed=3) for each in (True, False))
    found, expected = (make_certifier(method, one, (1, 5, 5))(x) for one in (inside, outside))
    assert torch.equal(x, before)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert (found[1] > 0).any()


def test_networks_are_read_in_inference_mode_too():
    with torch.inference_mode():
        model = Reused(lambda _, y: (functional.relu(y), y))
        [label], [radius] = make_certifier("lipschitz", model, (2,))(POINT)
        assert int(label) == 1
        assert float(radius) > 0.05
        with pytest.raises(ModelError, match="overwritten in place"):
            make_certifier("lipschitz", Reused(OVERWRITTEN["module"]), (2,))


# ---- what else tracing does not show -------------------------------------------------------------------------------


class Doubled(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


class Darker(Normalize):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp_max(1)


class Stubborn(nn.Dropout):
    """Dropout that stays in training mode, as for Monte Carlo estimates."""

    def train(self, mode: bool = True) -> Stubborn:
        return super().train(True)


class Cast(nn.Module):
    """A network that computes in bfloat16 where tracing sees float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(torch.relu(self.first(x)))


def mean(x: Tensor, dims: tuple[int, int]) -> Tensor:
    """Not torch's: the largest value."""
    return x.amax(dims)


fx.wrap("mean")


class OtherMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return mean(self.conv(x), (2, 3))


class Rounded(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight * 4).round() / 4


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def with_hook(register) -> nn.Module:
    model = layers()
    register(model)
    return model


def with_own_forward() -> nn.Module:
    model = layers()
    model[1].forward = MethodType(lambda _, x: functional.relu(x).clamp_max(1), model[1])
    return model


def quantised_in_training() -> nn.Module:
    model = layers()
    config = torch.ao.quantization.get_default_qat_qconfig("x86")
    model[0] = torch.ao.nn.qat.Linear(4, 4, qconfig=config)
    return model


class Wrapped(Tensor):
    """A tensor that could compute in its own way, as quantised weights do."""


def with_wrapped_weight() -> nn.Module:
    model = layers()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Wrapped))
    return model


UNSEEN = {
    "hook of a layer": (lambda: with_hook(lambda m: m[1].register_forward_hook(lambda *_: None)), "hooks"),
    "hook before a layer": (lambda: with_hook(lambda m: m[1].register_forward_pre_hook(lambda *_: None)), "hooks"),
    "hook of the model": (lambda: with_hook(lambda m: m.register_forward_hook(lambda *_: None)), "hooks"),
    "hook before the model": (lambda: with_hook(lambda m: m.register_forward_pre_hook(lambda *_: None)), "hooks"),
    "a forward of its own": (with_own_forward, "forward method of its own"),
    "a call of its own": (lambda: nn.Sequential(Doubled(4, 3)), "cannot be bounded"),
    "dropout in training mode": (lambda: nn.Sequential(nn.Linear(4, 3), Stubborn()), "cannot be bounded|followed"),
    "autocast": (Cast, "does not show all"),
    "quantised in training": (quantised_in_training, "forward method of its own"),
    "weights of another kind": (with_wrapped_weight, "Wrapped"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_tracing_does_not_show_is_refused(name):
    make, named = UNSEEN[name]
    with pytest.raises(ModelError, match=named):
        read_network(make(), (4,), strict=True)


def test_hooks_that_only_watch_do_not_disturb_a_training():
    model, seen = layers(), []
    model[1].register_forward_hook(lambda *given: seen.append(given[2].detach()))
    x = torch.rand(2, 4)
    torch.testing.assert_close(read_network(model, (4,))(x), model(x))
    assert seen


def test_a_layer_of_ours_with_another_forward_is_refused():
    with pytest.raises(ModelError, match="Darker, with a forward method of its own"):
        read_network(nn.Sequential(Darker([0.5], [0.2]), nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))


def test_another_function_of_the_same_name_is_refused():
    with pytest.raises(ModelError, match="The operation 'mean'"):
        read_network(OtherMean(), (1, 3, 3))


def test_arguments_that_are_not_known_are_an_error_of_the_model():
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.mean(x, (2, 3), dtype=torch.float64)

    with pytest.raises(ModelError, match="mean"):
        read_network(Mean(), (2, 3, 3))


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_sorting_that_also_scales_is_refused(factor):
    """It would count as bringing no two inputs further apart."""
    torchlip = pytest.importorskip("deel.torchlip")
    model = nn.Sequential(nn.Linear(4, 4), torchlip.GroupSort2(k_coef_lip=factor), nn.Linear(4, 2))
    if factor == 1:
        [radius] = make_certifier("lipschitz", model, (4,))(torch.rand(1, 4))[1]
        assert float(radius) > 0
    else:
        with pytest.raises(ModelError, match="Lipschitz coefficient of 5"):
            make_certifier("lipschitz", model, (4,))


def parametrised() -> nn.Module:
    model = layers()
    parametrizations.spectral_norm(model[0])
    parametrizations.weight_norm(model[2])
    return model


def rounded() -> nn.Module:
    model = layers()
    parametrize.register_parametrization(model[0], "weight", Rounded())
    return model


def with_old_weight_norm() -> nn.Module:
    model = layers()
    torch.nn.utils.weight_norm(model[0])
    return model


SEEN = {"parametrised": parametrised, "rounded": rounded, "old weight norm": with_old_weight_norm, "plain": layers}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", SEEN)
def test_weights_that_are_computed_are_those_of_the_module(name):
    model = seeded(SEEN[name], seed=2).eval()
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(read_network(model, (4,))(x), model(x))
    if name == "old weight norm":  # which torch cannot copy after a forward pass with gradients
        with pytest.raises(ModelError, match="could not be copied"):
            make_certifier("crown", model, (4,))
    else:
        labels, radii = make_certifier("crown", model, (4,))(x)
        assert torch.equal(labels, model(x).argmax(1))
        assert (radii > 0).all()


# ---- at every input ------------------------------------------------------------------------------------------------


class Changing(nn.Module):
    """A network that is another one after its first two calls."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.later = copy.deepcopy(self.first)
        self.calls = 0
        with torch.no_grad():
            self.later.bias.add_(step)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.first(x) if self.calls <= 2 else self.later(x)


@pytest.mark.parametrize("step", [1e-4, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_module_that_computes_otherwise_at_the_certified_input_is_refused(method, step):
    x = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    certifier = make_certifier(method, seeded(lambda: Changing(step), seed=0), (4,))
    with pytest.raises(ModelError, match="at input 0 of the batch the module's scores are"):
        certifier(x)
    unchanged = make_certifier(method, seeded(lambda: Changing(0.0), seed=0), (4,))
    assert (unchanged(x)[1] > 0).all()


def test_only_inputs_at_which_it_differs_are_named():
    reading = Reading.of(layers(), (4,))
    with torch.no_grad():
        reading.module[0].weight[:, 3] += 1
    x = torch.rand(3, 4)
    x[:, 3] = torch.tensor([0.0, 0.0, 1.0])
    with pytest.raises(ModelError, match="at input 2 of the batch"):
        reading.answers(x)
    assert torch.equal(reading.answers(x[:2]), reading.network(x[:2].double()).argmax(1))


def test_the_answer_is_the_modules_own_and_a_tie_within_rounding_has_no_radius():
    """Scores that float32 takes for equal: the first class is the module's answer, the second is ahead by a little."""
    model = nn.Sequential(nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [1.0 + 2**-23]]))
        model[0].bias.fill_(1024.0)
    x = torch.tensor([[0.25]])
    assert int(model(x).argmax()) == 0
    assert int(copy.deepcopy(model).double()(x.double()).argmax()) == 1
    for method in METHODS:
        [label], [radius] = make_certifier(method, model, (1,))(x)
        assert (int(label), float(radius)) == (0, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_that_are_no_numbers_are_not_certified_and_no_error(method):
    x = torch.rand(3, 4)
    x[0, 0], x[1, 2] = torch.nan, torch.inf
    _, radii = make_certifier(method, seeded(layers, seed=0), (4,))(x)
    assert radii[:2].tolist() == [0.0, 0.0]
    assert float(radii[2]) > 0


def test_inputs_that_the_module_would_round_are_refused():
    certifier = make_certifier("lipschitz", layers(), (4,))
    with pytest.raises(InputError, match=r"precision of the network, torch\.float32, got torch\.float64"):
        certifier(torch.full((1, 4), 0.1, dtype=torch.float64))
    certifier(torch.full((1, 4), 0.5, dtype=torch.float64))

"""auto_LiRPA cannot be had for every torch, so that a stand-in with the few names that are used takes its place."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from baselines.claims import METHODS, overclaims, tiny_cases
from smoothcert.baselines.lirpa import LIRPA_METHODS, LirpaMargins, lirpa_radii
from smoothcert.baselines.network import read_network
from smoothcert.baselines.relaxation import Relaxation
from smoothcert.baselines.search import largest_radius
from smoothcert.errors import ConfigError, MissingExtraError, ModelError
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded


class PerturbationLpNorm:
    def __init__(self, eps: float = 0, norm: float = float("inf")) -> None:
        assert isinstance(eps, float)
        assert norm == 2
        self.eps = eps


class BoundedTensor:
    def __init__(self, x: Tensor, ptb: PerturbationLpNorm) -> None:
        self.x, self.ptb = x, ptb


class BoundedModule:
    """Bounds as the real one gives them: by our own relaxation, one radius for the whole batch."""

    def __init__(self, model: nn.Module, global_input: Tensor, *, device: torch.device) -> None:
        assert not model.training
        assert device == global_input.device
        if any(isinstance(part, nn.Tanh) for part in model.modules()):
            raise NotImplementedError("Unsupported operation onnx::Tanh")
        self._network = read_network(model, tuple(global_input.shape[1:]))
        self.calls: list[tuple[str, int, torch.dtype, bool]] = []

    def compute_bounds(self, x: tuple[BoundedTensor], C: Tensor, method: str) -> tuple[Tensor, Tensor]:
        (bounded,) = x
        self.calls.append((method, len(bounded.x), torch.get_default_dtype(), torch.is_grad_enabled()))
        assert C.dtype == bounded.x.dtype == torch.float64
        eps = torch.full((len(bounded.x),), bounded.ptb.eps)
        relaxed = Relaxation(self._network, bounded.x, eps, "adaptive")
        return relaxed.lower(C), -relaxed.lower(-C)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        BoundedModule=BoundedModule, BoundedTensor=BoundedTensor, PerturbationLpNorm=PerturbationLpNorm
    )
    monkeypatch.setitem(sys.modules, "auto_LiRPA", module)


def network(*hidden: int) -> nn.Module:
    return seeded(lambda: mlp(4, *hidden, classes=3), seed=0)


def inputs(count: int = 5) -> Tensor:
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(1))


def test_without_auto_lirpa_it_is_said_where_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "auto_LiRPA", None)
    with pytest.raises(
        MissingExtraError, match=r"auto_LiRPA is needed for this: pip install 'git\+https://.*LiRPA'"
    ) as found:
        lirpa_radii(network(6), inputs())
    assert found.value.exit_code == MissingExtraError.exit_code


@pytest.mark.usefixtures("stand_in")
def test_with_the_same_bounds_radii_are_those_of_our_own_search():
    model, x = network(6, 5), inputs()
    labels, radii = lirpa_radii(model, x)
    own, expected = METHODS["adaptive"](model, x)
    assert torch.equal(labels, own)
    assert radii.dtype == torch.float64
    torch.testing.assert_close(radii, expected, rtol=2e-3, atol=0)


@pytest.mark.usefixtures("stand_in")
def test_radii_are_not_above_the_true_ones():
    assert list(overclaims(lirpa_radii, tiny_cases(2, ["one layer", "residual", "max-pool, then ReLU"]))) == []


@pytest.mark.usefixtures("stand_in")
def test_margins_are_those_of_the_inputs_asked_for_each_with_its_radius():
    model, x = network(6, 5), inputs()
    margins = LirpaMargins(model, x)
    eps, places = torch.tensor([0.3, 0.0, 0.1]), torch.tensor([4, 0, 4])
    found = margins(eps, places)
    exact = read_network(copy.deepcopy(model).double().requires_grad_(False), (4,))
    scores = exact(x.double())
    for radius, place, value in zip(eps.double(), places, found, strict=True):
        label = int(scores[place].argmax())
        rows = torch.stack([torch.eye(3)[label] - torch.eye(3)[k] for k in range(3) if k != label]).double()
        relaxed = Relaxation(exact, x[place : place + 1].double(), radius[None], "adaptive")
        assert float(value) == pytest.approx(float(relaxed.lower(rows[None]).min()), rel=1e-6)
    assert (largest_radius(margins, torch.ones(5)) > 0).all()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("method", LIRPA_METHODS)
def test_one_input_at_a_time_in_float64_and_with_gradients_only_where_slopes_are_optimised(method):
    margins = LirpaMargins(network(6), inputs(), method)
    with torch.no_grad():
        margins(torch.full((5,), 0.1), torch.arange(5))
    assert margins._module.calls == [(method, 1, torch.float64, method == "CROWN-Optimized")] * 5
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.usefixtures("stand_in")
def test_the_model_stays_as_it_is():
    model = network(6).train()
    before = copy.deepcopy(model.state_dict())
    lirpa_radii(model, inputs())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.usefixtures("stand_in")
def test_what_auto_lirpa_does_not_know_is_an_error_of_the_model():
    with pytest.raises(ModelError, match="NotImplementedError: Unsupported operation onnx::Tanh"):
        lirpa_radii(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), inputs())
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.usefixtures("stand_in")
def test_an_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="Expected `method` to be one of CROWN, CROWN-Optimized, got 'crown'"):
        LirpaMargins(network(6), inputs(), "crown")


@pytest.mark.usefixtures("stand_in")
def test_a_network_that_auto_lirpa_reads_otherwise_is_refused(monkeypatch):
    real = BoundedModule.compute_bounds

    def shifted(self: BoundedModule, x: tuple[BoundedTensor], C: Tensor, method: str) -> tuple[Tensor, Tensor]:
        lower, upper = real(self, x, C, method)
        return lower + 0.1, upper

    monkeypatch.setattr(BoundedModule, "compute_bounds", shifted)
    with pytest.raises(ModelError, match="auto_LiRPA did not read the network as it computes: at input 0"):
        lirpa_radii(network(6), inputs())

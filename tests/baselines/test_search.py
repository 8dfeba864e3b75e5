from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from baselines.claims import METHODS, overclaims, tiny_cases
from baselines.oracles import Residual, nearest_other
from smoothcert.baselines import search
from smoothcert.baselines.search import RelaxedNetwork, confirmed, largest_radius
from smoothcert.errors import ModelError
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded


class Recorded:
    """A margin that remembers which radii were tried for which input, and what came out."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        self.functions = functions
        self.tried: list[dict[float, float]] = [{} for _ in functions]
        self.calls = 0

    def __call__(self, eps: Tensor, places: Tensor) -> Tensor:
        assert eps.shape == places.shape
        self.calls += 1
        values = [self.functions[place](one) for place, one in zip(places.tolist(), eps, strict=True)]
        for place, one, value in zip(places.tolist(), eps.tolist(), values, strict=True):
            self.tried[place][one] = float(value)
        return torch.stack([torch.as_tensor(value, dtype=eps.dtype) for value in values])

    def held(self, place: int, radius: float) -> bool:
        """True if this radius was tried and had a margin above 0."""
        return self.tried[place].get(radius, 0.0) > 0


def falling_to(root: float) -> dict[str, Callable[[Tensor], Tensor]]:
    """Margins that are above 0 below a root and not above 0 from there on."""
    return {
        "linear": lambda eps: 1 - eps / root,
        "steep": lambda eps: 1e6 * (root - eps),
        "flat": lambda eps: 1e-6 * (root - eps),
        "concave": lambda eps: 1 - (eps / root) ** 2,
        "very concave": lambda eps: 1 - (eps / root) ** 6,
        "convex": lambda eps: 1 - (eps / root) ** 0.5,
        "exponential": lambda eps: 2 - torch.exp(eps / root * 0.6931471805599453),
        "a step": lambda eps: torch.where(eps < root, 1.0, -1.0),
        "a high step": lambda eps: torch.where(eps < root, 1.0, -1e9),
        "steps": lambda eps: torch.floor(10 * (1 - eps / root)) / 10 + 0.05,
        "no number beyond": lambda eps: torch.where(eps < root, 1 - eps / root, torch.nan),
        "minus infinity beyond": lambda eps: torch.where(eps < root, 1 - eps / root, -torch.inf),
    }


# ---- the largest radius -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", falling_to(1.0))
def test_of_margins_that_fall_it_finds_where_they_end_up_to_its_tolerance(name, dtype):
    for root in (1e-3, 0.07, 1.0, 33.0):
        for guess in (0.01, 0.9, 1.0, 1.1, 2.0, 50.0):
            margin = Recorded(falling_to(root)[name])
            found = float(largest_radius(margin, torch.tensor([guess * root], dtype=dtype)))
            assert margin.held(0, found)
            end = max(eps for eps, value in margin.tried[0].items() if value > 0)
            assert found == end
            assert (1 - 2e-3) * root <= found <= root * (1 + 1e-6)


def test_all_margins_of_a_batch_are_followed_each_by_itself():
    functions = [*falling_to(0.3).values(), *falling_to(2.0).values()]
    roots = torch.tensor([0.3] * 12 + [2.0] * 12)
    together = Recorded(*functions)
    found = largest_radius(together, torch.ones(24))
    assert ((found <= roots * (1 + 1e-6)) & (found >= roots * 0.998)).all()
    for place, function in enumerate(functions):
        alone = largest_radius(Recorded(function), torch.ones(1))
        assert float(alone) == float(found[place])


def test_a_margin_that_never_falls_is_followed_far_and_no_further_than_it_was_tried():
    margin = Recorded(lambda eps: torch.ones_like(eps), lambda eps: 1 / (1 + eps))
    found = largest_radius(margin, torch.ones(2))
    assert (found > 1e6).all()
    assert found.isfinite().all()
    assert all(margin.held(place, float(radius)) for place, radius in enumerate(found))


def test_where_the_margin_is_0_already_nothing_more_is_tried():
    margin = Recorded(lambda eps: 0 * eps, lambda eps: -1 - eps, lambda eps: eps * torch.nan, lambda eps: 1 - eps)
    found = largest_radius(margin, torch.ones(4))
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert [len(tried) for tried in margin.tried[:3]] == [1, 1, 1]
    assert float(found[3]) == pytest.approx(1, rel=2e-3)


def test_where_only_the_input_itself_holds_it_is_0():
    margin = Recorded(lambda eps: torch.where(eps > 0, -1.0, 1.0))
    assert largest_radius(margin, torch.ones(1)).tolist() == [0.0]


@pytest.mark.parametrize("seed", range(10))
def test_of_margins_that_rise_and_fall_it_returns_a_radius_that_held(seed):
    waves = torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()

    def wavy(eps: Tensor) -> Tensor:
        return 0.4 + waves[0] * torch.cos(9 * waves[1] * eps + waves[2]) - 0.1 * eps

    margin = Recorded(wavy)
    found = float(largest_radius(margin, torch.ones(1)))
    assert margin.held(0, found) or found == 0
    assert margin.calls <= 42


def test_guesses_that_are_wrong_by_far_or_no_numbers_do_no_harm():
    guesses = torch.tensor([1e-30, 0.0, 1e12, torch.inf, torch.nan, -1.0])
    margin = Recorded(*[lambda eps: 1 - eps] * 6)
    found = largest_radius(margin, guesses)
    for place, radius in enumerate(found.tolist()):
        assert radius == 0 or margin.held(place, radius)
    assert (found[:3] > 0.998).all()
    assert (found <= 1).all()


def test_few_radii_are_tried():
    """An evaluation is what costs."""
    for name in ("linear", "concave", "exponential"):
        margin = Recorded(falling_to(0.4)[name])
        largest_radius(margin, torch.tensor([0.5]))
        assert margin.calls <= 16, name


# ---- confirmation -------------------------------------------------------------------------------------------------


def confirm(function: Callable[[Tensor], Tensor], found: float, rounding: float = 0.0) -> tuple[float, Recorded]:
    margin = Recorded(function)
    result = confirmed(margin, torch.tensor([found]), torch.tensor([rounding], dtype=torch.float64))
    assert result.dtype == torch.float64
    return float(result), margin


def test_a_radius_that_holds_is_kept_as_it_is():
    result, margin = confirm(lambda eps: 1 - eps, 0.5)
    assert result == 0.5
    assert margin.calls == 1


@pytest.mark.parametrize("excess", [1e-8, 1e-6, 1e-5, 1e-3, 1e-2])
def test_a_radius_that_fails_is_taken_back_a_little_and_tried_again(excess):
    end = 0.5 * (1 - excess)
    result, margin = confirm(lambda eps: torch.where(eps <= end, 1.0, -1.0), 0.5)
    assert margin.held(0, result)
    assert 0.5 * (1 - max(1.1e-6, 10.1 * excess)) <= result <= end


def test_what_fails_far_below_is_given_up():
    result, margin = confirm(lambda eps: torch.where(eps < 0.1, 1.0, -1.0), 0.5)
    assert result == 0
    assert not any(value > 0 for value in margin.tried[0].values())


def test_margins_within_rounding_and_no_numbers_do_not_count():
    assert confirm(lambda eps: 0 * eps + 1e-10, 0.5, 1e-9)[0] == 0
    assert confirm(lambda eps: 0 * eps + 1e-8, 0.5, 1e-9)[0] == 0.5
    assert confirm(lambda eps: eps * torch.nan, 0.5)[0] == 0
    assert confirm(lambda eps: 1 + 0 * eps, 0.0)[0] == 0


def test_nothing_unconfirmed_is_ever_returned():
    numbers = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = torch.where(numbers < 0.5, 0.5 * (1 - 10 ** (-8 * numbers)), numbers)
    functions = [
        lambda eps, end=end: torch.where((eps * 1e7).round() % 3 == 0, -1.0, end - eps) for end in ends.tolist()
    ]
    margin = Recorded(*functions)
    result = confirmed(margin, torch.full((50,), 0.5), torch.zeros(50, dtype=torch.float64))
    assert (result > 0).any()
    assert (result == 0).any()
    for place, radius in enumerate(result.tolist()):
        assert radius == 0 or margin.held(place, radius)


# ---- radii of networks --------------------------------------------------------------------------------------------


def test_the_better_of_both_slopes_is_taken_for_each_input():
    differ = 0
    for case in tiny_cases(2):
        found = [METHODS[name](case.model, case.inputs)[1] for name in ("same", "adaptive", "both")]
        same, adaptive, both = (radii.clamp_max(1e3) for radii in found)  # larger ones end where float32 does
        best = torch.maximum(same, adaptive)
        assert ((both >= best * (1 - 2e-3)) & (both <= best * (1 + 2e-3))).all()
        differ += int((same != adaptive).sum())
    assert differ > 10  # of 32


@pytest.mark.parametrize("rejected", ["adaptive", "same"])
@pytest.mark.parametrize("order", [("adaptive", "same"), ("same", "adaptive")])
def test_slopes_that_float64_does_not_confirm_leave_the_radius_of_the_others(monkeypatch, rejected, order):
    """Including where the rejected slopes have the larger radius in float32."""
    real = search.confirmed

    def rejecting(margin: search._Margins, found: Tensor) -> Tensor:
        return real(margin, 0 * found if margin._slopes == rejected else found)

    other = "same" if rejected == "adaptive" else "adaptive"
    worse = 0
    for case in tiny_cases(2):
        relaxed = RelaxedNetwork.of(case.model, tuple(case.inputs.shape[1:]))
        best, expected = (relaxed.radii(case.inputs, (kind,))[1] for kind in (rejected, other))
        worse += int((expected < 0.99 * best).sum())
        with monkeypatch.context() as patch:
            patch.setattr(search, "confirmed", rejecting)
            _, radii = relaxed.radii(case.inputs, order)
        torch.testing.assert_close(radii, expected, rtol=2e-3, atol=0)
    assert worse > 3


def test_what_is_certified_cannot_be_much_more_by_the_same_bounds():
    """At a radius half a per cent larger the bound fails: the search did not stop early."""
    for case in tiny_cases(1):
        relaxed = RelaxedNetwork.of(case.model, tuple(case.inputs.shape[1:]))
        for slopes in ("same", "adaptive"):
            labels, radii = relaxed.radii(case.inputs, (slopes,))
            margins = search._Margins(relaxed.exact, case.inputs, labels, slopes, remember=False)
            places = torch.arange(len(radii))
            assert (margins(radii, places) > 0).all()
            assert (margins(radii * 1.005, places)[case.radii.isfinite()] <= 0).all()


def test_remembering_what_held_within_larger_balls_changes_no_radius():
    for case in tiny_cases(2):
        network = RelaxedNetwork.of(case.model, tuple(case.inputs.shape[1:])).exact
        for slopes in ("same", "adaptive"):
            with_memory = search._Margins(network, case.inputs, case.labels, slopes)
            without = search._Margins(network, case.inputs, case.labels, slopes, remember=False)
            places = torch.arange(len(case.inputs))
            for factor in (1.5, 0.7, 1.1, 0.4, 2.0):  # radii that fail, and smaller ones thereafter
                eps = case.radii.clamp_max(4) * factor
                first, second = with_memory(eps, places), without(eps, places)
                assert torch.equal(first > 0, second > 0)


BENT_AT_THE_INPUT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ReLU": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), (3,)),
    "max-pool": (lambda: nn.Sequential(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(2, 2)), (1, 2, 3)),
    "shortcut": (
        lambda: nn.Sequential(Residual(nn.Linear(3, 3), nn.Identity()), nn.ReLU(), nn.Linear(3, 3)),
        (3,),
    ),
    "shortcut around ReLU": (
        lambda: nn.Sequential(Residual(nn.ReLU(), nn.Identity()), nn.ReLU(), nn.Linear(3, 3)),
        (3,),
    ),
}


@pytest.mark.parametrize("name", BENT_AT_THE_INPUT)
def test_networks_that_bend_at_the_input_itself_are_certified(name):
    factory, shape = BENT_AT_THE_INPUT[name]
    model = seeded(factory, seed=1).double().requires_grad_(False)
    x = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for method in ("same", "adaptive"):
        labels, radii = METHODS[method](copy.deepcopy(model), x)
        for one, label, radius in zip(x, labels, radii, strict=True):
            true = nearest_other(model, one.flatten().numpy(), shape, int(label)).distance
            assert 0 < float(radius) <= true


def test_inputs_may_be_float32_and_the_answers_are_those_of_the_model():
    model = seeded(lambda: mlp(4, 6, classes=3), seed=0)
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))
    labels, radii = RelaxedNetwork.of(model, (4,)).radii(x, ("adaptive",))
    assert torch.equal(labels, model(x).argmax(1))
    assert radii.dtype == torch.float64
    assert not radii.requires_grad


def test_the_model_stays_as_it_is_and_later_changes_of_it_do_not_matter():
    model = seeded(lambda: mlp(4, 6, classes=3), seed=0).train()
    before = copy.deepcopy(model.state_dict())
    relaxed = RelaxedNetwork.of(model, (4,))
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))
    first = relaxed.radii(x, ("same",))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.requires_grad and p.grad is None for p in model.parameters())
    assert model.training
    with torch.no_grad():
        model[1].weight.mul_(3)
    assert torch.equal(first[1], relaxed.radii(x, ("same",))[1])


def test_a_batch_gets_the_radii_that_its_inputs_get_alone():
    model = seeded(lambda: mlp(4, 8, 6, classes=3), seed=0)
    relaxed = RelaxedNetwork.of(model, (4,))
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
    _, together = relaxed.radii(x, ("same", "adaptive"))
    alone = torch.cat([relaxed.radii(one[None], ("same", "adaptive"))[1] for one in x])
    torch.testing.assert_close(together, alone, rtol=1.1e-3, atol=0)


def test_a_flat_network_whose_answer_cannot_change_gets_a_large_radius():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double().requires_grad_(False)
    model[2].weight.zero_()
    model[2].bias.copy_(torch.tensor([1.0, 0.0]))
    _, radii = RelaxedNetwork.of(model, (2,)).radii(torch.zeros(1, 2), ("same",))
    assert float(radii) > 1e3


def test_other_activations_are_refused():
    with pytest.raises(ModelError, match="Tanh"):
        RelaxedNetwork.of(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), (2,))


def test_a_search_that_overdoes_it_is_corrected_by_the_confirmation(monkeypatch):
    """Whatever float32 finds, the radius rests on the bound in float64."""
    exaggerated = lambda *given, **options: 1.004 * largest_radius(*given, **options)  # noqa: E731
    monkeypatch.setattr(search, "largest_radius", exaggerated)
    cases = list(tiny_cases(2, ["one layer", "convolution"]))
    assert list(overclaims(METHODS["adaptive"], cases)) == []
    radii = torch.cat([METHODS["adaptive"](case.model, case.inputs)[1] for case in cases])
    assert (radii > 0).all()

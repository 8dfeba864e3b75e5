"""Certificates cover rounding: they hold for the module in floating point, and for every execution that may round so.

An execution is made here by adding errors to each layer's values, of the size that the standard model allows and of the
signs that do most harm. The errors are found by loops over weights that share nothing with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from baselines.claims import in_balls
from baselines.oracles import FAMILIES, random_network
from smoothcert.baselines import lipschitz, relaxation, rounding
from smoothcert.baselines.entry import find_entry
from smoothcert.baselines.lipschitz import Deviations, lipschitz_radii
from smoothcert.baselines.methods import make_certifier
from smoothcert.baselines.network import Network, read_network
from smoothcert.baselines.operations import Affine, Conv, Linear, Operation, Reshape, Scale, Sum
from smoothcert.baselines.relaxation import Relaxation, margin_rows
from smoothcert.baselines.rounding import Rounding, gamma, unit_roundoff
from smoothcert.baselines.spectral import norm_upper
from smoothcert.baselines.windows import WindowRelaxation
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded

METHODS = ("lipschitz", "dual", "crown")

# ---- scores that float64 or float32 does not hold ------------------------------------------------------------------


def hidden_offset(offset: float, dtype: torch.dtype, lead: float) -> nn.Module:
    """The scores (lead + 4·x, 0), x being offset by a large number in the hidden layer, and back."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).to(dtype).requires_grad_(False)
    model[0].weight.copy_(torch.tensor([[4.0], [0.0]]))
    model[0].bias.fill_(offset)
    model[2].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    model[2].bias.copy_(torch.tensor([lead, 0.0]))
    return model


OFFSETS = {
    "float64, at its precision": (2.0**53, torch.float64),
    "float64, near it": (2.0**50, torch.float64),
    "float32, at its precision": (2.0**24, torch.float32),
    "float32, near it": (2.0**21, torch.float32),
    "float32, beyond float64's": (2.0**60, torch.float32),
}


def overclaimed(method: str, offset: float, dtype: torch.dtype) -> list[str]:
    """Radii beyond the exact distance, and answers of the module within them that are others."""
    wrong = []
    for lead in (-0.7, 0.0, 0.03, 0.7):
        model = hidden_offset(offset, dtype, lead)
        certifier = make_certifier(method, model, (1,))
        for start in (-0.37, 0.0, 0.13, 0.28, 0.45):
            x = torch.tensor([[start]], dtype=dtype)
            [label], [radius] = certifier(x)
            exact = Fraction(float(model[2].bias[0])) + 4 * Fraction(float(x))
            if Fraction(float(radius)) > abs(exact) / 4:
                wrong.append(f"{lead}, {start}: certified {float(radius)}, exactly {float(abs(exact) / 4)}")
            steps = torch.linspace(-float(radius), float(radius), 401, dtype=torch.float64)[:, None]
            points = (x.double() + steps).to(dtype)
            inside = (points.double() - x.double()).abs()[:, 0] <= float(radius)
            if not bool((model(points).argmax(1) == label)[inside].all()):
                wrong.append(f"{lead}, {start}: certified {float(radius)}, but the module answers otherwise within")
    return wrong


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OFFSETS)
def test_a_hidden_offset_that_swallows_the_input_is_not_certified_beyond_it(name, method):
    assert overclaimed(method, *OFFSETS[name]) == []


@pytest.mark.parametrize("method", METHODS)
def test_a_hidden_offset_that_precision_holds_costs_no_more_than_it_loses(method):
    model = hidden_offset(64.0, torch.float32, 0.5)
    _, [radius] = make_certifier(method, model, (1,))(torch.zeros(1, 1))
    exact = 0.125 / math.sqrt(2) if method == "lipschitz" else 0.125  # by the norm of the last layer's rows
    lost = 32 * 64 * 2.0**-24  # by a few roundings of both hidden units
    assert exact * (1 - 2e-3) - lost <= float(radius) <= exact


def cancelling_norm() -> nn.Module:
    """Batch norm that subtracts 2²⁶ and adds it again."""
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2)).eval().requires_grad_(False)
    model[0].weight.copy_(torch.tensor([[1.0], [1.0]]))
    model[0].bias.zero_()
    model[1].running_mean.fill_(2.0**26)
    model[1].running_var.fill_(1.0 - model[1].eps)
    model[1].bias.fill_(2.0**26)
    model[3].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    model[3].bias.copy_(torch.tensor([0.0, 0.4]))
    return model


@pytest.mark.parametrize("method", METHODS)
def test_batch_norm_whose_mean_and_bias_cancel_is_not_taken_for_exact(method):
    _, [radius] = make_certifier(method, cancelling_norm(), (1,))(torch.ones(1, 1))
    assert float(radius) == 0


def test_terms_of_batch_norm_that_are_forgotten_are_caught(monkeypatch):
    real = Scale.absolute
    monkeypatch.setattr(Scale, "absolute", lambda self: real(replace(self, shift_terms=None)))
    monkeypatch.setattr("smoothcert.baselines.reading.Reading.answers", lambda self, x: self.module(x).argmax(1))
    radii = [make_certifier(method, cancelling_norm(), (1,))(torch.ones(1, 1))[1] for method in METHODS]
    assert max(float(one) for one in radii) > 0


def cancelling() -> nn.Module:
    """The scores (0.5 + product · x, 0) of two affine layers whose product, −1.41, is a difference of numbers near 2⁵³.

    In float64 it is rounded to a whole number.
    """
    first = 94906265.62425156
    second = math.nextafter(first, math.inf)
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2)).double().requires_grad_(False)
    for part in model:
        part.bias.zero_()
    model[0].weight.copy_(torch.tensor([[first], [first - 31.1]], dtype=torch.float64))
    model[1].weight.copy_(torch.tensor([[first - 31.1, -second], [0.0, 0.0]], dtype=torch.float64))
    model[1].bias[0] = 0.5
    return model


def cancelling_radii(method: str) -> tuple[Fraction, Fraction]:
    """The certified radius at 0, and the exact one."""
    model = cancelling()
    _, [radius] = make_certifier(method, model, (1,))(torch.zeros(1, 1, dtype=torch.float64))
    left, right = ([Fraction(float(one)) for one in weight] for weight in (model[1].weight[0], model[0].weight[:, 0]))
    product = sum(a * b for a, b in zip(left, right, strict=True))
    return Fraction(float(radius)), Fraction(1, 2) / abs(product)


@pytest.mark.parametrize("method", METHODS)
def test_coefficients_that_cancel_are_not_taken_for_exact(method):
    radius, exact = cancelling_radii(method)
    assert 0 <= radius <= exact


def test_slopes_whose_rounding_is_left_out_are_caught(monkeypatch):
    lipschitz.deviations.cache_clear()
    no_local_error(monkeypatch)
    monkeypatch.setattr(lipschitz, "gamma", lambda *_: 0.0)
    monkeypatch.setattr("smoothcert.baselines.reading.Reading.answers", lambda self, x: self.module(x).argmax(1))
    radius, exact = cancelling_radii("lipschitz")
    lipschitz.deviations.cache_clear()
    assert radius > exact


def test_relaxations_cover_the_rounding_of_their_own_coefficients():
    network = read_network(cancelling(), (1,))
    x, eps = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.4], dtype=torch.float64)
    rows = margin_rows(torch.tensor([0]), 2, x)
    assert eps > float(cancelling_radii("crown")[1])
    for slopes in ("same", "adaptive"):
        assert float(Relaxation(network, x, eps, slopes).lower(rows)) > 0
        assert float(Relaxation(network, x, eps, slopes, deviations=Deviations(network)).lower(rows)) < 0


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_may_overflow_are_not_certified(method):
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).requires_grad_(False)
    for part in (model[0], model[2]):
        part.weight.fill_(1e20)
        part.bias.copy_(torch.tensor([1.0, 0.0]))
    model[2].weight[1] = 0
    assert float(make_certifier(method, model, (1,))(torch.ones(1, 1))[1]) == 0
    model[2].weight[0] = 1e-20
    assert float(make_certifier(method, model, (1,))(torch.ones(1, 1))[1]) > 0


# ---- all executions ------------------------------------------------------------------------------------------------

COARSE = torch.bfloat16  # rounds by 2⁻⁸, so that an error left out shows


def small_error(operation: Operation, inputs: list[Tensor]) -> Tensor | float:
    """What an operation may be off by at least, by the standard model, for values of its inputs."""
    unit = 2.0**-8
    if isinstance(operation, Sum):
        return unit * sum(inputs).abs()
    if not isinstance(operation, Affine) or isinstance(operation, Reshape):
        return 0.0
    rows = math.prod(inputs[0].shape[1:])
    basis = torch.eye(rows, dtype=torch.float64).view(rows, *inputs[0].shape[1:])
    matrix = operation.linear(basis).flatten(1)  # [in, out]
    sums = inputs[0].abs().flatten(1) @ matrix.abs()
    offset = operation.offset()
    shape = operation.linear(inputs[0]).shape
    sums = sums.view(shape) + (0.0 if offset is None else offset.abs())
    count = {Linear: lambda: rows, Conv: lambda: operation.weight[0].numel(), Scale: lambda: 1}[type(operation)]()
    return count * unit * sums


def executed(network: Network, x: Tensor, signs: list[Tensor]) -> list[Tensor]:
    """The values of all nodes, each off by its error times a sign."""
    found: list[Tensor] = []
    for node, sign in zip(network.nodes, signs, strict=True):
        inputs = [found[i] for i in node.inputs]
        value = node.operation(*inputs) if inputs else x
        found.append(value + sign * small_error(node.operation, inputs))
    return found


def harmful(network: Network, x: Tensor, target: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
    """The signs [B, *D] of errors that lower a function [B] of the values, by its gradients."""
    zeros = [torch.zeros(len(x), *node.shape, dtype=torch.float64, requires_grad=True) for node in network.nodes]
    slopes = torch.autograd.grad(target(executed(network, x, zeros)).sum(), zeros, allow_unused=True)
    return [torch.zeros_like(z) if s is None else -s.sign() for z, s in zip(zeros, slopes, strict=True)]


def executions_outside(seeds: range = range(4), families=tuple(FAMILIES)) -> list[str]:
    """What bounds do not cover, for executions near random inputs of random networks."""
    wrong = []
    for family in families:
        for seed in seeds:
            model, shape = random_network(family, seed)
            network = replace(read_network(model, shape), dtype=COARSE)
            x = torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
            eps = torch.tensor([0.0, 0.05, 0.3], dtype=torch.float64)
            wrong += [f"{family} {seed}: {one}" for one in outside(network, x, eps)]
    return wrong


def outside(network: Network, x: Tensor, eps: Tensor, points: int = 12) -> list[str]:
    """Executions within eps [B] of x [B, *D] outside of the intervals, margins and deviations found for them."""
    deviations = Deviations(network)
    relaxed = {
        slopes: WindowRelaxation(
            network,
            x,
            eps,
            slopes,
            deviations=deviations,
            unit_slopes=slopes_by_place,
            entry=find_entry(network),
        )
        for slopes in ("same", "adaptive")
        for slopes_by_place in ({}, dict(enumerate(deviations.slopes)))
        if slopes == "same" or slopes_by_place
    }
    near = in_balls(points, x, eps, torch.Generator().manual_seed(0)).flatten(0, 1)
    exact = network.values(near)
    labels = network(x).argmax(1)
    rows = margin_rows(labels, network.nodes[-1].shape[0], x)
    repeated = rows.repeat(points, 1, 1)
    far = deviations._all(network.values(x), eps)
    wrong = []

    def judge(values: list[Tensor]) -> None:
        for slopes, one in relaxed.items():
            for place, (low, high) in one.intervals.items():
                value = values[place].unflatten(0, (points, -1))
                if bool(((value < low) | (value > high)).any()):
                    wrong.append(f"{slopes}: an interval of node {place}")
            margins = (repeated * values[-1][:, None]).sum(2).unflatten(0, (points, -1))
            if bool((margins < one.lower(rows)).any()):
                wrong.append(f"{slopes}: a margin")
        for place, deviation in enumerate(far):
            apart = (values[place] - exact[place]).unflatten(0, (points, -1))
            if bool((apart.abs() > deviation.each + 1e-15).any()):
                wrong.append(f"a value of node {place}")
            if bool((apart.flatten(2).norm(dim=2) > deviation.total + 1e-15).any()):
                wrong.append(f"the norm of node {place}")

    for number in range(rows.shape[1]):
        judge(executed(network, near, harmful(network, near, lambda v, n=number: (v[-1] * repeated[:, n]).sum(1))))
    for place in {node.inputs[0] for node in network.nodes if node.inputs}:
        judge(executed(network, near, harmful(network, near, lambda v, p=place: v[p].flatten(1).amin(1))))
        judge(executed(network, near, harmful(network, near, lambda v, p=place: -v[p].flatten(1).amax(1))))
    return wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_no_execution_is_outside_of_the_bounds(family):
    assert executions_outside(families=[family]) == []


def no_local_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rounding, "local", lambda _, __, terms: 0 * terms)


def of_fewer_terms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounding, "gamma", lambda count, unit: gamma(min(count, 2), unit))


def without_offsets(patch: pytest.MonkeyPatch) -> None:
    for kind in (Linear, Conv, Scale):
        patch.setattr(kind, "absolute", lambda self, real=kind.absolute: _without_offset(real(self)))


def _without_offset(operation: Affine) -> Affine:
    return replace(operation, **{"shift" if isinstance(operation, Scale) else "bias": None})


def only_the_last_error(patch: pytest.MonkeyPatch) -> None:
    """The errors of earlier layers forgotten."""
    real = Deviations.after

    def after(self, place, found, local):
        nothing = [replace(one, each=0 * one.each, total=0 * one.total, recent=0 * one.recent) for one in found]
        return real(self, place, nothing, local)

    patch.setattr(Deviations, "after", after)


def at_x_only(patch: pytest.MonkeyPatch) -> None:
    """Terms taken at x, not within the ball."""
    patch.setattr(
        Deviations,
        "terms",
        lambda self, place, values, *_: self.rounding.terms(place, [one.abs() for one in values]),
    )


def no_growth(patch: pytest.MonkeyPatch) -> None:
    """Norms of layers forgotten."""
    patch.setattr(lipschitz, "norm_upper", lambda *_: torch.ones((), dtype=torch.float64))


def exact_entry(patch: pytest.MonkeyPatch) -> None:
    real = Relaxation._at_entry
    patch.setattr(Relaxation, "_at_entry", lambda self, place: (real(self, place)[0], 0 * real(self, place)[1]))


EXECUTION_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no error of an operation": no_local_error,
    "errors of a few terms only": of_fewer_terms,
    "offsets left out": without_offsets,
    "only the last operation's error": only_the_last_error,
    "sums of terms at x only": at_x_only,
    "errors that do not grow": no_growth,
    "coefficients not charged": lambda p: p.setattr(relaxation, "_weighed", lambda rows, _: 0 * rows.flatten(2).sum(2)),
    "the first step back not charged": lambda p: p.setattr(
        Relaxation, "_skipped", lambda self, place: 0 * self._local[place]
    ),
    "the last sum's parts not charged": lambda p: p.setattr(
        Relaxation, "_skipped", lambda self, place: self._local[place]
    ),
    "affine functions of the input taken for exact": lambda p: p.setattr(
        Relaxation, "_deviation", lambda self, place: 0 * self._values[place]
    ),
    "the entry taken for exact": exact_entry,
    "errors not carried through": lambda p: p.setattr(
        Deviations,
        "_through",
        lambda self, place, inputs: 0 * self._nodes[place].operation(*inputs),
    ),
}


@pytest.mark.parametrize("name", EXECUTION_MUTANTS)
def test_an_error_that_is_left_out_is_caught(monkeypatch, name):
    EXECUTION_MUTANTS[name](monkeypatch)
    assert executions_outside() != []


@pytest.mark.parametrize("method", METHODS)
def test_certificates_without_errors_are_caught(monkeypatch, method):
    lipschitz.deviations.cache_clear()
    no_local_error(monkeypatch)
    monkeypatch.setattr("smoothcert.baselines.reading.Reading.answers", lambda self, x: self.module(x).argmax(1))
    assert [one for offset in OFFSETS.values() for one in overclaimed(method, *offset)] != []
    lipschitz.deviations.cache_clear()


# ---- the modules themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_module_is_further_from_float64_than_its_deviation(family, dtype):
    rounded = False
    for seed in range(6):
        model, shape = random_network(family, seed)
        model = model.to(dtype)
        network = read_network(model, shape).to(torch.float64)
        x = torch.rand(20, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        values = network.values(x.double())
        allowed = Deviations(network).of_scores(values, torch.zeros(20, dtype=torch.float64))
        apart = (model(x).double() - values[-1]).abs()
        assert (apart <= allowed).all()
        assert float(allowed.amax()) < 1e6 * torch.finfo(dtype).eps
        rounded |= bool((apart > 0).any())
    assert rounded or dtype == torch.float64


@pytest.mark.parametrize("method", METHODS)
def test_networks_that_round_little_lose_little(method):
    """In float32 less than a thousandth of what the same network certifies in float64, whose rounding is no matter."""
    for seed in range(4):
        model, shape = random_network("two layers", seed)
        x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(seed))
        model = model.float()
        _, radii = make_certifier(method, model, shape)(x)
        _, exact = make_certifier(method, model.double(), shape)(x.double())
        torch.testing.assert_close(radii, exact, rtol=2e-3, atol=2e-6)
        assert (radii > 0).all()


def test_radii_in_float64_are_those_of_margin_over_slope():
    model = seeded(lambda: mlp(6, 8, 7, classes=3), seed=0).double()
    network = read_network(model.requires_grad_(False), (6,))
    x = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels, radii = lipschitz_radii(network, x)
    margins = network(x).gather(1, labels[:, None]) - network(x)
    slopes = lipschitz.margin_slopes(network)[labels]
    expected = (margins / slopes).scatter(1, labels[:, None], torch.inf).amin(1)
    assert (radii < expected).all()
    torch.testing.assert_close(radii, expected, rtol=1e-8, atol=0)


# ---- the model of rounding -----------------------------------------------------------------------------------------


def test_gamma_is_the_bound_of_n_roundings():
    assert gamma(0, 2.0**-24) == 0
    assert gamma(100, 2.0**-24) == pytest.approx(100 * 2.0**-24, rel=1e-5)
    assert gamma(100, 2.0**-24) > 100 * 2.0**-24
    assert gamma(2**24, 2.0**-24) == math.inf


def test_fewer_digits_of_products_count():
    device = torch.device("cpu")
    assert unit_roundoff(torch.float32, device) == 2.0**-24
    assert unit_roundoff(torch.float64, device) == 2.0**-53
    assert unit_roundoff(torch.bfloat16, device) == 2.0**-8
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert unit_roundoff(torch.float32, device) == 2.0**-8
        assert unit_roundoff(torch.float64, device) == 2.0**-53
    finally:
        torch.set_float32_matmul_precision(before)
    assert unit_roundoff(torch.float32, device) == 2.0**-24


# ---- norms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 40, 300])
def test_the_norm_of_a_matrix_of_rank_one_is_not_below_the_exact_one(size):
    for seed in range(5):
        numbers = torch.Generator().manual_seed(seed)
        left, right = (torch.randint(-1000, 1000, (count,), generator=numbers) for count in (size, size + seed))
        left[0], right[0] = 999, 998
        exact = Fraction(int(left.square().sum())) * Fraction(int(right.square().sum()))
        layer = Linear((left[:, None] * right).double(), None)
        found = Fraction(float(norm_upper(layer, (len(right),), (size,))))
        assert exact <= found**2 <= exact * (1 + Fraction(1, 10**8))


def test_an_eigenvalue_that_is_found_too_small_is_corrected(monkeypatch):
    weight = torch.randn(30, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = float(norm_upper(Linear(weight, None), (20,), (30,)))
    real = torch.linalg.eigvalsh
    for factor in (1 - 1e-9, 1 - 1e-7, 0.9):
        monkeypatch.setattr(torch.linalg, "eigvalsh", lambda one, factor=factor: real(one) * factor)
        found = float(norm_upper(Linear(weight, None), (20,), (30,)))
        assert found >= exact * (1 - 2e-9)
        assert found <= exact * (1 + 2e-6) or factor == 0.9  # then all that is left is the sum of all eigenvalues

"""Plausible mistakes in the bounds, each of which a check of claims.py must catch. The real code passes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from baselines.claims import METHODS, escapes, overclaims, tiny_cases, undercuts
from baselines.oracles import FAMILIES, Case, Residual, dense, random_network, steep_case
from smoothcert.baselines import lipschitz, relaxation, search, spectral
from smoothcert.baselines.entry import Entry
from smoothcert.baselines.network import read_network
from smoothcert.baselines.operations import Affine, Conv, Shape, Sum
from smoothcert.baselines.relaxation import Lines, Pooled, Relaxation, margin_rows
from smoothcert.baselines.spectral import norm_estimate, norm_upper
from smoothcert.training.loop import seeded

Patch = Callable[[pytest.MonkeyPatch], None]

# ---- norms --------------------------------------------------------------------------------------------------------


def doubled() -> nn.Module:
    linear = nn.Linear(4, 4)
    return Residual(linear, linear)


STEEP: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "linear": (lambda: nn.Linear(6, 9), (6,)),
    "patches": (lambda: nn.Conv2d(2, 3, 2, stride=2), (2, 4, 4)),
    "padded": (lambda: nn.Conv2d(1, 2, 3, padding=2), (1, 2, 2)),
    "dilated": (lambda: nn.Conv2d(1, 2, 2, dilation=2, padding=1), (1, 3, 3)),
    "sum": (doubled, (4,)),
}


def steep_cases() -> Iterator[Case]:
    for name, (layer, shape) in STEEP.items():
        yield steep_case(name, seeded(layer, seed=1), shape)
    yield overlapping()


def overlapping() -> Case:
    """One pixel that is the largest of four windows."""
    model = nn.Sequential(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(4, 2)).double().requires_grad_(False)
    model[2].weight.copy_(torch.tensor([[1.0], [-1.0]]).expand(2, 4))
    model[2].bias.copy_(torch.tensor([-400.0 + 0.5, 400.0 - 0.5]))
    x = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    x[0, 0, 1, 1] = 100
    return Case("overlapping", model, x, torch.tensor([0]), torch.tensor([1 / 8], dtype=torch.float64))


def test_the_real_bound_passes_where_networks_are_steep():
    assert list(overclaims(METHODS["lipschitz"], steep_cases())) == []


def without_padding(operation: Affine, before: Shape, after: Shape) -> Tensor:
    if not isinstance(operation, Conv):
        return norm_upper(operation, before, after)
    inner = replace(operation, padding=(0, 0), weight=operation.weight[..., :2, :2], dilation=(1, 1))
    return torch.tensor(np.linalg.svd(dense(inner.linear, before)[0], compute_uv=False)[0])


def largest_entry(operation: Affine, before: Shape, after: Shape) -> Tensor:
    if isinstance(operation, Conv):
        return operation.weight.abs().max()
    return norm_upper(operation, before, after)


def kernel_only(operation: Affine, before: Shape, after: Shape) -> Tensor:
    """The kernel as a matrix, as if every pixel were in one window."""
    if isinstance(operation, Conv):
        return torch.linalg.matrix_norm(operation.weight.flatten(1), 2)
    return norm_upper(operation, before, after)


NORMS: dict[str, Callable[[Affine, Shape, Shape], Tensor]] = {
    "power iteration stopped early": partial(norm_estimate, steps=1),
    "power iteration, not proved": partial(norm_estimate, steps=10),
    "padding ignored": without_padding,
    "the kernel's largest entry": largest_entry,
    "the kernel as a matrix": kernel_only,
    "rounded down a little": lambda operation, before, after: norm_upper(operation, before, after) * (1 - 1e-7),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_is_too_small_is_caught(monkeypatch, name):
    for function in (lipschitz.margin_slopes, lipschitz.lipschitz_constant):
        monkeypatch.setattr(function, "__defaults__", (NORMS[name],))
    assert any("certified" in word for word in overclaims(METHODS["lipschitz"], steep_cases()))


def larger_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = lipschitz._growth

    def patched(nodes, place, norm, inputs):
        if isinstance(nodes[place].operation, Sum):
            return torch.stack(inputs).max()
        return growth(nodes, place, norm, inputs)

    monkeypatch.setattr(lipschitz, "_growth", patched)


def coarse_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_by_frequencies", lambda operation, _: operation.weight.sum((2, 3)).norm())


SLOPES_TOO_SMALL: dict[str, Patch] = {
    "the larger branch of a sum": larger_branch,
    "overlapping windows forgotten": lambda patch: patch.setattr(lipschitz, "overlap", lambda *_: 1),
    "overlapping windows of convolutions forgotten": lambda patch: patch.setattr(spectral, "overlap", lambda *_: 1),
    "one frequency alone": coarse_frequencies,
}


@pytest.mark.parametrize("name", SLOPES_TOO_SMALL)
def test_a_slope_that_is_too_small_is_caught(monkeypatch, name):
    SLOPES_TOO_SMALL[name](monkeypatch)
    assert any("certified" in word for word in overclaims(METHODS["lipschitz"], steep_cases()))


# ---- lines --------------------------------------------------------------------------------------------------------

real_lines = relaxation.relu_lines


def with_lines(lower: float = 1.0, upper: float = 1.0, intercept: float = 1.0) -> Patch:
    """Lines whose slopes and intercepts are wrong by factors where ReLU bends."""

    def lines(low: Tensor, high: Tensor, slopes: relaxation.Slopes) -> Lines:
        real, bent = real_lines(low, high, slopes), (low < 0) & (high > 0)
        factors = [torch.where(bent, factor, 1.0) for factor in (lower, upper, intercept)]
        return Lines(real.lower * factors[0], real.upper * factors[1], real.intercept * factors[2])

    return lambda patch: patch.setattr(relaxation, "relu_lines", lines)


def swapped_signs(self: Relaxation, rows: Tensor, lines: Lines) -> tuple[Tensor, Tensor, Tensor]:
    positive, intercept = rows.clamp_min(0), lines.intercept.flatten(1)
    below = torch.einsum("bsd,bd->bs", -positive.flatten(2), intercept)
    return (rows - positive) * lines.lower[:, None] + positive * lines.upper[:, None], below, -below


def one_line(self: Relaxation, rows: Tensor, lines: Lines) -> tuple[Tensor, Tensor, Tensor]:
    """The line below ReLU for coefficients of either sign."""
    nothing = rows.new_zeros(rows.shape[:2])
    return rows * lines.lower[:, None], nothing, nothing


def dead_from_the_start(patch: pytest.MonkeyPatch) -> None:
    """Units that are off at x counted as off in the whole ball."""

    def lines(low: Tensor, high: Tensor, slopes: relaxation.Slopes) -> Lines:
        return real_lines(low, torch.where(low + high < 0, torch.zeros_like(high), high), slopes)

    patch.setattr(relaxation, "relu_lines", lines)


real_pool, real_start = Relaxation._through_pool, relaxation.start


def pool_signs(self: Relaxation, rows: Tensor, pooled: Pooled, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    kept, below, above = real_pool(self, -rows, pooled, shape)
    return -kept, -below, -above


def start_without_offset(nodes, place, units, like):
    pending, constant = real_start(nodes, place, units, like)
    return pending, torch.zeros_like(constant)


def drop_a_rival(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        search, "margin_rows", lambda *given: margin_rows(*given)[:, 1:] if given[1] > 2 else margin_rows(*given)
    )


def always_sure(patch: pytest.MonkeyPatch) -> None:
    real = relaxation.pool_bounds
    patch.setattr(
        relaxation, "pool_bounds", lambda *given: replace(real(*given), sure=torch.ones_like(real(*given).sure))
    )


def least_instead_of_most(patch: pytest.MonkeyPatch) -> None:
    real = relaxation.pool_bounds
    patch.setattr(
        relaxation,
        "pool_bounds",
        lambda low, high, pool: replace(real(low, high, pool), most=real(low, low, pool).most),
    )


def smaller_reach(patch: pytest.MonkeyPatch) -> None:
    real = Relaxation._at_input

    def patched(self: Relaxation, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        center, reach = real(self, coefficients)
        return center, 0.9 * reach

    patch.setattr(Relaxation, "_at_input", patched)


def slow_units(patch: pytest.MonkeyPatch) -> None:
    real = lipschitz.Deviations._all_slopes
    patch.setattr(lipschitz.Deviations, "_all_slopes", lambda self: [0.2 * one for one in real(self)])
    patch.setattr(search, "deviations", lipschitz.Deviations)


def removed_too_early(patch: pytest.MonkeyPatch) -> None:
    """Units removed that are off at x, though not in the whole ball."""
    real = Relaxation._remove_inactive

    def patched(self: Relaxation, place: int) -> None:
        source = self._nodes[place].inputs[0]
        low, high = self.intervals[source]
        self.intervals[source] = low, torch.where(self._values[source] < 0, 0 * high, high)
        real(self, place)
        self.intervals[source] = low, high

    patch.setattr(Relaxation, "_remove_inactive", patched)


def entry_too_short(patch: pytest.MonkeyPatch) -> None:
    real = Entry.norms
    patch.setattr(Entry, "norms", lambda self, rows: 0.9 * real(self, rows))


EVERY = tuple(FAMILIES)
WIDE = ("more inputs than units",)
POOLING = ("max-pool, then ReLU", "ReLU, then max-pool")
RELAXED: dict[str, tuple[Patch, str, tuple[str, ...]]] = {
    "no intercept": (with_lines(intercept=0.0), "same", EVERY),
    "no intercept, adaptive": (with_lines(intercept=0.0), "adaptive", EVERY),
    "an intercept a little too small": (with_lines(intercept=0.9), "same", EVERY),
    "a line above ReLU below the chord": (with_lines(upper=0.8), "adaptive", EVERY),
    "the chord not as steep": (with_lines(lower=0.8, upper=0.8), "same", EVERY),
    "a line below ReLU steeper than it": (with_lines(lower=1.3), "adaptive", EVERY),
    "signs swapped at ReLU": (lambda p: p.setattr(Relaxation, "_through_relu", swapped_signs), "same", EVERY),
    "one line for both signs": (lambda p: p.setattr(Relaxation, "_through_relu", one_line), "adaptive", EVERY),
    "off once, off for ever": (dead_from_the_start, "adaptive", EVERY),
    "signs swapped at max-pooling": (lambda p: p.setattr(Relaxation, "_through_pool", pool_signs), "same", POOLING),
    "the largest pixel always known": (always_sure, "adaptive", POOLING),
    "the least instead of the most": (least_instead_of_most, "adaptive", POOLING),
    "a rival dropped": (drop_a_rival, "adaptive", EVERY),
    "a ball too small": (smaller_reach, "adaptive", EVERY),
    "units removed that may be on": (removed_too_early, "adaptive", ("one layer", "two layers")),
    "norms of the entry too small": (entry_too_short, "same", WIDE),
    "units said to be slower than they are": (slow_units, "same", ("two layers", "residual")),
}


@pytest.mark.parametrize("name", RELAXED)
def test_a_broken_relaxation_is_caught(monkeypatch, name):
    patch, method, families = RELAXED[name]
    cases = list(tiny_cases(8, families))
    patch(monkeypatch)
    assert any("certified" in word for word in overclaims(METHODS[method], cases))


def test_offsets_that_are_forgotten_are_caught(monkeypatch):
    network, x, eps = two_layers(0)
    assert list(escapes(Relaxation(network, x, eps, "same"), network, x, eps)) == []
    monkeypatch.setattr(relaxation, "start", start_without_offset)
    assert list(escapes(Relaxation(network, x, eps, "same"), network, x, eps)) != []


# ---- bounds that are known ----------------------------------------------------------------------------------------


def two_layers(seed: int):
    model, shape = random_network("two layers", seed)
    x = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return read_network(model, shape), x, torch.full((4,), 0.6, dtype=torch.float64)


def known_from(share: float) -> list[str]:
    """What is wrong with relaxations that take for granted what holds within balls of another size."""
    found = []
    for seed in range(5):
        network, x, eps = two_layers(seed)
        known = Relaxation(network, x, share * eps, "adaptive").intervals
        relaxed = Relaxation(network, x, eps, "adaptive", known=known)
        rows = margin_rows(network(x).argmax(1), network.nodes[-1].shape[0], x)
        found += [*escapes(relaxed, network, x, eps), *undercuts(relaxed, network, x, eps, rows)]
    return found


def test_bounds_that_hold_within_a_smaller_ball_only_are_caught():
    assert known_from(1.0) == []
    assert known_from(1.4) == []
    assert len(known_from(0.5)) > 2


def test_a_search_that_remembers_what_held_within_smaller_balls_is_corrected_by_the_confirmation(monkeypatch):
    """The search overdoes it then, but what it finds is confirmed without memory."""
    real = search._Margins.__call__

    def forgetful(self: search._Margins, eps: Tensor, places: Tensor) -> Tensor:
        margins = real(self, eps, places)
        if self._remember:
            relaxed = Relaxation(self._network, self._x[places], eps.to(self._x), self._slopes)
            self._keep(relaxed, torch.full_like(eps.to(self._x), torch.inf), places, torch.ones_like(margins) > 0)
        return margins

    monkeypatch.setattr(search._Margins, "__call__", forgetful)
    cases = list(tiny_cases(20, ["two layers"]))
    assert list(overclaims(METHODS["adaptive"], cases)) == []
    monkeypatch.setattr(search, "confirmed", lambda _, found: found.double())
    assert any("certified" in word for word in overclaims(METHODS["adaptive"], cases))

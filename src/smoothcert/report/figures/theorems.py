"""Theorem 1 beside the guarantees before it, as radii, as certified accuracy, and over their tuning parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from smoothcert.errors import ConfigError
from smoothcert.records import Certificate
from smoothcert.report.figures.canvas import (
    PALETTE,
    add_grid,
    draw_accuracy,
    finish_accuracy,
    new_axes,
    new_figure,
    style,
)
from smoothcert.report.figures.evidence import claims_of
from smoothcert.runs.directory import Run
from smoothcert.stats.radii import cohen_radius, lecuyer_radius, li_radius

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Bound = Callable[[Floats, Floats, Floats], Floats]
"""From a tuning parameter, p_A and p_B to the radius at σ = 1, elementwise; 0 where the parameter is not allowed."""

COHEN, LI, LECUYER = "Theorem 1 (Cohen et al. 2019)", "Li et al. 2019", "Lecuyer et al. 2019"
_BETAS = (0.1, 0.2, 0.4, 0.7, 1.0)
_ORDERS = (0.1, 0.5, 1.5, 5.0, 20.0)
_LECUYER_AT, _LI_AT = (0.8, 0.2), (0.999, 0.0001)  # p_A and p_B of the plots in the paper's Appendix I
_LARGEST_BETA, _SMALLEST_ORDER, _LARGEST_ORDER = 1.0, 1e-3, 1e3


def lecuyer_at(beta: Floats, p_a: Floats, p_b: Floats) -> Floats:
    """The radius of Lecuyer et al. 2019 for one β: σβ / sqrt(2·ln(1.25(1 + e^β) / (p_A − e^{2β}·p_B)))."""
    gap = p_a - np.exp(2 * beta) * p_b
    allowed = (beta > 0) & (beta <= _LARGEST_BETA) & (gap > 0)
    ratio = 1.25 * (1 + np.exp(beta)) / np.where(allowed, gap, 1.0)
    return np.where(allowed, beta / np.sqrt(2 * np.log(ratio)), 0.0)


def li_at(order: Floats, p_a: Floats, p_b: Floats) -> Floats:
    """The radius of Li et al. 2019 by the Rényi divergence of order a: σ·sqrt(−(2/a)·ln(1 − p_A − p_B + 2M)).

    M is the power mean of p_A and p_B of order 1 − a; see `stats.radii.li_radius` for why it is that mean.
    """
    power = np.where(np.abs(1 - order) < 1e-9, 1e-9, 1 - order)
    logs = np.log(p_a), np.log(p_b)
    mean = np.exp((np.logaddexp(power * logs[0], power * logs[1]) - math.log(2)) / power)
    inner = 1 - p_a - p_b + 2 * mean
    return np.where((p_a > p_b) & (inner < 1), np.sqrt(np.maximum(-2 / order * np.log(inner), 0.0)), 0.0)


def _best(bound: Bound, parameters: Floats, p_a: Floats, p_b: Floats) -> Floats:
    """The largest radius over the tuning parameter, for each p_A and p_B, on a grid that closes in on its best point.

    Every parameter gives a true radius, so stopping early can only make the radius smaller.
    """
    low, high = np.full(p_a.shape, parameters[0]), np.full(p_a.shape, parameters[-1])
    best = np.zeros(p_a.shape)
    steps = np.linspace(0, 1, 33)
    for _ in range(9):
        at = low[:, None] * (high / low)[:, None] ** steps
        values = bound(at, p_a[:, None], p_b[:, None])
        top = values.argmax(axis=1)
        rows = np.arange(len(top))
        best = np.maximum(best, values[rows, top])
        low, high = at[rows, np.maximum(top - 1, 0)], at[rows, np.minimum(top + 1, 32)]
    return best


def prior_bounds_figure() -> Figure:
    """The radius that each known theorem gives for p_A at σ = 1 and p_B = 1 − p_A."""
    p_a = np.concatenate([np.linspace(0.501, 0.99, 120), 1 - np.geomspace(0.01, 0.001, 30)])
    theorems = {
        COHEN: lambda q: float(cohen_radius(q, sigma=1.0)),
        LI: lambda q: li_radius(q, sigma=1.0),
        LECUYER: lambda q: lecuyer_radius(q, sigma=1.0),
    }
    with style():
        figure, axes = new_axes()
        for color, (name, radius) in zip(PALETTE, theorems.items(), strict=False):
            axes.plot(p_a, [radius(1 - p) for p in p_a], color=color, label=name)
        axes.set(xlabel="probability $p_A$ of the top class under noise", ylabel="certified radius at σ = 1")
        axes.set(xlim=(0.5, 1), ylim=(0, None))
        axes.legend(loc="upper left")
    return figure


def theorem_radius(_: Sequence[Run]) -> Figure:
    """The radius against p_A for the three theorems: Cohen et al. 2019, Section 3.1; needs no run."""
    return prior_bounds_figure()


def theorem_accuracy(runs: Sequence[Run], *, limit: float | None = None) -> Figure:
    """Certified accuracy by Theorem 1, Li et al. and Lecuyer et al., from the same bounds on p_A and p_B."""
    (run,) = runs
    claims = claims_of(run)
    with style():
        figure, axes = new_axes()
        for color, (name, radii) in zip(PALETTE, theorem_radii(run).items(), strict=False):
            draw_accuracy(axes, radii, claims.counted, name, color=color)
        finish_accuracy(axes, claims.ylabel, limit=limit)
        axes.set_title(f"σ = {run.sigma:g}, α = {run.manifest.values['alpha']:g}")
    return figure


def theorem_radii(run: Run) -> dict[str, Floats]:
    """The radius of each input by each theorem."""
    q_a, p_b = _probabilities(run)
    known = q_a < 1
    p_a, p_rival = np.where(known, 1 - q_a, 0.5), np.where(known, p_b, 0.5)  # a tie, of which no bound claims anything
    li = _best(li_at, np.array([_SMALLEST_ORDER, _LARGEST_ORDER]), p_a, p_rival)
    lecuyer = _best(lecuyer_at, np.array([1e-4, _LARGEST_BETA]), p_a, p_rival)
    return {
        COHEN: np.asarray(cohen_radius(q_a, p_b, sigma=run.sigma)),
        LI: run.sigma * (1 - 1e-12) * li,
        LECUYER: run.sigma * (1 - 1e-12) * lecuyer,
    }


def _probabilities(run: Run) -> tuple[Floats, Floats]:
    """Upper bounds on 1 − p_A and on p_B for each input, both 1 where nothing is known."""
    if run.manifest.kind == "import":  # a radius of CERTIFY says which bound on p_A it was made of
        radii = np.array(run.table()["radius"])
        q_a = np.where(radii > 0, ndtr(-radii / run.sigma), 1.0)
        return q_a, q_a
    if not run.has_votes:
        raise ConfigError(f"{run.path} holds deterministic bounds, to which other theorems do not apply.")
    found = [_bounds(run, result) for result in run.certificates]
    q_a, p_b = np.array(found, np.float64).T
    return q_a, np.minimum(p_b, q_a)


def _bounds(run: Run, result: object) -> tuple[float, float]:
    if not isinstance(result, Certificate) or result.bounds.label is None:
        return 1.0, 1.0
    if result.bounds.separation is not None:
        raise ConfigError(
            f"{run.path} bounds no probabilities under the smoothing noise: it was certified at a grid of radii, or by "
            "draws from a wider noise. Needed is a run of `smoothcert certify --procedure paper` or `planned`, a log, "
            "or a file of votes."
        )
    return result.bounds.q_a_upper, result.bounds.p_b_upper


def tuning(_: Sequence[Run]) -> Figure:
    """The bounds of Lecuyer et al. and Li et al. over their tuning parameters: Cohen et al. 2019, Appendix I."""
    with style():
        figure = new_figure(6.8, 5.0)
        grid = figure.subplots(2, 2)
        for axes in grid.flat:
            add_grid(axes)
        _draw_settings(grid[0, 0], lecuyer_at, _BETAS, "β", (1e-4, _LARGEST_BETA))
        _draw_settings(grid[0, 1], li_at, _ORDERS, "a", (_SMALLEST_ORDER, _LARGEST_ORDER))
        _draw_tuned(grid[1, 0], lecuyer_at, np.linspace(0.002, _LARGEST_BETA, 500), _LECUYER_AT, "β")
        _draw_tuned(grid[1, 1], li_at, np.geomspace(0.01, 100, 500), _LI_AT, "Rényi order a")
        grid[1, 1].set_xscale("log")
        grid[0, 0].set_title(LECUYER)
        grid[0, 1].set_title(LI)
    return figure


def _draw_settings(axes: Axes, bound: Bound, settings: Sequence[float], name: str, ends: tuple[float, float]) -> None:
    """The radius against p_A for some settings of the tuning parameter, and the best over all of them."""
    p_a = np.concatenate([np.linspace(0.501, 0.99, 200), 1 - np.geomspace(0.01, 0.001, 60)])
    axes.plot(p_a, _best(bound, np.array(ends), p_a, 1 - p_a), color="0.7", linewidth=3.5, label="best")
    for color, setting in zip(PALETTE, settings, strict=False):
        radii = bound(np.array(setting), p_a, 1 - p_a)
        shown = np.where(radii > 0, radii, np.nan)  # where the setting is not allowed there is no curve
        axes.plot(p_a, shown, color=color, linewidth=1.2, label=f"{name} = {setting:g}")
    axes.set(xlabel="$p_A$, with $p_B = 1 − p_A$", ylabel="radius at σ = 1", xlim=(0.5, 1), ylim=(0, None))
    axes.legend(loc="upper left", fontsize=8, labelspacing=0.3)


def _draw_tuned(axes: Axes, bound: Bound, parameters: Floats, at: tuple[float, float], name: str) -> None:
    """The radius against the tuning parameter for one p_A and p_B, with its best point."""
    p_a, p_b = np.full(len(parameters), at[0]), np.full(len(parameters), at[1])
    radii = bound(parameters, p_a, p_b)
    allowed = radii > 0
    axes.plot(parameters[allowed], radii[allowed], color=PALETTE[0])
    top = int(radii.argmax())
    axes.plot(parameters[top], radii[top], "o", color=PALETTE[1], markersize=4.5)
    axes.set(xlabel=name, ylabel="radius at σ = 1", ylim=(0, None))
    axes.set_title(f"$p_A$ = {at[0]:g}, $p_B$ = {at[1]:g}")

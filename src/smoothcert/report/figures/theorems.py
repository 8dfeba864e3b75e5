"""Theorem 1 beside the guarantees before it, as radii, as certified accuracy, and over their tuning parameters."""

from __future__ import annotations

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
from smoothcert.stats.radii import cohen_radius, lecuyer_at, lecuyer_radius, li_at, li_radius

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Bound = Callable[[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], Floats]
"""From a tuning parameter, 1 − p_A and p_B to the radius at σ = 1; 0 where the parameter is not allowed."""

COHEN, LI, LECUYER = "Theorem 1 (Cohen et al. 2019)", "Li et al. 2019", "Lecuyer et al. 2019"
_BETAS = (0.1, 0.2, 0.4, 0.7, 1.0)
_ORDERS = (0.1, 0.5, 1.5, 5.0, 20.0)
_LECUYER_AT, _LI_AT = (0.8, 0.2), (0.999, 0.0001)  # p_A and p_B of the plots in the paper's Appendix I


def prior_bounds_figure() -> Figure:
    """The radius that each known theorem gives for p_A at σ = 1 and p_B = 1 − p_A."""
    p_a = np.concatenate([np.linspace(0.501, 0.99, 120), 1 - np.geomspace(0.01, 0.001, 30)])
    theorems = {COHEN: cohen_radius, LI: li_radius, LECUYER: lecuyer_radius}
    with style():
        figure, axes = new_axes()
        for color, (name, radius) in zip(PALETTE, theorems.items(), strict=False):
            axes.plot(p_a, radius(1 - p_a, sigma=1.0), color=color, label=name)
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
    theorems = {COHEN: cohen_radius, LI: li_radius, LECUYER: lecuyer_radius}
    return {name: np.asarray(radius(q_a, p_b, sigma=run.sigma)) for name, radius in theorems.items()}


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
            f"{run.path} has no radii by Theorem 1 alone: it was certified at a grid of radii, with a margin, or by "
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
        _draw_settings(grid[0, 0], lecuyer_at, lecuyer_radius, _BETAS, "β")
        _draw_settings(grid[0, 1], li_at, li_radius, _ORDERS, "a")
        _draw_tuned(grid[1, 0], lecuyer_at, np.linspace(0.002, 1.0, 500), _LECUYER_AT, "β")
        _draw_tuned(grid[1, 1], li_at, np.geomspace(0.01, 100, 500), _LI_AT, "Rényi order a")
        grid[1, 1].set_xscale("log")
        grid[0, 0].set_title(LECUYER)
        grid[0, 1].set_title(LI)
    return figure


def _draw_settings(
    axes: Axes, bound: Bound, best: Callable[..., npt.ArrayLike], settings: Sequence[float], name: str
) -> None:
    """The radius against p_A for some settings of the tuning parameter, and the best over all of them."""
    p_a = np.concatenate([np.linspace(0.501, 0.99, 200), 1 - np.geomspace(0.01, 0.001, 60)])
    axes.plot(p_a, best(1 - p_a, sigma=1.0), color="0.7", linewidth=3.5, label="best")
    for color, setting in zip(PALETTE, settings, strict=False):
        radii = bound(setting, 1 - p_a, 1 - p_a)
        shown = np.where(radii > 0, radii, np.nan)  # where the setting is not allowed there is no curve
        axes.plot(p_a, shown, color=color, linewidth=1.2, label=f"{name} = {setting:g}")
    axes.set(xlabel="$p_A$, with $p_B = 1 − p_A$", ylabel="radius at σ = 1", xlim=(0.5, 1), ylim=(0, None))
    axes.legend(loc="upper left", fontsize=8, labelspacing=0.3)


def _draw_tuned(axes: Axes, bound: Bound, parameters: Floats, at: tuple[float, float], name: str) -> None:
    """The radius against the tuning parameter for one p_A and p_B, with its best point."""
    radii = bound(parameters, 1 - at[0], at[1])
    allowed = radii > 0
    axes.plot(parameters[allowed], radii[allowed], color=PALETTE[0])
    top = int(radii.argmax())
    axes.plot(parameters[top], radii[top], "o", color=PALETTE[1], markersize=4.5)
    axes.set(xlabel=name, ylabel="radius at σ = 1", ylim=(0, None))
    axes.set_title(f"$p_A$ = {at[0]:g}, $p_B$ = {at[1]:g}")

"""What would be certified with more or fewer draws, or at another failure probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_alpha, check_count, check_sigma
from smoothcert.errors import ConfigError
from smoothcert.records import floor_decimal
from smoothcert.report.figures.canvas import (
    PALETTE,
    add_note,
    draw_accuracy,
    finish_accuracy,
    line_style,
    new_axes,
    style,
)
from smoothcert.report.figures.evidence import claims_of
from smoothcert.report.projection import bounds_rival, projected_radii, settled_votes
from smoothcert.runs.directory import Run
from smoothcert.runs.scope import certified_margin
from smoothcert.stats.radii import max_radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
ALPHAS = (0.1, 0.01, 0.001, 0.0001, 0.00001)


def other_n(runs: Sequence[Run], *, n: Sequence[int] = DRAWS, limit: float | None = None) -> Figure:
    """Certified accuracy if CERTIFY had used n draws and the shares of the votes had stayed the same.

    Cohen et al. 2019, Section 4: projections, for which nothing was drawn.
    """
    (run,) = runs
    votes, alpha = settled_votes(run), float(run.manifest.values["alpha"])
    settings = {"sigma": run.sigma, "alpha": alpha, "runner_up": bounds_rival(run), "margin": certified_margin(run)}
    curves = {f"n = {check_count('n', count):,}": projected_radii(votes, n=count, **settings) for count in n}
    note = f"projection, not a certificate; σ = {run.sigma:g}, α = {alpha:g}"
    return _projected(run, curves, votes.correct, note, limit)


def other_alpha(runs: Sequence[Run], *, alphas: Sequence[float] = ALPHAS, limit: float | None = None) -> Figure:
    """Certified accuracy if the failure probability had been another: Cohen et al. 2019, Section 4.

    Computed from the same votes; a certificate only for an α that was settled before they were seen.
    """
    (run,) = runs
    votes = settled_votes(run)
    settings = {"sigma": run.sigma, "runner_up": bounds_rival(run), "margin": certified_margin(run)}
    curves = {
        f"α = {_decimal(check_alpha(alpha))}": projected_radii(votes, alpha=alpha, **settings) for alpha in alphas
    }
    note = f"projection, not a certificate; σ = {run.sigma:g}"
    return _projected(run, curves, votes.correct, note, limit)


def _decimal(value: float) -> str:
    """A small number without exponent, as long as that is readable."""
    return np.format_float_positional(value, trim="-") if value >= 1e-7 else f"{value:g}"


def _projected(
    run: Run,
    curves: dict[str, npt.NDArray[np.float64]],
    correct: npt.NDArray[np.bool_],
    note: str,
    limit: float | None,
) -> Figure:
    if not curves:
        raise ConfigError("Expected at least one number to project to, got none.")
    ylabel = claims_of(run).ylabel
    with style():
        figure, axes = new_axes()
        for i, (name, radii) in enumerate(curves.items()):
            draw_accuracy(axes, radii, correct, name, **line_style(i))
        finish_accuracy(axes, f"projected {ylabel}", limit=limit)
        add_note(axes, note)
    return figure


def radius_by_draws_figure(sigma: float, alpha: float, marked: Sequence[int] = ()) -> Figure:
    """The largest radius that n draws can certify, against n, with the numbers in `marked` picked out."""
    check_sigma(sigma)
    check_alpha(alpha)
    marks = [check_count("n", n) for n in marked]
    low, high = min([10, *marks]), max([1_000_000, *marks])
    draws = np.unique(np.geomspace(low, high, 200).round().astype(np.int64))
    with style():
        figure, axes = new_axes()
        axes.plot(draws, [max_radius(int(n), alpha, sigma) for n in draws], color=PALETTE[0])
        axes.plot(marks, [max_radius(n, alpha, sigma) for n in marks], "o", color=PALETTE[1], markersize=5)
        for n in marks:
            radius = max_radius(n, alpha, sigma)
            axes.annotate(floor_decimal(radius, 3), (n, radius), (4, -11), textcoords="offset points")
        axes.set_xscale("log")
        axes.set(xlabel="draws n", ylabel="largest radius that can be certified")
        axes.set_title(f"σ = {sigma:g}, α = {alpha:g}: all n votes for one class")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.08)
    return figure


def best_radius(
    _: Sequence[Run], *, sigma: float = 1.0, alpha: float = 0.001, n: Sequence[int] = (1_000, 10_000, 100_000)
) -> Figure:
    """The largest radius that n draws can certify, σ·Φ⁻¹(α^(1/n)): Cohen et al. 2019, Section 3.2.2; needs no run."""
    return radius_by_draws_figure(sigma, alpha, n)

"""Certified accuracy against radius: of several runs, of other training noise, with lower bounds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError, InputError
from smoothcert.report.figures.canvas import (
    DASHED,
    DOTTED,
    PALETTE,
    dots,
    draw_accuracy,
    finish_accuracy,
    line_style,
    new_axes,
    style,
)
from smoothcert.report.figures.evidence import check_norms, claims_of, names_of, shared_ylabel
from smoothcert.runs.directory import Run
from smoothcert.runs.scope import certified_margin, inputs_in_words
from smoothcert.stats.accuracy import accuracy_curve
from smoothcert.stats.test_set import bernstein_lower_bound, simultaneous_lower_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def certified_accuracy_figure(
    curves: Mapping[float, tuple[npt.ArrayLike, npt.ArrayLike]], undefended: npt.ArrayLike | None = None
) -> Figure:
    """Certified accuracy against radius, one curve per σ, as in Cohen et al. 2019, Section 4.

    Args:
        curves: for each σ the radii and whether each class is the true one.
        undefended: the sizes of the perturbations that fooled an undefended classifier, 0 where it was wrong
            already: what survives them bounds its robust accuracy from above.
    """
    if not curves:
        raise InputError("Expected at least one curve, got none.")
    with style():
        figure, axes = new_axes()
        for i, (sigma, (radii, correct)) in enumerate(sorted(curves.items())):
            draw_accuracy(axes, radii, correct, f"σ = {sigma:g}", **line_style(i))
        if undefended is not None:
            _draw_undefended(axes, undefended)
        finish_accuracy(axes)
    return figure


def _draw_undefended(axes: Axes, norms: npt.ArrayLike) -> None:
    found = check_norms(norms)
    label = "undefended (upper bound)"
    draw_accuracy(axes, found, found > 0, label, color="black", linestyle=DASHED, linewidth=1.2)


def accuracy_of_runs(
    runs: Sequence[Run],
    *,
    names: Sequence[str] | None = None,
    undefended: npt.ArrayLike | None = None,
    limit: float | None = None,
) -> Figure:
    """Certified accuracy against radius, one curve per run; dashed what an attack leaves of an undefended network.

    The curve of a grid run has a dot at each tested radius and ends at the last. Between two dots it is drawn at the
    height of the right one, which the accuracy is never below.
    """
    claims = [claims_of(run) for run in runs]
    with style():
        figure, axes = new_axes()
        for i, (claim, name) in enumerate(zip(claims, names_of(runs, names), strict=True)):
            draw_accuracy(axes, claim.radii, claim.counted, name, tested=claim.tested, **line_style(i))
        if undefended is not None:
            _draw_undefended(axes, undefended)
        finish_accuracy(axes, shared_ylabel(claims), limit=limit)
    return figure


def training_noise(
    runs: Sequence[Run], *, trained: Sequence[float] | None = None, limit: float | None = None
) -> Figure:
    """Networks trained at several noise levels and smoothed at one: Cohen et al. 2019, Appendix H.3.

    `trained` are the noise levels of the trainings, where the runs do not know them.
    """
    sigmas = sorted({run.sigma for run in runs})
    if len(sigmas) > 1:
        raise ConfigError(f"Expected runs at one noise level, got σ = {', '.join(f'{sigma:g}' for sigma in sigmas)}.")
    if len({certified_margin(run) for run in runs}) > 1:
        raise ConfigError("Expected runs with one margin: radii with different margins are not comparable.")
    levels = _trained_levels(runs, trained)
    claims = [claims_of(run) for run in runs]
    with style():
        figure, axes = new_axes()
        for i, place in enumerate(np.argsort(levels, kind="stable")):
            width = 2.4 if levels[place] == sigmas[0] else 1.4  # the one that was trained for this noise stands out
            name, claim = f"trained at σ = {levels[place]:g}", claims[place]
            look = {"linewidth": width, **line_style(i)}
            draw_accuracy(axes, claim.radii, claim.counted, name, tested=claim.tested, **look)
        finish_accuracy(axes, shared_ylabel(claims), limit=limit)
        axes.set_title(f"smoothed at σ = {sigmas[0]:g}")
    return figure


def _trained_levels(runs: Sequence[Run], trained: Sequence[float] | None) -> list[float]:
    levels = [run.manifest.values["model"].get("trained_sigma") for run in runs] if trained is None else list(trained)
    if len(levels) != len(runs):
        raise ConfigError(f"Expected the training noise of each of the {len(runs)} runs, got {len(levels)} numbers.")
    unknown = [run.path for run, level in zip(runs, levels, strict=True) if level is None]
    if unknown:
        raise ConfigError(f"{unknown[0]} does not say which noise its network was trained with: give --trained.")
    return [float(level) for level in levels]


def lower_bound(runs: Sequence[Run], *, rho: float = 0.001, limit: float | None = None) -> Figure:
    """Approximate certified accuracy, and what it is at least with probability 1 − ρ, on the inputs certified.

    Cohen et al. 2019, Appendices D and H.2. The first bound holds at all radii at once, the paper's at each by itself.
    Neither says anything about inputs that the run did not certify.
    """
    (run,) = runs
    claims = claims_of(run)
    alpha, inputs = float(run.manifest.values["alpha"]), len(claims.radii)
    if alpha == 0:
        raise ConfigError(f"{run.path} is deterministic: its certified accuracy is no estimate and needs no bound.")
    at, accuracy = accuracy_curve(claims.radii, claims.counted, claims.tested)
    counts = np.rint(accuracy * inputs).astype(np.int64)
    together = np.asarray(simultaneous_lower_bound(counts, inputs, alpha=alpha, rho=rho))
    papers = np.asarray(bernstein_lower_bound(counts, inputs, alpha=alpha, rho=rho))
    with style():
        figure, axes = new_axes()
        for shares, name, color, line in (
            (accuracy, f"approximate, {inputs:,} inputs", PALETTE[0], "solid"),
            (together, "lower bound at all radii at once", PALETTE[1], DASHED),
            (papers, "lower bound of the paper", PALETTE[2], DOTTED),
        ):
            look = {"color": color, "linestyle": line, **dots(at, claims.tested)}
            axes.plot(at, 100 * shares, drawstyle="steps-pre", label=name, **look)
        finish_accuracy(axes, claims.ylabel, limit=limit)
        words = textwrap.fill(inputs_in_words(run), 50)  # as much as fits above the axes
        axes.set_title(f"{words}\nσ = {run.sigma:g}, α = {alpha:g}, ρ = {rho:g}")
    return figure

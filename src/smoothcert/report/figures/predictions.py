"""PREDICT's answers against its number of draws: right or wrong, g's own or not, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smoothcert.report.figures.canvas import PALETTE, new_figure, style
from smoothcert.report.predictions import CATEGORIES, prediction_shares, share_text
from smoothcert.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = dict(zip(CATEGORIES, (PALETTE[2], PALETTE[5], PALETTE[4], PALETTE[1], "0.75"), strict=True))


def predictions(runs: Sequence[Run]) -> Figure:
    """How many answers are correct, accurate or missing, against n: Cohen et al. 2019, Appendix E.2."""
    found = prediction_shares(runs)
    values = found.reference.manifest.values
    with style():
        figure = new_figure(5.2, 3.8)
        bars, table = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.3))
        _draw_bars(bars, found.shares, found.inputs)
        _draw_table(table, found.shares, [f"{n:,}" for n in found.draws])
        bars.set_title(f"σ = {values['sigma']:g}, α = {values['alpha']:g}")
    return figure


def _draw_bars(axes: Axes, shares: Sequence[dict[str, float]], inputs: int) -> None:
    below = [0.0] * len(shares)
    for name, color in _COLORS.items():
        heights = [100 * share[name] for share in shares]
        axes.bar(range(len(shares)), heights, bottom=below, width=0.5, color=color)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.set(ylabel=f"of {inputs:,} inputs (%)", ylim=(0, 100))
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _draw_table(axes: Axes, shares: Sequence[dict[str, float]], columns: Sequence[str]) -> None:
    """The numbers below the bars; the rows' colours are the legend."""
    for column, share in enumerate(shares):
        for row, name in enumerate(CATEGORIES):
            axes.text(column, row, share_text(name, share[name]), ha="center", va="center")
    axes.scatter([-0.62] * len(_COLORS), range(len(_COLORS)), s=42, marker="s", color=list(_COLORS.values()))
    axes.set_yticks(range(len(CATEGORIES)), CATEGORIES)
    axes.set_xticks(range(len(columns)), columns)
    axes.set(xlabel="draws n", xlim=(-0.7, len(columns) - 0.3), ylim=(len(CATEGORIES) - 0.4, -0.6))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)

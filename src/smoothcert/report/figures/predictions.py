"""PREDICT's answers against its number of draws: right or wrong, g's own or not, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smoothcert.errors import ConfigError
from smoothcert.report.figures.canvas import PALETTE, new_figure, style
from smoothcert.report.figures.evidence import draws_setting
from smoothcert.runs.directory import Run
from smoothcert.stats.accuracy import ceil_percent, floor_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CATEGORIES = {
    "correct, accurate": PALETTE[2],
    "correct, inaccurate": PALETTE[5],
    "incorrect, accurate": PALETTE[4],
    "incorrect, inaccurate": PALETTE[1],
    "abstained": "0.75",
}
"""The paper's: correct is the true class, accurate is g's class, which the run with the most draws stands for."""


def predictions(runs: Sequence[Run]) -> Figure:
    """How many answers are correct, accurate or missing, against n: Cohen et al. 2019, Appendix E.2.

    g's class cannot be known for certain: it is taken to be the top class of the run with the most draws, which is not
    shown itself. Where that run has no votes and abstains, no answer counts as accurate.
    """
    ordered = _ordered(runs)
    truths, reference = _truths(ordered[-1]), _top_classes(ordered[-1])
    shares = {draws_setting(run): category_shares(run, truths, reference) for run in ordered[:-1]}
    with style():
        figure = new_figure(5.2, 3.8)
        bars, table = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.3))
        _draw_bars(bars, list(shares.values()), len(truths))
        _draw_table(table, list(shares.values()), [f"{n:,}" for n in shares])
        bars.set_title(f"σ = {ordered[0].sigma:g}, α = {ordered[0].manifest.values['alpha']:g}")
    return figure


def _ordered(runs: Sequence[Run]) -> list[Run]:
    """The runs by their draws; ConfigError unless they answer the same questions."""
    for run in runs:
        if not run.predicts:
            raise ConfigError(f"{run.path} holds certificates. Needed are runs of `smoothcert predict`, or such logs.")
        if draws_setting(run) is None:
            raise ConfigError(f"{run.path} does not say how many draws were made: import its log with --n.")
    ordered = sorted(runs, key=lambda run: draws_setting(run) or 0)
    for name in ("sigma", "alpha"):
        if len({run.manifest.values[name] for run in runs}) > 1:
            raise ConfigError(f"Expected runs that differ in their draws only, they differ in {name}.")
    if len({draws_setting(run) for run in runs}) < len(runs):
        raise ConfigError("Expected each run to have another number of draws, two have the same.")
    if len({tuple(sorted(row["index"] for row in run.rows)) for run in runs}) > 1:
        raise ConfigError("Expected runs on the same inputs, these are on different ones.")
    return ordered


def _truths(run: Run) -> dict[int, int]:
    truths = {row["index"]: row["true"] for row in run.rows}
    if not truths or None in truths.values():
        raise ConfigError(f"Expected the true class of every input in {run.path}, some or all are unknown.")
    return truths


def _top_classes(run: Run) -> dict[int, int | None]:
    """The class with the most votes of all, or the answer where votes are not recorded."""
    found = {}
    for row, result in zip(run.rows, run.certificates, strict=True):
        votes = None if result is None else result.votes
        found[row["index"]] = row.get("label") if votes is None else votes.leader
    return found


def category_shares(run: Run, truths: dict[int, int], reference: dict[int, int | None]) -> dict[str, float]:
    """The share of inputs in each category."""
    counts = dict.fromkeys(CATEGORIES, 0)
    for row in run.rows:
        label, index = row.get("label"), row["index"]
        if label is None:
            counts["abstained"] += 1
        else:
            right = "correct" if label == truths[index] else "incorrect"
            counts[f"{right}, {'accurate' if label == reference[index] else 'inaccurate'}"] += 1
    return {name: count / len(run.rows) for name, count in counts.items()}


def _draw_bars(axes: Axes, shares: Sequence[dict[str, float]], inputs: int) -> None:
    below = [0.0] * len(shares)
    for name, color in CATEGORIES.items():
        heights = [100 * share[name] for share in shares]
        axes.bar(range(len(shares)), heights, bottom=below, width=0.5, color=color)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.set(ylabel=f"of {inputs:,} inputs (%)", ylim=(0, 100))
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _draw_table(axes: Axes, shares: Sequence[dict[str, float]], columns: Sequence[str]) -> None:
    """The numbers below the bars; the rows' colours are the legend."""
    names = list(CATEGORIES)
    for column, share in enumerate(shares):
        for row, name in enumerate(names):
            text = floor_percent if name.startswith("correct") else ceil_percent
            axes.text(column, row, text(share[name]), ha="center", va="center")
    axes.scatter([-0.62] * len(names), range(len(names)), s=42, marker="s", color=list(CATEGORIES.values()))
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(columns)), columns)
    axes.set(xlabel="draws n", xlim=(-0.7, len(columns) - 0.3), ylim=(len(names) - 0.4, -0.6))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)

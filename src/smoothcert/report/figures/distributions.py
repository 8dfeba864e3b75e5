"""How inputs differ: the draws they took, the radii they got, the classes they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError
from smoothcert.records import exact_decimal
from smoothcert.report.figures.canvas import RADIUS, check_limit, line_style, new_axes, style
from smoothcert.report.figures.evidence import claims_of, names_of
from smoothcert.report.naming import lead_text
from smoothcert.runs.directory import Run
from smoothcert.runs.scope import is_decided, radii_tested
from smoothcert.runs.summary import default_radii
from smoothcert.stats.accuracy import ceil_percent, certified_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
_BINS = 30
_MOST_CLASSES = 30
_SHADES = ("#B9D6E8", "#5FA5CF", "#0072B2", "#00486F")  # from light to dark: a larger radius lies on a smaller one


def draws(runs: Sequence[Run], *, names: Sequence[str] | None = None) -> Figure:
    """The share of inputs that were done after so many draws, and the mean of each run."""
    counts = [_draws_of(run) for run in runs]
    with style():
        figure, axes = new_axes()
        for i, (count, name) in enumerate(zip(counts, names_of(runs, names), strict=True)):
            at, steps = np.unique(count, return_counts=True)
            done = np.concatenate([[0.0], np.cumsum(steps) / len(count)])
            label = f"{name}: mean {count.mean():,.0f}"
            axes.plot(np.concatenate([at[:1], at]), 100 * done, drawstyle="steps-post", label=label, **line_style(i))
        axes.set_xscale("log")
        axes.set(xlabel="draws per input, all stages", ylabel="inputs that took at most this (%)", ylim=(0, 101))
        axes.legend(loc="upper left" if max(map(np.median, counts)) > 10_000 else "lower right")
    return figure


def _draws_of(run: Run) -> npt.NDArray[np.int64]:
    counts = [count for count in run.table()["draws"] if count is not None]
    if not counts:
        raise ConfigError(f"{run.path} holds no votes, so its draws are not known. Logs do not record them.")
    return np.array(counts, np.int64)


def radius_histogram(runs: Sequence[Run], *, names: Sequence[str] | None = None, limit: float | None = None) -> Figure:
    """How many inputs have which certified radius; the legend says how many have none or a wrong class."""
    claims = [claims_of(run) for run in runs]
    largest = check_limit(limit) or max(
        max(float(claim.radii[claim.counted].max(initial=0.0)) for claim in claims), 1e-9
    )
    edges = np.linspace(0, largest, _BINS + 1)
    with style():
        figure, axes = new_axes()
        for i, (run, claim, name) in enumerate(zip(runs, claims, names_of(runs, names), strict=True)):
            counts, _ = np.histogram(claim.radii[claim.counted & (claim.radii > 0)], edges)
            color = line_style(i)["color"]
            what = name if claim.tested is None else f"{name}, largest tested radius"
            label = f"{what}: {_rest(run, claim.counted & (claim.radii > 0))}"
            axes.stairs(100 * counts / len(claim.radii), edges, fill=True, color=color, alpha=0.18)
            axes.stairs(100 * counts / len(claim.radii), edges, color=color, linewidth=1.4, label=label)
        axes.set(xlabel=f"certified {RADIUS}", ylabel="inputs (%)", xlim=(0, largest))
        axes.set_ylim(0, 1.18 * axes.get_ylim()[1])  # room for the legend above the bars
        axes.legend(loc="upper center", fontsize=8)
    return figure


def _rest(run: Run, counted: npt.NDArray[np.bool_]) -> str:
    """Those that are in no bin."""
    abstained = np.array([row.get("label") is None for row in run.rows])
    wrong = ~abstained & ~counted
    shares = [
        f"{ceil_percent(float(abstained.mean()))} % abstained",
        *([f"{ceil_percent(float(wrong.mean()))} % wrong"] if wrong.any() else []),
    ]
    return ", ".join(shares)


def class_accuracy(
    runs: Sequence[Run], *, radii: Sequence[float] | None = None, names: Sequence[str] | None = None
) -> Figure:
    """Certified accuracy of each true class at some radii; of very many classes, the strongest and the weakest.

    `names` are those of the classes, by number, where the run does not know them.
    """
    (run,) = runs
    at = _radii_shown(run, radii)
    labels, table = _by_class(run, at, names)
    with style():
        figure, axes = new_axes(5.2, max(2.4, 0.9 + 0.19 * len(labels)))
        places = np.arange(len(labels))
        for radius, shares, color in zip(at, table.T, _SHADES[-len(at) :], strict=True):
            axes.barh(places, 100 * shares, height=0.72, color=color, label=f"r = {exact_decimal(radius)}")
        axes.set_yticks(places, labels)
        axes.set(
            xlabel=f"certified accuracy{lead_text(run, before=', ')} (%)", xlim=(0, 100), ylim=(len(labels) - 0.4, -0.6)
        )
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside lower center", ncols=len(at), fontsize=8.5, handlelength=1.0, columnspacing=1.2)
    return figure


def _radii_shown(run: Run, radii: Sequence[float] | None) -> list[float]:
    most = len(_SHADES)
    at = list(default_radii(run)[:most]) if radii is None else sorted(set(radii))
    if not 1 <= len(at) <= most or not all(0 <= radius < float("inf") for radius in at):
        raise ConfigError(f"Expected one to {most} finite `radii` >= 0 for this figure, got {list(radii or [])}.")
    unknown = [radius for radius in at if not is_decided(run, radius)]
    if unknown:
        known = ", ".join(map(exact_decimal, radii_tested(run) or ()))
        raise ConfigError(f"{run.path} did not test radius {exact_decimal(unknown[0])}, only {known}.")
    return at


def _by_class(run: Run, at: Sequence[float], names: Sequence[str] | None) -> tuple[list[str], Floats]:
    """The names of classes and their certified accuracies [class, radius], from the first class to the last."""
    claims = claims_of(run)
    if not claims.labelled:
        raise ConfigError(f"{run.path} has no true classes: there is nothing to tell inputs apart by.")
    truths = np.array([-1 if row["true"] is None else row["true"] for row in run.rows])
    present = np.unique(truths[truths >= 0])
    rows = [certified_accuracy(claims.radii[truths == one], claims.counted[truths == one], at) for one in present]
    table = np.array(rows)
    if len(present) > _MOST_CLASSES:
        order = np.lexsort(table.T[::-1])[::-1]
        kept = np.concatenate([order[: _MOST_CLASSES // 2], order[-_MOST_CLASSES // 2 :]])
        present, table = present[kept], table[kept]
    known = names or _class_names(run.manifest.values)
    return [known[one] if known and one < len(known) else str(one) for one in present.tolist()], table


def _class_names(values: Any) -> list[str] | None:
    return values["data"].get("classes") or values["model"].get("classes")

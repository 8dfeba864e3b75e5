"""The curve of certified accuracy as an SVG that stretches to any width; page.js adds the pointer and the choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothcert.data.names import printable
from smoothcert.records import exact_decimal
from smoothcert.report.page.html import Html, element, join
from smoothcert.report.page.runs import Shown
from smoothcert.report.page.scale import axis, slider_step
from smoothcert.runs.scope import largest_possible_radius
from smoothcert.stats.accuracy import accuracy_curve

_WIDTH, _HEIGHT = 2000, 1000  # units of the drawing; finer than any screen shows
_LONGEST_NOTE = 120
STYLES = 6  # colours and dashes in page.css


def curve(runs: Sequence[Shown]) -> Html:
    """The drawing with its axes."""
    end, marks = axis(runs)
    grid = [f"M{_across(mark, end)} 0V{_HEIGHT}" for mark in marks] + [f"M0 {y}H{_WIDTH}" for y in range(0, 1001, 250)]
    paths = [
        element("path", d=_path(shown, end), class_=f"curve style-{shown.number % STYLES}", data_run=shown.number)
        for shown in runs
    ]
    drawing = element(
        "svg",
        element("path", d="".join(grid), class_="grid"),
        *paths,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Certified accuracy against L2 radius; the table below has the numbers.",
    )
    plot = element("div", drawing, id="plot", class_="plot")
    return element("div", _upright(), plot, _level(marks, end), class_="figure")


def _upright() -> Html:
    ticks = [element("span", f"{share} %", style=f"bottom:{share}%") for share in (0, 25, 50, 75, 100)]
    return element("div", *ticks, class_="axis-y", aria_hidden="true")


def _level(marks: Sequence[float], end: float) -> Html:
    ticks = [element("span", exact_decimal(mark), style=f"left:{100 * mark / end:.4g}%") for mark in marks]
    title = element("p", "L2 radius (inputs in [0, 1])")
    return element("div", join(ticks), title, class_="axis-x", aria_hidden="true")


def _across(radius: float, end: float) -> int:
    return math.floor(_WIDTH * radius / end)


def _path(shown: Shown, end: float) -> str:
    """The steps, each coordinate rounded so that the curve is never drawn above or beyond the numbers."""
    if not shown.claims:
        return f"M0 {_HEIGHT}"
    at, accuracy = accuracy_curve(shown.radii, shown.counted, shown.tested)
    xs = np.floor(_WIDTH * at / end).astype(int).tolist()
    ys = np.ceil(_HEIGHT * (1 - accuracy) - 1e-9).astype(int).tolist()
    parts, drawn = [f"M0 {ys[0]}"], 0
    for x, following in zip(xs[1:], [*ys[2:], ys[-1]], strict=False):  # a single corner is no curve
        if x > drawn:
            parts.append(f"H{x}")
            drawn = x
        elif parts[-1][0] == "V":
            parts.pop()
        parts.append(f"V{following}")
    return "".join(parts)


def curve_data(runs: Sequence[Shown], start: float) -> dict[str, Any]:
    """What page.js needs to answer for any radius, in columns; −1 stands for no label."""
    end, _ = axis(runs)
    return {"end": end, "step": slider_step(end), "start": min(start, end), "runs": [_columns(shown) for shown in runs]}


def _columns(shown: Shown) -> dict[str, Any]:
    present = {label for label in [*shown.truths, *(claim.label for claim in shown.claims)] if label is not None}
    return {
        "number": shown.number,
        "name": shown.name,
        "labelled": shown.labelled,
        "classes": {label: shown.class_name(label) for label in sorted(present)},
        "index": shown.indices,
        "true": [-1 if truth is None else truth for truth in shown.truths],
        "label": [-1 if claim.label is None else claim.label for claim in shown.claims],
        "radius": shown.radii.tolist(),
        "tested": shown.tested,
        "most": None if shown.tested is None else largest_possible_radius(shown.run),
        "notes": _notes(shown),
    }


def _notes(shown: Shown) -> dict[int, str]:
    """Why inputs failed, or what is wrong with their rows, by input."""
    errors = {row["index"]: printable(row["error"])[:_LONGEST_NOTE] for row in shown.run.rows if "error" in row}
    return errors | dict.fromkeys(shown.disputed, "the votes do not give what is recorded")

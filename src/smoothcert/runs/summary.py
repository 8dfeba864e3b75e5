"""What a run says in numbers, for people and for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothcert.runs.directory import Run
from smoothcert.stats.accuracy import average_certified_radius, certified_accuracy

_STEPS = 8


def default_radii(run: Run) -> tuple[float, ...]:
    """The radii of a run's own grid, or steps of half its noise level up to the largest radius."""
    own = run.manifest.values["procedure"].get("radii")
    if own:
        return tuple(own)
    largest = max((float(row.get("radius", 0.0)) for row in run.rows), default=0.0)
    step = run.sigma / 2 or 10.0 ** math.floor(math.log10(largest or 1.0))
    return tuple(round(k * step, 6) for k in range(min(_STEPS, int(largest / step) + 1)))


def summarize(run: Run, radii: Sequence[float]) -> dict[str, Any]:
    """Counts, draws and, of a run that certifies, certified accuracy at `radii`; shares are of all rows."""
    table = run.table()
    rows = len(run.rows)
    labelled = any(truth is not None for truth in table["true"])
    draws = [count for count in table["draws"] if count is not None]
    errors = len(run.errors)
    abstained = sum(label is None for label in table["label"]) - errors
    summary: dict[str, Any] = {
        "kind": run.manifest.kind,
        "inputs": len(run.manifest.indices),
        "rows": rows,
        "errors": errors,
        "abstained": abstained,
        "correct": sum(table["correct"]) if labelled else None,
        "draws": sum(draws),
        "sigma": run.sigma,
        "alpha": run.manifest.values["alpha"],
    }
    if run.certifies and rows:
        # Without labels, every claim counts: the share of inputs that are certified at all.
        counted = np.array(table["correct"]) if labelled else np.array([label is not None for label in table["label"]])
        summary["radii"] = list(radii)
        summary["certified"] = np.atleast_1d(certified_accuracy(table["radius"], counted, radii)).tolist()
        summary["average_radius"] = average_certified_radius(table["radius"], counted)
    return summary

"""What a run says in numbers, for people and for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothcert.runs.directory import Run
from smoothcert.runs.scope import certified_margin, inputs_in_words, is_decided, radii_tested
from smoothcert.stats.accuracy import average_certified_radius, certified_accuracy

_STEPS = 8


def default_radii(run: Run) -> tuple[float, ...]:
    """The radii that a run tested, or steps of half its noise level up to the largest radius."""
    tested = radii_tested(run)
    if tested is not None:
        return tested
    largest = max((float(row.get("radius", 0.0)) for row in run.rows), default=0.0)
    step = run.sigma / 2 or 10.0 ** math.floor(math.log10(largest or 1.0))
    return tuple(round(k * step, 6) for k in range(min(_STEPS, int(largest / step) + 1)))


def summarize(run: Run, radii: Sequence[float]) -> dict[str, Any]:
    """Counts, draws and, for a run that certifies, certified accuracy at `radii`; shares are of all rows.

    A grid run knows nothing about radii that it did not test: their certified accuracy is None. Its average radius is
    that of the largest tested radius per input, a lower bound; `tested_radii` says so. `margin` is the lead in
    probability that the class keeps within the radius.
    """
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
        "selection": inputs_in_words(run),
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
        shares = np.atleast_1d(certified_accuracy(table["radius"], counted, radii)).tolist()
        summary["certified"] = [
            share if is_decided(run, radius) else None for radius, share in zip(radii, shares, strict=True)
        ]
        summary["tested_radii"] = radii_tested(run)
        summary["margin"] = certified_margin(run)
        summary["average_radius"] = average_certified_radius(table["radius"], counted)
    return summary

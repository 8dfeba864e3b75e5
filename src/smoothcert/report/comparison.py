"""Certifiers side by side: the same inputs, the same units, certified accuracy and what it costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smoothcert.errors import ConfigError
from smoothcert.report.run_tables import Column, RunTable, run_table
from smoothcert.runs.directory import Run
from smoothcert.runs.exchange import read_times


def comparison_table(runs: Sequence[Run], radii: Sequence[float] = ()) -> RunTable:
    """The table of the runs, with the time that a network took to train and an input to certify."""
    check_comparable(runs)
    table = run_table(runs, radii)
    training = [_training_seconds(run) for run in runs]
    each = [_seconds_per_input(run) for run in runs]
    columns = (
        *table.columns,
        Column("training s", tuple(training), tuple("" if one is None else f"{one:,.0f}" for one in training)),
        Column("s / input", tuple(each), tuple("" if one is None else f"{one:.3g}" for one in each)),
    )
    inputs, data = len(runs[0].rows), runs[0].manifest.values["data"]["name"]
    same = f"All on the same {inputs:,} inputs of {data}, with radii in units of pixels in [0, 1]."
    times = "Times are those of the machines that the runs were made on, with whatever else these did."
    return replace(table, columns=columns, notes=(same, *table.notes, times))


def check_comparable(runs: Sequence[Run]) -> None:
    """Raise ConfigError unless all runs certify the same inputs of the same data."""
    if len(runs) < 2:
        raise ConfigError(f"Expected at least two runs to compare, got {len(runs)}.")
    first, *others = runs
    for run in runs:
        if not run.certifies:
            raise ConfigError(f"Expected runs that certify, {run.path} is of kind {run.manifest.kind!r}.")
    for other in others:
        ours, theirs = (
            first.manifest.values["data"].get("fingerprint"),
            other.manifest.values["data"].get("fingerprint"),
        )
        if ours is None or ours != theirs:
            raise ConfigError(f"{other.path} is not on the same data as {first.path}: the fingerprints differ.")
        if [row["index"] for row in first.rows] != [row["index"] for row in other.rows]:
            raise ConfigError(
                f"{other.path} is not on the same inputs as {first.path}: choose the same by --every, --first or "
                "--indices, and let both runs end."
            )


def _seconds_per_input(run: Run) -> float | None:
    times = read_times(run)
    return sum(times.values()) / len(times) if times else None


def _training_seconds(run: Run) -> float | None:
    """How long the network took to train, if it lies where the run had it from."""
    source = Path(str(run.manifest.values["model"].get("source")))
    record = (source if source.is_dir() else source.parent) / "train.json"
    try:
        return float(json.loads(record.read_text("utf-8"))["result"]["seconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

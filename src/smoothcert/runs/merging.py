"""Joining the shards of a run into the run that they are parts of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from smoothcert.errors import ConfigError, ResumeError
from smoothcert.runs.directory import Run, open_run
from smoothcert.runs.exchange import fill, new_run, read_times
from smoothcert.runs.manifest import Manifest, differences


def merge_runs(paths: Sequence[Path], out: Path) -> Run:
    """Join complete runs of the same settings and key, over different inputs, into one run in `out`.

    Its rows stand in ascending order of their index, and are those of a single run over these inputs whose chunks hold
    the same ones, or one each.
    """
    if len(paths) < 2:
        raise ConfigError(f"Expected at least two runs to merge, got {len(paths)}.")
    with new_run(out) as writer:
        runs = [open_run(path) for path in paths]
        _check_same(runs)
        _check_complete(runs)
        _check_apart(runs)
        rows = sorted((row for run in runs for row in run.rows), key=lambda row: int(row["index"]))
        times = {index: seconds for run in runs for index, seconds in read_times(run).items()}
        return fill(writer, Manifest(_joined(runs)), rows, times)


def _check_same(runs: Sequence[Run]) -> None:
    first, *others = runs
    expected = {**first.manifest.values, "indices": None}
    for other in others:
        changed = differences(expected, {**other.manifest.values, "indices": None})
        if changed:
            raise ResumeError(
                f"{other.path} is no part of the same run as {first.path}; what differs: {'; '.join(changed)}. "
                f"{_advice(changed)}"
            )


def _advice(changed: Iterable[str]) -> str:
    """What would have made the runs the same, as far as it is one flag."""
    names = {line.partition(":")[0] for line in changed}
    if names <= {"key", "seed"}:
        return "Make all parts with the same --seed."
    if all(name.startswith("plan.") for name in names):
        return "Make all parts with the same --plan, --batch-size and --chunk: what is not given is measured anew."
    return "Make all parts with the same settings, model and data."


def _check_complete(runs: Sequence[Run]) -> None:
    for run in runs:
        if not run.complete:
            raise ResumeError(
                f"Expected complete runs, {run.path} has {len(run.rows):,} of {len(run.manifest.indices):,} rows. "
                "Finish it with --resume first."
            )


def _check_apart(runs: Sequence[Run]) -> None:
    """An input may stand in one run only: of two rows, none is the right one."""
    owners: dict[int, Run] = {}
    twice = {index for run in runs for index in run.manifest.indices if owners.setdefault(index, run) is not run}
    if twice:
        first = min(twice)
        holders = [str(run.path) for run in runs if first in run.manifest.indices]
        more = f", and so are {len(twice) - 1:,} more" if len(twice) > 1 else ""
        raise ConfigError(
            f"Expected runs over different inputs, input {first} is in {' and in '.join(holders)}{more}. Leave one out."
        )


def _joined(runs: Sequence[Run]) -> dict[str, Any]:
    """The manifest of the first, with all inputs, and with all the places where they were worked on."""
    values = dict(runs[0].manifest.values)
    values["indices"] = sorted(index for run in runs for index in run.manifest.indices)
    for name in ("host", "python"):
        places = [str(run.manifest.values[name]) for run in runs if run.manifest.values.get(name)]
        if places:
            values[name] = ", ".join(dict.fromkeys(places))
    if "created" in values:
        values["created"] = max(str(run.manifest.values["created"]) for run in runs)
    return values

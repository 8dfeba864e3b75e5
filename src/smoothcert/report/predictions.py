"""PREDICT's answers by number of draws: the true class or not, g's own class or not, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smoothcert.errors import ConfigError
from smoothcert.report.run_tables import Column, RunTable
from smoothcert.runs.directory import Run
from smoothcert.stats.accuracy import ceil_percent, floor_percent

CATEGORIES = ("correct, accurate", "correct, inaccurate", "incorrect, accurate", "incorrect, inaccurate", "abstained")
"""The paper's: correct is the true class, accurate is g's class, which the run with the most draws stands for."""


@dataclass(frozen=True, slots=True)
class PredictionShares:
    """For each number of draws the share of inputs in each category, and the run that stands for g."""

    runs: tuple[Run, ...]
    shares: tuple[dict[str, float], ...]
    reference: Run
    inputs: int

    @property
    def draws(self) -> tuple[int, ...]:
        """The numbers of draws, in ascending order."""
        return tuple(_draws(run) or 0 for run in self.runs)


def prediction_shares(runs: Sequence[Run]) -> PredictionShares:
    """The answers of several runs of PREDICT on the same inputs by category: Cohen et al. 2019, Appendix E.2.

    g's class cannot be known for certain: it is taken to be the top class of the run with the most draws, which is not
    counted itself. Where that run has no votes and abstains, no answer counts as accurate.
    """
    *counted, reference = _ordered(runs)
    truths, top = _truths(reference), _top_classes(reference)
    shares = tuple(_category_shares(run, truths, top) for run in counted)
    return PredictionShares(tuple(counted), shares, reference, len(truths))


def share_text(category: str, share: float) -> str:
    """A share in percent: rounded down where answers are correct, up where they are not or are missing."""
    return floor_percent(share) if category.startswith("correct") else ceil_percent(share)


def prediction_table(runs: Sequence[Run]) -> RunTable:
    """The shares of the five categories, a row per number of draws: the paper's Table 4 of PREDICT.

    The run with the most draws stands for g and has no row.
    """
    found = prediction_shares(runs)
    columns = []
    for category in CATEGORIES:
        values = [share[category] for share in found.shares]
        columns.append(Column(category, tuple(values), tuple(share_text(category, value) for value in values)))
    return RunTable(tuple(map(str, found.draws)), tuple(columns), tuple(_notes(found)), corner="n")


def _notes(found: PredictionShares) -> list[str]:
    values = found.reference.manifest.values
    notes = [
        f"Answers of PREDICT in % of {found.inputs:,} inputs ({values['data']['name']}), σ = {values['sigma']:g}, "
        f"α = {values['alpha']:g}; correct answers are rounded down, all else up.",
        "Correct: the true class. Accurate: g's class, taken from the run with "
        f"n = {_draws(found.reference):,} draws: its most frequent class, or in a log its answer.",
    ]
    for run in (*found.runs, found.reference):
        if not run.complete:
            notes.append(f"{run.path} is not complete: {len(run.rows):,} of {len(run.manifest.indices):,} inputs.")
        if run.errors:
            notes.append(f"{len(run.errors):,} inputs of {run.path} failed; they count as abstained.")
    return notes


def _draws(run: Run) -> int | None:
    """How many draws a run may take per input; None where it is not recorded."""
    procedure = run.manifest.values["procedure"]
    most = procedure.get("n_max", procedure.get("n"))
    return None if most is None else int(most)


def _ordered(runs: Sequence[Run]) -> list[Run]:
    """The runs by their draws; ConfigError unless they answer the same questions."""
    if len(runs) < 2:
        raise ConfigError("Expected at least 2 runs that predict: the one with the most draws stands for g.")
    for run in runs:
        if not run.predicts:
            raise ConfigError(f"{run.path} holds certificates. Needed are runs of `smoothcert predict`, or such logs.")
        if _draws(run) is None:
            raise ConfigError(f"{run.path} does not say how many draws were made: import its log with --n.")
    for name in ("sigma", "alpha"):
        if len({run.manifest.values[name] for run in runs}) > 1:
            raise ConfigError(f"Expected runs that differ in their draws only, they differ in {name}.")
    if len({_draws(run) for run in runs}) < len(runs):
        raise ConfigError("Expected each run to have another number of draws, two have the same.")
    if len({tuple(sorted(row["index"] for row in run.rows)) for run in runs}) > 1:
        raise ConfigError("Expected runs on the same inputs, these are on different ones.")
    return sorted(runs, key=lambda run: _draws(run) or 0)


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


def _category_shares(run: Run, truths: dict[int, int], reference: dict[int, int | None]) -> dict[str, float]:
    """The share of inputs in each category."""
    counts = dict.fromkeys(CATEGORIES, 0)
    for row in run.rows:
        label, index = row.get("label"), row["index"]
        if label is None:
            counts["abstained"] += 1
            continue
        right = "correct" if label == truths[index] else "incorrect"
        own = "accurate" if label == reference[index] else "inaccurate"
        counts[f"{right}, {own}"] += 1
    return {name: count / len(run.rows) for name, count in counts.items()}

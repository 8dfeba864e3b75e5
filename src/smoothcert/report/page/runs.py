"""Runs as the page shows them: claims recomputed from the votes, names, shares, all in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.progress import ProgressBar
from smoothcert.records import Votes
from smoothcert.report.claims import Claim, claims
from smoothcert.report.naming import run_names
from smoothcert.runs.directory import Run
from smoothcert.runs.scope import is_decided, radii_tested
from smoothcert.stats.accuracy import average_certified_radius, certified_accuracy, floor_percent


@dataclass(frozen=True)
class Shown:
    """One run on the page, with the claims of its rows in their order."""

    run: Run
    number: int
    name: str
    claims: Sequence[Claim]

    @property
    def values(self) -> Any:
        """The manifest."""
        return self.run.manifest.values

    @property
    def certifies(self) -> bool:
        """True if inputs have radii."""
        return not self.run.predicts

    @property
    def has_votes(self) -> bool:
        """False for a log that other code has left, and for bounds that need none."""
        return self.run.has_votes

    @property
    def imported(self) -> bool:
        """True for a log that other code has left."""
        return self.run.manifest.kind == "import"

    @property
    def deterministic(self) -> bool:
        """True for bounds of a network itself, without noise."""
        return self.run.manifest.kind == "bound"

    @property
    def data_name(self) -> str:
        """What to call the data; a log need not say."""
        name = str(self.values["data"]["name"])
        return "data without a name" if name == "unknown" and self.imported else name

    @cached_property
    def indices(self) -> list[int]:
        """Which inputs the rows are about."""
        return [row["index"] for row in self.run.rows]

    @cached_property
    def truths(self) -> list[int | None]:
        """The true classes, None where unknown."""
        return [row["true"] for row in self.run.rows]

    @cached_property
    def radii(self) -> npt.NDArray[np.float64]:
        """The certified radii, 0 where nothing is claimed."""
        return np.array([claim.radius for claim in self.claims], np.float64)

    @cached_property
    def labelled(self) -> bool:
        """True if there are true classes to compare with."""
        return any(truth is not None for truth in self.truths)

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Where the claim counts: the class is the true one; without labels, where there is a claim at all."""
        pairs = zip(self.claims, self.truths, strict=True)
        return np.array([c.label is not None and (not self.labelled or c.label == t) for c, t in pairs], bool)

    @cached_property
    def draws(self) -> int:
        """All draws of all inputs; 0 if they are not recorded."""
        return sum(result.draws for result in self.run.certificates if result is not None)

    def votes(self, place: int) -> Votes | None:
        """All stages' votes for the input in this place; None where they are not recorded."""
        result = self.run.certificates[place]
        return None if result is None else result.votes

    @property
    def disputed(self) -> list[int]:
        """The inputs whose votes do not give what is recorded."""
        return [index for index, claim in zip(self.indices, self.claims, strict=True) if claim.disputed]

    def count(self, where: npt.NDArray[np.bool_] | None = None) -> dict[str, int]:
        """How many rows (of those in `where`) are right, wrong, abstained and failed; see `outcome`."""
        chosen = range(len(self.claims)) if where is None else np.flatnonzero(where)
        outcomes = [self.outcome(int(place)) for place in chosen]
        return {name: outcomes.count(name) for name in ("right", "wrong", "abstained", "failed")}

    def outcome(self, place: int) -> str:
        """What became of an input: right (without labels: any claim), wrong, abstained or failed."""
        if "error" in self.run.rows[place]:
            return "failed"
        if self.claims[place].label is None:
            return "abstained"
        return "right" if self.counted[place] else "wrong"

    @cached_property
    def tested(self) -> tuple[float, ...] | None:
        """The radii that a grid run tested; None for a run that finds a radius per input."""
        return radii_tested(self.run)

    def accuracy(self, at: float, where: npt.NDArray[np.bool_] | None = None) -> float | None:
        """The share of rows (of those in `where`) that count and are certified within at least `at`.

        None if the run did not test `at`.
        """
        if not is_decided(self.run, at):
            return None
        chosen = np.ones(len(self.claims), bool) if where is None else where
        if not chosen.any():
            return 0.0
        return float(certified_accuracy(self.radii[chosen], self.counted[chosen], at))

    @property
    def average_radius(self) -> float:
        """The average certified radius over all rows."""
        return average_certified_radius(self.radii, self.counted) if self.claims else 0.0

    def class_name(self, label: int | None) -> str:
        """What to call a class: by its name and, where that does not say it, its number."""
        names = self.values["data"].get("classes") or self.values["model"].get("classes")
        if label is None:
            return "–"
        if not names or label >= len(names) or str(names[label]) == str(label):
            return str(label)
        return f"{names[label]} ({label})"


def shown_runs(runs: Sequence[Run]) -> list[Shown]:
    """The runs in their order, with names that tell them apart; what takes long shows its progress on a terminal."""
    with ProgressBar("recomputing from the votes", sum(len(run.rows) for run in runs)) as bar:
        named = enumerate(zip(runs, run_names(runs), strict=True))
        return [Shown(run, number, name, claims(run, bar.advance)) for number, (run, name) in named]


def percent(fraction: float | None) -> str:
    """A share in percent, rounded down; a dash where it is not known."""
    return "–" if fraction is None else f"{floor_percent(fraction)}\N{NO-BREAK SPACE}%"


def alpha_text(alpha: float) -> str:
    """A failure probability that no line break tears apart."""
    return f"α = {alpha:g}".replace(" ", "\N{NO-BREAK SPACE}")

"""`smoothcert replay`: any procedure on recorded votes, against the paper's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from smoothcert.errors import ConfigError, InputError
from smoothcert.options import Effort

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from smoothcert.replay import Replayed
    from smoothcert.stats.procedures import Procedure

_EXAMPLES = """
examples:
  smoothcert replay votes.npz --sigma 0.25 --radii 0 0.25 0.5 0.75
  smoothcert replay votes.npz --array sigma_0.50 --sigma 0.5 --labels labels.npy --known-label
  smoothcert replay demo-output/certificates.jsonl --sigma 0.25 --procedure planned --n-max 10000
"""
_PREDICTS = ("predict", "sequential-predict")


@dataclass(frozen=True)
class Replay:
    """Run a procedure on recorded votes: what it certifies, with how many draws, beside the paper's CERTIFY."""

    examples: ClassVar[str] = _EXAMPLES

    votes: Annotated[Path, tyro.conf.Positional]
    """Votes [inputs, classes] in .npy, .npz or .pth (a tensor), or certificates in .jsonl."""
    sigma: float = 0.25
    """The noise level that the votes were drawn with."""
    array: str | None = None
    """Which array of an .npz file."""
    labels: Path | None = None
    """True classes: .npy, text with one per line, or a CIFAR-10 binary batch. Without them, shares of all inputs."""
    procedure: Literal["grid", "planned", "paper", "predict", "sequential-predict"] = "grid"
    """What to run."""
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    """Radii of the table, and of the grid."""
    alpha: float = 0.001
    """Probability with which a claim may be false, between 0 and 0.5."""
    n_max: int = 100_000
    """The most draws per input, and the number of the paper's procedure."""
    effort: Effort = "balanced"
    """How many draws a certificate is worth, for grid and planned; a number as for certify."""
    known_label: bool = False
    """Test the true class, as when evaluating a test set (grid)."""
    rival: bool = True
    """Use the strongest rival's votes too (grid and planned)."""
    method: Literal["multinomial", "without-replacement"] = "multinomial"
    """Draw in the recorded proportions, or the recorded votes themselves, each once."""
    every: int = 1
    """Replay every k-th input."""
    first: int | None = None
    """Replay at most this many."""
    seed: int = 0
    """Same seed, same result."""
    config: Path | None = None
    """TOML file with any of these settings; flags win over it."""

    def run(self, console: Console) -> None:
        """Check everything, replay the procedure and the paper's, print both."""
        from smoothcert.data.selection import select_indices
        from smoothcert.replay import load_labels, load_votes
        from smoothcert.stats.procedures import FixedN, Predict

        votes = load_votes(self.votes, self.array, sigma=self.sigma)
        truths = None if self.labels is None else load_labels(self.labels)
        if truths is not None and (len(truths) != len(votes) or truths.min() < 0 or truths.max() >= votes.shape[1]):
            raise InputError(f"Expected {len(votes)} labels from 0 to {votes.shape[1] - 1} in {self.labels}.")
        procedure_for = self._procedures(truths)
        paper = Predict(n=self.n_max, alpha=self.alpha) if self._predicts else FixedN(n=self.n_max, alpha=self.alpha)
        chosen = select_indices(len(votes), every=self.every, first=self.first)
        ours = self._replay("replaying", votes, procedure_for, chosen)
        theirs = self._replay("the paper's", votes, lambda _: paper, chosen)
        known = None if truths is None else truths[chosen]
        print_draws(console, ours, theirs)
        console.print((print_predictions if self._predicts else self._accuracies)(ours, theirs, known))

    @property
    def _predicts(self) -> bool:
        return self.procedure in _PREDICTS

    def _procedures(self, truths: npt.NDArray[np.int64] | None) -> Callable[[int], Procedure[Any]]:
        from dataclasses import replace

        from smoothcert.stats.grid import Grid
        from smoothcert.stats.planned import Planned
        from smoothcert.stats.procedures import FixedN, Predict, SequentialPredict

        if self.known_label and (self.procedure != "grid" or truths is None):
            raise ConfigError("A known label needs the grid procedure and --labels.")
        shared: dict[str, Any] = {
            "alpha": self.alpha,
            "n_max": self.n_max,
            "rival": self.rival,
            "effort": self.effort,
        }
        if self.procedure == "grid":
            grid = Grid(radii=self.radii, sigma=self.sigma, **shared)
            if self.known_label and truths is not None:
                return lambda i: replace(grid, label=int(truths[i]))
            return lambda _: grid
        one: Procedure[Any] = {
            "planned": lambda: Planned(**shared),
            "paper": lambda: FixedN(alpha=self.alpha, n=self.n_max),
            "predict": lambda: Predict(alpha=self.alpha, n=self.n_max),
            "sequential-predict": lambda: SequentialPredict(alpha=self.alpha, n_max=self.n_max),
        }[self.procedure]()
        return lambda _: one

    def _replay(
        self,
        name: str,
        votes: npt.NDArray[np.int64],
        procedure_for: Callable[[int], Procedure[Any]],
        chosen: npt.NDArray[np.int64],
    ) -> list[Replayed]:
        from smoothcert.progress import ProgressBar
        from smoothcert.replay import replay

        with ProgressBar(name, len(chosen)) as bar:
            return replay(
                votes,
                procedure_for,
                sigma=self.sigma,
                seed=self.seed,
                method=self.method,
                indices=chosen.tolist(),
                on_row=bar.advance,
            )

    def _accuracies(self, ours: list[Replayed], theirs: list[Replayed], truths: npt.NDArray[np.int64] | None) -> Table:
        from smoothcert.records import exact_decimal, floor_decimal
        from smoothcert.stats.accuracy import average_certified_radius, ceil_percent, certified_accuracy, floor_percent

        sides = [
            ([row.radius if row.label is not None else 0.0 for row in rows], correct(rows, truths))
            for rows in (ours, theirs)
        ]
        what = "certified %" if truths is None else "certified and correct %"
        table = Table(
            "radius", self.procedure, "paper's CERTIFY", "difference, points", title=what, box=box.SIMPLE_HEAD
        )
        for column in table.columns:
            column.justify = "right"
        for radius in self.radii:
            a, b = (float(certified_accuracy(radii, right, at=radius)) for radii, right in sides)
            difference = f"+{floor_percent(a - b, 2)}" if a >= b else f"-{ceil_percent(b - a, 2)}"
            table.add_row(exact_decimal(radius), floor_percent(a, 2), floor_percent(b, 2), difference)
        name = "average"
        if self.procedure == "grid":  # what lies between the tested radii is not asked: the paper's radii lose it too
            sides = [(_on_grid(radii, self.radii), right) for radii, right in sides]
            name = "average of tested radii"
        averages = (average_certified_radius(radii, right) for radii, right in sides)
        table.add_row(name, *(floor_decimal(average, 3) for average in averages), "")
        return table


def _on_grid(radii: Sequence[float], grid: Sequence[float]) -> list[float]:
    """Each radius lowered to the largest one of the grid that it reaches; 0 if there is none."""
    return [max((step for step in grid if step <= radius), default=0.0) for radius in radii]


def correct(rows: list[Replayed], truths: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_]:
    """Where something was claimed and, if the truth is known, rightly so."""
    import numpy as np

    from smoothcert.stats.accuracy import are_correct

    if truths is None:
        return np.array([row.label is not None for row in rows])
    return are_correct([row.label for row in rows], truths)


def print_draws(console: Console, ours: list[Replayed], theirs: list[Replayed]) -> None:
    """How many draws it took, and why it stopped."""
    mine, others = (sum(row.draws for row in rows) / len(rows) for rows in (ours, theirs))
    reasons = Counter(row.reason for row in ours)
    stopped = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    console.print(
        f"{len(ours):,} inputs: [bold]{mine:,.0f}[/] draws each, the paper's {others:,.0f}: {others / mine:.1f}× fewer."
    )
    console.print(f"Stopped: {stopped}.")


def print_predictions(ours: list[Replayed], theirs: list[Replayed], truths: npt.NDArray[np.int64] | None) -> Table:
    """Answers and abstentions of both."""
    from smoothcert.stats.accuracy import ceil_percent, floor_percent

    table = Table("", "answered %", "abstained %", box=box.SIMPLE_HEAD, pad_edge=False)
    if truths is not None:
        table.add_column("correct %")
    for name, rows in (("replayed", ours), ("paper's PREDICT", theirs)):
        abstained = sum(row.label is None for row in rows) / len(rows)
        cells = [floor_percent(1 - abstained, 2), ceil_percent(abstained, 2)]
        if truths is not None:
            cells.append(floor_percent(float(correct(rows, truths).mean()), 2))
        table.add_row(name, *cells)
    return table

"""`smoothcert table`: certified accuracy of several runs side by side, or the answers of several predictions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.options import OptionalFloat, OptionalPath

if TYPE_CHECKING:
    from smoothcert.report.run_tables import RunTable
    from smoothcert.runs.directory import Run


@dataclass(frozen=True, kw_only=True)
class Table:
    """Show certified accuracy against radius, a row per run, each column's best marked. Nothing is rounded up.

    A radius that a run did not test has no number (–), and its column has no best. Runs of `predict` give a table of
    their answers, a row per number of draws: correct or not, g's class or not, abstained.
    """

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Directories of runs that certify, of runs that predict, or of imported logs."""
    radii: Annotated[tuple[float, ...], tyro.conf.arg(metavar="RADIUS ...", help_behavior_hint="")] = ()
    """Radii of the columns; by default some that suit the runs."""
    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """latex needs the package booktabs; csv has all digits, with accuracies as fractions."""
    best: bool = False
    """A row per radius: the run with the highest certified accuracy there, with its certified and standard accuracy."""
    group: bool = False
    """One row, the mean, for runs of the same network that differ only in the seed of the noise or in the inputs."""
    lower_bound: OptionalFloat = None
    """Show lower bounds on the share of a run's inputs that are classified correctly everywhere within the radius, each
    with probability 1 − this. They say nothing about other inputs of the data."""
    bound: Literal["exact", "paper", "simultaneous"] = "exact"
    """How: by the binomial distribution, by the paper's inequality, which is looser, or for all radii at once."""
    out: OptionalPath = None
    """Write to this file; its ending (.md .tex .csv) chooses the format."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert table runs/*
  smoothcert table runs/* --radii 0 0.25 0.5 0.75 --format latex
  smoothcert table runs/* --best --radii 0.5 1 2 3
  smoothcert table run --lower-bound 0.001
  smoothcert table run-seed-*/ --group --out table.md
  smoothcert table predict-n-100 predict-n-1000 predict-n-100000
"""

    def run(self, console: Console) -> None:
        """Read the runs and print the table."""
        from smoothcert.report.run_tables import FORMATS, as_rich
        from smoothcert.runs.directory import open_run

        chosen = self._format()
        table = self._table([open_run(path) for path in self.paths])
        if chosen == "terminal":
            shown = as_rich(table)
            # A table that is cut off is worth less than one that is too wide.
            console.width = max(
                console.width, console.measure(shown, options=console.options.update(width=999)).maximum
            )
            console.print(shown)
            for note in table.notes:
                console.print(escape(note))
        elif self.out is None:
            sys.stdout.write(FORMATS[chosen](table))
        else:
            from smoothcert.files import replacing

            with replacing(self.out) as partial:
                partial.write_text(FORMATS[chosen](table), "utf-8")
            console.print(escape(str(self.out)), soft_wrap=True)

    def _table(self, runs: list[Run]) -> RunTable:
        from smoothcert.errors import ConfigError
        from smoothcert.report.predictions import prediction_table
        from smoothcert.report.run_tables import best_table, run_table

        if runs and all(run.predicts for run in runs):
            for name in ("radii", "best", "group", "lower_bound"):
                if getattr(self, name):
                    raise ConfigError(f"--{name.replace('_', '-')} is for runs that certify, these predict.")
            return prediction_table(runs)
        make = best_table if self.best else run_table
        return make(runs, self.radii, group=self.group, lower_bound=self.lower_bound, bound=self.bound)

    def _format(self) -> str:
        from smoothcert.errors import ConfigError
        from smoothcert.files import check_writable

        if self.out is None:
            return self.format
        endings = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
        chosen = endings.get(self.out.suffix.lower()) if self.format == "terminal" else self.format
        if chosen is None:
            raise ConfigError(f"Expected a file that ends in .md, .tex or .csv, got {self.out.name!r}.")
        check_writable(self.out)
        return chosen

"""`smoothcert attack`: attack what a run certifies, within and beyond its radii."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console

from smoothcert.checks import check_count
from smoothcert.cli.arguments import SameArguments
from smoothcert.cli.attack_tables import print_attack
from smoothcert.cli.run_command import OutArguments, finish
from smoothcert.options import OptionalInt, OptionalPath
from smoothcert.runs.settings import AttackSettings

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run

_EXAMPLES = """
examples:
  smoothcert attack run --out attacked                         within 1, 1.5 and 2 times each certified radius
  smoothcert attack run --factor 1 1.25 --attacks strong ddn --inputs 100 --out attacked
  smoothcert attack run --attacks abstain --factor 2 --out ties
  smoothcert attack run --out attacked --resume
  smoothcert plot attack-success attacked --out success.pdf
"""


@dataclass(frozen=True, kw_only=True)
class Attack(OutArguments, SameArguments, AttackSettings):
    """Attack the inputs that a run certifies with their true class, within multiples of their radii.

    Whether an attack succeeded is judged on fresh draws, by a test: with probability at least 1 − α, the smoothed
    classifier's class is another one. Within the radius that must not happen; if it does, the input is kept in the
    run. The result has a row for each input, with every attempt and its votes.
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run of `smoothcert certify`."""
    inputs: OptionalInt = None
    """Attack at most so many inputs, taken evenly over the run."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Attack, then show what came of it."""
        from smoothcert.runs.attack_summary import summarize_attack

        self.check()
        if self.inputs is not None:
            check_count("inputs", self.inputs)
        run = self._execute()
        if not self.json:
            print_attack(console, run)
        finish(console, run, as_json=self.json, summary=summarize_attack(run))

    def _execute(self) -> Run:
        from smoothcert.runs.directory import open_run

        attacked = open_run(self.path)
        with self.writing(self.kind) as (writer, watch):
            from smoothcert.runs.attacking import attack_run

            spec, data = self.model_and_data(attacked)
            return attack_run(
                attacked,
                spec,
                data,
                self,
                writer,
                most=self.inputs,
                on_start=watch.start,
                on_rows=watch.rows,
                on_draws=watch.draws,
            )

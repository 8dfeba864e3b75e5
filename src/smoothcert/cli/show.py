"""`smoothcert show`: what is in a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.cli.attack_tables import print_attack, print_attempts
from smoothcert.errors import ConfigError
from smoothcert.options import OptionalInt, OptionalPath

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run

_EXAMPLES = """
examples:
  smoothcert show run
  smoothcert show run --radii 0 0.5 1.0
  smoothcert show run --index 40
"""


@dataclass(frozen=True)
class Show:
    """Show a run: what was certified, with which settings, how far it is; or one of its inputs."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of the run; it may still be under way."""
    radii: Annotated[tuple[float, ...], tyro.conf.arg(metavar="RADIUS ...", help_behavior_hint="")] = ()
    """Radii of the table; by default the run's own."""
    index: OptionalInt = None
    """Show the result of this input instead."""
    json: bool = False
    """Print one JSON object instead of tables."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Read the run and print it."""
        from smoothcert.runs.attack_summary import summarize_attack
        from smoothcert.runs.directory import open_run
        from smoothcert.runs.summary import default_radii, summarize

        run = open_run(self.path)
        if self.index is not None:
            self._one(console, run)
            return
        radii = self.radii or default_radii(run)
        if self.json:
            summary = summarize_attack(run) if run.attacks else summarize(run, radii)
            sys.stdout.write(json.dumps(summary, allow_nan=False) + "\n")
        else:
            print_run(console, run, radii)

    def _one(self, console: Console, run: Run) -> None:
        places = [place for place, row in enumerate(run.rows) if row["index"] == self.index]
        if not places:
            raise ConfigError(f"There is no row of input {self.index} in {run.path}.")
        row, result = run.rows[places[0]], run.certificates[places[0]]
        if self.json:
            sys.stdout.write(json.dumps(row if result is None else result.to_dict(), allow_nan=False) + "\n")
            return
        console.print(f"input {row['index']}, true class {'unknown' if row['true'] is None else row['true']}")
        if run.attacks and "error" not in row:
            print_attempts(console, row)
            return
        without_votes = f"class {row.get('label')}, radius {row.get('radius', 0.0)}, without votes"
        console.print(escape(repr(result) if result else row.get("error", without_votes)), soft_wrap=True)


def print_run(console: Console, run: Run, radii: Sequence[float]) -> None:
    """What was run and what came out of it."""
    from smoothcert.runs.summary import summarize

    if run.attacks:
        print_attack(console, run)
        return
    summary = summarize(run, radii)
    values = run.manifest.values
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("model", escape(str(values["model"].get("source") or "unknown")))
    if values.get("plan", {}).get("executed"):
        table.add_row("run by", escape(values["plan"]["executed"]))
    table.add_row("data", escape(str(values["data"]["name"])))
    if run.manifest.kind != "bound":
        table.add_row("smoothing", f"σ = {run.sigma:g}, at most α = {summary['alpha']:g} per input fail")
    table.add_row("procedure", escape(_procedure(values["procedure"])))
    table.add_row("rows", _progress(summary))
    if run.manifest.kind != "bound":
        table.add_row("draws", _draws(summary))
    console.print(table)
    if run.notice:
        console.print(f"[yellow]notice:[/] {escape(run.notice)}", soft_wrap=True)
    if "certified" in summary:
        console.print(_certified(summary))
    elif summary["rows"]:
        console.print(_predicted(summary))


def _procedure(settings: dict[str, Any]) -> str:
    others = ", ".join(f"{name}={value}" for name, value in settings.items() if name not in ("name", "radii", "sigma"))
    return f"{settings['name']} ({others})" if others else str(settings["name"])


def _progress(summary: dict[str, Any]) -> str:
    missing = summary["inputs"] - summary["rows"]
    words = f"{summary['rows']:,} of {summary['inputs']:,}" if missing else f"{summary['rows']:,}, complete"
    failed = f", of which {summary['errors']:,} failed" if summary["errors"] else ""
    return f"{words}; {summary['abstained']:,} abstained{failed}"


def _draws(summary: dict[str, Any]) -> str:
    each = summary["draws"] / summary["rows"] if summary["rows"] else 0
    return f"{summary['draws']:,}, {each:,.0f} per input" if summary["draws"] else "not recorded"


def _certified(summary: dict[str, Any]) -> Table:
    from smoothcert.records import floor_decimal
    from smoothcert.stats.accuracy import floor_percent

    what = "certified %" if summary["correct"] is None else "certified and correct %"
    table = Table("radius", what, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for radius, share in zip(summary["radii"], summary["certified"], strict=True):
        table.add_row(str(radius).removesuffix(".0"), floor_percent(share))  # all digits: none may round it up
    table.add_row("average", floor_decimal(summary["average_radius"], 3))
    return table


def _predicted(summary: dict[str, Any]) -> Table:
    """The paper's table of PREDICT: right, and wrong or abstained, in shares of all rows."""
    rows = summary["rows"]
    table = Table("answered %", "abstained %", box=box.SIMPLE_HEAD, pad_edge=False)
    answered = rows - summary["abstained"] - summary["errors"]
    cells = [f"{100 * answered / rows:.2f}", f"{100 * summary['abstained'] / rows:.2f}"]
    if summary["correct"] is not None:
        table.add_column("correct %")
        table.add_column("wrong %")
        cells += [f"{100 * summary['correct'] / rows:.2f}", f"{100 * (answered - summary['correct']) / rows:.2f}"]
    table.add_row(*cells)
    for column in table.columns:
        column.justify = "right"
    return table

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
        if result is not None:
            words = repr(result)
        elif row.get("label") is None:
            words = row.get("error", "abstains, without votes")
        else:
            words = f"class {row['label']}, {_radius(row.get('radius', 0.0))}, without votes"
        console.print(escape(words), soft_wrap=True)
        _print_notice(console, run)


def _print_notice(console: Console, run: Run) -> None:
    if run.notice:
        console.print(f"[yellow]notice:[/] {escape(run.notice)}", soft_wrap=True)


def _radius(radius: float) -> str:
    """A recorded radius with all its digits."""
    from smoothcert.records import NO_RADIUS, exact_decimal, radius_text

    return NO_RADIUS if radius_text(radius) == NO_RADIUS else f"radius {exact_decimal(radius)}"


def print_run(console: Console, run: Run, radii: Sequence[float]) -> None:
    """What was run and what came out of it."""
    from smoothcert.runs.scope import margin_in_words
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
    if summary["rows"]:
        table.add_row("inputs", summary["selection"])
    if run.manifest.kind != "bound":
        table.add_row("smoothing", f"σ = {run.sigma:g}, at most α = {summary['alpha']:g} per input fail")
    table.add_row("procedure", escape(_procedure(values["procedure"])))
    if margin := margin_in_words(run):
        table.add_row("margin", margin)
    table.add_row("rows", _progress(summary))
    if run.manifest.kind != "bound":
        table.add_row("draws", _draws(summary))
    console.print(table)
    _print_notice(console, run)
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
    from smoothcert.records import exact_decimal, floor_decimal
    from smoothcert.stats.accuracy import floor_percent

    what = "certified %" if summary["correct"] is None else "certified and correct %"
    table = Table("radius", what, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for radius, share in zip(summary["radii"], summary["certified"], strict=True):
        table.add_row(exact_decimal(radius), "–" if share is None else floor_percent(share))
    of_tested = "" if summary["tested_radii"] is None else " of tested radii"
    table.add_row(f"average{of_tested}", floor_decimal(summary["average_radius"], 3))
    if None in summary["certified"]:
        table.caption = "– radius not tested"
    return table


def _predicted(summary: dict[str, Any]) -> Table:
    """The paper's table of PREDICT: right, and wrong or abstained, in shares of all rows."""
    from smoothcert.stats.accuracy import ceil_percent, floor_percent

    rows = summary["rows"]
    table = Table("answered %", "abstained %", box=box.SIMPLE_HEAD, pad_edge=False)
    answered = rows - summary["abstained"] - summary["errors"]
    cells = [floor_percent(answered / rows, 2), ceil_percent(summary["abstained"] / rows, 2)]
    if summary["correct"] is not None:
        table.add_column("correct %")
        table.add_column("wrong %")
        wrong = answered - summary["correct"]
        cells += [floor_percent(summary["correct"] / rows, 2), ceil_percent(wrong / rows, 2)]
    table.add_row(*cells)
    for column in table.columns:
        column.justify = "right"
    return table

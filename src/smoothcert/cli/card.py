"""`smoothcert card`: write certified accuracy into a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.errors import ConfigError, ModelError
from smoothcert.options import OptionalPath

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run


@dataclass(frozen=True)
class Card:
    """Write the certified accuracy of some runs into the card of the model that they certified."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Directory of a training."""
    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Runs of `smoothcert certify` with this model."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = """
examples:
  smoothcert card lenet run
  smoothcert card lenet runs/*
"""

    def run(self, console: Console) -> None:
        """Check that the runs are of this model, and write the card anew."""
        import json

        from smoothcert.models import load
        from smoothcert.runs.directory import open_run
        from smoothcert.training.card import CARD, write_card
        from smoothcert.training.directory import LOG, RECORD, read_record

        if not (self.model / RECORD).is_file():
            raise ModelError(f"Expected the directory of a training, there is no {RECORD} in {self.model}.")
        record = read_record(self.model)
        if "result" not in record:
            raise ModelError(f"The training in {self.model} is not complete: go on with `smoothcert train --resume`.")
        weights = load(self.model).weights_hash
        runs = [open_run(path) for path in self.paths]
        for run in runs:
            _check(run, weights, self.model)
        log = [json.loads(line) for line in (self.model / LOG).read_text("utf-8").splitlines()]
        write_card(self.model / CARD, record, log, [line for run in runs for line in _table(run)])
        console.print(escape(str(self.model / CARD)), soft_wrap=True)


def _check(run: Run, weights: str | None, model: Path) -> None:
    if run.manifest.values["model"].get("weights_hash") != weights:
        raise ModelError(f"{run.path} is a run of another model than {model}.")
    if run.predicts or not run.rows:
        what = "predicts" if run.predicts else "has no rows yet"
        raise ConfigError(f"Expected runs that certify, {run.path} {what}.")


def _table(run: Run) -> list[str]:
    """A run's certified accuracy as Markdown."""
    from smoothcert.records import exact_decimal, floor_decimal
    from smoothcert.runs.summary import default_radii, summarize
    from smoothcert.stats.accuracy import floor_percent

    summary = summarize(run, default_radii(run))
    values = run.manifest.values
    cells = [exact_decimal(radius) for radius in summary["radii"]]
    shares = [floor_percent(share) for share in summary["certified"]]
    inputs = f"{summary['rows']:,}" if run.complete else f"{summary['rows']:,} of {summary['inputs']:,}"
    average = "average certified radius" if summary["tested_radii"] is None else "average of the tested radii"
    what = "certified %" if summary["correct"] is None else "certified and correct %"
    executed = values.get("plan", {}).get("executed")
    of_another = f"The network as run by {executed}. " if executed else ""
    return [
        f"{of_another}On {inputs} inputs of {values['data']['name']}, {summary['selection']}, smoothed with "
        f"σ = {run.sigma:g}, by the procedure {values['procedure']['name']} with α = {summary['alpha']:g} per input "
        f"and {summary['draws']:,} draws; {average} {floor_decimal(summary['average_radius'], 3)}:",
        "",
        f"| radius | {' | '.join(cells)} |",
        f"|---|{'---|' * len(cells)}",
        f"| {what} | {' | '.join(shares)} |",
        "",
    ]

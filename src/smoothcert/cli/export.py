"""`smoothcert export`: a run as a file for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.options import OptionalPath

_EXAMPLES = """
examples:
  smoothcert export run --out run.tsv
  smoothcert export run --out run.parquet
  smoothcert export run --out sigma_0.25 --format tsv
"""


@dataclass(frozen=True)
class Export:
    """Write a run's rows as the paper's log, as CSV or as Parquet."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of the run; it may still be under way."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """File to write, a new one: .tsv, .csv or .parquet."""
    format: Annotated[
        Literal["tsv", "csv", "parquet"] | None, tyro.conf.arg(metavar="tsv|csv|parquet", help_behavior_hint="")
    ] = None
    """tsv: the log that the paper's scripts read; by default as the file's name ends."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check where it goes, read the run, write the file."""
        from smoothcert.data.names import printable
        from smoothcert.runs.directory import open_run
        from smoothcert.runs.exchange import check_new_file, export_run, format_of

        chosen = self.format or format_of(self.out)
        check_new_file(self.out)
        run = open_run(self.path)
        notices = export_run(run, self.out, chosen)
        console.print(f"{len(run.rows):,} rows: {escape(printable(self.out))}", soft_wrap=True)
        for notice in notices:
            console.print(f"[yellow]notice:[/] {escape(printable(notice))}", soft_wrap=True)

"""`smoothcert report`: runs as one page that explains itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.options import OptionalPath, OptionalText

_EXAMPLES = """
examples:
  smoothcert report run --out report.html
  smoothcert report run-0.25 run-0.5 run-1.0 --out report.html
  smoothcert report run --data photos/ --gallery 60 --out report.html
  smoothcert report run --no-images --out report.html
"""


@dataclass(frozen=True)
class Report:
    """Write a page about runs: what is certified, the curve, the classes, inputs with their votes, how to check it."""

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Directories of runs that certify or predict, or of imported logs; they may still be under way."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """File to write, ending in .html; an earlier report is replaced, any other file is not."""
    data: OptionalText = None
    """The data set, for its pictures: a name, a folder or a file; by default the one that the runs name."""
    images: bool = True
    """Show pictures of inputs."""
    gallery: int = 24
    """How many inputs to show with their votes, of all runs together."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check where it goes, read the runs, write the page."""
        from smoothcert.data.names import printable
        from smoothcert.report.page import check_report_path, write_report
        from smoothcert.runs.directory import open_run

        check_report_path(self.out)
        runs = [open_run(path) for path in self.paths]
        notices = write_report(runs, self.out, images=self.images, data=self.data, gallery=self.gallery)
        size = self.out.stat().st_size / 1e6
        console.print(f"{escape(printable(self.out))}, {size:.1f} MB; runs: {len(runs):,}", soft_wrap=True)
        for notice in notices:
            console.print(f"[yellow]notice:[/] {escape(printable(notice))}", soft_wrap=True)

"""`smoothcert merge`: the parts of a run as one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.options import OptionalPath

_EXAMPLES = """
examples:
  smoothcert certify MODEL DATA --sigma 0.25 --seed 1 --batch-size 512 --chunk 4 --shard 1/2 --out part1
  smoothcert certify MODEL DATA --sigma 0.25 --seed 1 --batch-size 512 --chunk 4 --shard 2/2 --out part2
  smoothcert merge part1 part2 --out run
"""


@dataclass(frozen=True)
class Merge:
    """Join the parts of a run, made with --shard and the same --seed, into one."""

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Directories of the parts, all complete."""
    out: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Directory of the whole run, a new one."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check that the parts fit, and write the run."""
        from smoothcert.data.names import printable
        from smoothcert.runs.merging import merge_runs

        run = merge_runs(self.paths, self.out)
        console.print(
            f"{len(run.rows):,} rows of {len(self.paths)} runs: {escape(printable(self.out))}", soft_wrap=True
        )
        if run.errors:
            console.print(f"[yellow]notice:[/] {len(run.errors):,} inputs failed and are marked so", soft_wrap=True)

"""`smoothcert import`: a log of the paper's code as a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.options import OptionalInt, OptionalPath, OptionalText

_EXAMPLES = """
examples:
  smoothcert import sigma_0.25 --sigma 0.25 --out published
  smoothcert import sigma_0.50 --sigma 0.5 --alpha 0.01 --n 100000 --data cifar10 --out published
"""


@dataclass(frozen=True)
class Import:
    """Make a run of a log that the paper's code, or one that writes the same, has left: to show, compare and plot."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The log: columns idx, label, predict, radius, correct, time, separated by tabs; of PREDICT without radius."""
    out: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Directory of the run, a new one."""
    sigma: float
    """Noise level that the log was made with; it does not say so itself."""
    alpha: float = 0.001
    """Failure probability that the log was made with."""
    n: OptionalInt = None
    """Draws per input that the log was made with; radii beyond their reach are refused then."""
    data: OptionalText = None
    """Name of the data set, to be shown."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Read the log and write the run."""
        from smoothcert.data.names import printable
        from smoothcert.runs.exchange import import_log

        run = import_log(self.path, self.out, sigma=self.sigma, alpha=self.alpha, n=self.n, data=self.data)
        console.print(f"{len(run.rows):,} rows, run: {escape(printable(self.out))}", soft_wrap=True)
        console.print(
            "[yellow]notice:[/] a log holds no votes: its claims cannot be recomputed, and its radii are as printed, "
            "which the paper's code rounds to nearest.",
            soft_wrap=True,
        )

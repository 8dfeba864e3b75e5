"""`smoothcert verify`: check a run as somebody would who does not believe it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count
from smoothcert.cli.arguments import SameArguments
from smoothcert.errors import RetiredProcedureError, VerificationError
from smoothcert.options import OptionalInt, OptionalPath
from smoothcert.progress import ProgressBar

if TYPE_CHECKING:
    from smoothcert.runs.verification import Verification

_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Verify(SameArguments):
    """Check runs: every certificate is made anew from its votes, and every hash and checksum compared.

    Exit code 0 if nothing is wrong, 1 if anything is, 7 if only an earlier version has a run's procedure. With --again,
    some votes are drawn once more with the model and the data, which shows what a run cannot show by itself: that the
    votes are the model's answers.
    """

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Directories of runs."""
    again: OptionalInt = None
    """Draw the votes of at least so many inputs again, chosen at random."""
    json: bool = False
    """Print one JSON object per run."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert verify run
  smoothcert verify runs/*                      a line each; exit code 1 if any is wrong
  smoothcert verify run --again 10              draw ten inputs' votes again
  smoothcert verify run --again 10 --model net.onnx --data cifar10
"""

    def run(self, console: Console) -> None:
        """Check each run; VerificationError if anything is wrong, RetiredProcedureError if a run cannot be checked."""
        from smoothcert.runs.verification import verify_run

        if self.again is not None:
            check_count("again", self.again)
        found = []
        for path in self.paths:
            with ProgressBar(f"checking {path}", 1) as bar:
                result = verify_run(path, bar.set_progress)
            if self.again is not None and result.passed:
                self._draw_again(result)
            self._print(console, result)
            found.append(result)
        wrong = [str(one.path) for one in found if one.problems]
        if wrong:
            raise VerificationError(f"{len(wrong)} of {len(found)} runs failed: {', '.join(wrong)}.")
        retired = [str(one.path) for one in found if one.retirement is not None]
        if retired:
            raise RetiredProcedureError(
                f"{len(retired)} of {len(found)} runs were not verified: {', '.join(retired)}. Use an earlier version."
            )

    def _draw_again(self, result: Verification) -> None:
        from smoothcert.runs.directory import open_run
        from smoothcert.runs.redrawing import draw_again

        run = open_run(result.path)
        if run.manifest.kind not in ("certify", "predict", "bound"):
            return
        spec, data = self.model_and_data(run)
        with ProgressBar("drawing again", min(self.again or 1, result.rows)) as bar:
            result.drawn_again, problems = draw_again(run, spec, data, self.again or 1, bar.advance)
        result.problems += problems
        result.unchecked = [one for one in result.unchecked if "--again" not in one]
        if result.drawn_again < result.rows:
            what = "bounds" if result.kind == "bound" else "votes"
            result.unchecked.insert(0, f"the {what} of the other {result.rows - result.drawn_again:,} inputs")

    def _print(self, console: Console, result: Verification) -> None:
        if self.json:
            content = {**asdict(result), "path": str(result.path), "passed": result.passed}
            sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")
            return
        if result.retirement is not None:
            console.print(f"{escape(str(result.path))}: [yellow]not verified[/], {result.retirement}", soft_wrap=True)
            return
        verdict = "[green]nothing wrong[/]" if result.passed else f"[red]{len(result.problems):,} problems[/]"
        console.print(f"{escape(str(result.path))}: {verdict}", soft_wrap=True)
        again = f", {result.drawn_again:,} of them drawn again" if result.drawn_again else ""
        if result.kind == "bound":
            console.print(f"  {result.drawn_again:,} of {result.rows:,} bounds computed again")
        else:
            console.print(f"  {result.recomputed:,} of {result.rows:,} rows made anew from their votes{again}")
        if result.rows:
            console.print(f"  inputs: {escape(result.inputs)}", soft_wrap=True)
        for problem in result.problems[:_SHOWN]:
            console.print(f"  [red]wrong:[/] {escape(str(problem))}", soft_wrap=True)
        if len(result.problems) > _SHOWN:
            console.print(f"  … and {len(result.problems) - _SHOWN:,} more")
        for words in result.unchecked:
            console.print(f"  not checked: {escape(words)}", soft_wrap=True)

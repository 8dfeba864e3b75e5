"""`smoothcert predict`: the smoothed classifier's answers on a data set, into a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console

from smoothcert.cli.run_command import RunArguments, finish
from smoothcert.options import OptionalPath
from smoothcert.runs.settings import PredictSettings

_EXAMPLES = """
examples:
  smoothcert predict model.safetensors mnist --sigma 0.5 --out answers
  smoothcert predict model.onnx photos/ --sigma 0.25 --procedure paper --n-max 1000 --out answers
"""


@dataclass(frozen=True, kw_only=True)
class Predict(RunArguments, PredictSettings):
    """Predict the inputs of a data set, abstaining where it is too close to call."""

    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Predict, then show how often it was right and how often it abstained."""
        from smoothcert.cli.show import print_run
        from smoothcert.runs.summary import summarize

        run = self.execute()
        if not self.json:
            print_run(console, run, ())
        finish(console, run, as_json=self.json, summary=summarize(run, ()))

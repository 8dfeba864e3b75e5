"""`smoothcert certify`: certify a data set into a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console

from smoothcert.cli.run_command import RunArguments, finish
from smoothcert.options import OptionalPath
from smoothcert.runs.settings import CertifySettings

_EXAMPLES = """
examples:
  smoothcert certify model.safetensors mnist --sigma 0.5 --out run
  smoothcert certify model.safetensors mnist --sigma 0.5 --out run --resume
  smoothcert certify model.onnx cifar10 --sigma 0.25 --radii 0 0.25 0.5 0.75 --known-labels --every 20 --out run
  smoothcert certify timm:resnet50 imagenet --sigma 0.5 --procedure paper --every 100 --out run
  smoothcert certify model.safetensors cifar10 --sigma 0.25 --margin 0.2 --out run             a lead of 0.2 everywhere
  smoothcert certify model.safetensors cifar10 --sigma 0.25 --workers 4 --out run
  smoothcert certify model.safetensors cifar10 --sigma 0.25 --engine ray --address auto --out run
"""


@dataclass(frozen=True, kw_only=True)
class Certify(RunArguments, CertifySettings):
    """Certify the inputs of a data set: a class and a radius for each, with the votes they rest on."""

    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Certify, then show what was certified."""
        from smoothcert.cli.show import print_run
        from smoothcert.runs.summary import default_radii, summarize

        run = self.execute()
        radii = default_radii(run)
        if not self.json:
            print_run(console, run, radii)
        finish(console, run, as_json=self.json, summary=summarize(run, radii))

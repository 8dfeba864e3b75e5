"""`smoothcert baseline`: certify a network itself, deterministically, into a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console

from smoothcert.cli.arguments import DataArguments, ModelArguments
from smoothcert.cli.run_command import OutArguments, finish, tell
from smoothcert.options import OptionalPath
from smoothcert.runs.settings import BoundSettings

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run

_EXAMPLES = """
examples:
  smoothcert baseline model.safetensors mnist --method crown --every 50 --out crown
  smoothcert baseline model.safetensors mnist --method lipschitz --out lipschitz
  smoothcert train mnist --sigma 0 --arch wong-cnn --recipe dual:epsilon=0.5 --out robust
  smoothcert baseline robust mnist --method dual --every 50 --out dual
  smoothcert compare smoothed crown dual --out comparison
"""


@dataclass(frozen=True, kw_only=True)
class Baseline(OutArguments, ModelArguments, DataArguments, BoundSettings):
    """Certify a network itself, without noise: a class and a radius for each input, by a deterministic bound.

    For feed-forward and residual networks of linear and convolutional layers, batch norm, ReLU and pooling. The runs
    are like those of `certify`, with α = 0: table, plot, report and verify take them.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Data set by name (digits, mnist, fashion-mnist, cifar10, cifar100, svhn, imagenet, hf:NAME), or a folder of
    images, .npz or .npy."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Bound, then show what was certified."""
        from smoothcert.cli.show import print_run
        from smoothcert.runs.summary import default_radii, summarize

        self.check()
        run = self._execute()
        radii = default_radii(run)
        if not self.json:
            print_run(console, run, radii)
        finish(console, run, as_json=self.json, summary=summarize(run, radii))

    def _execute(self) -> Run:
        with self.writing(self.kind) as (writer, watch):
            from smoothcert.runs.bounding import bound_dataset

            spec = self.model_spec(0.0)
            classifier = spec.load()
            data = self.load_data(self.data, classifier)
            return bound_dataset(
                spec,
                data,
                self,
                writer,
                classifier=classifier,
                indices=self.select(data).tolist(),
                on_start=watch.start,
                on_rows=watch.rows,
                on_estimate=tell,
            )

"""`smoothcert attack-base`: attack a base classifier, for the smallest perturbations that change its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console

from smoothcert.cli.arguments import DataArguments, ModelArguments
from smoothcert.cli.attack_tables import print_attack
from smoothcert.cli.run_command import OutArguments, finish
from smoothcert.options import OptionalPath
from smoothcert.runs.settings import BaseAttackSettings

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run

_EXAMPLES = """
examples:
  smoothcert attack-base model.safetensors mnist --every 50 --out undefended
  smoothcert attack-base model.safetensors cifar10 --attacks deepfool ddn --first 100 --out undefended
  smoothcert plot certified-accuracy run --undefended undefended --out figure.pdf
"""


@dataclass(frozen=True, kw_only=True)
class AttackBase(OutArguments, ModelArguments, DataArguments, BaseAttackSettings):
    """Attack a base classifier, without noise: the smallest L2 perturbation that is known to change each answer.

    The share of inputs that are right and have none smaller than r is an upper bound on the robust accuracy at r. Needs
    foolbox: pip install 'smoothcert[attacks]'.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Data set by name (digits, mnist, fashion-mnist, cifar10, cifar100, svhn, imagenet, hf:NAME), or a folder of
    images, .npz or .npy."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Attack, then show what came of it."""
        from smoothcert.runs.attack_summary import summarize_attack

        self.check()
        run = self._execute()
        if not self.json:
            print_attack(console, run)
        finish(console, run, as_json=self.json, summary=summarize_attack(run))

    def _execute(self) -> Run:
        with self.writing(self.kind) as (writer, watch):
            from smoothcert.runs.attacking import attack_base_dataset

            spec = self.model_spec(0.0)
            classifier = spec.load()
            data = self.load_data(self.data, classifier)
            return attack_base_dataset(
                spec,
                data,
                self,
                writer,
                classifier=classifier,
                indices=self.select(data).tolist(),
                on_start=watch.start,
                on_rows=watch.rows,
            )

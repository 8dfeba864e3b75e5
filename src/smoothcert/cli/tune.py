"""`smoothcert tune`: find the fastest way to run a model on this machine, and remember it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.checks import check_sigma
from smoothcert.cli.arguments import DataArguments, ModelArguments
from smoothcert.options import OptionalPath, OptionalText, PlanName, Precision

if TYPE_CHECKING:
    from smoothcert.execution import Trial

_EXAMPLES = """
examples:
  smoothcert tune model.safetensors --data cifar10
  smoothcert tune model.safetensors --data cifar10 --precision int8 --sigma 0.25
  smoothcert certify model.safetensors cifar10 --sigma 0.25 --out run               uses what was found
  smoothcert certify model.safetensors cifar10 --sigma 0.25 --plan eager --out run  does not
"""


@dataclass(frozen=True, kw_only=True)
class Tune(ModelArguments, DataArguments):
    """Measure every way to run a model that is installed here, and remember the fastest for this machine.

    Tried are torch as it is and with batch norm folded, ONNX Runtime and OpenVINO, at several batch sizes and in both
    memory layouts; on a GPU compiled as well. They change scores by rounding, and never the guarantee. int8 makes
    another network of it: `inspect --precision int8` shows how accurate that one is under noise.
    """

    data: Annotated[str, tyro.conf.arg(metavar="DATA")]
    """Data set, for the shape of inputs, and to choose the scales of int8."""
    sigma: float = 0.25
    """Noise level of the inputs that int8 is made for."""
    plan: PlanName = "auto"
    """Try all, or one backend only, which is not remembered then."""
    precision: Precision = "fp32"
    """Numbers that the model computes with."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""
    json: bool = False
    """Print one JSON object instead of a table."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Measure, print and remember."""
        check_sigma(self.sigma)
        from smoothcert.execution import calibration_inputs
        from smoothcert.smoothed import Smoothed

        classifier = self.model_spec(self.sigma).load()
        data = self.load_data(self.data, classifier)
        first = data[int(self.select(data)[0])]
        classifier = classifier.fitted(first.shape)
        smoothed = Smoothed(
            classifier,
            self.sigma,
            plan=self.plan,
            precision=self.precision,
            calibration=calibration_inputs(data) if self.precision == "int8" else None,
            device=self.device,
        )
        smoothed.check_fit(first)
        trials: list[Trial] = []
        plan = smoothed.tune(first.shape, trials.append)
        smoothed.check(first)  # what was found keeps the contract too
        if self.json:
            found = {"plan": asdict(plan), "trials": [asdict(trial) for trial in trials]}
            sys.stdout.write(json.dumps(found) + "\n")
            return
        console.print(trials_table(trials))
        remembered = (
            "certify uses it from now on" if self.plan == "auto" else "not remembered, as others were not tried"
        )
        console.print(f"Fastest here: {plan.execution}, batches of {plan.batch_size}; {remembered}.", soft_wrap=True)


def trials_table(trials: list[Trial]) -> Table:
    """What was tried, the fastest first, and why others failed."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("backend", "precision", "layout"):
        table.add_column(heading)
    for heading in ("batch", "copies/s", "of the best", "built in"):
        table.add_column(heading, justify="right")
    best = max((trial.rate for trial in trials), default=0.0)
    failed = [trial for trial in trials if trial.failure is not None]
    for trial in sorted(set(trials) - set(failed), key=lambda one: -one.rate):
        plan = trial.plan
        layout = "NHWC" if plan.channels_last else "NCHW"
        cells = (f"{trial.rate:,.0f}", f"{trial.rate / best:.2f}", f"{trial.build_seconds:.1f} s")
        table.add_row(plan.backend, plan.precision, layout, str(plan.batch_size), *cells)
    for trial in failed:
        table.add_row(trial.plan.backend, trial.plan.precision, f"[yellow]{escape(trial.failure or '')}[/]")
    return table

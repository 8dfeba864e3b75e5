"""`smoothcert inspect`: what a model is, whether it is fed as it was trained, what certifying it would take."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.checks import check_alpha, check_count, check_sigma
from smoothcert.cli.arguments import DataArguments, ModelArguments
from smoothcert.errors import ConfigError, ModelError
from smoothcert.options import OptionalFloat, OptionalInt, OptionalPath, OptionalText, PlanName, Precision

if TYPE_CHECKING:
    from smoothcert.data.dataset import Dataset
    from smoothcert.inspection import Inspection, Share
    from smoothcert.models.classifier import Classifier

_LOOKED_AT = 100  # inputs, unless it was said which
_EXAMPLES = """
examples:
  smoothcert inspect model.onnx
  smoothcert inspect model.safetensors --data cifar10 --sigma 0.25
  smoothcert inspect model.safetensors --data cifar10 --sigma 0.25 --precision int8
  smoothcert inspect timm:resnet50 --data imagenet --sigma 0.5 --first 200
  smoothcert inspect my_code.py:make_model --data photos/ --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225
  smoothcert inspect hf:google/vit-base-patch16-224 --data imagenet --denoiser tv --price-per-hour 1.20
"""


@dataclass(frozen=True, kw_only=True)
class Inspect(ModelArguments, DataArguments):
    """Show what a model is, how accurate it is with and without noise, and what certifying it would take."""

    data: Annotated[str | None, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None
    """Data set by name (digits, mnist, fashion-mnist, cifar10, cifar100, svhn, imagenet, hf:NAME), or a folder of
    images, .npz or .npy. Without it, only what the model says about itself."""
    sigma: float = 0.25
    """Noise level, in units of pixels in [0, 1]."""
    alpha: float = 0.001
    """Failure probability that the estimate of a certification is made for."""
    n_max: int = 100_000
    """Most draws per input that the estimate is made for."""
    seconds: float = 20.0
    """About how long to classify noisy copies."""
    price_per_hour: OptionalFloat = None
    """What an hour of this machine costs, to estimate the cost."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""
    plan: PlanName = "auto"
    """What runs the model: auto as `smoothcert tune` found; eager as it is; or another backend."""
    precision: Precision = "fp32"
    """Numbers that the model computes with; accuracy under noise is shown beside that in fp32."""
    batch_size: OptionalInt = None
    """Noisy copies per forward pass; by default the fastest."""
    json: bool = False
    """Print one JSON object instead of tables."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check everything, load, look, print."""
        self._check()
        classifier = self.model_spec(self.sigma).load()
        if self.data is None:
            _print_model(console, classifier) if not self.json else _print_json({"model": describe(classifier)})
            return
        data = self.load_data(self.data, classifier)
        if data.shape is None:
            raise ModelError(f"The images of {data.name} have different sizes: give --size.")
        classifier = classifier.fitted(data.shape)
        indices = self.select(data)
        looked_at = indices[:: max(1, len(indices) // _LOOKED_AT)][:_LOOKED_AT]
        if not self.json:
            _print_model(console, classifier)
            console.print()
        from smoothcert.inspection import inspect_model

        inspection = inspect_model(
            classifier,
            data,
            looked_at.tolist(),
            sigma=self.sigma,
            alpha=self.alpha,
            n_max=self.n_max,
            seconds=self.seconds,
            device=self.device,
            batch_size=self.batch_size,
            plan=self.plan,
            precision=self.precision,
            total=len(indices),
        )
        if self.json:
            about = {"name": data.name, "inputs": len(data), "shape": list(data.shape), "looked_at": len(looked_at)}
            _print_json({"model": describe(classifier), "data": about, "sigma": self.sigma, **inspection.to_dict()})
        else:
            self._print(console, data, len(looked_at), inspection)

    def _check(self) -> None:
        check_sigma(self.sigma)
        check_alpha(self.alpha)
        check_count("n_max", self.n_max)
        for name, value in (("seconds", self.seconds), ("price_per_hour", self.price_per_hour)):
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"Expected `{name}` to be a finite number >= 0, got {value!r}.")

    def _print(self, console: Console, data: Dataset, looked_at: int, found: Inspection) -> None:
        table = _table()
        table.add_row(
            "data", f"{escape(data.name)}: {len(data):,} inputs of {_sides(data.shape)}; {looked_at} looked at"
        )
        if found.clean is None or found.noisy is None:
            table.add_row("accuracy", "unknown, as the data has no labels")
        else:
            table.add_row("accuracy, clean", _percent(found.clean))
            beside = ""
            if found.noisy_in_fp32 is not None:
                beside = f" in {self.precision}; {_percent(found.noisy_in_fp32, interval=False)} in fp32"
            noisy = f"{_percent(found.noisy, interval=False)} of noisy copies{beside}"
            table.add_row(f"accuracy, σ = {self.sigma:g}", noisy)
        table.add_row("throughput", f"{found.throughput:,.0f} noisy copies per second")
        if found.executed is not None:
            table.add_row("run by", escape(found.executed))
        console.print(table)
        console.print(f"\n[bold]Certifying {found.estimates[0].inputs:,} inputs at α = {self.alpha:g}[/], roughly")
        console.print(self._estimates(found))
        for warning in found.warnings:
            console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)

    def _estimates(self, found: Inspection) -> Table:
        table = Table("procedure", "draws per input", "draws", "time", box=box.SIMPLE_HEAD, pad_edge=False)
        if self.price_per_hour is not None:
            table.add_column("cost")
        for column in table.columns[1:]:
            column.justify = "right"
        for one in found.estimates:
            cells = [f"{one.draws_per_input:,.0f}", f"{one.draws_per_input * one.inputs:.3g}", duration(one.seconds)]
            if self.price_per_hour is not None:
                cells.append(f"{one.seconds / 3600 * self.price_per_hour:,.2f}")
            table.add_row(one.procedure, *cells)
        return table


def describe(classifier: Classifier) -> dict[str, object]:
    """What is known of a model, under plain names."""
    parameters = sum(parameter.numel() for parameter in classifier.network.parameters())
    return {
        "source": classifier.source,
        "kind": classifier.kind,
        "input_shape": classifier.input_shape,
        "num_classes": classifier.num_classes,
        "classes": classifier.classes,
        "normalization": classifier.normalization,
        "trained_sigma": classifier.sigma,
        "parameters": parameters or None,
        "weights_hash": classifier.weights_hash,
        "notes": classifier.notes,
    }


def _print_json(content: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def _table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _print_model(console: Console, classifier: Classifier) -> None:
    about = describe(classifier)
    table = _table()
    table.add_row("model", f"{_shown(classifier.source)} [dim]({classifier.kind})[/]")
    table.add_row("input", _sides(classifier.input_shape))
    table.add_row("classes", _classes(classifier))
    table.add_row("normalisation", escape(classifier.normalization))
    if classifier.sigma is not None:
        table.add_row("trained with noise", f"σ = {classifier.sigma:g}")
    if about["parameters"]:
        table.add_row("parameters", f"{about['parameters']:,}")
    table.add_row("weights", classifier.weights_hash or "none: a function")
    for note in classifier.notes:
        table.add_row("note", _shown(note))
    console.print(table)


def _shown(text: str) -> str:
    from smoothcert.data.names import printable

    return escape(printable(text))


def _classes(classifier: Classifier) -> str:
    if classifier.num_classes is None:
        return "not declared"
    names = classifier.classes or ()
    shown = ", ".join(_shown(name) for name in names[:8])
    more = ", …" if len(names) > 8 else ""
    return f"{classifier.num_classes:,}" + (f": {shown}{more}" if names else ", without names")


def _sides(shape: tuple[int, ...] | None) -> str:
    return "any, or not declared" if shape is None else "×".join(map(str, shape))


def _percent(share: Share, *, interval: bool = True) -> str:
    from smoothcert.stats.accuracy import ceil_percent, floor_percent

    low, high = share.interval
    ends = f"{floor_percent(low)} to {ceil_percent(high)} %"
    around = f" of {share.of:,} (95 % interval {ends})" if interval else ""
    return f"{floor_percent(share.value)} %{around}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(7300)
    '2.0 hours'
    """
    for name, length in (("years", 365 * 86_400), ("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {name}"
    return f"{seconds:.1f} seconds"

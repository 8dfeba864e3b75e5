"""`smoothcert demo`: train, smooth, certify and compare, on handwritten digits and in under a minute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import ConfigError

if TYPE_CHECKING:
    from smoothcert.cli.demo_steps import Attacked, Certified
    from smoothcert.data.dataset import ArrayData
    from smoothcert.stats.procedures import FixedN

_TEST_INPUTS = 500
_LARGEST_SEED = 2**63 - 1  # of torch's generator
_PANEL_IMAGES = 4
_RADII = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


_EXAMPLES = """
examples:
  smoothcert demo
  smoothcert demo --out my-demo --sigmas 0.1 0.2 0.4
  smoothcert demo --inputs 20 --n 1000 --epochs 10
"""


@dataclass(frozen=True)
class Demo:
    """Train small networks on handwritten digits, certify them, and show what that is worth."""

    out: Path = Path("demo-output")
    """Folder for the figures, weights and certificates; created if needed. Only the demo's own files are replaced."""
    sigmas: Annotated[tuple[float, ...], tyro.conf.arg(metavar="SIGMA ...")] = (0.12, 0.25, 0.35)
    """Noise levels, in units of pixels in [0, 1]; one network is trained for each."""
    radii: Annotated[tuple[float, ...], tyro.conf.arg(metavar="RADIUS ...")] = _RADII
    """Radii of the printed table."""
    inputs: int = 100
    """How many of the 500 test images to certify."""
    n: int = 10_000
    """Noisy copies per image that the certificate rests on."""
    alpha: float = 0.001
    """Probability with which a certificate may be false, between 0 and 0.5."""
    epochs: int = 60
    """How often each network sees the training images."""
    seed: int = 0
    """Same seed, same networks, same noise, same result."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check everything, then train, certify, attack, print and write."""
        procedure = self._checked_procedure()
        from smoothcert.cli import demo_steps as steps
        from smoothcert.data.selection import select_indices

        training, test = steps.prepare(self.out, self.sigmas)
        chosen = select_indices(len(test), every=len(test) // self.inputs, first=self.inputs)
        console.print(f"Training {len(self.sigmas) + 1} networks on {len(training):,} digits …")
        models = steps.train_models(training, (0.0, *self.sigmas), self.epochs, self.seed)
        steps.save_models(self.out, models, training, self.epochs, self.seed)
        console.print(f"Certifying {len(chosen)} test images with {self.n:,} noisy copies each …")
        certified = [
            steps.certify(self.out, test, chosen, sigma, self.n, self.alpha, self.seed) for sigma in self.sigmas
        ]
        attacked = steps.attack(models[0.0], test, chosen)
        _print_table(console, certified, attacked, self.radii)
        _print_meaning(console, certified, test, procedure)
        panel = test.inputs[chosen[:_PANEL_IMAGES]]
        written = steps.write_all(self.out, certified, attacked, panel, self.seed)
        console.print("\n[bold]Files[/]")
        for path, what in written:
            console.print(f"  {escape(str(path))}  [dim]{what}[/]", soft_wrap=True)

    def _checked_procedure(self) -> FixedN:
        from smoothcert.stats.procedures import FixedN

        for sigma in self.sigmas:
            check_sigma(sigma)
        if not self.sigmas or len(set(self.sigmas)) < len(self.sigmas):
            raise ConfigError(f"Expected `sigmas` to be different noise levels, at least one, got {self.sigmas}.")
        if not self.radii or not all(0 <= radius < math.inf for radius in self.radii):
            raise ConfigError(f"Expected `radii` to be finite numbers >= 0, at least one, got {self.radii}.")
        check_count("inputs", self.inputs, most=_TEST_INPUTS)
        check_count("epochs", self.epochs)
        check_count("seed", self.seed, least=0, most=_LARGEST_SEED)
        return FixedN(n=self.n, alpha=self.alpha)


def _print_table(console: Console, certified: Sequence[Certified], attacked: Attacked, radii: Sequence[float]) -> None:
    from smoothcert.report.tables import accuracy_row, accuracy_table

    rows = [accuracy_row(f"σ = {c.sigma:g}", c.radii, c.correct, radii) for c in certified]
    survived = accuracy_row("undefended", attacked.norms, attacked.norms > 0, radii)
    console.print("\n[bold]Certified accuracy in % by L2 radius[/] (* best σ; ACR: average certified radius)")
    console.print(accuracy_table(rows, radii, upper_bound=survived))
    console.print(
        "[dim]undefended: what an attack (DeepFool) left standing, so at most this much; nothing is certified.[/]"
    )


def _print_meaning(console: Console, certified: Sequence[Certified], test: ArrayData, procedure: FixedN) -> None:
    console.print("\n[bold]What this means[/]")
    best = max(certified, key=lambda c: c.average_radius)
    example = best.typical_correct()
    if example is None:
        console.print("No image was certified with its true class. Train for longer: --epochs 60.")
        return
    results = sum(len(c.certificates) for c in certified)
    console.print(_example_text(best, example, test, procedure, results))
    console.print(
        "A small σ keeps accuracy near radius 0, a large σ reaches further: hence different winners in the table. "
        "The attacked network has no such guarantee: a better attack could lower its numbers at any time."
    )


def _example_text(best: Certified, example: int, test: ArrayData, procedure: FixedN, results: int) -> str:
    from smoothcert.records import ceil_decimal, radius_text

    certificate, index = best.certificates[example], int(best.indices[example])
    truth = test.classes[int(test.labels[index])]
    pixels = test.inputs[index].size
    levels = math.floor(255 * certificate.radius / math.sqrt(pixels))
    expected = ceil_decimal(procedure.alpha * results, 3)
    return (
        f"Test image {index} shows the digit {truth}. Smoothed with σ = {best.sigma:g}, "
        f"the network answers {truth} for every 8-bit image within L2 distance "
        f"{radius_text(certificate.radius)} of it, whatever an attacker does: all {pixels} pixels may change at once "
        f"by {levels} of 255 grey levels, or a few of them by more. This rests on {certificate.stages[-1].n:,} "
        f"noisy copies. For an image picked beforehand, the probability that they mislead us is at most "
        f"{procedure.alpha:g}. This one was picked afterwards, for its middle radius, so that number is about the "
        f"{results} results of this demo together: on average at most {expected} of them are false."
    )

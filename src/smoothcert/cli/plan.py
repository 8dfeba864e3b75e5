"""`smoothcert plan`: how many draws a radius takes, and how far draws can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.checks import check_alpha, check_count, check_sigma
from smoothcert.errors import ConfigError

_BAR_WIDTH = 36
_EIGHTHS = " ▏▎▍▌▋▊▉"
_EXAMPLES = """
examples:
  smoothcert plan --sigma 0.5
  smoothcert plan --sigma 0.25 --radii 0.5 0.75 1.0 --alpha 0.0001
  smoothcert plan --sigma 0.25 --n 1000 50000 --out plan.svg
"""


@dataclass(frozen=True)
class Plan:
    """How many draws a radius takes, and the largest radius that n draws can certify."""

    sigma: float = 0.25
    """Standard deviation of the noise, in units of pixels in [0, 1]."""
    alpha: float = 0.001
    """Probability with which a certificate may be false, between 0 and 0.5."""
    radii: Annotated[tuple[float, ...], tyro.conf.arg(metavar="RADIUS ...", help_behavior_hint="")] = ()
    """Radii to plan for; by default 1 to 5 times sigma."""
    n: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (100, 1_000, 10_000, 100_000, 1_000_000)
    """Numbers of draws to plan with."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Also draw the largest radius against n into this file, .png, .svg or .pdf."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Check all settings, print the two tables, draw the figure if one was asked for."""
        check_sigma(self.sigma)
        check_alpha(self.alpha)
        radii = [_check_radius(radius) for radius in self.radii or [round(k * self.sigma, 12) for k in range(1, 6)]]
        draws = [check_count("n", n) for n in self.n]
        if not draws:
            raise ConfigError("Expected at least one number of draws in `n`, got none.")
        if self.out is not None:
            self._draw(self.out)
        console.print(f"[bold]Fewest draws per radius[/], σ = {self.sigma:g}, α = {self.alpha:g}")
        console.print(_draws_table(radii, self.sigma, self.alpha))
        console.print("[bold]Largest radius per number of draws[/]")
        console.print(_radius_table(draws, self.sigma, self.alpha))
        console.print(
            "A radius takes at least this many noisy copies of the input, and only if every one of them gets the same "
            "class; an input on which the classifier wavers takes more or is never certified that far. Draws grow "
            "exponentially with (radius/σ)², so for larger radii choose a larger σ rather than more draws."
        )
        if self.out is not None:
            console.print(f"Figure: {escape(str(self.out))}", soft_wrap=True)

    def _draw(self, path: Path) -> None:
        from smoothcert.report.figures import check_figure_path, radius_by_draws_figure, save_figure

        check_figure_path(path)
        save_figure(radius_by_draws_figure(self.sigma, self.alpha, self.n), path)


def _check_radius(radius: float) -> float:
    if not 0 < radius < math.inf:
        raise ConfigError(f"Expected `radii` to be finite numbers > 0, got {radius!r}.")
    return radius


def fewest_draws(radius: float, sigma: float, alpha: float) -> str:
    """The fewest draws that can certify `radius`, as printed."""
    from smoothcert.stats.radii import draws_for

    try:
        return f"{draws_for(radius, sigma, alpha):,}"
    except ConfigError:  # the settings were checked, so this is the one reason left
        return "beyond 2^53"


def _draws_table(radii: Sequence[float], sigma: float, alpha: float) -> Table:
    from smoothcert.records import exact_decimal

    table = Table("radius", "radius/σ", "fewest draws", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for radius in radii:
        depth = radius / sigma
        table.add_row(exact_decimal(radius), f"{depth:.4g}", fewest_draws(radius, sigma, alpha))
    return table


def _radius_table(draws: Sequence[int], sigma: float, alpha: float) -> Table:
    from smoothcert.records import radius_text
    from smoothcert.stats.radii import max_radius

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("draws n", justify="right")
    table.add_column("largest radius", justify="right")
    table.add_column("")
    radii = [max_radius(n, alpha, sigma) for n in draws]
    for n, radius in zip(draws, radii, strict=True):
        shown = radius_text(radius) if radius > 0 else "none"
        table.add_row(f"{n:,}", shown, f"[cyan]{bar(radius, max(radii))}[/]")
    return table


def bar(value: float, largest: float, width: int = _BAR_WIDTH) -> str:
    """A bar of block characters, `width` long for the largest value, to the eighth of a character.

    >>> bar(1.0, 2.0, width=3)
    '█▌'
    """
    eighths = round(8 * width * value / largest) if largest > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()

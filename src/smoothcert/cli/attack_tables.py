"""Attack runs as tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.runs.attack_summary import expected_violations, outcomes, perturbation_norms, violations

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run
    from smoothcert.runs.journal import Row

_SHOWN = 10
_RADII = 8


def print_attack(console: Console, run: Run) -> None:
    """What was attacked, and what came of it."""
    values = run.manifest.values
    state = "complete" if run.complete else f"of {len(run.manifest.indices):,}"
    failed = f", of which {len(run.errors):,} failed" if run.errors else ""
    console.print(
        f"{escape(str(values['model'].get('source')))}, {escape(str(values['data']['name']))}", soft_wrap=True
    )
    console.print(f"{len(run.rows):,} inputs, {state}{failed}")
    if run.manifest.kind == "attack-base":
        console.print(_robust_accuracy(run))
        return
    console.print(_success(run))
    _print_violations(console, run)


def print_attempts(console: Console, row: Row) -> None:
    """What each attack came to on one input."""
    if "norms" in row:
        for name, norm in row["norms"].items():
            console.print(f"  {name}: {'nothing found' if norm is None else f'a perturbation of {norm:.6g}'}")
        return
    console.print(f"certified: class {row['label']} within {row['radius']:.6g}")
    for one in row["attempts"]:
        draws = sum(stage["n"] for stage in one["stages"])
        answer = "the judge abstains" if one["label"] is None else f"class {one['label']}"
        console.print(f"  {one['attack']} within {one['factor']:g} R, at {one['norm']:.6g}: {answer}, {draws:,} draws")


def _success(run: Run) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("attack")
    for heading in ("within", "inputs", "another class %", "95 % interval", "abstained %"):
        table.add_column(heading, justify="right")
    for one in outcomes(run):
        low, high = one.interval if one.attempts else (0.0, 1.0)
        table.add_row(
            one.attack,
            f"{one.factor:g} R",
            f"{one.attempts:,}",
            _percent(one.successes, one.attempts),
            f"{100 * low:.1f} to {100 * high:.1f}",
            _percent(one.abstentions, one.attempts),
        )
    return table


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f}" if of else ""


def _print_violations(console: Console, run: Run) -> None:
    found = violations(run)
    if not found and not any(factor <= 1 for factor in run.manifest.values["factors"]):
        return
    inputs = len({one.index for one in found})
    allowed = f"by chance at most about {expected_violations(run):.2g} may"
    if not found:
        console.print(f"Within R no attack changed an answer ({allowed}).")
        return
    console.print(
        f"[red]Violations:[/] within R the answer of {inputs:,} of {len(run.rows):,} inputs changed; {allowed}."
    )
    for one in found[:_SHOWN]:
        console.print(
            f"  input {one.index}: {one.attack} at {one.norm:.6g}, certified {one.radius:.6g}; class {one.label} "
            f"became {one.answer}. The perturbed input and its votes are in the run's row.",
            soft_wrap=True,
        )


def _robust_accuracy(run: Run) -> Table:
    """Robust accuracy is at most so much, by radius: for each attack, and for all together."""
    norms = {name: perturbation_norms(run, name) for name in run.manifest.values["attacks"]}
    norms["all"] = perturbation_norms(run)
    finite = norms["all"][np.isfinite(norms["all"])]
    largest = float(finite.max(initial=0.0)) or 1.0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="robust accuracy is at most, in %", title_justify="left")
    table.add_column("radius")
    for name in norms:
        table.add_column(name, justify="right")
    for radius in np.linspace(0, largest, _RADII):
        shares = (f"{100 * float(np.mean(one > radius)):.1f}" if len(one) else "" for one in norms.values())
        table.add_row(f"{radius:.2f}", *shares)
    return table

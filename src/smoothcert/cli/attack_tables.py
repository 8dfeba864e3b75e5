"""Attack runs as tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.records import ceil_decimal, exact_decimal, radius_text
from smoothcert.runs.attack_summary import (
    expected_violations,
    outcomes,
    perturbation_norms,
    robust_at_most,
    table_radii,
    violations,
)
from smoothcert.runs.scope import margin_in_words
from smoothcert.stats.accuracy import ceil_percent, floor_percent

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run
    from smoothcert.runs.journal import Row

_SHOWN = 10


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
    if margin := margin_in_words(run):
        console.print(
            f"R is a radius with a margin: {margin}. Without a margin, certified radii are larger, so these shares are "
            "not comparable with attacks on such radii.",
            soft_wrap=True,
        )
    _print_violations(console, run)


def print_attempts(console: Console, row: Row) -> None:
    """What each attack came to on one input."""
    if "norms" in row:
        for name, norm in row["norms"].items():
            found = "nothing found" if norm is None else f"a perturbation of {ceil_decimal(norm, 6)}"
            console.print(f"  {name}: {found}")
        return
    console.print(f"certified: class {row['label']}, radius {radius_text(row['radius'])}")
    for one in row["attempts"]:
        draws = sum(stage["n"] for stage in one["stages"])
        answer = "the judge abstains" if one["label"] is None else f"class {one['label']}"
        where = f"within {exact_decimal(one['factor'])} R, at {ceil_decimal(one['norm'], 6)}"
        console.print(f"  {one['attack']} {where}: {answer}, {draws:,} draws")


def _success(run: Run) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("attack")
    for heading in ("within", "inputs", "another class %", "95 % interval", "abstained %"):
        table.add_column(heading, justify="right")
    for one in outcomes(run):
        low, high = one.interval if one.attempts else (0.0, 1.0)
        table.add_row(
            one.attack,
            f"{exact_decimal(one.factor)} R",
            f"{one.attempts:,}",
            _percent(one.successes, one.attempts),
            f"{floor_percent(low)} to {ceil_percent(high)}",
            _percent(one.abstentions, one.attempts),
        )
    return table


def _percent(count: int, of: int) -> str:
    """A share that speaks against the classifier, rounded up."""
    return ceil_percent(count / of) if of else ""


def _print_violations(console: Console, run: Run) -> None:
    found = violations(run)
    if not found and not any(factor <= 1 for factor in run.manifest.values["factors"]):
        return
    inputs = len({one.index for one in found})
    allowed = f"by chance at most about {ceil_decimal(expected_violations(run), 3)} may"
    if not found:
        console.print(f"Within R no attack changed an answer ({allowed}).")
        return
    console.print(
        f"[red]Violations:[/] within R the answer of {inputs:,} of {len(run.rows):,} inputs changed; {allowed}."
    )
    for one in found[:_SHOWN]:
        console.print(
            # All digits: rounded apart, the two might seem to be in order.
            f"  input {one.index}: {one.attack} at {exact_decimal(one.norm)}, certified {exact_decimal(one.radius)}; "
            f"class {one.label} became {one.answer}. The perturbed input and its votes are in the run's row.",
            soft_wrap=True,
        )


def _robust_accuracy(run: Run) -> Table:
    """Upper bounds on robust accuracy by radius, rounded up: for each attack, and for all together."""
    norms = {name: perturbation_norms(run, name) for name in run.manifest.values["attacks"]}
    norms["all"] = perturbation_norms(run)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="robust accuracy is at most, in %", title_justify="left")
    table.add_column("radius")
    for name in norms:
        table.add_column(name, justify="right")
    for radius in table_radii(norms["all"]):
        shares = (ceil_percent(robust_at_most(one, radius)) if len(one) else "" for one in norms.values())
        table.add_row(exact_decimal(radius), *shares)
    return table

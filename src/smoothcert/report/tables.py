"""Certified accuracy by noise level and radius: the arithmetic first, then its printed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from rich.text import Text

from smoothcert.errors import InputError
from smoothcert.records import exact_decimal, floor_decimal
from smoothcert.stats.accuracy import average_certified_radius, ceil_percent, certified_accuracy, floor_percent


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One classifier's certified accuracy at each radius of a table, and its average certified radius."""

    name: str
    accuracies: tuple[float, ...]
    average_radius: float


def accuracy_row(name: str, radii: npt.ArrayLike, correct: npt.ArrayLike, at: Sequence[float]) -> AccuracyRow:
    """The row of a classifier with these radii, `correct` where its class is the true one."""
    accuracies = np.asarray(certified_accuracy(radii, correct, at))
    return AccuracyRow(name, tuple(accuracies.tolist()), average_certified_radius(radii, correct))


def best_per_column(columns: Sequence[Sequence[float]]) -> list[frozenset[int]]:
    """For each column the rows with the highest value: several where they tie, none where all are 0.

    >>> [sorted(rows) for rows in best_per_column([[0.9, 0.9], [0.1, 0.2], [0.0, 0.0]])]
    [[0, 1], [1], []]
    """
    best = []
    for values in columns:
        top = max(values, default=0.0)
        best.append(frozenset(i for i, value in enumerate(values) if value == top and top > 0))
    return best


def accuracy_table(
    rows: Sequence[AccuracyRow], at: Sequence[float], *, upper_bound: AccuracyRow | None = None
) -> Table:
    """A printable table: percentages rounded down, each column's best bold and marked with a star.

    `upper_bound`, a classifier that was attacked rather than certified, comes last, is rounded up and never marked:
    its numbers are no guarantee.
    """
    for row in [*rows, *([upper_bound] if upper_bound else [])]:
        if len(row.accuracies) != len(at):
            raise InputError(f"Expected {len(at)} accuracies in row {row.name!r}, got {len(row.accuracies)}.")
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # ten columns fit into 80 characters
    table.add_column("radius", no_wrap=True)
    for radius in at:
        table.add_column(f"{exact_decimal(radius)} ", justify="right", no_wrap=True)
    table.add_column("ACR ", justify="right", no_wrap=True)
    columns = [*zip(*(row.accuracies for row in rows), strict=True), [row.average_radius for row in rows]]
    best = best_per_column(columns)
    for i, row in enumerate(rows):
        values = [*map(floor_percent, row.accuracies), floor_decimal(row.average_radius, 3)]
        table.add_row(row.name, *(_cell(value, i in best[j]) for j, value in enumerate(values)))
    if upper_bound is not None:
        table.add_section()
        values = [f"{ceil_percent(accuracy)} " for accuracy in upper_bound.accuracies]
        table.add_row(upper_bound.name, *values, "– ", style="dim")
    return table


def _cell(value: str, is_best: bool) -> Text:
    return Text(f"{value}*", style="bold") if is_best else Text(f"{value} ")

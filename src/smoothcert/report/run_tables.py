"""Runs as a table of certified accuracy against radius, for terminal, Markdown, LaTeX and CSV.

`run_table` has a row per run, `best_table` a row per radius with the best run there. Printed accuracies and radii are
rounded down; CSV has all digits. A cell is empty ("–") where a run did not test the radius, and only columns without
empty cells have a best row.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from rich.text import Text

from smoothcert.errors import ConfigError
from smoothcert.records import exact_decimal, floor_decimal
from smoothcert.report.claims import Claim, claims
from smoothcert.report.naming import run_names
from smoothcert.report.tables import best_per_column
from smoothcert.runs.directory import Run
from smoothcert.runs.journal import Row
from smoothcert.runs.retired import current_settings
from smoothcert.runs.scope import certified_margin, inputs_in_words, is_decided, radii_tested
from smoothcert.runs.summary import default_radii
from smoothcert.stats.accuracy import (
    are_correct,
    average_certified_radius,
    ceil_percent,
    certified_accuracy,
    floor_percent,
)
from smoothcert.stats.test_set import bernstein_lower_bound, exact_lower_bound, simultaneous_lower_bound

LOWER_BOUNDS: dict[str, Callable[..., Any]] = {
    "exact": exact_lower_bound,
    "paper": bernstein_lower_bound,
    "simultaneous": simultaneous_lower_bound,
}
UNKNOWN = "–"
AVERAGE, GRID_AVERAGE = "ACR", "grid ACR"
_STANDARD = "std.: the most frequent answer is right, which is not certified."
_MOST_COLUMNS = 7  # with the others and short names they fit into 80 characters


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and its values with their printed forms; None where a run does not know the value.

    Only the columns that are `compared` have a best row, and only where every run knows its value; these hold numbers.
    """

    heading: str
    values: tuple[float | str | None, ...]
    cells: tuple[str, ...]
    compared: bool = False

    @property
    def best(self) -> frozenset[int]:
        """The rows to be marked."""
        known = [value for value in self.values if isinstance(value, (int, float))]
        if not self.compared or len(known) < max(2, len(self.values)):
            return frozenset()
        return best_per_column([known])[0]


@dataclass(frozen=True, slots=True)
class RunTable:
    """Names of the rows, and columns; `corner` is the heading of the names."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    corner: str = ""


def table_radii(runs: Sequence[Run]) -> tuple[float, ...]:
    """Radii that suit all runs: what they have in common, continued in even steps up to the largest radius.

    Grid runs have in common the radii that all of them tested, or else each has its own; other runs know every radius.
    """
    own = {default_radii(run) for run in runs}
    if len(own) == 1:
        return own.pop()[:_MOST_COLUMNS]
    largest = max((float(row.get("radius", 0.0)) for run in runs for row in run.rows), default=0.0)
    steps = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
    step = next((one for one in steps if largest / one < _MOST_COLUMNS), largest / (_MOST_COLUMNS - 1))
    even = [round(number * step, 6) for number in range(int(largest / step) + 1)]
    grids = [set(tested) for tested in map(radii_tested, runs) if tested is not None]
    if not grids:
        return tuple(even)
    tested = sorted(set.intersection(*grids) or set.union(*grids))
    if len(grids) < len(runs):  # the others know what lies beyond
        tested += [radius for radius in even if radius > tested[-1]]
    return tuple(tested[:_MOST_COLUMNS])


def run_table(
    runs: Sequence[Run],
    radii: Sequence[float] = (),
    *,
    group: bool = False,
    lower_bound: float | None = None,
    bound: str = "exact",
) -> RunTable:
    """Certified accuracy of each run at `radii`, with average radius, abstentions and standard accuracy.

    With `group`, runs of the same network that differ only in the seed of the noise or in the inputs share a row: their
    mean. With `lower_bound`, a number ρ between 0 and 1, accuracies are lower bounds on the share of the run's inputs
    that are classified correctly everywhere within the radius, each with probability 1 − ρ over the noise; all of a row
    at once where `bound` is "simultaneous". They bound nothing about other inputs of the data set.
    """
    rows = _measure_rows(runs, radii, group=group, lower_bound=lower_bound, bound=bound)
    columns = _columns(rows.radii, rows.values, rows.tested)
    if len({certified_margin(run) for run in runs}) > 1:
        columns = [replace(column, compared=False) for column in columns]
    notes = _notes(runs, lower_bound, bound, f"ACR: average certified radius; abst.: abstained; {_STANDARD}")
    if any(grid is not None for grid in rows.tested):
        notes.append(
            f"{GRID_AVERAGE}: average of the largest tested radius that holds, a lower bound on the average certified "
            "radius. It depends on the radii tested and is not comparable with ACR."
        )
    notes += _disputed(runs, rows.claims)
    if any(value is None for column in columns[: len(rows.radii)] for value in column.values):
        notes.append(f"{UNKNOWN}: the run did not test this radius. Only columns without {UNKNOWN} have a best row.")
    return RunTable(rows.names, tuple(columns), tuple(notes))


def best_table(
    runs: Sequence[Run],
    radii: Sequence[float] = (),
    *,
    group: bool = False,
    lower_bound: float | None = None,
    bound: str = "exact",
) -> RunTable:
    """For each radius the run with the highest certified accuracy there: the form of the paper's Table 1 of ImageNet.

    Of equal runs the one with the higher standard accuracy is shown, then the first. There is no best where no run
    certifies anything, or where a run did not test the radius. With `lower_bound`, a number ρ between 0 and 1, each of
    the k runs gets its part ρ/k, so that the bound shown holds with probability 1 − ρ though the best run was chosen
    by the same votes.
    """
    if len({certified_margin(run) for run in runs}) > 1:
        raise ConfigError("Expected runs with the same margin: radii with different leads are not comparable.")
    rows = _measure_rows(runs, radii, group=group, lower_bound=lower_bound, bound=bound, choices=True)
    certified, standard = rows.values[:, : len(rows.radii)], rows.values[:, -1]
    chosen = [_best_row(accuracies, standard) for accuracies in certified.T]
    names = [None if row is None else rows.names[row] for row in chosen]
    highest = certified.max(axis=0)  # NaN where a run did not test the radius
    own = np.array([math.nan if row is None else standard[row] for row in chosen])
    columns = (
        Column("best", tuple(names), tuple(UNKNOWN if name is None else name for name in names)),
        _column("certified", highest, floor_percent),
        _column("std.", own, floor_percent),
    )
    notes = _notes(runs, lower_bound, bound, f"Best: the highest certified accuracy at this radius; {_STANDARD}")
    notes += _disputed(runs, rows.claims)
    if None in names:
        notes.append(f"{UNKNOWN}: no run certifies any input at this radius, or a run did not test it.")
    return RunTable(tuple(map(exact_decimal, rows.radii)), columns, tuple(notes), corner="radius")


def _best_row(accuracies: npt.NDArray[np.float64], standard: npt.NDArray[np.float64]) -> int | None:
    """The row with the highest accuracy, of equal ones that with the higher standard accuracy; None if all are 0."""
    if np.isnan(accuracies).any() or accuracies.max() == 0:
        return None
    return max(range(len(accuracies)), key=lambda row: (accuracies[row], standard[row]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The radii of the table; each row's name, its numbers from `_measure`, the radii it tested; each run's claims."""

    radii: tuple[float, ...]
    names: tuple[str, ...]
    values: npt.NDArray[np.float64]
    tested: list[tuple[float, ...] | None]
    claims: list[list[Claim]]


def _measure_rows(
    runs: Sequence[Run],
    radii: Sequence[float],
    *,
    group: bool,
    lower_bound: float | None,
    bound: str,
    choices: bool = False,
) -> _Rows:
    """The numbers of each run, or of each group; with `choices`, any row's lower bounds may be chosen afterwards."""
    _check(runs, lower_bound)
    at = tuple(radii) or table_radii(runs)
    groups = _groups(runs) if group else [[place] for place in range(len(runs))]
    found = [claims(run) for run in runs]
    rows = []
    for places in groups:
        # A mean of bounds is one when all of them hold, and so is the best of them: each gets its part of ρ.
        parts = len(places) * (len(groups) if choices else 1)
        rho = None if lower_bound is None else lower_bound / parts
        each = [_measure(runs[place], found[place], at, rho, LOWER_BOUNDS[bound]) for place in places]
        rows.append(np.mean(each, axis=0))  # runs of a group have one procedure: a cell is unknown in all or in none
    tested = [radii_tested(runs[places[0]]) for places in groups]
    return _Rows(at, tuple(_names(runs, groups)), np.array(rows), tested, found)


def _check(runs: Sequence[Run], lower_bound: float | None) -> None:
    if not runs:
        raise ConfigError("Expected at least one run, got none.")
    for run in runs:
        if run.predicts:
            raise ConfigError(
                f"Expected runs that certify, {run.path} predicts: its table needs runs that predict only."
            )
        if not run.certifies:
            raise ConfigError(f"Expected runs that certify, {run.path} attacks: see `smoothcert plot attack-success`.")
        if not run.rows:
            raise ConfigError(f"There are no rows in {run.path} yet.")
        if all(row["true"] is None for row in run.rows):
            raise ConfigError(f"The true classes are not known in {run.path}: accuracy cannot be told.")
    if lower_bound is not None and not 0 < lower_bound < 1:
        raise ConfigError(f"Expected the lower bounds' failure probability to be between 0 and 1, got {lower_bound!r}.")


def _measure(
    run: Run, found: Sequence[Claim], at: Sequence[float], rho: float | None, bound: Callable[..., Any]
) -> tuple[float, ...]:
    """The numbers of a row: accuracies, NaN where unknown, then average radius, abstentions, standard accuracy."""
    correct = are_correct([claim.label for claim in found], [_truth(row) for row in run.rows])
    radius, count = [claim.radius for claim in found], len(found)
    accuracies = np.atleast_1d(certified_accuracy(radius, correct, at)).tolist()
    if rho is not None and run.manifest.values["alpha"] > 0:  # what is deterministic is certified in truth
        certified = [round(share * count) for share in accuracies]
        accuracies = bound(certified, count, alpha=float(run.manifest.values["alpha"]), rho=rho).tolist()
    accuracies = [share if is_decided(run, at_) else math.nan for share, at_ in zip(accuracies, at, strict=True)]
    abstained = sum(claim.label is None for claim in found) / count
    return (*accuracies, average_certified_radius(radius, correct), abstained, _standard(run))


def _truth(row: Row) -> int:
    """The true class; one that no claim has, where it is not known."""
    return -1 if row["true"] is None else int(row["true"])


def _standard(run: Run) -> float:
    """The share of inputs whose most frequent answer is the true class: an estimate of g's accuracy, not certified."""
    right = []
    for row, result in zip(run.rows, run.certificates, strict=True):
        votes = None if result is None else result.votes
        answer = row.get("label") if votes is None else votes.leader
        right.append(answer is not None and answer == row["true"])
    return sum(right) / len(right)


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    """The places of runs that share a row: of the same network or design, certified in the same way."""
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        # Without a hash of its weights or design, nothing says that a network is the same: a row of its own.
        model = run.manifest.values["model"]
        known = model.get("weights_hash") is not None or model.get("design") is not None
        groups.setdefault(_group(run) if known else str(place), []).append(place)
    return list(groups.values())


def _names(runs: Sequence[Run], groups: Sequence[Sequence[int]]) -> list[str]:
    names = run_names([runs[places[0]] for places in groups])
    counts = [len(places) for places in groups]
    return [f"{name} (mean of {n})" if n > 1 else name for name, n in zip(names, counts, strict=True)]


def _group(run: Run) -> str:
    """Everything that two runs must have in common to be averaged; seed, inputs and circumstances are left out."""
    values = run.manifest.values
    plan, data = values.get("plan", {}), values["data"]
    way = (values["kind"], plan.get("precision"), plan.get("executed"), values.get("known_labels"), values.get("noise"))
    settings = (values["sigma"], values["alpha"], current_settings(values["procedure"]))
    model = values["model"]
    if model.get("design") is not None:  # trainings that differ only in their seed may be averaged
        model = {name: model.get(name) for name in ("kind", "num_classes", "input_shape", "design")}
    return repr((model, data["name"], data.get("fingerprint"), way, settings))


def _columns(
    at: Sequence[float], values: npt.NDArray[np.float64], tested: Sequence[tuple[float, ...] | None]
) -> list[Column]:
    columns = [
        _column(exact_decimal(radius), values[:, place], floor_percent, compared=True)
        for place, radius in enumerate(at)
    ]
    acr, abstained, standard = values[:, len(at) :].T
    return [
        *columns,
        *_averages(acr, tested),
        _column("abst.", abstained, ceil_percent),
        _column("std.", standard, floor_percent),
    ]


def _averages(acr: npt.NDArray[np.float64], tested: Sequence[tuple[float, ...] | None]) -> Iterator[Column]:
    """The average radii, in two columns: that of a grid run counts tested radii only, and has another meaning."""
    on_grid = np.array([grid is not None for grid in tested])
    if not on_grid.all():
        yield _column(AVERAGE, np.where(on_grid, math.nan, acr), _average_text, compared=True)
    if on_grid.any():
        yield _column(GRID_AVERAGE, np.where(on_grid, acr, math.nan), _average_text, compared=len(set(tested)) == 1)


def _average_text(radius: float) -> str:
    return floor_decimal(radius, 3)


def _column(
    heading: str, values: npt.NDArray[np.float64], text: Callable[[float], str], *, compared: bool = False
) -> Column:
    known = [None if math.isnan(value) else value for value in values.tolist()]
    return Column(heading, tuple(known), tuple(UNKNOWN if one is None else text(one) for one in known), compared)


def _notes(runs: Sequence[Run], rho: float | None, bound: str, legend: str) -> list[str]:
    alphas = sorted({float(run.manifest.values["alpha"]) for run in runs})
    notes = [
        f"Certified accuracy in % by L2 radius, rounded down; each certificate is false with probability at most α = "
        f"{', '.join(f'{alpha:g}' for alpha in alphas)}. {legend}",
        *_selections(runs),
    ]
    margins = {certified_margin(run) for run in runs}
    if max(margins) > 0:
        notes.append(
            "lead ≥ m: within the radius, the class leads every other class by at least m in probability, which is a "
            "stronger claim than being in the lead."
        )
    if len(margins) > 1:
        notes.append("Radii with different leads are not comparable: no row is the best.")
    if rho is not None:
        notes.append(
            f"Accuracies are lower bounds ({bound}) on the share of these inputs that are classified correctly "
            f"everywhere within the radius, with probability {1 - rho:g} over the noise for "
            f"{'all radii of a run at once' if bound == 'simultaneous' else 'each'}. "
            "They say nothing about other inputs."
        )
    if any(run.manifest.kind == "bound" for run in runs):
        notes.append(
            "Runs with α = 0 are deterministic bounds of a network itself, without noise; there std. is its accuracy."
        )
    if any(run.manifest.kind == "import" for run in runs):
        notes.append("Logs have no votes: their radii are as printed there, which may be rounded up.")
    for run in runs:
        if not run.complete:
            notes.append(f"{run.path} is not complete: {len(run.rows):,} of {len(run.manifest.indices):,} inputs.")
        if run.retirement is not None:
            notes.append(f"{run.path} was {run.retirement}. Its radii are as recorded, not recomputed.")
        if run.errors:
            notes.append(f"{len(run.errors):,} inputs of {run.path} failed; they count as not certified.")
    return notes


def _selections(runs: Sequence[Run]) -> list[str]:
    """Which inputs the shares are about: once for all runs, or run by run."""
    words = [f"{run.manifest.values['data']['name']}, {inputs_in_words(run)}" for run in runs]
    if len(set(words)) == 1:
        return [f"Inputs: {words[0]}."]
    return [f"Inputs of {run.path}: {text}." for run, text in zip(runs, words, strict=True)]


def _disputed(runs: Sequence[Run], found: Sequence[Sequence[Claim]]) -> Iterator[str]:
    for run, claims_ in zip(runs, found, strict=True):
        count = sum(claim.disputed for claim in claims_)
        if count:
            yield f"The votes of {count:,} rows of {run.path} do not give what is recorded: the weaker counts."


def as_rich(table: RunTable) -> Table:
    """For the terminal; the best of each column is bold and marked with a star."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    shown.add_column(table.corner, no_wrap=True)
    for column in table.columns:
        shown.add_column(f"{column.heading} ", justify="right", no_wrap=True)
    for row, name in enumerate(table.names):
        cells = [
            Text(f"{column.cells[row]}*", style="bold") if row in column.best else Text(f"{column.cells[row]} ")
            for column in table.columns
        ]
        shown.add_row(Text(name), *cells)
    return shown


def as_markdown(table: RunTable) -> str:
    """A Markdown table with the best of each column in bold, and notes below it."""
    lines = [
        f"| {table.corner} | {' | '.join(column.heading for column in table.columns)} |",
        f"|---|{'---:|' * len(table.columns)}",
    ]
    for row, name in enumerate(table.names):
        cells = [f"**{c.cells[row]}**" if row in c.best else c.cells[row] for c in table.columns]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in (name, *cells))} |")
    return "\n".join([*lines, "", *table.notes]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    UNKNOWN: "--",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def as_latex(table: RunTable) -> str:
    """A tabular for LaTeX with the package booktabs, the best of each column in bold, notes as comments."""
    headings = [f"$r = {c.heading}$" if _is_radius(c.heading) else c.heading for c in table.columns]
    lines = [f"% {note}" for note in table.notes]
    lines += [f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines.append(f"{_latex(table.corner)} & {' & '.join(headings)} \\\\")
    lines.append(r"\midrule")
    for row, name in enumerate(table.names):
        cells = [f"\\textbf{{{c.cells[row]}}}" if row in c.best else _latex(c.cells[row]) for c in table.columns]
        lines.append(f"{_latex(name)} & {' & '.join(cells)} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _is_radius(heading: str) -> bool:
    return heading[0].isdigit()


def as_csv(table: RunTable) -> str:
    """Comma-separated values with all digits: accuracies as fractions, nothing where a run does not know the value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([table.corner or "run", *(column.heading for column in table.columns)])
    for row, name in enumerate(table.names):
        values = [column.values[row] for column in table.columns]
        writer.writerow([name, *map(_csv_cell, values)])
    return file.getvalue()


def _csv_cell(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return repr(float(value))


FORMATS: dict[str, Callable[[RunTable], str]] = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}

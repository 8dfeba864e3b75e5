"""The paper's Tables 1 and 2 (ImageNet), 3 (CIFAR-10) and 4 (PREDICT), from its logs and from votes of its networks.

    python reproduce/tables.py

Writes each table in Markdown, LaTeX and CSV, and published.md with the printed figures beside ours. The evidence must
be there: smoothcert data fetch cohen2019, cohen2019-votes, cifar10 (for its labels). The votes were sampled by others
from the paper's released CIFAR-10 networks (github.com/FireShadow05/accelerated_smoothing, MIT).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from published import CIFAR, IMAGENET, LEVELS, REPRODUCED, Published

from smoothcert.errors import SmoothcertError
from smoothcert.report.predictions import prediction_table
from smoothcert.report.run_tables import RunTable, as_csv, as_latex, as_markdown, best_table, run_table
from smoothcert.runs import Run

# Cohen et al. 2019, Tables 2 (ImageNet) and 3 (CIFAR-10): certified accuracy in % at each radius, by σ.
CERTIFIED = {
    IMAGENET: (
        (0, 0.5, 1, 1.5, 2, 2.5, 3),
        {"0.25": "67 49 0 0 0 0 0", "0.50": "57 46 37 29 0 0 0", "1.00": "44 38 33 26 19 15 12"},
    ),
    CIFAR: (
        (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5),
        {
            "0.12": "83 60 0 0 0 0 0",
            "0.25": "77 61 42 25 0 0 0",
            "0.50": "66 55 43 32 22 14 8",
            "1.00": "47 41 34 28 22 17 14",
        },
    ),
}
# Table 1 (ImageNet): the best σ by radius, its certified and standard accuracy in %.
BEST = {0.5: ("0.25", "49 67"), 1: ("0.50", "37 57"), 2: ("0.50", "19 57"), 3: ("1.00", "12 44")}
CONTRADICTED = 2  # the radius at which Table 2 (ImageNet) has another best σ, with another standard accuracy:
BEST_IN_TABLE_2 = ("1.00", "19 44")
# Table 4 (PREDICT): the five categories in % by number of draws.
PREDICT = {100: "65 0 23 0 12", 1000: "68 0 28 0 4", 10000: "69 0 30 0 1"}

INTRODUCTION = """\
# The paper's tables from its logs and from votes of its networks

Shares in %, beside what Cohen et al. 2019 print in Tables 1 and 2 (ImageNet), 3 (CIFAR-10) and 4 (PREDICT). The paper
rounds to the nearest percent. Ours are rounded down to a tenth (answers that are not correct: up); where they do not
round to the printed figure, the difference stands in brackets.

`make reproduce-paper` fetches the evidence and makes this page, each table in Markdown, LaTeX and CSV, and the figures.

- **Logs**: published by the authors (github.com/locuslab/smoothing). The ImageNet log at σ = 0.25 stops at 427 inputs
  of 500. All logs here but CIFAR-10's at σ = 0.12 were made with α = 0.01, as the radii in them show; the paper says
  0.001. Radii in the logs are rounded to the nearest thousandth.
- **Votes**: not published by the authors, but sampled by others from the released CIFAR-10 networks
  ([accelerated_smoothing](https://github.com/FireShadow05/accelerated_smoothing), MIT). From votes everything is
  computed again with α = 0.001.
"""
CONTRADICTION = """\
On ImageNet at r = 2, the paper contradicts itself: Table 1 names σ = 0.50 with a standard accuracy of 57 %, Table 2
names σ = 1.00, whose standard accuracy is 44 %. Table 2 is right. With n = 100,000 draws and α = 0.001, no radius above
1.91 can be certified at σ = 0.50, whatever the network, and the log has no certificate at r = 2 there.
"""
VOTES = "At σ = 1 and r = 1.5, the log of every 20th\nimage (below) has the printed 14."
SAMPLE = (
    "The printed table is of all 10,000 test images: with 500\n"
    "of them, a share near 50 % has a standard error of 2.2 points."
)
PREDICTIONS = (
    "The logs of PREDICT abstain less\noften than the printed table, as they would with α = 0.01 in place of 0.001."
)


@dataclass
class Beside:
    """Our cells beside printed ones, with a count of those that round to the printed figure."""

    table: RunTable
    cells: int = 0
    differing: int = 0

    def row(self, place: int, headings: Sequence[str], printed: str) -> str:
        """Our cells of a row; in brackets the difference where they do not round to the printed figures."""
        texts = []
        for heading, figure in zip(headings, printed.split(), strict=True):
            [column] = [column for column in self.table.columns if column.heading == heading]
            text = column.cells[place]
            if abs(100 * float(column.values[place] or 0) - float(figure)) > 0.5 + 1e-9:
                self.differing += 1
                text += f" ({Decimal(text) - Decimal(figure):+})"
            texts.append(text)
        self.cells += len(texts)
        return " | ".join(texts)

    @property
    def summary(self) -> str:
        """One sentence for below the table."""
        if not self.differing:
            return f"All {self.cells} cells round to the printed figures."
        return f"{self.cells - self.differing} of {self.cells} cells round to the printed figures."


def side_by_side(title: str, runs: Sequence[Run], network: str, remark: str = "") -> Iterator[str]:
    """Certified accuracy by σ and radius: what the paper prints, and what the runs give; a remark below the table."""
    radii, printed = CERTIFIED[network]
    headings, beside = [f"{radius:g}" for radius in radii], Beside(run_table(runs, radii))
    yield from [f"## {title}", "", f"| | | {' | '.join(headings)} |", f"|---|---|{'---:|' * len(radii)}"]
    for place, (sigma, figures) in enumerate(printed.items()):
        ours = beside.row(place, headings, figures)
        rows = f"{len(runs[place].rows):,} inputs, α = {runs[place].manifest.values['alpha']:g}"
        yield f"| σ = {float(sigma):g} | printed | {' | '.join(figures.split())} |"
        yield f"| | {rows} | {ours} |"
    yield from ["", f"{beside.summary} {remark}".strip(), ""]


def best_by_radius(runs: Sequence[Run]) -> Iterator[str]:
    """Table 1 (ImageNet), with what Table 2 says where the two contradict each other."""
    beside = Beside(best_table(runs, list(BEST)))
    names, headings = beside.table.columns[0].cells, ("certified", "std.")
    yield from ["## Table 1: ImageNet, the best σ by radius, from the logs", ""]
    yield from ["| radius | | best | certified | standard |", "|---:|---|---|---:|---:|"]
    for place, (radius, (sigma, figures)) in enumerate(BEST.items()):
        certain = (sigma, figures) if radius != CONTRADICTED else BEST_IN_TABLE_2
        ours = beside.row(place, headings, certain[1])
        yield f"| {radius:g} | printed | σ = {float(sigma):g} | {' | '.join(figures.split())} |"
        if radius == CONTRADICTED:  # both of the statements about ImageNet are shown
            yield f"| | printed in Table 2 | σ = {float(certain[0]):g} | {' | '.join(certain[1].split())} |"
        yield f"| | from the logs | {names[place]} | {ours} |"
    yield from ["", f"{beside.summary[:-1]}, at r = 2 to those of Table 2.", "", CONTRADICTION]


def predictions(runs: Sequence[Run]) -> Iterator[str]:
    """PREDICT's five categories by n; the class over 100,000 draws stands for g's own, as in the paper."""
    beside = Beside(prediction_table(runs))
    headings = [column.heading for column in beside.table.columns]
    yield from ["## Table 4: PREDICT on ImageNet, σ = 0.25, from the logs", ""]
    yield from [f"| n | | {' | '.join(headings)} |", f"|---:|---|{'---:|' * len(headings)}"]
    for place, (draws, figures) in enumerate(PREDICT.items()):
        ours = beside.row(place, headings, figures)
        yield f"| {draws:,} | printed | {' | '.join(figures.split())} |"
        yield f"| | {len(runs[place].rows):,} inputs | {ours} |"
    yield from ["", f"{beside.summary} {PREDICTIONS}"]


def page(published: Published) -> str:
    """All tables, the printed figures beside ours."""
    imagenet, cifar = published.all_certified(IMAGENET), published.all_certified(CIFAR)
    votes = [published.votes(sigma) for sigma in LEVELS[CIFAR]]
    lines = [
        INTRODUCTION,
        *best_by_radius(imagenet),
        *side_by_side("Table 2: ImageNet, ResNet-50, from the logs", imagenet, IMAGENET),
        *side_by_side("Table 3: CIFAR-10, ResNet-110, from the votes", votes, CIFAR, VOTES),
        *side_by_side("Table 3: CIFAR-10, ResNet-110, from the logs of every 20th image", cifar, CIFAR, SAMPLE),
        *predictions(published.predicted()),
    ]
    return "\n".join(lines) + "\n"


def tables(published: Published) -> dict[str, RunTable]:
    """Each table as `smoothcert table` makes it, by the name of its file."""
    imagenet, cifar = published.all_certified(IMAGENET), published.all_certified(CIFAR)
    votes = [published.votes(sigma) for sigma in LEVELS[CIFAR]]
    return {
        "table-1": best_table(imagenet, list(BEST)),
        "table-2": run_table(imagenet, CERTIFIED[IMAGENET][0]),
        "table-3": run_table(votes, CERTIFIED[CIFAR][0]),
        "table-3-logs": run_table(cifar, CERTIFIED[CIFAR][0]),
        "table-4": prediction_table(published.predicted()),
    }


def main() -> None:
    """Write the tables and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPRODUCED)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            published = Published(Path(folder))
        except SmoothcertError as error:
            sys.exit(f"error: {error}")
        for name, table in tables(published).items():
            for suffix, form in ((".md", as_markdown), (".tex", as_latex), (".csv", as_csv)):
                (out / f"{name}{suffix}").write_text(form(table), "utf-8")
            sys.stdout.write(f"{out / name}.md, .tex, .csv\n")
        (out / "published.md").write_text(page(published), "utf-8")
    sys.stdout.write(f"{out / 'published.md'}\n")


if __name__ == "__main__":
    main()

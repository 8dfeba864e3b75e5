"""The paper's Tables 2 and 3 (ImageNet, CIFAR-10) and 4 (PREDICT), from its logs and from votes of its networks.

    python reproduce/tables.py --shared PATH

PATH holds data/published; CIFAR-10's labels must be there: smoothcert data fetch cifar10. Writes
docs/results/published.md. The votes were sampled by others from the paper's released CIFAR-10 networks
(github.com/FireShadow05/accelerated_smoothing, MIT).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from figures import CIFAR, IMAGENET, Published

from smoothcert.data import load
from smoothcert.report.figures.predictions import CATEGORIES, category_shares
from smoothcert.report.run_tables import run_table
from smoothcert.runs import Run

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "published.md"
# Cohen et al. 2019, Tables 2 and 3: shares in % at each radius, by σ; below, Table 4.
PRINTED = {
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
PREDICT = {100: "65 0 23 0 12", 1000: "68 0 28 0 4", 10000: "69 0 30 0 1"}


def side_by_side(title: str, runs: Sequence[Run], radii: Sequence[float], printed: dict[str, str]) -> Iterator[str]:
    """A table in Markdown: for each σ what the paper prints, and what the rows give, rounded down."""
    table = run_table(runs, radii)
    yield from [f"## {title}", "", f"| | | {' | '.join(f'{r:g}' for r in radii)} |", f"|---|---|{'---:|' * len(radii)}"]
    for place, (sigma, figures) in enumerate(printed.items()):
        ours = [column.cells[place] for column in table.columns[: len(radii)]]
        rows = f"{len(runs[place].rows):,} inputs, α = {runs[place].manifest.values['alpha']:g}"
        yield f"| σ = {float(sigma):g} | printed | {' | '.join(figures.split())} |"
        yield f"| | {rows} | {' | '.join(ours)} |"
    yield ""


def predictions(published: Published) -> Iterator[str]:
    """PREDICT's five categories by n; the class over 100,000 draws stands for g's own, as in the paper."""
    reference = published.predicted(100_000).rows
    truths = {row["index"]: row["true"] for row in reference}
    own = {row["index"]: row["label"] for row in reference}
    yield from ["## PREDICT on ImageNet, σ = 0.25", ""]
    yield from [f"| n | | {' | '.join(CATEGORIES)} |", f"|---:|---|{'---:|' * len(CATEGORIES)}"]
    for draws, figures in PREDICT.items():
        shares = category_shares(published.predicted(draws), truths, own)
        yield f"| {draws:,} | printed | {' | '.join(figures.split())} |"
        yield f"| | {len(truths):,} inputs | {' | '.join(f'{100 * share:.1f}' for share in shares.values())} |"
    yield ""


def page(published: Published, labels: Path) -> Iterator[str]:
    """The whole document."""
    yield from [
        "# The paper's tables from its logs and from votes of its networks",
        "",
        "Shares in %, beside what Cohen et al. 2019 print in Tables 2 (ImageNet), 3 (CIFAR-10) and 4 (PREDICT);",
        "theirs are rounded, ours are rounded down. The logs are those that the authors published",
        "(github.com/locuslab/smoothing). The ImageNet log at σ = 0.25 stops at 427 inputs of 500, and all logs here",
        "but CIFAR-10's at σ = 0.12 were made with α = 0.01, as the radii in them show; the paper says 0.001. The",
        "votes were not published by the authors: others sampled them from the released CIFAR-10 networks",
        "([accelerated_smoothing](https://github.com/FireShadow05/accelerated_smoothing), MIT). From votes",
        "everything is computed again with α = 0.001. `reproduce/tables.py` makes this page.",
        "",
    ]
    radii, printed = PRINTED[IMAGENET]
    logs = [published.certified(IMAGENET, sigma, sigma) for sigma in printed]
    yield from side_by_side("ImageNet, ResNet-50, from the logs", logs, radii, printed)
    radii, printed = PRINTED[CIFAR]
    votes = [published.votes(sigma, labels) for sigma in printed]
    yield from side_by_side("CIFAR-10, ResNet-110, from the votes", votes, radii, printed)
    logs = [published.certified(CIFAR, sigma, sigma) for sigma in printed]
    yield from side_by_side("CIFAR-10, ResNet-110, from the logs of every 20th image", logs, radii, printed)
    yield from predictions(published)
    yield from [
        "The PREDICT logs abstain less often than the printed table: as they would with α = 0.01. One cell of the",
        "CIFAR-10 table differs by more than rounding from the votes of all images, σ = 1 at 1.5, where the log has",
        "the printed 14.",
    ]


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        labels = Path(folder) / "labels.npy"
        np.save(labels, load("cifar10").labels)
        text = "\n".join(page(Published(chosen.shared, Path(folder)), labels)) + "\n"
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(text, "utf-8")
    sys.stdout.write(f"{RESULTS}\n")


if __name__ == "__main__":
    main()

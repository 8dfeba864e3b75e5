"""All benchmarks in one table, and docs/benchmarks.md with the machine they ran on: `make bench`.

    python benchmarks/everything.py [--only NAME NAME] [--model DIR]

About 40 minutes, on a machine that has nothing else to do. With --only the page keeps its other sections. What needs a
trained ResNet-20 of CIFAR-10 is left out where there is none: `make reproduce-cifar10`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import attack
import bounds
import growth
import noise
import peers
import runs
import throughput
import training
from common import HEADINGS, ROUNDS, Figure, machine, show

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
NAMES: dict[str, tuple[str, Callable[[Path], list[Figure]]]] = {
    "peers": ("Certification beside its peers", lambda model: [*peers.headline(model), *peers.same_draws()]),
    "throughput": (
        "Certification ÷ the best eager forward passes",
        lambda model: [*throughput.measure(), *throughput.int8_accuracy(model)],
    ),
    "large": ("Certification ÷ the best eager forward passes, large images", lambda _: throughput.measure_large()),
    "noise": ("Noise, one thread", lambda _: noise.measure()),
    "growth": ("Growth", lambda _: growth.measure()),
    "runs": ("Runs with two worker processes", lambda _: runs.measure()),
    "training": ("Training ÷ forward and backward passes", lambda _: training.measure()),
    "attack": ("Attack on g ÷ forward and backward passes", lambda _: attack.measure()),
    "bounds": ("Deterministic bounds", lambda _: bounds.measure()),
}


HEAD = f"""# Benchmarks

Ratios of both sides, measured in turns within the same minutes: medians of {ROUNDS} rounds (of {training.ROUNDS} for
training and attacks, of {runs.ROUNDS} for runs with worker processes; deterministic bounds are timed once). MiB is the
most memory that a contender held, in a process of its own. `make bench` repeats this.
"""


def section(name: str, figures: list[Figure]) -> str:
    """One benchmark's figures as a part of the document."""
    lines = [
        NAMES[name][0],
        "",
        f"{datetime.now(UTC):%Y-%m-%d}: {machine()}.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---|---|",
        *(f"| {' | '.join(figure.cells)} |" for figure in figures),
        *(["", "![growth](images/growth.png)"] if name == "growth" else []),
    ]
    return "\n".join(lines) + "\n"


def write_page(found: dict[str, list[Figure]]) -> None:
    """Write the document; sections that were not measured now stay as they are."""
    before = PAGE.read_text("utf-8").split("\n## ")[1:] if PAGE.exists() else []
    kept = {title: text for text in before for title, _ in NAMES.values() if text.startswith(f"{title}\n")}
    new = {NAMES[name][0]: section(name, figures) for name, figures in found.items() if figures}
    texts = {**kept, **new}
    PAGE.write_text("\n## ".join([HEAD, *(texts[title] for title, _ in NAMES.values() if title in texts)]), "utf-8")


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--model", type=Path, default=throughput.TRAINED, help="a trained ResNet-20 of CIFAR-10")
    chosen = parser.parse_args()
    found = {}
    for name in chosen.only:
        found[name] = NAMES[name][1](chosen.model)
        show(found[name], NAMES[name][0])
    show([figure for figures in found.values() for figure in figures], "all")
    write_page(found)


if __name__ == "__main__":
    main()

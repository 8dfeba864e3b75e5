"""MNIST: attacks on a smoothed LeNet at σ = 0.5, and smoothing beside three deterministic bounds, on 200 test images.

    python reproduce/baselines.py            train, certify, attack and compare, then write docs/results/baselines.md
    python reproduce/baselines.py --page     write the page from what is there

Whatever was cut off goes on when the command is given again. Networks and runs go into --out; the runs that the page is
made from are copied to docs/results/baselines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from results import RESULTS, ROOT, keep_run

from smoothcert.cli import main as smoothcert
from smoothcert.cli.jobs import Job, run_jobs
from smoothcert.cli.train import TrainArguments
from smoothcert.data import load
from smoothcert.report.comparison import comparison_table
from smoothcert.report.figures import draw_figure, load_norms, save_figure
from smoothcert.report.run_tables import as_markdown
from smoothcert.runs import Run
from smoothcert.runs import open as open_run
from smoothcert.runs.attack_summary import expected_violations, outcomes, violations

SIGMA = 0.5
EVERY = 50
RADII = (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5)
PAPER = {1.5: 17, 2.0: 53}  # Cohen et al. 2019, Section 4: success in % on ImageNet, σ = 0.25
SMOOTHED = "smoothed/certified_sigma=0.5"
ATTACKED, UNDEFENDED = "attacked", "undefended"


def _train(
    arch: str, recipe: str, epochs: int, *, data: str = "mnist", sigma: float = 0.0, **settings: Any
) -> dict[str, Any]:
    return asdict(TrainArguments(data=data, arch=arch, sigma=sigma, recipe=recipe, epochs=epochs, seed=0, **settings))


def _bound(method: str) -> dict[str, Any]:
    return {"data": "mnist", "method": method, "every": EVERY}


def jobs(out: Path) -> list[Job]:
    """Trainings and the runs that certify their networks."""
    certify = {"data": "mnist", "sigma": SIGMA, "every": EVERY, "n_max": 100_000, "seed": 0}
    return [
        Job(out / "smoothed", _train("lenet", "gaussian", 16, sigma=SIGMA, learning_rate=0.05), [certify]),
        Job(out / "plain", _train("lenet", "gaussian", 4, learning_rate=0.05)),
        Job(out / "lipschitz", _train("wong-cnn", LIPSCHITZ, 10, learning_rate=0.05), [], [_bound("lipschitz")]),
        Job(
            out / "dual",
            _train("wong-cnn", DUAL, DUAL_EPOCHS, data=str(out / DUAL_DATA), learning_rate=0.05, batch_size=50),
            [],
            [_bound("dual"), _bound("crown")],
        ),
        Job(out / "mlp", _train("mlp-7", "gaussian", 5, learning_rate=0.02), [], [_bound("crown")]),
    ]


LIPSCHITZ = "lipschitz-margin:margin=0.5"
DUAL, DUAL_EPOCHS = "dual:epsilon=0.5", 5
DUAL_DATA, DUAL_EVERY = (
    "mnist-every-5th.npz",
    5,
)  # 0.02 s per image: all of them would take 20 minutes


def write_dual_data(out: Path) -> None:
    """A part of the training images, for the recipe that is slow."""
    data, chosen = load("mnist", split="train"), range(0, 60_000, DUAL_EVERY)
    if not (out / DUAL_DATA).exists():
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / DUAL_DATA, images=np.stack([data[i] for i in chosen]), labels=data.labels[list(chosen)])


def attack(out: Path) -> None:
    """Attack the smoothed classifier, and the network that nobody defends."""
    for name, words in {
        ATTACKED: ["attack", str(out / SMOOTHED), "--inputs", "60", "--precision", "bf16", "--seed", "0"],
        UNDEFENDED: ["attack-base", str(out / "plain"), "mnist", "--every", str(EVERY)],
    }.items():
        resume = ["--resume"] if (out / name / "run.json").exists() else []
        if smoothcert([*words, "--out", str(out / name), *resume]):
            sys.exit(f"{name} failed")


def compared(out: Path) -> list[Path]:
    """The runs that certify."""
    return [path for job in jobs(out) for path in job.runs]


def success(attacked: Run) -> Iterator[str]:
    """Attack success as a table."""
    yield from ["| attack | within | inputs | another class % | 95 % interval | abstained % | the paper's % |"]
    yield from ["|---|---:|---:|---:|---:|---:|---:|"]
    for one in outcomes(attacked):
        low, high = one.interval
        papers = PAPER.get(one.factor, "") if one.attack == "paper" else ""
        shares = [f"{100 * share:.1f}" for share in (one.successes / one.attempts, one.abstentions / one.attempts)]
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        cells = [one.attack, f"{one.factor:g} R", str(one.attempts), shares[0], interval, shares[1], str(papers)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if any(factor <= 1 for factor in attacked.manifest.values["factors"]):
        found = len({one.index for one in violations(attacked)})
        yield from [f"Violations within R: {found} inputs; by chance {expected_violations(attacked):.2g} may.", ""]


def page(out: Path) -> None:
    """Write docs/results/baselines.md and its figures."""
    runs = [open_run(path) for path in compared(out)]
    attacked, undefended = open_run(out / ATTACKED), load_norms(out / UNDEFENDED)
    table = comparison_table(runs, RADII)
    lines = [
        "# MNIST: attacks, and smoothing beside deterministic bounds",
        "",
        f"Every {EVERY}th test image, 200 in all. Smoothed: LeNet trained with noise of σ = {SIGMA:g}, certified by",
        "the planned procedure with at most 100,000 draws, α = 0.001. The dual network was trained on every 5th image",
        f"for {DUAL_EPOCHS} epochs, as its bounds take 0.02 s per image; all others on all of them.",
        "`make reproduce-baselines` repeats everything; the runs are in [baselines/](baselines/).",
        "",
        "## Attacks on the smoothed classifier",
        "",
        f"{len(attacked.rows)} of the inputs that are certified with their true class, within multiples of each one's",
        "certified radius R, judged on fresh draws at α = 0.001. Gradients are computed in bf16 mixed precision. The",
        "paper's figures are for ImageNet at σ = 0.25.",
        "",
        "The paper's attack takes 20 steps of length 0.1. In balls with a radius above 2.0, which these steps cannot",
        "reach, it takes more steps of that length until it reaches the surface.",
        "",
        *success(attacked),
        "![attack success](baselines/attack-success.png)",
        "",
        "## Smoothing and bounds on the same images",
        "",
        "The networks: LeNet for smoothing; the small convolutional network of Wong & Kolter (`wong-cnn`) trained",
        "with a margin for the Lipschitz bound, and on its own bound at ε = 0.5 for dual and CROWN; and CROWN on the",
        "7-layer MLP of its authors, trained without noise or any defence (gaussian at σ = 0).",
        "The deterministic runs kept here were made by version 0.1, which did not bound rounding errors. On a",
        "`wong-cnn` trained with a margin, the bounds that cover rounding are smaller by 0.2 to 0.4 % in the median.",
        "",
        as_markdown(table),
        "![certified accuracy](baselines/comparison.png)",
        "",
        "Dashed: an undefended LeNet under DeepFool, PGD, DDN and Carlini & Wagner's attack, the smallest perturbation",
        "of all: an upper bound on its robust accuracy.",
        "",
    ]
    for run in (*runs, attacked, open_run(out / UNDEFENDED)):
        keep_run(run.path, RESULTS / "baselines" / "_".join(run.path.relative_to(out).parts))
    save_figure(draw_figure("attack-success", [attacked], {}), RESULTS / "baselines" / "attack-success.png")
    figure = draw_figure("certified-accuracy", runs, {"undefended": undefended})
    save_figure(figure, RESULTS / "baselines" / "comparison.png")
    (RESULTS / "baselines.md").write_text("\n".join(lines), "utf-8")


def main() -> None:
    """Do it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "reproduced" / "baselines")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args()
    if not chosen.page:
        write_dual_data(chosen.out)
        run_jobs(jobs(chosen.out), chosen.out, workers=chosen.jobs)
        attack(chosen.out)
    page(chosen.out)
    sys.stdout.write(f"{RESULTS / 'baselines.md'}\n")


if __name__ == "__main__":
    main()

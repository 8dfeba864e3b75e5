"""How many draws the sequential procedures need on real votes, against the paper's CERTIFY and PREDICT.

CIFAR-10: 100,000 votes on each of the 10,000 test images, sampled by others from the paper's released networks
(github.com/FireShadow05/accelerated_smoothing, MIT). Every procedure is replayed on them by multinomial draws, at
α = 0.001 and n_max = 100,000, and compared with CERTIFY with its selection on n0 = 100 draws, averaged over five
replays. "Fewer" is 100,000 over the mean number of all draws, pilots included. "Loss" is the largest number of points
of certified accuracy lost at any radius of the grid; a negative loss is a gain at all of them.

ImageNet: the procedures were tuned on the votes above, so their defaults are replayed on votes of networks that had no
part in it, the ResNet-50s of the paper's certification logs (github.com/locuslab/smoothing). A log has a radius per
image, to three digits, and no votes. The votes for the class are those whose radius at the log's α = 0.01 comes closest
to the printed one; all others are given to one rival, the worst case for the radius. Where the log's answer is wrong,
that rival is the true class. An abstention tells only that the class had no clear majority. It is replayed as a tie of
two classes, and once more, for "fewer, near-ties", with the most votes for the true class at which CERTIFY would still
have abstained.

"Limit" is how much fewer an ideal sequential test could need: for each input and radius with true p > p_j, Wald's
lower bound on the expected draws of a one-sided test with errors α and β = 0.05,
((1−β)·ln((1−β)/α) + β·ln(β/(1−α))) / KL(p‖p_j). The input needs the largest of these over the radii at which it is at
most n_max, and nothing where there are none. No test that knows only whether draws vote for the class can beat it at
that power; one that looks at the rival's votes can, since its question is easier.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy.special import ndtr, xlogy

from smoothcert.replay import load_labels, load_votes, replay
from smoothcert.report.projection import settled_votes
from smoothcert.runs.exchange import import_log
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.grid import Grid
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import Predict, SequentialPredict
from smoothcert.stats.radii import cohen_radius

VOTES = Path(__file__).parents[1] / ".." / "shared" / "data" / "published" / "cohen_resnet110_cifar10_counts_test.npz"
DATA = Path(os.environ.get("SMOOTHCERT_DATA", Path.home() / ".cache" / "smoothcert"))
LABELS = DATA / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
LOGS = VOTES.parent / "cohen2019" / "certify" / "imagenet" / "resnet50"
LOGS_ALPHA = 0.01  # as the lattice of their radii shows; the paper says 0.001
ALPHA, N = 0.001, 100_000
REPEATS = 5  # replays of each ImageNet image
CIFAR_STEPS = {"0.12": 1, "0.25": 3, "0.50": 7, "1.00": 7}  # of 0.25 above 0
IMAGENET_STEPS = {"0.25": 1, "0.50": 3, "1.00": 6}  # of 0.5 above 0, as in the paper's Table 2


@dataclass(frozen=True)
class Case:
    """One σ with its votes, and the radii to decide."""

    name: str
    votes: np.ndarray
    labels: np.ndarray
    radii: tuple[float, ...]

    @property
    def sigma(self) -> float:
        """The noise level."""
        return float(self.name)


def cifar_case(name: str, labels: np.ndarray, every: int) -> Case:
    """The votes of others on every k-th test image."""
    votes = load_votes(VOTES, f"test_sigma{name}_n{N}")[::every]
    return Case(name, votes, labels[::every], tuple(0.25 * k for k in range(CIFAR_STEPS[name] + 1)))


def imagenet_case(name: str, abstained: int = N // 2) -> Case:
    """Votes recovered from a log, as two classes: 0 for the log's answer, 1 for the rival; the true one is either.

    Where the log abstained, `abstained` votes are for the true class.
    """
    log = LOGS / f"noise_{name}" / "test" / f"sigma_{name}"
    with tempfile.TemporaryDirectory() as folder:
        settled = settled_votes(import_log(log, Path(folder) / "run", sigma=float(name), alpha=LOGS_ALPHA, n=N))
    own = np.where(settled.n > 0, settled.own, abstained)
    labels = np.where(settled.correct | (settled.n == 0), 0, 1)
    radii = tuple(0.5 * k for k in range(IMAGENET_STEPS[name] + 1))
    return Case(name, np.stack([own, N - own], axis=1), labels, radii)


def most_abstained() -> int:
    """The most votes for a class with which the logs' CERTIFY abstains."""
    votes = np.arange(N // 2, N + 1)
    abstains = clopper_pearson_upper(N - votes, N, LOGS_ALPHA) >= 0.5
    return int(votes[abstains].max())


def repeated(case: Case) -> Case:
    """Each input several times: every row is replayed with draws of its own."""
    return replace(case, votes=np.tile(case.votes, (REPEATS, 1)), labels=np.tile(case.labels, REPEATS))


def fixed(case: Case, seed: int) -> tuple[np.ndarray, float]:
    """The paper's CERTIFY replayed, all inputs at once: certified accuracy at the grid, and the average radius."""
    rng = np.random.default_rng([seed, 99])
    shares = case.votes / case.votes.sum(axis=1, keepdims=True)
    chosen = rng.multinomial(100, shares).argmax(axis=1)
    rows = np.arange(len(shares))
    failures = N - rng.binomial(N, shares[rows, chosen])
    radius = np.asarray(cohen_radius(clopper_pearson_upper(failures, N, ALPHA), sigma=case.sigma))
    radius = np.where(chosen == case.labels, radius, 0.0)
    return np.array([np.mean((radius > 0) & (radius >= r)) for r in case.radii]) * 100, float(radius.mean())


def baseline(case: Case) -> tuple[np.ndarray, float]:
    """CERTIFY's mean over five replays."""
    accuracies, averages = zip(*(fixed(case, seed) for seed in range(5)), strict=True)
    return np.mean(accuracies, axis=0), float(np.mean(averages))


def wald_limit(case: Case) -> float:
    """Mean draws per input that the module's docstring calls the limit."""
    beta = 0.05
    p = case.votes[np.arange(len(case.votes)), case.labels] / case.votes.sum(axis=1)
    effort = (1 - beta) * np.log((1 - beta) / ALPHA) + beta * np.log(beta / (1 - ALPHA))
    needed = np.zeros(len(p))
    for radius in case.radii:
        q = ndtr(-radius / case.sigma)
        divergence = xlogy(p, p / (1 - q)) + xlogy(1 - p, (1 - p) / q)
        draws = np.where(p > 1 - q, effort / np.maximum(divergence, 1e-300), np.inf)
        needed = np.maximum(needed, np.where(draws <= N, draws, 0.0))
    return float(needed.mean())


def _part(args: tuple[Case, Any, bool, list[int]]) -> list[tuple[int | None, float, int]]:
    case, procedure, known, indices = args

    def procedure_for(i: int) -> Any:
        return replace(procedure, label=int(case.labels[i])) if known else procedure

    rows = replay(case.votes, procedure_for, sigma=case.sigma, indices=indices, seed=1)
    return [(row.label, row.radius, row.draws) for row in rows]


def run(pool: ProcessPoolExecutor, case: Case, procedure: Any, *, known: bool = False) -> tuple[np.ndarray, ...]:
    """Labels (−1 for none), radii and draws of a procedure on every input."""
    parts = [list(range(k, len(case.votes), 8)) for k in range(8)]
    jobs = pool.map(_part, [(case, procedure, known, part) for part in parts])
    rows = {i: row for part, result in zip(parts, jobs, strict=True) for i, row in zip(part, result, strict=True)}
    ordered = [rows[i] for i in range(len(case.votes))]
    return tuple(
        np.array(column) for column in zip(*((-1 if a is None else a, b, c) for a, b, c in ordered), strict=True)
    )


def grid_rows(pool: ProcessPoolExecutor, case: Case, paper: np.ndarray) -> list[list[str]]:
    """Draws, loss and gain of the grid procedure in its variants."""
    rows, limit = [], f"{N / wald_limit(case):.1f}×"
    for known in (True, False):
        for rival in (False, True):
            for effort in ("quick", "balanced"):
                grid = Grid(radii=case.radii, sigma=case.sigma, alpha=ALPHA, n_max=N, rival=rival, effort=effort)
                name = f"{'label known' if known else 'no label'}, {'with rival' if rival else 'one-sided'}, {effort}"
                rows.append([case.name, name, *grid_figures(pool, case, grid, paper, known=known), limit])
    return rows


def grid_figures(pool: ProcessPoolExecutor, case: Case, grid: Grid, paper: np.ndarray, *, known: bool) -> list[str]:
    """Draws saved, loss, and gain at radius 0 of one grid procedure."""
    labels, radii, draws = run(pool, case, grid, known=known)
    ours = np.array([np.mean((labels == case.labels) & (radii >= r)) for r in case.radii]) * 100
    return [f"{N / draws.mean():.1f}×", f"{(paper - ours).max():+.2f}", f"{(ours - paper)[0]:+.2f}"]


def default_rows(pool: ProcessPoolExecutor, name: str) -> list[list[str]]:
    """What the procedures do with the settings that users get: the grid with and without labels, and a plan."""
    case, harder = repeated(imagenet_case(name)), repeated(imagenet_case(name, most_abstained()))
    paper, average = baseline(case)
    grid = Grid(radii=case.radii, sigma=case.sigma)
    rows = []
    for known, title in ((True, "grid, label known"), (False, "grid, no label")):
        fewer, loss, gain = grid_figures(pool, case, grid, paper, known=known)
        _, _, draws = run(pool, harder, grid, known=known)
        rows.append([name, title, fewer, f"{N / draws.mean():.1f}×", loss, gain, "–"])
    labels, radii, draws = run(pool, case, Planned())
    _, _, more_draws = run(pool, harder, Planned())
    kept = np.mean(np.where(labels == case.labels, radii, 0.0)) / average
    figures = [f"{N / draws.mean():.1f}×", f"{N / more_draws.mean():.1f}×", "–", "–", f"{100 * kept:.1f} %"]
    return [*rows, [name, "planned", *figures]]


def planned_rows(pool: ProcessPoolExecutor, case: Case, average: float) -> list[list[str]]:
    """Average radius kept and draws spent by planned certification."""
    rows = []
    for rival in (False, True):
        for effort in ("quick", "balanced", "full"):
            labels, radii, draws = run(pool, case, Planned(alpha=ALPHA, n_max=N, rival=rival, effort=effort))
            kept = np.mean(np.where(labels == case.labels, radii, 0.0)) / average
            name = f"{'with rival' if rival else 'one-sided'}, {effort}"
            rows.append([case.name, name, f"{100 * kept:.1f} %", f"{100 * draws.mean() / N:.1f} %"])
    return rows


def predict_rows(pool: ProcessPoolExecutor, case: Case) -> list[list[str]]:
    """Abstention and draws of prediction."""
    fixed_labels, _, _ = run(pool, case, Predict(n=10_000, alpha=ALPHA))
    labels, _, draws = run(pool, case, SequentialPredict(n_max=10_000, alpha=ALPHA))
    abstained = [f"{100 * np.mean(side == -1):.2f} %" for side in (fixed_labels, labels)]
    return [[case.name, *abstained, f"{draws.mean():,.0f}", f"{draws.mean() / 100:.1f} %"]]


def show(console: Console, title: str, columns: list[str], rows: list[list[str]], *, markdown: bool) -> None:
    """Print a table for people or for the docs."""
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]
        print(f"\n{title}\n\n" + "\n".join(lines))
        return
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def cifar(console: Console, pool: ProcessPoolExecutor, every: int, *, markdown: bool) -> None:
    """Every variant on the votes of CIFAR-10."""
    if not VOTES.exists() or not LABELS.exists():
        sys.exit(f"The votes or CIFAR-10's test labels are not there: {VOTES}, {LABELS}")
    labels = load_labels(LABELS)
    grids: list[list[str]] = []
    plans: list[list[str]] = []
    predictions: list[list[str]] = []
    for name in CIFAR_STEPS:
        case = cifar_case(name, labels, every)
        paper, average = baseline(case)
        grids += grid_rows(pool, case, paper)
        plans += planned_rows(pool, case, average)
        predictions += predict_rows(pool, case)
        console.print(f"σ = {name} done", style="dim")
    inputs = f"{len(case.labels):,} inputs"
    show(
        console,
        f"Grid, {inputs}",
        ["σ", "procedure", "fewer", "loss", "gain at r = 0", "limit"],
        grids,
        markdown=markdown,
    )
    columns = ["σ", "procedure", "of fixed-n's ACR", "of its draws"]
    show(console, f"Planned, {inputs}", columns, plans, markdown=markdown)
    columns = ["σ", "PREDICT abstains", "sequential abstains", "draws", "of 10,000"]
    show(console, f"Prediction, n_max = 10,000, {inputs}", columns, predictions, markdown=markdown)


def imagenet(console: Console, pool: ProcessPoolExecutor, *, markdown: bool) -> None:
    """The defaults on votes recovered from the paper's ImageNet logs."""
    if not LOGS.exists():
        sys.exit(f"The paper's ImageNet logs are not there: {LOGS}")
    rows: list[list[str]] = []
    for name in IMAGENET_STEPS:
        rows += default_rows(pool, name)
    columns = ["σ", "procedure", "fewer", "fewer, near-ties", "loss", "gain at r = 0", "of fixed-n's ACR"]
    show(console, "Defaults on ImageNet, recovered votes", columns, rows, markdown=markdown)


def main(every: int = 1, markdown: bool = False, data: Literal["cifar10", "imagenet"] = "cifar10") -> None:
    """Replay the procedures on recorded votes.

    Args:
        every: only every k-th input of CIFAR-10, for a quick look.
        markdown: print tables for the docs.
        data: cifar10 for all variants; imagenet for the defaults on networks that they were not tuned on.
    """
    console = Console()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if data == "imagenet":
            imagenet(console, pool, markdown=markdown)
        else:
            cifar(console, pool, every, markdown=markdown)


if __name__ == "__main__":
    tyro.cli(main)

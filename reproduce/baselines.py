"""Smoothing beside deterministic bounds: attacks and bounds on MNIST, Figures 7 and 13 of the paper on CIFAR-10.

    python reproduce/baselines.py                   train, certify, attack and compare, then write the pages
    python reproduce/baselines.py --data cifar10    one section: mnist, cifar10 (Figures 7 and 13) or svhn (Figure 13)
    python reproduce/baselines.py --page            write the pages from the runs in --out

Run the command again to resume after an interruption. Networks and runs go into --out; the runs that a page is made
from are copied to docs/results/baselines and docs/results/baselines-cifar10. Fetch the data first (smoothcert data
fetch mnist, cifar10, svhn), and for CIFAR-10 the network of Wong et al. 2018 (smoothcert data fetch wong2018).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import RESULTS, ROOT, attack_success, keep_run

from smoothcert.cli import main as smoothcert
from smoothcert.cli.jobs import Job, run_jobs
from smoothcert.cli.train import TrainArguments
from smoothcert.data import load, published_folder
from smoothcert.errors import SmoothcertError
from smoothcert.report.comparison import comparison_table
from smoothcert.report.figures import draw_figure, load_norms, save_figure
from smoothcert.report.run_tables import as_markdown
from smoothcert.runs import open as open_run

SIGMA = 0.5
EVERY = 50
RADII = (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5)
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
        *attack_success(attacked),
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


# ---- CIFAR-10: smoothing compared with bounds as in Figures 7 and 13 of the paper ------------------------------------

EPSILON = 36 / 255  # the radius for which Wong et al. trained the network that they released
SIGMA_7, PAPER_SIGMA_7 = 0.25, 0.135  # the paper's is 0.6 after dividing pixels by 0.225
SIGMA_13 = 0.1  # the paper's, beside the Lipschitz margin
RADII_7 = (0, 0.05, 0.1, EPSILON, 0.25, 0.5, 0.75)
RADII_13 = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
RELEASED, RESNET = "released/bounded_dual", "resnet56/certified_sigma=0.25"


@dataclass(frozen=True)
class Comparison:
    """A figure of the paper: the runs that it shows, by the names of its lines."""

    name: str
    lines: Mapping[str, Path]
    radii: Sequence[float]

    def section(self, kept: Path) -> list[str]:
        """Keep the runs, draw the figure, and return the table with a link to the figure."""
        runs = [open_run(path) for path in self.lines.values()]
        for run in runs:
            keep_run(run.path, kept / f"{run.path.parent.name}_{run.path.name}")
        names = tuple(self.lines)
        save_figure(draw_figure("certified-accuracy", runs, {"names": names}), kept / f"{self.name}.png")
        table = replace(comparison_table(runs, self.radii), names=names)
        columns = [replace(one, heading="36/255") if one.heading == str(EPSILON) else one for one in table.columns]
        link = f"![certified accuracy]({kept.name}/{self.name}.png)"
        return [as_markdown(replace(table, columns=tuple(columns))), link, ""]


def _at_radii(data: str, sigma: float, radii: Sequence[float], every: int) -> dict[str, Any]:
    """Certify at the radii of a table only, which takes about a sixth of the draws of a radius for each image."""
    return {"data": data, "sigma": sigma, "radii": radii, "known_labels": True, "every": every, "seed": 0}


def small_jobs(out: Path) -> dict[str, Job]:
    """Figure 7: the architecture of the released network, trained under noise and smoothed."""
    jobs = {}
    for sigma in (SIGMA_7, PAPER_SIGMA_7):
        train = _train("wong-cnn", "gaussian", 20, data="cifar10", sigma=sigma, learning_rate=0.05, batch_size=128)
        job = Job(out / f"wong-cnn_sigma={sigma:g}", train, [_at_radii("cifar10", sigma, RADII_7, 50)])
        jobs[f"wong-cnn, smoothed, σ = {sigma:g}"] = job
    return jobs


def figure13_jobs(out: Path, data: str) -> dict[str, Job]:
    """Figure 13: a smoothed ResNet-20 compared with the Lipschitz margin and CROWN."""
    resnet = _train("resnet20", "gaussian", 10, data=data, sigma=SIGMA_13, precision="bf16")
    margin = _train("wong-cnn", MARGIN_13, 20, data=data, learning_rate=0.05, batch_size=128)
    mlp = _train("mlp-7", "gaussian", 5, data=data, learning_rate=0.02, batch_size=128)
    smooth, bound = _at_radii(data, SIGMA_13, RADII_13, 100), {"data": data, "every": 100}
    return {
        f"ResNet-20, smoothed, σ = {SIGMA_13:g}": Job(out / "resnet20", resnet, [smooth]),
        "wong-cnn, Lipschitz margin": Job(out / "lipschitz", margin, [], [{**bound, "method": "lipschitz"}]),
        "mlp-7, CROWN": Job(out / "mlp", mlp, [], [{**bound, "method": "crown"}]),
    }


MARGIN_13 = "lipschitz-margin:margin=0.1"


def bound_released(out: Path) -> None:
    """Compute the dual bound on the network that Wong et al. released, the first of a cascade of two."""
    cascade = torch.load(published_folder("wong2018") / "cifar_small_36px.pth", map_location="cpu", weights_only=True)
    network = (out / RELEASED).with_name("network.pth")
    network.parent.mkdir(parents=True, exist_ok=True)
    torch.save(cascade["state_dict"][0], network)
    words = ["baseline", str(network), "cifar10", "--method", "dual", "--every", "50"]
    words += ["--arch", "wong-cnn", "--input-shape", "3", "32", "32"]
    words += ["--mean", "0.485", "0.456", "0.406", "--std", "0.225", "0.225", "0.225"]
    _finish(words, out / RELEASED)


def certify_resnet(out: Path, resnet: Path | None) -> None:
    """Certify the large network of Figure 7, which is trained first unless `resnet` is given."""
    job = Job(out / "resnet56", _train("resnet56", "gaussian", 30, data="cifar10", sigma=SIGMA_7, precision="bf16"))
    if resnet is None:
        run_jobs([job], out, workers=1)
    words = ["certify", str(resnet or job.out), "cifar10", "--sigma", str(SIGMA_7)]
    words += ["--radii", *map(str, RADII_7), "--known-labels", "--every", "50", "--seed", "0"]
    _finish(words, out / RESNET)


def _finish(words: Sequence[str], run: Path) -> None:
    """Make a run by a command, or resume it."""
    run.parent.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if (run / "run.json").exists() else []
    if smoothcert([*words, "--out", str(run), *resume]):
        sys.exit(f"{run} failed")


def figure7(out: Path) -> Comparison:
    """The runs in `out` that Figure 7 compares."""
    lines = {"wong-cnn of Wong et al., dual": out / RELEASED}
    lines |= {name: job.runs[0] for name, job in small_jobs(out).items()}
    return Comparison("figure7", {**lines, f"ResNet-56, smoothed, σ = {SIGMA_7:g}": out / RESNET}, RADII_7)


def figure13(out: Path, data: str) -> Comparison:
    """The runs in `out` that Figure 13 compares."""
    return Comparison("figure13", {name: job.runs[0] for name, job in figure13_jobs(out, data).items()}, RADII_13)


FIGURE_7 = f"""## Figure 7: Wong et al. 2018

The network that Wong et al. released for L2 perturbations of 36/255 (`wong-cnn`, the first of a cascade of two) with
our dual bound; the same architecture trained under noise and smoothed; and a smoothed ResNet-56. Every 50th test image,
200 in all. The paper smooths with σ = 0.6 after dividing pixels by 0.225, which is σ = {PAPER_SIGMA_7:g} here. The
ResNet-56 was trained at σ = {SIGMA_7:g}, so the small network is shown at both levels.

The paper compares the small ResNet of Wong et al. with a smoothed network of the same architecture and with a smoothed
ResNet-110. It finds that the large network certifies substantially more than the bound "at all radii", and the small
one more "at all but the smallest radii".
"""
FIGURE_13 = f"""## Figure 13: Lipschitz margin and CROWN

`wong-cnn` trained with a margin (`{MARGIN_13}`) and certified by Lipschitz constants (Tsuzuku et al. 2018);
the 7-layer MLP trained without noise and certified by CROWN (Zhang et al. 2018); and a ResNet-20 smoothed with σ =
{SIGMA_13:g}. Every 100th test image.

The paper compares the released networks of these authors with smoothed ResNets of 20 layers: a WRN-16-4 with c = 0.1 on
SVHN, where it smooths with σ = 0.1, and a 7-layer MLP on CIFAR-10, where it smooths with σ = 1.2. It finds that
smoothing "attains higher certified accuracy" than both. Here σ = {SIGMA_13:g} serves for both, and smoothing certifies
nothing beyond its largest possible radius, 0.38 with 100,000 draws. The CROWN run was made before a radius that float64
does not confirm fell back to the other kind of slopes: two images that it gives radius 0 may have a larger one today.
"""
SETTINGS = """## Settings

Smoothed networks: recipe `gaussian`, certified at the radii of the table by the grid procedure for known labels, with
at most 100,000 draws per image and α = 0.001; their curves are steps, as radii in between were not tested. Bounds: α =
0, rounding errors included. All radii are in pixels in [0, 1]. The standard error of 50 % is 3.5 points on 200 images
and 5 points on 100.

| network | trained by |
|---|---|
| `wong-cnn`, smoothed | 20 epochs, batch size 128, learning rate 0.05 |
| ResNet-56 | `smoothcert train cifar10 --arch resnet56 --sigma 0.25 --epochs 30 --precision bf16` |
| ResNet-20 | `smoothcert train cifar10 --arch resnet20 --sigma 0.1 --epochs 10 --precision bf16` |
| `wong-cnn`, Lipschitz margin | 20 epochs, batch size 128, learning rate 0.05 |
| `mlp-7` | 5 epochs, batch size 128, learning rate 0.02 |

`make reproduce-baselines` repeats this page, and `python reproduce/baselines.py --data cifar10 --resnet PATH` uses a
ResNet-56 trained before. The runs are kept beside this page; `smoothcert compare RUN RUN ... --out DIR` compares any of
them. `smoothcert compare --setting dual`, `lipschitz` and `crown` train and certify with the architectures and noise
levels of the paper.

## Not run here

- the small ResNet of Wong et al. (107,496 ReLU units), which the paper compares with in Figure 7: see
  [baselines](../baselines.md) for what the dual bound costs;
- SVHN and WRN-16-4, of Figure 13: `python reproduce/baselines.py --data svhn` makes the second table of this page on
  SVHN, and `smoothcert compare --setting lipschitz` trains the WRN-16-4;
- a ResNet-20 at σ = 1.2, of Figure 13: `smoothcert compare --setting crown` trains it;
- the full test set.
"""


def compare(out: Path, data: str, resnet: Path | None, *, workers: int) -> None:
    """Train and certify the networks of Figure 7, which is of CIFAR-10 only, and of Figure 13."""
    jobs = list(figure13_jobs(out, data).values())
    if data == "cifar10":
        bound_released(out)
        certify_resnet(out, resnet)
        jobs += small_jobs(out).values()
    run_jobs(jobs, out, workers=workers)


def comparison_page(out: Path, data: str) -> Path:
    """Write docs/results/baselines-DATA.md and its figures."""
    target = RESULTS / f"baselines-{data}.md"
    kept = target.with_suffix("")
    lines = [f"# {data.upper().replace('R1', 'R-1')}: smoothing beside deterministic bounds", ""]
    if data == "cifar10":
        lines += [FIGURE_7, *figure7(out).section(kept)]
    lines += [FIGURE_13, *figure13(out, data).section(kept), SETTINGS]
    target.write_text("\n".join(lines), "utf-8")
    return target


def main() -> None:
    """Train, certify, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=("mnist", "cifar10", "svhn"), default=("mnist", "cifar10"))
    parser.add_argument("--out", type=Path, default=ROOT / "reproduced" / "baselines")
    parser.add_argument("--resnet", type=Path, help="ResNet-56 for CIFAR-10 trained at σ = 0.25; default: train one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args()
    if "cifar10" in chosen.data and not chosen.page:
        published_folder("wong2018")  # says now, not after hours, that it must be fetched
    if "mnist" in chosen.data:
        if not chosen.page:
            write_dual_data(chosen.out)
            run_jobs(jobs(chosen.out), chosen.out, workers=chosen.jobs)
            attack(chosen.out)
        page(chosen.out)
        sys.stdout.write(f"{RESULTS / 'baselines.md'}\n")
    for data in ("cifar10", "svhn"):
        if data in chosen.data:
            if not chosen.page:
                compare(chosen.out / data, data, chosen.resnet, workers=chosen.jobs)
            sys.stdout.write(f"{comparison_page(chosen.out / data, data)}\n")


if __name__ == "__main__":
    try:
        main()
    except SmoothcertError as error:
        sys.exit(f"error: {error}")

"""The paper's figures of results from its logs and from votes of its networks; with --sheet, every kind of figure.

    python reproduce/figures.py
    python reproduce/figures.py --images photographs
    python reproduce/figures.py --sheet --out figures

Certified accuracy (Figure 6, without its dashed line: no norms of attacks were published), theorems and projections
(Figure 8), lower bounds (Figure 14) and training noise (Figure 15) follow from published evidence, which must be there:
smoothcert data fetch cohen2019, cohen2019-votes, cifar10. The radius by p_A and n draws (Figure 5) and the bounds of
Lecuyer et al. and Li et al. (Appendix I) need none. A folder of photographs gives the noisy image (Figure 2), images in
two resolutions (Figures 4 and 12) and ImageNet's images under noise (Appendix K).
With --sheet, what was not published (draws per input, attacks) is made with small networks on scikit-learn's digits, in
about a minute, and figures.png shows all kinds. The votes were sampled by others from the paper's released CIFAR-10
networks (github.com/FireShadow05/accelerated_smoothing, MIT).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from published import CIFAR, IMAGENET, LEVELS, REPRODUCED, Published

from smoothcert.cli.demo_steps import attack, train_models
from smoothcert.data import load
from smoothcert.data.digits import load_digits
from smoothcert.errors import SmoothcertError
from smoothcert.report.figures import draw_figure, save_figure
from smoothcert.report.figures.canvas import new_figure, style
from smoothcert.runs import CertifySettings, Run, certify_dataset

BOUNDS_AND_PROJECTIONS = ("theorem-accuracy", "other-n", "other-alpha")
DIGITS = list(range(0, 500, 5))
MULTIPLES = np.arange(1.0, 3.01, 0.25)


@dataclass(frozen=True)
class Job:
    """A figure to make: its file's name, its kind, and what goes into it."""

    name: str
    kind: str
    runs: list[Run] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    on_sheet: bool = True


def paper_jobs(published: Published) -> Iterator[Job]:
    """The paper's figures that follow from published evidence or from nothing but its theorems."""
    yield Job("figure-5-left", "theorem-radius")
    yield Job("figure-5-right", "best-radius")
    voted = [published.votes(sigma) for sigma in LEVELS[CIFAR]]
    names = [f"σ = {run.sigma:g}" for run in voted]
    yield Job("figure-6-cifar10", "certified-accuracy", voted, {"names": names}, "CIFAR-10, 10,000 images, α = 0.001")
    logs = published.all_certified(IMAGENET)
    yield Job("figure-6-imagenet", "certified-accuracy", logs, {}, "ImageNet, α = 0.01")
    for part, kind in zip(("left", "middle", "right"), BOUNDS_AND_PROJECTIONS, strict=True):
        yield Job(f"figure-8-{part}", kind, logs[:1], {}, "ImageNet")
    yield Job("figure-14", "lower-bound", logs[:1], {}, "ImageNet")
    yield Job("figure-14-cifar10", "lower-bound", [published.votes("0.25")], {}, "CIFAR-10, at the paper's α")
    for network, title in ((CIFAR, "CIFAR-10"), (IMAGENET, "ImageNet")):
        runs = [published.certified(network, level, "0.50") for level in LEVELS[network]]
        options = {"trained": [float(level) for level in LEVELS[network]]}
        yield Job(f"figure-15-{network.split('/')[0]}", "training-noise", runs, options, title)
    yield Job("appendix-i", "tuning")
    images = load("cifar10").batch([1, 3, 8, 12])
    yield Job("appendix-k-cifar10", "noise", [], {"images": images}, on_sheet=False)


def photograph_jobs(folder: Path) -> Iterator[Job]:
    """The paper's pictures of noise and of resolution, with other photographs."""
    photographs = load(folder, size=224)
    spread = photographs.batch(range(0, len(photographs), -(-len(photographs) // 6)))
    yield Job("figure-2", "noise", [], {"images": spread[:1], "sigmas": [0.5]}, on_sheet=False)
    yield Job("figure-4", "resolution", [], {"images": spread[:1]}, on_sheet=False)
    yield Job("figure-12", "resolution", [], {"images": spread[1:2] if len(spread) > 1 else spread}, on_sheet=False)
    yield Job("appendix-k-imagenet", "noise", [], {"images": spread}, on_sheet=False)


def other_jobs(published: Published) -> Iterator[Job]:
    """Kinds of figure that the paper does not have, and its figures with other evidence."""
    recorded = published.votes("0.25")
    for kind in BOUNDS_AND_PROJECTIONS:
        yield Job(f"{kind}-cifar10", kind, [recorded], {}, "CIFAR-10, 10,000 images")
    yield Job("predictions-imagenet", "predictions", published.predicted(), {}, "ImageNet")
    logs = published.all_certified(CIFAR)
    yield Job("lower-bound-cifar10", "lower-bound", logs[:1], {}, "CIFAR-10")
    yield Job("noise-cat", "noise", [], {"images": cat()})
    yield Job("resolution-cat", "resolution", [], {"images": cat()})
    by_class = {"radii": [0, 0.25, 0.5, 0.75], "names": load("cifar10").classes}
    yield Job("class-accuracy-cifar10", "class-accuracy", [recorded], by_class, "CIFAR-10")
    yield Job("radius-histogram-cifar10", "radius-histogram", logs[1:3], {}, "CIFAR-10")


def cat() -> np.ndarray:
    """A photograph that anybody may copy: 224 × 224 pixels of scikit-image's cat."""
    from PIL import Image
    from skimage.data import cat as picture

    square = Image.fromarray(picture()[:, 75:375]).resize((224, 224), Image.Resampling.LANCZOS)
    return np.moveaxis(np.asarray(square), -1, 0)[None]


def illustration_jobs() -> Iterator[Job]:
    """The paper's illustrations of smoothing, of the worst case, of the proof, and of linear classifiers."""
    yield Job("figure-1", "decision-regions")
    yield Job("figure-3", "worst-case")
    yield Job("figure-9", "proof")
    yield Job("figures-10-11", "linear")


def digit_jobs(folder: Path) -> Iterator[Job]:
    """Figures of what was not published, on handwritten digits."""
    training, test = load_digits()
    models = train_models(training, (0.0, 0.25, 0.5), 12, 0)
    norms = attack(models[0.0], test, np.array(DIGITS)).norms
    runs = {}
    for sigma in (0.25, 0.5):
        for procedure, radii in (("planned", ()), ("grid", (0, 0.25, 0.5, 0.75))):
            settings = CertifySettings(
                sigma=sigma, procedure=procedure, radii=radii, n_max=10_000, seed=0, batch_size=1000, chunk=10
            )
            out = folder / f"digits-{sigma}-{procedure}"
            runs[sigma, procedure] = certify_dataset(models[sigma], test, out, settings, indices=DIGITS, progress=False)
    planned = [runs[sigma, "planned"] for sigma in (0.25, 0.5)]
    yield Job("certified-accuracy-digits", "certified-accuracy", planned, {"undefended": norms}, "digits")
    yield Job("draws-digits", "draws", [planned[0], runs[0.25, "grid"]], {"names": ["planned", "grid"]}, "digits")
    found = [attack_norms(models[0.25], test, planned[0])]
    yield Job("attack-success-digits", "attack-success", planned[:1], {"norms": found}, "digits, PGD on g")


def attack_norms(model: Any, test: Any, run: Run) -> np.ndarray:
    """For each input the smallest perturbation, of some multiples of its certified radius, that changes g's answer."""
    import torch

    from smoothcert import Predict, Smoothed
    from smoothcert.attacks.soft import frozen, pgd, soft_objective

    judge = Smoothed(model, run.sigma, 10, input_range=None, seed=1, progress=False)  # attacks may leave [0, 1]
    generator = torch.Generator().manual_seed(0)
    norms = np.full(len(run.rows), math.inf)
    for place, row in enumerate(run.rows):
        if row["label"] is None or row["label"] != row["true"]:
            continue
        x = torch.from_numpy(test.inputs[row["index"]][None]).float() / 255
        noises = run.sigma * torch.randn(128, *x.shape, generator=generator)
        for multiple in MULTIPLES:
            with frozen(model):
                objective = soft_objective(model, torch.tensor([row["true"]]), noises)
                found = pgd(objective, x, radius=multiple * row["radius"], steps=20, pixels=False)
            answer = judge.predict(found[0].numpy(), Predict(n=1_000), index=row["index"]).label
            if answer is not None and answer != row["true"]:
                norms[place] = float((found - x).double().norm())
                break
    return norms


def contact_sheet(files: list[tuple[str, Path]], out: Path, columns: int = 5) -> None:
    """All figures, each with its kind, small, on one page."""
    from matplotlib.image import imread

    rows = -(-len(files) // columns)
    with style():
        figure = new_figure(3.0 * columns, 2.25 * rows)
        for axes in (grid := figure.subplots(rows, columns)).flat:
            axes.axis("off")
        for axes, (kind, file) in zip(grid.flat, files, strict=False):
            axes.imshow(imread(file), interpolation="antialiased")
            axes.set_title(kind, fontsize=8, color="0.35")
    save_figure(figure, out, dpi=100)


def chosen_jobs(chosen: argparse.Namespace, folder: Path) -> Iterator[Job]:
    """The figures that the command line asks for."""
    published = Published(folder)
    jobs = [illustration_jobs(), paper_jobs(published)]
    if chosen.images is not None:
        jobs.append(photograph_jobs(chosen.images))
    if chosen.sheet:
        jobs += [other_jobs(published), digit_jobs(folder)]
    return chain.from_iterable(jobs)


def make(job: Job, out: Path, formats: set[str]) -> Path:
    """Draw one figure and write it in each format; its .png is returned."""
    figure = draw_figure(job.kind, job.runs, job.options)
    if job.title is not None:
        figure.suptitle(job.title, fontsize=10)
    for suffix in {"png", *formats}:
        save_figure(figure, out / f"{job.name}.{suffix}", dpi=160)
    return out / f"{job.name}.png"


def main() -> None:
    """Make the figures, and the contact sheet if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPRODUCED)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="photographs to show under noise")
    parser.add_argument("--sheet", action="store_true", help="every kind of figure, and all of them on one page")
    parser.add_argument("--formats", nargs="+", choices=("png", "svg", "pdf"), default=["png"])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    on_sheet = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for job in chosen_jobs(chosen, Path(folder)):
                file = make(job, chosen.out, set(chosen.formats))
                sys.stdout.write(f"{file}\n")
                if job.on_sheet:  # others' pictures stay out of it
                    on_sheet.append((job.kind, file))
        except SmoothcertError as error:
            sys.exit(f"error: {error}")
    if chosen.sheet:
        contact_sheet(on_sheet, chosen.out / "figures.png")


if __name__ == "__main__":
    main()

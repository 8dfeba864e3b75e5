"""The paper's figures of results, and some more, from its logs and from votes of its networks; and a contact sheet.

    python reproduce/figures.py --shared PATH --out figures

PATH holds data/published and data/imagenet-val-50. CIFAR-10 must be there, for its labels and images: smoothcert data
fetch cifar10. What was not published (draws per input, attacks) is made afresh with small networks on scikit-learn's
digits, in about a minute. The published logs of CERTIFY were made with α = 0.01, but for two of CIFAR-10: the radii
that occur say so (two more fit both). Those of PREDICT abstain on fewer inputs than the paper's table at α = 0.001, as
they would at 0.01. The votes were sampled by others from the paper's released CIFAR-10 networks
(github.com/FireShadow05/accelerated_smoothing, MIT).
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

from smoothcert.cli.demo_steps import attack, train_models
from smoothcert.data import load
from smoothcert.data.digits import load_digits
from smoothcert.report.figures import draw_figure, recorded_run, save_figure
from smoothcert.report.figures.canvas import new_figure, style
from smoothcert.runs import CertifySettings, Run, certify_dataset
from smoothcert.runs.exchange import import_log

N = 100_000
CIFAR, IMAGENET = "cifar10/resnet110", "imagenet/resnet50"
ALPHAS = {(CIFAR, "0.12", "0.12"): 0.001, (CIFAR, "1.00", "0.50"): 0.001}  # trained and smoothed at; others 0.01
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


class Published:
    """The paper's logs as runs, and the votes that others sampled from its released networks."""

    def __init__(self, shared: Path, folder: Path) -> None:
        self.data, self.folder = shared / "data", folder
        self.logs = self.data / "published" / "cohen2019"

    def certified(self, network: str, trained: str, sigma: str) -> Run:
        """A log of CERTIFY."""
        log = self.logs / "certify" / network / f"noise_{trained}" / "test" / f"sigma_{sigma}"
        out = self.folder / f"{network.replace('/', '-')}-{trained}-{sigma}"
        if out.exists():
            out = out.with_name(f"{out.name}-again")
        alpha = ALPHAS.get((network, trained, sigma), 0.01)
        return import_log(log, out, sigma=float(sigma), alpha=alpha, n=N, data=network.split("/")[0])

    def predicted(self, draws: int) -> Run:
        """A log of PREDICT, ImageNet at σ = 0.25."""
        log = self.logs / "predict" / IMAGENET / "noise_0.25" / "test" / f"N_{draws}"
        return import_log(log, self.folder / f"predict-{draws}", sigma=0.25, alpha=0.01, n=draws, data="imagenet")

    def votes(self, sigma: str, labels: Path) -> Run:
        """Votes on CIFAR-10's 10,000 test images (github.com/FireShadow05/accelerated_smoothing, MIT)."""
        path = self.data / "published" / "cohen_resnet110_cifar10_counts_test.npz"
        return recorded_run(path, sigma=float(sigma), labels=labels, array=f"test_sigma{sigma}_n{N}")


def published_jobs(published: Published) -> Iterator[Job]:
    """The figures of the paper for which there is published evidence."""
    cifar = load("cifar10")
    photographs = load(published.data / "imagenet-val-50", size=224)
    labels = published.folder / "labels.npy"
    np.save(labels, cifar.labels)
    curves = [published.certified(CIFAR, s, s) for s in ("0.12", "0.25", "0.50", "1.00")]
    names = [f"σ = {run.sigma:g}" for run in curves]
    yield Job("certified-accuracy-cifar10", "certified-accuracy", curves, {"names": names}, "CIFAR-10")
    large = [published.certified(IMAGENET, s, s) for s in ("0.25", "0.50", "1.00")]
    yield Job("certified-accuracy-imagenet", "certified-accuracy", large, {}, "ImageNet")
    yield Job("theorem-radius", "theorem-radius")
    yield Job("best-radius", "best-radius")
    for kind in ("theorem-accuracy", "other-n", "other-alpha"):
        yield Job(f"{kind}-imagenet", kind, large[:1], {}, "ImageNet")
    recorded = published.votes("0.25", labels)
    for kind in ("theorem-accuracy", "other-n", "other-alpha"):
        yield Job(f"{kind}-cifar10", kind, [recorded], {}, "CIFAR-10, 10,000 images")
    yield Job("predictions-imagenet", "predictions", [published.predicted(10**k) for k in (2, 3, 4, 5)], {}, "ImageNet")
    yield Job("lower-bound-cifar10", "lower-bound", curves[:1], {}, "CIFAR-10")
    yield Job("lower-bound-imagenet", "lower-bound", large[:1], {}, "ImageNet")
    levels = ("0.12", "0.25", "0.50", "1.00")
    for network, title, chosen in ((CIFAR, "CIFAR-10", levels), (IMAGENET, "ImageNet", levels[1:])):
        runs = [published.certified(network, level, "0.50") for level in chosen]
        options = {"trained": [float(level) for level in chosen]}
        yield Job(f"training-noise-{network.split('/')[0]}", "training-noise", runs, options, title)
    yield Job("tuning", "tuning")
    yield Job("noise-cifar10", "noise", [], {"images": cifar.batch([1, 3, 8, 12])}, on_sheet=False)
    yield Job("noise-imagenet", "noise", [], {"images": photographs.batch(range(0, 50, 9))}, on_sheet=False)
    yield Job("resolution-imagenet", "resolution", [], {"images": photographs.batch(range(0, 50, 9))}, on_sheet=False)
    yield Job("noise-cat", "noise", [], {"images": cat()})
    yield Job("resolution-cat", "resolution", [], {"images": cat()})
    by_class = {"radii": [0, 0.25, 0.5, 0.75], "names": cifar.classes}
    yield Job("class-accuracy-cifar10", "class-accuracy", [recorded], by_class, "CIFAR-10")
    yield Job("radius-histogram-cifar10", "radius-histogram", curves[1:3], {}, "CIFAR-10")


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


def contact_sheet(files: list[Path], out: Path, columns: int = 5) -> None:
    """All figures, small, on one page."""
    from matplotlib.image import imread

    rows = -(-len(files) // columns)
    with style():
        figure = new_figure(3.0 * columns, 2.25 * rows)
        for axes in (grid := figure.subplots(rows, columns)).flat:
            axes.axis("off")
        for axes, file in zip(grid.flat, files, strict=False):
            axes.imshow(imread(file), interpolation="antialiased")
            axes.set_title(file.stem, fontsize=8, color="0.35")
    save_figure(figure, out, dpi=100)


def main() -> None:
    """Make all figures, then the contact sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--formats", nargs="+", choices=("png", "svg", "pdf"), default=["png"])
    chosen = parser.parse_args()
    chosen.out.mkdir(exist_ok=True)
    files = []
    with tempfile.TemporaryDirectory() as folder:
        published = published_jobs(Published(chosen.shared, Path(folder)))
        for job in chain(illustration_jobs(), published, digit_jobs(Path(folder))):
            figure = draw_figure(job.kind, job.runs, job.options)
            if job.title is not None:
                figure.suptitle(job.title, fontsize=10)
            for suffix in {"png", *chosen.formats}:
                save_figure(figure, chosen.out / f"{job.name}.{suffix}", dpi=160)
            files += [chosen.out / f"{job.name}.png"] if job.on_sheet else []  # others' pictures stay out of it
            sys.stdout.write(f"{job.name}\n")
    contact_sheet(files, chosen.out / "figures.png")


if __name__ == "__main__":
    main()

"""The steps of the demo, apart from its settings and its words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.attacks.deepfool import deepfool
from smoothcert.data.dataset import ArrayData
from smoothcert.data.digits import load_digits
from smoothcert.errors import OutputError
from smoothcert.files import prepare_folder
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.progress import ProgressBar
from smoothcert.records import Certificate
from smoothcert.report.figures import certified_accuracy_figure, noise_panel, require_matplotlib, save_figure
from smoothcert.report.page import check_report_path, write_report
from smoothcert.runs import CertifySettings, certify_dataset
from smoothcert.runs import open as open_run
from smoothcert.runs.manifest import FILE as MANIFEST
from smoothcert.stats.accuracy import are_correct, average_certified_radius
from smoothcert.training.loop import Progress, seeded, train
from smoothcert.training.settings import TrainSettings

REPORT, NOISE = "report.html", "noise.png"
CURVES = ("certified-accuracy.png", "certified-accuracy.svg")
_TRAIN_BATCH, _LEARNING_RATE = 64, 0.1
# Fixed rather than measured, so that repeating the demo repeats the rounding of every score too.
_CERTIFY_BATCH = 1024


@dataclass(frozen=True, eq=False)
class Certified:
    """The certificates of some test images at one noise level, and whether each class is the true one."""

    sigma: float
    indices: npt.NDArray[np.int64]
    truths: npt.NDArray[np.int64]
    certificates: list[Certificate]

    @property
    def radii(self) -> npt.NDArray[np.float64]:
        """The radius of each certificate, 0 for abstentions."""
        return np.array([c.radius for c in self.certificates])

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Where the certified class is the true one."""
        return are_correct([c.label for c in self.certificates], self.truths)

    @property
    def average_radius(self) -> float:
        """The average certified radius."""
        return average_certified_radius(self.radii, self.correct)

    def typical_correct(self) -> int | None:
        """The place of the correct certificate with the middle radius; None if there is none."""
        places = sorted(np.flatnonzero(self.correct), key=lambda place: self.radii[place])
        return int(places[len(places) // 2]) if places else None


@dataclass(frozen=True, eq=False)
class Attacked:
    """The size of the perturbation that fooled the undefended network on each test image."""

    norms: npt.NDArray[np.float64]


def weights_name(sigma: float) -> str:
    """The weights file of the network trained at `sigma`."""
    return f"model-sigma-{sigma:g}.safetensors" if sigma else "model-undefended.safetensors"


def run_name(sigma: float) -> str:
    """The run directory of the certificates at `sigma`."""
    return f"run-sigma-{sigma:g}"


def prepare(folder: Path, sigmas: Sequence[float]) -> tuple[ArrayData, ArrayData]:
    """Training and test images. Fails now, before any training, if an extra is missing or nothing can be written."""
    require_matplotlib()
    data = load_digits()
    prepare_folder(folder, [NOISE, *CURVES, *(weights_name(sigma) for sigma in (0.0, *sigmas))])
    check_report_path(folder / REPORT)
    for sigma in sigmas:
        _remove_run(folder / run_name(sigma))
    return data


def _remove_run(path: Path) -> None:
    """Make room for a run of the demo where an earlier one is."""
    if path.exists() and not (path / MANIFEST).is_file():
        raise OutputError(f"Cannot write {path}: there is something else. Choose another --out.")
    shutil.rmtree(path, ignore_errors=True)


def _tensors(data: ArrayData) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.inputs).float() / 255, torch.from_numpy(data.labels)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small are trained faster by one thread than by several that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_models(data: ArrayData, sigmas: Sequence[float], epochs: int, seed: int) -> dict[float, nn.Module]:
    """One network per noise level, all from the same initial weights."""
    models = {}
    with _one_thread(), ProgressBar("training", len(sigmas) * epochs) as bar:
        for sigma in sigmas:
            settings = TrainSettings(
                sigma=sigma,
                epochs=epochs,
                batch_size=_TRAIN_BATCH,
                learning_rate=_LEARNING_RATE,
                seed=seed,
                device="cpu",
            )

            def show(_: int, progress: Progress, sigma: float = sigma) -> None:
                bar.advance(1, f"training, σ = {sigma:g}, loss {progress.loss:.3f}")

            models[sigma] = train(seeded(small_cnn, seed), data, settings, on_epoch=show)
    return models


def save_models(folder: Path, models: Mapping[float, nn.Module], data: ArrayData, epochs: int, seed: int) -> None:
    """Write the networks, each with what it takes to rebuild it."""
    for sigma, model in models.items():
        save_checkpoint(folder / weights_name(sigma), model, _blueprint(data, sigma, epochs, seed))


def certify(
    folder: Path, data: ArrayData, indices: npt.NDArray[np.int64], sigma: float, n: int, alpha: float, seed: int
) -> Certified:
    """Certify the chosen images by the paper's procedure into a run; the noise depends on seed and index only."""
    settings = CertifySettings(
        sigma=sigma, alpha=alpha, n_max=n, procedure="paper", seed=seed, batch_size=_CERTIFY_BATCH
    )
    model, out = str(folder / weights_name(sigma)), folder / run_name(sigma)
    run = certify_dataset(model, data, out, settings, indices=indices.tolist())
    return Certified(sigma, indices, data.labels[indices], run.certificates)


def attack(model: nn.Module, data: ArrayData, indices: npt.NDArray[np.int64]) -> Attacked:
    """Attack the undefended network on the same images."""
    images, labels = _tensors(data)
    with _one_thread():
        return Attacked(deepfool(model, images[indices], labels[indices]).norms.numpy())


def write_all(
    folder: Path, certified: Sequence[Certified], attacked: Attacked, panel: npt.NDArray[np.uint8], seed: int
) -> list[tuple[Path, str]]:
    """Write figures and the report; return what is where."""
    figure = certified_accuracy_figure({c.sigma: (c.radii, c.correct) for c in certified}, attacked.norms)
    for name in CURVES:
        save_figure(figure, folder / name)
    save_figure(noise_panel(panel, [c.sigma for c in certified], seed=seed), folder / NOISE)
    write_report([open_run(folder / run_name(c.sigma)) for c in certified], folder / REPORT)
    return [
        (folder / CURVES[0], "the table as curves (and .svg)"),
        (folder / NOISE, "what the networks see"),
        (folder / "run-sigma-*", "every certificate with its votes, for smoothcert verify, table and plot"),
        (folder / "model-*.safetensors", "the trained networks, for smoothcert inspect"),
        (folder / REPORT, "all of it on one page: open it in a browser"),
    ]


def _blueprint(data: ArrayData, sigma: float, epochs: int, seed: int) -> Blueprint:
    return Blueprint(
        architecture="small-cnn",
        num_classes=len(data.classes or ()),
        input_shape=data.shape,
        classes=data.classes,
        sigma=sigma,
        data=data.name,
        training={"recipe": "gaussian", "epochs": epochs, "seed": seed},
    )

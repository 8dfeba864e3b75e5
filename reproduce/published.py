"""The paper's logs as runs, and votes that others sampled from its released CIFAR-10 networks.

Both come from the data folder: smoothcert data fetch cohen2019, cohen2019-votes, cifar10. The published logs of CERTIFY
were made with α = 0.01, but for two of CIFAR-10: the radii that occur say so (two more fit both). Those of PREDICT
abstain on fewer inputs than the paper's table at α = 0.001, as they would at 0.01. The votes were sampled by others
(github.com/FireShadow05/accelerated_smoothing, MIT); with CIFAR-10's labels they give everything at α = 0.001.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smoothcert.data import load, published_folder
from smoothcert.report.figures import recorded_run
from smoothcert.runs import Run
from smoothcert.runs.exchange import import_log

N = 100_000
CIFAR, IMAGENET = "cifar10/resnet110", "imagenet/resnet50"
LEVELS = {CIFAR: ("0.12", "0.25", "0.50", "1.00"), IMAGENET: ("0.25", "0.50", "1.00")}
ALPHAS = {(CIFAR, "0.12", "0.12"): 0.001, (CIFAR, "1.00", "0.50"): 0.001}  # trained and smoothed at; others 0.01
REPRODUCED = Path(__file__).resolve().parent.parent / "reproduced" / "paper"


class Published:
    """Published evidence as runs; runs made from logs are written into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs, self.sampled = published_folder("cohen2019"), published_folder("cohen2019-votes")
        self.labels = folder / "labels.npy"
        np.save(self.labels, load("cifar10").labels)
        self._runs: dict[str, Run] = {}

    def certified(self, network: str, trained: str, sigma: str) -> Run:
        """A log of CERTIFY: a network trained at one noise level, smoothed at the same one or another."""
        path = f"certify/{network}/noise_{trained}/test/sigma_{sigma}"
        return self._imported(path, float(sigma), ALPHAS.get((network, trained, sigma), 0.01), N)

    def all_certified(self, network: str) -> list[Run]:
        """The logs of CERTIFY at the noise level of training, by noise level."""
        return [self.certified(network, sigma, sigma) for sigma in LEVELS[network]]

    def predicted(self) -> list[Run]:
        """The logs of PREDICT by number of draws, ImageNet at σ = 0.25."""
        folder = f"predict/{IMAGENET}/noise_0.25/test"
        return [self._imported(f"{folder}/N_{draws}", 0.25, 0.01, draws) for draws in (100, 1_000, 10_000, N)]

    def votes(self, sigma: str) -> Run:
        """CERTIFY at α = 0.001 from the votes on CIFAR-10's 10,000 test images."""
        path = f"our_sampled_data/data_{float(sigma)}/test/smooth_outs_{N}.pth"
        if path not in self._runs:
            self._runs[path] = recorded_run(self.sampled / path, sigma=float(sigma), labels=self.labels)
        return self._runs[path]

    def _imported(self, path: str, sigma: float, alpha: float, n: int) -> Run:
        if path not in self._runs:
            out, data = self.folder / path.replace("/", "-"), path.split("/")[1]
            run = import_log(self.logs / path, out, sigma=sigma, alpha=alpha, n=n, data=data)
            # Notes name a run by its path: the log's, rather than the temporary folder's.
            self._runs[path] = Run(Path("cohen2019") / path, run.manifest, run.rows)
        return self._runs[path]

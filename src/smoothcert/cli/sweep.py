"""`smoothcert sweep`: train networks for several noise levels, recipes and seeds, and certify them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count
from smoothcert.cli.jobs import Job, job_name, run_jobs
from smoothcert.cli.run_command import ending_on_signals
from smoothcert.cli.train import TrainArguments
from smoothcert.errors import ConfigError
from smoothcert.options import Floats, OptionalFloats, OptionalPath
from smoothcert.runs.settings import CertifySettings


@dataclass(frozen=True, kw_only=True)
class Sweep(TrainArguments):
    """Train a network for every combination of noise level, recipe and seed; certify each, if asked to.

    Each has a directory of its own, with its settings, log and network. A sweep that was cut off goes on when the same
    command is given again; what is complete stays as it is.
    """

    sigma: tyro.conf.Suppress[float] = 0.0
    recipe: tyro.conf.Suppress[str] = "gaussian"
    seed: tyro.conf.Suppress[int | None] = None
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory in which each training has its own."""
    sigmas: Annotated[tuple[float, ...], tyro.conf.arg(metavar="X ...", help_behavior_hint="(required)")]
    """Noise levels to train at."""
    recipes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("gaussian",)
    """Recipes, each perhaps with settings: gaussian consistency:weight=5."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (0,)
    """Seeds."""
    certify: bool = False
    """Certify each network on the test inputs."""
    certify_sigmas: OptionalFloats = None
    """Noise levels to certify at; by default that of the training."""
    every: int = 20
    """Certify every k-th test input."""
    n_max: int = 100_000
    """Most draws per input."""
    radii: Floats = ()
    """Radii to decide upon, instead of finding a radius per input."""
    jobs: int = 1
    """Trainings side by side, which share this machine's threads."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert sweep mnist --sigmas 0.25 0.5 1.0 --recipes gaussian consistency:weight=5 --epochs 20 --out sweep
  smoothcert sweep mnist --sigmas 0.5 --seeds 0 1 2 --jobs 2 --certify --out sweep
  smoothcert sweep cifar10 --sigmas 0.25 0.5 1.0 --certify --certify-sigmas 0.5 --out training-noise
"""

    def run(self, console: Console) -> None:
        """Work off all combinations, then say where they are."""
        self.check()
        jobs = [
            self._job(sigma, recipe, seed) for seed in self.seeds for recipe in self.recipes for sigma in self.sigmas
        ]
        for sigma, recipe in product(self.sigmas, self.recipes):  # says now what cannot be trained
            replace_settings(self, sigma=sigma, recipe=recipe, seed=0).plan()
        with ending_on_signals():
            run_jobs(jobs, self.out, workers=self.jobs)
        for job in jobs:
            console.print(escape(str(job.out)), soft_wrap=True)

    def check(self) -> None:
        """Raise ConfigError for settings out of range, of any of the trainings."""
        check_count("jobs", self.jobs)
        check_count("every", self.every)
        for name in ("sigmas", "recipes", "seeds"):
            if not getattr(self, name) or len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ConfigError(f"Expected different `{name}`, at least one, got {getattr(self, name)!r}.")
        for sigma in self.sigmas:
            for recipe in self.recipes:
                for seed in self.seeds:
                    replace_settings(self, sigma=sigma, recipe=recipe, seed=seed).check()
        if self.certify_sigmas is not None and not self.certify:
            raise ConfigError("Noise levels to certify at were given, but not --certify.")
        if self.certify:
            if any(recipe.startswith("denoiser") for recipe in self.recipes):
                raise ConfigError("A denoiser is certified together with its classifier: drop --certify.")
            for sigma in self.certify_sigmas or self.sigmas:
                if sigma or self.certify_sigmas:
                    CertifySettings(sigma=sigma, n_max=self.n_max, radii=self.radii).check()

    def _job(self, sigma: float, recipe: str, seed: int) -> Job:
        settings = asdict(replace_settings(self, sigma=sigma, recipe=recipe, seed=seed))
        certify = []
        if self.certify:
            common = {
                "data": self.data,
                "data_root": self.data_root,
                "size": self.size,
                "device": self.device,
                "every": self.every,
                "n_max": self.n_max,
                "radii": self.radii,
                "seed": seed,
            }
            certify = [{**common, "sigma": level} for level in self.certify_sigmas or (sigma,) if level]
        return Job(self.out / job_name(sigma, recipe, seed), settings, certify)


def replace_settings(sweep: Sweep, **changes: Any) -> TrainArguments:
    """One training's arguments."""
    names = TrainArguments.__dataclass_fields__
    return replace(TrainArguments(**{name: getattr(sweep, name) for name in names}), **changes)

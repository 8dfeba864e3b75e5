"""`smoothcert compare`: smoothing against deterministic bounds, on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count
from smoothcert.cli.jobs import Job, job_name, run_jobs
from smoothcert.cli.run_command import ending_on_signals
from smoothcert.cli.train import TrainArguments
from smoothcert.errors import ConfigError
from smoothcert.options import Floats, OptionalFloats, OptionalInt, OptionalPath, OptionalText
from smoothcert.runs.settings import CertifySettings
from smoothcert.time_limit import DEFAULT_HOURS, TimeLimit, check_hours

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run

TABLE, FIGURE = "comparison.md", "comparison.png"


@dataclass(frozen=True, slots=True)
class Setting:
    """A comparison of Cohen et al. 2019, Appendix J.1: what is smoothed, and what it is compared with.

    Noise levels and radii are in pixels in [0, 1]; the paper has some of them in units of the networks' own inputs.
    """

    data: str
    sigmas: tuple[float, ...]
    architecture: str
    recipes: tuple[str, ...]
    method: str


SETTINGS = {
    # Wong et al. 2018 divide pixels by 0.225: σ = 0.6 and ε = 0.157, 0.628, 2.51 of theirs.
    "dual": Setting(
        "cifar10", (0.135,), "wong-resnet", ("dual:epsilon=0.0353", "dual:epsilon=0.141", "dual:epsilon=0.565"), "dual"
    ),
    "lipschitz": Setting("svhn", (0.1,), "wrn-16-4", ("lipschitz-margin:margin=0.1",), "lipschitz"),
    "crown": Setting("cifar10", (1.2,), "mlp-7", ("gaussian",), "crown"),
}


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare certifiers on the same inputs: one table and one figure, in the same units.

    Give runs that are there already, or with --setting have networks trained and certified as in one of the three
    comparisons of Cohen et al. 2019: the dual approach of Wong et al. on a small ResNet, the Lipschitz margin of
    Tsuzuku et al. on a WRN-16-4, and CROWN on an MLP of seven layers; each beside a smoothed network. What was cut off
    goes on when the same command is given again.
    """

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="")
    ] = ()
    """Directories of runs of `certify` and `baseline`, on the same inputs."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory for comparison.md and comparison.png, and with --setting for networks and runs."""
    radii: Floats = ()
    """Radii of the table's columns; by default some that suit the runs."""
    undefended: OptionalPath = None
    """A run of `attack-base` on an undefended network, drawn as a dashed line."""
    setting: Literal["dual", "lipschitz", "crown"] | None = None
    """Train and certify as in the paper's comparison with this method."""
    data: OptionalText = None
    """With --setting: data instead of the paper's."""
    data_root: OptionalPath = None
    """Folder with the data sets."""
    sigmas: OptionalFloats = None
    """With --setting: noise levels instead of the paper's."""
    arch: OptionalText = None
    """With --setting: the network that is bounded, instead of the paper's."""
    smooth_arch: OptionalText = None
    """With --setting: the network that is smoothed; by default one that suits the data."""
    recipes: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = None
    """With --setting: how networks that are bounded are trained, such as dual:epsilon=0.5, instead of the paper's."""
    epochs: int = 30
    """With --setting: epochs of every training."""
    learning_rate: float = 0.05
    """With --setting: of every training."""
    batch_size: int = 128
    """With --setting: of every training."""
    every: int = 20
    """With --setting: certify every k-th test input."""
    first: OptionalInt = None
    """With --setting: certify at most this many."""
    n_max: int = 100_000
    """With --setting: most draws per input."""
    jobs: int = 1
    """With --setting: trainings side by side."""
    time_limit: float = DEFAULT_HOURS
    """With --setting: hours that each training and each deterministic run may take, by an estimate from its first
    part; longer ones are refused. inf: no limit."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert compare smoothed lipschitz crown --undefended attacked --out comparison
  smoothcert compare --setting crown --out comparison
  smoothcert compare --setting dual --data mnist --sigmas 0.5 --arch wong-cnn --recipes dual:epsilon=0.5 --out dual
  smoothcert compare --setting lipschitz --out comparison      needs SVHN: smoothcert data fetch svhn
"""

    def run(self, console: Console) -> None:
        """Train and certify if asked to, then compare."""
        if (self.setting is None) == (not self.paths):
            raise ConfigError("Expected either runs to compare or --setting, to train and certify networks first.")
        self._check_flags()
        from smoothcert.runs.directory import open_run

        paths = self.paths if self.setting is None else self._worked_off(SETTINGS[self.setting])
        self._write(console, [open_run(path) for path in paths])

    def _check_flags(self) -> None:
        """Raise ConfigError for what could only fail later, or would be ignored."""
        if self.undefended is not None and not self.undefended.exists():
            raise ConfigError(f"Cannot read norms of an undefended network from {self.undefended}: nothing is there.")
        if self.setting is None:
            ignored = [name for name in _FOR_SETTINGS if getattr(self, name) != _DEFAULTS[name]]
            if ignored:
                raise ConfigError(f"--{ignored[0].replace('_', '-')} goes with --setting; these runs are made already.")
            return
        for name in ("epochs", "batch_size", "every", "n_max", "jobs"):
            check_count(name, getattr(self, name))
        check_hours(self.time_limit)
        if self.first is not None:
            check_count("first", self.first)
        for name in ("sigmas", "recipes"):
            given = getattr(self, name)
            if given is not None and (not given or len(set(given)) < len(given)):
                raise ConfigError(f"Expected different `{name}`, at least one, got {given!r}.")
        for sigma in self.sigmas or SETTINGS[self.setting].sigmas:
            CertifySettings(sigma=sigma, n_max=self.n_max).check()

    def _worked_off(self, setting: Setting) -> list[Path]:
        """The runs of a comparison, after they were made."""
        from smoothcert.training.directory import check_time

        jobs = self._jobs(setting)
        for job in jobs:  # says now what cannot be trained
            arguments = TrainArguments(**job.train)
            arguments.check()
            check_time(arguments.plan(), TimeLimit(self.time_limit))
        with ending_on_signals():
            run_jobs(jobs, self.out, workers=self.jobs)
        return [path for job in jobs for path in job.runs]

    def _jobs(self, setting: Setting) -> list[Job]:
        data = self.data or setting.data
        common = {"data": data, "data_root": self.data_root, "every": self.every, "first": self.first}
        jobs = []
        for sigma in self.sigmas or setting.sigmas:
            run = {**common, "sigma": sigma, "n_max": self.n_max, "seed": 0}
            train = self._training(data, self.smooth_arch, sigma, "gaussian")
            jobs.append(Job(self.out / f"smoothed_{job_name(sigma, 'gaussian', 0)}", train, [run]))
        for recipe in self.recipes or setting.recipes:
            train = self._training(data, self.arch or setting.architecture, 0.0, recipe)
            bound = {**common, "method": setting.method, "time_limit": self.time_limit}
            jobs.append(Job(self.out / f"bounded_{job_name(0.0, recipe, 0)}", train, [], [bound]))
        return jobs

    def _training(self, data: str, architecture: str | None, sigma: float, recipe: str) -> dict[str, Any]:
        return asdict(
            TrainArguments(
                data=data,
                data_root=self.data_root,
                arch=architecture,
                sigma=sigma,
                recipe=recipe,
                epochs=self.epochs,
                learning_rate=self.learning_rate,
                batch_size=self.batch_size,
                time_limit=self.time_limit,
                seed=0,
            )
        )

    def _write(self, console: Console, runs: Sequence[Run]) -> None:
        from smoothcert.files import prepare_folder, replacing
        from smoothcert.report.comparison import comparison_table
        from smoothcert.report.figures import draw_figure, load_norms, save_figure
        from smoothcert.report.run_tables import as_markdown, as_rich

        table = comparison_table(runs, self.radii)
        options = {} if self.undefended is None else {"undefended": load_norms(self.undefended)}
        prepare_folder(self.out, [TABLE, FIGURE])
        save_figure(draw_figure("certified-accuracy", runs, options), self.out / FIGURE)
        with replacing(self.out / TABLE) as partial:
            partial.write_text(f"{as_markdown(table)}\n![certified accuracy]({FIGURE})\n", "utf-8")
        shown = as_rich(table)
        console.width = max(console.width, console.measure(shown, options=console.options.update(width=999)).maximum)
        console.print(shown)
        for note in table.notes:
            console.print(escape(note))
        console.print(f"Table and figure: {escape(str(self.out))}", soft_wrap=True)


_DEFAULTS = {field.name: field.default for field in fields(Compare)}
_FOR_SETTINGS = (
    "data",
    "data_root",
    "sigmas",
    "arch",
    "smooth_arch",
    "recipes",
    "epochs",
    "learning_rate",
    "batch_size",
    "every",
    "first",
    "n_max",
    "jobs",
    "time_limit",
)

"""`smoothcert plot`: the figures of the paper, and others, from runs, votes, images and models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.errors import ConfigError
from smoothcert.options import OptionalFloat, OptionalFloats, OptionalInt, OptionalInts, OptionalPath, OptionalText

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from smoothcert.runs.directory import Run

_VOTES = (".npy", ".npz", ".pth", ".jsonl")
_LARGEST_SIDE, _LARGEST_DPI = 100.0, 2400
_MOST_IMAGES = 50
Paths = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="PATH ...", help_behavior_hint="")]
Texts = Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]

# What each flag turns into, where it is given, before it goes to the function that draws.
_OPTIONS = (
    "names",
    "limit",
    "radii",
    "n",
    "alphas",
    "rho",
    "trained",
    "sigmas",
    "factor",
    "seed",
    "point",
    "p_a",
    "p_b",
)
_FOR_VOTES = ("array", "labels")
_IMAGE_KINDS = ("noise", "resolution")
_FOR_IMAGES = ("indices", "split", "data_root", "size")


class _Examples:
    """The kinds of figure with an example each, put together only when somebody asks."""

    def __get__(self, _: object, __: type[Any] | None = None) -> str:
        from smoothcert.report.figures import FIGURES

        lines = ["", "kinds, each with an example:"]
        for name, kind in FIGURES.items():
            words = " ".join(filter(None, ["smoothcert plot", name, kind.example, "--out figure.pdf"]))
            lines += [f"  {name}: {kind.help}", f"      {words}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Plot:
    """Draw a figure from runs, votes, images or a model; the kinds are listed below."""

    kind: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")]
    """What to draw."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Figure to write: .svg, .pdf or .png. The same input gives the same file."""
    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]", help_behavior_hint="")
    ] = ()
    """Directories of runs, or a file of votes (.npz, .npy, .pth) with --sigma."""
    title: OptionalText = None
    """Title above the figure."""
    width: OptionalFloat = None
    """Width in inches; a column of print is about 3.3."""
    height: OptionalFloat = None
    """Height in inches."""
    dpi: int = 200
    """Dots per inch of a .png."""
    names: Texts = None
    """Names of the curves; by default what tells the runs apart."""
    limit: OptionalFloat = None
    """Largest radius shown."""
    radii: OptionalFloats = None
    """Radii of class-accuracy."""
    undefended: OptionalPath = None
    """An attack on an undefended network, for certified-accuracy: a run of `attack-base`, or norms in a file (.npy,
    .npz, .json)."""
    norms: Paths = ()
    """Perturbation norms of an attack on each run, for attack-success: runs of `attack-base`, or .npy, .npz, .json."""
    n: OptionalInts = None
    """Numbers of draws, for other-n and best-radius; one for decision-regions."""
    alphas: OptionalFloats = None
    """Failure probabilities, for other-alpha."""
    rho: OptionalFloat = None
    """Failure probability of the lower bounds on the inputs' certified accuracy, for lower-bound."""
    trained: OptionalFloats = None
    """Noise levels the networks were trained at, where the runs do not know, for training-noise."""
    sigma: OptionalFloat = None
    """Noise level: of a file of votes, of best-radius, of resolution, of the illustrations (decision-regions,
    worst-case, proof, linear)."""
    alpha: OptionalFloat = None
    """Failure probability: of a file of votes, of best-radius, of decision-regions; by default 0.001."""
    array: OptionalText = None
    """Which array of an .npz file of votes."""
    labels: OptionalPath = None
    """True classes for a file of votes: .npy, text with one per line, or a CIFAR-10 binary batch."""
    data: OptionalText = None
    """Images for noise and resolution: a data set's name, a folder or an array file."""
    indices: OptionalInts = None
    """Which images; by default the first four, or the first one for resolution."""
    sigmas: OptionalFloats = None
    """Noise levels of noise."""
    factor: OptionalInt = None
    """How many times fewer pixels a side low resolution has, for resolution."""
    size: OptionalInt = None
    """Bring image files to this size."""
    split: OptionalText = None
    """Which part of the data set; by default test."""
    data_root: OptionalPath = None
    """Folder with the data sets."""
    seed: OptionalInt = None
    """Seed of the noise in noise and resolution; of the noise and the toy network in decision-regions."""
    model: OptionalText = None
    """Model on inputs of shape (2,), for decision-regions: file.py:name or any other source. Default: a toy network."""
    point: OptionalFloats = None
    """Input at which decision-regions smooths the model: two numbers."""
    p_a: OptionalFloat = None
    """Probability of the top class at x, for worst-case, proof and linear."""
    p_b: OptionalFloat = None
    """Probability of the runner-up at x, for worst-case and proof."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[Any] = _Examples()

    def run(self, console: Console) -> None:
        """Check everything that can be checked before reading, then read, draw and write."""
        from smoothcert.data.names import printable
        from smoothcert.report.figures import check_figure_path, check_kind, draw_figure, save_figure

        given = self._given()
        self._check_settings()
        check_kind(self.kind, len(self.paths), given)
        check_figure_path(self.out)
        runs = [self._open(path) for path in self.paths]
        figure = draw_figure(self.kind, runs, {**given, **self._read()})
        self._arrange(figure)
        save_figure(figure, self.out, dpi=self.dpi)
        for run in runs:
            if not run.complete:
                done = f"{len(run.rows):,} of {len(run.manifest.indices):,} rows"
                console.print(
                    f"[yellow]notice:[/] {escape(printable(run.path))} is not complete: {done}", soft_wrap=True
                )
            if run.retirement is not None:
                said = f"{escape(printable(run.path))} was {run.retirement}"
                console.print(f"[yellow]notice:[/] {said}", soft_wrap=True)
        console.print(f"Figure: {escape(printable(self.out))}", soft_wrap=True)

    @property
    def _reads_votes(self) -> bool:
        return any(map(_holds_votes, self.paths))

    def _given(self) -> dict[str, Any]:
        """The kind's options that were given, by name; files stand for what will be read from them."""
        given = {name: getattr(self, name) for name in _OPTIONS if getattr(self, name) is not None}
        if self.undefended is not None:
            given["undefended"] = self.undefended
        if self.norms:
            given["norms"] = self.norms
        if self.data is not None:
            given["images"] = self.data
        if self.model is not None:
            given["model"] = self.model
        if not self._reads_votes:  # else they belong to the votes
            given |= {name: getattr(self, name) for name in ("sigma", "alpha") if getattr(self, name) is not None}
        return given

    def _check_settings(self) -> None:
        """Raise ConfigError for settings that no kind could use as they are."""
        for name, value in (("width", self.width), ("height", self.height)):
            if value is not None and not 0.5 <= value <= _LARGEST_SIDE:
                raise ConfigError(f"Expected `{name}` in inches, from 0.5 to {_LARGEST_SIDE:g}, got {value!r}.")
        if not 10 <= self.dpi <= _LARGEST_DPI:
            raise ConfigError(f"Expected `dpi` from 10 to {_LARGEST_DPI}, got {self.dpi!r}.")
        if self._reads_votes and self.sigma is None:
            raise ConfigError("A file of votes does not say its noise level: give --sigma.")
        if self.kind in _IMAGE_KINDS and self.data is None:
            raise ConfigError(f"For {self.kind}, images must be given: --data.")
        self._refuse(_FOR_VOTES, not self._reads_votes, "a file of votes")
        self._refuse(_FOR_IMAGES, self.data is None, "--data")

    def _refuse(self, flags: tuple[str, ...], unused: bool, needs: str) -> None:
        named = [flag for flag in flags if getattr(self, flag) is not None]
        if unused and named:
            raise ConfigError(f"--{named[0].replace('_', '-')} is for {needs}, and there is none.")

    def _open(self, path: Path) -> Run:
        from smoothcert.report.figures import recorded_run
        from smoothcert.runs.directory import open_run

        if not _holds_votes(path):
            return open_run(path)
        alpha = 0.001 if self.alpha is None else self.alpha
        return recorded_run(path, sigma=float(self.sigma or 0), alpha=alpha, labels=self.labels, array=self.array)

    def _read(self) -> dict[str, Any]:
        """The contents of the files that options name."""
        from smoothcert.report.figures import load_norms

        read: dict[str, Any] = {}
        if self.undefended is not None:
            read["undefended"] = load_norms(self.undefended)
        if self.norms:
            read["norms"] = [load_norms(path) for path in self.norms]
        if self.data is not None:
            read["images"] = self._images(self.data)
        if self.model is not None:
            from smoothcert.models import load

            read["model"] = load(self.model)
        return read

    def _images(self, source: str) -> npt.NDArray[np.uint8]:
        from smoothcert.data import load, select_indices

        data = load(source, split=self.split or "test", root=self.data_root, size=self.size)
        first = 1 if self.kind == "resolution" else 4
        chosen = select_indices(len(data), **({"indices": self.indices} if self.indices else {"first": first}))
        if len(chosen) > _MOST_IMAGES:
            raise ConfigError(f"Expected at most {_MOST_IMAGES} images in one figure, got {len(chosen)}.")
        return data.batch(chosen)

    def _arrange(self, figure: Figure) -> None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(self.width or width, self.height or height)
        if self.title is not None:
            figure.suptitle(self.title, fontsize=10)


def _holds_votes(path: Path) -> bool:
    return path.suffix in _VOTES and not path.is_dir()

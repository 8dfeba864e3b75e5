"""Figures, drawn with matplotlib's objects so that nobody's pyplot state or backend is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_alpha, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.files import check_writable, replacing
from smoothcert.records import floor_decimal
from smoothcert.stats.accuracy import accuracy_curve
from smoothcert.stats.radii import cohen_radius, lecuyer_radius, li_radius, max_radius

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008: told apart by colour-blind readers too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SUFFIXES = (".png", ".svg")

_STYLE = {
    "font.size": 9.0,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.hashsalt": "smoothcert",  # the same figure is the same file
    "svg.fonttype": "none",
}


def require_matplotlib() -> None:
    """Raise MissingExtraError unless matplotlib is installed, for those who want to know before they start."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot")


@contextmanager
def _style() -> Iterator[None]:
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def _axes(width: float = 5.2, height: float = 3.4) -> tuple[Figure, Axes]:
    figure = _new_figure(width, height)
    axes = figure.add_subplot()
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def check_figure_path(path: Path) -> Path:
    """Return `path` if a figure can be saved there: ConfigError for another suffix, OutputError if not writable."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Expected a figure file that ends in .png or .svg, got {path.name!r}.")
    check_writable(path)
    return path


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Save as PNG or SVG by the suffix, whole or not at all; equal figures give equal files."""
    check_figure_path(path)
    kind = path.suffix.lower()[1:]
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    with _style(), replacing(path) as partial:
        figure.savefig(partial, format=kind, dpi=dpi, metadata=metadata)


def _draw_steps(axes: Axes, radii: npt.ArrayLike, correct: npt.ArrayLike, label: str, **style: Any) -> None:
    at, accuracy = accuracy_curve(radii, correct)
    axes.plot(at, 100 * accuracy, drawstyle="steps-pre", label=label, **style)


def certified_accuracy_figure(
    curves: Mapping[float, tuple[npt.ArrayLike, npt.ArrayLike]], undefended: npt.ArrayLike | None = None
) -> Figure:
    """Certified accuracy against radius, one curve per σ, as in Cohen et al. 2019, Section 4.

    Args:
        curves: for each σ the radii and whether each class is the true one.
        undefended: the sizes of the perturbations that fooled an undefended classifier, 0 where it was wrong
            already: what survives them bounds its robust accuracy from above.
    """
    if not curves:
        raise InputError("Expected at least one curve, got none.")
    with _style():
        figure, axes = _axes()
        for i, (sigma, (radii, correct)) in enumerate(sorted(curves.items())):
            _draw_steps(axes, radii, correct, f"σ = {sigma:g}", color=PALETTE[i % len(PALETTE)])
        if undefended is not None:
            norms = np.asarray(undefended, np.float64)
            label = "undefended, attacked (upper bound)"
            _draw_steps(axes, norms, norms > 0, label, color="black", linestyle=(0, (4, 2)), linewidth=1.2)
        axes.set(xlabel="L2 radius (pixels in [0, 1])", ylabel="certified accuracy (%)", ylim=(0, 101))
        axes.set_xlim(left=0)
        axes.legend(loc="upper right")
    return figure


def noise_panel(images: npt.NDArray[np.uint8], sigmas: Sequence[float], *, seed: int = 0) -> Figure:
    """Images as they are and under noise: one row per image, one column per σ, the first without noise.

    Noisy values are clipped to [0, 1] for display only; the classifier sees them as they are.
    """
    if images.ndim != 4 or len(images) == 0 or images.shape[1] not in (1, 3):
        raise InputError(f"Expected images [N, 1 or 3, H, W], got shape {images.shape}.")
    columns = [0.0, *(check_sigma(sigma) for sigma in sigmas)]
    generator = np.random.default_rng(seed)
    with _style():
        figure = _new_figure(1.15 * len(columns), 1.15 * len(images) + 0.25)
        grid = figure.subplots(len(images), len(columns), squeeze=False)
        for row, image in enumerate(images):
            clean = np.moveaxis(image, 0, -1) / 255
            standard = generator.standard_normal(clean.shape)  # the same along a row, only louder
            for column, sigma in enumerate(columns):
                axes = grid[row, column]
                shown = np.clip(clean + sigma * standard, 0, 1)
                axes.imshow(shown.squeeze(-1) if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if row == 0:
                    axes.set_title(f"σ = {sigma:g}" if sigma else "clean", fontsize=9)
    return figure


def radius_by_draws_figure(sigma: float, alpha: float, marked: Sequence[int] = ()) -> Figure:
    """The largest radius that n draws can certify, against n, with the numbers in `marked` picked out."""
    check_sigma(sigma)
    check_alpha(alpha)
    marks = [check_count("n", n) for n in marked]
    low, high = min([10, *marks]), max([1_000_000, *marks])
    draws = np.unique(np.geomspace(low, high, 200).round().astype(np.int64))
    with _style():
        figure, axes = _axes()
        axes.plot(draws, [max_radius(int(n), alpha, sigma) for n in draws], color=PALETTE[0])
        axes.plot(marks, [max_radius(n, alpha, sigma) for n in marks], "o", color=PALETTE[1], markersize=5)
        for n in marks:
            radius = max_radius(n, alpha, sigma)
            axes.annotate(floor_decimal(radius), (n, radius), (4, -11), textcoords="offset points")
        axes.set_xscale("log")
        axes.set(xlabel="draws n", ylabel="largest radius that can be certified")
        axes.set_title(f"σ = {sigma:g}, α = {alpha:g}: all n votes for one class", fontsize=9.5)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.08)
    return figure


def prior_bounds_figure() -> Figure:
    """The radius that each known theorem gives for p_A at σ = 1 and p_B = 1 − p_A."""
    p_a = np.concatenate([np.linspace(0.501, 0.99, 120), 1 - np.geomspace(0.01, 0.001, 30)])
    theorems = {
        "Theorem 1 (Cohen et al. 2019)": lambda q: float(cohen_radius(q, sigma=1.0)),
        "Li et al. 2019": lambda q: li_radius(q, sigma=1.0),
        "Lecuyer et al. 2019": lambda q: lecuyer_radius(q, sigma=1.0),
    }
    with _style():
        figure, axes = _axes()
        for color, (name, radius) in zip(PALETTE, theorems.items(), strict=False):
            axes.plot(p_a, [radius(1 - p) for p in p_a], color=color, label=name)
        axes.set(xlabel="probability $p_A$ of the top class under noise", ylabel="certified radius at σ = 1")
        axes.set(xlim=(0.5, 1), ylim=(0, None))
        axes.legend(loc="upper left")
    return figure

"""What all figures share: style, colours, axes, files. Matplotlib's objects are used, never pyplot's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError, MissingExtraError
from smoothcert.files import check_writable, replacing
from smoothcert.stats.accuracy import accuracy_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008: told apart by colour-blind readers too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SUFFIXES = (".png", ".svg", ".pdf")
RADIUS = "L2 radius (pixels in [0, 1])"
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.2))

_LINES = ("solid", DASHED, DOTTED)
_STYLE = {
    "font.size": 9.0,
    "axes.labelsize": 9.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "svg.hashsalt": "smoothcert",  # the same figure is the same file
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # letters stay letters; some publishers refuse Type 3 fonts
}
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def require_matplotlib() -> None:
    """Raise MissingExtraError unless matplotlib is installed, for those who want to know before they start."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot")


@contextmanager
def style() -> Iterator[None]:
    """The style of all figures, in the block only."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches that finds room for its labels by itself."""
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def new_axes(width: float = 5.2, height: float = 3.4) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    add_grid(axes)
    return figure, axes


def add_grid(axes: Axes) -> None:
    """Faint lines behind the data."""
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of the curve with this number, another for each of the first eighteen."""
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": _LINES[number // len(PALETTE) % len(_LINES)]}


def draw_accuracy(
    axes: Axes,
    radii: npt.ArrayLike,
    correct: npt.ArrayLike,
    label: str,
    *,
    tested: Sequence[float] | None = None,
    **look: Any,
) -> None:
    """The certified-accuracy curve as the steps that it is, in percent; with dots at the radii in `tested`."""
    at, accuracy = accuracy_curve(radii, correct, tested)
    axes.plot(at, 100 * accuracy, drawstyle="steps-pre", label=label, **dots(at, tested), **look)


def dots(at: npt.NDArray[np.float64], tested: Sequence[float] | None) -> dict[str, Any]:
    """Marks of a curve that is known at the radii in `tested` only, and ends at the last."""
    return {} if tested is None else {"marker": "o", "markersize": 3.5, "markevery": slice(len(at) - len(tested), None)}


def finish_accuracy(axes: Axes, ylabel: str = "certified accuracy (%)", *, limit: float | None = None) -> None:
    """Labels, limits and legend of certified accuracy against radius; `limit` is the largest radius shown."""
    axes.set(xlabel=RADIUS, ylabel=ylabel, ylim=(0, 101))
    axes.set_xlim(0, check_limit(limit))
    # Curves fall, so there is room at the upper right, unless one ends there at a radius beyond which none was tested.
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in axes.get_lines()]
    in_the_way = any(x > axes.get_xlim()[1] / 2 and y > 50 for x, y in ends)
    axes.legend(loc="lower left" if in_the_way else "upper right")


def check_limit(limit: float | None) -> float | None:
    """Return `limit` if an axis can end there; None lets it end where the data do."""
    if limit is not None and not 0 < limit < float("inf"):
        raise ConfigError(f"Expected `limit` to be a finite number > 0, got {limit!r}.")
    return limit


def add_note(axes: Axes, text: str) -> None:
    """A line above the axes that belongs to the claim and must not be cut off."""
    axes.set_title(text, loc="left", fontsize=8.0, color="0.35")


def check_figure_path(path: Path) -> Path:
    """Return `path` if a figure can be saved there: ConfigError for another suffix, OutputError if not writable."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Expected a figure file that ends in .png, .svg or .pdf, got {path.name!r}.")
    check_writable(path)
    return path


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Save as PNG, SVG or PDF by the suffix, whole or not at all; equal figures give equal files."""
    check_figure_path(path)
    kind = path.suffix.lower()[1:]
    with style(), replacing(path) as partial:
        figure.savefig(partial, format=kind, dpi=dpi, metadata=_METADATA[kind])

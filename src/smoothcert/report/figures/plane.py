"""Drawing classifiers of two-dimensional inputs: decision regions, level sets of the noise, points and radii."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError, ModelError
from smoothcert.report.figures.canvas import DASHED, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Labeller = Callable[[Floats], Labels]
"""Maps points [N, 2] to labels [N]; −1 where the classifier has no answer."""

_RESOLUTION = 700  # pixels a side; more than a panel has on paper, so that boundaries look smooth
_BATCH = 16_384  # points per forward pass
_TINTS = (0.5, 0.22)  # share of the full colour; the second six classes take the paler tint
MOST_CLASSES = len(_TINTS) * len(PALETTE)
RING_MULTIPLES = (1, 2, 3)  # in σ
SOLID_RING = {"linestyle": "solid", "linewidth": 0.8, "color": "0.25"}
DASHED_RING = {"linestyle": DASHED, "linewidth": 0.8, "color": "0.25"}
RADIUS_LINE = {"linestyle": "solid", "linewidth": 2.0, "color": "black"}


def region_color(label: int) -> tuple[float, float, float]:
    """The fill colour of a class: a pale tint of the palette, white for no answer."""
    from matplotlib.colors import to_rgb

    if label < 0:
        return (1.0, 1.0, 1.0)
    repeats, place = divmod(label, len(PALETTE))
    tint = _TINTS[repeats % len(_TINTS)]
    red, green, blue = (1 - tint * (1 - channel) for channel in to_rgb(PALETTE[place]))
    return (red, green, blue)


def check_colours(classes: int) -> None:
    """Raise ConfigError unless each of this many classes has a colour of its own."""
    if classes > MOST_CLASSES:
        raise ConfigError(f"Expected a model with at most {MOST_CLASSES} classes, one per colour, got {classes}.")


def labeller(model: Any) -> Labeller:
    """A function from points [N, 2] to labels, for a model on batches [B, 2] that returns scores or labels."""
    from smoothcert.models.agreement import is_labels

    def labels_at(points: Floats) -> Labels:
        output = answers(model, points)
        if is_labels(output):
            return output.long().clamp(min=-1).numpy()
        missing = output.isnan().any(dim=1)
        return output.argmax(dim=1).masked_fill(missing, -1).numpy()

    return labels_at


def answers(model: Any, points: npt.ArrayLike) -> Tensor:
    """What a model returns for points [N, 2]; ModelError if it does not take them."""
    import torch

    from smoothcert.models.contract import evaluating

    batches = torch.as_tensor(np.asarray(points, np.float32)).split(_BATCH)
    try:
        with evaluating(model), torch.inference_mode():
            return torch.cat([model(batch) for batch in batches])
    except Exception as error:  # whatever the user's code raises
        raise ModelError(
            f"Expected a model of two-dimensional inputs, but it failed on a batch of shape {tuple(batches[0].shape)} "
            f"({type(error).__name__}: {error})."
        ) from error


def pixel_centres(middle: Sequence[float], half_width: float) -> Floats:
    """The points [H, W, 2] at which regions are evaluated, the top row first, as images have them."""
    steps = (np.arange(_RESOLUTION) + 0.5) / _RESOLUTION * 2 - 1
    x, y = np.meshgrid(middle[0] + half_width * steps, middle[1] - half_width * steps)
    return np.stack([x, y], axis=-1)


def draw_regions(axes: Axes, labels_at: Labeller, middle: Sequence[float], half_width: float) -> Labels:
    """Fill a square with the colours of the classes; return the labels of its pixels, [H, W]."""
    points = pixel_centres(middle, half_width)
    labels = labels_at(points.reshape(-1, 2)).reshape(points.shape[:2])
    check_colours(int(labels.max()) + 1)
    colours = np.rint([[255 * channel for channel in region_color(label)] for label in range(-1, MOST_CLASSES)])
    left, right = middle[0] - half_width, middle[0] + half_width
    bottom, top = middle[1] - half_width, middle[1] + half_width
    axes.imshow(colours.astype(np.uint8)[labels + 1], extent=(left, right, bottom, top), zorder=0)
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(True)
    return labels


def draw_rings(axes: Axes, centre: Sequence[float], sigma: float, *, dashed: bool) -> None:
    """Level sets of N(centre, σ²I), at σ, 2σ and 3σ."""
    for multiple in RING_MULTIPLES:
        _draw_circle(axes, centre, multiple * sigma, DASHED_RING if dashed else SOLID_RING)


def draw_radius(axes: Axes, centre: Sequence[float], radius: float) -> None:
    """The certified radius as a bold circle."""
    _draw_circle(axes, centre, radius, RADIUS_LINE)


def _draw_circle(axes: Axes, centre: Sequence[float], radius: float, look: dict[str, Any]) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(tuple(centre), radius, fill=False, **look))


def draw_point(axes: Axes, point: Sequence[float], name: str, *, offset: tuple[float, float] = (0, -10)) -> None:
    """A dot with its name next to it."""
    axes.plot(*point, "o", color="black", markersize=4.5, zorder=5)
    draw_label(axes, point, name, offset=offset)


def draw_label(axes: Axes, point: Sequence[float], text: str, *, offset: tuple[float, float] = (0, 0)) -> None:
    """Text at a point, moved by `offset` in points of print, readable on any colour."""
    axes.annotate(
        text,
        tuple(point),
        xytext=offset,
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=8.5,
        zorder=6,
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
    )


def line_legend(figure: Figure, entries: Mapping[str, dict[str, Any]]) -> None:
    """A legend below all panels: what each kind of line or mark stands for."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=text, **look) for text, look in entries.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8.5)

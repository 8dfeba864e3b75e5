"""How a smoothed classifier is evaluated: the regions of a base classifier, noisy samples, votes and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_sigma
from smoothcert.errors import ConfigError
from smoothcert.noise import GaussianNoise, rows_per_block
from smoothcert.records import Bounds, Certificate, ceil_decimal, floor_decimal, radius_text
from smoothcert.report.figures.canvas import DASHED, new_figure, style
from smoothcert.report.figures.plane import (
    DASHED_RING,
    RADIUS_LINE,
    RING_MULTIPLES,
    Labeller,
    answers,
    check_colours,
    draw_label,
    draw_point,
    draw_radius,
    draw_regions,
    draw_rings,
    labeller,
    line_legend,
    pixel_centres,
    region_color,
)
from smoothcert.runs.directory import Run
from smoothcert.stats.procedures import FixedN, question
from smoothcert.streams import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smoothcert.models.classifier import Classifier

_POINT, _SIGMA = (0.47, 0.71), 0.12  # in the toy problem: one class leads clearly, yet all four get votes
_SHOWN_SAMPLES = 250
_SAMPLES = {"linestyle": "", "marker": ".", "markersize": 2.2, "color": "black"}
_CLOSE_BOUNDS = 0.08
_LOWEST_LABELLED_BAR = 0.06  # lower bars have their number above them
_HALF_WIDTH = 3.3  # of the drawn square, in σ: all rings are inside
_LARGEST_NOISE = 7.0  # no sample is further away along an axis, in σ
_BATCH = 1_000  # fixed rather than measured, so that the same command repeats the rounding of every score


def decision_regions(
    _: Sequence[Run],
    *,
    model: Classifier | None = None,
    point: Sequence[float] | None = None,
    sigma: float | None = None,
    n: Sequence[int] = (1_000,),
    alpha: float = 0.001,
    seed: int = 0,
) -> Figure:
    """A base classifier, the level sets of the noise around `point`, and the votes: Cohen et al. 2019, Figure 1.

    Without `model`, a small network is trained on a toy problem. The certificate is that of CERTIFY with a bound on the
    runner-up (`FixedN(runner_up=True)`): with probability at least 1 − alpha, the two bounds in the figure hold and the
    smoothed classifier is constant within the circle (Theorem 1).
    """
    if model is not None and (point is None or sigma is None):
        raise ConfigError("With a model of your own, give `point` and `sigma`.")
    if len(n) != 1:
        raise ConfigError(f"Expected one number of draws for decision-regions, got {len(n)}.")
    x = _check_point(_POINT if point is None else point)
    sigma = check_sigma(_SIGMA if sigma is None else sigma)
    procedure = FixedN(n=n[0], alpha=alpha, runner_up=True)
    network = _toy_network(seed) if model is None else model.fitted((2,)).network
    labels_at = labeller(network)
    declared = None if model is None else model.num_classes
    classes = _count_classes(network, labels_at, x, sigma) if declared is None else declared
    certificate = _certify(network, x, sigma, classes, procedure, seed)
    check_colours(len(certificate.stages[-1].counts))
    with style():
        figure = new_figure(7.6, 3.8)
        plane, bars = figure.subplots(1, 2, width_ratios=(1, 0.9))
        draw_regions(plane, labels_at, x, max(_HALF_WIDTH * sigma, 1.1 * certificate.radius))
        _draw_plane(plane, x, certificate, noisy_samples(certificate, x, procedure, _SHOWN_SAMPLES))
        _draw_votes(bars, certificate)
        entries = {"noisy samples $x + ε$": _SAMPLES, "level sets of $N(x, σ^2 I)$": DASHED_RING}
        if certificate.radius > 0:
            entries["certified radius $R$"] = RADIUS_LINE
        line_legend(figure, entries)
    return figure


def noisy_samples(
    certificate: Certificate, x: npt.NDArray[np.float32], procedure: FixedN, count: int
) -> npt.NDArray[np.float32]:
    """The first of the noisy samples [count, 2] that voted in the certificate's second stage, drawn again."""
    stream = Stream(bytes.fromhex(certificate.key), certificate.input_id, 1, question(procedure))
    samples = np.empty((min(count, procedure.n), x.size), np.float32)
    noise = GaussianNoise(certificate.sigma)
    size = rows_per_block(x.size)
    for block, start in enumerate(range(0, len(samples), size)):
        noise.fill(noise.centre(x), stream, block, samples[start : start + size])
    return samples


def _check_point(point: Sequence[float]) -> npt.NDArray[np.float32]:
    x = np.array(point, np.float32)
    if x.shape != (2,) or not np.isfinite(x).all():
        raise ConfigError(f"Expected `point` to be two finite numbers, got {tuple(point)}.")
    return x


def _toy_network(seed: int) -> Any:
    from smoothcert.report.figures.pinwheel import pinwheel_network

    return pinwheel_network(seed)


def _count_classes(network: Any, labels_at: Labeller, x: npt.NDArray[np.float32], sigma: float) -> int | None:
    """The number of classes of a model that returns labels, wherever noise can reach; None for one with scores."""
    from smoothcert.models.agreement import is_labels

    if not is_labels(answers(network, x[None])):
        return None
    everywhere = pixel_centres(x, _LARGEST_NOISE * sigma).reshape(-1, 2)
    return max(2, int(labels_at(everywhere).max()) + 1)


def _certify(
    network: Any, x: npt.NDArray[np.float32], sigma: float, classes: int | None, procedure: FixedN, seed: int
) -> Certificate:
    from smoothcert.smoothed import Smoothed

    smoothed = Smoothed(
        network,
        sigma,
        classes,
        noise="gaussian",
        input_shape=(2,),
        input_range=None,
        plan="eager",
        batch_size=_BATCH,
        device="cpu",
        seed=seed,
        progress=False,
    )
    return smoothed.certify(x, procedure)


def _draw_plane(
    axes: Axes, x: npt.NDArray[np.float32], certificate: Certificate, samples: npt.NDArray[np.float32]
) -> None:
    """The left panel, over the regions: noisy samples, rings, the point and its certified radius."""
    sigma = certificate.sigma
    axes.plot(*samples.T, alpha=0.45, zorder=2, **_SAMPLES)
    draw_rings(axes, x, sigma, dashed=True)
    for multiple in RING_MULTIPLES:
        name = "σ" if multiple == 1 else f"{multiple}σ"
        draw_label(axes, (x[0], x[1] + multiple * sigma), name)
    if certificate.radius > 0:
        draw_radius(axes, x, certificate.radius)
    draw_point(axes, x, "$x$", offset=(7, -6))
    axes.set_title("base classifier $f$ around $x$")


def _draw_votes(axes: Axes, certificate: Certificate) -> None:
    """The right panel: the share of each class among the votes, with the bounds that the certificate rests on."""
    votes, bounds = certificate.stages[-1], certificate.bounds
    counts = [*votes.counts, votes.invalid] if votes.invalid else list(votes.counts)
    names = [str(label) for label in range(len(votes.counts))] + ["none"]
    colours = [*map(region_color, range(len(votes.counts))), region_color(-1)]
    places = range(len(counts))
    heights = [count / votes.n for count in counts]
    axes.bar(places, heights, color=colours[: len(counts)], edgecolor="0.3", linewidth=0.8, width=0.8)
    for place, height, count in zip(places, heights, counts, strict=True):
        inside = height > _LOWEST_LABELLED_BAR
        axes.annotate(
            f"{count:,}",
            (place, height / 2 if inside else height),
            xytext=(0, 0 if inside else 2),
            textcoords="offset points",
            ha="center",
            va="center" if inside else "bottom",
            fontsize=8,
        )
    axes.set(xticks=list(places), xticklabels=names[: len(counts)], xlabel="class", xlim=(-0.6, len(counts) - 0.4))
    axes.set(ylabel=f"share of {votes.n:,} votes", ylim=(0, 1))
    if bounds.label is not None:
        _draw_bounds(axes, bounds)
    axes.set_title(_claim(certificate))


def _draw_bounds(axes: Axes, bounds: Bounds) -> None:
    """The two bounds as lines across all bars; text goes above a line, or below the lower one of two close lines."""
    lower, upper = floor_decimal(bounds.p_a_lower), ceil_decimal(bounds.p_b_upper)
    separation = bounds.p_a_lower - bounds.p_b_upper
    close = abs(separation) < _CLOSE_BOUNDS
    for height, text, below in (
        (bounds.p_a_lower, rf"class {bounds.label}: at least $\underline{{p_A}}$ = {lower}", close and separation <= 0),
        (bounds.p_b_upper, rf"every other class: at most $\overline{{p_B}}$ = {upper}", close and separation > 0),
    ):
        axes.axhline(height, color="black", linestyle=DASHED, linewidth=1.2)
        axes.annotate(
            text,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
            bbox={"boxstyle": "round,pad=0.05", "facecolor": "white", "alpha": 0.7, "linewidth": 0},
        )


def _claim(certificate: Certificate) -> str:
    """What is claimed, with α, rounded down."""
    if certificate.label is None:
        return f"nothing certified at α = {certificate.alpha:g}"
    radius = radius_text(certificate.radius)
    return f"$g$ = class {certificate.label} within $R$ = {radius}  (α = {certificate.alpha:g})"

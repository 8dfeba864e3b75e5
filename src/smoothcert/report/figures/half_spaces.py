"""Where the radius comes from: the worst-case classifier, the proof of Theorem 1, and linear classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from smoothcert.errors import ConfigError
from smoothcert.records import ceil_decimal, floor_decimal, radius_text
from smoothcert.report.figures.canvas import DASHED, DOTTED, PALETTE, add_grid, new_figure, style
from smoothcert.report.figures.plane import (
    DASHED_RING,
    RADIUS_LINE,
    SOLID_RING,
    Labeller,
    Labels,
    draw_label,
    draw_point,
    draw_radius,
    draw_regions,
    draw_rings,
    labeller,
    line_legend,
    region_color,
)
from smoothcert.runs.directory import Run
from smoothcert.stats.radii import cohen_radius

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smoothcert.worst_cases import LinearClassifier, WorstCase

Floats = npt.NDArray[np.float64]
_ORIGIN, _ALONG = (0.0, 0.0), (1.0, 0.0)  # x, and the direction of δ
_MARGIN = 3.2  # from a centre to the edge of the panel, in σ: all rings are inside
_INSIDE, _OUTSIDE = 0.6, 1.4  # ‖δ‖ in units of R
_WIDE_GAP = 0.05  # between the half-spaces, as a share of the panel: wide enough for a label
_OTHER = 2  # label of the classes that are neither c_A nor c_B


class WavyClassifier:
    """A classifier in the plane with the probabilities p_A and p_B at the origin, its boundaries bent into waves.

    Class 0 lies left of a wave, class 1 right of the same wave further on, and class 2 between them. The offsets of
    the waves solve P(f(ε) = 0) = p_A and P(f(ε) = 1) = p_B for ε ~ N(0, σ²I).
    """

    def __init__(self, p_a: float, p_b: float, sigma: float) -> None:
        self.sigma = sigma
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        self._waves, self._weights = self._wave(sigma * nodes), weights / weights.sum()
        self.below, self.above = self._offset(p_a), self._offset(1 - p_b)

    def _wave(self, across: Floats) -> Floats:
        return 1.1 * self.sigma * np.sin(1.5 * across / self.sigma + 0.9)

    def _left_of(self, offset: float, shift: float) -> float:
        """P(left of the wave at `offset`) for noise around (shift, 0)."""
        return float(self._weights @ ndtr((offset + self._waves - shift) / self.sigma))

    def _offset(self, probability: float) -> float:
        from scipy.optimize import brentq  # slow to import, and only this needs it

        reach = 40 * self.sigma
        return float(brentq(lambda offset: self._left_of(offset, 0.0) - probability, -reach, reach, xtol=1e-14))

    def __call__(self, points: Floats) -> Labels:
        """Labels of points [N, 2]."""
        along = points[:, 0] - self._wave(points[:, 1])
        return np.select([along <= self.below, along >= self.above], [0, 1], default=2)

    def vote_probabilities(self, shift: float) -> Floats:
        """The probabilities of the three classes at (shift, 0)."""
        p_a, p_b = self._left_of(self.below, shift), 1 - self._left_of(self.above, shift)
        return np.array([p_a, p_b, max(0.0, 1 - p_a - p_b)])


def worst_case(_: Sequence[Run], *, p_a: float = 0.9, p_b: float | None = None, sigma: float = 0.5) -> Figure:
    """The worst of all classifiers with probabilities p_A and p_B at x, beside another: Cohen et al. 2019, Figure 3.

    On the right, the vote probabilities at x + δ against ‖δ‖: no classifier with these probabilities at x loses its
    lead before the worst case does, at R. So R is certified (Theorem 1) and cannot be improved upon (Theorem 2).
    """
    p_b = 1 - p_a if p_b is None else p_b
    worst, radius = _worst_case(p_a, p_b, sigma)
    other = WavyClassifier(p_a, p_b, sigma)
    distance = _INSIDE * radius
    with style():
        figure = new_figure(9.4, 4.1)
        bent, straight, curves = figure.subplots(1, 3)
        _draw_shift(bent, other, worst, distance, radius)
        _draw_shift(straight, labeller(worst), worst, distance, radius)
        for axes, name, classifier in ((bent, "some $f$", other), (straight, "worst case $f^*$", worst)):
            moved = floor_decimal(classifier.vote_probabilities(distance)[0], 2)
            axes.set_title(f"{name}\n$P(c_A)$ = {p_a:g} at $x$, {moved} at $x+δ$")
            _name_regions(axes, "$c_A$", "$c_B$")
        _name_gap(straight, worst)
        _draw_decline(curves, worst, other, radius)
        rings = {"$N(x, σ^2 I)$": SOLID_RING, "$N(x+δ, σ^2 I)$": DASHED_RING}
        line_legend(figure, {**rings, f"certified radius $R$ = {radius_text(radius)}": RADIUS_LINE})
    return figure


def proof(_: Sequence[Run], *, p_a: float = 0.8, p_b: float | None = 0.05, sigma: float = 0.5) -> Figure:
    """The half-spaces A and B of Theorem 1's proof, for δ shorter and longer than R: Cohen et al. 2019, Figure 9.

    Below, the same along δ: the densities of X = x + ε and Y = x + δ + ε, with the probabilities of A and B under Y.
    """
    p_b = 1 - p_a if p_b is None else p_b
    worst, radius = _worst_case(p_a, p_b, sigma)
    with style():
        figure = new_figure(6.8, 6.1)
        panels = figure.subplots(2, 2, height_ratios=(2, 1))
        for column, multiple in enumerate((_INSIDE, _OUTSIDE)):
            distance = multiple * radius
            plane, density = panels[:, column]
            _draw_shift(plane, labeller(worst), worst, distance, radius)
            _name_regions(plane, "$A$", "$B$")
            _name_gap(plane, worst)
            _draw_densities(density, worst, distance, plane.get_xlim())
        panels[0, 0].set_title(r"$\|δ\| < R$: $P(Y \in A) > P(Y \in B)$")
        panels[0, 1].set_title(r"$\|δ\| > R$: $P(Y \in A) < P(Y \in B)$")
        panels[1, 0].set_ylabel("density along $δ$")
        circle = f"$R$ = {radius_text(radius)} for $p_A$ = {p_a:g}, $p_B$ = {p_b:g}, σ = {sigma:g}"
        line_legend(figure, {"$X = x+ε$": SOLID_RING, "$Y = x+δ+ε$": DASHED_RING, circle: RADIUS_LINE})
    return figure


def linear(_: Sequence[Run], *, p_a: float = 0.85, sigma: float = 0.5) -> Figure:
    """A linear classifier with probability p_A at x: Cohen et al. 2019, Figures 10 (above) and 11 (below).

    Smoothing leaves it as it is (Proposition 3), Theorem 1 certifies the distance to its boundary (Proposition 4), and
    just beyond that the class changes (Proposition 5).
    """
    from smoothcert.worst_cases import LinearClassifier

    classifier = LinearClassifier([1.0, 1.0], 0.0)
    distance = _certified_radius(1 - p_a, 1 - p_a, sigma)
    x = -distance * classifier.weights / classifier.norm
    radius = cohen_radius(classifier.vote_probability(x, sigma), sigma=sigma)
    with style():
        figure = new_figure(6.4, 7.1)
        (left, right), (touching, beyond) = figure.subplots(2, 2)
        for axes, point in ((left, x), (right, -x)):
            _draw_linear_regions(axes, classifier, _MARGIN * sigma + distance / np.sqrt(2))
            draw_rings(axes, point, sigma, dashed=True)
            draw_point(axes, point, "$x$")
            label = classifier.label(point)
            axes.set_title(f"Proposition 3: $P(f(x+ε) = {label})$ = {p_a:g},\nso $g(x) = f(x) = {label}$")
        for axes in (touching, beyond):
            _draw_linear_regions(axes, classifier, 2.2 * distance)
            draw_radius(axes, x, radius)
            draw_point(axes, x, "$x$")
        _draw_distance(touching, classifier, x, radius)
        _draw_change(beyond, classifier, x, _OUTSIDE * distance)
        rings = {"level sets of $N(x, σ^2 I)$": DASHED_RING}
        line_legend(figure, {**rings, f"certified radius $R$ = {radius_text(radius)}": RADIUS_LINE})
    return figure


def _draw_distance(axes: Axes, classifier: LinearClassifier, x: Floats, radius: float) -> None:
    """An arrow from x to the nearest point of the linear boundary."""
    towards = classifier.nearest_change(x, radius)
    _draw_arrow(axes, x, x + towards)
    draw_label(axes, x + towards / 2, "$R$", offset=(-7, 7))
    axes.set_title("Proposition 4: $R$ is the distance\nto the boundary")


def _draw_change(axes: Axes, classifier: LinearClassifier, x: Floats, length: float) -> None:
    """The perturbation of this length that changes the class of a linear classifier."""
    changed = x + classifier.nearest_change(x, length)
    _draw_arrow(axes, x, changed)
    draw_point(axes, changed, "$x+δ$", offset=(18, 0))
    axes.set_title("Proposition 5: for every $r > R$ some $δ$\nof length $r$ changes the class")


def _worst_case(p_a: float, p_b: float, sigma: float) -> tuple[WorstCase, float]:
    """The worst case at the origin, and Theorem 1's radius."""
    from smoothcert.worst_cases import WorstCase

    return WorstCase(_ORIGIN, _ALONG, p_a, p_b, sigma), _certified_radius(1 - p_a, p_b, sigma)


def _certified_radius(q_a: float, p_b: float, sigma: float) -> float:
    """Theorem 1's radius; ConfigError where there is none to draw."""
    if not 0 < q_a < 1:
        raise ConfigError(f"Expected `p_a` in (0, 1), got {1 - q_a:g}.")
    radius = float(cohen_radius(q_a, p_b, sigma=sigma))
    if radius == 0:
        raise ConfigError("Expected `p_a` > `p_b` (by default 1 − p_a): otherwise there is no radius to draw.")
    return radius


def _draw_shift(axes: Axes, labels_at: Labeller, worst: WorstCase, distance: float, radius: float) -> None:
    """Regions with the noise around x as solid rings, the noise around x + δ as dashed ones, and the radius."""
    sigma, shifted = worst.sigma, (distance, 0.0)
    middle = (distance / 2, 0.0)
    reaches = (_MARGIN * sigma, radius + 0.2 * sigma, worst.above - distance + 0.5 * sigma)
    half_width = distance / 2 + max(reaches)
    draw_regions(axes, lambda points: _blank_other(labels_at(points)), middle, half_width)
    draw_rings(axes, _ORIGIN, sigma, dashed=False)
    draw_rings(axes, shifted, sigma, dashed=True)
    draw_radius(axes, _ORIGIN, radius)
    _draw_arrow(axes, _ORIGIN, shifted)
    draw_point(axes, _ORIGIN, "$x$", offset=(-7, -8))
    draw_point(axes, shifted, "$x+δ$", offset=(10, -10))


def _blank_other(labels: Labels) -> Labels:
    """Leave the classes that are neither c_A nor c_B white, as the paper does."""
    return np.where(labels == _OTHER, -1, labels)


def _name_regions(axes: Axes, left: str, right: str) -> None:
    axes.text(0.06, 0.94, left, transform=axes.transAxes, ha="left", va="top", fontsize=12)
    axes.text(0.94, 0.94, right, transform=axes.transAxes, ha="right", va="top", fontsize=12)


def _name_gap(axes: Axes, worst: WorstCase) -> None:
    """Write between the half-spaces whose it is, if there is room."""
    left, right = axes.get_xlim()
    if worst.above - worst.below > _WIDE_GAP * (right - left):
        text_axes = axes.get_xaxis_transform()  # along δ in data, across in shares of the panel
        middle = (worst.below + worst.above) / 2
        axes.text(middle, 0.02, "other classes", transform=text_axes, rotation=90, ha="center", va="bottom", fontsize=8)


def _draw_arrow(axes: Axes, start: Sequence[float], end: Sequence[float]) -> None:
    axes.annotate("", tuple(end), tuple(start), arrowprops={"arrowstyle": "-|>", "color": "black"}, zorder=4)


def _draw_linear_regions(axes: Axes, classifier: LinearClassifier, half_width: float) -> None:
    draw_regions(axes, labeller(classifier), _ORIGIN, half_width)
    axes.text(0.02, 0.02, "class 0", transform=axes.transAxes, ha="left", va="bottom")
    axes.text(0.98, 0.98, "class 1", transform=axes.transAxes, ha="right", va="top")


def _draw_decline(axes: Axes, worst: WorstCase, other: WavyClassifier, radius: float) -> None:
    """Vote probabilities of both classifiers at x + δ, against the length of δ."""
    distances = np.linspace(0, 2 * radius, 200)
    worst_a, worst_b, _ = np.array([worst.vote_probabilities(shift) for shift in distances]).T
    other_a, _, _ = np.array([other.vote_probabilities(shift) for shift in distances]).T
    add_grid(axes)
    axes.plot(distances, other_a, color=PALETTE[0], linestyle=DASHED, label="$c_A$, some $f$")
    axes.plot(distances, worst_a, color=PALETTE[0], label="$c_A$, worst case $f^*$")
    axes.plot(distances, worst_b, color=PALETTE[1], label="$c_B$, worst case $f^*$")
    axes.plot([radius, radius], [0, 1], color="black", linestyle=DOTTED, linewidth=1.2)
    axes.annotate("$R$", (radius, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xlabel=r"$\|δ\|$", ylabel="vote probability at $x+δ$", xlim=(0, 2 * radius))
    axes.set(ylim=(0, 1.3), yticks=np.linspace(0, 1, 6))  # with room for the legend above the curves
    axes.set_box_aspect(1)
    axes.set_title("no $f$ falls below the worst case,\nwhich loses its lead at $R$")
    axes.legend(loc="upper center", fontsize=8, facecolor="white", framealpha=1, frameon=True, edgecolor="none")


def _draw_densities(axes: Axes, worst: WorstCase, distance: float, limits: tuple[float, float]) -> None:
    """The densities of X and Y along δ, and the probabilities of A and B under Y."""
    before, after = np.linspace(limits[0], worst.below, 300), np.linspace(worst.above, limits[1], 300)
    along = np.linspace(*limits, 600)
    for part, label in ((before, 0), (after, 1)):
        density = _normal_density(part - distance, worst.sigma)
        axes.fill_between(part, density, color=region_color(label), linewidth=0)
    density = _normal_density(along, worst.sigma)
    axes.plot(along, density, color="0.25", linewidth=1.2)
    axes.plot(along, _normal_density(along - distance, worst.sigma), color="0.25", linewidth=1.2, linestyle=DASHED)
    p_a, p_b, _ = worst.vote_probabilities(distance)
    below, above = rf"$P(Y \in A)$ = {floor_decimal(p_a)}", rf"$P(Y \in B)$ = {ceil_decimal(p_b)}"
    axes.text(0.01, 0.98, below, transform=axes.transAxes, ha="left", va="top", fontsize=8.5)
    axes.text(0.99, 0.98, above, transform=axes.transAxes, ha="right", va="top", fontsize=8.5)
    axes.set(xlim=limits, ylim=(0, 1.25 * density.max()), yticks=[])
    axes.set_xticks([0, distance], ["$x$", "$x+δ$"])
    axes.set_box_aspect(0.5)


def _normal_density(z: Floats, sigma: float) -> Floats:
    return np.exp(-0.5 * (z / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))

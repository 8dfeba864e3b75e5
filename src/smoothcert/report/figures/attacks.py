"""How far an attack has to go: its success against the radius, in units of what was certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError
from smoothcert.report.figures.canvas import DASHED, DOTTED, RADIUS, check_limit, line_style, new_axes, style
from smoothcert.report.figures.evidence import check_norms, claims_of, names_of
from smoothcert.report.naming import lead_text
from smoothcert.runs.attack_summary import Outcome, outcomes
from smoothcert.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
_FAR = 3.0  # certified radii: what is far beyond says something about tiny radii only


def attack_success(
    runs: Sequence[Run],
    *,
    norms: Sequence[npt.ArrayLike] | None = None,
    names: Sequence[str] | None = None,
    limit: float | None = None,
) -> Figure:
    """The share of inputs for which an attack found a perturbation within each radius.

    Runs of `smoothcert attack` are shown as they are: success of each attack within the multiples of the certified
    radius that were tried. With other runs, one list of norms for each: of the inputs that are classified correctly and
    certified, and in units of each input's certified radius R, as in Cohen et al. 2019, Section 4. Within R no attack
    can succeed, except where a certificate is false. Without runs: of the inputs that the classifier got right, and in
    units of the input.
    """
    if norms is None:
        return _tried_factors(runs, names)
    attacked = _attacked(runs, [check_norms(one) for one in norms], names)
    far = check_limit(limit) or (_FAR if runs else _largest([sizes for _, sizes in attacked]))
    with style():
        figure, axes = new_axes()
        for i, (name, sizes) in enumerate(attacked):
            at, success = success_curve(sizes, far)
            label = f"{name}, {len(sizes):,} inputs"
            axes.plot(at, 100 * success, drawstyle="steps-post", label=label, **line_style(i))
        if runs:
            axes.axvline(1.0, color="0.35", linewidth=1.0, linestyle=DASHED, label="certified radius R")
        axes.set(xlabel="perturbation / certified radius R" if runs else RADIUS, ylabel="attack success (%)")
        axes.set(xlim=(0, far), ylim=(0, 101))
        axes.legend(loc="lower right")  # success rises: there is room
    return figure


def _tried_factors(runs: Sequence[Run], names: Sequence[str] | None) -> Figure:
    """Success of each attack against the multiple of the certified radius, with intervals of 95 %."""
    if not runs:
        raise ConfigError("Expected runs of `smoothcert attack`, or norms of perturbations: --norms.")
    titles = names_of(runs, names) if len(runs) > 1 else [lead_text(runs[0])]
    with style():
        figure, axes = new_axes()
        place = 0
        for title, run in zip(titles, runs, strict=True):
            found = outcomes(run)
            for attack in dict.fromkeys(one.attack for one in found):
                own = sorted(
                    (one for one in found if one.attack == attack and one.attempts), key=lambda one: one.factor
                )
                label = ", ".join(filter(None, (title, attack)))
                if own:
                    _draw_outcomes(axes, own, label, place)
                place += 1
        axes.axvline(1.0, color="0.35", linewidth=1.0, linestyle=DASHED, label="certified radius R")
        axes.set(xlabel="radius of the attack / certified radius R", ylabel="inputs (%)", ylim=(0, 101), xlim=(0, None))
        axes.legend(loc="upper left")
    return figure


def _draw_outcomes(axes: Axes, found: Sequence[Outcome], label: str, place: int) -> None:
    at = np.array([one.factor for one in found]) + 0.012 * place  # beside each other where they are equal
    shares = np.array([one.successes / one.attempts for one in found])
    low, high = np.array([one.interval for one in found]).T
    look = line_style(place)
    away = 100 * np.stack([shares - low, high - shares]).clip(0)
    error = {"yerr": away, "capsize": 2.5, "elinewidth": 0.9}
    axes.errorbar(at, 100 * shares, marker="o", markersize=4, label=f"{label}: another class", **error, **look)
    abstained = [100 * one.abstentions / one.attempts for one in found]
    if any(abstained):
        thin = {**look, "linestyle": DOTTED, "linewidth": 1.0}
        axes.plot(at, abstained, marker="x", markersize=4, label=f"{label}: abstained", **thin)


def _attacked(runs: Sequence[Run], norms: Sequence[Floats], names: Sequence[str] | None) -> list[tuple[str, Floats]]:
    """What was attacked by name, and the sizes of the perturbations in the units of the figure."""
    count = len(runs) or len(norms)
    for what, given in (("list of norms", norms), ("name", names)):
        if given is not None and len(given) != count:
            raise ConfigError(f"Expected a {what} for each of the {count} curves, got {len(given)}.")
    if runs:
        sizes = [relative_norms(run, one) for run, one in zip(runs, norms, strict=True)]
        return list(zip(names_of(runs, names), sizes, strict=True))
    known = names or [f"attack {number}" for number in range(1, count + 1)]
    return [(name, one[one > 0]) for name, one in zip(known, norms, strict=True)]


def _largest(sizes: Sequence[Floats]) -> float:
    """The largest perturbation that was found; 1 if none was."""
    return max((float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes), default=0.0) or 1.0


def relative_norms(run: Run, norms: Floats) -> Floats:
    """The norms in units of the certified radius, for inputs that are classified correctly and certified."""
    claims = claims_of(run)
    if len(norms) != len(claims.radii):
        raise ConfigError(f"Expected norms for each of the {len(claims.radii)} inputs of {run.path}, got {len(norms)}.")
    certified = claims.counted & (claims.radii > 0)
    if not certified.any():
        raise ConfigError(f"No input of {run.path} is certified: there is no radius to measure attacks by.")
    return norms[certified] / claims.radii[certified]


def success_curve(sizes: Floats, far: float) -> tuple[Floats, Floats]:
    """The corners (radius, share of inputs whose perturbation is at most as large), from radius 0 to `far` at least."""
    corners = np.unique(sizes[np.isfinite(sizes)])
    at = np.concatenate([[0.0], corners, [max(far, corners.max(initial=0.0))]])
    return at, np.searchsorted(np.sort(sizes), at, side="right") / max(len(sizes), 1)

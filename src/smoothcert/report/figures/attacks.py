"""How far an attack has to go: its success against the radius, in units of what was certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError
from smoothcert.report.figures.canvas import DASHED, RADIUS, check_limit, line_style, new_axes, style
from smoothcert.report.figures.evidence import check_norms, claims_of, names_of
from smoothcert.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
_FAR = 3.0  # certified radii: what is far beyond says something about tiny radii only


def attack_success(
    runs: Sequence[Run],
    *,
    norms: Sequence[npt.ArrayLike],
    names: Sequence[str] | None = None,
    limit: float | None = None,
) -> Figure:
    """The share of inputs for which an attack found a perturbation within each radius.

    With runs, one list of norms for each: of the inputs that are classified correctly and certified, and in units of
    each input's certified radius R, as in Cohen et al. 2019, Section 4. Within R no attack can succeed, except where a
    certificate is false. Without runs: of the inputs that the classifier got right, and in units of the input.
    """
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

"""From certificates to a test set's certified accuracy and average radius."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smoothcert.errors import InputError


def are_correct(labels: Sequence[int | None], truths: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Where the claimed class is the true one; an abstention (None) is never correct, whatever the truth says.

    >>> are_correct([3, None, 5], [3, 0, 4]).tolist()
    [True, False, False]
    """
    true = np.asarray(truths)
    if true.shape != (len(labels),):
        raise InputError(f"Expected one true label per claim, {len(labels)} in all, got shape {true.shape}.")
    return np.array([label is not None and label == truth for label, truth in zip(labels, true, strict=True)], bool)


def _claims(radii: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    radius, right = np.asarray(radii, np.float64), np.asarray(correct)
    if radius.ndim != 1 or radius.size == 0:
        raise InputError(f"Expected `radii` to be a list of at least one number, got shape {radius.shape}.")
    if right.shape != radius.shape or right.dtype != np.bool_:
        raise InputError(f"Expected `correct` to be {radius.size} booleans, got {right.dtype} of shape {right.shape}.")
    if not np.all(radius >= 0):  # written so that NaN is refused
        raise InputError(f"Expected `radii` >= 0 (0 where nothing is claimed), got {radius[~(radius >= 0)][0]}.")
    return radius, right


def certified_accuracy(
    radii: npt.ArrayLike, correct: npt.ArrayLike, at: npt.ArrayLike
) -> float | npt.NDArray[np.float64]:
    """The fraction of inputs that are classified correctly and certified within at least the radius `at`.

    "Approximate certified test accuracy": Cohen et al. 2019, Section 4. An abstention has radius 0 and never
    counts, so at radius 0 this is the fraction that is certified and correct at all. `at` may be an array.

    >>> certified_accuracy([0.5, 0.0, 1.0, 1.0], [True, True, True, False], at=[0.0, 0.5, 0.75]).tolist()
    [0.5, 0.5, 0.25]
    """
    radius, right = _claims(radii, correct)
    wanted = np.asarray(at, np.float64)
    if not np.all(wanted >= 0):
        raise InputError(f"Expected `at` to be radii >= 0, got {at!r}.")
    claimed = np.sort(radius[right & (radius > 0)])
    reached = claimed.size - np.searchsorted(claimed, wanted, side="left")
    fraction = np.asarray(reached / radius.size, np.float64)
    return fraction if fraction.ndim else float(fraction)


def accuracy_curve(
    radii: npt.ArrayLike, correct: npt.ArrayLike, tested: Sequence[float] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The corners (radius, accuracy) of the certified-accuracy curve, from radius 0 on.

    The accuracy of a corner holds from the corner before it, exclusive, up to its own radius, inclusive. Infinite
    radii, of inputs on which an attack found nothing, keep the curve above 0. Where only the radii in `tested` were
    decided, these are the corners: in between, the accuracy is at least that of the next one, and the curve ends at
    the last one, beyond which nothing is known.
    """
    radius, right = _claims(radii, correct)
    if tested is not None:
        corners = np.array(tested, np.float64)
        at = corners if corners[0] == 0 else np.concatenate([[0.0], corners])
        accuracy = np.asarray(certified_accuracy(radius, right, corners))
        return at, accuracy if len(at) == len(corners) else np.concatenate([accuracy[:1], accuracy])
    corners = np.unique(radius[right & (radius > 0) & np.isfinite(radius)])
    last = corners[-1] if corners.size else 0.0
    at = np.concatenate([[0.0], corners, [last]])
    accuracy = np.asarray(certified_accuracy(radius, right, at))
    accuracy[-1] = np.mean(right & np.isinf(radius))
    return at, accuracy


def average_certified_radius(radii: npt.ArrayLike, correct: npt.ArrayLike) -> float:
    """The mean over all inputs of the radius, where a wrong or missing claim counts as 0.

    It is the area under the certified-accuracy curve.

    >>> average_certified_radius([0.5, 0.0, 1.0, 1.0], [True, False, True, False])
    0.375
    """
    radius, right = _claims(radii, correct)
    return float(np.mean(np.where(right, radius, 0.0)))


def _scaled(fraction: float, digits: int) -> float:
    if not 0 <= fraction <= 1:
        raise InputError(f"Expected a fraction in [0, 1], got {fraction!r}.")
    return fraction * 10.0 ** (digits + 2)


def floor_percent(fraction: float, digits: int = 1) -> str:
    """Print an accuracy in percent, rounded down: a printed claim never exceeds the computed one.

    >>> floor_percent(0.29), floor_percent(2 / 3)
    ('29.0', '66.6')
    """
    # 29/100·1000 is a hair below 290 in floating point; fractions of fewer than a thousand million inputs that are
    # truly below a step are further away from it than this.
    steps = math.floor(_scaled(fraction, digits) * (1 + 1e-14))
    return f"{steps / 10**digits:.{digits}f}"


def ceil_percent(fraction: float, digits: int = 1) -> str:
    """Print a fraction of inputs in percent, rounded up, for what is itself an upper bound.

    >>> ceil_percent(0.29), ceil_percent(2 / 3)
    ('29.0', '66.7')
    """
    steps = math.ceil(_scaled(fraction, digits) * (1 - 1e-14))
    return f"{steps / 10**digits:.{digits}f}"

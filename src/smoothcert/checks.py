"""Checks of settings; every one raises ConfigError in the same words."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from difflib import get_close_matches

from smoothcert.errors import ConfigError

MAX_DRAWS = 2**53  # the largest range in which float64 still counts one by one


def _real(name: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"Expected `{name}` {expected}, got {value!r}.")
    return float(value)


def check_sigma(sigma: object) -> float:
    """Return `sigma` as a float if it is a noise level: finite and above 0."""
    expected = "to be a finite number > 0 (in units of pixels in [0, 1])"
    value = _real("sigma", sigma, expected)
    if not (0 < value < math.inf):
        raise ConfigError(f"Expected `sigma` {expected}, got {sigma!r}.")
    return value


def check_alpha(alpha: object) -> float:
    """Return `alpha` as a float if it is a failure probability a guarantee can be stated for."""
    expected = "in (0, 0.5)"
    value = _real("alpha", alpha, expected)
    if not (0 < value < 0.5):
        raise ConfigError(f"Expected `alpha` {expected}, got {alpha!r}.")
    return value


def check_margin(margin: object) -> float:
    """Return `margin` as a float if one probability can lead another by that much and a little more."""
    expected = "in [0, 1)"
    value = _real("margin", margin, expected)
    if not (0 <= value < 1):
        raise ConfigError(f"Expected `margin` {expected}, got {margin!r}.")
    return value


def check_count(name: str, value: object, *, least: int = 1, most: int = MAX_DRAWS) -> int:
    """Return `value` as an int if it is a whole number from `least` to `most`."""
    whole = None if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)
    if whole is None or not least <= whole <= most:
        top = "2^53" if most == MAX_DRAWS else str(most)
        raise ConfigError(f"Expected `{name}` to be a whole number from {least} to {top}, got {value!r}.")
    return whole


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else say which is nearest."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"Expected `{name}` to be one of {', '.join(known)}, got {value!r}.{hint}")
    return value

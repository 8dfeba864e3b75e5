"""Round numbers for radii: those that the axis marks and the tables have, and the one that the page opens with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smoothcert.report.page.runs import Shown
from smoothcert.runs.scope import is_decided
from smoothcert.runs.summary import default_radii

_STEPS = (1, 2, 2.5, 5, 10)
_MOST_RADII = 10


def axis(runs: Sequence[Shown]) -> tuple[float, list[float]]:
    """Where the axis of radii ends, and the radii marked on it.

    >>> axis([])
    (1.0, [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    largest = max((_reach(shown) for shown in runs), default=1.0)
    magnitude = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(factor * magnitude for factor in _STEPS if factor * magnitude * 5 > largest)
    count = max(1, math.ceil(round(largest / step, 9)))
    marks = [round(place * step, 12) for place in range(count + 1)]
    return marks[-1], marks


def _reach(shown: Shown) -> float:
    """The largest radius that counts or was tested, and something to look at where there is none."""
    largest = float(shown.radii[shown.counted].max(initial=0.0))
    return max(largest, *(shown.tested or ()), shown.run.sigma / 2)


def slider_step(end: float) -> float:
    """The step of the slider: a power of ten, a hundred to a thousand of them to the axis."""
    return round(10.0 ** (math.floor(math.log10(end) + 1e-9) - 2), 12)


def table_radii(runs: Sequence[Shown]) -> list[float]:
    """The radii of a table: the runs' own, thinned out where they are many; those of the axis where runs differ."""
    certifying = [shown for shown in runs if shown.certifies]
    lists = {default_radii(shown.run) for shown in certifying}
    given = {radius for shown in certifying for radius in shown.tested or ()}
    radii = sorted(given or (lists.pop() if len(lists) == 1 else axis(certifying)[1]))
    step = max(1, -(-len(radii) // _MOST_RADII))
    return radii[::step]


def headline_radius(runs: Sequence[Shown]) -> float:
    """The radius that the page opens with: of the tables', the largest up to the smallest noise level, but not 0.

    It is one that every run decides, if there is one. It depends on noise levels, tested radii and scale alone, not on
    the shares: nobody can choose it to look well.
    """
    certifying = [shown for shown in runs if shown.certifies]
    smallest = min((shown.run.sigma for shown in certifying), default=0.0)
    positive = [radius for radius in table_radii(runs) if radius > 0]
    common = [radius for radius in positive if all(is_decided(shown.run, radius) for shown in certifying)]
    positive = common or positive
    return max([radius for radius in positive if radius <= smallest] or positive[:1], default=0.0)

"""A radius per input, with as many draws as that radius is worth: plan on a pilot, then certify on fresh draws."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from smoothcert.checks import check_alpha, check_count, check_margin
from smoothcert.records import Bounds, Votes
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.grid import effort_value
from smoothcert.stats.procedures import check_enough_draws, fixed_bounds
from smoothcert.stats.radii import margin_radius

PILOTS = (100, 1_000)
EFFORTS = {"quick": 3.05e-6, "balanced": 2e-6, "full": 2e-7}
"""The gain in radius, in units of sigma, that one more draw must promise, in words.

Chosen on votes sampled from the paper's released CIFAR-10 networks (github.com/FireShadow05/accelerated_smoothing); the
guarantee does not depend on them.
"""

_HOPE = 0.98  # the quantile of the posterior that has to be hopeless before an input is given up
_CANDIDATES = 60


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a plan settles before the draws that count: how many there are, and whether the rival is bounded too."""

    n: int
    runner_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Plan, then certify: a pilot tells how many draws are worth it, and fresh ones give the radius.

    With probability at least 1 − alpha, the returned bounds hold: the class, the number of draws and the kind of bound
    are settled before the draws that the bound rests on, so the argument for the paper's CERTIFY applies as it stands.

    Args:
        alpha: the failure probability per input.
        n_max: the most draws for the bound; the pilots of 100 and 1,000 come on top.
        rival: bound the strongest rival as well (`FixedN`'s runner_up) where the pilot finds that better.
        effort: "quick", "balanced" or "full", or the radius, in units of sigma, that one more draw must promise.
        margin: certify the radius within which the class leads every other class by at least this much in probability
            (`margin_radius`). Plans are made for that radius.
    """

    alpha: float = 0.001
    n_max: int = 100_000
    rival: bool = True
    effort: str | float = "balanced"
    margin: float = 0.0

    def __post_init__(self) -> None:
        check_count("n_max", self.n_max)
        check_alpha(self.alpha)
        check_margin(self.margin)
        check_enough_draws(self.n_max, self.alpha, margin=self.margin)
        effort_value(self.effort, EFFORTS)

    def __call__(self) -> Generator[int, Votes, Bounds]:
        """Ask for the pilots and, if there is hope, for the draws that count."""
        pilot = yield PILOTS[0]
        label = pilot.leader
        if label is None or self._plan(pilot, label, hope=_HOPE).n == 0:
            return Bounds(None, reason="futile")
        pilot = pilot + (yield PILOTS[1])
        label = pilot.leader
        if label is None or self._plan(pilot, label, hope=_HOPE).n == 0:
            return Bounds(None, reason="futile")
        # Half the posterior lies on either side: the plan for the likely case, and never for nothing.
        choice = self._plan(pilot, label, hope=0.5)
        if choice.n == 0:
            choice = self._plan(pilot, label, hope=_HOPE)
        votes = yield choice.n
        return fixed_bounds(votes, label, self.alpha, runner_up=choice.runner_up, margin=self.margin)

    def _plan(self, pilot: Votes, label: int, *, hope: float) -> _Choice:
        """The number of draws and kind of bound with the best promise, were p_A at this quantile of its posterior."""
        counts = self._candidates()
        p_a = float(betaincinv(pilot.counts[label] + 0.5, pilot.n - pilot.counts[label] + 0.5, hope))
        p_b = min((pilot.rival(label) + 0.5) / (pilot.n + 1), 1 - p_a)
        price = effort_value(self.effort, EFFORTS)
        best, choice = 0.0, _Choice(0, runner_up=False)
        for runner_up in (False, True) if self.rival else (False,):
            depths = _promise(p_a, p_b, counts, self.alpha, runner_up=runner_up, margin=self.margin)
            worth = depths - price * counts
            top = int(worth.argmax())
            if worth[top] > best:
                best, choice = float(worth[top]), _Choice(int(counts[top]), runner_up)
        return choice

    def _candidates(self) -> npt.NDArray[np.int64]:
        low = min(100, self.n_max)
        return np.unique(np.geomspace(low, self.n_max, _CANDIDATES).round().astype(np.int64))


def _promise(
    p_a: float, p_b: float, n: npt.NDArray[np.int64], alpha: float, *, runner_up: bool, margin: float
) -> npt.NDArray[np.float64]:
    """The depth (radius/σ) that n draws should certify if their votes fell as p_a and p_b say; 0 for none."""
    level = alpha / 2 if runner_up else alpha
    failures = np.minimum(np.ceil((1 - p_a) * n).astype(np.int64), n)
    q = np.asarray(clopper_pearson_upper(failures, n, level))
    p = (
        np.minimum(np.asarray(clopper_pearson_upper(np.ceil(p_b * n).astype(np.int64), n, level)), q)
        if runner_up
        else q
    )
    depth = np.asarray(margin_radius(q, p, sigma=1.0, margin=margin)) if margin else -(ndtri(q) + ndtri(p)) / 2
    return np.where(np.isfinite(depth) & (depth > 0), depth, -math.inf)

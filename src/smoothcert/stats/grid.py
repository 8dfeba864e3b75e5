"""Certification at a grid of radii with few draws: exact group-sequential tests, one per radius.

The claim at radius r = σz is that ½(Φ⁻¹(p_A) − Φ⁻¹(p_B)) ≥ z for every rival B; with a margin m it is that
Φ(Φ⁻¹(p_A) − z) − Φ(Φ⁻¹(p_B) + z) ≥ m, which is the same for m = 0. Each test counts draws as successes or failures such
that, were the claim false, failures would have at least a known probability q:

- one-sided: votes for A succeed. If the claim is false, p_A ≤ Φ(z + d) with d = Φ⁻¹((1 + m)/2), so q = Φ(−z − d).
- shared, with weight s ≥ 1: votes for A succeed, votes for the strongest rival fail, and of the rest a share
  s/(1+s) succeeds, rounded down. The false claim's curve p_A = Φ(z + Φ⁻¹(m + Φ(Φ⁻¹(p_B) + z))) is concave in p_B, so it
  lies below its tangent of slope s, p_A − s·p_B ≤ c; and if a coin with that share decided each vote of the rest,
  failures would be independent with probability q_s = [Φ(−z − w) + s·Φ(u − z)]/(1 + s) or more, where Φ(w) = m + Φ(u)
  and u + w = −ln(s)/z. Taking the rounded down share instead of the coin at most doubles the chance to accept: at the
  moment of accepting, the coin's count is at least as large with probability 1/2 or more. So this test is run at
  alpha/2.

docs/theory.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from scipy.special import ndtr, ndtri

from smoothcert.checks import check_alpha, check_choice, check_count, check_margin, check_sigma
from smoothcert.errors import ConfigError, InputError
from smoothcert.records import Bounds, Votes
from smoothcert.stats.boundaries import FIRST_LOOK, Boundary, look_schedule
from smoothcert.stats.boundary_cache import boundary

PILOT = FIRST_LOOK  # so that the first look's rule for giving up applies to the pilot too
EFFORTS = {"quick": 3.5e5, "balanced": 1e6, "full": 1e7}
"""How many draws one more certified radius is worth, in words."""

WEIGHTS = (1, 2, 4, 8, 16)
"""The weights s of the shared tests to choose from."""

_STEP = 1e-12


@lru_cache(maxsize=4096)
def failure_probability(z: float, weight: int, margin: float = 0.0) -> float:
    """The least probability of failure if the claim at depth z is false; weight 0 is the one-sided test."""
    if weight <= 1:
        return float(ndtr(-z - margin_depth(margin)))
    if z == 0:  # the curve is a line of slope 1; a tangent of any other slope touches it at p_B = 0
        return (1 - margin) / (1 + weight)
    u, w = _touching_point(math.log(weight) / z, margin)
    return float((ndtr(-z - w) + weight * ndtr(u - z)) / (1 + weight))


def margin_depth(margin: float) -> float:
    """The depth Φ⁻¹((1 + margin)/2) at which one of two classes leads by the margin."""
    return -float(ndtri((1 - margin) / 2))


def _touching_point(total: float, margin: float) -> tuple[float, float]:
    """The u and w with u + w = −total and Φ(w) = margin + Φ(u), for a total above 0.

    An error in u changes the probability of failure in second order only, since it is least there.
    """
    if margin == 0:
        return -total / 2, -total / 2

    def above(u: float) -> float:
        # For total > 0, Φ(u) is below (1 − margin)/2, so the difference loses no digits.
        return -float(ndtri((1 - margin) - ndtr(u)))

    # u + w grows with u; it is 0 at the upper end and, as w grows too, at most −total at the lower one.
    high = -margin_depth(margin)
    low = high - total
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if middle + above(middle) < -total else (low, middle)
    return low, above(low)


@dataclass(frozen=True, slots=True)
class RadiusTest:
    """The test of one radius: how draws are counted, and the boundary that failures are held against."""

    weight: int
    boundary: Boundary

    def failures(self, votes: Votes, label: int) -> int:
        """Draws that count as failures; the rest's share of successes is rounded down."""
        first = votes.counts[label]
        if self.weight == 0:
            return votes.n - first
        rest = votes.n - first - votes.rival(label)
        return votes.n - first - rest * self.weight // (1 + self.weight)


def tested_depth(z: float) -> float:
    """The depth that is tested where z is asked for: a hair more, so that rounding never falls short of a radius."""
    return z * (1 + _STEP) + _STEP


def effort_value(effort: str | float, words: Mapping[str, float]) -> float:
    """What an effort in words or as a number stands for."""
    if isinstance(effort, str):
        return words[check_choice("effort", effort, words)]
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < math.inf:
        raise ConfigError(f"Expected `effort` to be one of {', '.join(words)} or a number > 0, got {effort!r}.")
    return float(effort)


def _patience_factor(z: float) -> float:
    """How much more patience a depth needs than others to lose no more inputs.

    Tuned on votes sampled from the paper's released CIFAR-10 networks (github.com/FireShadow05/accelerated_smoothing),
    as were `EFFORTS`; the guarantee does not depend on it.

    Far out, a few failures early on say little yet. At radius 0, many inputs lie so near the tie that they could use up
    any number of draws.
    """
    return (0.5 if z < 0.25 else 1.0) * (1 + 5 * min(max((z - 1.5) / 1.5, 0.0), 1.0))


def make_test(
    z: float, weight: int, alpha: float, looks: tuple[int, ...], patience: float, margin: float = 0.0
) -> RadiusTest:
    """The test at depth z; alpha is halved for the shared ones."""
    level = alpha if weight == 0 else alpha / 2
    z = tested_depth(z)
    patience *= _patience_factor(z + margin_depth(margin))
    # A smaller q makes the claim stronger: this covers the rounding of q itself. Where q is 0 in floating point, 1e-300
    # is as far beyond the reach of any number of draws.
    q = max(failure_probability(z, weight, margin) * (1 - _STEP), 1e-300)
    return RadiusTest(weight, boundary(q, level, looks, patience))


def choose_weight(z: float, votes: Votes, label: int, margin: float = 0.0) -> int:
    """The weight whose test should need the fewest draws, judged by a pilot's votes."""
    n = votes.n + 1
    p_a = (votes.counts[label] + 0.5) / n
    p_b = min((votes.rival(label) + 0.5) / n, 1 - p_a)

    def score(weight: int) -> float:
        share = weight / (1 + weight)
        gain, loss = 1 - share, share  # of a vote for A and for B, against one of the rest
        mean = p_a * gain - p_b * loss
        spread = math.sqrt(max(p_a * gain**2 + p_b * loss**2 - mean**2, 1e-4))
        # Levels alpha and alpha/2 lie about 3.1 and 3.3 standard deviations out.
        return (mean + share - 1 + failure_probability(z, weight, margin)) / spread / (3.3 if weight else 3.1)

    return max((0, 1) if z == 0 else (0, *WEIGHTS), key=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Certify at a grid of radii: which of them hold is decided with as few draws as each input needs.

    With probability at least 1 − alpha, no radius is claimed that is not certified in truth. The tests' boundaries
    are exact, one false radius at most has to be reckoned with (a radius counts only with all smaller ones), and
    giving up makes no claim.

    Args:
        radii: the radii to decide, in the units of the input.
        sigma: the noise's standard deviation, in the same units.
        alpha: the failure probability per input, for all radii and looks together.
        n_max: the most draws to spend on the tests; a pilot of 100 comes on top unless the label is known and
            `rival` is off.
        label: the class to test, where it is known (to evaluate a test set); by default the pilot's leader.
        rival: use the strongest rival's votes as well, radius by radius where the pilot finds it worth its price.
        effort: "quick", "balanced" or "full", or how many draws one more certified radius is worth.
        margin: a radius holds if, within it, the class leads every other class by at least this much in probability.
    """

    radii: tuple[float, ...]
    sigma: float
    alpha: float = 0.001
    n_max: int = 100_000
    label: int | None = None
    rival: bool = True
    effort: str | float = "balanced"
    margin: float = 0.0

    def __post_init__(self) -> None:
        # Plain Python numbers from here on, whatever kind came: they are written to files and keep float64's digits.
        settings = {
            "radii": _check_radii(self.radii),
            "sigma": check_sigma(self.sigma),
            "alpha": check_alpha(self.alpha),
            "margin": check_margin(self.margin),
        }
        settings["n_max"] = check_count("n_max", self.n_max, least=FIRST_LOOK)
        if self.label is not None:
            settings["label"] = check_count("label", self.label, least=0)
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        effort_value(self.effort, EFFORTS)

    def __call__(self) -> Generator[int, Votes, Bounds]:
        """Ask for a pilot if one is needed, then look by look until every radius is decided."""
        label, weights, pilot = self.label, [0] * len(self.radii), None
        if self.rival or label is None:
            pilot = yield PILOT
            label = pilot.leader if label is None else label
            if label is None:
                return Bounds(None, reason="futile")
            _check_class(label, pilot)
            if self.rival:
                weights = [choose_weight(radius / self.sigma, pilot, label, self.margin) for radius in self.radii]
        looks, patience = look_schedule(self.n_max), effort_value(self.effort, EFFORTS)
        tests = [
            make_test(radius / self.sigma, weight, self.alpha, looks, patience, self.margin)
            for radius, weight in zip(self.radii, weights, strict=True)
        ]
        accepted = [False] * len(tests)
        if pilot is not None and _undecided(tests, pilot, label, 0, accepted) == 0:
            return Bounds(None, reason="futile")
        votes = Votes((0,) * len(pilot.counts)) if pilot is not None else None
        for look, n in enumerate(looks):
            fresh = yield n - (votes.n if votes is not None else 0)
            votes = fresh if votes is None else votes + fresh
            _check_class(label, votes)
            for i, test in enumerate(tests):
                accepted[i] |= test.failures(votes, label) <= test.boundary.accept[look]
            if _undecided(tests, votes, label, look, accepted) == 0:
                break
        return self._conclude(label, accepted, stopped_early=n < self.n_max)

    def _conclude(self, label: int, accepted: list[bool], *, stopped_early: bool) -> Bounds:
        claimed = accepted.index(False) if False in accepted else len(accepted)
        reason = "claimed" if claimed == len(accepted) else "futile" if stopped_early else "budget"
        if claimed == 0:
            return Bounds(None, reason=reason)
        return Bounds(label, separation=tested_depth(self.radii[claimed - 1] / self.sigma), reason=reason)


def _check_radii(radii: object) -> tuple[float, ...]:
    try:
        values = tuple(float(radius) for radius in radii)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        values = ()
    bounds = (-math.inf, *values, math.inf)
    if not values or not values[0] >= 0 or not all(a < b for a, b in pairwise(bounds)):
        raise ConfigError(f"Expected `radii` to be finite, growing numbers >= 0, got {radii!r}.")
    return values


def _check_class(label: int, votes: Votes) -> None:
    if label >= len(votes.counts):
        raise InputError(f"Expected a label from 0 to {len(votes.counts) - 1}, got {label}.")


def _undecided(tests: list[RadiusTest], votes: Votes, label: int, look: int, accepted: list[bool]) -> int:
    """How many radii may still be claimed: below the first one that is given up, and not accepted yet."""
    count = 0
    for test, done in zip(tests, accepted, strict=True):
        if not done and test.failures(votes, label) >= test.boundary.give_up[look]:
            break
        count += not done
    return count

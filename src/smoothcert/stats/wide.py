"""Draws from a wider noise than the one that smooths: larger radii from as many draws, for inputs of few values."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from scipy.special import betaincinv, ndtr, ndtri

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Votes
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.planned import Planned, Settled
from smoothcert.stats.procedures import Draws, fixed_bounds

TRIAL, FAR = 1_000, 1.4  # draws of a trial, and how wide they are: wide enough for wrong answers to show
MOST_VALUES = 10_000  # of an input, beyond which less than a thousandth is gained
LEAST_WIDTH = 1.0001
_SLACK = 1e-9  # many times the error of the probabilities below, which is at most 1e-12 up to the next number
_FARTHEST = 3e4  # the centre of a ball: beyond, SciPy's non-central χ² is wrong in the seventh digit
_WIDENING = 0.8  # of what is best for a unanimous vote: as good for that within a tenth, and kinder to others


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """`Planned`, with draws from a noise `width` times as wide as the one that smooths where that promises more.

    With probability at least 1 − alpha, what is returned holds. Where the pilots vote for one class to a vote, a trial
    with a noise wider still shows how far wrong answers are, and if they are far, the draws that count are from the
    wider noise. Their bounds are on probabilities under it, and `wide_depth` goes from these to a radius of the
    classifier as smoothed with σ, whatever the base classifier, if it is known of how many values of an input the base
    classifier's answer is a function. Elsewhere it is Planned. Which of the two, like all else, is settled before the
    draws that count.

    A unanimous vote certifies more so: by 0.4 % for 784 values and 100,000 draws, by 5 % for 64, by 18 % for 20.

    Args:
        alpha: the failure probability per input.
        n_max: the most draws for the bound; the pilots of 100 and 1,000 come on top.
        rival: bound the strongest rival as well where the pilot finds that better.
        effort, randomized: as for `Planned`.
        dimension: how many values of an input decide the answer; whoever drives the procedure settles it.
        width: standard deviation of the draws over σ; by default a good one for unanimous votes.
    """

    alpha: float = 0.001
    n_max: int = 100_000
    rival: bool = True
    effort: str | float = "balanced"
    randomized: bool = False
    dimension: int | None = None
    width: float | None = None

    def __post_init__(self) -> None:
        self._planned()
        if self.dimension is not None:
            _check_dimension(self.dimension)
        if self.width is not None and not LEAST_WIDTH <= self.width <= 10:
            raise ConfigError(f"Expected `width` in [{LEAST_WIDTH}, 10], got {self.width!r}.")

    def settled(self, dimension: int) -> Wide:
        """This procedure for answers that depend on `dimension` values, with its width.

        ConfigError if it was made for fewer: its claims would be false.
        """
        if self.dimension is not None and self.dimension < dimension:
            raise ConfigError(
                f"Expected `dimension` to be at least {dimension}, of so many values the model's answer is a function, "
                f"got {self.dimension}."
            )
        dimension = self.dimension or _check_dimension(dimension)
        return replace(self, dimension=dimension, width=self.width or good_width(dimension, self.n_max, self.alpha))

    def __call__(self) -> Generator[int, Votes, Bounds]:
        """Ask for Planned's pilots, for a trial, and for the draws that count, from the noise that promises more."""
        if self.dimension is None or self.width is None:
            raise ConfigError("Expected `dimension` (how many values of an input decide) and `width`, got none.")
        depth = partial(wide_depth, width=self.width, dimension=self.dimension)
        settled = yield from self._planned().pilots()
        if settled is None:
            return Bounds(None, reason="futile")
        if settled.pilot.counts[settled.label] == settled.pilot.n:
            far = max(FAR, self.width)
            trial = yield Draws(TRIAL, far)
            if _promising(settled, trial, far, self.width, self.alpha, depth):
                votes = yield Draws(settled.n, self.width, coin=self.randomized)
                bounds = fixed_bounds(votes, settled.label, self.alpha, runner_up=False)
                return replace(bounds, separation=depth(bounds.q_a_upper, bounds.p_b_upper))
        return (yield from self._planned().certified(settled))

    def _planned(self) -> Planned:
        return Planned(
            alpha=self.alpha, n_max=self.n_max, rival=self.rival, effort=self.effort, randomized=self.randomized
        )


def _promising(
    settled: Settled, trial: Votes, far: float, width: float, alpha: float, depth: Callable[[float, float], float]
) -> bool:
    """Whether wider draws should certify more, if wrong answers are a half space as far away as the trial says.

    A trial of the wider draws themselves would tell little: what decides are single wrong answers among all of them.
    """
    failures = trial.n - trial.counts[settled.label]
    distance = far * -float(ndtri(betaincinv(failures + 0.5, trial.n - failures + 0.5, 0.5)))
    wide, narrow = (
        float(clopper_pearson_upper(round(settled.n * float(ndtr(-distance / one))), settled.n, alpha))
        for one in (width, 1.0)
    )
    return bool(depth(wide, wide) > -ndtri(narrow))


def _check_dimension(dimension: int) -> int:
    if isinstance(dimension, int) and dimension > MOST_VALUES:
        raise ConfigError(
            f"Draws from a wider noise gain less than 0.1 % for inputs of more than {MOST_VALUES:,} values, got "
            f"{dimension:,}: use the procedure planned."
        )
    return check_count("dimension", dimension)


def good_width(dimension: int, n_max: int, alpha: float) -> float:
    """A width that suits unanimous votes of `n_max` draws.

    At distance r from an input, noise has the mean square length d + r² in units of σ, and draws do well to have about
    the same: width² = 1 + r²/d would be the best for a unanimous vote of radius r (found numerically).
    """
    depth = -float(ndtri(clopper_pearson_upper(0, n_max, alpha)))
    return max(LEAST_WIDTH, round(math.sqrt(1 + _WIDENING * depth**2 / dimension), 6))


@lru_cache(maxsize=4096)
def wide_depth(q_a_upper: float, p_b_upper: float, *, width: float, dimension: int) -> float:
    """The certified radius over σ, rounded down, from bounds on probabilities under noise of `width` times σ.

    Whenever the two bounds hold, the classifier smoothed with σ is constant within σ times the result, if the base
    classifier's answer is a function of `dimension` values of the input. 0.0 where nothing can be claimed.

    Proof, in units of σ. Let Q = N(x, width²·I) be the law of the draws and P that of the smoothing noise about a point
    at distance r, N(x + δ, I). Of all sets that Q gives at most q, P gives the most to one of the form {dP/dQ > λ}
    (Neyman & Pearson), here a ball about x + c·δ/r with c = r / (1 − width⁻²). So P(A) ≥ 1 − M(q_A, r) and P(B) ≤
    M(p_B, r) for every rival B, where M is what P gives to the ball. A leads where M(q_A, r) + M(p_B, r) < 1. And M
    grows with r, so that it then leads at every smaller distance too: since c > r, moving δ outward by less than c − r
    brings P nearer to the ball's centre, which raises its share of this very ball, and the best set for the new δ has
    no less; steps of this kind, each by a fixed factor, reach any distance.
    """

    def leads(depth: float) -> bool:
        wrong = _most(q_a_upper, depth, width, dimension)
        rival = wrong if p_b_upper == q_a_upper else _most(p_b_upper, depth, width, dimension)
        return wrong + rival <= 1 - _SLACK  # not so for NaN

    high = 1.0
    while leads(high) and high < 64:
        high *= 2
    low = 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if leads(middle) else (low, middle)
    return low


def _most(q: float, r: float, width: float, dimension: int) -> float:
    """No less than what noise about a point at distance r can give to a set that the draws give at most q.

    The ball's radius is only as good as a root-finder. But for any ball on whose surface dP/dQ is λ, P gives no set of
    this kind more than P(ball) + λ·(q − Q(ball)): outside the ball dP/dQ is below λ, inside above.
    """
    from scipy.stats import ncx2  # slow to import, and only this needs it

    shrinkage = 1 - width**-2
    centre = r / shrinkage
    if not centre <= _FARTHEST:
        return math.inf
    far, near = (centre / width) ** 2, (centre - r) ** 2
    ball = float(ncx2.ppf(q, dimension, far)) * width**2
    drawn, smoothing = float(ncx2.cdf(ball / width**2, dimension, far)), float(ncx2.cdf(ball, dimension, near))
    ratio = dimension * math.log(width) - (shrinkage * (ball - centre**2) + r * r) / 2
    return smoothing + math.exp(min(ratio, 700.0)) * (q - drawn)

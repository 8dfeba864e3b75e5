"""Checks that a piece of the statistics claims no more than it may.

Each takes the implementation as an argument and raises AssertionError when it is unsound, so that one check serves
the real code, deliberately broken copies of it (test_mutants.py) and whatever is added later. Nothing here calls the
library's own arithmetic: tail probabilities are summed term by term, and whole procedures are judged by the exact
probability of every way the draws can fall.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
from scipy.special import gammaln, xlogy
from scipy.stats import beta, binomtest, norm

from smoothcert.records import Votes
from smoothcert.stats.procedures import run

digits = mpmath.MPContext()  # a context of its own, so that nobody else's precision changes
digits.dps = 60

_ONE = 1 << 200  # fixed-point one: 60 digits in plain integers, ten times faster than mpf
_NEGLIGIBLE = 1 << 90


# ---- references --------------------------------------------------------------------------------------------------


def binomial_tail(k: int, n: int, p: Any) -> Any:
    """P(Bin(n, p) <= k) to at least 25 digits, summed downwards from k; for k below the mean, where terms shrink."""
    p = digits.mpf(p)
    if k >= n:
        return digits.mpf(1)
    if p >= 1:
        return digits.mpf(0)
    log_pmf = _log_binomial(n, k) + k * digits.log(p) + (n - k) * digits.log1p(-p)
    odds = int(digits.floor((1 - p) / p * _ONE))
    term = total = _ONE
    down, up = k, n - k + 1
    while down and term > _NEGLIGIBLE:
        term = (term * down * odds // up) >> 200
        total += term
        down, up = down - 1, up + 1
    return digits.exp(log_pmf) * digits.mpf(total) / _ONE


@lru_cache(maxsize=100_000)
def _log_binomial(n: int, k: int) -> Any:
    return digits.loggamma(n + 1) - digits.loggamma(k + 1) - digits.loggamma(n - k + 1)


def normal_depth(q: float) -> Any:
    """z with Φ(−z) = q, to at least 30 digits: two Newton steps from SciPy's answer."""
    z, q = digits.mpf(float(norm.isf(q))), digits.mpf(q)
    for _ in range(2):
        z += (digits.ncdf(-z) - q) / digits.npdf(z)
    return z


def log_tail_table(n: int, p: np.ndarray, q: np.ndarray | None = None) -> np.ndarray:
    """log P(Bin(n, p[k]) <= k) for k = 0..n, every term of every sum; q = 1 − p where that is the exact one."""
    k, j = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
    log_choose = gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_q = (np.log(p), np.log1p(-p)) if q is None else (np.log1p(-q), np.log(q))
        heads, tails = (np.where(m == 0, 0.0, m * v[:, None]) for m, v in ((j, log_p), (n - j, log_q)))
        terms = np.where(j <= k, log_choose + heads + tails, -np.inf)
        top = terms.max(axis=1, keepdims=True)
        sums = np.exp(terms - np.where(np.isfinite(top), top, 0)).sum(axis=1)
        return np.log(sums) + top[:, 0]


# ---- bounds ------------------------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 5, 10, 37, 100, 200, 400)
ALPHAS = (0.4, 0.05, 0.01, 1e-3, 1e-6, 1e-12)
LARGE = [
    (k, n, alpha)
    for n in (10**5, 10**7, 10**9)
    for k in (0, 1, 10, 300, 999, n // 1000)
    for alpha in (0.05, 1e-3, 1e-12)
] + [(10**9 // 2, 10**9, 1e-3), (999_999_000, 10**9, 1e-3)]


def check_upper_bound_is_sound(upper: Callable[..., Any]) -> None:
    """At p = U(k), at most α of the probability is at k or below; U may be 1, since no p is larger."""
    for n, alpha in itertools.product(SIZES, ALPHAS):
        p = np.asarray(upper(np.arange(n + 1), n, alpha), np.float64)
        assert p.shape == (n + 1,)
        inside = (p > 0) & (p < 1)
        tails = log_tail_table(n, np.where(inside, p, 0.5))
        sound = np.where(inside, tails <= math.log(alpha), p >= 1)
        assert sound.all(), f"n={n}, k={np.flatnonzero(~sound)[0]}, alpha={alpha}: the bound is too low"
    for k, n, alpha in LARGE:
        p = float(upper(k, n, alpha))
        assert p >= 1 or (p > k / n and binomial_tail(k, n, p) <= alpha), f"n={n}, k={k}, alpha={alpha}: too low"


def check_upper_bound_is_tight(upper: Callable[..., Any], slack: float = 1e-6) -> None:
    """One part in a million below U(k), more than α of the probability is at k or below: nothing is given away."""
    for n, alpha in itertools.product(SIZES, ALPHAS):
        p = np.asarray(upper(np.arange(n + 1), n, alpha), np.float64)
        tight = log_tail_table(n, np.clip(p * (1 - slack), 0, 1)) > math.log(alpha)
        assert tight.all(), f"n={n}, k={np.flatnonzero(~tight)[0]}, alpha={alpha}: the bound is too loose"
    for k, n, alpha in LARGE:
        p = float(upper(k, n, alpha)) * (1 - slack)
        assert p <= k / n or binomial_tail(k, n, p) > alpha, f"n={n}, k={k}, alpha={alpha}: too loose"


def check_lower_bound_is_sound(lower: Callable[..., Any]) -> None:
    """At p = L(k), at most α of the probability is at k or above; L may be 0, since no p is smaller."""
    for n, alpha in itertools.product(SIZES, ALPHAS):
        # Row j of the table is about j failures, that is k = n − j successes.
        p = np.asarray(lower(n - np.arange(n + 1), n, alpha), np.float64)
        inside = (p > 0) & (p < 1)
        tails = log_tail_table(n, np.full(n + 1, np.nan), q=np.where(inside, p, 0.5))
        sound = np.where(inside, tails <= math.log(alpha), p <= 0)
        assert sound.all(), f"n={n}, k={n - np.flatnonzero(~sound)[0]}, alpha={alpha}: the bound is too high"
    for failures, n, alpha in LARGE:
        p = float(lower(n - failures, n, alpha))
        sound = p <= 0 or (p < 1 and binomial_tail(failures, n, 1 - digits.mpf(p)) <= alpha)
        assert sound, f"n={n}, k={n - failures}, alpha={alpha}: too high"


@lru_cache(maxsize=400)
def fair_coin_tails(n: int) -> tuple[Fraction, ...]:
    """min(1, 2·P(Bin(n, ½) >= max(k, n − k))) for k = 0..n, in exact fractions."""
    at_least = list(itertools.accumulate(math.comb(n, j) for j in range(n, -1, -1)))[::-1]  # [k] = Σ_{j>=k}
    return tuple(min(Fraction(1), Fraction(2 * at_least[max(k, n - k)], 2**n)) for k in range(n + 1))


def check_p_value_is_sound(p_value: Callable[[int, int], float], sizes: Sequence[int] = range(1, 61)) -> None:
    """Never below the exact two-sided p-value of a fair coin."""
    for n in sizes:
        for k, exact in enumerate(fair_coin_tails(n)):
            assert Fraction(p_value(k, n)) >= exact, f"k={k}, n={n}: the p-value is too small"


# ---- radii -------------------------------------------------------------------------------------------------------

FAILURE_SIDES = (1e-300, 1e-30, 1e-15, 6.9e-5, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.3, 0.4, 0.49, 0.499999)


def check_radius_is_sound(radius: Callable[..., Any]) -> None:
    """`radius(q_a_upper, p_b_upper, sigma=)` never exceeds Theorem 1 in 60 digits, and claims nothing at a tie."""
    for q, sigma in itertools.product(FAILURE_SIDES, (0.12, 1.0, 3.0)):
        for p_b in (None, q, q / 3, q * 1e-6):
            if p_b == 0:
                continue
            claimed = radius(q, p_b, sigma=sigma)
            limit = digits.mpf(sigma) / 2 * (normal_depth(q) + normal_depth(q if p_b is None else p_b))
            assert math.isfinite(claimed), f"q={q}, p_b={p_b}: the radius is {claimed}"
            assert digits.mpf(float(claimed)) <= limit, f"q={q}, p_b={p_b}, sigma={sigma}: the radius is too large"
    # A may have less than half: the two depths then have opposite signs and most of their digits cancel.
    for q, p_b in ((0.6, 0.3), (0.6, 0.3999), (0.7, 0.29999999), (0.51, 0.48999999999), (0.9, 0.05)):
        limit = (normal_depth(q) + normal_depth(p_b)) / 2
        assert digits.mpf(float(radius(q, p_b, sigma=1.0))) <= limit, f"q={q}, p_b={p_b}: the radius is too large"
    for q, p_b in ((0.5, None), (0.7, None), (1.0, None), (0.5, 0.5), (0.9, 0.9), (1.0, 0.1), (math.nan, None)):
        assert radius(q, p_b, sigma=1.0) == 0, f"q={q}, p_b={p_b}: something is claimed without a lead"


# ---- printing ----------------------------------------------------------------------------------------------------


def check_rounding(written: Callable[[float], str], count: int = 10_000) -> None:
    """What a reader parses never exceeds the value that was printed."""
    rng = np.random.default_rng(20190208)
    edges = [0.0, 0.29, 0.4999, 0.49999999, 0.5, 1 / 3, 1 - 2**-53, 0.0005, 1e-9, 5e-324, 3.8119, 1e6 + 0.1]
    for value in [*edges, *rng.uniform(0, 4, count).tolist(), *(10 ** rng.uniform(-8, 3, count)).tolist()]:
        assert float(written(value)) <= value, f"{value!r} is written as {written(value)}"


# ---- whole procedures, by the exact probability of every outcome -------------------------------------------------


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way in which `total` votes can fall on `parts` categories."""
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        ends = (-1, *bars, total + parts - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


class Outcomes:
    """Every way the draws of `procedure` can fall on `categories`, the last being "no answer" if `invalid`."""

    def __init__(self, procedure: Any, categories: int, *, invalid: bool = False) -> None:
        self.invalid = invalid
        ways = list(self._extend(procedure, categories, ()))
        self.conclusions = [conclusion for _, conclusion in ways]
        totals = np.array([np.sum(stages, axis=0) for stages, _ in ways])
        ways_of = [sum(gammaln(sum(s) + 1) - gammaln(np.array(s) + 1).sum() for s in stages) for stages, _ in ways]
        self._totals, self._log_ways = totals, np.array(ways_of)
        self.labels = np.array([-1 if c.label is None else c.label for c in self.conclusions])

    def _extend(self, procedure: Any, categories: int, stages: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        steps = procedure()
        try:
            wanted = next(steps)
            for counts in stages:
                wanted = steps.send(Votes(counts[:-1], counts[-1]) if self.invalid else Votes(counts))
        except StopIteration as stop:
            yield stages, stop.value
            return
        for counts in compositions(wanted, categories):
            yield from self._extend(procedure, categories, (*stages, counts))

    def probability(self, p: Sequence[float], event: np.ndarray) -> float:
        """The probability of `event`, one truth value per outcome, when the votes have probabilities p."""
        chance = np.exp(self._log_ways + xlogy(self._totals, np.asarray(p)).sum(axis=1))
        assert abs(chance.sum() - 1) < 1e-9, "the outcomes do not add up to 1"
        return float(chance[event].sum())


def false_bounds(outcomes: Outcomes, p: Sequence[float]) -> np.ndarray:
    """Where the claimed class has less, or a rival more, than the bounds say."""
    p = np.asarray(p, np.float64)
    q_a = np.array([c.q_a_upper for c in outcomes.conclusions])
    p_b = np.array([c.p_b_upper for c in outcomes.conclusions])
    others = np.array([p[np.arange(len(p)) != c].sum() for c in range(len(p))])
    rivals = np.array([np.delete(p, c).max() for c in range(len(p))])
    return (outcomes.labels >= 0) & ((q_a < others[outcomes.labels]) | (p_b < rivals[outcomes.labels]))


def false_radii(outcomes: Outcomes, p: Sequence[float]) -> np.ndarray:
    """Where Theorem 1 with the claimed bounds gives a radius, and a larger one than with the true probabilities."""
    p = np.asarray(p, np.float64)
    q_a = np.array([c.q_a_upper for c in outcomes.conclusions])
    p_b = np.array([c.p_b_upper for c in outcomes.conclusions])
    truth = np.array([norm.ppf(p[c]) - norm.ppf(np.delete(p, c).max()) for c in range(len(p))])
    claimed = norm.isf(q_a) + norm.isf(p_b)
    return (outcomes.labels >= 0) & (claimed > 0) & (claimed > np.maximum(truth[outcomes.labels], 0) + 1e-12)


def critical(k: int, n: int, alpha: float) -> float:
    """A probability just above Clopper–Pearson's exact upper bound of k: a correct bound misses it just α often."""
    return float(beta.isf(alpha, k + 1, n - k)) * (1 + 1e-7)


def check_certify_is_sound(make: Callable[..., Any], *, runner_up: bool = False) -> None:
    """`make(n, n0, alpha)` claims false bounds, or a false radius, with probability at most α: exactly."""
    n, n0, alpha = 24, 6, 0.1
    outcomes = Outcomes(make(n=n, n0=n0, alpha=alpha), 2)
    share = alpha / 2 if runner_up else alpha
    worst = [critical(k, n, a) for k in range(n) for a in (share, alpha)]
    ties = [0.5, 0.5 - 1e-6, 0.45, 0.4]
    for q in [*worst, *ties]:
        if q < 1:
            _judge(outcomes, (1 - q, q), alpha)

    # With no answer as one more category, it must count against the class and as a rival.
    outcomes = Outcomes(make(n=12, n0=3, alpha=alpha), 3, invalid=True)
    for p in [(0.45, 0.1, 0.45), (0.5, 0.0, 0.5), (0.3, 0.3, 0.4), (0.1, 0.0, 0.9), (0.6, 0.05, 0.35)]:
        _judge(outcomes, p, alpha)

    # Four categories: the class, its strongest rival and a rest, each probability where a correct bound just misses.
    n, n0, alpha = 12, 2, 0.2
    share = alpha / 2 if runner_up else alpha
    outcomes = Outcomes(make(n=n, n0=n0, alpha=alpha), 4)
    for k_a, k_b, a in itertools.product(range(1, 11), range(5), (share, alpha)):
        q_a, p_b = critical(k_a, n, a), critical(k_b, n, a)
        if p_b < q_a < 1:
            _judge(outcomes, (1 - q_a, p_b, (q_a - p_b) / 2, (q_a - p_b) / 2), alpha)
    for p in [(0.25,) * 4, (0.4, 0.3, 0.2, 0.1), (0.5, 0.5, 0.0, 0.0), (0.34, 0.33, 0.33, 0.0)]:
        _judge(outcomes, p, alpha)


def _judge(outcomes: Outcomes, p: Sequence[float], alpha: float) -> None:
    for false, what in ((false_bounds, "bounds are false"), (false_radii, "radius is false")):
        missed = outcomes.probability(p, false(outcomes, p))
        assert missed <= alpha, f"p={p}: the {what} with probability {missed:.5f} > {alpha}"


def check_predict_is_sound(make: Callable[..., Any]) -> None:
    """`make(n, alpha)` returns another class than the most probable one with probability at most α: exactly."""
    # α is set to p-values that do occur, so that the test uses all of it.
    for n, categories in ((9, 2), (11, 3), (9, 4), (7, 6)):
        for alpha in (float(fair_coin_tails(n)[0]), float(fair_coin_tails(n)[1]), 0.1, 0.3):
            outcomes = Outcomes(make(n=n, alpha=alpha), categories)
            for p in _near_ties(categories):
                wrong = (outcomes.labels >= 0) & (outcomes.labels != int(np.argmax(p)))
                missed = outcomes.probability(p, wrong)
                assert missed <= alpha, f"n={n}, p={p}: the wrong class with probability {missed:.5f} > {alpha}"
    outcomes = Outcomes(make(n=12, alpha=0.1), 3, invalid=True)
    for p in [(0.3, 0.2, 0.5), (0.1, 0.1, 0.8), (0.45, 0.05, 0.5), (0.05, 0.05, 0.9)]:
        missed = outcomes.probability(p, outcomes.labels >= 0)
        assert missed <= 0.1, f"p={p}: a class where most draws have no answer, with probability {missed:.5f}"


def _near_ties(categories: int) -> Iterator[tuple[float, ...]]:
    for tied in range(2, categories + 1):
        for mass in (1.0, 0.8):
            rest = [(1 - mass) / (categories - tied)] * (categories - tied) if categories > tied else []
            level = (mass if rest else 1.0) / tied
            yield (level + 1e-9, *[level - 1e-9 / (tied - 1)] * (tied - 1), *rest)


# ---- whole procedures, by simulation where there are too many outcomes ---------------------------------------------


def simulate(procedure: Any, p: Sequence[float], repeats: int, seed: int) -> list[Any]:
    """The conclusions of `repeats` runs against votes drawn with the probabilities p."""
    rng = np.random.default_rng(seed)
    return [run(procedure, lambda _, n: Votes.of(rng.multinomial(n, p)))[0] for _ in range(repeats)]


def check_rate(misses: int, repeats: int, alpha: float) -> None:
    """`misses` out of `repeats` is not evidence of a rate above α, at the level of one in ten thousand."""
    p_value = binomtest(misses, repeats, alpha, alternative="greater").pvalue
    assert p_value > 1e-4, f"{misses} of {repeats} claims are false, more than {alpha:g} explains (p={p_value:.2g})"


def check_certify_by_simulation(make: Callable[..., Any], p: Sequence[float], *, repeats: int = 2000) -> None:
    """As `check_certify_is_sound`, at sizes beyond enumeration."""
    alpha = 0.05
    bounds = simulate(make(n=200, n0=20, alpha=alpha), p, repeats, seed=5)
    misses = sum(
        b.label is not None and (b.q_a_upper < 1 - p[b.label] or b.p_b_upper < np.delete(p, b.label).max())
        for b in bounds
    )
    check_rate(int(misses), repeats, alpha)


def check_predict_by_simulation(make: Callable[..., Any], p: Sequence[float], *, repeats: int = 2000) -> None:
    """Class 0 is the right one, by however little; the others count as false."""
    alpha = 0.05
    decisions = simulate(make(n=100, alpha=alpha), p, repeats, seed=6)
    check_rate(sum(d.label not in (None, 0) for d in decisions), repeats, alpha)

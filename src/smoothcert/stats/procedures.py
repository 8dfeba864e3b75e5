"""Procedures: how many draws to ask for, and what may be concluded from the votes.

A procedure is a frozen set of settings whose call is a generator. It yields how many draws it wants, is
sent the votes of that many fresh draws, and returns its conclusion. Since each `yield` is answered with
new draws, one stage's votes cannot leak into another's, and the same code runs against a network, a
multinomial generator or recorded votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from smoothcert.checks import check_alpha, check_count
from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Decision, Votes
from smoothcert.stats.bounds import binomial_p_value, clopper_pearson_upper

Conclusion = TypeVar("Conclusion", covariant=True)


class Procedure(Protocol[Conclusion]):
    """Settings whose call starts the procedure; `alpha` is its failure probability per input, in total."""

    @property
    def alpha(self) -> float:
        """The probability with which the conclusion may be false."""
        ...

    def __call__(self) -> Generator[int, Votes, Conclusion]:
        """Yield numbers of draws, receive their votes, return the conclusion."""
        ...


def run(procedure: Procedure[Conclusion], draw: Callable[[int, int], Votes]) -> tuple[Conclusion, tuple[Votes, ...]]:
    """Drive `procedure` with `draw(stage, n)`; return its conclusion and the votes of every stage."""
    stages: list[Votes] = []
    steps = procedure()
    try:
        wanted = next(steps)
        while True:
            votes = draw(len(stages), wanted)
            if votes.n != wanted:
                raise ValueError(f"stage {len(stages)} asked for {wanted} draws and was given {votes.n}")
            stages.append(votes)
            wanted = steps.send(votes)
    except StopIteration as stop:
        return stop.value, tuple(stages)


def describe(procedure: Procedure[Any]) -> dict[str, Any]:
    """A procedure's name and settings, as a certificate records them."""
    return {"name": type(procedure).__name__, **asdict(procedure)}  # type: ignore[call-overload]


def _check_draws(n: int, alpha: float, least: int) -> None:
    if n < least:
        raise ConfigError(f"n={n} can never certify at alpha={alpha:g}; need n>={least}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedN:
    """The paper's CERTIFY: choose the class on n0 draws, bound its probability on n fresh ones.

    With probability at least 1 − alpha, the returned bounds hold, whichever class was chosen: Cohen et al.
    2019, Proposition 2.

    With `runner_up=True` half of alpha bounds the chosen class and half the largest rival count. The
    strongest true rival is one fixed class whose count is at most that largest one, and the bound grows
    with the count, so no union over classes is needed. It certifies more wherever the rest of the
    probability is spread over several classes.
    """

    n: int = 100_000
    n0: int = 100
    alpha: float = 0.001
    runner_up: bool = False

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("n0", self.n0)
        check_alpha(self.alpha)
        # α^(1/n) > 1/2 is needed for the one-sided bound, and about as many for the two-sided.
        _check_draws(self.n, self.alpha, math.floor(math.log(self._alpha_a) / math.log(0.5)) + 1)

    @property
    def _alpha_a(self) -> float:
        return self.alpha / 2 if self.runner_up else self.alpha

    def __call__(self) -> Generator[int, Votes, Bounds]:
        """Ask for n0 draws, then for n; return the bounds for the class that led the first."""
        label = (yield self.n0).leader
        if label is None:
            return Bounds(None)
        votes = yield self.n
        q_a = float(clopper_pearson_upper(votes.n - votes.counts[label], votes.n, self._alpha_a))
        if not self.runner_up:
            return Bounds(label, q_a, q_a)
        p_b = float(clopper_pearson_upper(votes.rival(label), votes.n, self.alpha - self._alpha_a))
        return Bounds(label, q_a, min(p_b, q_a))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict:
    """The paper's PREDICT: the class with the most of n votes if it beats the second by a binomial test.

    With probability at least 1 − alpha, the returned class is the smoothed classifier's or None: Cohen et
    al. 2019, Proposition 1, by Hung & Fithian 2019, who show that no correction is due for having picked
    the winner. A tie abstains. Draws without an answer count as one more class, which is never returned.
    """

    n: int = 1_000
    alpha: float = 0.001

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_alpha(self.alpha)
        # n votes out of n have the p-value 2^(1−n).
        _check_draws(self.n, self.alpha, math.ceil(1 - math.log2(self.alpha)))

    def __call__(self) -> Generator[int, Votes, Decision]:
        """Ask for n draws; return the leader unless the runner-up is too close."""
        votes = yield self.n
        leader = votes.leader
        if leader is None:
            return Decision(None, 1.0)
        first, second = votes.counts[leader], votes.rival(leader)
        p_value = binomial_p_value(first, first + second)
        return Decision(leader if first > second and p_value <= self.alpha else None, p_value)

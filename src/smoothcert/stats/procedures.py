"""Procedures: how many draws to ask for, and what may be concluded from the votes.

A procedure is a frozen set of settings whose call is a generator. It yields how many draws it wants, is
sent the votes of that many fresh draws, and returns its conclusion. Since each `yield` is answered with
new draws, one stage's votes cannot leak into another's, and the same code runs against a network, a
multinomial generator or recorded votes.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Generator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

from scipy.special import ndtr, ndtri

from smoothcert.checks import check_alpha, check_count, check_margin
from smoothcert.errors import ConfigError
from smoothcert.records import Bounds, Decision, Votes
from smoothcert.stats.bounds import binomial_p_value, clopper_pearson_upper
from smoothcert.stats.radii import margin_radius

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


class Running(Generic[Conclusion]):
    """A procedure under way: `wanted` draws are asked for next, until it has `finished` with its `conclusion`."""

    wanted: int
    conclusion: Conclusion

    def __init__(self, procedure: Procedure[Conclusion]) -> None:
        self.stages: list[Votes] = []
        self.finished = False
        self._steps = procedure()
        self._advance(None)

    def give(self, votes: Votes) -> None:
        """Answer with the votes of as many fresh draws as are wanted."""
        if votes.n != self.wanted:
            raise ValueError(f"stage {len(self.stages)} asked for {self.wanted} draws and was given {votes.n}")
        self.stages.append(votes)
        self._advance(votes)

    def _advance(self, votes: Votes | None) -> None:
        try:
            self.wanted = int(next(self._steps) if votes is None else self._steps.send(votes))
        except StopIteration as stop:
            self.wanted, self.finished, self.conclusion = 0, True, stop.value


def run(procedure: Procedure[Conclusion], draw: Callable[[int, int], Votes]) -> tuple[Conclusion, tuple[Votes, ...]]:
    """Drive `procedure` with `draw(stage, n)`; return its conclusion and the votes of every stage."""
    running = Running(procedure)
    while not running.finished:
        running.give(draw(len(running.stages), running.wanted))
    return running.conclusion, tuple(running.stages)


def describe(procedure: Procedure[Any]) -> dict[str, Any]:
    """A procedure's name and settings, as a certificate records them."""
    settings = asdict(procedure)  # type: ignore[call-overload]
    return {"name": type(procedure).__name__, **{name: _plain(value) for name, value in settings.items()}}


def question(procedure: Procedure[Any]) -> str:
    """A procedure as part of a stream's name: two procedures share draws only if all their settings are equal.

    Settings at their defaults are left out, so that a later version with one more setting still draws the same noise
    for a run made before.
    """
    described = describe(procedure)
    for name in _at_default(procedure):
        del described[name]
    return json.dumps(described, sort_keys=True)


def known_settings(procedure: Procedure[Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A procedure's name and settings, less those at their defaults that an older record does not have."""
    unknown = {name for name in _at_default(procedure) if name not in recorded}
    return {name: value for name, value in describe(procedure).items() if name not in unknown}


def _at_default(procedure: Procedure[Any]) -> list[str]:
    described = describe(procedure)
    return [
        field.name
        for field in fields(procedure)  # type: ignore[arg-type]
        if field.default is not MISSING and described[field.name] == _plain(field.default)
    ]


def _plain(value: Any) -> Any:
    """As JSON would give it back: lists for tuples, Python's numbers for all others."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_enough_draws(n: int, alpha: float, *, runner_up: bool = False, margin: float = 0.0) -> None:
    """Refuse a number of draws that cannot certify even a unanimous vote: α^(1/n) > (1 + margin)/2 is needed."""
    level = alpha / 2 if runner_up else alpha
    least = math.floor(math.log(level) / math.log1p(-(1 - margin) / 2)) + 1
    _check_draws(n, alpha, least, f" with margin={margin:g}" if margin else "")


def _check_draws(n: int, alpha: float, least: int, claim: str = "") -> None:
    if n < least:
        raise ConfigError(f"n={n} can never certify{claim} at alpha={alpha:g}; need n>={least}.")


def fixed_bounds(votes: Votes, label: int, alpha: float, *, runner_up: bool, margin: float = 0.0) -> Bounds:
    """Bounds for a class that was settled before these votes were drawn, as was whether the rival is bounded too.

    With probability at least 1 − alpha, they hold. With a `margin`, the separation is the radius over σ within which
    the class leads by that much whenever the bounds hold.
    """
    level = alpha / 2 if runner_up else alpha
    q_a = p_b = float(clopper_pearson_upper(votes.n - votes.counts[label], votes.n, level))
    if runner_up:
        p_b = min(float(clopper_pearson_upper(votes.rival(label), votes.n, level)), q_a)
    if margin == 0:
        return Bounds(label, q_a, p_b)
    return Bounds(label, q_a, p_b, separation=float(margin_radius(q_a, p_b, sigma=1.0, margin=margin)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedN:
    """The paper's CERTIFY: choose the class on n0 draws, bound its probability on n fresh ones.

    With probability at least 1 − alpha, the returned bounds hold, whichever class was chosen: Cohen et al.
    2019, Proposition 2.

    With `runner_up=True` half of alpha bounds the chosen class and half the largest rival count. The
    strongest true rival is one fixed class whose count is at most that largest one, and the bound grows
    with the count, so no union over classes is needed. It certifies more wherever the rest of the
    probability is spread over several classes.

    With a `margin`, the radius is that of `margin_radius`: within it the class leads every other class by at least
    that much in probability.
    """

    n: int = 100_000
    n0: int = 100
    alpha: float = 0.001
    runner_up: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("n0", self.n0)
        check_alpha(self.alpha)
        check_margin(self.margin)
        check_enough_draws(self.n, self.alpha, runner_up=self.runner_up, margin=self.margin)

    def __call__(self) -> Generator[int, Votes, Bounds]:
        """Ask for n0 draws, then for n; return the bounds for the class that led the first."""
        label = (yield self.n0).leader
        if label is None:
            return Bounds(None)
        return fixed_bounds((yield self.n), label, self.alpha, runner_up=self.runner_up, margin=self.margin)


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
        return _decide((yield self.n), self.alpha)


def _decide(votes: Votes, alpha: float) -> Decision:
    """The leader if it beats whatever came second at this level."""
    leader = votes.leader
    if leader is None:
        return Decision(None, 1.0)
    first, second = votes.counts[leader], votes.rival(leader)
    p_value = binomial_p_value(first, first + second)
    return Decision(leader if first > second and p_value <= alpha else None, p_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPredict:
    """PREDICT with looks: the leader at the first look at which it beats the second clearly enough.

    With probability at least 1 − alpha, the returned class is the smoothed classifier's or None. Each look is the
    paper's PREDICT at a level of its own, and the levels add up to alpha: four fifths for the last look, the rest in
    equal parts for the ones before. Most inputs are clear at the first looks, so few draws are needed on average.
    """

    n_max: int = 10_000
    alpha: float = 0.001
    patience: float = 1.5e5
    """How many draws one more answer is worth: a near-tie that would take more is given up, which claims nothing."""

    def __post_init__(self) -> None:
        check_count("n_max", self.n_max)
        check_alpha(self.alpha)
        if not self.patience > 0:
            raise ConfigError(f"Expected `patience` > 0, got {self.patience!r}.")
        _check_draws(self.n_max, self.alpha, math.ceil(2 - math.log2(self.alpha)))

    @property
    def looks(self) -> tuple[int, ...]:
        """Total draws at each look: 16, then two fifths more each time, n_max last."""
        looks = [min(16, self.n_max)]
        while looks[-1] < self.n_max:
            looks.append(min(math.ceil(looks[-1] * 1.4), self.n_max))
        return tuple(looks)

    def level(self, look: int) -> float:
        """The share of alpha that a look may spend; with one look alone, a fifth of it is left over."""
        before_last = len(self.looks) - 1
        return 0.8 * self.alpha if look == before_last else 0.2 * self.alpha / before_last

    def __call__(self) -> Generator[int, Votes, Decision]:
        """Look after look, until one is clear, or clarity too far away, or n_max drawn."""
        looks, votes = self.looks, None
        for look, n in enumerate(looks):
            fresh = yield n - (votes.n if votes is not None else 0)
            votes = fresh if votes is None else votes + fresh
            decision = _decide(votes, self.level(look))
            if decision.label is not None:
                return replace(decision, reason="claimed")
            if look + 1 < len(looks) and self._hopeless(votes, look):
                return replace(decision, reason="futile")
        return decision

    def _hopeless(self, votes: Votes, look: int) -> bool:
        """Whether no later look promises an answer at a price worth paying, by a normal forecast of the lead."""
        leader = votes.leader
        if leader is None:
            return False
        first, second = votes.counts[leader], votes.rival(leader)
        both, lead = first + second, first - second
        for later in range(look + 1, len(self.looks)):
            ahead = self.looks[later] - votes.n
            more = both * ahead / votes.n  # of the draws ahead, those that go to either of the two
            needed = -float(ndtri(self.level(later) / 2)) * math.sqrt(both + more)
            spread = math.sqrt(more + more * more / both)  # of the draws to come, and of what is known of the drift
            chance = float(ndtr((lead + lead * more / both - needed) / spread))
            if self.patience * chance >= ahead:
                return False
        return True

"""Attacks on the smoothed classifier g: perturbations within a radius that are to take a class its win.

Theorem 1 says that none exists within a certified radius, so these attacks measure what is left beyond it (Cohen et al.
2019, Section 4 and Appendix J.3). None is trusted: `SmoothedAttack.__call__` brings whatever a search returns into the
open ball. Nor does any judge: whether g answers otherwise there is for fresh draws to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from smoothcert.attacks.copies import Look, NoisyCopies, Objective
from smoothcert.attacks.geometry import unit
from smoothcert.attacks.interface import SmoothedAttack, Target
from smoothcert.attacks.judging import margins
from smoothcert.checks import check_count
from smoothcert.errors import ConfigError

__all__ = [
    "SMOOTHED_ATTACKS",
    "AbstentionAttack",
    "DDNAttack",
    "PaperAttack",
    "SmoothedAttack",
    "StrongAttack",
    "Target",
]

_PROBES = 64  # noisy copies by which an attack gets to know the other classes
_BASE_STEPS = 5
_HALVINGS = 30
_ROUNDING = 1e-5  # relative error of a norm in float32, with room to spare


@dataclass(frozen=True, kw_only=True)
class PaperAttack(SmoothedAttack):
    """The attack of Cohen et al. 2019, Appendix J.3: steepest ascent of the expected cross-entropy, with projection.

    δ ← proj(δ + η·g/‖g‖), where g sums the gradients of the cross-entropy at fresh noisy copies of x + δ.

    Up to a radius of `steps` · `step_size` (2.0 with the paper's settings) the attack takes exactly `steps` steps. A
    larger ball has a surface that these steps cannot reach. There the attack continues with steps of the same length
    until it reaches the surface. It stops early after a path twice as long as the radius, or after `most_steps`.
    """

    name = "paper"
    step_size: float = 0.1
    steps: int = 20
    copies: int = 1000
    most_steps: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("step_size", self.step_size)
        _check_counts(steps=self.steps, copies=self.copies)
        check_count("most_steps", self.most_steps, least=self.steps)

    def search(self, target: Target, radius: float, generator: torch.Generator) -> Tensor:
        """The point that the last step reaches."""
        copies, delta = self._copies(target), torch.zeros_like(target.x)

        def loss(scores: Tensor) -> Tensor:
            labels = torch.full((len(scores),), target.label, device=scores.device)
            return functional.cross_entropy(scores, labels, reduction="none")

        for taken in range(1, self._step_limit(radius) + 1):
            seen = copies.look(target.x + delta, generator, self.copies, loss)
            delta = target.moved(delta + self.step_size * unit(seen.gradient), radius)
            if taken >= self.steps and float(delta.norm()) >= radius * (1 - _ROUNDING):
                break
        return target.x + delta

    def _step_limit(self, radius: float) -> int:
        if radius <= self.steps * self.step_size:
            return self.steps
        return max(self.steps, math.ceil(min(2 * radius / self.step_size, self.most_steps)))


@dataclass(frozen=True, kw_only=True)
class StrongAttack(SmoothedAttack):
    """Several ascents of the soft votes' lead, towards several classes; the best by hard votes is kept.

    An ascent raises E[p_rival − p_label] over softmax probabilities p, which is what g decides by but for their
    sharpness (Salman et al. 2019). It keeps its noises for some steps (common random numbers), so that steps differ by
    where they are and not by luck, and its steps shrink from half the radius along a cosine. The first ascent starts at
    x, the second where the base classifier alone would be led, both with the rival that leads at the time; then one
    goes for each of the likeliest `rivals`, by scores at first, for probabilities near 0 lead nowhere; and `restarts`
    begin at random. All are compared by `votes` draws of their own; one that leads by `enough` ends the search.
    """

    name = "strong"
    steps: int = 24
    copies: int = 64
    renewals: int = 4
    rivals: int = 3
    restarts: int = 1
    votes: int = 500
    enough: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(steps=self.steps, copies=self.copies, renewals=self.renewals, votes=self.votes)
        check_count("rivals", self.rivals, least=0)
        check_count("restarts", self.restarts, least=0)
        _check_positive("enough", self.enough)

    def search(self, target: Target, radius: float, generator: torch.Generator) -> Tensor:
        """The end of the best ascent."""
        copies = self._copies(target)
        jury = _seed(generator)
        best, lead = target.x, -math.inf
        for start, rival in self._starts(target, radius, copies, generator):
            point = target.x + self._ascended(target, radius, copies, generator, start, rival)
            found = _lead(copies.votes(point, _generator(jury), self.votes), target.label) / self.votes
            if found > lead:
                best, lead = point, found
            if lead >= self.enough:
                break
        return best

    def _starts(
        self, target: Target, radius: float, copies: NoisyCopies, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, int | None]]:
        """Where each ascent starts, and for which class it goes; None for whichever leads."""
        yield torch.zeros_like(target.x), None
        yield _base_direction(target, radius), None
        for rival in _ranked(target, copies, generator)[: self.rivals]:
            yield torch.zeros_like(target.x), rival
        for _ in range(self.restarts):
            direction = torch.randn(target.x.shape, generator=generator, device=generator.device)
            yield target.moved(radius / 2 * unit(direction.to(target.x.device)), radius), None

    def _ascended(
        self,
        target: Target,
        radius: float,
        copies: NoisyCopies,
        generator: torch.Generator,
        delta: Tensor,
        towards: int | None,
    ) -> Tensor:
        """The perturbation at the end of an ascent from `delta`."""
        rival = _ranked(target, copies, generator)[0] if towards is None else towards
        period = -(-self.steps // self.renewals)
        for step in range(self.steps):
            if step % period == 0:
                noises = _seed(generator)
            by_scores = towards is not None and step < self.steps / 4
            seen = _look(copies, target, delta, noises, self.copies, rival, by_scores=by_scores)
            size = radius * _cosine(step / self.steps, 0.5, 0.05)
            delta = target.moved(delta + size * unit(seen.gradient), radius)
            if towards is None:
                rival = _rival(seen.probabilities, target.label)
        return delta


@dataclass(frozen=True, kw_only=True)
class DDNAttack(SmoothedAttack):
    """Decoupled direction and norm (Rony et al. 2019) on the soft votes: the smallest perturbation that it finds.

    The length shrinks by 5 % where another class leads by `lead` of the votes, and grows as much where not, up to the
    radius; directions follow the gradient by steps that shrink along a cosine. What led is checked by `votes` draws of
    their own, smallest first. Where nothing did, the result is as far as the attack got.
    """

    name = "ddn"
    steps: int = 60
    copies: int = 128
    renewals: int = 6
    lead: float = 0.1
    votes: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(steps=self.steps, copies=self.copies, renewals=self.renewals, votes=self.votes)
        if not 0 <= self.lead < 1:
            raise ConfigError(f"Expected `lead` in [0, 1), got {self.lead!r}.")

    def search(self, target: Target, radius: float, generator: torch.Generator) -> Tensor:
        """The smallest of the perturbations that hold, or the last one tried."""
        copies, jury = self._copies(target), _seed(generator)
        visited = list(self._visited(target, radius, copies, generator))
        for delta in sorted((delta for delta, led in visited if led), key=lambda delta: float(delta.norm())):
            votes = copies.votes(target.x + delta, _generator(jury), self.votes)
            if _lead(votes, target.label) >= self.lead * self.votes:
                return target.x + delta
        return target.x + visited[-1][0]

    def _visited(
        self, target: Target, radius: float, copies: NoisyCopies, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, bool]]:
        """The perturbations on the way, and whether another class led enough there."""
        delta, length = torch.zeros_like(target.x), min(1.0, radius)
        rival = _ranked(target, copies, generator)[0]
        period = -(-self.steps // self.renewals)
        for step in range(self.steps):
            if step % period == 0:
                noises = _seed(generator)
            seen = _look(copies, target, delta, noises, self.copies, rival)
            led = _lead(seen.votes, target.label) >= self.lead * self.copies
            yield delta, led
            rival = _rival(seen.probabilities, target.label)
            length = min(length * (0.95 if led else 1.05), radius)
            way = unit(delta + _cosine(step / self.steps, 1.0, 0.01) * unit(seen.gradient))
            delta = target.moved(length * way, radius)
        yield delta, False  # nobody has looked


@dataclass(frozen=True, kw_only=True)
class AbstentionAttack(StrongAttack):
    """A tie: between x, where the label wins, and where the strong attack takes it the win, votes must be even.

    There PREDICT abstains however many draws it makes (Cohen et al. 2019, Section 3.2.1). Bisection goes on until the
    lead is too small for `tie_votes` draws to tell, the same ones at every point. Where the label keeps its win, the
    result is as near to a tie as the strong attack got.
    """

    name = "abstain"
    tie_votes: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(tie_votes=self.tie_votes)

    def search(self, target: Target, radius: float, generator: torch.Generator) -> Tensor:
        """The point of the way to the strong attack's result at which votes are even."""
        end = super().search(target, radius, generator)
        copies, noises = self._copies(target), _seed(generator)
        if self._lead_at(end, target, copies, noises) <= 0:
            return end
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            part = (low + high) / 2
            point = target.x + part * (end - target.x)
            lead = self._lead_at(point, target, copies, noises)
            if abs(lead) <= 0.5 / math.sqrt(self.tie_votes):
                break
            low, high = (part, high) if lead < 0 else (low, part)
        return point

    def _lead_at(self, point: Tensor, target: Target, copies: NoisyCopies, noises: int) -> float:
        """By which share of the votes another class leads; counted only until its sign is plain."""
        generator, votes = _generator(noises), torch.zeros((), dtype=torch.int64, device=point.device)
        drawn = 0
        while drawn < self.tie_votes:
            more = min(self.batch_size, self.tie_votes - drawn)
            votes = votes + copies.votes(point, generator, more)
            drawn += more
            if abs(_lead(votes, target.label)) > 4 * math.sqrt(drawn):
                break
        return _lead(votes, target.label) / drawn


SMOOTHED_ATTACKS: dict[str, type[SmoothedAttack]] = {
    attack.name: attack for attack in (PaperAttack, StrongAttack, DDNAttack, AbstentionAttack)
}


def _check_counts(**settings: int) -> None:
    for name, value in settings.items():
        check_count(name, value)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"Expected `{name}` to be a finite number > 0, got {value!r}.")


def _seed(generator: torch.Generator) -> int:
    """The seed of noises that are drawn several times."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _cosine(part: float, first: float, last: float) -> float:
    """From `first` to `last` along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * part)) / 2


def _others(values: Tensor, label: int) -> Tensor:
    """Values [K] of the classes, with the lowest of all for the label."""
    others = values.double().clone()
    others[label] = -math.inf
    return others


def _lead(votes: Tensor, label: int) -> int:
    """By how many votes the best other class leads the label; below 0 where the label wins."""
    return int(_others(votes, label).max()) - int(votes[label])


def _rival(probabilities: Tensor, label: int) -> int:
    return int(_others(probabilities, label).argmax())


def _ranked(target: Target, copies: NoisyCopies, generator: torch.Generator) -> list[int]:
    """The other classes, that with the highest scores around x first."""
    scores = _others(copies.mean_scores(target.x, generator, _PROBES), target.label)
    order = scores.argsort(descending=True, stable=True).tolist()
    return [label for label in order if label != target.label]


def _look(
    copies: NoisyCopies,
    target: Target,
    delta: Tensor,
    noises: int,
    count: int,
    rival: int,
    *,
    by_scores: bool = False,
) -> Look:
    """The gradient of the rival's lead in probabilities, or in scores; also in scores where probabilities have none."""

    def lead(scores: Tensor) -> Tensor:
        return scores[:, rival] - scores[:, target.label]

    def soft_lead(scores: Tensor) -> Tensor:
        return lead(scores.softmax(dim=1))

    objectives: list[Objective] = [lead] if by_scores else [soft_lead, lead]
    for objective in objectives:
        seen = copies.look(target.x + delta, _generator(noises), count, objective)
        if seen.gradient.any():
            break
    return seen


def _base_direction(target: Target, radius: float) -> Tensor:
    """Where a few steps of steepest ascent lead the base classifier, without noise."""
    delta, labels = torch.zeros_like(target.x), torch.tensor([target.label], device=target.x.device)
    for _ in range(_BASE_STEPS):
        point = (target.x + delta)[None].requires_grad_()
        [gradient] = torch.autograd.grad(margins(target.model(point), labels).sum(), point)
        delta = target.moved(delta + radius / 2 * unit(gradient[0]), radius)
    return delta

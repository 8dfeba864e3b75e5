"""What flows through the house: votes, bounds, certificates, predictions. Pure data, to and from JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from html import escape
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Votes:
    """How often the base classifier chose each class on noisy copies of one input.

    `invalid` counts the draws on which it gave no usable answer (a NaN score, a negative label): they vote
    for no class, which can only weaken a claim. `ties` counts the draws whose best score was shared by
    several classes; such a draw votes for the lowest of them.
    """

    counts: tuple[int, ...]
    invalid: int = 0
    ties: int = 0

    @classmethod
    def of(cls, counts: Iterable[int], invalid: int = 0, ties: int = 0) -> Votes:
        """Make votes from any sequence of whole numbers, such as a numpy row."""
        return cls(tuple(int(c) for c in counts), int(invalid), int(ties))

    @property
    def n(self) -> int:
        """All draws, the invalid ones included."""
        return sum(self.counts) + self.invalid

    @property
    def leader(self) -> int | None:
        """The class with the most votes, the lowest one if several share them; None if nobody voted."""
        most = max(self.counts, default=0)
        return self.counts.index(most) if most > 0 else None

    def rival(self, label: int) -> int:
        """The most votes that anything but `label` got, where voting for no class counts as a class."""
        return max((*self.counts[:label], *self.counts[label + 1 :], self.invalid))

    def __add__(self, other: Votes) -> Votes:
        if len(self.counts) != len(other.counts):
            raise ValueError(f"cannot add votes over {len(self.counts)} and {len(other.counts)} classes")
        counts = (a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Votes.of(counts, self.invalid + other.invalid, self.ties + other.ties)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a certification procedure concludes about one input.

    `q_a_upper` bounds 1 − p_A from above and `p_b_upper` every rival's probability; the failure side is
    stored because 1 − q loses the digits that large radii are made of. `separation`, where it is given, is the
    certified radius over σ: from a procedure that tests radii and bounds no probabilities, or from one that certifies a
    lead (a margin). `label` is None when the procedure has no class to claim. `reason` tells why it stopped: "claimed"
    (all it was asked for), "futile" (more draws would not have been worth it) or "budget" (it drew all that it had
    planned).
    """

    label: int | None
    q_a_upper: float = 1.0
    p_b_upper: float = 1.0
    separation: float | None = None
    reason: str = "budget"

    @property
    def p_a_lower(self) -> float:
        """Lower bound on p_A, for reading; radii are computed from `q_a_upper`."""
        return max(0.0, math.nextafter(1.0 - self.q_a_upper, -math.inf))


@dataclass(frozen=True, slots=True)
class Decision:
    """What a prediction procedure concludes: a class, or None to abstain, the test's p-value and why it stopped."""

    label: int | None
    p_value: float
    reason: str = "budget"


def floor_decimal(value: float, digits: int = 3) -> str:
    """Print `value` with `digits` decimals, rounded down: a printed radius never exceeds the computed one.

    >>> floor_decimal(0.4999), floor_decimal(0.29, 2), floor_decimal(1.69e-8, 9)
    ('0.499', '0.29', '0.000000016')
    """
    text = f"{value:.{digits}f}"
    if float(text) <= value:
        return text
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR):f}"


def ceil_decimal(value: float, digits: int = 3) -> str:
    """Print `value` with `digits` decimals, rounded up: for the size of an attack, which bounds robustness from above.

    >>> ceil_decimal(0.4991), ceil_decimal(0.29, 2), ceil_decimal(1e-9, 6)
    ('0.500', '0.29', '0.000001')
    """
    text = f"{value:.{digits}f}"
    if float(text) >= value:
        return text
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING):f}"


def exact_decimal(value: float) -> str:
    """Print a radius that was asked for with all its digits: rounded up, it would claim more than was tested.

    >>> exact_decimal(0.0), exact_decimal(0.125), exact_decimal(0.12345678)
    ('0', '0.125', '0.12345678')
    """
    return repr(float(value)).removesuffix(".0")


NO_RADIUS = "class only, no radius"
_NEGLIGIBLE = 1e-9
"""Below this, a radius is a margin for rounding: a test of radius 0 certifies 1e-12·σ."""


def radius_text(radius: float) -> str:
    """Print the radius of a certificate, rounded down, and never as 0.

    >>> radius_text(0.12349), radius_text(0.0000319), radius_text(5e-13)
    ('0.1234', '0.000031', 'class only, no radius')
    """
    if not radius >= _NEGLIGIBLE:
        return NO_RADIUS
    return floor_decimal(radius, max(4, 1 - math.floor(math.log10(radius))))


def floor_float32(value: float) -> np.float32:
    """The largest float32 that does not exceed `value`."""
    nearest = np.float32(value)
    return nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))


_REASONS = {
    "claimed": "claimed all it was asked for",
    "futile": "futile to go on",
    "budget": "all planned draws made",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What certificates and predictions have in common: the claim's settings and the evidence."""

    label: int | None
    alpha: float
    sigma: float
    noise: str
    procedure: Mapping[str, Any]
    stages: tuple[Votes, ...]
    key: str = field(repr=False)
    input_id: str = field(repr=False)
    executed: str | None = None
    """What answered in the network's place, such as an int8 copy of it: the claim is about that. None: itself."""

    @property
    def abstained(self) -> bool:
        """True when no class is claimed."""
        return self.label is None

    @property
    def draws(self) -> int:
        """How many noisy copies were classified, over all stages."""
        return sum(stage.n for stage in self.stages)

    @property
    def votes(self) -> Votes | None:
        """The votes of all stages together; None where nothing was drawn."""
        return sum(self.stages[1:], start=self.stages[0]) if self.stages else None

    @property
    def invalid(self) -> int:
        """Draws without a usable answer, over all stages."""
        return sum(stage.invalid for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python values ready for JSON; `from_dict` reads it back unchanged."""
        values = asdict(self)
        values["procedure"] = dict(self.procedure)
        values["stages"] = [{**stage, "counts": list(stage["counts"])} for stage in values["stages"]]
        return values

    def _rows(self) -> list[tuple[str, str]]:
        invalid = [("without an answer", f"{self.invalid:,}")] if self.invalid else []
        executed = [("base classifier", f"run by {self.executed}")] if self.executed else []
        return [
            *executed,
            ("smoothing", f"{self.noise} noise, σ = {self.sigma:g}"),
            ("failure probability", f"at most α = {self.alpha:g}"),
            ("procedure", str(self.procedure["name"])),
            ("stopped", _REASONS.get(self._reason(), self._reason())),
            ("draws", _summands(self.stages)),
            *invalid,
        ]

    def _headline(self) -> str:
        raise NotImplementedError

    def _reason(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._headline()}; {', '.join(f'{k} {v}' for k, v in self._rows())}>"

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._rows())
        return f"<table><caption>{escape(self._headline())}</caption>{cells}</table>"


def _summands(stages: tuple[Votes, ...]) -> str:
    """The draws of every stage, or only their sum where that would be a long list."""
    if len(stages) <= 3:
        return " + ".join(f"{stage.n:,}" for stage in stages)
    return f"{sum(stage.n for stage in stages):,} in {len(stages)} stages"


def _stages(values: Iterable[Mapping[str, Any]]) -> tuple[Votes, ...]:
    return tuple(Votes.of(v["counts"], v["invalid"], v["ties"]) for v in values)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Certificate(_Result):
    """The smoothed classifier returns `label` everywhere within `radius` of the input, in L2.

    With probability at least 1 − `alpha` over the noise, the claim is true. `label` is None and `radius`
    0.0 when nothing is claimed. With a `margin`, the class leads every other class by at least that much in probability
    everywhere within `radius`.
    """

    radius: float
    bounds: Bounds

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Read back what `to_dict` wrote."""
        return cls(**{**values, "bounds": Bounds(**values["bounds"]), "stages": _stages(values["stages"])})

    @property
    def margin(self) -> float:
        """The lead in probability that the class keeps within the radius; 0.0 for being in the lead."""
        return float(self.procedure.get("margin", 0.0))

    def _reason(self) -> str:
        return self.bounds.reason

    def _headline(self) -> str:
        if self.label is None:
            return "abstains, nothing certified"
        claim = f"leads by at least {exact_decimal(self.margin)}" if self.margin else "certified"
        radius = radius_text(self.radius)
        if radius == NO_RADIUS:
            return f"class {self.label} {claim}, {NO_RADIUS}"
        return f"class {self.label} {claim} within L2 radius {radius}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(_Result):
    """The smoothed classifier's class at the input, or None.

    With probability at least 1 − `alpha` over the noise, `label` is None or the smoothed classifier's class.
    """

    p_value: float
    reason: str = "budget"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Prediction:
        """Read back what `to_dict` wrote."""
        return cls(**{**values, "stages": _stages(values["stages"])})

    def _reason(self) -> str:
        return self.reason

    def _headline(self) -> str:
        return "abstains" if self.label is None else f"class {self.label}"

"""What attacks came to, in numbers. Reading a run needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_choice
from smoothcert.errors import ConfigError
from smoothcert.runs.directory import Run
from smoothcert.runs.journal import Row
from smoothcert.runs.scope import certified_margin
from smoothcert.stats.bounds import clopper_pearson_lower, clopper_pearson_upper

_STEPS = 7


@dataclass(frozen=True, slots=True)
class Outcome:
    """Attempts of one attack within one multiple of the certified radius, and what became of them."""

    attack: str
    factor: float
    attempts: int
    successes: int
    abstentions: int
    violations: int

    @property
    def interval(self) -> tuple[float, float]:
        """The share of successes lies within it with a confidence of 95 %."""
        k, n = self.successes, self.attempts
        return float(clopper_pearson_lower(k, n, 0.025)), float(clopper_pearson_upper(k, n, 0.025))


@dataclass(frozen=True, slots=True)
class Violation:
    """A success within a certified radius, and all that is needed to see it again."""

    index: int
    attack: str
    factor: float
    norm: float
    radius: float
    label: int
    answer: int
    point: Mapping[str, Any] | None


def is_success(attempt: Row, label: int) -> bool:
    """True if the judge says that the class is another one."""
    return attempt["label"] is not None and attempt["label"] != label


def is_violation(attempt: Row, label: int, radius: float) -> bool:
    """True for a success within the certified radius, which must not be."""
    return is_success(attempt, label) and attempt["norm"] < radius


def outcomes(run: Run) -> list[Outcome]:
    """The outcomes of an attack run, by attack and multiple of the radius."""
    _check_kind(run, "attack")
    found = []
    for attack in run.manifest.values["attacks"]:
        for factor in run.manifest.values["factors"]:
            tried = [pair for pair in _attempts(run) if (pair[1]["attack"], pair[1]["factor"]) == (attack, factor)]
            found.append(
                Outcome(
                    attack,
                    factor,
                    len(tried),
                    sum(is_success(one, row["label"]) for row, one in tried),
                    sum(one["label"] is None for _, one in tried),
                    sum(is_violation(one, row["label"], row["radius"]) for row, one in tried),
                )
            )
    return found


def violations(run: Run) -> list[Violation]:
    """The successes within certified radii."""
    _check_kind(run, "attack")
    return [
        Violation(
            row["index"], one["attack"], one["factor"], one["norm"], row["radius"], row["label"], one["label"],
            one.get("point"),
        )
        for row, one in _attempts(run)
        if is_violation(one, row["label"], row["radius"])
    ]  # fmt: skip


def expected_violations(run: Run) -> float:
    """How many inputs may show a violation by chance: certificates and judges may each be wrong with their α."""
    values = run.manifest.values
    inside = sum(factor <= 1 for factor in values["factors"]) * len(values["attacks"])
    return len(run.rows) * (values["attacked"]["alpha"] + inside * values["alpha"])


def perturbation_norms(run: Run, attack: str | None = None) -> npt.NDArray[np.float64]:
    """Of an attack on a base classifier: the smallest perturbation for each input, by all attacks or by one.

    0 where it was wrong already, infinite where nothing was found or the input failed.
    """
    _check_kind(run, "attack-base")
    if attack is not None:
        check_choice("attack", attack, run.manifest.values["attacks"])
    rows = [row.get("norm") if attack is None else row.get("norms", {}).get(attack) for row in run.rows]
    return np.array([np.inf if norm is None else norm for norm in rows], np.float64)


def robust_at_most(norms: npt.NDArray[np.float64], radius: float) -> float:
    """An upper bound on robust accuracy: the share of inputs without a perturbation of at most `radius`."""
    return float(np.mean(norms > radius))


def table_radii(norms: npt.NDArray[np.float64]) -> list[float]:
    """Seven steps of two digits from 0 up to the largest perturbation or just beyond, printed without rounding.

    >>> table_radii(np.array([0.1, 1.0, np.inf]))
    [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05]
    """
    largest = float(norms[np.isfinite(norms)].max(initial=0.0)) or 1.0
    digits = 1 - math.floor(math.log10(largest / _STEPS))
    step = math.ceil(largest / _STEPS * 10.0**digits)  # in units of the last digit
    return [round(number * step * 10.0**-digits, digits) for number in range(_STEPS + 1)]


def summarize_attack(run: Run) -> dict[str, Any]:
    """An attack run as one JSON object."""
    summary: dict[str, Any] = {
        "kind": run.manifest.kind,
        "inputs": len(run.manifest.indices),
        "rows": len(run.rows),
        "errors": len(run.errors),
    }
    if run.manifest.kind == "attack-base":
        norms = perturbation_norms(run)
        correct = norms[(norms > 0) & np.array(["error" not in row for row in run.rows], np.bool_)]
        median = float(np.median(correct)) if len(correct) else 0.0
        return summary | {"correct": len(correct), "median_norm": median if np.isfinite(median) else None}
    found = [
        {
            "attack": one.attack,
            "factor": one.factor,
            "attempts": one.attempts,
            "successes": one.successes,
            "abstentions": one.abstentions,
            "violations": one.violations,
        }
        for one in outcomes(run)
    ]
    inputs = sorted({one.index for one in violations(run)})
    return summary | {
        "margin": certified_margin(run),
        "outcomes": found,
        "violated": inputs,
        "expected_violations": expected_violations(run),
    }


def _attempts(run: Run) -> Iterator[tuple[Row, Row]]:
    return ((row, one) for row in run.rows for one in row.get("attempts", ()))


def _check_kind(run: Run, kind: str) -> None:
    if run.manifest.kind != kind:
        raise ConfigError(f"Expected a run of `smoothcert {kind}`, {run.path} is of kind {run.manifest.kind!r}.")

"""What a run's votes entitle to, computed anew: tables, figures and the page show this, never more than is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from smoothcert.errors import SmoothcertError
from smoothcert.noise import GaussianNoise
from smoothcert.progress import ProgressBar
from smoothcert.records import Bounds, Certificate, Decision, Prediction, Votes
from smoothcert.runs.directory import Run
from smoothcert.runs.verification import PROCEDURES
from smoothcert.stats.procedures import run

_CLOSE = 1e-9  # other versions of scipy differ in the last digits


@dataclass(frozen=True, slots=True)
class Claim:
    """A class, or None, and a radius; `disputed` if the votes do not give what is recorded."""

    label: int | None
    radius: float
    disputed: bool = False


def claims(run_: Run, on_row: Callable[[], None] | None = None) -> list[Claim]:
    """The claims of a run's rows: of the recorded ones and of those that the votes give, the weaker ones.

    Rows without votes, from a log of other code, and rows of a retired procedure are taken as they are. `on_row` is
    called after every row; without it, what takes long shows its progress on a terminal.
    """
    if on_row is None:
        with ProgressBar("recomputing from the votes", len(run_.rows)) as bar:
            return claims(run_, bar.advance)
    recomputed = run_.has_votes and run_.retirement is None
    conclude = _conclusions(run_.sigma) if recomputed else None
    found = []
    for row, result in zip(run_.rows, run_.certificates, strict=True):
        recorded = Claim(row.get("label"), float(row.get("radius", 0.0)))
        if "error" in row:
            found.append(Claim(None, 0.0))
        elif conclude is None:
            found.append(recorded)
        else:
            found.append(_weaker(recorded, None if result is None else conclude(*_evidence(result))))
        on_row()
    return found


def _evidence(result: Certificate | Prediction) -> tuple[tuple[tuple[str, Any], ...], tuple[Votes, ...]]:
    """The procedure's settings, at the α that the run states, and the votes, in a form that can be looked up."""
    stated = {**result.procedure, "alpha": result.alpha}
    settings = ((name, tuple(value) if isinstance(value, list) else value) for name, value in stated.items())
    return tuple(settings), result.stages


def _conclusions(sigma: float) -> Callable[..., Claim | None]:
    """A function from evidence to claim that computes what it has seen before only once; None if there is no claim."""
    theorem = GaussianNoise(sigma)

    @lru_cache(maxsize=4096)
    def conclude(settings: tuple[tuple[str, Any], ...], stages: tuple[Votes, ...]) -> Claim | None:
        named = dict(settings)
        try:
            procedure = PROCEDURES[named.pop("name")](**named)
            conclusion, used = run(procedure, lambda stage, _: stages[stage])
        except (SmoothcertError, ValueError, TypeError, LookupError):  # these votes are not this procedure's
            return None
        return _claim(conclusion, theorem) if used == stages else None

    return conclude


def _claim(conclusion: Bounds | Decision, theorem: GaussianNoise) -> Claim:
    if isinstance(conclusion, Decision):
        return Claim(conclusion.label, 0.0)
    radius = theorem.radius(conclusion)
    return Claim(conclusion.label if radius > 0 else None, radius)


def _weaker(recorded: Claim, computed: Claim | None) -> Claim:
    if computed is None or computed.label != recorded.label:
        return Claim(None, 0.0, disputed=True)
    agrees = math.isclose(recorded.radius, computed.radius, rel_tol=_CLOSE)
    return Claim(recorded.label, min(recorded.radius, computed.radius), disputed=not agrees)

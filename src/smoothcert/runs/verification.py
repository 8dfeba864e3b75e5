"""Verifying a run: every certificate made anew from its votes, and everything else that a run can show by itself.

A run is evidence that anyone can check: the manifest has a hash, each line a checksum bound to it, and each row the
votes that its claim rests on. Here nothing of that is believed. What a run cannot show by itself is that the votes are
the model's: that takes the model, the data and draws made again, or trust in whoever made the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import scipy
from scipy.special import bdtr, ndtr, ndtri

from smoothcert.errors import ConfigError, InputError, SmoothcertError
from smoothcert.noise import NOISES
from smoothcert.records import Bounds, Certificate, Prediction, Votes, exact_decimal
from smoothcert.runs.directory import Run, open_run
from smoothcert.runs.journal import Row
from smoothcert.runs.retired import current_settings
from smoothcert.runs.rows import row_result
from smoothcert.runs.scope import inputs_in_words
from smoothcert.stats.grid import Grid
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import FixedN, Predict, Running, SequentialPredict

PROCEDURES: dict[str, type[Any]] = {one.__name__: one for one in (FixedN, Planned, Grid, Predict, SequentialPredict)}
_SLACK = 1e-9  # the other formula's own rounding, far below any digit that is shown


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where: the line of the file of rows, or 0 for the run as a whole."""

    line: int
    words: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.words}" if self.line else self.words


@dataclass
class Verification:
    """What was checked, what was found wrong, and what could not be checked."""

    path: Path
    kind: str = ""
    rows: int = 0
    inputs: str = ""
    """Which inputs of the data the rows are about."""
    recomputed: int = 0
    drawn_again: int = 0
    retirement: str | None = None
    """Which version verifies the run, if this one does not have its procedure: then nothing was recomputed."""
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True when the run was checked and nothing was found wrong."""
        return not self.problems and self.retirement is None


def verify_run(path: Path, on_row: Callable[[int, int], None] = lambda _done, _total: None) -> Verification:
    """Check everything that the run in `path` can show by itself; `on_row` hears of rows done, and of all."""
    found = Verification(path)
    try:
        run = open_run(path)
    except SmoothcertError as error:
        found.problems.append(Problem(0, str(error)))
        return found
    found.kind, found.rows, found.inputs = run.manifest.kind, len(run.rows), inputs_in_words(run)
    found.retirement = run.retirement
    if found.retirement is not None:
        return found
    found.problems += _whole_run(run)
    for line, row in enumerate(run.rows, start=1):
        problems = list(_row_problems(row, run.manifest.values))
        found.problems += [Problem(line, words) for words in problems]
        found.recomputed += ("stages" in row or "attempts" in row) and not problems
        on_row(line, len(run.rows))
    found.unchecked += _unchecked(run)
    return found


def _whole_run(run: Run) -> Iterator[Problem]:
    """What concerns no single row."""
    values, indices = run.manifest.values, run.manifest.indices
    if run.notice:
        yield Problem(0, run.notice)
    if not run.complete:
        missing = len(indices) - len(run.rows)
        yield Problem(0, f"the run is not complete: {missing:,} of {len(indices):,} rows are missing")
    if len(set(indices)) != len(indices):
        yield Problem(0, "an input is listed twice in the manifest")
    total = values.get("data", {}).get("inputs")
    if total is not None and max(indices, default=0) >= total:
        yield Problem(0, f"the manifest lists input {max(indices)}, but the data has {total:,} inputs")
    for name in ("alpha", "sigma"):
        own = values["procedure"].get(name)
        if own is not None and own != values[name]:
            yield Problem(0, f"the manifest has {name} {values[name]!r}, its procedure {own!r}")
    if run.manifest.kind in ("import", "bound", "attack-base"):
        return
    try:
        procedure_of(values)
    except (ConfigError, TypeError, KeyError, ValueError) as error:
        yield Problem(0, f"the manifest's procedure cannot be: {error}")


def procedure_of(values: Mapping[str, Any], label: int | None = None) -> Any:
    """The procedure that a manifest describes, for an input whose class is known if `label` is given."""
    settings = current_settings(values["procedure"])
    name = settings.pop("name")
    if name not in PROCEDURES:
        raise ConfigError(f"there is none called {name!r}")
    if "radii" in settings:
        settings["radii"] = tuple(settings["radii"])
    if label is not None:
        settings["label"] = label
    return PROCEDURES[name](**settings)


def _row_problems(row: Row, values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one row."""
    classes = values["model"].get("num_classes")
    for name in ("true", "label"):
        value = row.get(name)
        if value is not None and (not _is_count(value) or (classes is not None and value >= classes)):
            yield f"{name} is {value!r}, which is no class"
    if "error" in row:
        if set(row) & {"label", "radius", "stages", "attempts", "norm", "norms"}:
            yield "an input that failed has a result"
        return
    if values["kind"] == "attack":
        yield from _attempt_problems(row, values)
        return
    if values["kind"] == "attack-base":
        yield from _norm_problems(row, values)
        return
    if "stages" not in row:
        yield from _claim_without_votes(row, values)
        return
    wrong = list(_vote_problems(row["stages"], classes))
    yield from wrong
    if not wrong:
        yield from _recomputed_problems(row, values)


def _attempt_problems(row: Row, values: Mapping[str, Any]) -> Iterator[str]:
    """Attempts of an attack: each as it should be, within its radius, judged as its votes say."""
    expected = [(attack, factor) for attack in values["attacks"] for factor in values["factors"]]
    attempts, radius = row.get("attempts"), row.get("radius")
    if not _is_number(radius) or radius <= 0:
        yield f"its certified radius is {radius!r}"
        return
    listed = isinstance(attempts, list) and all(isinstance(one, dict) for one in attempts)
    if not listed or [(one.get("attack"), one.get("factor")) for one in attempts] != expected:
        yield "its attempts are not those of the run"
        return
    for one in attempts:
        name = f"attack {one['attack']} within {exact_decimal(one['factor'])} R"
        if not _is_number(one.get("norm")) or not 0 <= one["norm"] < one["factor"] * radius:
            yield f"{name}: the perturbation's norm is {one.get('norm')!r}"
        judged = {**one, "index": row["index"], "true": row["true"]}
        wrong = list(_vote_problems(one.get("stages"), values["model"]["num_classes"]))
        for words in wrong or _recomputed_problems(judged, values):
            yield f"{name}: {words}"


def _norm_problems(row: Row, values: Mapping[str, Any]) -> Iterator[str]:
    """Norms of perturbations of a base classifier: numbers, of which the smallest counts."""
    norms = row.get("norms")
    if not isinstance(norms, dict) or list(norms) != values["attacks"]:
        yield "its norms are not those of the run's attacks"
        return
    found = [norm for norm in norms.values() if norm is not None]
    if any(not isinstance(norm, int | float) or norm < 0 for norm in found) or row.get("norm") != min(
        found, default=None
    ):
        yield f"its norm is {row.get('norm')!r}, the attacks found {norms!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _vote_problems(stages: Any, classes: Any) -> Iterator[str]:
    """Votes that cannot be: not whole numbers, for classes that are not there, or not as many as draws."""
    if not isinstance(stages, list) or not all(isinstance(one, dict) and "votes" in one for one in stages):
        yield "its votes cannot be read"
        return
    for number, stage in enumerate(stages, start=1):
        votes = stage["votes"]
        strange = [name for name in votes if not (name.isdecimal() and classes and int(name) < classes)]
        if strange or not all(_is_count(one) for one in (*votes.values(), *(stage.get(k, 0) for k in _EXTRA))):
            yield f"the votes of stage {number} cannot be"
        elif sum(votes.values()) + stage.get("invalid", 0) != stage.get("n"):
            yield f"the votes of stage {number} do not sum to its {stage.get('n')} draws"


_EXTRA = ("invalid", "ties")


def _claim_without_votes(row: Row, values: Mapping[str, Any]) -> Iterator[str]:
    """An imported row, or one of a deterministic bound: its radius must be one that is possible."""
    if values["kind"] not in ("import", "bound"):
        yield "it has no votes"
    radius = row.get("radius", 0.0)
    if not isinstance(radius, int | float) or not 0 <= radius < math.inf:
        yield f"its radius is {radius!r}"
    elif radius > 0 and row.get("label") is None:
        yield "it has a radius and no class"


def _recomputed_problems(row: Row, values: Mapping[str, Any]) -> Iterator[str]:
    """Run the procedure again on the recorded votes, and compare what it concludes."""
    try:
        result = row_result(row, values)
        label = row["true"] if values.get("known_labels") else None
        running = _rerun(procedure_of(values, label), result.stages)
    except (SmoothcertError, ValueError, TypeError, KeyError, IndexError) as error:
        yield f"its votes are not those of its procedure: {error}"
        return
    if isinstance(result, Prediction):
        decision = running.conclusion
        claimed = {"label": decision.label, "p_value": decision.p_value, "reason": decision.reason}
        yield from _differences(row, claimed, _tolerance(values))
        return
    yield from _certificate_problems(row, result, running.conclusion, _tolerance(values))


def _rerun(procedure: Any, stages: Sequence[Votes]) -> Running[Any]:
    running = Running(procedure)
    for stage in stages:
        if running.finished:
            raise InputError("there are more draws than the procedure asks for")
        running.give(stage)
    if not running.finished:
        raise InputError(f"{running.wanted:,} more draws are asked for than there are")
    return running


def _tolerance(values: Mapping[str, Any]) -> float:
    """Special functions may differ in their last digits between versions of SciPy, and only then."""
    return 0.0 if values["versions"].get("scipy") == scipy.__version__ else _SLACK


def _same(recorded: Any, value: Any, tolerance: float) -> bool:
    if isinstance(recorded, float) and isinstance(value, float):
        return math.isclose(recorded, value, rel_tol=tolerance, abs_tol=0.0)
    return bool(recorded == value)


def _differences(row: Row, claimed: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    for name, value in claimed.items():
        if not _same(row.get(name), value, tolerance):
            yield f"its {name} is {row.get(name)!r}, its votes give {value!r}"


def _certificate_problems(row: Row, result: Certificate, bounds: Bounds, tolerance: float) -> Iterator[str]:
    if row["noise"] not in NOISES:
        yield f"there is no noise called {row['noise']!r}"
        return
    radius = NOISES[row["noise"]](result.sigma).radius(bounds)
    label = bounds.label if radius > 0 else None
    yield from _differences(row, {"label": label, "radius": radius}, tolerance)
    pairs = zip(asdict(result.bounds).values(), asdict(bounds).values(), strict=True)
    if not all(_same(recorded, value, tolerance) for recorded, value in pairs):
        yield f"its bounds are {result.bounds}, its votes give {bounds}"
    elif radius > 0:
        yield from _other_arithmetic(result, bounds, radius)


def _other_arithmetic(result: Certificate, bounds: Bounds, radius: float) -> Iterator[str]:
    """The bound and the radius by other formulas than the ones they were made with."""
    depth = bounds.separation
    tests_radii = result.procedure["name"] == Grid.__name__
    if not tests_radii:
        votes = result.stages[-1]
        failures = votes.n - votes.counts[bounds.label]
        if bdtr(failures, votes.n, bounds.q_a_upper) > result.alpha * (1 + _SLACK):
            yield f"its bound {bounds.q_a_upper!r} is too good for {failures:,} failures in {votes.n:,} draws"
    if depth is None:
        depth = -(ndtri(bounds.q_a_upper) + ndtri(bounds.p_b_upper)) / 2
    has_lead = bool(result.margin) and not tests_radii
    too_deep = has_lead and depth > _largest_depth(bounds, depth, result.margin) + _SLACK
    if too_deep or radius > result.sigma * depth * (1 + _SLACK):
        yield f"its radius {radius!r} is more than its bounds allow"


def _largest_depth(bounds: Bounds, depth: float, margin: float) -> float:
    """How far A can be pushed down until it leads by the margin a rival that `depth` has pushed up."""
    rival = ndtr(ndtri(bounds.p_b_upper) + depth)
    return float(-ndtri(bounds.q_a_upper) - ndtri(min(rival + margin, 1.0)))


def _unchecked(run: Run) -> Iterator[str]:
    """What a run cannot show by itself."""
    if run.manifest.kind.startswith("attack"):
        yield "that the perturbed inputs were attacked and answered so: repeat the run with its seed or key"
        return
    without = sum("stages" not in row and "error" not in row for row in run.rows)
    if without and run.manifest.kind == "bound":
        yield f"{without:,} radii, which rest on the network alone: give --again to compute some of them once more"
    elif without:
        yield f"{without:,} radii: the run has no votes for them (an imported log)"
    if run.has_votes and _tolerance(run.manifest.values):
        yield f"digits beyond the ninth: the run was made with SciPy {run.manifest.values['versions'].get('scipy')}"
    if run.errors:
        yield f"{len(run.errors):,} inputs that failed: they have no result"
    if without < len(run.rows):
        yield "that the votes are the model's answers: give --again to draw some of them once more"
    yield "that the true classes are right, and that nobody chose among several runs, or inputs, by their results"

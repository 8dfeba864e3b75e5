"""Names for runs that are shown together: what tells them apart, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smoothcert.records import exact_decimal
from smoothcert.runs.directory import Run
from smoothcert.runs.scope import certified_margin

METHODS = {"lipschitz": "Lipschitz margin", "dual": "dual", "crown": "CROWN", "auto-lirpa": "auto_LiRPA"}


def _certified_by(values: dict[str, Any]) -> str:
    """The noise level, or the method of a deterministic bound."""
    method = values["procedure"].get("method")
    return f"σ = {values['sigma']:g}" if method is None else METHODS.get(method, str(method))


def _training(values: dict[str, Any]) -> str:
    sigma = values["model"].get("trained_sigma")
    return "" if sigma is None or sigma == values["sigma"] or _is_bound(values) else f"trained at {sigma:g}"


def _is_bound(values: dict[str, Any]) -> bool:
    """True for a deterministic bound, whose method says all."""
    return values["procedure"].get("method") is not None


def _procedure(values: dict[str, Any]) -> str:
    return "" if _is_bound(values) else str(values["procedure"].get("name", ""))


def _draws(values: dict[str, Any]) -> str:
    most = values["procedure"].get("n_max", values["procedure"].get("n"))
    return "" if most is None else f"n = {most:,}"


_TRAITS: tuple[Callable[[dict[str, Any]], str], ...] = (
    lambda values: str(values["model"].get("recipe") or ""),
    _certified_by,
    _training,
    lambda values: str(values.get("plan", {}).get("precision") or "fp32"),
    lambda values: str(values["data"]["name"]),
    _procedure,
    _draws,
    lambda values: "" if _is_bound(values) else f"α = {values['alpha']:g}",
)


def run_names(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, by the traits in which they differ; the directory's where these do not suffice.

    One run alone goes by its noise level. A margin is always told, because radii with it mean something else.
    """
    rows = [[trait(run.manifest.values) for trait in _TRAITS] for run in runs]
    # The second trait, the noise level, is what a run goes by when nothing else can be said.
    smoothed = [row for row, run in zip(rows, runs, strict=True) if not _is_bound(run.manifest.values)]
    telling = [
        number for number in range(len(_TRAITS)) if len({row[number] for row in (rows if number < 2 else smoothed)}) > 1
    ] or [1]
    names = [", ".join(filter(None, (row[number] for number in telling))) or row[1] for row in rows]
    names = _with_margins(names, runs)
    if len(set(names)) == len(names):
        return names
    return _with_margins(_places([run.path for run in runs]), runs)


def _with_margins(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    return [f"{name}{lead_text(run, before=', ')}" for name, run in zip(names, runs, strict=True)]


def lead_text(run: Run, *, before: str = "") -> str:
    """The lead that radii of a run are certified with, such as "lead ≥ 0.1"; empty where there is no margin."""
    margin = certified_margin(run)
    return f"{before}lead ≥ {exact_decimal(margin)}" if margin else ""


def _places(paths: Sequence[Path]) -> list[str]:
    """The part of each path that tells it apart, or all in which they differ; of equal ones their order."""
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts))
    aligned = [("",) * (longest - len(one)) + one for one in parts]
    telling = [place for place in range(longest) if len({one[place] for one in aligned}) > 1]
    for place in telling:
        if len({one[place] for one in aligned}) == len(paths):
            return [one[place] for one in aligned]
    names = ["/".join(filter(None, (one[place] for place in telling))) for one in aligned]
    return names if len(set(names)) == len(names) else [str(number) for number in range(1, len(paths) + 1)]

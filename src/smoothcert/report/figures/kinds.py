"""Every kind of figure by name: what draws it, what it shows, how many runs it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smoothcert.checks import check_choice
from smoothcert.errors import ConfigError
from smoothcert.report.figures.accuracy import accuracy_of_runs, lower_bound, training_noise
from smoothcert.report.figures.attacks import attack_success
from smoothcert.report.figures.decision_regions import decision_regions
from smoothcert.report.figures.distributions import class_accuracy, draws, radius_histogram
from smoothcert.report.figures.half_spaces import linear, proof, worst_case
from smoothcert.report.figures.images import noise, resolution
from smoothcert.report.figures.predictions import predictions
from smoothcert.report.figures.projections import best_radius, other_alpha, other_n
from smoothcert.report.figures.theorems import theorem_accuracy, theorem_radius, tuning
from smoothcert.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ANY = 1_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of figure: `draw(runs, **options)`, from `least` to `most` runs, and what to type to get one."""

    draw: Callable[..., Figure]
    help: str
    example: str
    least: int = 1
    most: int = 1

    @property
    def options(self) -> dict[str, bool]:
        """The options by name, and whether each must be given."""
        parameters = list(inspect.signature(self.draw).parameters.values())[1:]  # the first are the runs
        return {one.name: one.default is inspect.Parameter.empty for one in parameters}


FIGURES: dict[str, Kind] = {
    "certified-accuracy": Kind(
        accuracy_of_runs,
        "certified accuracy against radius, one curve per run; dashed an undefended network under attack",
        "run-0.25 run-0.5 run-1 --undefended attacked-base",
        most=_ANY,
    ),
    "theorem-radius": Kind(
        theorem_radius, "radius against p_A: Theorem 1, Li et al., Lecuyer et al.", "", least=0, most=0
    ),
    "theorem-accuracy": Kind(
        theorem_accuracy,
        "certified accuracy by Theorem 1, Li et al. and Lecuyer et al., from the same votes",
        "votes.npz --sigma 0.25 --labels labels.npy",
    ),
    "other-n": Kind(other_n, "certified accuracy projected to other numbers of draws", "run --n 1000 10000 1000000"),
    "other-alpha": Kind(
        other_alpha, "certified accuracy projected to other failure probabilities", "run --alphas 0.01 0.001 0.0001"
    ),
    "training-noise": Kind(
        training_noise,
        "networks trained at several noise levels, smoothed at one",
        "run-a run-b --trained 0.25 0.5",
        most=_ANY,
    ),
    "lower-bound": Kind(
        lower_bound, "approximate certified accuracy and its lower bounds at confidence 1 − ρ", "run --rho 0.001"
    ),
    "best-radius": Kind(
        best_radius, "largest radius against draws, all votes for one class", "--sigma 0.5", least=0, most=0
    ),
    "predictions": Kind(
        predictions,
        "PREDICT against draws: correct, accurate, abstained; the run with the most draws is the standard",
        "run-100 run-1000 run-100000",
        least=2,
        most=_ANY,
    ),
    "tuning": Kind(
        tuning, "the bounds of Lecuyer et al. and Li et al. over their tuning parameters", "", least=0, most=0
    ),
    "attack-success": Kind(
        attack_success,
        "attack success against radius, in units of the certified one",
        "attacked",
        least=0,
        most=_ANY,
    ),
    "noise": Kind(
        noise, "images under noise at several σ", "--data cifar10 --indices 0 1 2 --sigmas 0.25 0.5 1", least=0, most=0
    ),
    "resolution": Kind(
        resolution,
        "an image in low and high resolution under the same noise",
        "--data photographs --size 224 --indices 0 --factor 4",
        least=0,
        most=0,
    ),
    "draws": Kind(draws, "draws per input: how many inputs were done after how many", "run-a run-b", most=_ANY),
    "class-accuracy": Kind(class_accuracy, "certified accuracy of each class at some radii", "run --radii 0 0.25 0.5"),
    "radius-histogram": Kind(radius_histogram, "how many inputs have which radius", "run-0.25 run-0.5", most=_ANY),
    "decision-regions": Kind(
        decision_regions,
        "a classifier of two-dimensional inputs under noise, its votes and their bounds; default: a toy network",
        "--model file.py:network --point 0.4 0.7 --sigma 0.1",
        least=0,
        most=0,
    ),
    "worst-case": Kind(
        worst_case, "the worst classifier with these p_A and p_B at x, beside another", "--p-a 0.9", least=0, most=0
    ),
    "proof": Kind(
        proof,
        "the half-spaces in the proof of Theorem 1, within the radius and beyond",
        "--p-a 0.8 --p-b 0.05",
        least=0,
        most=0,
    ),
    "linear": Kind(
        linear,
        "a linear classifier: smoothing leaves it as it is, the radius is its distance",
        "--p-a 0.85",
        least=0,
        most=0,
    ),
}


def draw_figure(kind: str, runs: Sequence[Run], options: Mapping[str, Any]) -> Figure:
    """The figure of a kind; ConfigError for another number of runs than it takes, or options it does not know."""
    check_kind(kind, len(runs), options)
    return FIGURES[kind].draw(runs, **options)


def check_kind(kind: str, runs: int, given: Mapping[str, Any]) -> None:
    """Raise ConfigError unless `kind` takes so many runs and the options that are given, and has those it needs."""
    chosen = FIGURES[check_choice("kind", kind, FIGURES)]
    if not chosen.least <= runs <= chosen.most:
        raise ConfigError(f"Expected {_how_many(chosen)} for {kind}, got {runs}.")
    for name in given:
        if name not in chosen.options:
            known = ", ".join(chosen.options) or "none"
            raise ConfigError(f"The option `{name}` has no meaning for {kind}; its own are: {known}.")
    for name, required in chosen.options.items():
        if required and name not in given:
            raise ConfigError(f"For {kind}, `{name}` must be given.")


def _how_many(kind: Kind) -> str:
    if kind.most == 0:
        return "no run"
    if kind.least == kind.most:
        return f"exactly {kind.least} run"
    return f"at least {kind.least} runs" if kind.least != 1 else "at least one run"

"""What figures are drawn from: the claims of runs, votes on record, the sizes of perturbations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert import __version__
from smoothcert.checks import check_alpha, check_sigma
from smoothcert.data.names import printable
from smoothcert.data.numpy_files import read_numpy
from smoothcert.errors import ConfigError, InputError
from smoothcert.noise import GaussianNoise
from smoothcert.records import Bounds, Certificate, Votes
from smoothcert.replay import load_labels, load_votes, without_replacement
from smoothcert.report.claims import claims
from smoothcert.report.naming import lead_text, run_names
from smoothcert.runs.attack_summary import perturbation_norms
from smoothcert.runs.directory import Run, open_run
from smoothcert.runs.manifest import FORMAT, Manifest
from smoothcert.runs.rows import result_row
from smoothcert.runs.scope import radii_tested
from smoothcert.stats.procedures import FixedN, describe
from smoothcert.stats.procedures import run as run_procedure

_SELECTION = 100  # the paper's n0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The radius claimed for each input, and whether it counts: the class is true, or, without labels, is there."""

    radii: Floats
    counted: npt.NDArray[np.bool_]
    labelled: bool
    tested: tuple[float, ...] | None = None
    """The radii that were tested, if not every radius is decided."""
    lead: str = ""
    """The lead that the class keeps within the radius, such as "lead ≥ 0.1", for a run with a margin."""

    @property
    def ylabel(self) -> str:
        """What a share of these claims is called."""
        share = "certified accuracy" if self.labelled else "certified inputs"
        return f"{share}, {self.lead} (%)" if self.lead else f"{share} (%)"


def claims_of(run: Run) -> Claims:
    """What a run's votes entitle to, and of a log what it says; ConfigError if it has no radii."""
    if not run.certifies:
        what = "predictions" if run.predicts else "attacks"
        raise ConfigError(f"{run.path} holds {what}, which have no radii. Needed is a run that certifies.")
    if not run.rows:
        raise ConfigError(f"Expected rows in {run.path}, there are none yet.")
    found, truths = claims(run), [row["true"] for row in run.rows]
    labelled = any(truth is not None for truth in truths)
    counted = [
        one.label is not None and (not labelled or one.label == truth) for one, truth in zip(found, truths, strict=True)
    ]
    radii = np.array([one.radius for one in found], np.float64)
    return Claims(radii, np.array(counted, np.bool_), labelled, radii_tested(run), lead_text(run))


def shared_ylabel(claims: Sequence[Claims]) -> str:
    """The name of the share on an axis that several runs share; ConfigError if they are not of one kind.

    Runs with different margins may share an axis: the names of the curves tell their leads.
    """
    if len({claim.labelled for claim in claims}) > 1:
        raise ConfigError("Some of these runs have labels and some have none: their curves do not mean the same.")
    leads = {claim.lead for claim in claims}
    return claims[0].ylabel if len(leads) == 1 else replace(claims[0], lead="").ylabel


def names_of(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[str]:
    """The names in a legend: those given, or what tells the runs apart."""
    if names is None:
        return run_names(runs)
    if len(names) != len(runs):
        raise ConfigError(f"Expected a name for each of the {len(runs)} runs in `names`, got {len(names)}.")
    return list(names)


# Votes on record


def recorded_run(
    path: Path, *, sigma: float, alpha: float = 0.001, labels: Path | None = None, array: str | None = None
) -> Run:
    """A run of the paper's CERTIFY on votes [inputs, classes] from a file, in memory only.

    Of each row's votes, 100 taken at random choose the class and all others bound it: so the guarantee of CERTIFY
    holds for draws that are on record only as sums. The same file always gives the same run.
    """
    sigma, alpha = check_sigma(sigma), check_alpha(alpha)
    votes = load_votes(path, array, sigma=sigma)
    truths = None if labels is None else load_labels(labels)
    if truths is not None and (len(truths) != len(votes) or truths.min() < 0 or truths.max() >= votes.shape[1]):
        raise InputError(f"Expected {len(votes)} labels from 0 to {votes.shape[1] - 1} in {printable(labels)}.")
    totals = np.unique(votes.sum(axis=1))
    if len(totals) > 1 or totals[0] <= _SELECTION:
        raise InputError(
            f"Expected the same number of votes in each row of {printable(path)}, more than {_SELECTION}, got "
            f"{totals[0]:,} to {totals[-1]:,}."
        )
    procedure = FixedN(n=int(totals[0]) - _SELECTION, n0=_SELECTION, alpha=alpha)
    rows = [
        {"index": i, "true": None if truths is None else int(truths[i]), **_certified(counts, procedure, sigma, i)}
        for i, counts in enumerate(votes)
    ]
    return Run(path, Manifest(_described(path, procedure, sigma, votes.shape)), rows)


def _certified(counts: npt.NDArray[np.int64], procedure: FixedN, sigma: float, index: int) -> dict[str, Any]:
    bounds, stages = run_procedure(procedure, without_replacement(counts, np.random.default_rng([0, index])))
    return result_row(_certificate(bounds, stages, procedure, sigma))


def _certificate(bounds: Bounds, stages: tuple[Votes, ...], procedure: FixedN, sigma: float) -> Certificate:
    radius = GaussianNoise(sigma).radius(bounds)
    return Certificate(
        label=bounds.label if radius > 0 else None,
        radius=radius,
        bounds=bounds,
        alpha=procedure.alpha,
        sigma=sigma,
        noise="gaussian",
        procedure=describe(procedure),
        stages=stages,
        key="",
        input_id="",
    )


def _described(path: Path, procedure: FixedN, sigma: float, shape: tuple[int, ...]) -> dict[str, Any]:
    """A manifest with what figures ask for."""
    return {
        "format": FORMAT,
        "kind": "certify",
        "sigma": sigma,
        "alpha": procedure.alpha,
        "procedure": describe(procedure),
        "known_labels": False,
        "model": {"source": None, "num_classes": shape[1], "classes": None},
        "data": {"name": printable(path.name), "classes": None},
        "indices": list(range(shape[0])),
        "key": "",
        "versions": {"smoothcert": __version__},
    }


# Perturbations


def load_norms(path: Path) -> Floats:
    """The sizes of the perturbations that an attack found, by input: of a run of `attack-base`, or .npy, .npz or .json.

    0 where the classifier was wrong already, infinite (in JSON: null) where the attack found nothing. An .npz file
    holds them as `norms` or alone, a .json file as a list or under "norms".
    """
    if path.is_dir():
        return check_norms(perturbation_norms(open_run(path)), printable(path))
    try:
        values = _json_norms(path) if path.suffix == ".json" else _array_norms(path)
        norms = np.asarray(values, np.float64)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"Cannot read norms from {printable(path)}: {error}.") from error
    return check_norms(norms, printable(path))


def check_norms(norms: npt.ArrayLike, where: str = "`norms`") -> Floats:
    """`norms` as an array, if it is a list of numbers of at least 0."""
    array = np.asarray(norms, np.float64)
    if array.ndim != 1 or array.size == 0 or not np.all(array >= 0):  # written so that NaN is refused
        raise InputError(f"Expected a list of norms >= 0 in {where}, got shape {array.shape}.")
    return array


def _json_norms(path: Path) -> list[float]:
    content = json.loads(path.read_text("utf-8"))
    numbers = content["norms"] if isinstance(content, dict) else content
    return [math.inf if number is None else float(number) for number in numbers]


def _array_norms(path: Path) -> npt.NDArray[Any]:
    content = read_numpy(path)
    if isinstance(content, np.ndarray):
        return content
    if len(content) == 1:
        return next(iter(content.values()))
    return content["norms"]

"""Runs: certify, predict, bound or attack a whole data set into a directory that loses nothing.

Reading one needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoothcert.runs.directory import Run
from smoothcert.runs.directory import open_run as open  # noqa: A004 - runs.open, as gzip.open
from smoothcert.runs.settings import (
    AttackSettings,
    BaseAttackSettings,
    BoundSettings,
    CertifySettings,
    PredictSettings,
)

if TYPE_CHECKING:
    from smoothcert.data.dataset import Dataset

__all__ = [
    "AttackSettings",
    "BaseAttackSettings",
    "BoundSettings",
    "CertifySettings",
    "PredictSettings",
    "Run",
    "attack",
    "attack_base_dataset",
    "bound_dataset",
    "certify_dataset",
    "open",
    "predict_dataset",
]


def certify_dataset(
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: CertifySettings,
    *,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Certify the inputs of `data` under `indices`, by default all, into the run directory `out`.

    With probability at least 1 − settings.alpha over the noise, each certificate's claim is true. `model` is anything
    that `models.load` takes. A run that was cut off goes on with `resume=True`. A progress bar shows on a terminal, or
    as `progress` says.
    """
    from smoothcert.runs.smoothing import run_dataset

    return _run(run_dataset, model, data, Path(out), settings, indices, resume, progress)


def predict_dataset(
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: PredictSettings,
    *,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Predict the smoothed classifier's class of inputs, as `certify_dataset` certifies them.

    With probability at least 1 − settings.alpha over the noise, each label is the smoothed classifier's class or None.
    """
    from smoothcert.runs.smoothing import run_dataset

    return _run(run_dataset, model, data, Path(out), settings, indices, resume, progress)


def bound_dataset(
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: BoundSettings,
    *,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Certify a network's own answers by a deterministic bound, as `certify_dataset` certifies the smoothed ones."""
    from smoothcert.runs import bounding

    return _run(bounding.bound_dataset, model, data, Path(out), settings, indices, resume, progress)


def attack_base_dataset(
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: BaseAttackSettings,
    *,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Look for the smallest perturbations that change a network's answers, without noise."""
    from smoothcert.runs import attacking

    return _run(attacking.attack_base_dataset, model, data, Path(out), settings, indices, resume, progress)


def attack(
    run: Run,
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: AttackSettings,
    *,
    inputs: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Attack the inputs that `run` certifies, within multiples of their radii; at most so many `inputs` of them."""
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.attacking import attack_run
    from smoothcert.runs.watch import Watch

    with Watch(settings.kind, enabled=progress) as watch:
        return attack_run(
            run,
            ModelSpec(source=model),
            data,
            settings,
            Path(out),
            most=inputs,
            resume=resume,
            on_start=watch.start,
            on_rows=watch.rows,
            on_draws=watch.draws,
        )


def _run(
    work: Callable[..., Run],
    model: Any,
    data: Dataset,
    out: Path,
    settings: Any,
    indices: Sequence[int] | None,
    resume: bool,
    progress: bool | None,
) -> Run:
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.watch import Watch

    with Watch(settings.kind, enabled=progress) as watch:
        return work(
            ModelSpec(source=model),
            data,
            settings,
            out,
            indices=indices,
            resume=resume,
            on_start=watch.start,
            on_rows=watch.rows,
            on_draws=watch.draws,
        )

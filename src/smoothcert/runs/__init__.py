"""Runs: certify or predict a whole data set into a directory that loses nothing. Reading one needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoothcert.runs.directory import Run
from smoothcert.runs.directory import open_run as open  # noqa: A004 - runs.open, as gzip.open
from smoothcert.runs.settings import CertifySettings, PredictSettings

if TYPE_CHECKING:
    from smoothcert.data.dataset import Dataset

__all__ = ["CertifySettings", "PredictSettings", "Run", "certify_dataset", "open", "predict_dataset"]


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
    return _run(model, data, Path(out), settings, indices, resume, progress)


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
    return _run(model, data, Path(out), settings, indices, resume, progress)


def _run(
    model: Any,
    data: Dataset,
    out: Path,
    settings: CertifySettings | PredictSettings,
    indices: Sequence[int] | None,
    resume: bool,
    progress: bool | None,
) -> Run:
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.driver import run_dataset
    from smoothcert.runs.watch import Watch

    with Watch(settings.kind, enabled=progress) as watch:
        return run_dataset(
            ModelSpec(source=model),
            data,
            settings,
            out,
            indices=indices,
            resume=resume,
            on_start=lambda done, total, _: watch.start(done, total),
            on_rows=watch.rows,
            on_draws=watch.draws,
        )

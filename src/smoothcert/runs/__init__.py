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
) -> Run:
    """Certify the inputs of `data` under `indices`, by default all, into the run directory `out`.

    With probability at least 1 − settings.alpha over the noise, each certificate's claim is true. `model` is anything
    that `models.load` takes. A run that was cut off goes on with `resume=True`.
    """
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.driver import run_dataset

    return run_dataset(ModelSpec(source=model), data, settings, Path(out), indices=indices, resume=resume)


def predict_dataset(
    model: Any,
    data: Dataset,
    out: str | Path,
    settings: PredictSettings,
    *,
    indices: Sequence[int] | None = None,
    resume: bool = False,
) -> Run:
    """Predict the smoothed classifier's class of inputs, as `certify_dataset` certifies them.

    With probability at least 1 − settings.alpha over the noise, each label is the smoothed classifier's class or None.
    """
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.driver import run_dataset

    return run_dataset(ModelSpec(source=model), data, settings, Path(out), indices=indices, resume=resume)

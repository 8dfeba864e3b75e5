"""Estimators of scikit-learn as base classifiers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothcert.errors import MissingExtraError, ModelError
from smoothcert.models.classifier import Classifier, Foreign
from smoothcert.models.hashes import hash_bytes
from smoothcert.models.torch_files import UNSAFE, first_line


def is_estimator(value: Any) -> bool:
    """True for a fitted or unfitted classifier of scikit-learn or in its likeness."""
    return hasattr(value, "predict") and hasattr(value, "get_params") and not isinstance(value, type)


def from_estimator(estimator: Any, source: str, weights_hash: str | None = None) -> Classifier:
    """A fitted estimator on flattened inputs: its probabilities where it has them, else its labels.

    Class k is the k-th of its sorted `classes_`. An estimator whose probabilities come from a model of their own and
    can contradict its answers (SVC) is asked for its answers.
    """
    classes = getattr(estimator, "classes_", None)
    if not isinstance(classes, np.ndarray) or classes.ndim != 1:
        raise ModelError(f"Expected a fitted classifier with classes_ in {source}, got {type(estimator).__name__}.")
    own_probabilities = not getattr(estimator, "probability", False) and hasattr(estimator, "predict_proba")
    return Classifier(
        network=Foreign(_Asked(estimator, classes, scores=own_probabilities)),
        source=source,
        kind="scikit-learn",
        weights_hash=weights_hash,
        num_classes=len(classes),
        classes=tuple(str(name) for name in classes),
        notes=() if own_probabilities else ("the estimator gives labels only",),
    )


class _Asked:
    """Hands a batch to an estimator as rows and returns scores [B, K] or class numbers [B]."""

    def __init__(self, estimator: Any, classes: np.ndarray, *, scores: bool) -> None:
        self._estimator, self._classes, self._scores = estimator, classes, scores

    def __call__(self, batch: Tensor) -> Tensor:
        rows = batch.reshape(len(batch), -1).numpy()
        if self._scores:
            return torch.from_numpy(np.asarray(self._estimator.predict_proba(rows), np.float64))
        return torch.from_numpy(np.searchsorted(self._classes, self._estimator.predict(rows)))


def load_joblib(path: Path, *, unsafe: bool) -> Classifier:
    """An estimator from a file of joblib or pickle, which can run any code: only if `unsafe`."""
    if not unsafe:
        raise ModelError(f"{path} is a pickle. {UNSAFE}.")
    try:
        import joblib
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "sklearn") from error
    try:
        content = path.read_bytes()
        estimator = joblib.load(io.BytesIO(content))
    except Exception as error:  # whatever the code in the file does
        raise ModelError(f"Expected an estimator in {path}: {type(error).__name__}: {first_line(error)}") from error
    return from_estimator(estimator, str(path), hash_bytes(content))

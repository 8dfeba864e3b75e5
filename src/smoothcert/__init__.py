"""Certified robustness for any classifier by randomized smoothing.

The public names are loaded on first use, so that importing the package, or its pure statistics, does not
import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothcert.models.layers import AvgPooled, Normalize, Resized
    from smoothcert.noise import GaussianNoise, GridGaussianNoise
    from smoothcert.records import Bounds, Certificate, Prediction, Votes
    from smoothcert.smoothed import Smoothed
    from smoothcert.stats.grid import Grid
    from smoothcert.stats.planned import Planned
    from smoothcert.stats.procedures import FixedN, Predict, SequentialPredict
    from smoothcert.stats.radii import draws_for, max_radius

__version__ = "0.1.0"

_HOMES = {
    "AvgPooled": "models.layers",
    "Bounds": "records",
    "Certificate": "records",
    "FixedN": "stats.procedures",
    "GaussianNoise": "noise",
    "Grid": "stats.grid",
    "GridGaussianNoise": "noise",
    "Normalize": "models.layers",
    "Planned": "stats.planned",
    "Predict": "stats.procedures",
    "Prediction": "records",
    "Resized": "models.layers",
    "SequentialPredict": "stats.procedures",
    "Smoothed": "smoothed",
    "Votes": "records",
    "draws_for": "stats.radii",
    "max_radius": "stats.radii",
}

__all__ = [
    "AvgPooled",
    "Bounds",
    "Certificate",
    "FixedN",
    "GaussianNoise",
    "Grid",
    "GridGaussianNoise",
    "Normalize",
    "Planned",
    "Predict",
    "Prediction",
    "Resized",
    "SequentialPredict",
    "Smoothed",
    "Votes",
    "draws_for",
    "max_radius",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

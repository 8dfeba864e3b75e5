"""Training base classifiers that stay accurate under the noise they will be smoothed with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smoothcert.training.settings import TrainSettings

if TYPE_CHECKING:
    from smoothcert.training.directory import make_plan, run_training
    from smoothcert.training.loop import seeded, train
    from smoothcert.training.recipes import RECIPES

# Loaded on first use: settings alone need no torch.
_HOMES = {
    "RECIPES": "recipes",
    "make_plan": "directory",
    "run_training": "directory",
    "seeded": "loop",
    "train": "loop",
}

__all__ = ["RECIPES", "TrainSettings", "make_plan", "run_training", "seeded", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""A model as a description of where it comes from, which can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from smoothcert.models.classifier import Classifier
from smoothcert.models.sources import load


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Where the model comes from, in a form that can be sent to another process; see `models.load`."""

    source: Any
    settings: dict[str, Any] = field(default_factory=dict)
    fitted: tuple[int, ...] | None = None

    def load(self, loaded: Classifier | None = None) -> Classifier:
        """The base classifier, for inputs of the shape it was fitted to; from `loaded`, if it is there already."""
        classifier = loaded or load(self.source, **self.settings)
        return classifier if self.fitted is None else classifier.fitted(self.fitted)

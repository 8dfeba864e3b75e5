"""Base classifiers: where they come from, the contract they must keep, layers to wrap them in, architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoothcert.models.sources import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":  # on first use: most parts of the house need the contract alone
        from smoothcert.models.sources import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

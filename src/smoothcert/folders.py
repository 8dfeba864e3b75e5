"""Where files that belong to the user rather than to a run are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$SMOOTHCERT_CACHE, or a folder of our own in the platform's cache directory."""
    own = os.environ.get("SMOOTHCERT_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or str(Path("~/.cache").expanduser())
    return Path(base) / "smoothcert"


def data_root(given: Path | str | None = None) -> Path:
    """The folder of the data sets: the one given, or $SMOOTHCERT_DATA, or the cache."""
    chosen = given or os.environ.get("SMOOTHCERT_DATA")
    return Path(chosen) if chosen else cache_root()

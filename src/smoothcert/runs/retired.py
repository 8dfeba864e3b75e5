"""Procedures of earlier versions that this version no longer has.

Their runs still open, and show the claims that they record. Recomputing a claim takes the procedure that made it, so
only a version that has it can verify them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smoothcert.errors import LAST_WITH_RETIRED_PARTS

_PROCEDURES = {"Wide": "wide"}


def retirement(recorded: Mapping[str, Any]) -> str | None:
    """Which version verifies a run with this recorded procedure, if it is a retired one."""
    name = _PROCEDURES.get(recorded.get("name", ""))
    if name is None:
        return None
    part = f"by the procedure `{name}`"
    return f"recorded {part}, which this version does not have; verify with {LAST_WITH_RETIRED_PARTS}"

"""Procedures and settings of earlier versions that this version no longer has.

Their runs still open, and show the claims that they record. Recomputing a claim takes the procedure that made it, so
only a version that has it can verify them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smoothcert.errors import LAST_WITH_RETIRED_PARTS


class _Retired(NamedTuple):
    """A procedure, or one of its settings that could be switched on, and how a notice refers to it."""

    procedure: str
    switch: str | None
    notice: str


_RETIRED = (
    _Retired("Wide", None, "by the procedure `wide`"),
    _Retired("Planned", "randomized", "with randomized bounds"),
)


def retirement(recorded: Mapping[str, Any]) -> str | None:
    """Which version verifies a run with this recorded procedure, if this version does not have it."""
    for part in _RETIRED:
        # This version does what a switch that was off did; any other value is not known to be off.
        is_used = part.switch is None or recorded.get(part.switch, False) is not False
        if recorded.get("name") == part.procedure and is_used:
            return f"recorded {part.notice}, which this version does not have; verify with {LAST_WITH_RETIRED_PARTS}"
    return None


def retired_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recorded procedure that this version does not have, where they are off."""
    switches = [part.switch for part in _RETIRED if part.switch and part.procedure == recorded.get("name")]
    return {switch: False for switch in switches if recorded.get(switch) is False}


def current_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded procedure without its retired settings."""
    retired = retired_settings(recorded)
    return {name: value for name, value in recorded.items() if name not in retired}

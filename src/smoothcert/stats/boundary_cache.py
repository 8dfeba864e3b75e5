"""Boundaries kept on disk between runs, in files that cannot make a test unsound.

What is read back is not trusted: a file must name exactly the test that is asked for, and the exact probability that
its boundary accepts wrongly is computed again. A file that is damaged, foreign or forged is therefore ignored, and at
worst a test gives up too early or too late. Computing that probability takes a third of the time of finding the
boundary with its give-up counts.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from smoothcert.folders import cache_root
from smoothcert.stats.boundaries import Boundary, crossing_probability, new_boundary

VERSION = 2  # to be raised whenever boundaries are found in another way
_MARGIN = 1e-9  # two ways to add up the same probabilities may differ by this much of alpha


def cache_folder() -> Path:
    """Where boundaries are kept."""
    return cache_root() / "boundaries"


@lru_cache(maxsize=4096)
def boundary(q: float, alpha: float, looks: tuple[int, ...], patience: float) -> Boundary:
    """The boundary of `new_boundary`, from memory or disk if a sound one is there; kept in both if not.

    A disk that cannot be read or written is no error: the boundary is computed.
    """
    # Floats in hexadecimal: no digit is lost.
    name = {"version": VERSION, "q": q.hex(), "alpha": alpha.hex(), "looks": list(looks), "patience": patience.hex()}
    path = cache_folder() / f"{hashlib.sha256(json.dumps(name).encode()).hexdigest()[:32]}.json"
    found = _read(path, name)
    if found is not None:
        wrongly = crossing_probability(q, looks, found.accept, negligible=alpha * 1e-9 / len(looks))
        if wrongly <= alpha * (1 + _MARGIN):
            return found
    made = new_boundary(q, alpha, looks, patience)
    _write(path, {**name, "accept": list(made.accept), "give_up": list(made.give_up)})
    return made


def _read(path: Path, name: dict[str, Any]) -> Boundary | None:
    try:
        content = json.loads(path.read_text("utf-8"))
        if {key: content.pop(key) for key in name} != name or set(content) != {"accept", "give_up"}:
            return None
        accept, give_up = content["accept"], content["give_up"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = [isinstance(rows, list) and all(type(v) is int for v in rows) for rows in (accept, give_up)]
    if not all(whole) or not len(accept) == len(give_up) == len(name["looks"]):
        return None
    if not all(a < g for a, g in zip(accept, give_up, strict=True)):
        return None
    return Boundary(tuple(name["looks"]), tuple(accept), tuple(give_up))


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write beside the place and rename, so that a reader never sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump(content, file)
        Path(file.name).replace(path)
    except OSError:
        return

"""A run's manifest: everything that determines its result, and where it was made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothcert.errors import ResumeError
from smoothcert.runs.journal import write_once

FORMAT = 1
FILE = "run.json"
_SUM = "hash"
# Told, but another one does not make another run.
_CIRCUMSTANCES = ("created", "host", "python", "source", "workers", "engine", "design")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What stands in run.json, by name; nested names in differences are written with dots."""

    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The file's content: one name per line, the hash of all others last."""
        whole = {**self.values, _SUM: _hash(self.values)}
        lines = (f" {json.dumps(name)}: {_json(value)}" for name, value in whole.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @property
    def run_id(self) -> str:
        """The hash of all that determines the result: every row's checksum is bound to it.

        Two runs of the same settings and key have the same rows, byte for byte, wherever they were made.
        """
        return _hash(_determining(self.values))

    @property
    def kind(self) -> str:
        """certify, predict or import."""
        return str(self.values["kind"])

    @property
    def indices(self) -> list[int]:
        """The inputs, in the order of the rows."""
        return list(self.values["indices"])

    def write(self, folder: Path) -> None:
        """Write the file, once and for all."""
        write_once(folder / FILE, self.text.encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the run in `folder`; ResumeError if there is none that can be read."""
    path = folder / FILE
    try:
        values = json.loads(path.read_text("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except FileNotFoundError:
        raise ResumeError(f"Expected a run in {folder}, there is no {FILE}.") from None
    except OSError as error:
        raise ResumeError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ResumeError(f"{path} is damaged: {error}.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ResumeError(f"Expected a run of format {FORMAT} in {folder}. Use the version of smoothcert that made it.")
    if values.pop(_SUM, None) != _hash(values):
        raise ResumeError(f"{path} is damaged: it was altered after it was written. Restore it from a copy.")
    missing = {"kind", "indices", "sigma", "alpha", "procedure"} - set(values)
    if missing:
        raise ResumeError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}.")
    return Manifest(values)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refuse(text)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # names of files need not be Unicode
        return json.dumps(value, allow_nan=False)
    return text


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _determining(values: Any) -> Any:
    """The values without those that only tell where and when."""
    if not isinstance(values, Mapping):
        return values
    return {name: _determining(value) for name, value in values.items() if name not in _CIRCUMSTANCES}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What determines the result and is not the same, each as "name: old -> new"."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        if name in _CIRCUMSTANCES:
            continue
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append(f"{prefix}{name}: {_short(before)} -> {_short(after)}")
    return found


def _short(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

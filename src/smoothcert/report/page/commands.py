"""How to repeat and to verify a run, as commands and as what must be the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from smoothcert.data.names import source_and_split
from smoothcert.records import exact_decimal
from smoothcert.report.page.html import Html, element, join, safe
from smoothcert.report.page.runs import Shown

_MOST_INDICES, _MORE = 40, "…"
_PROCEDURES = {"FixedN": "paper", "Predict": "paper"}


def verify_command(shown: Shown) -> str:
    """The command that checks a run's arithmetic."""
    return f"smoothcert verify {shlex.quote(str(shown.run.path))}"


def repeat_command(shown: Shown) -> str:
    """The command that makes the run again, as far as its manifest knows it."""
    values = shown.values
    if shown.imported:
        return _import_command(values)
    source, split = source_and_split(values["data"]["name"])
    command = "baseline" if shown.deterministic else values["kind"]
    words = ["smoothcert", command, str(values["model"].get("source") or "MODEL"), source]
    words += [] if split == "test" else ["--split", split]
    if shown.deterministic:
        words += [
            *_flags(method=values["procedure"]["method"], batch_size=values["plan"]["chunk"]),
            *_selection(values),
        ]
    else:
        words += [*_statistics(values), *_selection(values), *_machine(values)]
    words += ["--out", "RUN"]
    return shlex.join(words).replace(f"'{_MORE}'", _MORE)


def _import_command(values: Mapping[str, Any]) -> str:
    words = ["smoothcert", "import", values["log"]["source"], *_flags(sigma=values["sigma"], alpha=values["alpha"])]
    return shlex.join([*words, *_flags(n=values["procedure"].get("n")), "--out", "RUN"])


def _statistics(values: Mapping[str, Any]) -> list[str]:
    """Flags that decide what may be claimed; a secure run takes no seed."""
    settings = values["procedure"]
    words = _flags(sigma=values["sigma"], alpha=values["alpha"], n_max=settings.get("n_max", settings.get("n")))
    words += _flags(procedure=_PROCEDURES.get(settings["name"]), effort=settings.get("effort"), noise=values["noise"])
    if settings.get("radii"):
        words += ["--radii", *(exact_decimal(radius) for radius in settings["radii"])]
    switches = {"known-labels": "known_labels", "secure": "secure", "allow-random": "allow_random"}
    words += [f"--{flag}" for flag, name in switches.items() if values.get(name)]
    words += _flags(margin=settings.get("margin") or None)
    words += ["--no-rival"] if settings.get("rival") is False else []
    return words + _flags(seed=values.get("seed"))


def _selection(values: Mapping[str, Any]) -> list[str]:
    """Flags that choose the inputs."""
    indices, total = values["indices"], values["data"].get("inputs")
    every = indices[1] - indices[0] if len(indices) > 1 else 1
    if every > 0 and indices == list(range(0, len(indices) * every, every)):
        whole = total is not None and len(indices) == -(-total // every)
        return ([] if every == 1 else _flags(every=every)) + ([] if whole else _flags(first=len(indices)))
    more = [_MORE] if len(indices) > _MOST_INDICES else []
    return ["--indices", *(str(index) for index in indices[:_MOST_INDICES]), *more]


def _machine(values: Mapping[str, Any]) -> list[str]:
    plan = values.get("plan") or {}
    way = _flags(plan=plan.get("backend"), precision=plan.get("precision"))
    return way + _flags(batch_size=plan.get("batch_size"), chunk=plan.get("chunk"))


def _flags(**settings: Any) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", exact_decimal(value) if isinstance(value, float) else str(value)]
    return words


def repeating_needs(shown: Shown) -> list[Html]:
    """What must be the same for the same rows to come out."""
    values = shown.values
    if shown.imported:
        return [join(["The log must have the SHA-256 ", element("code", values["log"]["sha256"]), "."])]
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    lines = [
        safe(f"The run was made with {versions} on {values.get('device')}."),
        join(["The data must hash to ", element("code", values["data"].get("fingerprint")), "."]),
        _weights(values["model"].get("weights_hash")),
        safe(
            "Options with which the model or the data were loaded, such as --arch or --size, are not recorded: add "
            "them."
        ),
    ]
    if shown.deterministic:
        return lines
    key = "Its seed gives the same noise, and so the same votes."
    if values.get("seed") is None:
        key = "It drew a fresh key from the operating system: a repetition sees other noise and gets other votes."
    if executed := (values.get("plan") or {}).get("executed"):
        lines.append(join(["What was smoothed is the network as run by ", element("code", executed), "."]))
    return [*lines, safe(key)]


def _weights(weights_hash: str | None) -> Html:
    if weights_hash is None:
        return safe("The model has no weights that could be hashed: whether it is the same is for you to know.")
    return join(["The weights must hash to ", element("code", weights_hash), "."])

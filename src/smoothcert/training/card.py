"""The model card: what a network was trained on and for, how good it is, and what of that is certified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smoothcert.files import replacing
from smoothcert.stats.accuracy import floor_percent
from smoothcert.training.recipes import RECIPES

CARD = "README.md"


def write_card(
    path: Path, record: dict[str, Any], log: Sequence[dict[str, Any]], certified: Sequence[str] = ()
) -> None:
    """Write the card of a training from its record and log, with tables of certified accuracy if there are any."""
    text = "\n".join([*_head(record), *_accuracy(record, log), *_certified(certified), *_how(record)])
    with replacing(path) as partial:
        partial.write_text(text + "\n", "utf-8")


def _head(record: dict[str, Any]) -> list[str]:
    settings, recipe = record["settings"], record["settings"]["recipe"]
    noise = f"Gaussian noise of σ = {settings['sigma']:g}" if settings["sigma"] else "no noise"
    kind = "A denoiser" if record["classifier"] else "A base classifier"
    own = {name: value for name, value in recipe.items() if name not in ("name", "origin")}
    return [
        f"# {record['architecture']} on {record['data']['name']}, {recipe['name']}, σ = {settings['sigma']:g}",
        "",
        f"{kind} for randomized smoothing, trained under {noise}.",
        "",
        "| | |",
        "|---|---|",
        f"| architecture | {record['architecture']} |",
        *([f"| in front of | {_cell(record['classifier'])} |"] if record["classifier"] else []),
        *([f"| began as | {_cell(record['start'])} |"] if record.get("start") else []),
        f"| data | {_cell(record['data']['name'])}, {record['data']['inputs']:,} inputs |",
        f"| recipe | {_recipe(recipe)} |",
        *([f"| its settings | {', '.join(f'{name} = {value}' for name, value in own.items())} |"] if own else []),
        f"| epochs | {settings['epochs']}, batches of {settings['batch_size']} |",
        f"| learning rate | {settings['learning_rate']:g}, {settings['schedule']} |",
        f"| seed | {settings['seed']} |",
        "",
    ]


def _recipe(recipe: dict[str, Any]) -> str:
    """A recipe with where it was published or, from outside this package, where its code is.

    Its name alone if only an earlier version had it.
    """
    name = str(recipe["name"])
    if "origin" in recipe:
        origin = recipe["origin"]
        return f"{_cell(name)} ({_cell(origin['source'])}, sha256 {origin['sha256'][:16]}…)"
    return f"{name} ({RECIPES[name].paper})" if name in RECIPES else name


def _cell(text: str) -> str:
    """Text that does not end its cell of a table."""
    return text.replace("|", "\\|")


def _accuracy(record: dict[str, Any], log: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["## Accuracy", ""]
    test = record["result"].get("test")
    if test is not None:
        lines += [
            f"On {test['data']}, {test['inputs']:,} inputs: {floor_percent(test['accuracy'])} % without noise, "
            f"{floor_percent(test['noisy_accuracy'])} % on one noisy copy of each. Neither figure is certified.",
            "",
        ]
    if log:
        last = log[-1]
        lines += [
            f"In the last epoch of training: loss {last['loss']:.4f}, {floor_percent(last['accuracy'])} % of noisy "
            "copies right.",
            "",
        ]
    return lines


def _certified(tables: Sequence[str]) -> list[str]:
    if not tables:
        return ["## Certified accuracy", "", "Not measured yet: `smoothcert certify`, then `smoothcert card`.", ""]
    return ["## Certified accuracy", "", *tables]


def _how(record: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    model = "MODEL" if record["classifier"] else "FOLDER"
    front = " --denoiser FOLDER/model.safetensors" if record["classifier"] else ""
    return [
        "## Use",
        "",
        "```",
        f"smoothcert certify {model} DATA --sigma {record['settings']['sigma'] or 0.25:g}{front} --out RUN",
        "```",
        "",
        f"Trained in {record['result']['seconds']:,.0f} s with {versions}.",
    ]

"""Where reproduced results are kept, and how a run gets there."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothcert.runs.directory import ROWS, TIMES
from smoothcert.runs.manifest import Manifest, read_manifest
from smoothcert.training.recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def keep_run(path: Path, target: Path, *, times: bool = True) -> None:
    """Copy a run, and how its network was trained, without this machine's names, to where pages are made from.

    The `times` are for pages that show seconds. Networks are not kept.
    """
    target.mkdir(parents=True, exist_ok=True)
    values = read_manifest(path).values
    rows = ROWS[values["kind"]]
    shutil.copyfile(path / rows, target / rows)
    if times:
        shutil.copyfile(path / TIMES, target / TIMES)
    if (path.parent / "train.json").exists():
        record = json.loads((path.parent / "train.json").read_text("utf-8"))
        if record.get("start"):
            record["start"] = _short(record["start"])
        (target / "train.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    model = {**values["model"], "source": _short(values["model"]["source"])}
    changed = {**values, "model": model, "host": ""}
    if "attacked" in values:
        changed["attacked"] = {**values["attacked"], "source": "smoothed"}
    (target / "run.json").unlink(missing_ok=True)
    Manifest(changed).write(target)


def _short(source: str) -> str:
    """A file, perhaps with its hash behind it, by its folder's name and its own."""
    return "/".join(Path(source).parts[-2:])


@dataclass(frozen=True)
class Training:
    """How the network of a kept run was trained, and how it did on the test set."""

    recipe: str
    architecture: str
    start: str | None
    """The model whose weights it began with; None if these were random."""
    settings: dict[str, Any]
    result: dict[str, Any]

    @property
    def length(self) -> str:
        """Epochs × batch size."""
        return f"{self.settings['epochs']} × {self.settings['batch_size']}"


def training_of(run: Path) -> Training:
    """The training of a kept run's network."""
    record = json.loads((run / "train.json").read_text("utf-8"))
    settings = dict(record["settings"]["recipe"])
    recipe = RECIPES.text(RECIPES[settings.pop("name")](**settings))
    # Records older than `train --start` do not have the entry.
    return Training(recipe, record["architecture"], record.get("start"), record["settings"], record["result"])

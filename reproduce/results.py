"""Where reproduced results are kept, and how a run gets there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothcert.runs.attack_summary import expected_violations, outcomes, violations
from smoothcert.runs.directory import ROWS, TIMES, Run
from smoothcert.runs.manifest import Manifest, read_manifest
from smoothcert.training.recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PAPERS_SUCCESS = {1.5: 17, 2.0: 53}  # Cohen et al. 2019, Section 4: attack success in % on ImageNet, σ = 0.25


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


def attack_success(attacked: Run) -> Iterator[str]:
    """Attack success as a table."""
    yield from ["| attack | within | inputs | another class % | 95 % interval | abstained % | the paper's % |"]
    yield from ["|---|---:|---:|---:|---:|---:|---:|"]
    for one in outcomes(attacked):
        low, high = one.interval
        papers = PAPERS_SUCCESS.get(one.factor, "") if one.attack == "paper" else ""
        shares = [f"{100 * share:.1f}" for share in (one.successes / one.attempts, one.abstentions / one.attempts)]
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        cells = [one.attack, f"{one.factor:g} R", str(one.attempts), shares[0], interval, shares[1], str(papers)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if any(factor <= 1 for factor in attacked.manifest.values["factors"]):
        found = len({one.index for one in violations(attacked)})
        yield from [f"Violations within R: {found} inputs; by chance {expected_violations(attacked):.2g} may.", ""]

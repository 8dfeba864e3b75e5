"""Runs over votes drawn at random, without any network, and a reader of pages, for the tests of reports."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from smoothcert.noise import GaussianNoise
from smoothcert.records import Bounds, Certificate, Prediction, Votes
from smoothcert.report.page import write_report
from smoothcert.runs.directory import Run
from smoothcert.runs.exchange import fill, import_log, new_run
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.rows import result_row
from smoothcert.stats.grid import Grid
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import FixedN, Predict, SequentialPredict, describe
from smoothcert.stats.procedures import run as conclude

SIGMA = 0.5
CLASSES = 4
PROCEDURES = {
    "paper": FixedN(n=1_000),
    "planned": Planned(n_max=2_000),
    "grid": Grid(radii=(0.0, 0.25, 0.5), sigma=SIGMA, n_max=2_000),
    "margin": Planned(n_max=2_000, margin=0.1),
    "paper-margin": FixedN(n=1_000, margin=0.1),
    "grid-margin": Grid(radii=(0.0, 0.25, 0.5), sigma=SIGMA, n_max=2_000, margin=0.1),
    "predict": Predict(n=1_000),
    "sequential": SequentialPredict(n_max=2_000),
}


def manifest(procedure, count: int, **changes) -> Manifest:
    predicts = isinstance(procedure, Predict | SequentialPredict)
    model = {"source": "m.safetensors", "weights_hash": "sha256:ab", "num_classes": CLASSES, "classes": None}
    values = {
        "format": 1,
        "kind": "predict" if predicts else "certify",
        "sigma": SIGMA,
        "alpha": 0.001,
        "noise": "auto",
        "procedure": describe(procedure),
        "known_labels": False,
        "model": model,
        "data": {"name": "data.npz", "inputs": count, "fingerprint": "sha256:cd", "classes": None},
        "indices": list(range(count)),
        "key": "00",
        "seed": 1,
        "plan": {"batch_size": 64, "chunk": 2},
        "device": "cpu",
        "versions": {"smoothcert": "0.1.0"},
    }
    return Manifest({**values, **changes})


def one_row(index: int, truth: int | None, procedure, generator) -> dict:
    """What the procedure concludes on votes that favour the true class, more or less."""
    share = generator.uniform(0.3, 1.0)
    shares = np.full(CLASSES, (1 - share) / (CLASSES - 1))
    shares[index % CLASSES] = share
    conclusion, stages = conclude(procedure, lambda _, n: Votes.of(generator.multinomial(n, shares)))
    common = {"alpha": 0.001, "sigma": SIGMA, "noise": "grid", "procedure": {}, "stages": stages}
    common |= {"key": "00", "input_id": ""}
    if isinstance(conclusion, Bounds):
        radius = GaussianNoise(SIGMA).radius(conclusion)
        label = conclusion.label if radius > 0 else None
        result = Certificate(label=label, radius=radius, bounds=conclusion, **common)
    else:
        result = Prediction(label=conclusion.label, p_value=conclusion.p_value, reason=conclusion.reason, **common)
    return {"index": index, "true": truth, "input": "ef", **result_row(result)}


def made_run(name: str = "paper", count: int = 40, *, labelled: bool = True, draws: int = 0, **changes) -> Run:
    """A run over votes drawn at random; every tenth input has another true class than the votes favour."""
    procedure, generator = PROCEDURES[name], np.random.default_rng(draws)
    truths = [(index + (index % 10 == 9)) % CLASSES if labelled else None for index in range(count)]
    rows = []
    for index, truth in enumerate(truths):
        known = changes.get("known_labels") and truth is not None
        own = Grid(**{**vars_of(procedure), "label": truth}) if known else procedure
        rows.append(one_row(index, truth, own, generator))
    return Run(Path("runs") / name, manifest(procedure, count, **changes), rows)


def vars_of(procedure) -> dict:
    return {name: getattr(procedure, name) for name in procedure.__slots__}


def imported(folder: Path, *, radius: bool = True) -> Run:
    header = ["idx", "label", "predict", *(["radius"] if radius else []), "correct", "time"]
    lines = [[0, 3, 3, 0.4999, 1, "0:00:01"], [20, 2, 1, 0.7, 0, "0:00:01"], [40, 1, -1, 0.0, 0, "0:00:01"]]
    cells = [line if radius else line[:3] + line[4:] for line in lines]
    log = folder / "sigma_0.50"
    log.write_text("\n".join("\t".join(map(str, line)) for line in [header, *cells]))
    return import_log(log, folder / "imported", sigma=0.5, alpha=0.001)


def saved(run: Run, folder: Path) -> Path:
    with new_run(folder) as writer:
        fill(writer, run.manifest, run.rows, {})
    return folder


class Reader(HTMLParser):
    """What a page holds: its text, its elements, its scripts; fails where elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.words, self.raw = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside in ("script", "style"):
            self.raw.setdefault(inside, []).append(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())  # no-break spaces become spaces too

    @property
    def data(self) -> dict:
        return json.loads(self.raw["script"][0])


def written(found, out: Path, **options) -> Reader:
    write_report(found, out, **options)
    return Reader(out.read_text("utf-8"))

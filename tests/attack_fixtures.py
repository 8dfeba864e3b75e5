"""A linear classifier, whose smoothed version is known exactly, and its runs, for the tests of attacks and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from smoothcert import runs
from smoothcert.attacks.interface import SmoothedAttack
from smoothcert.attacks.on_smoothed import SMOOTHED_ATTACKS, AbstentionAttack, DDNAttack, PaperAttack, StrongAttack
from smoothcert.data import ArrayData
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.attacking import attack_base_dataset, attack_run
from smoothcert.runs.bounding import bound_dataset
from smoothcert.runs.directory import ROWS, Run
from smoothcert.runs.journal import as_bytes
from smoothcert.runs.manifest import FILE, Manifest, read_manifest
from smoothcert.runs.settings import AttackSettings, BaseAttackSettings, BoundSettings
from smoothcert.training.loop import seeded

SHAPE = (1, 4, 4)
SIGMA = 0.5
# How far inputs are from where the class changes, of f and of g alike; below 0 is class 0.
DISTANCES = (0.5, -0.4, 0.001, 0.6, -0.55, 0.45, 0.35, -0.65, 0.7, 0.3)
WRONG = 3  # the place of the input whose true class is not the one that it gets

# Also as a file that the command line can load.
SOURCE = """
import torch
from torch import nn


def make():
    weights = torch.randn(16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weights /= weights.norm()
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        network[1].weight.copy_(torch.stack([-weights, weights]))
        network[1].bias.copy_(torch.stack([weights.sum() / 2, -weights.sum() / 2]))
    return network
"""


def linear() -> nn.Sequential:
    """Class 1 where w·(x − ½) > 0 for a unit vector w."""
    place: dict = {}
    exec(SOURCE, place)
    return place["make"]()


def direction() -> np.ndarray:
    """The unit vector w, from class 0 to class 1."""
    return linear()[1].weight[1].detach().double().numpy()


def inputs(distances=DISTANCES) -> np.ndarray:
    """Inputs [N, 1, 4, 4] at these distances from the boundary; none lies on the pixel grid."""
    points = 0.5 + np.asarray(distances)[:, None] * direction()
    # Sideways nothing changes: so inputs differ in more than their distance.
    sideways = np.random.default_rng(1).uniform(-0.05, 0.05, points.shape)
    sideways -= (sideways @ direction())[:, None] * direction()
    return (points + sideways).reshape(-1, *SHAPE).astype(np.float32)


def distance(x) -> float:
    """How far an input is from the boundary, with a sign."""
    return float((np.asarray(x, np.float64).reshape(-1) - 0.5) @ direction())


def half_spaces(distances=DISTANCES, *, labelled: bool = True) -> ArrayData:
    truths = (np.asarray(distances) > 0).astype(np.int64)
    if len(truths) > WRONG:
        truths[WRONG] ^= 1
    return ArrayData(inputs(distances), truths if labelled else None, None, "half-spaces.npz")


def certified(out: Path, data=None, *, network=None, **changes) -> Run:
    """A run of the paper's CERTIFY on the linear classifier."""
    common = {"sigma": SIGMA, "n_max": 1000, "procedure": "paper", "seed": 0, "batch_size": 250}
    settings = runs.CertifySettings(**{**common, **changes})
    return runs.certify_dataset(network or linear(), data or half_spaces(), out, settings)


def attack(
    attacked: Run, out: Path, data=None, *, network=None, most=None, resume=False, watch=None, draws=None, **changes
) -> Run:
    """An attack on a run of `certified`."""
    settings = AttackSettings(**{"seed": 0, "n_max": 1000, **changes})
    spec = ModelSpec(source=network or linear())
    watching = {"on_rows": watch, "on_draws": draws}
    return attack_run(attacked, spec, data or half_spaces(), settings, out, most=most, resume=resume, **watching)


def relu_network(*middle: nn.Module) -> nn.Sequential:
    """A small ReLU network of four classes, perhaps with other layers in its middle."""

    def build():
        layers = (nn.Linear(16, 12), nn.ReLU(), *middle, nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
        return nn.Sequential(nn.Flatten(), *layers)

    return seeded(build, 2)


def pixels(count: int = 11) -> ArrayData:
    """Images for the ReLU network, which gets every fourth of them wrong."""
    images = np.random.default_rng(0).integers(256, size=(count, *SHAPE), dtype=np.uint8)
    with torch.no_grad():
        answers = relu_network()(torch.from_numpy(images).float() / 255).argmax(1).numpy()
    answers[::4] = (answers[::4] + 1) % 4
    return ArrayData(images, answers, None, "pixels.npz")


def bound(out: Path, data=None, *, network=None, resume=False, indices=None, watch=None, **changes) -> Run:
    """Deterministic bounds of the ReLU network."""
    settings = BoundSettings(**{"method": "dual", "batch_size": 4, **changes})
    spec = ModelSpec(source=network or relu_network())
    return bound_dataset(spec, data or pixels(), settings, out, indices=indices, resume=resume, on_rows=watch)


def attack_base(
    out: Path, data=None, *, network=None, resume=False, indices=None, watch=None, draws=None, **changes
) -> Run:
    """An attack on the linear classifier itself."""
    settings = BaseAttackSettings(**{"attacks": ("deepfool", "pgd"), "steps": 5, "batch_size": 4, **changes})
    spec = ModelSpec(source=network or linear())
    return attack_base_dataset(
        spec, data or half_spaces(), settings, out, resume=resume, on_rows=watch, on_draws=draws, indices=indices
    )


SMALL = {  # attacks that take milliseconds, for what does not depend on how good they are
    "paper": partial(PaperAttack, steps=4, copies=40),
    "strong": partial(StrongAttack, steps=5, copies=20, rivals=1, restarts=0, votes=100),
    "ddn": partial(DDNAttack, steps=8, copies=30, votes=100),
    "abstain": partial(AbstentionAttack, steps=5, copies=20, rivals=1, restarts=0, votes=100, tie_votes=500),
}


def with_small_attacks(monkeypatch) -> None:
    for name, made in SMALL.items():
        monkeypatch.setitem(SMOOTHED_ATTACKS, name, made)


def replaced(monkeypatch, search) -> None:
    """Have the attack "strong" return `search(target, radius)`."""

    @dataclass(frozen=True, kw_only=True)
    class Replaced(SmoothedAttack):
        name = "strong"

        def search(self, target, radius, generator):
            return search(target, radius)

    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Replaced)


class Straight(SmoothedAttack):
    """The best attack there is on the linear classifier: straight for the boundary, to the end of the ball."""

    name = "strong"

    def search(self, target, radius, generator):
        way = torch.from_numpy(direction()).view(SHAPE)
        return target.x + radius * (-way if target.label else way)


def rows_path(folder: Path) -> Path:
    return folder / ROWS[read_manifest(folder).kind]


def cut(folder: Path, lines: int, torn: int = 0) -> None:
    """Leave so many lines of a run, and some bytes of the next one."""
    whole = rows_path(folder).read_bytes().splitlines(keepends=True)
    rows_path(folder).write_bytes(b"".join(whole[:lines]) + b"".join(whole[lines:])[:torn])


def forged(folder: Path, change) -> Run:
    """The run with changed rows, and every checksum repaired: the work of somebody who knows the format."""
    rows, manifest = runs.open(folder).rows, Manifest(read_manifest(folder).values)
    for row in rows:
        change(row)
    (folder / FILE).write_text(manifest.text)
    rows_path(folder).write_bytes(as_bytes(rows, manifest.run_id))
    return runs.open(folder)


def write_files(folder: Path) -> tuple[Path, Path]:
    """The linear classifier and its inputs in files; FILE:make is the model."""
    model, data = folder / "half_space.py", folder / "half-spaces.npz"
    model.write_text(SOURCE)
    content = half_spaces()
    np.savez(data, x=content.inputs, y=content.labels)
    return model, data

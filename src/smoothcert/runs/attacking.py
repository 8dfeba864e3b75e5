"""Runs that attack: the smoothed classifier within multiples of its certified radii, or the base classifier itself."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.attacks.access import attacked as attacking
from smoothcert.attacks.access import check_differentiable
from smoothcert.attacks.foolbox_attacks import attack_base, load_foolbox, smallest
from smoothcert.attacks.on_smoothed import SMOOTHED_ATTACKS, SmoothedAttack, Target
from smoothcert.data.dataset import Dataset
from smoothcert.data.selection import select_indices
from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.inputs import as_float32, check_values
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import evaluating
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.attack_summary import is_violation
from smoothcert.runs.directory import Run, Writer
from smoothcert.runs.driver import Job, OnRows, OnStart, drive, first_readable, shared_values
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.rows import Row, result_row
from smoothcert.runs.scope import certified_margin
from smoothcert.runs.settings import AttackSettings, BaseAttackSettings
from smoothcert.runs.work import OnDraws, Task, Worker
from smoothcert.sampling import Plan, pick_device, worker_pool
from smoothcert.smoothed import Smoothed
from smoothcert.stats.procedures import SequentialPredict, describe
from smoothcert.streams import make_key

LEVELS = 255
_JUDGE = Plan(256)  # the same everywhere, so that votes are too; in the thread that attacks


def _calmly(call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """The result of a call, computed with one thread: more of them may add up in another order."""
    return worker_pool(1, 1).submit(call, *arguments, **settings).result()


class OnGrid(nn.Module):
    """A classifier of what its input is when rounded to 8 bits: the base classifier that grid noise smooths.

    Perturbed inputs need not lie on the grid, so Gaussian noise is added to them and the sum is rounded, as the theorem
    has it. Gradients pass as if nothing were rounded.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, *D]."""
        steps = torch.round(x.detach() * LEVELS)
        # A 0-dimensional tensor on the device, because CUDA multiplies by the reciprocal of a Python number instead.
        rounded = steps / steps.new_tensor(LEVELS)
        return self.network(rounded + (x - x.detach()) if x.requires_grad else rounded)


class Heard(nn.Module):
    """A network that tells of every forward pass: who listens can tell a long attack from one that hangs."""

    def __init__(self, network: nn.Module, on_draws: OnDraws | None) -> None:
        super().__init__()
        self.network, self._on_draws = network, on_draws or (lambda _: None)

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, *D]."""
        self._on_draws(0)
        return self.network(x)


# The smoothed classifier


@dataclass(frozen=True, kw_only=True)
class AttackTask(Task):
    """Attacking inputs whose certificates are given by index: (class, radius, noise)."""

    certificates: Mapping[int, tuple[int, float, str]]
    sigma: float
    num_classes: int
    key: str
    attacks: Mapping[str, SmoothedAttack]
    factors: tuple[float, ...]
    procedure: SequentialPredict
    clip: bool

    def start(self, *, on_draws: OnDraws | None = None, classifier: Classifier | None = None) -> AttackWorker:
        """A worker for this task."""
        return AttackWorker(self, self.load(classifier), on_draws)


class AttackWorker(Worker):
    """Attacks inputs one by one, and judges what comes of it on fresh draws."""

    def __init__(self, task: AttackTask, classifier: Classifier, on_draws: OnDraws | None) -> None:
        super().__init__(classifier.network.to(task.device))
        self._task = task
        network = Heard(classifier.network, on_draws)
        self._judges = {
            "gaussian": self._judge(network, on_draws),
            "grid": self._judge(OnGrid(network), on_draws),
        }

    def _judge(self, network: nn.Module, on_draws: OnDraws | None) -> Smoothed:
        return Smoothed(
            network,
            self._task.sigma,
            self._task.num_classes,
            noise="gaussian",
            input_range=None,
            device=self._task.device,
            plan=_JUDGE,
            key=self._task.key,
            progress=False,
            on_draws=on_draws,
        )

    def results(
        self,
        inputs: npt.NDArray[Any],
        indices: Sequence[int],
        truths: Sequence[int | None],  # noqa: ARG002 - the certified class is attacked, which is the true one if known
    ) -> Iterator[Row]:
        """What each attack came to within each multiple of the radius."""
        for one, index in zip(inputs, indices, strict=True):
            label, radius, noise = self._task.certificates[index]
            x = as_float32(one)
            attempts = [
                _calmly(self._attempt, x, index, attack, factor)
                for attack in self._task.attacks
                for factor in self._task.factors
            ]
            yield {"label": label, "radius": radius, "noise": noise, "attempts": attempts}

    def _attempt(self, x: npt.NDArray[np.float32], index: int, attack: str, factor: float) -> Row:
        label, radius, noise = self._task.certificates[index]
        judge = self._judges[noise]
        start = torch.from_numpy(x).to(self._task.device)
        target = Target(judge.model, start, label, self._task.sigma)
        generator = _generator(self._task.key, index, attack, factor)
        search = self._task.attacks[attack]
        point = search(target, factor * radius, generator, clip=self._task.clip).cpu().numpy()
        found = judge.predict(point, self._task.procedure)
        norm = float(np.linalg.norm((point.astype(np.float64) - x.astype(np.float64)).ravel()))
        row: Row = {"attack": attack, "factor": factor, "norm": norm, **result_row(found)}
        if is_violation(row, label, radius):
            row["point"] = pack(point)
        return row


def pack(point: npt.NDArray[np.float32]) -> dict[str, Any]:
    """An input as text, for a row."""
    return {"shape": list(point.shape), "float32": base64.b64encode(zlib.compress(point.tobytes())).decode()}


def unpack(packed: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """An input from a row."""
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["float32"])), "<f4").reshape(packed["shape"])


def _generator(key: str, index: int, attack: str, factor: float) -> torch.Generator:
    """The randomness of one attempt, the same wherever and whenever it is made."""
    digest = hashlib.sha256(f"smoothcert attack {key} {index} {attack} {factor!r}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def attack_run(
    attacked: Run,
    model: ModelSpec,
    data: Dataset,
    settings: AttackSettings,
    out: Path | Writer,
    *,
    classifier: Classifier | None = None,
    most: int | None = None,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_rows: OnRows | None = None,
    on_draws: OnDraws | None = None,
) -> Run:
    """Attack the inputs that a run certifies, correctly where their classes are known, into the run directory `out`.

    Within each multiple of the certified radius every attack has a try, and fresh draws judge by a test at level
    settings.alpha whether the smoothed classifier answers otherwise there. `most` limits the number of inputs, taken
    evenly over the run.
    """
    settings.check()
    certificates = certified_inputs(attacked)
    indices = sorted(certificates)
    if most is not None and most < len(indices):
        indices = [indices[int(place)] for place in np.linspace(0, len(indices) - 1, most)]

    def prepare(existing: Manifest | None) -> Job:
        chosen = {index: certificates[index] for index in indices}
        return _job(attacked, model, classifier, data, settings, chosen, existing)

    return drive(prepare, out, resume=resume, on_start=on_start, on_rows=on_rows, on_draws=on_draws)


def certified_inputs(run: Run) -> dict[int, tuple[int, float, str]]:
    """Class, radius and noise of the inputs that a run certifies with their true class, or any where it is unknown."""
    if run.manifest.kind != "certify":
        raise ConfigError(f"Expected a run of `smoothcert certify`, {run.path} is of kind {run.manifest.kind!r}.")
    precision = run.manifest.values["plan"].get("precision", "fp32")
    if precision != "fp32":
        raise ConfigError(
            f"{run.path} certifies the network in {precision}, which is another than the one that would be attacked: "
            "certify it in fp32, and attack that run."
        )
    found = {
        row["index"]: (row["label"], row["radius"], row["noise"])
        for row in run.rows
        if row.get("radius", 0.0) > 0 and row["true"] in (None, row["label"])
    }
    if not found:
        raise ConfigError(f"No input of {run.path} is certified with its true class: there is nothing to attack.")
    return found


def _job(
    attacked: Run,
    spec: ModelSpec,
    classifier: Classifier | None,
    data: Dataset,
    settings: AttackSettings,
    certificates: dict[int, tuple[int, float, str]],
    existing: Manifest | None,
) -> Job:
    values = attacked.manifest.values
    if data.fingerprint() != values["data"]["fingerprint"]:
        raise InputError(f"{data.name} is not the data of {attacked.path}: its fingerprint is another.")
    spec = spec if data.shape is None else replace(spec, fitted=data.shape)
    classifier = spec.load(classifier)
    if classifier.weights_hash != values["model"]["weights_hash"]:
        raise ModelError(f"{classifier.source} is not the model of {attacked.path}: its weights are others.")
    first = torch.from_numpy(as_float32(first_readable(data, sorted(certificates))))[None]
    with attacking(classifier.network) as network:  # says now what cannot be attacked
        check_differentiable(network, first.to(next(network.parameters(), first).device), torch.tensor([0]))
    old = None if existing is None else existing.values
    key = old["key"] if old and settings.seed is None else make_key(settings.seed).hex()
    procedure = SequentialPredict(alpha=settings.alpha, n_max=settings.n_max)
    device = str(pick_device(classifier.network, settings.device))
    task = AttackTask(
        model=spec,
        weights_hash=classifier.weights_hash,
        device=device,
        certificates=certificates,
        sigma=attacked.sigma,
        num_classes=values["model"]["num_classes"],
        key=key,
        attacks={name: SMOOTHED_ATTACKS[name](precision=settings.precision) for name in settings.attacks},
        factors=tuple(float(one) for one in settings.factor),
        procedure=procedure,
        clip=settings.clip,
    )
    described = {
        "kind": settings.kind,
        "sigma": attacked.sigma,
        "alpha": settings.alpha,
        "noise": values["noise"],
        "procedure": describe(procedure),
        "known_labels": False,
        "attacks": list(task.attacks),
        "attack_settings": {name: asdict(attack) for name, attack in task.attacks.items()},
        "factors": list(task.factors),
        "clip": settings.clip,
        "attacked": _attacked(attacked),
        "key": key,
        "seed": old["seed"] if old and settings.seed is None else settings.seed,
    }
    indices = sorted(certificates)
    shared = shared_values(classifier, task.num_classes, data, indices, 1, device, settings)
    return Job(task, classifier, data, indices, 1, Manifest({**shared, **described}), settings)


def _attacked(run: Run) -> dict[str, Any]:
    """Which run is attacked; a margin is recorded because its radii are smaller than those of the class alone."""
    values = {"run": run.manifest.run_id, "alpha": run.manifest.values["alpha"], "source": str(run.path)}
    margin = certified_margin(run)
    return {**values, "margin": margin} if margin else values


# The base classifier


@dataclass(frozen=True, kw_only=True)
class BaseAttackTask(Task):
    """Looking for the smallest perturbations that change the base classifier's answer."""

    attacks: tuple[str, ...]
    steps: int | None
    seed: int
    clip: bool

    def start(self, *, on_draws: OnDraws | None = None, classifier: Classifier | None = None) -> BaseAttackWorker:
        """A worker for this task."""
        return BaseAttackWorker(self, self.load(classifier), on_draws)


class BaseAttackWorker(Worker):
    """Attacks the base classifier, a chunk of inputs at a time."""

    def __init__(self, task: BaseAttackTask, classifier: Classifier, on_draws: OnDraws | None) -> None:
        super().__init__(classifier.network.to(task.device))
        self._task, self._heard = task, Heard(classifier.network, on_draws)

    def results(self, inputs: npt.NDArray[Any], indices: Sequence[int], truths: Sequence[int | None]) -> Iterator[Row]:
        """The size of the smallest perturbation that each attack found; None if it found none."""
        values = np.stack([as_float32(one) for one in inputs])
        check_values(values, (0.0, 1.0))
        x = torch.from_numpy(values).to(self._task.device)
        with evaluating(self._network), torch.no_grad():
            answers = self._network(x).argmax(1).tolist()
        # Without a true class, the answer itself is what must change.
        labels = torch.tensor([a if t is None else t for a, t in zip(answers, truths, strict=True)])
        found = _calmly(
            attack_base,
            self._heard,
            x,
            labels.to(x.device),
            self._task.attacks,
            steps=self._task.steps,
            seed=self._task.seed + indices[0],
            clip=self._task.clip,
        )
        least = smallest(found).norms.tolist()
        for place, answer in enumerate(answers):
            norms = {name: _finite(float(one.norms[place])) for name, one in found.items()}
            yield {"label": answer, "norm": _finite(least[place]), "norms": norms}


def _finite(norm: float) -> float | None:
    return norm if math.isfinite(norm) else None


def attack_base_dataset(
    model: ModelSpec,
    data: Dataset,
    settings: BaseAttackSettings,
    out: Path | Writer,
    *,
    classifier: Classifier | None = None,
    indices: Sequence[int] | None = None,
    resume: bool = False,
    on_start: OnStart | None = None,
    on_rows: OnRows | None = None,
    on_draws: OnDraws | None = None,
) -> Run:
    """Attack the base classifier at inputs of `data`, into the run directory `out`: how far it is from robust.

    The share of inputs without a perturbation smaller than r is an upper bound on its robust accuracy at r.
    """
    settings.check()
    chosen = select_indices(len(data), indices=indices).tolist()

    def prepare(_: Manifest | None) -> Job:
        return _base_job(model, classifier, data, settings, chosen)

    return drive(prepare, out, resume=resume, on_start=on_start, on_rows=on_rows, on_draws=on_draws)


def _base_job(
    spec: ModelSpec, classifier: Classifier | None, data: Dataset, settings: BaseAttackSettings, indices: list[int]
) -> Job:
    load_foolbox()
    first = as_float32(first_readable(data, indices))
    spec = spec if data.shape is None else replace(spec, fitted=data.shape)
    classifier = spec.load(classifier)
    device = pick_device(classifier.network, settings.device)
    with attacking(classifier.network.to(device)) as network:  # says now what cannot be attacked
        classes = check_differentiable(network, torch.from_numpy(first)[None].to(device), torch.tensor([0]))
    data.check_model_classes(classes, indices)
    attacks = tuple(settings.attacks)
    task = BaseAttackTask(
        model=spec,
        weights_hash=classifier.weights_hash,
        device=str(device),
        attacks=attacks,
        steps=settings.steps,
        seed=settings.seed,
        clip=settings.clip,
    )
    described = {
        "kind": settings.kind,
        "sigma": 0.0,
        "alpha": 0.0,
        "procedure": {"name": "attack"},
        "attacks": list(attacks),
        "steps": settings.steps,
        "seed": settings.seed,
        "clip": settings.clip,
    }
    shared = shared_values(classifier, classes, data, indices, settings.batch_size, str(device), settings)
    return Job(task, classifier, data, indices, settings.batch_size, Manifest({**shared, **described}), settings)

"""A training in a directory: what was asked for, how far it is, how it went, and in the end the network.

train.json          settings, data, versions; in the end also the accuracies
state.safetensors   everything that going on depends on; gone when the training is complete
log.jsonl           one line per epoch
model.safetensors   the trained network with its blueprint, a model source
README.md           the model card
"""

from __future__ import annotations

import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smoothcert import __version__
from smoothcert.data.dataset import Dataset
from smoothcert.data.names import source_and_split
from smoothcert.errors import (
    LAST_WITH_RETIRED_PARTS,
    ConfigError,
    InputError,
    ModelError,
    OutputError,
    ResumeError,
    SmoothcertError,
)
from smoothcert.files import prepare_folder, replacing
from smoothcert.lock import Lock
from smoothcert.models.architectures import ALIASES, ARCHITECTURES
from smoothcert.models.checkpoints import WEIGHTS_FILE, Blueprint, read_blueprint, save_checkpoint
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import evaluating
from smoothcert.models.dncnn import DnCNN, save_dncnn
from smoothcert.models.layers import Normalize
from smoothcert.models.sealed import read_safetensors, write_sealed
from smoothcert.models.weights import load_weights
from smoothcert.sampling import pick_device
from smoothcert.signals import deferring
from smoothcert.time_limit import DEFAULT_HOURS, TimeLimit
from smoothcert.training.card import CARD, write_card
from smoothcert.training.engine import Engine, make_engine
from smoothcert.training.evaluation import accuracies_of
from smoothcert.training.loop import Progress, Trainer, fresh_seed, seeded
from smoothcert.training.recipes import RECIPES
from smoothcert.training.settings import TrainSettings

RECORD, STATE, LOG, LOCK = "train.json", "state.safetensors", "log.jsonl", "lock"
TENSORBOARD = "tensorboard"
DENOISER = "dncnn"
_FORMAT = 1
_IMAGENET_SCALING = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # the paper's
_SUITED = {(1, 28, 28): "lenet", (3, 32, 32): "resnet20", (1, 8, 8): "small-cnn"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be trained: an architecture for some data, or a denoiser in front of a classifier."""

    architecture: str
    data: Dataset
    settings: TrainSettings
    normalize: bool
    classifier: nn.Module | None = None
    classifier_source: str | None = None
    start: Classifier | None = None
    """A classifier of this architecture whose weights the training begins with, in place of random ones."""

    def network(self) -> nn.Module:
        """The network before the training."""
        seed = self.settings.seed or 0
        if self.classifier is not None:
            channels = self.data.shape[0]
            return nn.Sequential(seeded(lambda: DnCNN(channels), seed), self.classifier)
        network = seeded(self.blueprint().network, seed)
        if self.start is not None:
            load_weights(network, self.start.network.state_dict(), self.start.source)
        return network

    def blueprint(self, training: dict[str, Any] | None = None) -> Blueprint:
        """How the network is built."""
        shape, labels = self.data.shape, self.data.labels
        mean, std = self._scaling
        count = len(self.data.classes) if self.data.classes else int(labels.max()) + 1
        return Blueprint(
            architecture=self.architecture,
            num_classes=max(2, count),
            input_shape=shape,
            classes=self.data.classes,
            mean=mean,
            std=std,
            sigma=self.settings.sigma,
            data=self.data.name,
            training=training or {},
        )

    @cached_property
    def _scaling(self) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """Mean and standard deviation of the channels: the starting network's, ImageNet's, or measured on the data."""
        if self.start is not None:
            return _scaling_in(self.start.network)
        if not self.normalize:
            return None, None
        source, _ = source_and_split(self.data.name)
        if source == "imagenet" and self.data.shape[0] == 3:
            return _IMAGENET_SCALING
        return _channel_statistics(self.data)

    def describe(self) -> dict[str, Any]:
        """What a training that goes on must have in common with the one that began."""
        recipe = RECIPES.parse(self.settings.recipe)
        return {
            "format": _FORMAT,
            "architecture": self.architecture,
            "normalize": self.normalize,
            "classifier": self.classifier_source,
            "start": None if self.start is None else f"{self.start.source} ({self.start.weights_hash})",
            "settings": {**asdict(self.settings), "recipe": RECIPES.record(recipe)},
            "data": {"name": self.data.name, "inputs": len(self.data), "fingerprint": self.data.fingerprint()},
        }


def make_plan(
    data: Dataset,
    settings: TrainSettings,
    *,
    architecture: str | None = None,
    normalize: bool | None = None,
    classifier: nn.Module | None = None,
    classifier_source: str | None = None,
    start: Classifier | None = None,
) -> Plan:
    """What is to be trained, checked; ConfigError, InputError or ModelError for what cannot be."""
    settings.check()
    if data.labels is None or data.shape is None or len(data) == 0:
        raise InputError(f"Expected training inputs of one shape with labels, {data.name} has none or several shapes.")
    wants_classifier = RECIPES.parse(settings.recipe).needs_classifier
    if wants_classifier != (classifier is not None):
        raise ConfigError("Expected a `classifier` with the recipe denoiser, and with no other.")
    if start is not None and wants_classifier:
        raise ConfigError("A denoiser begins with random weights: drop `start`.")
    if start is not None and normalize is not None:
        raise ConfigError("A network that is trained further keeps its own normalisation: drop `normalize`.")
    if wants_classifier:
        _check_denoiser(data, settings, architecture, classifier)
        return Plan(
            architecture=DENOISER,
            data=data,
            settings=settings,
            normalize=False,
            classifier=classifier,
            classifier_source=classifier_source,
        )
    name = architecture or _SUITED.get(data.shape)
    if start is not None and start.kind == "checkpoint":
        name = read_blueprint(Path(start.source)).architecture
    if name is None:
        raise ConfigError(
            f"Expected an `architecture` for inputs of shape {data.shape}, one of {', '.join(ARCHITECTURES)}."
        )
    scaled = data.shape[0] == 3 and len(data.shape) == 3 if normalize is None else normalize
    if start is not None:
        scaled = _scaling_in(start.network)[0] is not None
    plan = Plan(
        architecture=ALIASES.get(name, name),
        data=data,
        settings=settings,
        normalize=scaled,
        start=start,
    )
    plan.network()  # says now what does not fit
    return plan


def _check_denoiser(data: Dataset, settings: TrainSettings, architecture: str | None, classifier: nn.Module) -> None:
    """Raise ConfigError unless a denoiser of such images can be trained in front of the classifier."""
    if not settings.sigma:
        raise ConfigError("Expected `sigma` > 0 for a denoiser: without noise there is nothing to remove.")
    if architecture is not None:
        raise ConfigError("A denoiser has an architecture of its own: drop `arch`.")
    try:
        with torch.no_grad(), evaluating(classifier):
            classifier(torch.zeros(1, *data.shape))
    except (RuntimeError, ValueError, IndexError, SmoothcertError) as error:
        raise ConfigError(f"The classifier cannot take inputs of shape {data.shape}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _scaling_in(network: nn.Module) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and standard deviation by which the first layer of a network normalises, if it does."""
    first = network[0] if isinstance(network, nn.Sequential) else network
    if not isinstance(first, Normalize):
        return None, None
    return tuple(first.mean.flatten().tolist()), tuple(first.std.flatten().tolist())


def _channel_statistics(data: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, to four digits."""
    axes = (0, *range(2, len(data.shape) + 1))
    total, squares, count = 0.0, 0.0, 0
    for values in _values(data):
        total, squares = total + values.sum(axes), squares + np.square(values).sum(axes)
        count += values.size // values.shape[1]
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))
    return tuple(np.round(mean, 4).tolist()), tuple(np.round(std, 4).tolist())


def _values(data: Dataset) -> Iterator[npt.NDArray[np.float64]]:
    """All inputs as numbers, part by part, or 10,000 of them spread evenly where there are more than 100,000."""
    rows = np.arange(len(data)) if len(data) <= 100_000 else np.linspace(0, len(data) - 1, 10_000).astype(int)
    at_once = max(1, min(1000, 2**24 // prod(data.shape)))  # at most 128 MiB as float64
    for part in np.array_split(rows, -(-len(rows) // at_once)):
        batch = data.batch(part.tolist())
        yield batch.astype(np.float64) / (255 if batch.dtype == np.uint8 else 1)


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished training: where it is, and what was measured in the end."""

    path: Path
    record: dict[str, Any]

    @property
    def model(self) -> Path:
        """The network's file."""
        return self.path / WEIGHTS_FILE


def run_training(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    test: Dataset | None = None,
    tensorboard: bool = False,
    save_every: float = 60.0,
    workers: int | None = None,
    time_limit: float = DEFAULT_HOURS,
    on_progress: Callable[[Progress, Trainer], None] | None = None,
    on_estimate: Callable[[str], None] | None = None,
) -> Trained:
    """Train into the directory `out`, or resume there; an interrupted training ends with the same network.

    The state is saved every `save_every` seconds and when Ctrl-C or another signal asks to end. In the end accuracy is
    measured on `test`. Under `torchrun` the processes share every batch, and the first one writes. Image files are
    decoded by `workers` processes each, by default their share of the CPUs, at most 8. `on_estimate` is told how long
    the training will take. TimeLimitError if that is more than `time_limit` hours; the state is saved then.
    """
    limit = TimeLimit(time_limit, on_estimate=on_estimate)
    if not resume:  # who resumes has seen the estimate
        check_time(plan, limit)
    measured_on = test if test is not None and test.labels is not None else None
    if measured_on is not None and plan.classifier is None:
        measured_on.check_model_classes(plan.blueprint().num_classes, range(len(measured_on)))
    engine = make_engine(pick_device(nn.Identity(), plan.settings.device), plan.settings.precision)
    first = engine.rank == 0
    if first:
        _prepare(out, resume)
    engine.wait()
    with Lock(out / LOCK) if first else nullcontext():
        plan, record = _record(plan, out, engine, resume=resume)
        if "result" in record:
            if first:
                (out / STATE).unlink(missing_ok=True)  # cut off just before this
            return Trained(out, record)
        if first:
            _remove_torn(out)
        session = _Session(plan, out, record, engine, tensorboard and first, save_every, workers)
        try:
            return session.run(measured_on, limit, on_progress)
        finally:
            session.close()


def check_time(plan: Plan, limit: TimeLimit) -> None:
    """Raise TimeLimitError for a training that is beyond the limit by a rough estimate, before its first step."""
    inputs = len(plan.data) * plan.settings.epochs
    device = pick_device(nn.Identity(), plan.settings.device)
    x = torch.zeros(1, *plan.data.shape, device=device)
    model = plan.network().to(device).eval()
    limit.check_beforehand(
        RECIPES.parse(plan.settings.recipe).rough_seconds(model, x) * inputs, inputs, "training inputs"
    )


def _prepare(out: Path, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise OutputError(f"Cannot write a training to {out}: it is not a folder.")
    if (out / RECORD).exists() and not resume:
        raise OutputError(f"{out} holds a training already. Add --resume to go on with it, or choose another --out.")
    # What begins with a dot is what a kill has left of a file being written.
    if out.exists() and not resume and any(one.name != LOCK and one.name[0] != "." for one in out.iterdir()):
        raise OutputError(f"{out} is not empty. Choose another --out.")
    if resume and not (out / RECORD).exists():
        raise ResumeError(f"There is no training in {out} to resume.")
    prepare_folder(out, [RECORD, STATE])


def _remove_torn(out: Path) -> None:
    """Remove what a kill has left of files being written; we hold the lock, so nobody is writing them."""
    for name in (RECORD, STATE, LOG, CARD, WEIGHTS_FILE):
        for torn in out.glob(f".{name}.*.part"):
            torn.unlink(missing_ok=True)


def _record(plan: Plan, out: Path, engine: Engine, *, resume: bool) -> tuple[Plan, dict[str, Any]]:
    """The plan with its seed, and what train.json says; ResumeError if that is another training."""
    old = read_record(out) if resume else None
    if plan.settings.seed is None:
        shared = torch.tensor(old["settings"]["seed"] if old else fresh_seed() if engine.rank == 0 else 0)
        seed = int(shared if old else engine.add_up(shared.to(engine.device)))
        plan = replace(plan, settings=replace(plan.settings, seed=seed))
    described = json.loads(json.dumps(plan.describe()))
    if old is not None:
        if old.get("directions") is not None:
            raise ResumeError(
                f"The training in {out} is behind a projection of its inputs (`--directions`), which this version does "
                f"not have. Resume it with {LAST_WITH_RETIRED_PARTS}."
            )
        for name, value in described.items():
            if old.get(name) != value:
                raise ResumeError(_difference(out, name, old.get(name), value))
        return plan, old
    versions = {"smoothcert": __version__, "torch": torch.__version__, "python": platform.python_version()}
    record = {**described, "versions": versions, "processes": engine.world}
    if engine.rank == 0:
        _write_json(out / RECORD, record)
    return plan, record


def read_record(out: Path) -> dict[str, Any]:
    """What train.json says; ResumeError if it cannot be read."""
    try:
        record = json.loads((out / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResumeError(f"{out / RECORD} cannot be read: {error}.") from error
    if not isinstance(record, dict) or not {"settings", "data", "format"} <= set(record):
        raise ResumeError(f"{out / RECORD} is damaged: it does not describe a training.")
    return record


def _difference(out: Path, name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(one for one in [*new, *old] if old.get(one) != new.get(one))
        name, old, new = f"{name}.{key}", old.get(key), new.get(key)
    return f"{out} is another training: {name} is {old!r} there and {new!r} here. Choose another --out."


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


class _Session:
    """One process's work on a training, from where the last one stopped."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        record: dict[str, Any],
        engine: Engine,
        tensorboard: bool,
        save_every: float,
        workers: int | None,
    ) -> None:
        self.plan, self.out, self.record, self.engine = plan, out, record, engine
        self.save_every, self.workers = save_every, workers
        self.trainer = Trainer(plan.network(), plan.data, plan.settings, engine, workers=workers)
        self.log: list[dict[str, Any]] = []
        self.seconds = 0.0
        if (out / STATE).exists():
            tensors, about = read_safetensors(out / STATE)
            if about is None:
                raise ModelError(f"{out / STATE} was not written by smoothcert.")
            self.trainer.restore(tensors, about["progress"])
            self.log, self.seconds = about["log"], about["seconds"]
        self._saved = self._began = time.monotonic()
        self._board = _open_board(out / TENSORBOARD, self.log) if tensorboard else None

    def run(
        self, test: Dataset | None, limit: TimeLimit, on_progress: Callable[[Progress, Trainer], None] | None
    ) -> Trained:
        trainer = self.trainer
        limit.start((trainer.steps - trainer.progress.step) * self.plan.settings.batch_size, "training inputs")
        with deferring() as pending:
            while trainer.progress.step < trainer.steps:
                looked = trainer.advance()
                limit.advance(self.plan.settings.batch_size)
                if looked and on_progress is not None:
                    on_progress(trainer.progress, trainer)
                if trainer.progress.step % trainer.batches.per_epoch == 0:
                    self._end_epoch()
                if self._agreed(limit.exceeded, looked) and trainer.progress.step < trainer.steps:
                    self._save()
                    raise limit.error()
                if self._agreed(pending.number is not None, looked) and trainer.progress.step < trainer.steps:
                    self._save()
                    pending.number = pending.number or signal.SIGTERM  # another process was asked to end
                    break
                if self._agreed(time.monotonic() - self._saved > self.save_every, looked):
                    self._save()
        if trainer.progress.step < trainer.steps:  # whoever asked to end did not end us
            raise KeyboardInterrupt
        return self._finish(test)

    def _agreed(self, wanted: bool, looked: bool) -> bool:
        """Whether any process wants it; several can ask each other only when all look."""
        if self.engine.world == 1:
            return wanted
        return looked and bool(self.engine.add_up(torch.tensor(int(wanted), device=self.engine.device)))

    def close(self) -> None:
        self.trainer.batches.close()
        if self._board is not None:
            self._board.close()

    def _end_epoch(self) -> None:
        now, epoch = self.trainer.progress, self.trainer.progress.step // self.trainer.batches.per_epoch
        rate = self.plan.settings.rate(epoch - 1 / self.trainer.batches.per_epoch)
        line = {"epoch": epoch, "loss": now.loss, "accuracy": now.accuracy, "learning_rate": rate}
        self.log.append({**line, "seconds": round(self._elapsed(), 1)})
        if self._board is not None:
            for name in ("loss", "accuracy", "learning_rate"):
                self._board.add_scalar(name, line[name], epoch)
        if self.engine.rank == 0:
            with replacing(self.out / LOG) as partial:
                partial.write_text("".join(json.dumps(one) + "\n" for one in self.log), "utf-8")
        self.trainer.start_epoch()

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._began

    def _save(self) -> None:
        tensors, progress = self.trainer.state()
        if self.engine.rank == 0:
            about = {"progress": progress, "log": self.log, "seconds": self._elapsed()}
            write_sealed(self.out / STATE, tensors, about)
        self._saved = time.monotonic()

    def _finish(self, test: Dataset | None) -> Trained:
        model, settings = self.trainer.finish(), self.plan.settings
        result: dict[str, Any] = {"epochs": settings.epochs, "seconds": round(self._elapsed(), 1)}
        if test is not None:
            clean, noisy = accuracies_of(model, test, settings.sigma, settings.seed or 0, self.engine, self.workers)
            result["test"] = {"data": test.name, "inputs": len(test), "accuracy": clean, "noisy_accuracy": noisy}
        record = {**self.record, "result": result}
        if self.engine.rank == 0:
            if self.plan.classifier is not None:
                save_dncnn(self.out / WEIGHTS_FILE, model[0], settings.sigma)
            else:
                training = {**record["settings"], "result": result}
                save_checkpoint(self.out / WEIGHTS_FILE, model, self.plan.blueprint(training))
            write_card(self.out / CARD, record, self.log)
            _write_json(self.out / RECORD, record)  # last: it says that all is there
            (self.out / STATE).unlink(missing_ok=True)
        self.engine.wait()
        return Trained(self.out, record)


def _open_board(folder: Path, log: list[dict[str, Any]]) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        from smoothcert.errors import MissingExtraError

        raise MissingExtraError("tensorboard", "tensorboard") from error
    return SummaryWriter(str(folder), purge_step=len(log) + 1)

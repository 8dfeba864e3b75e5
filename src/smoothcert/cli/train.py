"""`smoothcert train`: train a base classifier under noise, by the paper's recipe or a later one."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.checks import check_count
from smoothcert.cli.run_command import ending_on_signals, tell
from smoothcert.data.names import source_and_split
from smoothcert.errors import ConfigError, InputError
from smoothcert.models.naming import MatchBy
from smoothcert.options import OptionalInt, OptionalPath, OptionalText
from smoothcert.progress import ProgressBar
from smoothcert.stats.accuracy import floor_percent
from smoothcert.time_limit import DEFAULT_HOURS, check_hours
from smoothcert.training.settings import TrainSettings

if TYPE_CHECKING:
    from smoothcert.data.dataset import Dataset
    from smoothcert.models.classifier import Classifier
    from smoothcert.training.directory import Plan, Trained
    from smoothcert.training.loop import Progress, Trainer


@dataclass(frozen=True, kw_only=True)
class TrainArguments(TrainSettings):
    """What to train on what, besides how."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Data set by name (digits, mnist, fashion-mnist, cifar10, cifar100, svhn, imagenet, hf:NAME), or a folder of
    images, .npz or .npy."""
    arch: OptionalText = None
    """The architecture; by default one that suits the data: lenet, resnet20 or small-cnn."""
    normalize: Annotated[bool | None, tyro.conf.arg(metavar="True|False", help_behavior_hint="")] = None
    """Bring inputs to mean 0 and deviation 1 per channel, inside the network; by default for colour images."""
    start: OptionalText = None
    """Begin with this MODEL's weights in place of random ones; weights that are not of ours need --arch too."""
    match_weights: MatchBy = "name"
    """How the weights of --start are matched with --arch. name: by our names or a known naming scheme; order: by their
    order where no names fit (check the accuracy, as the wrong order can go unnoticed)."""
    classifier: OptionalText = None
    """The classifier in front of which a denoiser is trained, with the recipe denoiser; any MODEL."""
    data_root: OptionalPath = None
    """Folder with the data sets; by default $SMOOTHCERT_DATA, else the cache directory."""
    size: OptionalInt = None
    """Bring image files to this size."""
    tensorboard: bool = False
    """Write curves for TensorBoard too."""
    save_every: float = 60.0
    """Seconds between two savings of the state."""
    workers: OptionalInt = None
    """Processes that decode and augment image files. Default: one per CPU, at most 8, shared between the processes of
    torchrun. The batches do not depend on it; 0 decodes in the training process."""
    time_limit: float = DEFAULT_HOURS
    """Hours that the training may take, by an estimate from its first steps; longer trainings are refused. inf: no
    limit."""

    def plan(self) -> Plan:
        """Load the data and say what is to be trained."""
        self.check()
        if not 0 <= self.save_every < float("inf"):
            raise ConfigError(f"Expected `save_every` to be a finite number of seconds, got {self.save_every!r}.")
        check_hours(self.time_limit)
        if self.workers is not None:
            check_count("workers", self.workers, least=0)
        from smoothcert.models import load as load_model
        from smoothcert.sampling import pick_device
        from smoothcert.training.directory import make_plan

        if self.device is not None:
            pick_device(None, self.device)  # says now if there is none
        settings = TrainSettings(**{name: getattr(self, name) for name in TrainSettings.__dataclass_fields__})
        classifier = None if self.classifier is None else load_model(self.classifier)
        return make_plan(
            self.load_data("train"),
            settings,
            architecture=self.arch,
            normalize=self.normalize,
            classifier=None if classifier is None else classifier.network,
            classifier_source=None if classifier is None else f"{classifier.source} ({classifier.weights_hash})",
            start=self._start(),
        )

    def _start(self) -> Classifier | None:
        """The network whose weights the training begins with, if one was named."""
        from smoothcert.models import load

        if self.start is None:
            return None
        return load(self.start, arch=self.arch, match_weights=self.match_weights)

    def load_data(self, split: str) -> Dataset:
        """The inputs of one split."""
        from smoothcert.data import load

        return load(self.data, split=split, root=self.data_root, size=self.size)

    def test_data(self, training: Dataset) -> Dataset | None:
        """The inputs that accuracy is measured on in the end; None where there are none but those trained on."""
        try:
            data = self.load_data("test")
        except InputError:
            return None
        return None if data.fingerprint() == training.fingerprint() else data


@dataclass(frozen=True, kw_only=True)
class Train(TrainArguments):
    """Train a base classifier under noise, into a directory that is a MODEL for the other commands.

    For several GPUs, start the same command through `torchrun --nproc-per-node N -m smoothcert train …`.
    """

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory of the training; a new one, or with --resume the one to go on with."""
    resume: bool = False
    """Go on with the training in --out, after a crash or Ctrl-C."""
    json: bool = False
    """Print one JSON object at the end."""
    config: OptionalPath = None
    """TOML file with any of these settings; flags win over it."""

    examples: ClassVar[str] = """
examples:
  smoothcert train mnist --sigma 0.5 --epochs 20 --out lenet
  smoothcert train cifar10 --arch resnet110 --sigma 0.25 --recipe consistency:weight=20 --out net
  smoothcert train mnist --sigma 0.5 --recipe smoothadv:copies=2,steps=4,radius=1 --out adv
  smoothcert train mnist --sigma 0.5 --start lenet --recipe macer:copies=4,weight=1 --learning-rate 0.003 --out tuned
  smoothcert train cifar10 --sigma 0.25 --recipe denoiser --classifier hf:NAME --out denoiser
  smoothcert train mnist --sigma 0.5 --out lenet --resume       after Ctrl-C or a crash
  torchrun --nproc-per-node 4 -m smoothcert train cifar10 --sigma 0.25 --out net       on four GPUs
"""

    def run(self, console: Console) -> None:
        """Train, show how it goes, and say where the network is."""
        from smoothcert.training.directory import run_training

        with ending_on_signals():
            plan = self.plan()
            with Watch(len(plan.data) * self.epochs) as watch:
                trained = run_training(
                    plan,
                    self.out,
                    resume=self.resume,
                    test=self.test_data(plan.data),
                    tensorboard=self.tensorboard,
                    save_every=self.save_every,
                    workers=self.workers,
                    time_limit=self.time_limit,
                    on_progress=watch.update,
                    on_estimate=tell if os.environ.get("RANK", "0") == "0" else None,
                )
        report(console, trained, as_json=self.json)


class Watch:
    """A progress bar over all the inputs that a training will see."""

    def __init__(self, total: int) -> None:
        self._bar, self._began = ProgressBar("training", total), time.monotonic()
        self._seen: int | None = None
        self._fresh = 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def update(self, progress: Progress, trainer: Trainer) -> None:
        """Show how far the training is."""
        seen = min(trainer.batches.count * trainer.settings.epochs, int(trainer.epoch * trainer.batches.count))
        further = seen - (self._seen or 0)
        self._fresh += further if self._seen is not None else 0
        self._seen = seen
        rate = self._fresh / max(1e-9, time.monotonic() - self._began)
        epochs = trainer.settings.epochs
        self._bar.advance(
            further,
            f"epoch {min(int(trainer.epoch) + 1, epochs)}/{epochs} · loss {progress.loss:.3f} · "
            f"{floor_percent(progress.accuracy)} % right under noise · {rate:,.0f}/s",
        )


def report(console: Console, trained: Trained, *, as_json: bool) -> None:
    """Say how good the network is and what to do next; of several processes the first one does."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        sys.stdout.write(json.dumps({"out": str(trained.path), **trained.record}, ensure_ascii=False) + "\n")
        return
    test, settings = trained.record["result"].get("test"), trained.record["settings"]
    if test:
        console.print(
            f"{test['data']}: {floor_percent(test['accuracy'])} % right without noise, "
            f"{floor_percent(test['noisy_accuracy'])} % on one noisy copy of each of {test['inputs']:,} inputs."
        )
    console.print(f"Network and model card: {escape(str(trained.path))}", soft_wrap=True)
    if settings["sigma"] and not trained.record["classifier"]:
        data, _ = source_and_split(trained.record["data"]["name"])
        console.print(
            f"Next: smoothcert certify {escape(str(trained.path))} {escape(data)} --sigma {settings['sigma']:g} "
            "--every 20 --out RUN",
            soft_wrap=True,
        )

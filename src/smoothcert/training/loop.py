"""One training loop for all recipes: stochastic gradient descent on noisy copies of the training inputs.

The order of the inputs and all noise depend on the seed and the number of the step alone, so a training that goes on
from a saved step sees what it would have seen, and several processes see together what one would.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.checks import check_count
from smoothcert.data.dataset import Dataset
from smoothcert.errors import ModelError
from smoothcert.sampling import pick_device
from smoothcert.stats.accuracy import floor_percent
from smoothcert.training.batches import Batches
from smoothcert.training.engine import Engine
from smoothcert.training.recipes import RECIPES, Draws
from smoothcert.training.seeding import generator_for
from smoothcert.training.settings import LARGEST_SEED, TrainSettings, suitable_augmentations

_BLIND = 1.05  # times the accuracy of giving one answer to everything: no better than that
_LOOK_EVERY = 20  # steps between looks at the loss, each of which waits for the device
_TOO_HIGH = 10.0  # a loss that has grown so many times will not come back


def seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `factory` makes, its initial weights drawn from `seed`.

    PyTorch initialises from its global generator; that is put back as it was.
    """
    check_count("seed", seed, least=0, most=LARGEST_SEED)
    with torch.random.fork_rng(devices=[]):  # weights are made on the CPU
        torch.manual_seed(seed)
        return factory()


@dataclass
class Progress:
    """How far a training is: finished steps, and loss and accuracy under noise in the current epoch so far."""

    step: int = 0
    seen: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    first_loss: float = math.nan
    """The mean loss at the first look."""
    best_accuracy: float = 0.0
    """The highest of a whole epoch."""


class Trainer:
    """A network on its way through a training; `settings.seed` must be given."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        settings: TrainSettings,
        engine: Engine | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        settings.check()
        seed = check_count("seed", settings.seed, least=0, most=LARGEST_SEED)
        self.engine = engine or Engine(pick_device(model, settings.device), settings.precision)
        self.settings, self.recipe = settings, RECIPES.parse(settings.recipe)
        self.model = model.to(self.engine.device, memory_format=torch.channels_last)
        augment = suitable_augmentations(data.name) if settings.augment is None else settings.augment
        self.batches = Batches(data, settings.batch_size, seed, augment, self.engine, workers)
        self.steps = settings.epochs * self.batches.per_epoch
        self.progress = Progress()
        self.recipe.begin(model)
        self._seed = seed
        self._forward = torch.compile(model) if settings.compile else model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.SGD(
            self._parameters, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
        )
        self._average = None if settings.ema is None else [one.detach().clone() for one in self._averaged()]
        self._sums = torch.zeros(3, dtype=torch.float64 if self.engine.device.type != "mps" else torch.float32)
        self._sums = self._sums.to(self.engine.device)

    @property
    def epoch(self) -> float:
        """Epochs so far, with the part of the one under way."""
        return self.progress.step / self.batches.per_epoch

    def advance(self) -> bool:
        """Take one step; True where `progress` has been brought up to date."""
        self._step()
        self.progress.step += 1
        place = self.progress.step % self.batches.per_epoch
        if place and place % _LOOK_EVERY:
            return False
        self._look()
        return True

    def start_epoch(self) -> None:
        """Forget the loss and accuracy of the epoch before; ModelError if the network forgot all it knew in it."""
        now, blind = self.progress, self.batches.commonest
        if now.accuracy <= _BLIND * blind and now.best_accuracy > min(2 * blind, (1 + blind) / 2):
            before, after = floor_percent(now.best_accuracy), floor_percent(now.accuracy)
            raise ModelError(
                f"Training collapsed: accuracy under noise fell from {before}% to {after}% in "
                f"epoch {self.epoch:.0f}, that of one answer to everything. Lower the learning rate, now "
                f"{self.settings.learning_rate:g}, or the weight in the recipe {self.settings.recipe}."
            )
        best = max(now.best_accuracy, now.accuracy)
        self.progress = replace(now, seen=0, loss=0.0, accuracy=0.0, best_accuracy=best)

    def _step(self) -> None:
        step, engine = self.progress.step, self.engine
        total, own = len(self.batches.rows(step)), self.batches.places(step).to(engine.device)
        x, y = self.batches.get(step)
        generator = generator_for(self._seed, "noise", step, engine.device)
        draws = Draws(self.settings.sigma, generator, own, total)
        strength = self.recipe.strength(self.epoch, self.settings.epochs)
        if step and strength != self.recipe.strength((step - 1) / self.batches.per_epoch, self.settings.epochs):
            self.progress.first_loss = math.nan  # another loss from here on: what is high must be seen anew
        with engine.autocast():
            values, accuracy = self.recipe.losses(self._forward, x, y, draws, strength)
        self._optimizer.zero_grad()
        (values.sum() / total).backward()  # each process its part of the batch's mean
        engine.add_up_gradients(self._parameters)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.epoch)
        self._optimizer.step()
        self._update_average()
        self._sums += torch.stack([values.detach().sum(), accuracy.sum(), accuracy.new_tensor(len(y))])

    def _update_average(self) -> None:
        if self._average is not None:
            # The average of few steps must not be held back by the weights they started from.
            decay = min(self.settings.ema, (1 + self.progress.step) / (10 + self.progress.step))
            torch._foreach_lerp_(self._average, [one.detach() for one in self._averaged()], 1 - decay)

    def _averaged(self) -> list[Tensor]:
        """What an average of weights holds: all numbers that training changes."""
        return [one for one in self.model.state_dict(keep_vars=True).values() if one.is_floating_point()]

    def _look(self) -> None:
        """Bring `progress` up to date; ModelError if the training has gone astray."""
        loss, accuracy, seen = self.engine.add_up(self._sums.clone()).tolist()
        self._sums.zero_()
        mean, now = loss / seen, self.progress
        first = mean if math.isnan(now.first_loss) else now.first_loss
        if not math.isfinite(mean) or mean > _TOO_HIGH * max(first, 1.0):
            raise ModelError(
                f"Training diverged: the loss became {mean:g} in epoch {math.ceil(self.epoch)} at learning rate "
                f"{self.settings.learning_rate:g}. Lower the learning rate, or look for values in the images that are "
                "not finite."
            )
        together = now.seen + int(seen)
        self.progress = Progress(
            step=now.step,
            seen=together,
            loss=(now.loss * now.seen + loss) / together,
            accuracy=(now.accuracy * now.seen + accuracy) / together,
            first_loss=first,
            best_accuracy=now.best_accuracy,
        )

    def finish(self) -> nn.Module:
        """The trained network in eval mode, with the average of the weights if one was kept."""
        if self._average is not None:
            with torch.no_grad():
                for own, average in zip(self._averaged(), self._average, strict=True):
                    own.copy_(average)
        self._optimizer.zero_grad()  # leaves no gradients behind
        self.batches.close()
        return self.model.to(memory_format=torch.contiguous_format).eval()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that going on from here depends on; the tensors are the live ones, to be written at once."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self._parameters):
            buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{number}"] = buffer
        tensors.update({f"average.{number}": one for number, one in enumerate(self._average or ())})
        tensors["sums"] = self.engine.add_up(self._sums.clone())
        return tensors, {name: value for name, value in vars(self.progress).items() if value == value}

    def restore(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Go on from a state."""
        device = self.engine.device
        of_model = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        self.model.load_state_dict(of_model)
        for number, parameter in enumerate(self._parameters):
            if f"momentum.{number}" in tensors:
                buffer = torch.empty_like(parameter).copy_(tensors[f"momentum.{number}"])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer
        if self._average is not None:
            self._average = [tensors[f"average.{n}"].to(device, copy=True) for n in range(len(self._average))]
        # What all processes had summed goes to the first one, or it would count more than once.
        self._sums = tensors["sums"].to(device, copy=True) * (self.engine.rank == 0)
        self.progress = Progress(**progress)


def train(
    model: nn.Module,
    data: Dataset,
    settings: TrainSettings,
    *,
    on_epoch: Callable[[int, Progress], None] | None = None,
    workers: int | None = None,
) -> nn.Module:
    """Train `model` in place on `data`, with Gaussian noise added before anything else; return it in eval mode.

    Normalisation belongs inside the model, where noise has been added already. `on_epoch(epoch, progress)` is called
    after each epoch. Image files are decoded by `workers` processes, by default as many as there are CPUs, at most 8.
    ModelError when the loss is not finite. See `run_training` for trainings that can be resumed.
    """
    if settings.seed is None:
        settings = replace(settings, seed=fresh_seed())
    trainer = Trainer(model, data, settings, workers=workers)
    try:
        while trainer.progress.step < trainer.steps:
            trainer.advance()
            epoch, place = divmod(trainer.progress.step, trainer.batches.per_epoch)
            if not place:
                if on_epoch is not None:
                    on_epoch(epoch - 1, trainer.progress)
                trainer.start_epoch()
    finally:
        trainer.batches.close()
    return trainer.finish()


def fresh_seed() -> int:
    """A seed from the operating system."""
    return secrets.randbits(48)

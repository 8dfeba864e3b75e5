"""How a network is trained: what the API, the command line, a config file and the training's own record share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.data.names import source_and_split
from smoothcert.errors import ConfigError
from smoothcert.options import OptionalFloat, OptionalInt, OptionalText

LARGEST_SEED = 2**63 - 1
AUGMENTATIONS = ("crop", "resized-crop", "flip", "warp")
# What leaves an image of these data its class; a mirrored digit is none, and MNIST's authors centred theirs.
_SUITABLE: dict[str, tuple[str, ...]] = {
    "cifar10": ("crop", "flip"),
    "cifar100": ("crop", "flip"),
    "imagenet": ("resized-crop", "flip"),
    "svhn": ("crop",),
}


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of a training."""

    sigma: float
    """Noise level, in units of pixels in [0, 1]; 0 trains an undefended network."""
    recipe: str = "gaussian"
    """gaussian, stability, smoothadv, macer, consistency, smoothmix, cat-rs or denoiser, and for deterministic
    certificates lipschitz-margin or dual; with settings after a colon: consistency:weight=5,copies=4."""
    epochs: int = 90
    """How often every training input is seen."""
    batch_size: int = 256
    """Inputs per step, over all processes."""
    learning_rate: float = 0.1
    """The highest one."""
    schedule: Literal["cosine", "step"] = "cosine"
    """How the learning rate falls: to 0 along a cosine, or to a tenth every --drop-every epochs."""
    drop_every: int = 30
    """See --schedule."""
    lr_warmup: float = 0.0
    """Epochs in which the learning rate grows from 0."""
    momentum: float = 0.9
    """Of the stochastic gradient descent."""
    weight_decay: float = 1e-4
    """Of the stochastic gradient descent."""
    ema: OptionalFloat = None
    """Keep an average of the weights that decays by this factor per step, such as 0.999, and use it at the end."""
    augment: Annotated[
        tuple[Literal["crop", "resized-crop", "flip", "warp"], ...] | None,
        tyro.conf.arg(metavar="[crop] [resized-crop] [flip] [warp]", help_behavior_hint=""),
    ] = None
    """Random augmentations. crop: shift by up to an eighth of the side; resized-crop: cut out 8 to 100 % of the area of
    an image file and resize it; flip: mirror; warp: rotate, shear and bend. Default: what suits the data set, where
    that is known."""
    seed: OptionalInt = None
    """Same seed, same network. By default a fresh one, recorded."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: mixed precision, for devices that gain by it."""
    compile: bool = False
    """Compile the network first (torch.compile)."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range."""
        from smoothcert.training.recipes import RECIPES

        if self.sigma != 0:
            check_sigma(self.sigma)
        recipe = RECIPES.parse(self.recipe)
        check_choice("schedule", self.schedule, ("cosine", "step"))
        check_choice("precision", self.precision, ("fp32", "bf16"))
        for one in self.augment or ():
            check_choice("augment", one, AUGMENTATIONS)
        if self.compile and recipe.not_compiled_because:
            raise ConfigError(f"The recipe {self.recipe} cannot be compiled: {recipe.not_compiled_because}.")
        for name in ("epochs", "batch_size", "drop_every"):
            check_count(name, getattr(self, name))
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"Expected `learning_rate` to be a finite number > 0, got {self.learning_rate!r}.")
        for name, value, most in (
            ("lr_warmup", self.lr_warmup, self.epochs),
            ("momentum", self.momentum, 1),
            ("weight_decay", self.weight_decay, 1),
            ("ema", 0.0 if self.ema is None else self.ema, 1),
        ):
            if not 0 <= value < most:
                raise ConfigError(f"Expected `{name}` to be at least 0 and less than {most}, got {value!r}.")
        if self.seed is not None:
            check_count("seed", self.seed, least=0, most=LARGEST_SEED)

    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs."""
        if epoch < self.lr_warmup:
            return self.learning_rate * epoch / self.lr_warmup
        if self.schedule == "step":
            return self.learning_rate * 0.1 ** (epoch // self.drop_every)
        progress = (epoch - self.lr_warmup) / (self.epochs - self.lr_warmup)
        return self.learning_rate * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def suitable_augmentations(data_name: str) -> tuple[str, ...]:
    """What may be done to images of this data set without changing their class; nothing if it is not known."""
    source, _ = source_and_split(data_name)
    return _SUITABLE.get(source, ())

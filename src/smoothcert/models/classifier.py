"""What every model source yields: a base classifier of inputs in [0, 1], and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smoothcert.errors import InputError, ModelError
from smoothcert.models.hashes import hash_bytes, hash_tensors
from smoothcert.models.layers import Normalize, Resized

AS_GIVEN = "none declared: the model gets pixels in [0, 1] as they are"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Classifier:
    """A base classifier and what its source says about it. `Smoothed` takes it as it takes any model.

    Attributes:
        network: takes inputs in [0, 1], with noise or without, [B, *D]; returns scores [B, K] or labels [B].
        source: what it was loaded from.
        kind: the kind of source, such as "onnx".
        normalization: where pixels are brought to the network's own scale, in words.
        weights_hash: a hash of all weights, or of the file; None for a function without any.
        input_shape: the shape of one input, where the source declares it.
        num_classes: how many classes there are, where the source declares it.
        classes: their names, where the source knows them.
        sigma: the noise that it was trained with, where the source says so.
        recipe: how it was trained, by name, where the source says so.
        design: a hash of its architecture and of all settings of its training but the seed, where the source says so.
        notes: what a user should know about how it was loaded.
    """

    network: nn.Module = field(repr=False)
    source: str
    kind: str
    normalization: str = AS_GIVEN
    weights_hash: str | None = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    classes: tuple[str, ...] | None = None
    sigma: float | None = None
    recipe: str | None = None
    design: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.classes is not None and self.num_classes not in (None, len(self.classes)):
            raise ModelError(f"Expected {self.num_classes} class names for {self.source}, got {len(self.classes)}.")

    def __call__(self, batch: Tensor) -> Any:
        """Classify a batch [B, *D]."""
        return self.network(batch)

    def fitted(self, shape: Sequence[int]) -> Classifier:
        """This classifier for inputs of `shape`: images of another size are resized inside the base classifier.

        The noise is then added, and the radius certified, in the pixels of the images as given.
        """
        shape = tuple(shape)
        if self.input_shape is None or shape == self.input_shape:
            return self
        if len(shape) != 3 or len(self.input_shape) != 3 or shape[0] != self.input_shape[0]:
            raise InputError(f"Expected inputs of shape {self.input_shape} for {self.source}, got {shape}.")
        size = (self.input_shape[1], self.input_shape[2])
        note = f"images of {shape[1]}×{shape[2]} are resized to {size[0]}×{size[1]} inside the base classifier"
        return replace(self, network=Resized(self.network, size), input_shape=shape, notes=(*self.notes, note))

    def normalized(self, mean: Sequence[float], std: Sequence[float]) -> Classifier:
        """This classifier behind a layer (x − mean) / std, for a network that was trained on such inputs."""
        words = f"a layer in front of the network as asked for: {affine_words(mean, std)}"
        return replace(self.behind(Normalize(mean, std)), normalization=words)

    def behind(self, front: nn.Module) -> Classifier:
        """This classifier of what `front` makes of the input; its weights count among the weights."""
        known = self.weights_hash
        both = None if known is None else hash_bytes(known.encode(), hash_tensors(front.state_dict()).encode())
        return replace(self, network=nn.Sequential(front, self.network), weights_hash=both, design=None)


def affine_words(mean: Sequence[float], std: Sequence[float]) -> str:
    """A normalisation in words: (x − mean) / std with its numbers."""
    numbers = ("(" + ", ".join(f"{value:.4g}" for value in values) + ")" for values in (mean, std))
    return "(x − {}) / {}".format(*numbers)


class Foreign(nn.Module):
    """A classifier that torch does not run, as a module: fed on its own device, in the batches that it takes.

    Without `thread_safe`, it is never called from two threads at once. With `batch_size`, it gets batches of exactly
    that length: the last one is filled up with zeros, whose answers are dropped.
    """

    def __init__(
        self,
        call: Callable[[Tensor], Any],
        *,
        thread_safe: bool = False,
        device: str | torch.device = "cpu",
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        # In a tuple, so that a module in there is not taken for a part of this one and switched to other modes.
        self._held = (call,)
        self.thread_safe, self.own_device, self.batch_size = thread_safe, torch.device(device), batch_size

    @property
    def fixed_batch_size(self) -> int | None:
        """The one length of batches that it takes, if it takes only one."""
        return self.batch_size

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, *D] and bring the answer to where the batch was."""
        batch = x.to(self.own_device)
        if self.batch_size is None:
            return self._ask(batch).to(x.device)
        missing = -len(batch) % self.batch_size
        padded = torch.cat([batch, batch.new_zeros(missing, *batch.shape[1:])])
        answers = torch.cat([self._ask(piece) for piece in padded.split(self.batch_size)])
        return answers[: len(batch)].to(x.device)

    def _ask(self, batch: Tensor) -> Tensor:
        answer = self._held[0](batch)
        if isinstance(answer, Tensor):
            return answer
        if isinstance(answer, np.ndarray | np.generic | list | tuple):
            return torch.from_numpy(np.array(answer))
        raise ModelError(
            f"Expected scores [B, K] or labels [B] as a tensor, an array or a list, got {type(answer).__name__}."
        )

"""Batches of training inputs, in an order and with augmentations that depend on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from torch import Tensor

from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.errors import InputError
from smoothcert.training.augmentations import WARP_NUMBERS, augmented, warped
from smoothcert.training.decoding import Decoder, Request, decode_ahead, workers_for
from smoothcert.training.engine import Engine
from smoothcert.training.seeding import generator_for


class Batches:
    """This process's part of every batch, on its device, step by step.

    Arrays are augmented here; inputs that must be decoded first are decoded and augmented by `workers` processes.
    """

    def __init__(
        self,
        data: Dataset,
        batch_size: int,
        seed: int,
        augment: Sequence[str],
        engine: Engine,
        workers: int | None = None,
    ) -> None:
        if data.labels is None:
            raise InputError(f"Expected training inputs with labels, {data.name} has none.")
        if data.shape is None or len(data) == 0:
            raise InputError(f"Expected training inputs of one shape, {data.name} has several or none. Give a size.")
        if augment and len(data.shape) != 3:
            raise InputError(f"Expected images [C, H, W] to augment, got inputs of shape {data.shape}.")
        if "resized-crop" in augment and not hasattr(data, "cropped"):
            raise InputError(f"Expected image files for the augmentation resized-crop, {data.name} has none. Use crop.")
        self.count, self.per_epoch = len(data), -(-len(data) // batch_size)
        self._size, self._seed, self._augment, self._engine = batch_size, seed, augment, engine
        self._labels = torch.from_numpy(data.labels)
        self.commonest = float(np.bincount(data.labels).max()) / self.count  # share of the commonest class
        self._order = lru_cache(maxsize=2)(self._shuffled)  # an epoch is prepared while the one before it ends
        self._memory = torch.from_numpy(data.inputs) if isinstance(data, ArrayData) else None
        self._decoder = Decoder(data, seed, augment)
        self._workers = workers_for(data, workers)
        self._stream: Iterator[Tensor] | None = None
        self._upcoming = -1  # the step whose batch the stream gives next

    def rows(self, step: int) -> Tensor:
        """The indices of all inputs of a step."""
        epoch, place = divmod(step, self.per_epoch)
        return self._order(epoch)[place * self._size : (place + 1) * self._size]

    def places(self, step: int) -> Tensor:
        """Which inputs of a step are this process's."""
        return torch.arange(self._engine.rank, len(self.rows(step)), self._engine.world)

    def get(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, *D] in [0, 1] and labels [B]."""
        whole, places, device = self.rows(step), self.places(step), self._engine.device
        rows = whole[places]
        generator = generator_for(self._seed, "augment", step)
        chance = torch.rand(3, len(whole), generator=generator)[:, places]
        if self._memory is None:
            inputs = self._decoded(step)
        elif self._augment:
            inputs = augmented(self._memory[rows], self._augment, chance)
        else:
            inputs = self._memory[rows]
        inputs = inputs.to(device, non_blocking=True)
        floats = inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs
        if "warp" in self._augment:
            chance = torch.rand(WARP_NUMBERS, len(whole), generator=generator)[:, places]
            floats = warped(floats, chance.to(device, non_blocking=True))
        return floats, self._labels[rows].to(device, non_blocking=True)

    def close(self) -> None:
        """End the workers, if there are any."""
        self._stream, self._upcoming = None, -1

    def _shuffled(self, epoch: int) -> Tensor:
        return torch.randperm(self.count, generator=generator_for(self._seed, "order", epoch))

    def _decoded(self, step: int) -> Tensor:
        """The next batch of the stream, which begins again where steps are not taken one after another."""
        if step != self._upcoming:
            pin_memory = self._engine.device.type == "cuda"
            self._stream = decode_ahead(self._decoder, self._requests(step), self._workers, pin_memory=pin_memory)
        self._upcoming = step + 1
        return next(self._stream)

    def _requests(self, first: int) -> Iterator[Request]:
        for step in count(first):
            yield step // self.per_epoch, self.rows(step)[self.places(step)].tolist()

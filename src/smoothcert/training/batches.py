"""Batches of training inputs, in an order and with augmentations that depend on the seed and the step alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.errors import InputError

WARP_NUMBERS = 6 + 2 * 5 * 5  # that the warping of an image depends on


def generator_for(seed: int, purpose: str, number: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Random numbers of one purpose at one step or epoch: resuming there needs to know no more than its number."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{number}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)


class Batches:
    """The training inputs as batches on a device, step by step."""

    def __init__(self, data: Dataset, batch_size: int, seed: int, augment: Sequence[str], device: torch.device) -> None:
        if data.labels is None:
            raise InputError(f"Expected training inputs with labels, {data.name} has none.")
        if data.shape is None or len(data) == 0:
            raise InputError(f"Expected training inputs of one shape, {data.name} has several or none. Give a size.")
        if augment and len(data.shape) != 3:
            raise InputError(f"Expected images [C, H, W] to augment, got inputs of shape {data.shape}.")
        self.count, self.per_epoch = len(data), -(-len(data) // batch_size)
        self._data, self._size, self._seed, self._augment, self._device = data, batch_size, seed, augment, device
        self._labels = torch.from_numpy(data.labels)
        self.commonest = float(np.bincount(data.labels).max()) / self.count  # share of the commonest class
        self._memory = torch.from_numpy(data.inputs) if isinstance(data, ArrayData) else None
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> Tensor:
        """The indices of all inputs of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = generator_for(self._seed, "order", epoch)
            self._epoch, self._order = epoch, torch.randperm(self.count, generator=generator)
        return self._order[place * self._size : (place + 1) * self._size]

    def get(self, step: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, *D] in [0, 1] and labels [B] at these places of a step's batch."""
        whole = self.rows(step)
        rows = whole[places]
        inputs = self._memory[rows] if self._memory is not None else torch.from_numpy(self._data.batch(rows.tolist()))
        generator = generator_for(self._seed, "augment", step)
        if self._augment:
            inputs = augmented(inputs, self._augment, torch.rand(3, len(whole), generator=generator)[:, places])
        inputs = inputs.to(self._device, non_blocking=True)
        floats = inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs
        if "warp" in self._augment:
            chance = torch.rand(WARP_NUMBERS, len(whole), generator=generator)[:, places]
            floats = warped(floats, chance.to(self._device, non_blocking=True))
        return floats, self._labels[rows].to(self._device, non_blocking=True)


def augmented(images: Tensor, augment: Sequence[str], chance: Tensor) -> Tensor:
    """Images [B, C, H, W] shifted by up to an eighth of their side, and mirrored, as `chance` [3, B] falls."""
    count, _, height, width = images.shape
    batch = torch.arange(count)[:, None, None]
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)
    if "flip" in augment:
        columns = torch.where(chance[2, :, None] < 0.5, columns.flip(1), columns)
    if "crop" in augment:
        tall, wide = height // 8, width // 8
        images = functional.pad(images, (wide, wide, tall, tall))
        rows = rows + (chance[0, :, None] * (2 * tall + 1)).long()
        columns = columns + (chance[1, :, None] * (2 * wide + 1)).long()
    return images[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def warped(images: Tensor, chance: Tensor) -> Tensor:
    """Images [B, C, H, W] turned, sheared, scaled, shifted and bent a little, as `chance` [56, B] in [0, 1] falls.

    By up to 8 degrees, 8 % and a 28th of the side, and each of 5×5 points by up to a 40th of it, smoothly in between
    (after Simard, Steinkraus & Platt 2003).
    """
    count = len(images)
    angle, shear, wide, tall, right, down = 2 * chance[:6] - 1
    angle = angle * math.radians(8)
    matrix = torch.stack([angle.cos(), -angle.sin() + 0.08 * shear, angle.sin(), angle.cos()], 1).view(-1, 2, 2)
    matrix = matrix * (1 + 0.08 * torch.stack([wide, tall], 1))[:, None]
    shift = torch.stack([right, down], 1)[:, :, None] / 14  # the side of an image is 2 long here
    grid = functional.affine_grid(torch.cat([matrix, shift], 2), list(images.shape), align_corners=False)
    bends = (2 * chance[6:].T - 1).reshape(count, 2, 5, 5) / 20
    smooth = functional.interpolate(bends, images.shape[2:], mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid + smooth, align_corners=False)


def as_dataset(images: Tensor, labels: Tensor, name: str = "tensors") -> ArrayData:
    """Images [N, *D] in [0, 1] and labels [N] as a data set."""
    if not images.is_floating_point() or images.ndim < 2 or len(images) == 0:
        raise InputError(f"Expected floating-point images in [0, 1], got {images.dtype} {tuple(images.shape)}.")
    if labels.shape != (len(images),):
        raise InputError(f"Expected {len(images)} labels, one per image, got shape {tuple(labels.shape)}.")
    if labels.is_floating_point():
        raise InputError(f"Expected whole-number labels, got {labels.dtype}.")
    return ArrayData(images.numpy().astype(np.float32), labels.numpy().astype(np.int64), None, name)

"""What may be done to training images at random: shifts, mirroring, warping, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

WARP_NUMBERS = 6 + 2 * 5 * 5  # that the warping of an image depends on
WINDOW_TRIES = 10  # random windows before the central one is taken


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


def random_window(height: int, width: int, chance: Sequence[Sequence[float]]) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part of an image, as in training on ImageNet since Szegedy et al. 2015.

    Its area is uniform from 8 % to 100 % of the image's, its aspect ratio log-uniform from 3:4 to 4:3. Each row of
    `chance` gives one attempt; if no window fits, the largest central one with such a ratio is taken.
    """
    for area, ratio, down, right in chance:
        pixels = height * width * (0.08 + 0.92 * area)
        aspect = (4 / 3) ** (2 * ratio - 1)
        tall, wide = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            return int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide
    tall, wide = min(height, max(1, round(width * 4 / 3))), min(width, max(1, round(height * 4 / 3)))
    return (height - tall) // 2, (width - wide) // 2, tall, wide

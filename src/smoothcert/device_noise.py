"""Grid noise generated on the device that classifies it, by torch operations meant to match `noise` bit for bit.

Tests compare the bits on the CPU only; on GPUs this code is untested.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from smoothcert.noise import GridGaussianNoise, grid_table
from smoothcert.streams import Stream

# Philox4x64 with ten rounds (Salmon et al. 2011). torch has no unsigned words: signed ones have the same bits, and
# multiply and add to the same bits.
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def _signed(value: int) -> int:
    """The signed number with the same 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower half of the product of two unsigned 64-bit numbers."""
    a_low, a_high = a & _LOW, a >> 32
    b_low, b_high = b & _LOW, (b >> 32) & _LOW
    one, other = b_low * a_high, b_high * a_low
    carry = ((b_low * a_low >> 32) & _LOW) + (one & _LOW) + (other & _LOW)
    high = b_high * a_high + ((one >> 32) & _LOW) + ((other >> 32) & _LOW) + (carry >> 32)
    return high, b * _signed(a)


def philox_words(stream: Stream, block: int, lane: int, count: int, device: torch.device) -> Tensor:
    """The first `count` 64-bit words of a lane of a block, as signed numbers: `Stream.words` on a device."""
    k0, k1 = (int(part) for part in np.frombuffer(stream.philox_key, "<u8"))
    c0 = torch.arange(1, -(-count // 4) + 1, device=device)  # numpy's generator steps before it draws
    c1, c2, c3 = torch.full_like(c0, lane), torch.full_like(c0, block), torch.zeros_like(c0)
    for number in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0 = high1 ^ c1 ^ _signed(k0 + number * _WEYL[0])
        c2 = high0 ^ c3 ^ _signed(k1 + number * _WEYL[1])
        c1, c3 = low1, low0
    return torch.stack((c0, c1, c2, c3), 1).view(-1)[:count]


@lru_cache(maxsize=16)
def _table(sigma: float, levels: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    table = grid_table(sigma, levels)
    start = torch.from_numpy(table.start.astype(np.int64))
    return torch.from_numpy(table.steps).to(device), start.to(device), torch.from_numpy(table.low).to(device)


def fill_on_device(noise: GridGaussianNoise, centre: Tensor, stream: Stream, block: int, out: Tensor) -> None:
    """Write the first len(out) noisy copies of a block into `out` [rows, size], for `centre` [size] beside it."""
    steps, start, low = _table(noise.sigma, noise.levels, out.device)
    total = out.numel()
    words = philox_words(stream, block, 0, -(-total // 4), out.device)
    cells = words.view(torch.int16)[:total].long() & 0xFFFF
    values = steps[cells]
    ambiguous = values.isnan().nonzero()[:, 0]
    extra = (philox_words(stream, block, 1, len(ambiguous), out.device) >> 1) & (2**63 - 1)
    values[ambiguous] = _refined(cells[ambiguous], extra, start, low).to(torch.float32)
    # A 0-dimensional tensor on the device, because CUDA multiplies by the reciprocal of a Python number instead.
    out.copy_((values.view(out.shape) + centre) / values.new_tensor(noise.levels))


def _refined(cells: Tensor, extra: Tensor, start: Tensor, low: Tensor) -> Tensor:
    """The values in ambiguous cells, decided by 63 more bits each: how many thresholds lie below, by bisection."""
    mirrored = cells >= 2**15
    lower = torch.where(mirrored, 2**16 - 1 - cells, cells)
    first, last = start[lower], start[lower + 1]
    for _ in range(len(low).bit_length()):
        middle = (first + last) // 2
        searching = first < last
        passed = searching & (low[middle.clamp(max=len(low) - 1)] <= extra)
        first, last = torch.where(passed, middle + 1, first), torch.where(searching & ~passed, middle, last)
    values = first - len(low)
    return torch.where(mirrored, -values, values)

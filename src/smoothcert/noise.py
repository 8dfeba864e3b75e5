"""Noises: how noisy copies of an input are made, paired with the theorem that this noise entitles to.

A noise fills blocks of rows. A block's content depends on the stream and the block's number alone, so any
batch size, device and division of labour sees the same rows. Pure numpy, and free of Python's global lock
for most of the time, so that threads can make noise side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import InputError
from smoothcert.records import Bounds
from smoothcert.stats.radii import cohen_radius
from smoothcert.streams import Stream

fused_fill: Callable[..., None] | None
try:
    from smoothcert._grid_kernel import fill as fused_fill
except ImportError:  # installed without a compiler: numpy makes the same noise
    fused_fill = None

Array32 = npt.NDArray[np.float32]
Array64 = npt.NDArray[np.int64]

_BLOCK_VALUES = 2**18  # large enough to dwarf the cost of a call, small enough for a core's cache
_BLOCK_ROWS = 2**10  # and of small inputs not so many that workers could not share a request
_MOST_STEPS = 2**16  # of a value on a grid, which covers 16-bit images
_REACH = 10.3  # standard deviations: less than 2^-80 of the noise lies below


def rows_per_block(size: int) -> int:
    """How many noisy copies of an input of `size` values make one block: a power of two."""
    rows = min(_BLOCK_VALUES // max(size, 1), _BLOCK_ROWS)
    return 1 << max(0, rows.bit_length() - 1)


@dataclass(frozen=True)
class Noise(ABC):
    """A smoothing noise with its certificate."""

    name: ClassVar[str]
    sigma: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    @abstractmethod
    def centre(self, x: Array32) -> Array32:
        """Check the input `x` [*D] and return it, flat, in the coordinates that `fill` adds noise in."""

    @abstractmethod
    def fill(self, centre: Array32, stream: Stream, block: int, out: Array32) -> None:
        """Write the first len(out) noisy copies of a block into `out` [rows, size], for `centre` [size]."""

    def radius(self, bounds: Bounds) -> float:
        """The L2 radius that the bounds entitle to, 0.0 for none: Cohen et al. 2019, Theorem 1."""
        if bounds.label is None:
            return 0.0
        if bounds.separation is not None:
            return math.nextafter(self.sigma * bounds.separation, 0.0)
        return float(cohen_radius(bounds.q_a_upper, bounds.p_b_upper, sigma=self.sigma))


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """x + σz in float32, for inputs of any kind.

    z is made by Box–Muller from 63 random bits a pair, so |z| ≤ 6.66. Like every floating-point sampler it
    only approximates Theorem 1's real-valued noise: a base classifier built to read the rounding of x + σz
    can tell where x was and make a certificate false. `GridGaussianNoise` cannot be fooled so; prefer it for
    images.
    """

    name = "gaussian"

    def centre(self, x: Array32) -> Array32:
        """The input itself."""
        return x.reshape(-1)

    def fill(self, centre: Array32, stream: Stream, block: int, out: Array32) -> None:
        """Box–Muller, row by row: the first half of a row by cosine, the second by sine of the same angles."""
        rows, size = out.shape
        half = (size + 1) // 2
        bits = stream.words(block, 0, rows * half).view(np.int32).reshape(rows, half, 2)
        scale = (bits[:, :, 0] & np.int32(0x7FFFFFFF)).astype(np.float32)
        scale += np.float32(0.5)
        scale *= np.float32(2**-31)
        np.log(scale, out=scale)
        scale *= np.float32(-2 * self.sigma * self.sigma)
        np.sqrt(scale, out=scale)
        angle = bits[:, :, 1].astype(np.float32)
        angle *= np.float32(np.pi * 2**-31)
        np.cos(angle, out=out[:, :half])
        np.sin(angle[:, : size - half], out=out[:, half:])
        out[:, :half] *= scale
        out[:, half:] *= scale[:, : size - half]
        out += centre


@dataclass(frozen=True)
class GridGaussianNoise(Noise):
    """x + σz rounded to the grid k/levels on which x itself lies: sound for 8-bit images, rounding and all.

    round(x + σz) is a function of x + σz, so Theorem 1 holds with "round, then classify" as the base
    classifier; and for x on the grid it equals x + round(σz), which whole numbers below 2^24 in float32 add
    without error. The rounded Gaussian is drawn from its exact distribution: 16 bits choose one of 65,536
    equally likely cells; a cell that lies within one grid step is done, and in the others 63 more bits decide
    against thresholds known to 2^-79. What that leaves out is below 1e-15 for a whole photograph, far within
    the outward rounding of the confidence bounds.
    """

    name = "grid"
    levels: int = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("levels", self.levels, most=2**16)

    def centre(self, x: Array32) -> Array32:
        """The input as whole numbers of grid steps; InputError if it is not on the grid."""
        flat = x.reshape(-1)
        steps = flat.astype(np.float64) * self.levels
        nearest = np.rint(steps)
        # k/levels rounded to float32 is off by at most k·2^-24 steps.
        off = ~(np.abs(steps - nearest) <= np.maximum(np.abs(nearest), 1) * 2.0**-23)
        if off.any():
            first = int(off.argmax())
            raise InputError(
                f"Expected every value to be k/{self.levels} for a whole k, got {flat[first]} at flat index {first}. "
                "Quantise the input first (the quantised input is what is certified then), or use gaussian noise."
            )
        self._check_steps(float(np.abs(nearest).max(initial=0.0)))
        return nearest.astype(np.float32)

    def _check_steps(self, largest: float) -> None:
        """Raise InputError for values so large that float32 cannot tell grid points from the values between them.

        The tolerance for k/levels grows with k: at 2^22 steps it is half a step, and every value would pass. Up to
        2^16 steps it stays below a hundredth of a step.
        """
        if largest > _MOST_STEPS:
            raise InputError(
                f"Expected values of at most {_MOST_STEPS / self.levels:g} ({_MOST_STEPS:,} grid steps), got "
                f"{largest / self.levels:g}: float32 cannot tell whether larger ones are on the grid. Scale the input, "
                "or use gaussian noise."
            )
        if largest + _REACH * self.sigma * self.levels >= 2**24:
            raise InputError(
                f"Expected noise that stays below 2^24 grid steps, got sigma={self.sigma:g} with {self.levels} levels: "
                "float32 cannot add larger whole numbers exactly. Use gaussian noise."
            )

    def fill(self, centre: Array32, stream: Stream, block: int, out: Array32) -> None:
        """Look up every cell, refine the ambiguous ones, add in whole numbers, divide once."""
        table = grid_table(self.sigma, self.levels)
        if fused_fill is None:
            self._fill_by_numpy(table, centre, stream, block, out)
        else:
            fused_fill(out, centre, self.levels, table.steps, table.start, table.low, stream.philox_key, block)

    def _fill_by_numpy(self, table: GridTable, centre: Array32, stream: Stream, block: int, out: Array32) -> None:
        flat = out.reshape(-1)
        cells = stream.words(block, 0, -(-flat.size // 4)).view(np.uint16)[: flat.size]
        np.take(table.steps, cells, out=flat, mode="clip")
        ambiguous = np.flatnonzero(np.isnan(flat))
        extra = (stream.words(block, 1, ambiguous.size) >> np.uint64(1)).view(np.int64)
        flat[ambiguous] = table.refine(cells[ambiguous], extra)
        out += centre
        out /= np.float32(self.levels)


@dataclass(frozen=True, eq=False)
class GridTable:
    """The distribution of round(levels·σ·z) cut into 2^16 cells of equal probability.

    By symmetry only the lower half of the cells is looked at: cell 65535 − c mirrors cell c. `steps` holds each
    cell's value, NaN where thresholds run through it. Cell c's thresholds are `low[start[c]:start[c + 1]]`, 63 bits
    each. The first threshold of all lies between −len(low) and the next value, so that whoever has passed t of them is
    at t − len(low).
    """

    steps: Array32
    start: npt.NDArray[np.int32]
    low: Array64

    def refine(self, cells: npt.NDArray[np.uint16], extra: Array64) -> Array64:
        """The values in ambiguous cells, decided by 63 more bits each."""
        mirrored = cells >= 2**15
        lower = np.where(mirrored, np.uint16(2**16 - 1) - cells, cells)
        passed = self.start[lower] + (extra >= self.low[self.start[lower]])
        # Only cells far out in the tails hold several thresholds.
        for i in np.flatnonzero(self.start[lower + np.uint16(1)] - self.start[lower] > 1):
            inside = self.low[self.start[lower[i]] : self.start[lower[i] + 1]]
            passed[i] = self.start[lower[i]] + np.searchsorted(inside, extra[i], side="right")
        values = passed.astype(np.int64) - len(self.low)
        return np.where(mirrored, -values, values)


@lru_cache(maxsize=16)
def grid_table(sigma: float, levels: int) -> GridTable:
    """The table for noise of standard deviation `sigma` on the grid k/`levels`."""
    from mpmath import mp  # slow to import, and only this noise needs it

    with mp.workdps(50):
        step = 1 / (mp.mpf(sigma) * levels)
        count = int(mp.ceil(mp.mpf(str(_REACH)) / step))
        # Between the values v and v + 1, for v = −count, …, −1, in units of 2^-79.
        thresholds = [int(mp.floor(mp.ldexp(mp.ncdf((v + mp.mpf("0.5")) * step), 79))) for v in range(-count, 0)]
    cell = np.array([t >> 63 for t in thresholds], np.int64)
    low = np.array([t & (2**63 - 1) for t in thresholds], np.int64)
    start = np.searchsorted(cell, np.arange(2**15 + 1)).astype(np.int32)
    half = np.where(np.diff(start) > 0, np.nan, start[:-1] - count).astype(np.float32)
    return GridTable(np.concatenate([half, -half[::-1]]), start, low)


NOISES: dict[str, type[Noise]] = {noise.name: noise for noise in (GaussianNoise, GridGaussianNoise)}

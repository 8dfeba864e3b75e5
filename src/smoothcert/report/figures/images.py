"""What the base classifier sees: images under noise, and the same noise at two resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import ConfigError, InputError
from smoothcert.report.figures.canvas import new_figure, style
from smoothcert.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Images = npt.NDArray[np.uint8]


def shown(image: npt.NDArray[Any]) -> Images:
    """An image in [0, 1] as a screen shows it: clipped and in 8 bits. The classifier sees it as it is."""
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _show(axes: Axes, image: npt.NDArray[Any], title: str = "") -> None:
    pixels = shown(image)
    pixels = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9)


def _check_images(images: Images) -> None:
    if images.ndim != 4 or len(images) == 0 or images.shape[1] not in (1, 3) or images.dtype != np.uint8:
        raise InputError(f"Expected 8-bit images [N, 1 or 3, H, W], got {images.dtype} {images.shape}.")


def noise_panel(images: Images, sigmas: Sequence[float], *, seed: int = 0) -> Figure:
    """Images as they are and under noise: one row per image, one column per σ, the first without noise.

    Noisy values are clipped to [0, 1] and put into 8 bits for display only; the classifier sees them as they are.
    """
    _check_images(images)
    columns = [0.0, *(check_sigma(sigma) for sigma in sigmas)]
    generator = np.random.default_rng(check_count("seed", seed, least=0))
    with style():
        figure = new_figure(1.15 * len(columns), 1.15 * len(images) + 0.25)
        grid = figure.subplots(len(images), len(columns), squeeze=False)
        for row, image in enumerate(images):
            clean = np.moveaxis(image, 0, -1) / 255
            standard = generator.standard_normal(clean.shape)  # the same along a row, only louder
            for column, sigma in enumerate(columns):
                title = f"σ = {sigma:g}" if sigma else "clean"
                _show(grid[row, column], clean + sigma * standard, title if row == 0 else "")
    return figure


def noise(_: Sequence[Run], *, images: Images, sigmas: Sequence[float] = (0.25, 0.5, 1.0), seed: int = 0) -> Figure:
    """Images under noise at several σ: Cohen et al. 2019, Appendix K."""
    return noise_panel(images, sigmas, seed=seed)


def resolution(_: Sequence[Run], *, images: Images, sigma: float = 0.5, factor: int = 4, seed: int = 0) -> Figure:
    """An image and its copy of `factor` times fewer pixels a side, clean and under the same noise level.

    Cohen et al. 2019, Appendix G: in high resolution an image bears more noise. Low resolution is the mean over squares
    of pixels, as in their Proposition on it.
    """
    _check_images(images)
    check_sigma(sigma)
    high = [np.moveaxis(image, 0, -1) / 255 for image in images]
    low = [averaged(image, factor) for image in high]
    generator = np.random.default_rng(check_count("seed", seed, least=0))
    with style():
        figure = new_figure(6.0, 1.46 * len(images) + 0.3)
        grid = figure.subplots(len(images), 4, squeeze=False)
        for row, pair in enumerate(zip(low, high, strict=True)):
            for column, image in enumerate(pair):
                size = f"{image.shape[0]} × {image.shape[1]}" if row == 0 else ""
                noisy = image + sigma * generator.standard_normal(image.shape)
                _show(grid[row, column], image, size)
                _show(grid[row, 2 + column], noisy, f"{size}, σ = {sigma:g}" if size else "")
    return figure


def averaged(image: npt.NDArray[np.float64], factor: int) -> npt.NDArray[np.float64]:
    """The mean of each square of `factor` × `factor` pixels of an image [H, W, C]."""
    check_count("factor", factor, least=2)
    height, width, channels = image.shape
    if height % factor or width % factor:
        raise ConfigError(f"Expected `factor` to divide the image's {height} × {width} pixels, got {factor}.")
    squares = image.reshape(height // factor, factor, width // factor, factor, channels)
    return squares.mean(axis=(1, 3))

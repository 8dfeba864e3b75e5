"""Denoisers to put before a classifier that was never trained on noise: `Denoised(make_denoiser("tv", 0.25), model)`.

Salman et al. 2020, "Denoised smoothing": classifier∘denoiser is a base classifier like any other, so that its
certificates hold whatever the denoiser does. A better one only makes them larger. Every denoiser here treats each image
by itself and gives the same answer each time, as the contract of a base classifier asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.models.dncnn import load_dncnn

Image = npt.NDArray[np.float32]


class Denoised(nn.Module):
    """classifier(denoiser(x)): what `Smoothed` certifies is this composition, in the pixels of x."""

    def __init__(self, denoiser: Callable[[Tensor], Tensor], classifier: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.denoiser, self.classifier = denoiser, classifier

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, C, H, W] of noisy images."""
        return self.classifier(self.denoiser(x))


class Classical(nn.Module):
    """A denoiser without training, made for noise of one `sigma`: images in, images in [0, 1] of the same form out.

    The noisy image is never clipped before it is denoised: what lies outside [0, 1] tells about the noise too.
    Settings follow sigma by formulas that fit the best ones found on scikit-image's colour photographs at 32×32 and
    224×224 pixels, σ = 0.12, 0.25, 0.5 and 1 (docs/denoising.md has the figures).
    """

    differentiable = True
    """Else gradients pass as if the denoiser were the identity, which is what attacks do about such layers."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = check_sigma(sigma)

    def extra_repr(self) -> str:
        """The noise that it was made for."""
        return f"sigma={self.sigma:g}"

    def forward(self, x: Tensor) -> Tensor:
        """Denoise a batch [B, C, H, W]."""
        if x.ndim != 4 or not x.is_floating_point():
            raise InputError(f"Expected a batch of images [B, C, H, W] in floats, got {x.dtype} {tuple(x.shape)}.")
        if x.requires_grad and torch.is_grad_enabled() and not self.differentiable:
            return x + (self._denoised(x.detach()) - x).detach()
        return self._denoised(x)

    def _denoised(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.clone()
        rows = max(1, _CACHED // x[0].numel()) if x.device.type == "cpu" else len(x)
        return torch.cat([self.denoise(part.float()).clamp(0, 1) for part in x.split(rows)]).to(x.dtype)

    def denoise(self, x: Tensor) -> Tensor:
        """Denoise images [B, C, H, W], each by itself."""
        raise NotImplementedError


_CACHED = 1 << 16  # numbers at a time on a CPU: filters pass over their images many times, best within its cache


def _blur(sigma: float) -> float:
    """The standard deviation in pixels of the Gaussian that denoises best; windows of other filters go with it."""
    return 3.4 * sigma**0.6


def _window(size: int | None, default: float) -> int:
    """The odd side of a window: the one given, else the nearest to the default."""
    if size is None:
        return max(3, 2 * round((default - 1) / 2) + 1)
    if check_count("size", size) % 2 == 0:
        raise ConfigError(f"Expected `size` to be odd, so that a window has a centre, got {size}.")
    return size


def _padded(x: Tensor, margin: int) -> Tensor:
    """Images with their border pixels repeated, which unlike a reflection works for images of any size."""
    return functional.pad(x, (margin,) * 4, mode="replicate")


class GaussianBlur(Classical):
    """Convolution with a Gaussian of standard deviation `width` pixels."""

    kernel: Tensor

    def __init__(self, sigma: float, width: float | None = None) -> None:
        super().__init__(sigma)
        self.width = _blur(self.sigma) if width is None else width
        self.margin = math.ceil(3 * self.width)
        offsets = torch.arange(-self.margin, self.margin + 1) / self.width
        self.register_buffer("kernel", torch.softmax(-offsets.square() / 2, 0), persistent=False)

    def denoise(self, x: Tensor) -> Tensor:
        """Blur along the columns, then along the rows."""
        channels = _padded(x, self.margin).flatten(0, 1)[:, None]
        kernel = self.kernel.to(x.dtype)
        y = functional.conv2d(channels, kernel.view(1, 1, -1, 1))
        return functional.conv2d(y, kernel.view(1, 1, 1, -1)).view_as(x)


class Median(Classical):
    """The median of each channel over a square window of `size` pixels a side."""

    def __init__(self, sigma: float, size: int | None = None) -> None:
        super().__init__(sigma)
        # A square window spreads as widely as a Gaussian if its side is √12 standard deviations.
        self.size = _window(size, math.sqrt(12) * _blur(self.sigma))

    def denoise(self, x: Tensor) -> Tensor:
        """Take the medians of shifted copies."""
        padded = _padded(x, self.size // 2)
        height, width = x.shape[2:]
        shifts = [(i, j) for i in range(self.size) for j in range(self.size)]
        return _median([padded[:, :, i : i + height, j : j + width] for i, j in shifts])


def _median(values: list[Tensor]) -> Tensor:
    """The median of an odd number of tensors, place by place, by forgetful selection.

    Of a little over half of them neither the least nor the greatest can be the median: both are forgotten, the next one
    is taken in, and so on. It takes comparisons of whole tensors only, which for windows of up to 11×11 beats sorting.
    """
    first = len(values) // 2 + 2
    held, waiting = values[:first], values[first:]
    while len(held) > 2:
        for i in range(len(held) // 2):
            held[i], held[-1 - i] = torch.minimum(held[i], held[-1 - i]), torch.maximum(held[i], held[-1 - i])
        last = len(held) - 1
        for i in range(1, (last + 2) // 2):  # the least is in the first half, the middle one included
            held[0], held[i] = torch.minimum(held[0], held[i]), torch.maximum(held[0], held[i])
        for i in range((last + 1) // 2, last):
            held[i], held[last] = torch.minimum(held[i], held[last]), torch.maximum(held[i], held[last])
        held = held[1:-1] + waiting[:1]
        waiting = waiting[1:]
    return held[0]


class Wiener(Classical):
    """The local Wiener filter (Lee 1980): each pixel shrinks to its window's mean as far as noise explains the spread.

    The noise's variance is known here, not estimated from the image.
    """

    def __init__(self, sigma: float, size: int | None = None) -> None:
        super().__init__(sigma)
        # The shrinking spares what stands out, so that a wider window than the median's is best.
        self.size = _window(size, 5 * _blur(self.sigma))

    def denoise(self, x: Tensor) -> Tensor:
        """Shrink towards local means."""
        mean = self._mean(x)
        spread = (self._mean(x.square()) - mean.square()).clamp(min=1e-12)
        return mean + (1 - self.sigma**2 / spread).clamp(min=0) * (x - mean)

    def _mean(self, x: Tensor) -> Tensor:
        columns = functional.avg_pool2d(_padded(x, self.size // 2), (self.size, 1), stride=1)
        return functional.avg_pool2d(columns, (1, self.size), stride=1)


class TotalVariation(Classical):
    """The image u that minimises ½‖u − x‖² + weight·TV(u): Rudin, Osher & Fatemi 1992.

    Solved in Chambolle's dual (2004), p within balls of radius `weight` and u = x + div p, by projected gradients with
    Nesterov's momentum (Beck & Teboulle 2009), for all images at once and always with the same number of steps: a stop
    by the largest change in the batch would let its images influence each other. The channels' edges are taken together
    (Blomgren & Chan 1998), which is worth 0.6 dB over channel by channel; greyscale gives scikit-image's result.
    """

    differentiable = False

    def __init__(self, sigma: float, weight: float | None = None, iterations: int | None = None) -> None:
        super().__init__(sigma)
        self.weight = weight
        self.iterations = round(20 + 40 * self.sigma) if iterations is None else check_count("iterations", iterations)

    def weight_for(self, channels: int) -> float:
        """The weight given, or else the best one measured: the gradients of several channels are longer together."""
        return self.sigma * (0.75 + 0.45 * self.sigma) * channels ** (1 / 3) if self.weight is None else self.weight

    @torch.no_grad()
    def denoise(self, x: Tensor) -> Tensor:
        """Take the dual steps."""
        weight = self.weight_for(x.shape[1])
        rows, columns = torch.zeros_like(x), torch.zeros_like(x)
        ahead_rows, ahead_columns = torch.zeros_like(x), torch.zeros_like(x)
        momentum = 1.0
        for _ in range(self.iterations):
            _dual_step(x, ahead_rows, ahead_columns, weight)
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            reach = 1 + (momentum - 1) / following  # beyond the new point, on the line from the one before
            rows, ahead_rows = ahead_rows, rows.lerp_(ahead_rows, reach)
            columns, ahead_columns = ahead_columns, columns.lerp_(ahead_columns, reach)
            momentum = following
        return _plus_divergence(x, rows, columns)


def _dual_step(x: Tensor, rows: Tensor, columns: Tensor, weight: float) -> None:
    """Take a step of projected gradient descent in place, on fields that are 0 in the last row or the last column.

    The dual's gradient is Lipschitz with constant 8 (Chambolle 2004, Theorem 3.1), so that steps are of 1/8.
    """
    u = _plus_divergence(x, rows, columns)
    rows[:, :, :-1].add_(u[:, :, 1:] - u[:, :, :-1], alpha=1 / 8)
    columns[..., :-1].add_(u[..., 1:] - u[..., :-1], alpha=1 / 8)
    squares = rows.square().addcmul_(columns, columns).sum(dim=1, keepdim=True)
    within = squares.clamp_(min=weight**2).rsqrt_().mul_(weight)
    rows.mul_(within)
    columns.mul_(within)


def _plus_divergence(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The sum of x and div p, where −div is the adjoint of the forward differences."""
    u = x + rows
    u[:, :, 1:] -= rows[:, :, :-1]
    u += columns
    u[..., 1:] -= columns[..., :-1]
    return u


class _Borrowed(Classical):
    """A denoiser of scikit-image, called for one image at a time on the CPU."""

    differentiable = False

    def __init__(self, sigma: float) -> None:
        super().__init__(sigma)
        _restoration()  # better missing now than in the first batch

    def denoise(self, x: Tensor) -> Tensor:
        """Denoise one by one and move back to where the images came from."""
        images = x.detach().cpu().contiguous().numpy()
        done = np.empty_like(images)
        for i, image in enumerate(images):
            done[i] = self.one(image) if len(image) > 1 else self.one(image[0])[None]
        return torch.from_numpy(done).to(x.device)

    def one(self, image: Image) -> Image:
        """Denoise one image, [C, H, W] or, if it has but one channel, [H, W]."""
        raise NotImplementedError


def _restoration() -> Any:
    try:
        from skimage import restoration
    except ImportError as error:
        raise MissingExtraError("scikit-image", "denoise") from error
    return restoration


def _channel_axis(image: Image) -> int | None:
    return 0 if image.ndim == 3 else None


class NonLocalMeans(_Borrowed):
    """Averages over pixels whose surroundings look alike: Buades et al. 2005, by scikit-image."""

    def __init__(self, sigma: float, strength: float = 0.6) -> None:
        super().__init__(sigma)
        self.strength = strength

    def one(self, image: Image) -> Image:
        """Average within 13×13 pixels, by the likeness of 5×5 ones."""
        return _restoration().denoise_nl_means(
            image,
            patch_size=5,
            patch_distance=6,
            h=self.strength * self.sigma,
            sigma=self.sigma,
            fast_mode=True,
            preserve_range=True,
            channel_axis=_channel_axis(image),
        )


class Wavelet(_Borrowed):
    """Soft thresholds on wavelet coefficients, chosen per subband (BayesShrink, Chang et al. 2000), by scikit-image.

    With the smoothest of three wavelets that still allows four levels: large noise needs coarse levels more than small
    images need smooth wavelets.
    """

    def __init__(self, sigma: float) -> None:
        super().__init__(sigma)
        _levels((8, 8), "db1")  # PyWavelets too, better missing now

    def one(self, image: Image) -> Image:
        """Shrink the coefficients, of colour images in luma and chroma."""
        sides = image.shape[-2:]
        wavelet = next((name for name in ("sym4", "db2") if _levels(sides, name) >= 4), "db1")
        return _restoration().denoise_wavelet(
            image,
            sigma=self.sigma,
            wavelet=wavelet,
            wavelet_levels=min(4, _levels(sides, wavelet)),
            method="BayesShrink",
            mode="soft",
            rescale_sigma=True,
            convert2ycbcr=image.ndim == 3 and len(image) == 3,
            channel_axis=_channel_axis(image),
        )


def _levels(sides: tuple[int, ...], wavelet: str) -> int:
    try:
        import pywt
    except ImportError as error:
        raise MissingExtraError("PyWavelets", "denoise") from error
    return pywt.dwtn_max_level(sides, wavelet)


CLASSICAL: dict[str, Callable[[float], nn.Module]] = {
    "gaussian": GaussianBlur,
    "median": Median,
    "wiener": Wiener,
    "tv": TotalVariation,
    "nl-means": NonLocalMeans,
    "wavelet": Wavelet,
}


def make_denoiser(name_or_path: str | Path, sigma: float) -> nn.Module:
    """A denoiser for noise of `sigma`: one of `CLASSICAL` by name, or a DnCNN from a .safetensors file.

    A DnCNN trained on other noise is accepted: its certificates are as true, if not as large. See its `trained_sigma`.
    """
    check_sigma(sigma)
    name = str(name_or_path)
    if name not in CLASSICAL and Path(name).is_file():
        return load_dncnn(Path(name))
    if name not in CLASSICAL and name.endswith(".safetensors"):
        raise ConfigError(f"Expected `denoiser` to be a file or one of {', '.join(CLASSICAL)}; there is no {name}.")
    return CLASSICAL[check_choice("denoiser", name, CLASSICAL)](sigma)

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

from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.models.dncnn import load_dncnn


class Denoised(nn.Module):
    """classifier(denoiser(x)): what `Smoothed` certifies is this composition, in the pixels of x."""

    def __init__(self, denoiser: Callable[[Tensor], Tensor], classifier: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.denoiser, self.classifier = denoiser, classifier

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch [B, C, H, W] of noisy images."""
        return self.classifier(self.denoiser(x))


class Classical(nn.Module):
    """A denoiser without training, made for noise of one `sigma`: images in, images in [0, 1] of the same shape out.

    The noisy image is never clipped before it is denoised: values outside [0, 1] carry information about the noise.
    Settings follow sigma by formulas fitted to the best settings found on scikit-image's colour photographs at 32×32
    and 224×224 pixels, σ = 0.12, 0.25, 0.5 and 1 (docs/denoising.md has the figures). Gradients pass as if the
    denoiser were the identity, as attacks on such layers assume (Athalye et al. 2018).
    """

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
        if x.requires_grad and torch.is_grad_enabled():
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


class TotalVariation(Classical):
    """The image u that minimises ½‖u − x‖² + weight·TV(u): Rudin, Osher & Fatemi 1992.

    Solved in Chambolle's dual (2004), p within balls of radius `weight` and u = x + div p, by projected gradients with
    Nesterov's momentum (Beck & Teboulle 2009), for all images at once and always with the same number of steps: a stop
    by the largest change in the batch would let its images influence each other. The channels' edges are taken together
    (Blomgren & Chan 1998), which is worth 0.6 dB over channel by channel; greyscale gives scikit-image's result.
    """

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


class NonLocalMeans(Classical):
    """Averages over pixels with similar surroundings (Buades et al. 2005), by scikit-image, one image at a time."""

    def __init__(self, sigma: float, strength: float = 0.6) -> None:
        super().__init__(sigma)
        self.strength = strength
        _restoration()  # a missing package is reported now, not in the first batch

    def denoise(self, x: Tensor) -> Tensor:
        """Denoise the images one by one and return them on the device of `x`."""
        images = x.detach().cpu().contiguous().numpy()
        denoised = np.empty_like(images)
        for i, image in enumerate(images):
            if len(image) == 1:  # scikit-image squeezes a channel axis of length 1
                denoised[i, 0] = self._average(image[0], channel_axis=None)
            else:
                denoised[i] = self._average(image, channel_axis=0)
        return torch.from_numpy(denoised).to(x.device)

    def _average(self, image: npt.NDArray[np.float32], channel_axis: int | None) -> npt.NDArray[np.float32]:
        """Average within 13×13 pixels, weighted by the similarity of 5×5 patches."""
        return _restoration().denoise_nl_means(
            image,
            patch_size=5,
            patch_distance=6,
            h=self.strength * self.sigma,
            sigma=self.sigma,
            fast_mode=True,
            preserve_range=True,
            channel_axis=channel_axis,
        )


def _restoration() -> Any:
    try:
        from skimage import restoration
    except ImportError as error:
        raise MissingExtraError("scikit-image", "denoise") from error
    return restoration


CLASSICAL: dict[str, Callable[[float], nn.Module]] = {"tv": TotalVariation, "nl-means": NonLocalMeans}


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

"""A learned denoiser and its file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.sealed import read_safetensors, write_sealed
from smoothcert.models.weights import check_enough, count_values, load_weights


class DnCNN(nn.Module):
    """The residual denoising network of Zhang et al. 2017: it predicts the noise and takes it off.

    `depth` convolutions of 3×3 and `width` channels, all between the first and the last with batch norm, and He et
    al.'s initialisation: 556,096 parameters for greyscale images and 558,400 for colour. `trained_sigma` is the noise
    it was trained on, if known.
    """

    def __init__(self, channels: int = 3, depth: int = 17, width: int = 64) -> None:
        super().__init__()
        self.channels = check_count("channels", channels, most=1024)
        self.depth = check_count("depth", depth, least=2, most=1024)
        self.width = check_count("width", width, most=4096)
        self.trained_sigma: float | None = None
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.noise = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1, bias=False))
        for layer in self.noise:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Denoise a batch [B, C, H, W]."""
        return x - self.noise(x)


def save_dncnn(path: Path, model: DnCNN, sigma: float) -> None:
    """Write a DnCNN trained on noise of `sigma` to a .safetensors file, in one move or not at all."""
    settings = {"channels": model.channels, "depth": model.depth, "width": model.width, "sigma": check_sigma(sigma)}
    write_sealed(path, model.state_dict(), {"architecture": "dncnn", **settings})


def load_dncnn(path: Path) -> DnCNN:
    """The DnCNN that `save_dncnn` wrote; ModelError for any other file."""
    tensors, about = read_safetensors(path)
    if about is None or about.get("architecture") != "dncnn":
        found = (
            "weights of another program" if about is None else f"a network of architecture {about['architecture']!r}"
        )
        raise ModelError(f"Expected a denoiser (dncnn) that smoothcert wrote in {path}, got {found}.")
    try:
        with torch.device("meta"):
            outline = DnCNN(about["channels"], about["depth"], about["width"])
        check_enough(count_values(outline), tensors, str(path))
        with torch.random.fork_rng(devices=[]):  # initial weights, about to be replaced
            model = DnCNN(about["channels"], about["depth"], about["width"])
        model.trained_sigma = check_sigma(about["sigma"])
    except (KeyError, TypeError, ConfigError) as error:
        raise ModelError(f"The metadata of {path} does not describe a denoiser ({error}).") from error
    load_weights(model, tensors, str(path))
    return model.eval()

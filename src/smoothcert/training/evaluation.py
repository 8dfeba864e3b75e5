"""How accurate a network is without noise and under it, one noisy copy per input: a quick look, not a certificate."""

from __future__ import annotations

import torch
from torch import nn

from smoothcert.data.dataset import Dataset
from smoothcert.errors import InputError
from smoothcert.models.contract import evaluating
from smoothcert.training.batches import generator_for

_ROWS = 256


def accuracies_of(
    model: nn.Module, data: Dataset, sigma: float, seed: int, device: torch.device
) -> tuple[float, float]:
    """The part of `data` that `model` classifies right without noise, and on one copy each with noise of `sigma`."""
    if data.labels is None:
        raise InputError(f"Expected labels to measure accuracy with, {data.name} has none.")
    right = torch.zeros(2, dtype=torch.int64)
    with torch.inference_mode(), evaluating(model):
        for number, rows in enumerate(torch.arange(len(data)).split(_ROWS)):
            batch = torch.from_numpy(data.batch(rows.tolist())).to(device)
            x = batch.float() / 255 if batch.dtype == torch.uint8 else batch
            generator = generator_for(seed, "evaluation", number, device)
            noisy = x + sigma * torch.randn(x.shape, device=device, generator=generator)
            labels = torch.from_numpy(data.labels[rows.numpy()])
            right += torch.stack([(model(one).argmax(1).cpu() == labels).sum() for one in (x, noisy)])
    clean, under_noise = (count / len(data) for count in right.tolist())
    return clean, under_noise

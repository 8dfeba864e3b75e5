"""How accurate a network is without noise and under it, one noisy copy per input: a quick look, not a certificate."""

from __future__ import annotations

import torch
from torch import nn

from smoothcert.data.dataset import Dataset
from smoothcert.errors import InputError
from smoothcert.models.contract import evaluating
from smoothcert.training.decoding import Decoder, decode_ahead, workers_for
from smoothcert.training.engine import Engine
from smoothcert.training.seeding import generator_for

_ROWS = 256


def accuracies_of(
    model: nn.Module, data: Dataset, sigma: float, seed: int, engine: Engine, workers: int | None = None
) -> tuple[float, float]:
    """The part of `data` that `model` classifies right without noise, and on one copy each with noise of `sigma`.

    Several processes share the work, and `workers` of each decode image files.
    """
    if data.labels is None:
        raise InputError(f"Expected labels to measure accuracy with, {data.name} has none.")
    device = engine.device
    right = torch.zeros(2, dtype=torch.int64, device=device)
    parts = list(enumerate(torch.arange(len(data)).split(_ROWS)))[engine.rank :: engine.world]
    requests = ((0, rows.tolist()) for _, rows in parts)
    batches = decode_ahead(Decoder(data), requests, workers_for(data, workers), pin_memory=device.type == "cuda")
    with torch.inference_mode(), evaluating(model):
        for (number, rows), inputs in zip(parts, batches, strict=True):
            batch = inputs.to(device, non_blocking=True)
            x = batch.float() / 255 if batch.dtype == torch.uint8 else batch
            generator = generator_for(seed, "evaluation", number, device)
            noisy = x + sigma * torch.randn(x.shape, device=device, generator=generator)
            labels = torch.from_numpy(data.labels[rows.numpy()]).to(device)
            right += torch.stack([(model(one).argmax(1) == labels).sum() for one in (x, noisy)])
    clean, under_noise = (count / len(data) for count in engine.add_up(right).tolist())
    return clean, under_noise

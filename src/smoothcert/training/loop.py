"""One training loop: stochastic gradient descent on noisy copies of the training images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import ConfigError, InputError, ModelError

_MOMENTUM = 0.9
_WEIGHT_DECAY = 1e-4
_LARGEST_SEED = 2**63 - 1


def seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `factory` makes, its initial weights drawn from `seed`.

    PyTorch initialises from its global generator; that is put back as it was.
    """
    check_count("seed", seed, least=0, most=_LARGEST_SEED)
    with torch.random.fork_rng(devices=[]):  # weights are made on the CPU
        torch.manual_seed(seed)
        return factory()


def _check(images: Tensor, labels: Tensor, sigma: float, epochs: int, batch_size: int, learning_rate: float) -> None:
    if sigma != 0:  # 0 trains an undefended classifier
        check_sigma(sigma)
    check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    if not 0 < learning_rate < math.inf:
        raise ConfigError(f"Expected `learning_rate` to be a finite number > 0, got {learning_rate!r}.")
    if not images.is_floating_point() or len(images) == 0:
        raise InputError(f"Expected floating-point images in [0, 1], got {images.dtype} {tuple(images.shape)}.")
    if labels.shape != (len(images),):
        raise InputError(f"Expected {len(images)} labels, one per image, got shape {tuple(labels.shape)}.")


def _batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(count, generator=generator).split(batch_size)


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    sigma: float,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    on_epoch: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """Train `model` in place to classify images [N, *D] in [0, 1] under Gaussian noise; return it.

    Minimises the mean over the training set of E[−log softmax(model(x + ε))_y], ε ~ N(0, σ²I): one fresh ε per
    image and step, added before any normalisation, which belongs inside the model. This is Gaussian data
    augmentation, the recipe of Cohen et al. 2019, Section 3.3 and Appendix F (after Lecuyer et al. 2019): g is
    accurate only if f classifies noisy images well. With sigma 0 the result is an undefended classifier.

    SGD with momentum 0.9 and weight decay 1e-4; the learning rate falls to 0 along a cosine. Order and noise come
    from `seed` alone. `on_epoch(epoch, mean_loss)` is called after each epoch. ModelError when the loss is not finite.
    """
    _check(images, labels, sigma, epochs, batch_size, learning_rate)
    check_count("seed", seed, least=0, most=_LARGEST_SEED)
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, _MOMENTUM, weight_decay=_WEIGHT_DECAY)
    steps = epochs * math.ceil(len(images) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    was_training = model.training
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for rows in _batches(len(images), batch_size, generator):
            clean = images[rows]
            noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
            loss = functional.cross_entropy(model(noisy.to(device)), labels[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += _finite(loss, epoch, learning_rate) * len(rows)
        if on_epoch is not None:
            on_epoch(epoch, total / len(images))
    optimizer.zero_grad()  # leaves no gradients behind
    return model.train(was_training)


def _finite(loss: Tensor, epoch: int, learning_rate: float) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ModelError(
            f"Training diverged: the loss became {value} in epoch {epoch + 1} at learning rate {learning_rate:g}. "
            "Lower the learning rate, or look for values in the images that are not finite."
        )
    return value

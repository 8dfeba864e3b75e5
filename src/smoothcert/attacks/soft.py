"""Attacks on the soft smoothed classifier, whose scores are probabilities averaged over given noises.

Salman et al. 2019: G(x) = E[softmax f(x + ε)], estimated with m noises that stay the same during an attack, so that it
can be differentiated. These attacks serve training; whether an input found is adversarial for g must be judged afresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.geometry import directions, lengths, within_ball

Objective = Callable[[Tensor], Tensor]
"""What an attack raises: from inputs [B, *D] to a value per input [B]."""

_DDN_START, _DDN_CHANGE = 1.0, 0.05  # Rony et al. 2019: the first length, and by how much it changes per step
_DDN_LAST_STEP = 0.01


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Run `model` as it would classify, and without gradients of its weights."""
    modes = [(module, module.training) for module in model.modules()]
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
        for module, training in modes:
            module.training = training


def noisy_scores(model: nn.Module, x: Tensor, noises: Tensor) -> Tensor:
    """The scores [m, B, K] of x [B, *D] under each of the noises [m, B, *D], in one pass."""
    scores = model((x + noises).flatten(0, 1))
    return scores.unflatten(0, (len(noises), len(x)))


def soft_log_probabilities(scores: Tensor) -> Tensor:
    """The logarithm [B, K] of the class probabilities averaged over noises, from scores [m, B, K]."""
    return functional.log_softmax(scores, dim=2).logsumexp(dim=0) - math.log(len(scores))


def soft_objective(model: nn.Module, labels: Tensor, noises: Tensor) -> Objective:
    """−log of the soft smoothed classifier's probability for the label (Salman et al. 2019, eq. 5)."""

    def objective(x: Tensor) -> Tensor:
        return -soft_log_probabilities(noisy_scores(model, x, noises)).gather(1, labels[:, None]).squeeze(1)

    return objective


def _gradients(objective: Objective, x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        # Inputs do not influence each other, so the gradient of the sum holds each input's own.
        return torch.autograd.grad(objective(point).sum(), point)[0]


def pgd(
    objective: Objective,
    x: Tensor,
    *,
    radius: float,
    steps: int,
    step_size: float | None = None,
    pixels: bool = True,
) -> Tensor:
    """Inputs within `radius` of x [B, *D] found by steps of steepest ascent in L2, each followed by projection.

    A step is 2·radius/steps long unless `step_size` says otherwise, and results stay in [0, 1] if they are `pixels`.
    With an infinite radius only the number of steps limits how far the attack goes.
    """
    size = 2 * radius / steps if step_size is None else step_size
    delta = torch.zeros_like(x)
    for _ in range(steps):
        delta = delta + size * directions(_gradients(objective, x + delta))
        if math.isfinite(radius):
            delta = within_ball(delta, radius)
        if pixels:
            delta = (x + delta).clamp(0, 1) - x
    return (x + delta).detach()


def ddn(objective: Objective, fooled: Callable[[Tensor], Tensor], x: Tensor, *, radius: float, steps: int) -> Tensor:
    """Inputs in [0, 1] within `radius` of x [B, *D], by decoupling direction and norm (Rony et al. 2019).

    The length of each perturbation shrinks by 5 % where it has `fooled` the classifier and grows as much where not, up
    to `radius`; directions follow the gradient with steps that shrink along a cosine.
    """
    delta = torch.zeros_like(x)
    budget = torch.full_like(lengths(x), min(_DDN_START, radius))
    for step in range(steps):
        size = _DDN_LAST_STEP + (1 - _DDN_LAST_STEP) * (1 + math.cos(math.pi * step / steps)) / 2
        with torch.no_grad():
            hit = fooled(x + delta).view_as(budget)
        delta = delta + size * directions(_gradients(objective, x + delta))
        budget = torch.where(hit, budget * (1 - _DDN_CHANGE), budget * (1 + _DDN_CHANGE)).clamp_max(radius)
        delta = (x + directions(delta) * budget).clamp(0, 1) - x
    return (x + delta).detach()

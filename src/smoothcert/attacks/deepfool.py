"""DeepFool: a small L2 perturbation that changes a classifier's answer (Moosavi-Dezfooli et al. 2016)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smoothcert.attacks.judging import Perturbed, check_batch, joined, judge, misses
from smoothcert.checks import check_count
from smoothcert.errors import ConfigError
from smoothcert.models.contract import Model, evaluating


def deepfool(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    *,
    overshoot: float = 0.02,
    max_steps: int = 50,
    candidates: int = 9,
    batch_size: int = 256,
) -> Perturbed:
    """Look for the smallest L2 perturbation of each input [B, *D] with which `model` does not answer its label.

    Each step takes the model as linear around the current point x + r, with scores f_k and gradients ∇f_k, and goes to
    the nearest of its decision boundaries with the label y: r ← r + |f_k − f_y| / ‖∇f_k − ∇f_y‖² · (∇f_k − ∇f_y), where
    k minimises |f_k − f_y| / ‖∇f_k − ∇f_y‖ (Moosavi-Dezfooli et al. 2016, Algorithm 2). The point judged is
    x + (1 + overshoot)·r. Only the `candidates` classes with the highest scores at the input are boundaries to try.

    Perturbed inputs are not clipped to the pixel range, as certified balls are not either. The search is not trusted:
    what it returns is classified again, as the float32 input that the model is fed, and its norm measured in float64.
    A module is run in eval mode, its modes are restored, and its parameters get no gradients.
    """
    check_batch(inputs, labels)
    _check(overshoot)
    check_count("max_steps", max_steps)
    check_count("candidates", candidates)
    check_count("batch_size", batch_size)
    inputs, labels = inputs.detach().float(), labels.detach()
    found = []
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        for rows in torch.arange(len(inputs)).split(batch_size):
            search = _search(model, inputs[rows], labels[rows], overshoot, max_steps, candidates)
            found.append(judge(model, inputs[rows], search, labels[rows]))
    return joined(found)


def _check(overshoot: float) -> None:
    if not 0 <= overshoot < math.inf:
        raise ConfigError(f"Expected `overshoot` to be a finite number >= 0, got {overshoot!r}.")


def _search(model: Model, inputs: Tensor, labels: Tensor, overshoot: float, max_steps: int, candidates: int) -> Tensor:
    """Points that probably change the answer, one per input."""
    step = torch.zeros_like(inputs)
    active = torch.arange(len(inputs), device=inputs.device)
    rivals = None
    for _ in range(max_steps):
        point = (inputs[active] + (1 + overshoot) * step[active]).requires_grad_()
        scores = model(point)
        if rivals is None:
            rivals = _rivals(scores.detach(), labels, candidates)
        unmoved = ~misses(scores.detach(), labels[active])
        if not unmoved.any():
            break
        further = _to_nearest_boundary(scores, point, labels[active], rivals[active])
        step[active[unmoved]] += further[unmoved]
        active = active[unmoved]
    return inputs + (1 + overshoot) * step


def _rivals(scores: Tensor, labels: Tensor, candidates: int) -> Tensor:
    others = scores.scatter(1, labels[:, None], -torch.inf)
    return others.topk(min(candidates, scores.shape[1] - 1), dim=1).indices


def _to_nearest_boundary(scores: Tensor, point: Tensor, labels: Tensor, rivals: Tensor) -> Tensor:
    """The step from each point to the nearest boundary of the linearised model; 0 where it has none."""
    own = scores.gather(1, labels[:, None])
    best = torch.full((len(point),), torch.inf, device=point.device)
    nearest = torch.zeros_like(point)
    for column in range(rivals.shape[1]):
        gap = (scores.gather(1, rivals[:, column, None]) - own).squeeze(1)
        # Rows do not influence each other in eval mode, so the gradient of the sum holds each row's own.
        (slope,) = torch.autograd.grad(gap.sum(), point, retain_graph=True)
        length = slope.flatten(1).norm(dim=1)
        distance = gap.detach().abs() / length
        closer = distance < best  # false for NaN, so a flat model moves nothing
        best = torch.where(closer, distance, best)
        step = slope * (distance / length).view(-1, *[1] * (point.ndim - 1))
        nearest = torch.where(closer.view(-1, *[1] * (point.ndim - 1)), step, nearest)
    return nearest

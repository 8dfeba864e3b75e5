"""DeepFool: a small L2 perturbation that changes a classifier's answer (Moosavi-Dezfooli et al. 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.checks import check_count
from smoothcert.errors import ConfigError, InputError
from smoothcert.models.contract import Model, evaluating


@dataclass(frozen=True, slots=True, eq=False)
class Perturbed:
    """What an attack achieved on each input of a batch.

    `norms` [B] float64: the L2 norm of the perturbation with which the answer is not the true label; 0 where it never
    was, inf where none was found. `inputs` [B, *D] float32: the perturbed inputs, the original ones where the norm is
    0 or inf.
    """

    norms: Tensor
    inputs: Tensor


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
    _check(inputs, labels, overshoot)
    check_count("max_steps", max_steps)
    check_count("candidates", candidates)
    check_count("batch_size", batch_size)
    inputs, labels = inputs.detach().float(), labels.detach()
    found = []
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        for rows in torch.arange(len(inputs)).split(batch_size):
            search = _search(model, inputs[rows], labels[rows], overshoot, max_steps, candidates)
            found.append(_judge(model, inputs[rows], search, labels[rows]))
    return Perturbed(torch.cat([f.norms for f in found]), torch.cat([f.inputs for f in found]))


def _check(inputs: Tensor, labels: Tensor, overshoot: float) -> None:
    if not 0 <= overshoot < math.inf:
        raise ConfigError(f"Expected `overshoot` to be a finite number >= 0, got {overshoot!r}.")
    if not inputs.is_floating_point() or len(inputs) == 0:
        raise InputError(f"Expected a batch of floating-point inputs, got {inputs.dtype} {tuple(inputs.shape)}.")
    if labels.shape != (len(inputs),) or labels.is_floating_point():
        raise InputError(f"Expected {len(inputs)} whole-number labels, got {labels.dtype} {tuple(labels.shape)}.")


def _misses(scores: Tensor, labels: Tensor) -> Tensor:
    """Where the answer is not the label; scores with NaN are no answer, so nothing was achieved there."""
    return (scores.argmax(dim=1) != labels) & ~scores.isnan().any(dim=1)


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
        unmoved = ~_misses(scores.detach(), labels[active])
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


@torch.no_grad()
def _judge(model: Model, inputs: Tensor, perturbed: Tensor, labels: Tensor) -> Perturbed:
    """Classify the perturbed inputs afresh and measure how far away they are."""
    wrong_already = _misses(model(inputs), labels)
    changed = _misses(model(perturbed), labels) & ~wrong_already & perturbed.isfinite().flatten(1).all(dim=1)
    distance = (perturbed.double() - inputs.double()).flatten(1).norm(dim=1)
    norms = torch.where(changed, distance, torch.inf).masked_fill(wrong_already, 0.0)
    kept = torch.where(changed.view(-1, *[1] * (inputs.ndim - 1)), perturbed, inputs)
    return Perturbed(norms, kept)

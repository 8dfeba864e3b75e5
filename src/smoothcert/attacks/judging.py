"""The judge of attacks on a base classifier: what they return is classified afresh and measured anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.errors import InputError
from smoothcert.models.contract import Model


@dataclass(frozen=True, slots=True, eq=False)
class Perturbed:
    """What an attack achieved on each input of a batch.

    `norms` [B] float64: the L2 norm of the perturbation with which the answer is not the true label; 0 where it never
    was, inf where none was found. `inputs` [B, *D] float32: the perturbed inputs, the original ones where the norm is
    0 or inf.
    """

    norms: Tensor
    inputs: Tensor


def check_batch(inputs: Tensor, labels: Tensor) -> None:
    """Raise InputError unless there are floating-point inputs [B, *D] and as many whole-number labels [B]."""
    if not inputs.is_floating_point() or len(inputs) == 0:
        raise InputError(f"Expected a batch of floating-point inputs, got {inputs.dtype} {tuple(inputs.shape)}.")
    if labels.shape != (len(inputs),) or labels.is_floating_point():
        raise InputError(f"Expected {len(inputs)} whole-number labels, got {labels.dtype} {tuple(labels.shape)}.")


def misses(scores: Tensor, labels: Tensor) -> Tensor:
    """Where the answer is not the label; scores with NaN are no answer, so nothing was achieved there."""
    return (scores.argmax(dim=1) != labels) & ~scores.isnan().any(dim=1)


def margins(scores: Tensor, labels: Tensor) -> Tensor:
    """By how much [B] the best other class leads the label, from scores [B, K]; below 0 where the label leads."""
    others = scores.scatter(1, labels[:, None], -torch.inf)
    return others.amax(dim=1) - scores.gather(1, labels[:, None]).squeeze(1)


@torch.no_grad()
def judge(model: Model, inputs: Tensor, perturbed: Tensor, labels: Tensor) -> Perturbed:
    """Classify the perturbed inputs [B, *D] afresh and measure, in float64, how far away they are."""
    wrong_already = misses(model(inputs), labels)
    changed = misses(model(perturbed), labels) & ~wrong_already & perturbed.isfinite().flatten(1).all(dim=1)
    distance = (perturbed.double() - inputs.double()).flatten(1).norm(dim=1)
    norms = torch.where(changed, distance, torch.inf).masked_fill(wrong_already, 0.0)
    kept = torch.where(changed.view(-1, *[1] * (inputs.ndim - 1)), perturbed, inputs)
    return Perturbed(norms, kept)


def joined(parts: list[Perturbed]) -> Perturbed:
    """The parts of a batch as one."""
    return Perturbed(torch.cat([part.norms for part in parts]), torch.cat([part.inputs for part in parts]))

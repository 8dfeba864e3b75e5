"""Noisy copies of one input: the gradients and votes that attacks on the smoothed classifier go by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smoothcert.models.contract import Model

Objective = Callable[[Tensor], Tensor]
"""What an attack raises on average: from scores [B, K] of noisy copies to a value per copy [B]."""

_LANES = 16  # torch draws normals in groups of so many: rows of whole groups are the same however they are batched


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What noisy copies of a point said.

    `gradient` [*D] is that of the objective's sum over the copies; `probabilities` [K] float64 are the soft votes, that
    is softmax averaged over copies; `votes` [K] int64 are the copies for which each class came out first. Copies with
    NaN among their scores or gradients count for nothing.
    """

    gradient: Tensor
    probabilities: Tensor
    votes: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class NoisyCopies:
    """Gaussian copies of points for a model, made and classified `batch_size` at a time to bound the memory.

    Which noises are drawn depends on the generator and the number of copies alone.
    """

    model: Model
    sigma: float
    batch_size: int
    channels_last: bool = False

    def look(self, point: Tensor, generator: torch.Generator, count: int, objective: Objective) -> Look:
        """Scores of `count` noisy copies of a point [*D], and the objective's gradient."""
        gradient, tallies = torch.zeros_like(point), []
        for batch in self._batches(point, generator, count):
            batch.requires_grad_()
            scores = self.model(batch)
            [rows] = torch.autograd.grad(objective(scores).sum(), batch)
            gradient += _summed(rows)
            tallies.append(_tally(scores.detach()))
        probabilities, votes = (sum(parts[1:], parts[0]) for parts in zip(*tallies, strict=True))
        return Look(gradient, probabilities / count, votes)

    @torch.no_grad()
    def votes(self, point: Tensor, generator: torch.Generator, count: int) -> Tensor:
        """For how many [K] of `count` noisy copies of a point each class comes out first."""
        votes = [_tally(self.model(batch))[1] for batch in self._batches(point, generator, count)]
        return torch.stack(votes).sum(dim=0)

    @torch.no_grad()
    def mean_scores(self, point: Tensor, generator: torch.Generator, count: int) -> Tensor:
        """The scores [K] of `count` noisy copies of a point, averaged; −inf for a class that never had any."""
        scores = torch.cat([self.model(batch).double() for batch in self._batches(point, generator, count)])
        return scores.nanmean(dim=0).nan_to_num(nan=-torch.inf)

    def _batches(self, point: Tensor, generator: torch.Generator, count: int) -> Iterator[Tensor]:
        size = point.numel()
        padded = -(-size // _LANES) * _LANES
        for start in range(0, count, self.batch_size):
            rows = min(self.batch_size, count - start)
            noise = torch.empty(rows, padded, device=generator.device).normal_(0, self.sigma, generator=generator)
            batch = noise[:, :size].reshape(rows, *point.shape).to(point.device) + point
            yield batch.contiguous(memory_format=torch.channels_last) if self.channels_last else batch


def prefers_channels_last(model: Model, x: Tensor) -> bool:
    """Whether images x [*D] should come with their channels last: with convolutions on the CPU, much faster so."""
    convolves = isinstance(model, nn.Module) and any(weight.ndim == 4 for weight in model.parameters())
    return convolves and x.ndim == 3 and x.device.type == "cpu"


def _summed(rows: Tensor) -> Tensor:
    """The sum of the gradients [B, *D] of copies, without those that are not finite."""
    total = rows.sum(dim=0)
    if total.isfinite().all():
        return total
    finite = rows[rows.flatten(1).isfinite().all(dim=1)]
    return finite.sum(dim=0).nan_to_num(0.0, 0.0, 0.0)


def _tally(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the soft votes [K] and the votes [K] of copies with scores [B, K]."""
    valid = scores[~scores.isnan().any(dim=1)]
    return valid.double().softmax(dim=1).sum(dim=0), valid.argmax(dim=1).bincount(minlength=scores.shape[1])

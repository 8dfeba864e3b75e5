"""Whether two answers of a model to the same input agree up to rounding.

Scores differ in their last digits with the batch size, since sums are taken in another order. How much that is depends
on the size of the scores, so tolerances are relative to their spread; but one class masked with −1e9 must not make the
spread, and with it the tolerance, a billion.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Float32 scores differ by about 1e-6 of their spread between batch sizes, TF32 ones by 1e-3; batch statistics and
# dynamic quantisation change them by 1e-2 and more.
RELATIVE = 3e-3
# Besides that, rounding of the scores themselves, which matters where they have a large common offset.
_ROUNDING = 64 * 2.0**-23
_LOW_PRECISION_ROUNDINGS = 4
# A class whose gap to the winner is this many times the next smaller one is masked, not a contender.
_MASK_JUMP = 50.0


def is_labels(output: Tensor) -> bool:
    """True for a batch of class labels rather than of scores."""
    return output.ndim == 1 and not output.is_floating_point() and not output.is_complex()


def voted(output: Tensor) -> Tensor:
    """The class [N] that each row votes for, −1 for none: a negative label, or a row with a NaN score."""
    if is_labels(output):
        return output.long().clamp(min=-1)
    return output.argmax(dim=1).masked_fill(output.isnan().any(dim=1), -1)


def score_spread(scores: Tensor) -> float:
    """How far apart the scores [N, K] of the classes that are not masked lie, in a typical row."""
    usable = scores.double()
    usable = usable[usable.amax(dim=1).isfinite()]  # NaN and +inf have no gaps; −inf is a mask
    if len(usable) == 0:
        return 0.0
    gaps = (usable.amax(dim=1, keepdim=True) - usable).sort(dim=1).values[:, 1:]
    typical = gaps.median(dim=0).values.tolist()  # the gap of the second, third, … class to the first
    spread = typical[0]
    for gap in typical[1:]:
        if gap > _MASK_JUMP * spread:
            break
        spread = gap
    return spread if spread < float("inf") else 0.0


def differing(first: Tensor, second: Tensor, spread: float, *, relative: float = RELATIVE) -> Tensor:
    """Which rows [N] of two outputs for the same inputs differ by more than rounding.

    Labels [N] differ where they are not equal. Of scores [N, K], how far each class is behind the winner is compared:
    that decides votes, and a masked class has no part in it. `spread` is the model's, from `score_spread`.
    """
    if is_labels(first) or is_labels(second):
        return first != second
    rounding = _ROUNDING
    if torch.finfo(first.dtype).eps > 2.0**-23:
        rounding = _LOW_PRECISION_ROUNDINGS * torch.finfo(first.dtype).eps
    a, b = first.double(), second.double()
    winner = a.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(dim=1, keepdim=True)
    behind_a, behind_b = a.gather(1, winner) - a, b.gather(1, winner) - b
    lead_a, lead_b = _lead(behind_a, winner), _lead(behind_b, winner)
    reach = torch.maximum(torch.maximum(lead_a, lead_b), torch.full_like(lead_a, 2 * spread))[:, None]
    contending = (behind_a <= reach) | (behind_b <= reach)
    magnitude = torch.maximum(a.abs(), b.abs()).masked_fill(~contending, 0.0)
    magnitude = magnitude.masked_fill(magnitude.isinf(), 0.0).amax(dim=1)
    leads = torch.maximum(_finite(lead_a).abs(), _finite(lead_b).abs())
    allowed = relative * leads.clamp(min=spread) + rounding * magnitude
    # Two infinite gaps are equal, though their difference is not a number.
    apart = (behind_a - behind_b).abs() > allowed[:, None]
    apart |= behind_a.isinf() != behind_b.isinf()
    beyond = (apart & contending & (behind_a != behind_b)).any(dim=1)
    # A row with NaN votes for no class; one with +inf has no gaps, only a winner.
    no_vote_a, no_vote_b = a.isnan().any(dim=1), b.isnan().any(dim=1)
    infinite = a.amax(dim=1).isposinf() | b.amax(dim=1).isposinf()
    beyond = torch.where(infinite, a.argmax(dim=1) != b.argmax(dim=1), beyond)
    return torch.where(no_vote_a | no_vote_b, no_vote_a != no_vote_b, beyond)


def _lead(behind: Tensor, winner: Tensor) -> Tensor:
    """How far the closest other class is behind the winner; negative where it is ahead."""
    return behind.nan_to_num(torch.inf, torch.inf, -torch.inf).scatter(1, winner, torch.inf).amin(dim=1)


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values.isinf(), 0.0)

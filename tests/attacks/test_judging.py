from __future__ import annotations

import math

import pytest
import torch

from smoothcert.attacks.judging import Perturbed, joined, judge, margins, misses


def test_margins_are_how_much_the_best_other_class_leads():
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.5], [1.0, 1.0, 0.0]])
    assert margins(scores, torch.tensor([0, 0, 1])).tolist() == [-1.0, 5.0, 0.0]
    assert margins(scores[:, :2], torch.tensor([1, 1, 1])).tolist() == [2.0, -5.0, 0.0]


def test_what_is_nan_misses_nothing():
    scores = torch.tensor([[0.0, 1.0], [0.0, 1.0], [math.nan, 1.0], [math.nan, math.nan]])
    assert misses(scores, torch.tensor([0, 1, 1, 1])).tolist() == [True, False, False, False]


def test_the_judge_believes_only_what_it_sees():
    def model(batch):
        return torch.stack([batch[:, 0], torch.full_like(batch[:, 0], 0.5)], dim=1)

    x = torch.tensor([[0.9, 0.0], [0.9, 0.0], [0.1, 0.0], [0.9, 0.0], [0.9, 0.0]])
    perturbed = torch.tensor([[0.4, 0.3], [0.6, 0.0], [0.0, 0.0], [-math.inf, 0.0], [0.2, math.nan]])
    judged = judge(model, x, perturbed, torch.zeros(5, dtype=torch.long))
    far = math.hypot(float(x[0, 0].double() - perturbed[0, 0].double()), float(perturbed[0, 1].double()))
    assert judged.norms.dtype == torch.float64
    assert judged.norms.tolist() == [pytest.approx(far, rel=1e-15), math.inf, 0.0, math.inf, math.inf]
    assert torch.equal(judged.inputs, torch.cat([perturbed[:1], x[1:]]))


def test_parts_are_joined_in_their_order():
    parts = [Perturbed(torch.tensor([1.0]), torch.zeros(1, 2)), Perturbed(torch.tensor([2.0, 3.0]), torch.ones(2, 2))]
    assert joined(parts).norms.tolist() == [1.0, 2.0, 3.0]
    assert joined(parts).inputs[:, 0].tolist() == [0.0, 1.0, 1.0]

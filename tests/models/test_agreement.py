import math

import pytest
import torch

from smoothcert.models.agreement import differing, score_spread

SCORES = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)) * 4
MASKED = [-1e4, -1e9, torch.finfo(torch.float32).min, -math.inf]


def masked(scores, value, classes=1):
    return torch.cat([scores, torch.full((len(scores), classes), value)], dim=1)


def agree(a, b):
    return not differing(a, b, score_spread(a)).any()


def test_the_spread_is_that_of_the_scores():
    assert 4 < score_spread(SCORES) < 20
    assert score_spread(torch.zeros(8, 3)) == 0.0
    assert score_spread(torch.full((8, 3), torch.nan)) == 0.0


@pytest.mark.parametrize("value", MASKED)
@pytest.mark.parametrize("classes", [1, 20])
def test_masked_classes_have_no_part_in_the_spread(value, classes):
    assert score_spread(masked(SCORES, value, classes)) == score_spread(SCORES.double())


@pytest.mark.parametrize("value", MASKED)
def test_a_mask_does_not_hide_a_difference(value):
    other = SCORES + torch.linspace(0, 0.3, 6)
    assert not agree(masked(SCORES, value), masked(other, value))
    assert agree(masked(SCORES, value), masked(SCORES * (1 + 1e-6), value))


def test_rounding_is_no_difference():
    rounded = SCORES + 1e-6 * torch.randn(SCORES.shape, generator=torch.Generator().manual_seed(1))
    assert agree(SCORES, rounded)
    assert agree(SCORES * 1e6, rounded * 1e6)
    assert agree(SCORES + 1e6, rounded + 1e6)
    assert agree(SCORES.half(), SCORES.half() * (1 + 2**-10))


def test_a_large_row_does_not_loosen_the_others():
    first = SCORES.clone()
    first[0] *= 1e6
    second = first.clone()
    second[5, 0] += 1
    assert differing(first, second, score_spread(first)).tolist() == [row == 5 for row in range(32)]


def test_another_winner_is_a_difference_unless_scores_are_tied():
    first = torch.tensor([[3.0, 2.0, -5.0], [3.0, 3.0 - 1e-6, -5.0]])
    second = torch.tensor([[2.0, 3.0, -5.0], [3.0, 3.0 + 1e-6, -5.0]])
    assert differing(first, second, 8.0).tolist() == [True, False]


def test_labels_must_be_equal():
    assert differing(torch.tensor([1, 2]), torch.tensor([1, 3]), 0.0).tolist() == [False, True]


def test_no_answer_in_one_of_two_is_a_difference():
    nan, inf = math.nan, math.inf
    first = torch.tensor([[1.0, nan], [1.0, nan], [inf, 1.0], [inf, 1.0], [1.0, -inf], [1.0, -inf]])
    second = torch.tensor([[nan, 1.0], [1.0, 0.0], [inf, 2.0], [1.0, inf], [1.5, -inf], [1.0, 0.0]])
    assert differing(first, second, 1.0).tolist() == [False, True, False, True, False, True]

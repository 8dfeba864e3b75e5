from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smoothcert.errors import InputError
from smoothcert.stats.accuracy import (
    accuracy_curve,
    are_correct,
    average_certified_radius,
    ceil_percent,
    certified_accuracy,
    floor_percent,
)

RADII = [0.0, 0.5, 0.5, 1.0, 2.0]
CORRECT = [True, True, False, True, True]


def by_definition(radii, correct, at):
    return sum(c and r > 0 and r >= at for r, c in zip(radii, correct, strict=True)) / len(radii)


def test_agrees_with_the_definition_spelled_out():
    generator = np.random.default_rng(1)
    radii = generator.choice([0, 0.25, 0.5, 0.75, 1], 200) * generator.choice([1, 1.1], 200)
    correct = generator.random(200) < 0.7
    at = [0, 0.1, 0.25, 0.5, np.nextafter(0.5, 1), 0.55, 1, 1.1, 3]
    expected = [by_definition(radii, correct, r) for r in at]
    np.testing.assert_array_equal(certified_accuracy(radii, correct, at), expected)


def test_a_radius_equal_to_the_one_asked_for_counts():
    assert certified_accuracy(RADII, CORRECT, 0.5) == 3 / 5
    assert certified_accuracy(RADII, CORRECT, np.nextafter(0.5, 1)) == 2 / 5


def test_an_abstention_never_counts_not_even_at_radius_0_with_a_correct_flag():
    assert certified_accuracy(RADII, CORRECT, 0) == 3 / 5
    assert certified_accuracy([0.0], [True], 0) == 0.0


def test_an_abstention_is_never_correct_whatever_stands_for_a_missing_truth():
    assert are_correct([None, None, None, 2], [0, -1, 2, 2]).tolist() == [False, False, False, True]
    assert are_correct([None], np.array([None])).tolist() == [False]


def test_a_wrong_class_is_not_correct_and_the_first_class_can_be():
    assert are_correct([0, 1], [0, 0]).tolist() == [True, False]


def test_the_shape_of_the_answer_is_that_of_the_radii_asked_for():
    assert isinstance(certified_accuracy(RADII, CORRECT, 0.5), float)
    assert certified_accuracy(RADII, CORRECT, np.zeros((2, 3))).shape == (2, 3)


def test_the_average_radius_counts_wrong_and_missing_claims_as_0():
    assert average_certified_radius(RADII, CORRECT) == pytest.approx((0.5 + 1 + 2) / 5)


def test_the_average_radius_is_the_area_under_the_curve():
    generator = np.random.default_rng(2)
    radii, correct = generator.random(50), generator.random(50) < 0.8
    at, accuracy = accuracy_curve(radii, correct)
    area = np.sum(np.diff(at) * accuracy[1:])
    assert average_certified_radius(radii, correct) == pytest.approx(area)


def test_the_curve_has_its_corners_at_the_claimed_radii():
    at, accuracy = accuracy_curve(RADII, CORRECT)
    assert at.tolist() == [0, 0.5, 1, 2, 2]
    assert accuracy.tolist() == [0.6, 0.6, 0.4, 0.2, 0]


def test_a_curve_without_any_claim_stays_at_0():
    at, accuracy = accuracy_curve([0.0, 1.0], [True, False])
    assert at.tolist() == [0, 0]
    assert accuracy.tolist() == [0, 0]


def test_inputs_on_which_an_attack_found_nothing_hold_the_curve_up():
    at, accuracy = accuracy_curve([np.inf, 1.0], [True, True])
    assert at.tolist() == [0, 1, 1]
    assert accuracy.tolist() == [1, 1, 0.5]


@pytest.mark.parametrize(
    ("radii", "correct"),
    [
        ([], []),
        ([0.5], [True, False]),
        ([0.5], [1]),
        ([[0.5]], [[True]]),
        ([float("nan")], [True]),
        ([-0.1], [True]),
    ],
)
@pytest.mark.parametrize(
    "function", [average_certified_radius, accuracy_curve, lambda r, c: certified_accuracy(r, c, 0)]
)
def test_refuses_claims_that_are_not_one_radius_and_one_boolean_per_input(function, radii, correct):
    with pytest.raises(InputError, match="Expected"):
        function(radii, correct)


@pytest.mark.parametrize("at", [-0.1, float("nan"), [0.5, -1]])
def test_refuses_to_answer_for_negative_radii_and_nan(at):
    with pytest.raises(InputError, match="Expected `at`"):
        certified_accuracy(RADII, CORRECT, at)


def test_refuses_another_number_of_truths_than_of_claims():
    with pytest.raises(InputError, match="2 in all"):
        are_correct([1, None], [1])


def test_printed_percentages_are_the_exact_fraction_rounded_down_or_up():
    for total in (1, 3, 7, 100, 300, 500, 999, 10_000):
        for count in range(0, total + 1, max(1, total // 300)):
            tenths = Fraction(1000 * count, total)
            assert floor_percent(count / total) == f"{int(tenths // 1) / 10:.1f}"
            assert ceil_percent(count / total) == f"{int(-(-tenths // 1)) / 10:.1f}"


def test_a_percentage_just_below_a_step_is_not_lifted_onto_it():
    assert floor_percent(0.29 - 1e-9) == "28.9"
    assert floor_percent(1 - 1e-9, digits=0) == "99"
    assert ceil_percent(0.29 + 1e-9) == "29.1"


@pytest.mark.parametrize("fraction", [-0.01, 1.01, float("nan")])
def test_what_is_not_a_fraction_is_not_printed_as_one(fraction):
    with pytest.raises(InputError, match="fraction"):
        floor_percent(fraction)

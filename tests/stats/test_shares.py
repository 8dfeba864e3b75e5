from math import comb

import pytest

from smoothcert.stats.shares import same_shares_p_value


def probability(counts, p):
    n = sum(counts)
    return comb(n, counts[0]) * p ** counts[0] * (1 - p) ** (n - counts[0])


@pytest.mark.parametrize("p", [0.5, 0.2, 0.05])
@pytest.mark.parametrize(("n", "m"), [(4, 12), (8, 8), (10, 3)])
def test_the_p_value_is_a_p_value(n, m, p):
    """By enumeration: under equal shares, P(p-value ≤ a) ≤ a for every a that can occur."""
    outcomes = [((k, n - k), (j, m - j)) for k in range(n + 1) for j in range(m + 1)]
    rated = [(same_shares_p_value(a, b), probability(a, p) * probability(b, p)) for a, b in outcomes]
    for level in {value for value, _ in rated if value < 1}:
        assert sum(weight for value, weight in rated if value <= level) <= level + 1e-12


def test_different_shares_are_seen_and_equal_ones_are_not():
    assert same_shares_p_value((64, 0), (30, 226)) < 1e-6
    assert same_shares_p_value((32, 32), (128, 128)) > 0.5
    assert same_shares_p_value((0, 0, 64), (64, 64, 128)) < 1e-6
    assert same_shares_p_value((4, 0), (4000, 1000)) > 0.1


def test_classes_without_votes_cost_nothing():
    assert same_shares_p_value((5, 9), (50, 20)) == same_shares_p_value((5, 9, 0, 0), (50, 20, 0, 0))
    assert same_shares_p_value((0, 0), (0, 0)) == 1.0

from __future__ import annotations

import math

import pytest
import torch

from smoothcert.attacks.geometry import directions, lengths, strictly_within, unit, within_ball


def perturbations(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def norm(perturbation: torch.Tensor) -> float:
    return math.sqrt(sum(value**2 for value in perturbation.flatten().tolist()))


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 2, 4)])
def test_lengths_are_each_perturbations_own_l2_norm_in_a_shape_that_multiplies_with_them(shape):
    given = perturbations(*shape)
    found = lengths(given)
    assert found.shape == (6, *[1] * (len(shape) - 1))
    assert found.flatten().tolist() == pytest.approx([norm(one) for one in given], rel=1e-6)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_directions_have_length_1_and_point_the_same_way_whatever_the_scale(scale):
    given = perturbations(6, 3, 2, 4, scale=scale)
    found = directions(given)
    for before, after in zip(given, found, strict=True):
        assert norm(after) == pytest.approx(1, rel=1e-6)
        torch.testing.assert_close(after, before / norm(before))


def test_the_direction_of_nothing_is_nothing_also_next_to_others():
    given = perturbations(3, 4)
    given[1] = 0
    found = directions(given)
    assert found[1].tolist() == [0.0] * 4
    assert norm(found[0]) == pytest.approx(1, rel=1e-6)
    assert norm(found[2]) == pytest.approx(1, rel=1e-6)


def test_within_the_ball_a_perturbation_stays_as_it_is_to_the_bit():
    given = perturbations(5, 3, 2, 2)
    radius = 1.001 * max(norm(one) for one in given)
    assert torch.equal(within_ball(given, radius), given)


@pytest.mark.parametrize("radius", [1e-3, 0.5, 1.7])
def test_outside_the_ball_a_perturbation_keeps_its_direction_and_gets_the_radius(radius):
    given = perturbations(20, 3, 2, 4)
    given = given * (1 + lengths(given) * 2) / lengths(given)  # all longer than 2
    found = within_ball(given, radius)
    assert (found.double().flatten(1).norm(dim=1) <= radius * (1 + 1e-5)).all()
    torch.testing.assert_close(found, directions(given) * radius)


def test_no_point_of_the_ball_is_nearer_than_the_one_found():
    given, radius = perturbations(1, 6, scale=3.0).double(), 0.8
    nearest = norm(given - within_ball(given, radius))
    others = torch.randn(2_000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    others = others / others.norm(dim=1, keepdim=True) * radius
    around = within_ball(given, radius) + 0.05 * others
    inside = torch.cat([others, around[around.norm(dim=1) <= radius]])
    assert len(inside) > 2_000
    assert (given - inside).norm(dim=1).min() >= nearest


def test_in_a_ball_of_radius_0_there_is_nothing_and_nothing_stays_nothing():
    assert torch.equal(within_ball(perturbations(3, 4), 0.0), torch.zeros(3, 4))
    assert torch.equal(within_ball(torch.zeros(3, 4), 0.5), torch.zeros(3, 4))
    assert torch.equal(within_ball(torch.zeros(3, 4), 0.0), torch.zeros(3, 4))


def test_each_perturbation_is_measured_apart_from_the_others():
    given = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert lengths(given).flatten().tolist() == pytest.approx([5.0, 0.5])
    torch.testing.assert_close(within_ball(given, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30])
def test_a_unit_vector_has_length_1_however_short_or_long_it_was(scale):
    given = torch.tensor([[3.0, 0.0], [-4.0, 0.0]]) * scale
    assert unit(given).flatten().tolist() == pytest.approx([0.6, 0, -0.8, 0], abs=0.1 if scale < 1e-40 else 1e-6)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_there_is_no_unit_vector_of_nothing_or_of_what_is_not_finite(value):
    assert unit(torch.tensor([value, value])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("radius", [1e-8, 3e-7, 1e-5, 0.1, 0.7, 123.4])
def test_float32_results_are_strictly_within_the_ball_and_nearly_at_its_edge(radius):
    x = torch.rand(500, generator=torch.Generator().manual_seed(1))
    for far in perturbations(20, 500, scale=1e3):
        found = strictly_within(x, x + far, radius)
        gone = norm(found.double() - x.double())
        assert found.dtype == torch.float32
        assert gone < radius
        if radius >= 0.1:
            assert gone > radius * (1 - 1e-4)


def test_where_rounding_alone_would_leave_the_ball_it_does_not():
    x = torch.full((1000,), 0.5)
    delta = torch.full((1000,), 0.6 * 2.0**-24).double()  # just over half the way to the next float32
    radius = norm(delta) * 1.01
    assert norm((x.double() + delta).float().double() - x.double()) > 1.5 * radius  # as the nearest would
    assert torch.equal(strictly_within(x, x.double() + delta, radius), x)


def test_results_within_the_ball_stay_and_those_that_are_not_finite_become_the_input():
    x, inside = torch.full((3,), 0.5), torch.tensor([0.4, 0.6, 0.5])
    assert torch.equal(strictly_within(x, inside, 0.2), inside)
    assert torch.equal(strictly_within(x, torch.tensor([0.4, math.nan, 0.5]), 0.2), x)
    assert torch.equal(strictly_within(x, torch.tensor([0.4, math.inf, 0.5]), 0.2), x)

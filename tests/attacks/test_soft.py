from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from smoothcert.attacks import soft
from smoothcert.attacks.soft import ddn, frozen, noisy_scores, pgd, soft_log_probabilities, soft_objective
from smoothcert.training.loop import seeded
from smoothcert.training.recipes import Draws, smoothadv
from smoothcert.training.recipes.smoothadv import SmoothAdv

SIGMA = 0.25


def images(count: int = 12) -> torch.Tensor:
    """Images [N, 1, 4, 4], of which half the pixels lie at the borders of [0, 1]."""
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return torch.where(x < 0.25, 0.0, torch.where(x > 0.75, 1.0, x))


def noises_for(x: torch.Tensor, copies: int = 3) -> torch.Tensor:
    return SIGMA * torch.randn(copies, *x.shape, generator=torch.Generator().manual_seed(2))


def network() -> nn.Module:
    def made() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.BatchNorm1d(12), nn.Linear(12, 4))

    return seeded(made, seed=3).eval()


def labels_of(model: nn.Module, x: torch.Tensor, noises: torch.Tensor) -> torch.Tensor:
    return soft_log_probabilities(noisy_scores(model, x, noises)).argmax(1).detach()


def distances(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (found.double() - x.double()).flatten(1).norm(dim=1)


# ---- the soft smoothed classifier --------------------------------------------------------------------------------


def test_noisy_scores_are_those_of_each_copy_alone_in_its_own_place():
    model, x = network(), images(4)
    noises = noises_for(x)
    scores = noisy_scores(model, x, noises)
    assert scores.shape == (3, 4, 4)
    for copy_number in range(3):
        for row in range(4):
            alone = model((x[row] + noises[copy_number, row])[None])[0]
            torch.testing.assert_close(scores[copy_number, row], alone)


def test_soft_probabilities_are_averaged_as_probabilities_not_as_scores_or_logarithms():
    scores = 3 * torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(6)).double()
    found = soft_log_probabilities(scores)
    for row in range(2):
        for k in range(3):
            parts = [math.exp(s[row, k]) / sum(math.exp(v) for v in s[row].tolist()) for s in scores]
            assert found[row, k].item() == pytest.approx(math.log(sum(parts) / 5), rel=1e-12)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(2, dtype=torch.float64))


def test_soft_probabilities_of_extreme_scores_are_finite_with_finite_gradients():
    scores = torch.tensor([[[300.0, -300.0, 0.0]], [[-300.0, 300.0, 0.0]]], requires_grad=True)
    found = soft_log_probabilities(scores)
    assert found[0].tolist() == pytest.approx([math.log(0.5), math.log(0.5), -300 - math.log(1)], abs=1e-3)
    found.sum().backward()
    assert scores.grad.isfinite().all()


def test_the_objective_is_minus_the_logarithm_of_the_labels_soft_probability():
    model, x = network(), images(4)
    noises, labels = noises_for(x), torch.tensor([0, 3, 1, 2])
    values = soft_objective(model, labels, noises)(x)
    expected = [-soft_log_probabilities(noisy_scores(model, x, noises))[row, k].item() for row, k in enumerate(labels)]
    assert values.tolist() == pytest.approx(expected, rel=1e-6)
    assert min(expected) > 0


# ---- projected gradient ascent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_attacks_stay_within_their_ball_and_in_the_range_of_pixels(attack, radius):
    model, x = network(), images()
    noises = noises_for(x)
    labels = labels_of(model, x, noises)
    objective = soft_objective(model, labels, noises)
    if attack == "pgd":
        found = pgd(objective, x, radius=radius, steps=7)
    else:
        found = ddn(objective, lambda z: labels_of(model, z, noises) != labels, x, radius=radius, steps=7)
    assert (distances(found, x) <= radius * (1 + 1e-5)).all()
    assert distances(found, x).max() > 0.3 * radius
    assert found.min() >= 0
    assert found.max() <= 1
    assert not found.requires_grad


def test_pgd_raises_the_soft_loss_of_every_input_and_more_so_in_a_larger_ball():
    model, x = network(), images()
    noises = noises_for(x)
    objective = soft_objective(model, labels_of(model, x, noises), noises)
    with torch.no_grad():
        clean, near, far = (objective(pgd(objective, x, radius=r, steps=8)) for r in (1e-9, 0.1, 0.5))
    assert (near > clean).all()
    assert (far > near).all()


def test_on_a_linear_objective_pgd_ends_where_the_gradient_points_at_the_radius():
    direction = torch.tensor([[3.0, -4.0], [1.0, 0.0]])
    x = torch.full((2, 2), 0.5)
    found = pgd(lambda z: (z * direction).sum(1), x, radius=0.2, steps=5)
    torch.testing.assert_close(found, torch.tensor([[0.62, 0.34], [0.7, 0.5]]))


def test_a_step_has_twice_the_radius_over_the_number_of_steps_unless_a_length_is_given():
    x, direction = torch.full((1, 2), 0.5), torch.tensor([[0.6, 0.8]])

    def objective(z):
        return (z * direction).sum(1)

    shown = []

    def recorded(z):
        shown.append(z.detach().clone())
        return objective(z)

    pgd(recorded, x, radius=0.3, steps=6)
    assert distances(shown[1], x).item() == pytest.approx(2 * 0.3 / 6, rel=1e-5)
    assert distances(pgd(objective, x, radius=math.inf, steps=3, step_size=0.1), x).item() == pytest.approx(0.3)
    assert distances(pgd(objective, x, radius=0.15, steps=3, step_size=0.1), x).item() == pytest.approx(0.15)


def test_only_pixels_are_kept_in_their_range():
    x, direction = torch.tensor([[0.9, 0.5]]), torch.tensor([[1.0, 0.0]])
    kept = pgd(lambda z: (z * direction).sum(1), x, radius=0.5, steps=4)
    torch.testing.assert_close(kept, torch.tensor([[1.0, 0.5]]))
    free = pgd(lambda z: (z * direction).sum(1), x, radius=0.5, steps=4, pixels=False)
    torch.testing.assert_close(free, torch.tensor([[1.4, 0.5]]))


def test_where_the_objective_is_flat_pgd_leaves_the_input_as_it_is():
    x = images(3)
    assert torch.equal(pgd(lambda z: 0 * z.flatten(1).sum(1), x, radius=1.0, steps=3), x)


def test_inputs_of_a_batch_are_attacked_as_if_they_were_alone():
    model, x = network(), images(5)
    noises = noises_for(x)
    labels = labels_of(model, x, noises)
    together = pgd(soft_objective(model, labels, noises), x, radius=0.5, steps=4)
    for row in range(5):
        one = slice(row, row + 1)
        alone = pgd(soft_objective(model, labels[one], noises[:, one]), x[one], radius=0.5, steps=4)
        torch.testing.assert_close(together[one], alone, rtol=1e-4, atol=1e-5)


def test_attacks_work_where_gradients_are_switched_off_and_change_neither_input_nor_gradients():
    model, x = network(), images(4)
    noises, before = noises_for(x), x.clone()
    objective = soft_objective(model, labels_of(model, x, noises), noises)
    expected = pgd(objective, x, radius=0.5, steps=3)
    with torch.no_grad():
        assert torch.equal(pgd(objective, x, radius=0.5, steps=3), expected)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_projection_the_ball_is_left(monkeypatch):
    x, direction = torch.full((1, 2), 0.5), torch.tensor([[0.6, 0.8]])
    monkeypatch.setattr(soft, "within_ball", lambda delta, _: delta)
    found = pgd(lambda z: (z * direction).sum(1), x, radius=0.1, steps=5)
    assert distances(found, x).item() > 0.1 * (1 + 1e-5)


# ---- decoupled direction and norm --------------------------------------------------------------------------------


def half_space(x: torch.Tensor, distance: float):
    """An objective and a classifier that is fooled at this distance from each x [B, D], straight ahead."""
    normal = torch.tensor([0.6, 0.8])
    start = (x * normal).sum(1)
    return (lambda z: (z * normal).sum(1)), (lambda z: (z * normal).sum(1) > start + distance)


@pytest.mark.parametrize("distance", [0.1, 0.2, 0.35])
def test_ddn_settles_at_the_boundary_which_is_nearer_than_pgd_goes(distance):
    x = torch.tensor([[0.3, 0.2], [0.4, 0.3], [0.25, 0.1]])
    objective, fooled = half_space(x, distance)
    found = distances(ddn(objective, fooled, x, radius=0.6, steps=100), x)
    assert (found < distances(pgd(objective, x, radius=0.6, steps=100), x) - 0.1).all()
    assert found.tolist() == pytest.approx([distance] * 3, rel=0.06)  # the length changes by 5 % per step


@pytest.mark.parametrize("radius", [0.1, 0.3])
def test_where_nothing_within_the_radius_fools_the_classifier_ddn_goes_the_whole_radius(radius):
    x = torch.tensor([[0.3, 0.2], [0.4, 0.3]])
    objective, fooled = half_space(x, 0.4)
    found = ddn(objective, fooled, x, radius=radius, steps=10)
    assert distances(found, x).tolist() == pytest.approx([radius] * 2, rel=1e-5)


def test_ddn_goes_further_with_the_inputs_that_are_not_fooled_yet():
    x = torch.full((2, 2), 0.2)
    objective, _ = half_space(x, 0.0)
    near, far = distances(ddn(objective, lambda _: torch.tensor([True, False]), x, radius=0.4, steps=8), x).tolist()
    assert near == pytest.approx(0.4 * 0.95**8, rel=1e-4)
    assert far == pytest.approx(0.4, rel=1e-4)


def test_ddn_leaves_an_input_as_it_is_where_the_objective_is_flat():
    x = images(3)
    found = ddn(lambda z: 0 * z.flatten(1).sum(1), lambda _: torch.zeros(3, dtype=torch.bool), x, radius=1.0, steps=3)
    assert torch.equal(found, x)


# ---- the network meanwhile ---------------------------------------------------------------------------------------


def test_frozen_runs_the_network_as_it_classifies_and_puts_every_part_back():
    model = network().train()
    model[3].eval()
    model[4].bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    with frozen(model):
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        model(images(4))
    assert [part.training for part in model] == [True, True, True, False, True]
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_frozen_puts_everything_back_after_an_error_too():
    model = network().train()
    with pytest.raises(RuntimeError, match="on purpose"), frozen(model):
        raise RuntimeError("on purpose")
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


# ---- the attack inside of adversarial training -------------------------------------------------------------------


def draws_for(x: torch.Tensor) -> Draws:
    return Draws(SIGMA, torch.Generator().manual_seed(2), torch.arange(len(x)), len(x))


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_adversarial_training_takes_its_loss_near_the_input_where_it_is_higher(attack):
    model, x = network(), images()
    noises = draws_for(x).noises(x, 4)
    labels = labels_of(model, x, noises)
    found = SmoothAdv(radius=0.5, attack=attack).attacked(model, x, labels, noises, 0.5)
    assert (distances(found, x) <= 0.5 * (1 + 1e-5)).all()
    assert found.min() >= 0
    assert found.max() <= 1
    objective = soft_objective(model, labels, noises)
    assert (objective(found) > objective(x)).all()
    adversarial, clean = (
        SmoothAdv(radius=r, attack=attack).losses(model, x, labels, draws_for(x), 1.0).values for r in (0.5, 0.0)
    )
    assert adversarial.mean() > 1.01 * clean.mean()


def test_the_radius_of_adversarial_training_grows_in_its_first_epochs(monkeypatch):
    recipe, radii = SmoothAdv(radius=0.8, warmup=10), []
    monkeypatch.setattr(smoothadv, "pgd", lambda _, x, **given: radii.append(given["radius"]) or x)
    for epoch in (0, 1, 2.5, 10, 50, 100):
        recipe.losses(network(), images(2), torch.tensor([0, 1]), draws_for(images(2)), recipe.strength(epoch, 100))
    assert radii == pytest.approx([0.08, 0.2, 0.8, 0.8, 0.8])  # at first there is none


def test_where_the_classifier_is_easily_fooled_ddn_changes_the_input_less_than_pgd():
    model, x = network(), images(40)
    noises = noises_for(x)
    labels = labels_of(model, x, noises)
    near, far = (
        SmoothAdv(radius=1.5, steps=20, attack=attack).attacked(model, x, labels, noises, 1.5)
        for attack in ("ddn", "pgd")
    )
    fooled = labels_of(model, far, noises) != labels
    assert fooled.sum() >= 10
    shorter = (distances(near, x) / distances(far, x))[fooled]
    assert (shorter < 1).float().mean() > 0.9  # where only the whole radius will do, both go that far
    assert shorter.max() < 1 + 1e-6


@pytest.mark.parametrize("recipe", [SmoothAdv(copies=2), SmoothAdv(copies=2, attack="ddn")])
def test_the_attack_leaves_mode_statistics_and_gradients_of_the_network_to_the_training(recipe):
    model = network().train()
    model[1].bias.requires_grad_(False)
    x, labels = images(), torch.arange(12) % 4
    state = copy.deepcopy(model.state_dict())
    with frozen(model):
        found = recipe.attacked(model, x, labels, draws_for(x).noises(x, 2), recipe.radius)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    once = copy.deepcopy(model)
    noisy_scores(once, found, draws_for(x).noises(x, 2))
    recipe.losses(model, x, labels, draws_for(x), 1.0)
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[3].num_batches_tracked == 1
    torch.testing.assert_close(model.state_dict(), once.state_dict())

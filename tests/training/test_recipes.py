"""Each recipe against its formula, computed input by input and noise by noise in plain Python."""

from __future__ import annotations

import copy
import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smoothcert.attacks import soft
from smoothcert.training.loop import seeded
from smoothcert.training.recipes import Draws, cat_rs, consistency, smoothadv, smoothmix, stability
from smoothcert.training.recipes.base import accuracies
from smoothcert.training.recipes.cat_rs import CatRs
from smoothcert.training.recipes.consistency import Consistency
from smoothcert.training.recipes.denoiser import Denoiser
from smoothcert.training.recipes.gaussian import Gaussian
from smoothcert.training.recipes.macer import Macer
from smoothcert.training.recipes.smoothadv import SmoothAdv
from smoothcert.training.recipes.smoothmix import SmoothMix
from smoothcert.training.recipes.stability import Stability

SIGMA, COUNT, CLASSES = 0.4, 6, 3


class Doubles(Draws):
    """Noise in double precision, in which formulas can be compared closely."""

    def noises(self, x, copies=1):
        return super().noises(x, copies).double()

    def uniform(self, x, copies=1):
        return super().uniform(x, copies).double()


def draws(count: int = COUNT, sigma: float = SIGMA, seed: int = 190) -> Draws:
    return Doubles(sigma, torch.Generator().manual_seed(seed), torch.arange(count), count)


def classifier() -> nn.Module:
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)), seed=9)
    with torch.no_grad():
        model[1].weight *= 2
        model[3].weight *= 5
    return model.double()


def with_denoiser() -> nn.Module:
    layers = (nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1))
    return nn.Sequential(seeded(lambda: nn.Sequential(*layers), seed=8).double(), classifier())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images [B, 1, 2, 2], all but two with the label that the classifier gives them."""
    x = torch.rand(COUNT, 1, 2, 2, generator=torch.Generator().manual_seed(1)).double()
    y = classifier()(x).argmax(1)
    y[:2] = (y[:2] + 1) % CLASSES
    return x, y


# ---- the formulas ------------------------------------------------------------------------------------------------
# `fixed` is the model before any step: attacks and targets come from it, as no gradient goes through them.


def answer(model, point, sharpness=1.0):
    with torch.no_grad():
        scores = [sharpness * score for score in model(point[None])[0].tolist()]
    return [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]


def soft_answer(model, point, noises, sharpness=1.0):
    answers = [answer(model, point + noise, sharpness) for noise in noises]
    return [sum(column) / len(noises) for column in zip(*answers, strict=True)]


def mean_loss(model, point, y, noises):
    return sum(-math.log(answer(model, point + noise)[y]) for noise in noises) / len(noises)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def climb(value, x, radius, steps, size, pixels=True):
    """Steepest ascent in L2 by numerical differentiation."""
    point = x.clone()
    for _ in range(steps):
        slope = torch.zeros_like(x)
        for place in range(x.numel()):
            ahead, behind = point.clone(), point.clone()
            ahead.view(-1)[place] += 1e-5
            behind.view(-1)[place] -= 1e-5
            slope.view(-1)[place] = (value(ahead) - value(behind)) / 2e-5
        change = point - x + size * slope / slope.norm()
        if change.norm() > radius:
            change = change * radius / change.norm()
        point = (x + change).clamp(0, 1) if pixels else x + change
    return point


def gaussian_formula(r, model, fixed, x, y, noises, numbers, strength):
    return -math.log(answer(model, x + noises[0])[y])


def stability_formula(r, model, fixed, x, y, noises, numbers, strength):
    clean, noisy = answer(model, x), answer(model, x + noises[0])
    instability = -sum(p * math.log(q) for p, q in zip(clean, noisy, strict=True))
    return -math.log(clean[y]) + strength * r.weight * instability


def smoothadv_formula(r, model, fixed, x, y, noises, numbers, strength):
    radius = strength * r.radius
    found = climb(lambda z: -math.log(soft_answer(fixed, z, noises)[y]), x, radius, r.steps, 2 * radius / r.steps)
    return mean_loss(model, found, y, noises)


def macer_formula(r, model, fixed, x, y, noises, numbers, strength):
    sharp = soft_answer(model, x, noises, r.sharpness)
    loss = -math.log(soft_answer(model, x, noises)[y])
    if sharp[y] < max(sharp):
        return loss
    second = max(p for k, p in enumerate(sharp) if k != y)
    gap = NormalDist().inv_cdf(sharp[y]) - NormalDist().inv_cdf(second)
    return loss + strength * r.weight * SIGMA / 2 * max(0, r.margin - gap)


def consistency_formula(r, model, fixed, x, y, noises, numbers, strength):
    mean = soft_answer(model, x, noises)
    divergence = sum(kl(mean, answer(model, x + noise)) for noise in noises) / len(noises)
    return mean_loss(model, x, y, noises) + r.weight * divergence - r.entropy * sum(p * math.log(p) for p in mean)


def smoothmix_formula(r, model, fixed, x, y, noises, numbers, strength):
    share = numbers[0] / 2

    def walk(steps):
        return climb(lambda z: -math.log(soft_answer(fixed, z, noises)[y]), x, math.inf, steps, r.step_size)

    near = walk(1) if r.one_step else x
    mixed = (1 - share) * near + share * walk(r.steps)
    own = soft_answer(fixed, near, noises)
    target = [(1 - share) * p + share / CLASSES for p in own]
    weight = strength * r.weight * (int(np.argmax(own)) == y) / len(noises)
    return mean_loss(model, near, y, noises) + weight * sum(kl(target, answer(model, mixed + e)) for e in noises)


def cat_rs_formula(r, model, fixed, x, y, noises, numbers, strength):
    right = [int(np.argmax(answer(fixed, x + noise))) == y for noise in noises]
    kept = sum(number < sum(right) / len(noises) for number in numbers)
    losses = sorted(-math.log(answer(model, x + noise)[y]) for noise in noises)
    low = sum(losses[: max(kept, 1)]) / len(noises)
    if kept < len(noises):
        return low
    own = [float(k == y) for k in range(CLASSES)]
    target = own if r.target == "label" else soft_answer(fixed, x, noises)
    step = 2 * r.radius / r.steps
    worst = [
        climb(lambda z: kl(target, answer(fixed, z)), x + e, r.radius, r.steps, step, pixels=False) for e in noises
    ]
    return low + r.weight * max(kl(target, answer(model, z)) for z in worst)


def denoiser_formula(r, model, fixed, x, y, noises, numbers, strength):
    with torch.no_grad():
        restored = model[0]((x + noises[0])[None])[0]
    own = int(np.argmax(answer(model[1], x)))
    error = sum(value**2 for value in (restored - x).flatten().tolist()) / x.numel()
    return r.mse * error - r.stability * math.log(answer(model[1], restored)[own])


CASES = {
    "gaussian": (Gaussian(), gaussian_formula),
    "stability": (Stability(), stability_formula),
    "smoothadv": (SmoothAdv(copies=2, steps=3, radius=0.25), smoothadv_formula),
    "macer": (Macer(copies=3, sharpness=1.5, margin=2.0), macer_formula),
    "consistency": (Consistency(copies=3, weight=4.0), consistency_formula),
    "smoothmix": (SmoothMix(copies=2, steps=2, step_size=0.3), smoothmix_formula),
    "smoothmix, one step": (SmoothMix(copies=2, steps=2, step_size=0.3, one_step=True), smoothmix_formula),
    "cat-rs": (CatRs(copies=3, steps=2, radius=0.2, weight=2.0), cat_rs_formula),
    "cat-rs, label": (CatRs(copies=3, steps=2, radius=0.2, weight=2.0, target="label"), cat_rs_formula),
    "denoiser": (Denoiser(stability=0.3), denoiser_formula),
}


def model_for(case: str) -> nn.Module:
    model = with_denoiser() if case == "denoiser" else classifier()
    CASES[case][0].begin(model)
    return model


def by_formula(case: str, model: nn.Module, fixed: nn.Module, strength: float) -> np.ndarray:
    recipe, formula = CASES[case]
    (x, y), drawn = batch(), draws()
    copies = getattr(recipe, "copies", 1)
    noises = drawn.noises(x, copies)
    numbers = drawn.uniform(x, 1 if isinstance(recipe, SmoothMix) else copies)
    rows = range(COUNT)
    return np.array(
        [formula(recipe, model, fixed, x[i], int(y[i]), noises[:, i], numbers[:, i].tolist(), strength) for i in rows]
    )


def by_recipe(case: str, model: nn.Module, strength: float) -> np.ndarray:
    return CASES[case][0].losses(model, *batch(), draws(), strength).values.detach().numpy()


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("strength", [1.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_the_losses_are_those_of_the_formula(case, strength):
    model = model_for(case)
    found = by_recipe(case, model, strength)
    assert found.shape == (COUNT,)
    assert agree(found, by_formula(case, model, model, strength))


@pytest.mark.parametrize("case", CASES)
def test_the_gradients_are_those_of_the_formula_by_finite_differences(case):
    model = model_for(case)
    fixed = copy.deepcopy(model)
    CASES[case][0].losses(model, *batch(), draws(), 1.0).values.mean().backward()
    learning = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in learning) >= 30
    for parameter in learning:
        numbers = parameter.detach().view(-1)
        for place in range(0, len(numbers), 2):
            before, means = numbers[place].item(), []
            for change in (1e-5, -1e-5):
                numbers[place] = before + change
                means.append(by_formula(case, model, fixed, 1.0).mean())
            numbers[place] = before
            slope = parameter.grad.view(-1)[place].item()
            assert slope == pytest.approx((means[0] - means[1]) / 2e-5, rel=1e-5, abs=1e-7)


def test_the_batch_of_the_formulas_has_inputs_of_every_kind():
    (x, y), model = batch(), classifier()
    drawn, recipe = draws(), CASES["cat-rs"][0]
    right = accuracies(soft.noisy_scores(model, x, drawn.noises(x, recipe.copies)), y)
    kept = (drawn.uniform(x, recipe.copies) < right).sum(0).tolist()
    assert set(kept) == {0, 1, 2, 3}
    recipe = CASES["macer"][0]
    scores = soft.noisy_scores(model, x, draws().noises(x, recipe.copies))
    missing = recipe.missing(scores, y).tolist()
    of_right = ((recipe.sharpness * scores).softmax(2).mean(0).argmax(1) == y).tolist()
    assert {(right, amount > 0) for right, amount in zip(of_right, missing, strict=True)} == {
        (False, False),
        (True, False),
        (True, True),
    }


# ---- mistakes that the formulas would notice ---------------------------------------------------------------------

real_soft_objective, real_soft_log_probabilities = soft.soft_objective, soft.soft_log_probabilities
real_missing, real_kl_div, real_uniform = Macer.missing, functional.kl_div, Doubles.uniform
real_bottom, real_pgd = CatRs.bottom, soft.pgd


def attack_downhill(model, labels, noises):
    return lambda x: -real_soft_objective(model, labels, noises)(x)


def mean_of_logarithms(scores):
    return scores.log_softmax(2).mean(0)


def softmax_over_copies(scores):
    return scores.log_softmax(0).logsumexp(0) - math.log(len(scores))


def other_order_of_copies(scores, labels):
    losses = functional.cross_entropy(scores.flatten(0, 1), labels.repeat_interleave(len(scores)), reduction="none")
    return losses.view(scores.shape[:2])


def reversed_divergence(log_q, p, **settings):
    return real_kl_div(p.log(), log_q.exp(), **settings)


MUTANTS = {
    "no projection": ("smoothadv", soft, "within_ball", lambda delta, _: delta),
    "steps not of length one": ("smoothadv", soft, "directions", lambda delta: delta),
    "a missing sign": ("smoothadv", smoothadv, "soft_objective", attack_downhill),
    "attack on the mean of logarithms": ("smoothadv", soft, "soft_log_probabilities", mean_of_logarithms),
    "labels in the wrong order": ("smoothadv", smoothadv, "cross_entropies", other_order_of_copies),
    "hinge on wrong inputs": ("macer", Macer, "missing", lambda r, s, y: real_missing(r, s, (y + 1) % CLASSES)),
    "a hinge that is none": ("macer", Macer, "missing", lambda _, s, y: real_missing(Macer(sharpness=1.5), s, y) - 6),
    "sum over the wrong axis": ("consistency", consistency, "soft_log_probabilities", softmax_over_copies),
    "consistency with logarithms": ("consistency", consistency, "soft_log_probabilities", mean_of_logarithms),
    "divergence reversed": ("smoothmix", functional, "kl_div", reversed_divergence),
    "mixed up to the whole way": ("smoothmix", Doubles, "uniform", lambda d, x, m=1: 2 * real_uniform(d, x, m)),
    "another missing sign": ("smoothmix", smoothmix, "soft_objective", attack_downhill),
    "mean of all in place of the K smallest": ("cat-rs", CatRs, "bottom", lambda _, losses, __: losses.mean(0)),
    "the K largest": ("cat-rs", CatRs, "bottom", lambda r, losses, kept: -real_bottom(r, -losses, kept)),
    "worst noise by the reversed divergence": ("cat-rs", functional, "kl_div", reversed_divergence),
    "K = m everywhere": ("cat-rs", cat_rs, "accuracies", lambda _, y: torch.ones(len(y))),
    "another target than the label": (
        "cat-rs, label",
        functional,
        "one_hot",
        lambda y, k: torch.full((len(y), k), 1 / k),
    ),
    "answers exchanged": ("stability", stability, "torch", SimpleNamespace(cat=lambda two: torch.cat(two[::-1]))),
    "one noise for all": ("gaussian", Doubles, "noises", lambda d, x, m=1: Draws.noises(d, x, m)[:, :1].double()),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_formula_notices_the_mistake(mutant, monkeypatch):
    case, place, name, mistake = MUTANTS[mutant]
    model = model_for(case)
    expected = by_formula(case, model, model, 1.0)
    assert agree(by_recipe(case, model, 1.0), expected)
    monkeypatch.setattr(place, name, mistake)
    assert not agree(by_recipe(case, model, 1.0), expected)


# ---- what is special about each ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "strength"),
    [
        (SmoothAdv(copies=3, radius=0.0), 1.0),
        (SmoothAdv(copies=3, radius=1.0), 0.0),
        (SmoothAdv(copies=3, radius=1.0, attack="ddn"), 0.0),
        (Consistency(copies=3, weight=0.0, entropy=0.0), 1.0),
        (SmoothMix(copies=3, weight=0.0), 1.0),
        (SmoothMix(copies=3), 0.0),
    ],
)
def test_without_its_special_part_a_recipe_is_gaussian_augmentation_with_several_copies(recipe, strength):
    (x, y), model = batch(), classifier()
    noises = draws().noises(x, 3)
    expected = [mean_loss(model, x[i], int(y[i]), noises[:, i]) for i in range(COUNT)]
    found = recipe.losses(model, x, y, draws(), strength)
    assert agree(found.values.detach().numpy(), np.array(expected))
    right = [np.mean([np.argmax(answer(model, x[i] + e)) == int(y[i]) for e in noises[:, i]]) for i in range(COUNT)]
    assert found.accuracy.tolist() == pytest.approx(right)


def test_stability_has_its_full_weight_from_the_start_unless_it_is_to_warm_up():
    assert Stability().strength(0.0, 100) == 1.0
    assert [Stability(warmup=4).strength(epoch, 100) for epoch in (0.0, 1.0, 4.0)] == [0.0, 0.25, 1.0]


def test_stability_without_weight_is_cross_entropy_without_noise():
    (x, y), model = batch(), classifier()
    found = Stability(weight=0.0).losses(model, x, y, draws(), 1.0).values
    torch.testing.assert_close(found, functional.cross_entropy(model(x), y, reduction="none"))


def test_consistency_asks_nothing_of_copies_that_get_the_same_answer():
    (x, y), model = batch(), classifier()
    heavy, light = (Consistency(weight=w).losses(model, x, y, draws(sigma=0.0), 1.0).values for w in (1e9, 0.0))
    torch.testing.assert_close(heavy, light, rtol=1e-6, atol=1e-6)
    assert (Consistency(weight=1e9).losses(model, x, y, draws(), 1.0).values > 1e3).all()


def test_macer_lifts_only_inputs_that_are_right_and_within_the_margin():
    scores = torch.tensor([[0.2, 0.0, 0.0], [0.2, 0.0, 0.0], [1.0, 0.0, 0.0]]).expand(4, 3, 3).clone().requires_grad_()
    missing = Macer(margin=3.0, sharpness=3.0).missing(scores, torch.tensor([0, 1, 0]))
    assert missing[0] > 2
    assert missing[1:].tolist() == [0.0, 0.0]
    missing.sum().backward()
    assert (scores.grad[:, 0, 0] < 0).all()  # a higher score for the label, a wider gap
    assert (scores.grad[:, 1:] == 0).all()


@pytest.mark.parametrize("scale", [1.0, 5.0, 17.3, 88.0, 103.5, 1e3, 1e6])
def test_macer_has_finite_gradients_also_where_a_probability_is_0_or_1(scale):
    scores = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.9, -3.0], [0.0, 0.0, 0.1], [1.0, 0.0, 0.0]])
    scores = (scale * scores).expand(3, 4, 3).clone().requires_grad_()
    missing = Macer(sharpness=1.0).missing(scores, torch.tensor([0, 0, 2, 1]))
    assert missing.isfinite().all()
    missing.sum().backward()
    assert scores.grad.isfinite().all()
    if scale >= 1e3:
        assert scores.detach().softmax(2).max() == 1
        assert missing.tolist() == [0.0] * 4


def test_macer_can_wait_with_the_robustness_loss():
    assert [Macer(deferred=0.5).strength(epoch, 10) for epoch in (0, 4.99, 5, 10)] == [0, 0, 1, 1]
    assert Macer().strength(0, 10) == 1
    (x, y), model = batch(), classifier()
    early, late = (CASES["macer"][0].losses(model, x, y, draws(), s).values for s in (0.0, 1.0))
    noises = draws().noises(x, 3)
    expected = [-math.log(soft_answer(model, x[i], noises[:, i])[y[i]]) for i in range(COUNT)]
    assert agree(early.detach().numpy(), np.array(expected))
    assert late.sum() > early.sum() + 0.1


def test_smoothmix_mixes_at_most_half_and_half_and_asks_for_a_distribution(monkeypatch):
    x = torch.rand(200, 1, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    y, model, recipe = torch.arange(200) % CLASSES, classifier(), SmoothMix(copies=2)
    shown, targets = [], []
    model.register_forward_pre_hook(lambda _, given: shown.append(given[0].detach()))
    monkeypatch.setattr(functional, "kl_div", lambda q, p, **k: targets.append(p) or real_kl_div(q, p, **k))
    recipe.losses(model, x, y, draws(200), 1.0)
    noises = draws(200).noises(x, 2)
    change = (shown[-1].view(2, 2, *x.shape)[1, 0] - noises[0] - x).flatten(1)
    way = (recipe.attacked(model, x, y, noises)[1] - x).flatten(1)
    shares = (change * way).sum(1) / way.square().sum(1)
    torch.testing.assert_close(change, shares[:, None] * way, rtol=0, atol=1e-9)
    assert 0 <= shares.min() < 0.02
    assert 0.48 < shares.max() <= 0.5
    assert (targets[0] >= shares[:, None] / CLASSES * (1 - 1e-9)).all()
    torch.testing.assert_close(targets[0].sum(2), torch.ones(2, 200).double())
    assert not targets[0].requires_grad


def test_smoothmix_takes_steps_of_the_given_length_that_raise_the_loss():
    x, y = 0.3 + 0.4 * batch()[0], batch()[1]
    model, noises = classifier(), draws().noises(x, 3)
    first, far = SmoothMix(copies=3, steps=3, step_size=0.05).attacked(model, x, y, noises)
    torch.testing.assert_close((first - x).flatten(1).norm(dim=1), torch.full((COUNT,), 0.05).double())
    assert ((far - x).flatten(1).norm(dim=1) > 0.1).all()
    assert ((far - x).flatten(1).norm(dim=1) <= 0.15 + 1e-9).all()
    values = [soft.soft_objective(model, y, noises)(point) for point in (x, first, far)]
    assert (values[0] < values[1]).all()
    assert (values[1] < values[2]).all()
    once = SmoothMix(copies=3, steps=1, step_size=0.05).attacked(model, x, y, noises)
    assert torch.equal(once[0], once[1])


def test_cat_rs_keeps_at_least_one_loss_and_always_the_smallest():
    losses = torch.tensor([[5.0, 5.0, 5.0], [1.0, 1.0, 1.0], [3.0, 3.0, 3.0]])
    assert CatRs().bottom(losses, torch.tensor([0, 1, 2])).tolist() == pytest.approx([1 / 3, 1 / 3, 4 / 3])
    assert CatRs().bottom(losses, torch.tensor([3, 3, 3])).tolist() == pytest.approx([3.0] * 3)


def test_cat_rs_looks_for_the_worst_noise_of_all_inputs_that_are_always_right_and_of_none_always_wrong(monkeypatch):
    (x, _), model, asked = batch(), classifier(), []
    monkeypatch.setattr(CatRs, "worst", lambda *given: asked.append(given[2]) or given[2].flatten(1).sum(1))
    own = model(x).argmax(1)
    for seed in range(20):
        CatRs().losses(model, x, own, draws(sigma=0.0, seed=seed), 1.0)
        assert torch.equal(asked.pop(), x)
        CatRs().losses(model, x, (own + 1) % CLASSES, draws(sigma=0.0, seed=seed), 1.0)
        assert asked == []


def test_the_worst_noise_of_cat_rs_is_near_the_drawn_one_and_at_least_as_bad(monkeypatch):
    (x, _), model, found = batch(), classifier(), []
    monkeypatch.setattr(cat_rs, "pgd", lambda *a, **k: found.append((a[0], a[1], real_pgd(*a, **k))) or found[0][2])
    noises, recipe = draws().noises(x, 4), CatRs(radius=0.3)
    target = soft.soft_log_probabilities(soft.noisy_scores(model, x, noises)).exp().detach()
    values = recipe.worst(model, x, noises, target)
    divergence, drawn, worst = found[0]
    torch.testing.assert_close(drawn, (x + noises).flatten(0, 1))
    assert ((worst - drawn).flatten(1).norm(dim=1) <= 0.3 * (1 + 1e-5)).all()
    assert (divergence(worst) >= divergence(drawn)).all()
    torch.testing.assert_close(values, divergence(worst).view(4, COUNT).amax(0))

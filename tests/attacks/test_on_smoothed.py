from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
import torch
from scipy.special import ndtr, softmax
from torch import nn
from torch.nn import functional

from smoothcert.attacks.copies import NoisyCopies
from smoothcert.attacks.on_smoothed import (
    SMOOTHED_ATTACKS,
    AbstentionAttack,
    DDNAttack,
    PaperAttack,
    SmoothedAttack,
    StrongAttack,
    Target,
)
from smoothcert.data.digits import load_digits
from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.models.architectures import mlp
from smoothcert.models.objects import from_object
from smoothcert.training.loop import seeded
from smoothcert.worst_cases import LinearClassifier

SIGMA = 0.25
SMALL = {  # settings with which an attack takes some milliseconds
    "paper": PaperAttack(steps=4, copies=40),
    "strong": StrongAttack(steps=6, copies=24, votes=100),
    "ddn": DDNAttack(steps=12, copies=40, votes=100),
    "abstain": AbstentionAttack(steps=6, copies=24, votes=100, tie_votes=500),
}
every_attack = pytest.mark.parametrize("name", list(SMOOTHED_ATTACKS))


def seeded_by(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distance(found: torch.Tensor, x: torch.Tensor) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(found.flatten().tolist(), x.flatten().tolist(), strict=True)))


def image() -> torch.Tensor:
    """An image [1, 4, 4], some of whose pixels lie at the borders of [0, 1]."""
    x = torch.rand(1, 4, 4, generator=seeded_by(1))
    return torch.where(x < 0.2, 0.0, torch.where(x > 0.8, 1.0, x))


def network() -> nn.Module:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 4))

    return seeded(build, seed=3).eval()


def target(model=None, x: torch.Tensor | None = None) -> Target:
    model, x = model or network(), image() if x is None else x
    return Target(model, x, int(model(x[None]).argmax()), SIGMA)


def half_space(distance_to_boundary: float) -> tuple[LinearClassifier, Target]:
    """Two classes, of which that of x ends at a known distance, for g as for f."""
    weights = torch.randn(16, generator=seeded_by(4)).double().numpy()
    x = image()
    at_x = float(x.flatten().double().numpy() @ weights)
    model = LinearClassifier(weights, distance_to_boundary * float(np.linalg.norm(weights)) - at_x)
    return model, Target(model, x, model.label(x), SIGMA)


# ---- where the truth is known ------------------------------------------------------------------------------------


def test_every_attack_is_in_the_table_under_its_name():
    assert list(SMOOTHED_ATTACKS) == ["paper", "strong", "ddn", "abstain"]
    assert all(SMOOTHED_ATTACKS[name].name == name for name in SMOOTHED_ATTACKS)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", ["paper", "strong", "ddn"])
def test_of_a_half_space_attacks_cross_the_boundary_where_they_may(name, clip):
    model, aim = half_space(0.4)
    beyond = 1.1 if not clip else 3.0  # clipping lengthens the way
    found = SMOOTHED_ATTACKS[name]()(aim, beyond * 0.4, seeded_by(), clip=clip)
    assert model.label(found) != aim.label
    assert 0.4 < distance(found, aim.x) < beyond * 0.4


@pytest.mark.parametrize("name", ["paper", "strong"])
def test_of_a_half_space_attacks_go_straight_for_the_boundary(name):
    model, aim = half_space(0.4)
    found = SMOOTHED_ATTACKS[name]()(aim, 0.38, seeded_by())
    straight = model.nearest_change(aim.x, 0.38)
    assert (found - aim.x).flatten().double().numpy() == pytest.approx(straight, abs=2e-3)
    assert model.label(found) == aim.label  # nor could any other attack


@every_attack
def test_no_attack_crosses_a_boundary_that_is_too_far_away(name):
    model, aim = half_space(0.4)
    found = SMALL[name](aim, 0.399, seeded_by())
    assert model.label(found) == aim.label
    assert distance(found, aim.x) > 0.3


def test_ddn_finds_nearly_the_smallest_perturbation_that_leads_enough():
    model, aim = half_space(0.4)
    found = DDNAttack(lead=0.1, copies=400, votes=2000)(aim, 2.0, seeded_by())
    lead = 1 - 2 * model.vote_probability(found, SIGMA)
    assert 0.05 < lead < 0.2
    assert distance(found, aim.x) < 1.1 * (0.4 + SIGMA * 0.1257)  # Φ(0.1257) = 0.55


@pytest.mark.parametrize("radius", [0.45, 1.0, 5.0])
def test_forcing_abstention_ends_where_votes_are_even(radius):
    model, aim = half_space(0.4)
    found = AbstentionAttack()(aim, radius, seeded_by())
    assert abs(model.vote_probability(found, SIGMA) - 0.5) < 4 * 0.5 / math.sqrt(10_000)


def test_where_there_is_no_tie_within_reach_forcing_abstention_comes_as_near_as_it_can():
    model, aim = half_space(0.4)
    found = SMALL["abstain"](aim, 0.3, seeded_by())
    assert model.vote_probability(found, SIGMA) == pytest.approx(float(ndtr(0.1 / SIGMA)), abs=0.02)


def test_the_strong_attack_finds_the_class_that_can_win_though_another_seems_nearer():
    """Class 1 is second near x but never wins within the radius; class 2 does, in a direction nobody is led to."""

    def scores(batch):
        a, b = batch[:, 0], batch[:, 1]
        return torch.stack([torch.full_like(a, 4.0), 2.0 + 1.5 * b, 40 * a - 30], dim=1)

    aim = Target(scores, torch.zeros(4), 0, SIGMA)
    misled = StrongAttack(steps=8, copies=32, rivals=0, restarts=0)(aim, 1.0, seeded_by())
    assert misled.tolist() == pytest.approx([0, 1, 0, 0], abs=0.3)
    found = StrongAttack(steps=8, copies=32)(aim, 1.0, seeded_by())
    assert found.tolist() == pytest.approx([1, 0, 0, 0], abs=0.3)


# ---- the paper's attack, step by step ----------------------------------------------------------------------------


def by_hand(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, label: int, radius: float, attack: PaperAttack):
    """Appendix J.3 for softmax regression in float64: its cross-entropy has the gradient Wᵀ(softmax(Wz + b) − e)."""
    generator, delta, taken = seeded_by(7), np.zeros(16), 0
    reach = attack.steps * attack.step_size
    while taken < attack.steps or (radius > reach and np.linalg.norm(delta) < 0.99999 * radius):
        taken += 1
        noises = SIGMA * torch.randn(attack.copies, 16, generator=generator).double().numpy()
        gradient = np.zeros(16)
        for noise in noises:
            errors = softmax(weight @ (x + delta + noise) + bias)
            errors[label] -= 1
            gradient += weight.T @ errors
        moved = delta + attack.step_size * gradient / np.linalg.norm(gradient)
        delta = radius * moved / max(radius, np.linalg.norm(moved))
    return x + delta


@pytest.mark.parametrize("radius", [0.15, 0.5, 0.83])
@pytest.mark.parametrize("batch_size", [256, 13])
def test_the_papers_attack_takes_the_papers_steps(radius, batch_size):
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), seed=2)
    attack, aim = PaperAttack(steps=5, copies=30, batch_size=batch_size), target(model)
    weight, bias = (one.detach().double().numpy() for one in model[1].parameters())
    expected = by_hand(weight, bias, aim.x.flatten().double().numpy(), aim.label, radius, attack)
    found = attack(aim, radius, seeded_by(7))
    assert found.flatten().tolist() == pytest.approx(expected.tolist(), abs=2e-6)
    assert np.linalg.norm(expected - aim.x.flatten().numpy()) == pytest.approx(radius, rel=0.2)


def test_the_papers_settings_are_the_default():
    assert PaperAttack() == PaperAttack(step_size=0.1, steps=20, copies=1000)


@pytest.fixture
def visited(monkeypatch) -> list[torch.Tensor]:
    """The points at which an attack computes gradients, one per step."""
    points = []
    look = NoisyCopies.look

    def watched(self, point, *rest):
        points.append(point.clone())
        return look(self, point, *rest)

    monkeypatch.setattr(NoisyCopies, "look", watched)
    return points


@pytest.mark.parametrize(
    ("radius", "steps"), [(0.01, 20), (0.3, 20), (1.0, 20), (1.99, 20), (2.0, 20), (2.01, 21), (2.85, 29), (4.5, 45)]
)
def test_the_papers_attack_takes_20_steps_where_they_reach_the_sphere_and_more_beyond(visited, radius, steps):
    _, aim = half_space(0.4)
    found = PaperAttack()(aim, radius, seeded_by())
    assert len(visited) == steps
    assert distance(found, aim.x) == pytest.approx(radius, rel=1e-4)


@pytest.mark.parametrize("beyond", [1.1, 1.5, 2.0])
def test_the_papers_attack_succeeds_beyond_a_radius_that_20_steps_cannot_reach(beyond):
    model, aim = half_space(2.2)
    found = PaperAttack()(aim, beyond * 2.2, seeded_by())
    assert model.label(found) != aim.label
    assert model.vote_probability(found, SIGMA) == pytest.approx(float(ndtr((1 - beyond) * 2.2 / SIGMA)), abs=1e-3)
    papers = PaperAttack(most_steps=20)(aim, beyond * 2.2, seeded_by())
    assert distance(papers, aim.x) == pytest.approx(2.0, rel=1e-4)
    assert model.label(papers) == aim.label


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("radius", [0.05, 0.7, 2.0, 2.6])
def test_steps_of_the_papers_attack_have_length_one_tenth_and_never_leave_the_ball(visited, radius, clip):
    aim = target()
    visited.append(PaperAttack()(aim, radius, seeded_by(), clip=clip))
    assert len(visited) > 20
    for before, after in itertools.pairwise(visited):
        assert distance(after, aim.x) <= radius * (1 + 1e-6)
        inside = distance(after, aim.x) < 0.999 * radius
        if inside and not clip:
            assert distance(before, after) == pytest.approx(0.1, rel=1e-3)
        assert distance(before, after) < 0.1001
        if clip:
            assert after.min() >= -1e-6
            assert after.max() <= 1 + 1e-6
    assert distance(visited[-1], aim.x) < radius


def test_the_papers_attack_gives_up_where_it_makes_no_way(visited):
    aim = Target(flat, image(), 0, SIGMA)
    assert torch.equal(PaperAttack(copies=10)(aim, 3.0, seeded_by()), aim.x)
    assert len(visited) == 60
    visited.clear()
    PaperAttack(copies=10, most_steps=25)(aim, 3.0, seeded_by())
    assert len(visited) == 25


# ---- mixed precision ---------------------------------------------------------------------------------------------


class Recorded(nn.Module):
    """A network that records in which precision it computes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.types = inner, []

    def forward(self, x):
        scores = self.inner(x)
        self.types.append(scores.dtype)
        return scores


@every_attack
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_searches_run_in_the_precision_asked_for_and_results_are_float32_within_the_ball(name, precision):
    recorded = Recorded(network())
    found = dataclasses.replace(SMALL[name], precision=precision)(target(recorded), 0.5, seeded_by())
    expected = torch.bfloat16 if precision == "bf16" else torch.float32
    assert recorded.types[0] == torch.float32
    assert set(recorded.types[2:]) == {expected}  # after the label of x, and the check for gradients
    assert found.dtype == torch.float32
    assert distance(found, image()) < 0.5
    assert not torch.is_autocast_enabled("cpu")


def test_in_bf16_the_papers_attack_finds_nearly_the_same_perturbation(digits):
    model, images, labels = digits
    for x, label in zip(images[:4], labels[:4].tolist(), strict=True):
        aim = Target(model, x, label, SIGMA)
        exact, coarse = (PaperAttack(precision=one)(aim, 0.6, seeded_by()) - x for one in ("fp32", "bf16"))
        assert float(functional.cosine_similarity(exact.flatten(), coarse.flatten(), dim=0)) > 0.99


# ---- a trained network -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network trained under noise for a second, and 8 digits of which it is sure under noise."""
    data, _ = load_digits()
    x, y = torch.from_numpy(data.inputs).float() / 255, torch.from_numpy(data.labels)
    model, generator = seeded(lambda: mlp(64, 64), 0), seeded_by(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        rows = torch.randint(len(x), (128,), generator=generator)
        noisy = x[rows] + SIGMA * torch.randn(x[rows].shape, generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(noisy), y[rows]).backward()
        optimizer.step()
    sure = torch.tensor([win_share(model, one, int(label)) > 0.9 for one, label in zip(x[:40], y[:40], strict=True)])
    assert sure.sum() >= 8
    return model, x[:40][sure][:8], y[:40][sure][:8]


@torch.no_grad()
def win_share(model: nn.Module, x: torch.Tensor, label: int, n: int = 2000) -> float:
    """The share of votes for the label, less that of the best other class."""
    votes = model(x + SIGMA * torch.randn(n, *x.shape, generator=seeded_by(99))).argmax(1).bincount(minlength=10) / n
    own, votes[label] = float(votes[label]), -1
    return own - float(votes.max())


def test_the_strong_attack_takes_more_from_the_label_than_the_papers_with_half_the_gradients(digits):
    model, images, labels = digits
    strong, paper = StrongAttack(), PaperAttack()
    ascents = 2 + strong.rivals + strong.restarts
    assert ascents * strong.steps * strong.copies < 0.5 * paper.steps * paper.copies
    gains = []
    for x, label in zip(images, labels.tolist(), strict=True):
        ends = [attack(Target(model, x, label, SIGMA), 0.6, seeded_by()) for attack in (paper, strong)]
        papers, strongs = (win_share(model, end, label) for end in ends)
        gains.append(papers - strongs)
    assert min(gains) > -0.02  # as good everywhere, up to the noise of 2,000 votes
    assert np.mean(gains) > 0.02


def test_attacks_on_a_network_with_enough_room_succeed_and_abstention_is_a_tie(digits):
    model, images, labels = digits
    for x, label in zip(images[:3], labels[:3].tolist(), strict=True):
        aim = Target(model, x, label, SIGMA)
        far = win_share(model, StrongAttack()(aim, 1.5, seeded_by()), label)
        near = DDNAttack()(aim, 1.5, seeded_by())
        even = AbstentionAttack()(aim, 1.5, seeded_by())
        assert far < -0.4
        assert -0.3 < win_share(model, near, label) < -0.02
        assert abs(win_share(model, even, label, 5000)) < 0.07
        assert max(distance(even, x), distance(near, x)) < 1.2


# ---- the search is not trusted -----------------------------------------------------------------------------------


class Given(SmoothedAttack):
    """Returns what it is told to."""

    name = "given"

    def __init__(self, result) -> None:
        object.__setattr__(self, "result", result)
        object.__setattr__(self, "batch_size", 1)

    def search(self, target, radius, generator):
        return self.result(target)


AWKWARD = [1e-30, 1e-9, 1e-6, 0.1, 1 / 3, 0.1 + 1e-9, math.pi / 7, 1e3, 1e30]


@every_attack
@pytest.mark.parametrize("radius", AWKWARD)
@pytest.mark.parametrize("clip", [False, True])
def test_results_lie_strictly_within_the_ball(name, radius, clip):
    aim = target()
    found = SMALL[name](aim, radius, seeded_by(), clip=clip)
    assert found.dtype == torch.float32
    assert found.shape == aim.x.shape
    assert distance(found, aim.x) < radius
    assert found.isfinite().all()
    if clip:
        assert found.min() >= 0
        assert found.max() <= 1


@pytest.mark.parametrize("radius", AWKWARD)
def test_a_search_that_leaves_the_ball_is_brought_back_nearly_to_its_edge(radius):
    x = torch.rand(3, 9, 9, generator=seeded_by(5))
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(243, 3)), 0)
    away = torch.randn(3, 9, 9, generator=seeded_by(6)).double() * 1e32
    found = Given(lambda t: t.x.double() + away)(Target(model, x, 0, SIGMA), radius, seeded_by())
    assert distance(found, x) < radius
    if radius >= 0.1:
        assert distance(found, x) > radius * (1 - 1e-4)
        expected = away / away.norm() * radius
        torch.testing.assert_close((found - x).double(), expected, rtol=1e-3, atol=1e-6 * max(1, radius))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_result_that_is_not_finite_becomes_the_input(value):
    aim = target()

    def spoilt(given):
        result = given.x + 0.01
        result[0, 1, 2] = value
        return result

    assert torch.equal(Given(spoilt)(aim, 1.0, seeded_by()), aim.x)


def test_a_result_within_the_ball_stays_as_it_is_but_for_clipping():
    aim = target()
    inside = aim.x + 0.05 * torch.randn(1, 4, 4, generator=seeded_by(2))
    assert torch.equal(Given(lambda _: inside)(aim, 5.0, seeded_by()), inside)
    assert inside.min() < 0
    assert torch.equal(Given(lambda _: inside)(aim, 5.0, seeded_by(), clip=True), inside.clamp(0, 1))


def test_a_search_that_changes_the_input_in_place_changes_neither_the_callers_nor_the_measure():
    aim = target()
    before = aim.x.clone()
    found = Given(lambda given: given.x.add_(100.0))(aim, 0.5, seeded_by())
    assert torch.equal(aim.x, before)
    assert distance(found, before) < 0.5


# ---- models that give nothing to go by ---------------------------------------------------------------------------


def flat(batch):
    return torch.stack([1 + 0 * batch.flatten(1).sum(1), 0 * batch.flatten(1).sum(1)], dim=1)


def nan_everywhere(batch):
    return flat(batch) * math.nan


def nan_gradients(batch):
    a = batch.flatten(1).sum(1)
    return torch.stack([a.clamp(min=-1e9), (0 * a).sqrt()], dim=1)


def nan_for_some_copies(batch):
    a = batch.flatten(1).sum(1)
    return torch.stack([torch.where(a > 7.5, math.nan, a * 0), a - 9], dim=1)


def huge_scores(batch):
    a = batch.flatten(1).sum(1)
    return torch.stack([1e30 * a, -1e30 * a], dim=1)


@every_attack
@pytest.mark.parametrize("model", [flat, nan_everywhere, nan_gradients, nan_for_some_copies, huge_scores])
def test_from_a_model_that_is_flat_or_nan_comes_a_finite_result(name, model):
    aim = Target(model, image(), 0, SIGMA)
    found = SMALL[name](aim, 0.5, seeded_by())
    assert found.isfinite().all()
    assert distance(found, aim.x) < 0.5


def test_copies_with_nan_do_not_spoil_the_gradient_of_the_others():
    aim = Target(nan_for_some_copies, image(), 0, SIGMA)
    found = SMALL["paper"](aim, 0.3, seeded_by())
    assert (found - aim.x).flatten().tolist() == pytest.approx([0.3 / 4] * 16, rel=1e-4)


def test_where_softmax_is_saturated_scores_still_show_the_way():
    def saturated(batch):
        a = 1e4 * (batch.flatten(1)[:, 0] - 0.9)
        return torch.stack([-a, a], dim=1)

    aim = Target(saturated, torch.zeros(20), 0, 0.01)
    assert StrongAttack(steps=6, copies=16)(aim, 1.0, seeded_by())[0] > 0.95
    assert DDNAttack(steps=40, copies=16)(aim, 1.0, seeded_by())[0] > 0.88


def test_refuses_models_that_give_labels_or_no_gradients():
    x = image()
    with pytest.raises(ModelError, match=r"Expected scores \[1, K\]"):
        SMALL["paper"](Target(lambda batch: batch.flatten(1).argmax(1), x, 0, SIGMA), 1.0, seeded_by())
    with pytest.raises(ModelError, match="differentiated by the inputs"):
        SMALL["paper"](Target(lambda batch: batch.detach().flatten(1), x, 0, SIGMA), 1.0, seeded_by())
    weights = nn.Parameter(torch.ones(3))
    with pytest.raises(ModelError, match="differentiated by the inputs"):
        SMALL["paper"](Target(lambda batch: weights.expand(len(batch), 3), x, 0, SIGMA), 1.0, seeded_by())
    with pytest.raises(ModelError, match="gradients are wanted"):
        SMALL["paper"](Target(lambda batch: torch.from_numpy(batch.numpy()), x, 0, SIGMA), 1.0, seeded_by())
    with pytest.raises(InputError, match="Expected labels from 0 to 3"):
        SMALL["paper"](Target(network(), x, 4, SIGMA), 1.0, seeded_by())


# ---- randomness and the model's state ----------------------------------------------------------------------------


@every_attack
def test_the_generator_alone_decides_to_the_bit(name):
    aim, attack = target(), SMALL[name]
    torch.manual_seed(1)
    first = attack(aim, 0.7, seeded_by(3))
    torch.manual_seed(2)
    torch.randn(7)
    SMALL["paper"](aim, 0.2, seeded_by(8))
    assert torch.equal(attack(aim, 0.7, seeded_by(3)), first)
    assert not torch.equal(attack(aim, 0.7, seeded_by(4)), first)


@every_attack
def test_the_batch_size_changes_nothing_but_rounding(name):
    x = torch.rand(3, 5, generator=seeded_by(9))  # 15 values, which no power of two divides
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(15, 3)), 0)
    aim = target(model, x)
    whole, parts = (
        type(SMALL[name])(**{**vars(SMALL[name]), "batch_size": size})(aim, 0.3, seeded_by()) for size in (256, 7)
    )
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-4)


@every_attack
def test_global_random_states_stay_as_they_were_even_if_the_model_draws_from_them(name):
    class Drawing(nn.Module):
        def forward(self, x):
            torch.rand(3)
            random.random()
            np.random.rand()  # noqa: NPY002
            return x.flatten(1)[:, :3]

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    aim = target(Drawing())
    before = states()
    SMALL[name](aim, 0.5, seeded_by())
    assert states() == before


@every_attack
def test_modes_weights_and_gradients_are_left_as_they_were(name):
    model = network()
    aim = target(model)
    expected = SMALL[name](aim, 0.5, seeded_by())
    model.train()
    model[1].eval()
    model[1].bias.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        assert torch.equal(SMALL[name](aim, 0.5, seeded_by()), expected)  # the dropout was off
    assert [part.training for part in model] == [True, False, True, True, True]
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True]
    assert torch.equal(model[4].weight.grad, torch.ones_like(model[4].weight))
    assert model[1].weight.grad is None
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@every_attack
def test_an_error_in_the_model_leaves_no_trace_either(name):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = nn.Conv2d(1, 3, 4), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 3:
                raise RuntimeError("on purpose")
            return self.inner(x).flatten(1)

    model = Failing().train()
    layout = model.inner.weight.stride()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        SMALL[name](Target(model, image(), 0, SIGMA), 0.5, seeded_by())
    assert model.training
    assert model.inner.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert model.inner.weight.stride() == layout
    assert torch.equal(torch.get_rng_state(), state)


def test_takes_what_models_load_gives_and_inputs_made_in_inference_mode():
    aim = target()
    expected = SMALL["strong"](aim, 0.5, seeded_by())
    loaded = from_object(network().train())
    with torch.inference_mode():
        x = aim.x.clone()
        found = SMALL["strong"](Target(loaded, x, aim.label, SIGMA), 0.5, seeded_by())
    assert torch.equal(found, expected)
    assert loaded.network.training
    assert not found.requires_grad


def test_convolutions_see_the_same_whichever_layout_is_faster():
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)), 0)
    x = torch.rand(3, 5, 5, generator=seeded_by(2))
    found = SMALL["paper"](target(model, x), 0.3, seeded_by())
    as_function = SMALL["paper"](target(lambda batch: model(batch), x), 0.3, seeded_by())  # left in its own layout
    torch.testing.assert_close(found, as_function, rtol=0, atol=1e-5)
    assert all(p.grad is None for p in model.parameters())
    assert model[0].weight.is_contiguous()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_attack
def test_works_on_a_gpu_with_a_generator_on_the_cpu(name):
    model = network().cuda()
    found = SMALL[name](Target(model, image().cuda(), 0, SIGMA), 0.5, seeded_by())
    assert found.device.type == "cuda"


# ---- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        (PaperAttack, {"step_size": 0.0}),
        (PaperAttack, {"step_size": math.nan}),
        (PaperAttack, {"steps": 0}),
        (PaperAttack, {"most_steps": 19}),
        (PaperAttack, {"precision": "fp16"}),
        (PaperAttack, {"copies": 1.5}),
        (PaperAttack, {"batch_size": 0}),
        (StrongAttack, {"steps": 0}),
        (StrongAttack, {"copies": 0}),
        (StrongAttack, {"renewals": 0}),
        (StrongAttack, {"rivals": -1}),
        (StrongAttack, {"restarts": -1}),
        (StrongAttack, {"votes": 0}),
        (StrongAttack, {"enough": 0}),
        (DDNAttack, {"steps": 0}),
        (DDNAttack, {"copies": True}),
        (DDNAttack, {"renewals": 0}),
        (DDNAttack, {"votes": 0}),
        (DDNAttack, {"lead": 1.0}),
        (AbstentionAttack, {"tie_votes": 0}),
        (AbstentionAttack, {"steps": 0}),
    ],
)
def test_refuses_settings_that_make_no_sense(attack, settings):
    with pytest.raises(ConfigError, match=f"Expected `{next(iter(settings))}`"):
        attack(**settings)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan, True])
def test_refuses_radii_that_make_no_sense(radius):
    with pytest.raises(ConfigError, match="Expected `radius`"):
        SMALL["paper"](target(), radius, seeded_by())


def test_refuses_targets_that_make_no_sense():
    model, x = network(), image()
    with pytest.raises(ConfigError, match="`sigma`"):
        Target(model, x, 0, 0.0)
    with pytest.raises(ConfigError, match="`label`"):
        Target(model, x, -1, SIGMA)
    for bad in (x.double(), x * math.nan, x[:0], (255 * x).byte()):
        with pytest.raises(InputError, match="finite float32"):
            Target(model, bad, 0, SIGMA)
    outside = Target(model, x + 1, 0, SIGMA)
    assert distance(SMALL["paper"](outside, 0.5, seeded_by()), outside.x) < 0.5
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        SMALL["paper"](outside, 0.5, seeded_by(), clip=True)

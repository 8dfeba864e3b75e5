from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.attacks.deepfool import Perturbed
from smoothcert.attacks.foolbox_attacks import BASE_ATTACKS, PGD, BaseAttack, CarliniWagner, attack_base, smallest
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelError
from smoothcert.models.architectures import small_cnn
from smoothcert.models.objects import from_object
from smoothcert.training.loop import seeded
from smoothcert.worst_cases import LinearClassifier

pytest.importorskip("eagerpy")

every_attack = pytest.mark.parametrize("name", list(BASE_ATTACKS))


def images(count: int, *shape: int) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(2))


def labelled(model, count: int = 12, shape: tuple[int, ...] = (3, 4)) -> tuple[torch.Tensor, torch.Tensor]:
    x = images(count, *shape)
    return x, model(x).argmax(1).detach()


def linear(classes: int = 5) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, classes)), seed=1)


def exact_distances(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """To the nearest of a linear classifier's boundaries, in float64."""
    weight, bias = (one.detach().double().numpy() for one in model[1].parameters())
    result = []
    for row, label in zip(x.flatten(1).double().numpy(), labels.tolist(), strict=True):
        scores = weight @ row + bias
        others = [k for k in range(len(scores)) if k != label]
        result.append(min((scores[label] - scores[k]) / np.linalg.norm(weight[label] - weight[k]) for k in others))
    return np.array(result)


# ---- where the truth is known ------------------------------------------------------------------------------------


@every_attack
def test_between_two_classes_the_exact_distance_is_found_up_to_a_few_percent(name):
    model = LinearClassifier(np.random.default_rng(0).normal(size=12), 0.3)
    x = images(20, 3, 4)
    labels = torch.tensor([model.label(row) for row in x])
    exact = np.array([model.exact_radius(row) for row in x])
    norms = attack_base(model, x, labels, [name], clip=False)[name].norms.numpy()
    assert np.all(norms >= exact * (1 - 1e-5))
    assert np.all(norms <= 1.06 * exact + 0.005)


@pytest.mark.parametrize(("name", "typical"), [("deepfool", 1.03), ("pgd", 1.02), ("cw", 1.02), ("ddn", 1.2)])
def test_among_several_classes_no_norm_is_below_the_exact_distance_and_few_are_far_above(name, typical):
    model = linear()
    x, labels = labelled(model, 20)
    norms = attack_base(model, x, labels, [name], clip=False)[name].norms.numpy()
    ratios = norms / exact_distances(model, x, labels)
    assert ratios.min() >= 1 - 1e-5
    assert np.median(ratios) < typical
    assert ratios.max() < 1.5


def test_the_smallest_is_taken_input_by_input():
    model = linear()
    x, labels = labelled(model, 20)
    found = attack_base(model, x, labels, ["deepfool", "ddn"], clip=False)
    best = smallest(found)
    assert torch.equal(best.norms, torch.minimum(found["deepfool"].norms, found["ddn"].norms))
    assert torch.equal((best.inputs.double() - x.double()).flatten(1).norm(dim=1), best.norms)
    mixed = {
        "a": Perturbed(torch.tensor([1.0, math.inf, 0.0]), torch.zeros(3, 2)),
        "b": Perturbed(torch.tensor([2.0, 5.0, 0.0]), torch.ones(3, 2)),
    }
    assert smallest(mixed).norms.tolist() == [1.0, 5.0, 0.0]
    assert smallest(mixed).inputs[:, 0].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match="at least one attack"):
        smallest({})


@every_attack
@pytest.mark.parametrize("clip", [False, True])
def test_on_a_network_the_perturbed_inputs_really_get_another_class_at_the_stated_norm(name, clip):
    model = seeded(small_cnn, seed=0)
    x, labels = labelled(model, 8, (1, 8, 8))
    result = attack_base(model, x, labels, [name], clip=clip)[name]
    found = result.norms.isfinite()
    assert found.float().mean() >= (0.6 if clip else 1.0)
    assert result.inputs.dtype == torch.float32
    assert ((model(result.inputs).argmax(1) != labels) == found).all()
    distance = (result.inputs.double() - x.double()).flatten(1).norm(dim=1)
    assert torch.equal(result.norms[found], distance[found])
    assert torch.equal(result.inputs[~found], x[~found])
    inside = result.inputs.min() >= 0 and result.inputs.max() <= 1
    assert inside == clip  # these perturbations do leave [0, 1] where they may


def test_pgd_searches_a_radius_for_each_input():
    """Distances from 0.01 to 3 in one batch, below the first radius tried and far above it."""
    model = LinearClassifier([1.0, 0.0, 0.0], 0.0)
    x = torch.zeros(6, 3)
    x[:, 0] = torch.tensor([0.01, 0.1, 0.25, 0.3, 1.0, 3.0])
    norms = attack_base(model, x, torch.ones(6, dtype=torch.long), ["pgd"], clip=False)["pgd"].norms
    assert norms.tolist() == pytest.approx([0.01, 0.1, 0.25, 0.3, 1.0, 3.0], rel=0.02, abs=0.002)


# ---- attacks are not trusted -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lying(BaseAttack):
    """Returns points that change nothing, points far outside of [0, 1], and points that are no numbers."""

    name = "lying"
    steps: int = 1

    def search(self, foolbox, model, inputs, labels):
        points = inputs.clone()
        points[1] = 1e6 * torch.sign(points[1] - 2)  # clipped, that is black
        points[2, 0] = math.nan
        return points


def test_a_lying_attack_is_caught(monkeypatch):
    monkeypatch.setitem(BASE_ATTACKS, "lying", Lying())
    model = LinearClassifier([1.0, 1.0], -0.1)
    x, labels = torch.full((3, 2), 0.5), torch.ones(3, dtype=torch.long)
    result = attack_base(model, x, labels, ["lying"])["lying"]
    assert result.norms.tolist() == [math.inf, pytest.approx(math.sqrt(0.5)), math.inf]
    assert result.inputs.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]


@every_attack
def test_an_input_that_is_already_misclassified_has_norm_0_and_stays_as_it_is(name):
    model = linear()
    x, labels = labelled(model, 5)
    labels[2] = (labels[2] + 1) % 5
    result = attack_base(model, x, labels, [name])[name]
    assert result.norms[2] == 0
    assert torch.equal(result.inputs[2], x[2])
    assert (result.norms[[0, 1, 3, 4]] > 0).all()
    wrong = attack_base(model, x, (model(x).argmax(1) + 1) % 5, [name])[name]
    assert wrong.norms.tolist() == [0.0] * 5


@every_attack
def test_a_classifier_that_cannot_be_fooled_gives_inf_and_the_input_itself(name):
    def constant(batch):
        flat = 0 * batch.flatten(1).sum(1)
        return torch.stack([1 + flat, flat], dim=1)

    x = images(3, 4)
    result = attack_base(constant, x, torch.zeros(3, dtype=torch.long), [name], steps=3)[name]
    assert result.norms.tolist() == [math.inf] * 3
    assert torch.equal(result.inputs, x)


@every_attack
def test_scores_of_nan_are_not_taken_for_a_changed_answer(name):
    def nan_behind_the_boundary(batch):
        score = batch.sum(dim=1)
        score = torch.where(score > 0, score, torch.full_like(score, torch.nan))
        return torch.stack([-score, score], dim=1)

    result = attack_base(nan_behind_the_boundary, torch.full((1, 2), 0.5), torch.tensor([1]), [name], clip=False)[name]
    assert result.norms.tolist() == [math.inf]


# ---- what is left behind -----------------------------------------------------------------------------------------


@every_attack
def test_the_seed_alone_decides_and_global_random_states_stay_as_they_were(name):
    model = seeded(small_cnn, seed=0)
    x, labels = labelled(model, 3, (1, 8, 8))

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    first = attack_base(model, x, labels, [name], steps=5, seed=1)[name].inputs
    assert states() == before
    torch.randn(3)
    both = attack_base(model, x, labels, ["pgd", name], steps=5, seed=1)
    assert torch.equal(both[name].inputs, first)


def test_another_seed_gives_other_random_starts():
    class Rings(nn.Module):  # the gradient at the inputs themselves is 0, so only random starts get anywhere
        def forward(self, x):
            far = ((x - 0.5) ** 2).flatten(1).sum(1)
            return torch.stack([0.1 - far, far - 0.1], dim=1)

    x, labels = torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.long)
    one, other = (attack_base(Rings(), x, labels, ["pgd"], seed=seed)["pgd"] for seed in (0, 1))
    assert one.norms.tolist() == pytest.approx([math.sqrt(0.1)] * 2, rel=0.02)
    assert not torch.equal(one.inputs, other.inputs)


@every_attack
def test_modes_gradients_and_the_input_are_left_as_they_were(name):
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4)), seed=1)
    x, labels = labelled(model.eval(), 4)
    expected = attack_base(model, x, labels, [name], steps=5)[name]
    model.train()
    model[2].eval()
    model[2].bias.requires_grad_(False)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    before = x.clone()
    with torch.inference_mode():
        found = attack_base(model, x, labels, [name], steps=5)[name]
    assert torch.equal(found.inputs, expected.inputs)  # the dropout was off
    assert [part.training for part in model] == [True, True, False]
    assert [p.requires_grad for p in model.parameters()] == [True, False]
    assert torch.equal(model[2].weight.grad, torch.ones_like(model[2].weight))
    assert torch.equal(x, before)
    assert not found.inputs.requires_grad


@every_attack
def test_weights_hidden_in_a_function_get_no_gradients_either(name):
    model = linear()
    x, labels = labelled(model, 4)
    as_function = attack_base(lambda batch: model(batch), x, labels, [name], steps=5)[name]
    assert torch.equal(as_function.inputs, attack_base(model, x, labels, [name], steps=5)[name].inputs)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_an_error_in_the_model_leaves_no_trace():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = nn.Linear(12, 3), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 4:
                raise RuntimeError("on purpose")
            return self.inner(x.flatten(1))

    model = seeded(Failing, 0).train()
    x, state = images(3, 3, 4), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        attack_base(model, x, model.inner(x.flatten(1)).argmax(1), ["ddn"])
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_takes_what_models_load_gives_and_the_parts_of_a_batch_do_not_matter():
    model = linear()
    x, labels = labelled(model, 10)
    whole = attack_base(from_object(model), x, labels, ["deepfool"])["deepfool"]
    parts = attack_base(model, x, labels, ["deepfool"], batch_size=3)["deepfool"]
    torch.testing.assert_close(whole.norms, parts.norms, rtol=1e-4, atol=0)


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_refuses_models_that_give_labels_or_no_gradients():
    x, labels = images(2, 4), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ModelError, match=r"Expected scores \[1, K\]"):
        attack_base(lambda batch: batch.argmax(1), x, labels, ["ddn"])
    with pytest.raises(ModelError, match="differentiated by the inputs"):
        attack_base(lambda batch: batch.detach(), x, labels, ["ddn"])
    with pytest.raises(ModelError, match="gradients are wanted"):
        attack_base(from_object(lambda batch: batch.numpy()), x, labels, ["ddn"])
    with pytest.raises(InputError, match="Expected labels from 0 to 3"):
        attack_base(lambda batch: batch, x, labels + 4, ["ddn"])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"attacks": ["deepfol"]}, "attacks"),
        ({"attacks": ["pgd"], "steps": 0}, "steps"),
        ({"attacks": ["pgd"], "batch_size": 0}, "batch_size"),
        ({"attacks": ["pgd"], "seed": -1}, "seed"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings, named):
    with pytest.raises(ConfigError, match=f"Expected `{named}`"):
        attack_base(linear(), *labelled(linear(), 2), **settings)


def test_refuses_inputs_outside_of_the_pixel_range_unless_nothing_is_clipped():
    model = linear()
    x, labels = labelled(model, 2)
    with pytest.raises(InputError, match=r"Expected inputs in \[0, 1\]"):
        attack_base(model, x + 1, model(x + 1).argmax(1), ["ddn"])
    assert (
        attack_base(model, x + 40, model(x + 40).argmax(1), ["deepfool"], clip=False)["deepfool"].norms.isfinite().all()
    )
    with pytest.raises(InputError, match="Expected inputs in"):
        attack_base(model, x * math.nan, labels, ["ddn"], clip=False)
    with pytest.raises(InputError, match="floating-point inputs"):
        attack_base(model, (255 * x).byte(), labels, ["ddn"])
    with pytest.raises(InputError, match="2 whole-number labels"):
        attack_base(model, x, labels[:1], ["ddn"])


def test_says_which_extra_to_install_where_foolbox_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'smoothcert\[attacks\]'"):
        attack_base(linear(), *labelled(linear(), 2), ["ddn"])


def test_every_attack_is_in_the_table_under_its_name():
    assert list(BASE_ATTACKS) == ["deepfool", "pgd", "ddn", "cw"]
    assert all(BASE_ATTACKS[name].name == name for name in BASE_ATTACKS)


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        (PGD, {"steps": 0}),
        (PGD, {"restarts": -1}),
        (PGD, {"start": 0.0}),
        (PGD, {"halvings": 1.5}),
        (CarliniWagner, {"searches": 0}),
        (CarliniWagner, {"step_size": math.inf}),
    ],
)
def test_attacks_refuse_settings_of_their_own_that_make_no_sense(attack, settings):
    with pytest.raises(ConfigError, match=f"Expected `{next(iter(settings))}`"):
        attack(**settings)

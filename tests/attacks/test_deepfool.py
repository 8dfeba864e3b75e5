from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.attacks.deepfool import deepfool
from smoothcert.errors import ConfigError, InputError
from smoothcert.models.architectures import small_cnn
from smoothcert.training.loop import seeded
from smoothcert.worst_cases import LinearClassifier

OVERSHOOT = 0.02


def linear_model(classes: int = 7, size: int = 12) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, classes)), seed=1)


def inputs_for(model: nn.Module, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(2))
    return x, model(x).argmax(1).detach()


def exact_distances(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """To the nearest of a linear classifier's boundaries, in float64."""
    weight, bias = model[1].weight.detach().double(), model[1].bias.detach().double()
    scores = x.flatten(1).double() @ weight.T + bias
    result = []
    for row, label in zip(scores, labels, strict=True):
        others = [k for k in range(len(row)) if k != label]
        result.append(min(float((row[label] - row[k]) / (weight[label] - weight[k]).norm()) for k in others))
    return np.array(result)


def test_on_a_linear_classifier_it_finds_the_exact_distance_up_to_the_overshoot():
    model = linear_model()
    x, labels = inputs_for(model, 40, 3, 4)
    exact = exact_distances(model, x, labels)
    norms = deepfool(model, x, labels).norms.numpy()
    assert np.all(norms >= exact * (1 - 1e-5))
    np.testing.assert_allclose(norms, exact * (1 + OVERSHOOT), rtol=1e-3)


def test_agrees_with_the_two_class_classifier_whose_distance_is_known():
    model = LinearClassifier([3.0, -4.0], 0.5)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.3, 0.2]])
    labels = torch.tensor([model.label(row) for row in x])
    norms = deepfool(model, x, labels, candidates=1).norms.numpy()
    np.testing.assert_allclose(norms, [1.02 * model.exact_radius(row) for row in x], rtol=1e-4)


def test_on_a_network_the_perturbed_inputs_really_get_another_class_at_the_stated_norm():
    model = seeded(small_cnn, seed=0)
    x, labels = inputs_for(model, 20, 1, 8, 8)
    result = deepfool(model, x, labels)
    found = result.norms.isfinite()
    assert found.all()
    assert result.inputs.dtype == torch.float32
    assert (model(result.inputs).argmax(1) != labels).all()
    distance = (result.inputs.double() - x.double()).flatten(1).norm(dim=1)
    assert torch.equal(result.norms, distance)


def test_an_input_that_is_already_misclassified_has_norm_0_and_stays_as_it_is():
    model = linear_model()
    x, labels = inputs_for(model, 5, 3, 4)
    labels[2] = (labels[2] + 1) % 7
    result = deepfool(model, x, labels)
    assert result.norms[2] == 0
    assert torch.equal(result.inputs[2], x[2])
    assert (result.norms[[0, 1, 3, 4]] > 0).all()


def test_a_classifier_that_cannot_be_fooled_gives_inf_and_the_input_itself():
    def constant(batch):
        return torch.stack([torch.ones(len(batch)), batch.flatten(1).sum(1) * 0], dim=1)

    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    result = deepfool(constant, x, torch.zeros(3, dtype=torch.long))
    assert result.norms.tolist() == [math.inf] * 3
    assert torch.equal(result.inputs, x)


def test_scores_of_nan_are_not_taken_for_a_changed_answer():
    class NanOutside(nn.Module):
        def forward(self, x):
            score = x.sum(dim=1)
            score = torch.where(score > 0, score, torch.full_like(score, torch.nan))  # NaN right behind the boundary
            return torch.stack([-score, score], dim=1)  # argmax of two NaN is 0, which is not the label

    result = deepfool(NanOutside(), torch.full((1, 2), 0.5), torch.tensor([1]))
    assert result.norms.tolist() == [math.inf]


def test_a_search_that_stops_short_of_the_boundary_counts_as_nothing_found():
    def cubic(batch):
        score = batch[:, 0] ** 3  # its tangent at 1 crosses 0.1 before the curve itself does
        return torch.stack([score, torch.full_like(score, 0.1)], dim=1)

    x, label = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    short = deepfool(cubic, x, label, max_steps=1)
    assert short.norms.tolist() == [math.inf]
    assert torch.equal(short.inputs, x)
    distance = 1 - 0.1 ** (1 / 3)
    assert distance <= deepfool(cubic, x, label).norms.item() <= 1.02 * distance


def test_the_parts_of_a_large_batch_do_not_matter():
    model = linear_model()
    x, labels = inputs_for(model, 10, 3, 4)
    whole, parts = deepfool(model, x, labels), deepfool(model, x, labels, batch_size=3)
    torch.testing.assert_close(whole.norms, parts.norms, rtol=1e-5, atol=0)


def test_modes_gradients_and_the_input_are_left_as_they_were():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4)), seed=1)
    x, labels = inputs_for(model.eval(), 4, 3, 4)
    model.train()
    model[2].eval()
    before = x.clone()
    first = deepfool(model, x, labels)
    assert [part.training for part in model] == [True, True, False]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(x, before)
    assert not first.norms.requires_grad
    assert not first.inputs.requires_grad
    assert torch.equal(first.norms, deepfool(model, x, labels).norms)  # the dropout was off


def test_works_where_gradients_are_switched_off_and_adds_nothing_to_existing_ones():
    model = linear_model()
    x, labels = inputs_for(model, 4, 3, 4)
    model[1].weight.grad = torch.ones_like(model[1].weight)
    with torch.no_grad():
        assert deepfool(model, x, labels).norms.isfinite().all()
    assert torch.equal(model[1].weight.grad, torch.ones_like(model[1].weight))


def test_takes_inputs_that_were_made_in_inference_mode():
    model = linear_model()
    x, labels = inputs_for(model, 4, 3, 4)
    expected = deepfool(model, x, labels).norms
    with torch.inference_mode():
        x_inference, labels_inference = x.clone(), labels.clone()
    assert torch.equal(deepfool(model, x_inference, labels_inference).norms, expected)
    with torch.inference_mode():
        assert torch.equal(deepfool(model, x_inference, labels_inference).norms, expected)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"overshoot": -0.1}, "overshoot"),
        ({"overshoot": float("nan")}, "overshoot"),
        ({"max_steps": 0}, "max_steps"),
        ({"candidates": 0}, "candidates"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings, named):
    model = linear_model()
    with pytest.raises(ConfigError, match=f"Expected `{named}`"):
        deepfool(model, *inputs_for(model, 2, 3, 4), **settings)


def test_refuses_integer_inputs_and_labels_that_do_not_fit():
    model = linear_model()
    x, labels = inputs_for(model, 2, 3, 4)
    with pytest.raises(InputError, match="floating-point inputs"):
        deepfool(model, (255 * x).byte(), labels)
    with pytest.raises(InputError, match="2 whole-number labels"):
        deepfool(model, x, labels[:1])
    with pytest.raises(InputError, match="2 whole-number labels"):
        deepfool(model, x, labels.double())

from __future__ import annotations

import copy
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smoothcert.data.dataset import ArrayData
from smoothcert.data.digits import load_digits
from smoothcert.errors import InputError
from smoothcert.models.architectures import mlp, small_cnn
from smoothcert.training.engine import Engine
from smoothcert.training.evaluation import accuracies_of
from smoothcert.training.loop import seeded, train
from smoothcert.training.recipes import RECIPES, Draws
from smoothcert.training.recipes.denoiser import Denoiser
from smoothcert.training.settings import TrainSettings

ENGINE = Engine(torch.device("cpu"))


class Threshold(nn.Module):
    """Class 1 where the first pixel is above a half."""

    def forward(self, x):
        score = x.flatten(1)[:, 0] - 0.5
        return torch.stack([-score, score], dim=1)


def points(count: int, distance: float) -> ArrayData:
    """Inputs of both classes, all at this distance from the threshold."""
    labels = torch.arange(count) % 2
    inputs = 0.5 + distance * (2 * labels[:, None] - 1) * torch.tensor([[1.0, 0.0]])
    return ArrayData(inputs.numpy(), labels.numpy(), None, "points")


# ---- accuracy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("distance", "sigma"), [(0.2, 0.2), (0.1, 0.5)])
def test_accuracy_under_noise_is_that_of_gaussian_noise_of_this_sigma(distance, sigma):
    clean, noisy = accuracies_of(Threshold(), points(5_000, distance), sigma, 0, ENGINE)
    assert clean == 1.0
    # five standard errors of 5,000 draws are at most 0.035
    assert noisy == pytest.approx(NormalDist().cdf(distance / sigma), abs=0.035)


def test_counts_every_input_once_also_in_a_last_batch_that_is_small():
    data = points(300, 0.2)
    data.labels[:7] = 1 - data.labels[:7]
    data.labels[-2:] = 1 - data.labels[-2:]
    assert accuracies_of(Threshold(), data, 1e-6, 0, ENGINE) == (291 / 300, 291 / 300)


def test_without_noise_both_accuracies_are_the_same():
    model, (_, data) = seeded(small_cnn, 0), load_digits()
    clean, noisy = accuracies_of(model, data, 0.0, 0, ENGINE)
    with torch.no_grad():
        answers = model(torch.from_numpy(data.inputs).float() / 255).argmax(1).numpy()
    assert clean == noisy == (answers == data.labels).mean()


def test_images_of_8_bits_and_of_floating_point_numbers_are_measured_alike():
    _, data = load_digits()
    floats = ArrayData(data.inputs.astype(np.float32) / 255, data.labels, None, "floats")
    model = seeded(small_cnn, 0)
    assert accuracies_of(model, data, 0.3, 5, ENGINE) == accuracies_of(model, floats, 0.3, 5, ENGINE)


def test_the_same_seed_draws_the_same_noise_and_the_batches_of_a_measurement_differ_in_theirs():
    data = points(512, 0.1)
    found = [accuracies_of(Threshold(), data, 0.5, seed, ENGINE) for seed in (0, 0, 1, 2)]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    seen = []
    model = Threshold()
    model.register_forward_hook(lambda _, given, __: seen.append(given[0].clone()))
    accuracies_of(model, data, 0.5, 0, ENGINE)
    first, second = seen[1] - seen[0], seen[3] - seen[2]
    assert first.std().item() == pytest.approx(0.5, rel=0.2)
    assert not torch.equal(first, second)


def test_measures_in_eval_mode_without_gradients_and_leaves_mode_and_statistics_alone():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.9), nn.Linear(2, 2))
    model[2].eval()
    before, modes = copy.deepcopy(model.state_dict()), []
    model.register_forward_hook(lambda module, _, found: modes.append((module.training, found.requires_grad)))
    accuracies_of(model, points(20, 0.2), 0.1, 0, ENGINE)
    assert set(modes) == {(False, False)}
    assert [part.training for part in model] == [True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_refuses_data_without_labels():
    data = ArrayData(np.zeros((3, 2), np.float32), None, None, "nameless")
    with pytest.raises(InputError, match="labels to measure accuracy with, nameless has none"):
        accuracies_of(Threshold(), data, 0.1, 0, ENGINE)


# ---- what training with each recipe comes to ---------------------------------------------------------------------

QUICK = {
    "gaussian": "gaussian",
    "stability": "stability",
    "smoothadv": "smoothadv:copies=2,steps=2,radius=0.25",
    "macer": "macer:copies=4,weight=1",
    "consistency": "consistency:weight=2",
    "smoothmix": "smoothmix:copies=2,steps=2,weight=1",
    "cat-rs": "cat-rs:copies=2,steps=2,radius=0.25",
    "denoiser": "denoiser",
    "lipschitz-margin": "lipschitz-margin:margin=0.02",
    "dual": "dual:epsilon=0.05",
}


def digits() -> tuple[ArrayData, ArrayData]:
    whole, test = load_digits()
    return ArrayData(whole.inputs[:600], whole.labels[:600], whole.classes, whole.name), test


def settings(**changes) -> TrainSettings:
    chosen = {"sigma": 0.25, "epochs": 8, "batch_size": 32, "learning_rate": 0.05, "seed": 0, "device": "cpu"}
    return TrainSettings(**{**chosen, **changes})


def denoiser() -> nn.Module:
    layers = (nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Unflatten(1, (1, 8, 8)))
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def undefended() -> nn.Module:
    """A classifier with batch statistics, trained without noise."""
    model = seeded(lambda: nn.Sequential(nn.BatchNorm2d(1), small_cnn()), 0)
    return train(model, digits()[0], settings(sigma=0.0))


def test_every_recipe_is_tried():
    assert QUICK.keys() == RECIPES.keys()


@pytest.mark.parametrize("recipe", [name for name in QUICK if name not in ("denoiser", "dual")])  # dual takes a minute
def test_a_short_training_clearly_raises_the_accuracy_under_noise(recipe):
    few, test = digits()
    model = seeded(small_cnn, 0)
    before = accuracies_of(model, test, 0.25, 1, ENGINE)[1]
    losses = []
    train(model, few, settings(recipe=QUICK[recipe]), on_epoch=lambda _, progress: losses.append(progress.loss))
    assert before < 0.2
    assert accuracies_of(model, test, 0.25, 1, ENGINE)[1] > 0.6
    assert np.isfinite(losses).all()


def test_a_denoiser_raises_the_accuracy_under_noise_of_a_classifier_that_stays_as_it_is(undefended):
    few, test = digits()
    model = nn.Sequential(seeded(denoiser, 0), copy.deepcopy(undefended).train())
    before = copy.deepcopy(model.state_dict())
    at_first, alone = (accuracies_of(one, test, 0.5, 1, ENGINE)[1] for one in (model, undefended))
    modes = set()
    model[1].register_forward_hook(lambda module, *_: modes.add(any(part.training for part in module.modules())))
    train(model, few, settings(sigma=0.5, recipe="denoiser", learning_rate=0.5, epochs=15))
    assert modes == {False}
    changed = {name.partition(".")[0] for name, tensor in model.state_dict().items() if not tensor.equal(before[name])}
    assert changed == {"0"}
    assert all(not tensor.equal(before[name]) for name, tensor in model.state_dict().items() if name.startswith("0."))
    assert accuracies_of(model, test, 0.5, 1, ENGINE)[1] > max(at_first + 0.3, alone + 0.06)


def test_a_denoiser_learns_from_the_classifiers_own_answers_and_from_no_labels(undefended):
    few, _ = digits()
    model = nn.Sequential(seeded(denoiser, 0), copy.deepcopy(undefended))
    x, y = torch.from_numpy(few.inputs[:50]).float() / 255, torch.from_numpy(few.labels[:50])
    found = [
        Denoiser(mse=0.0).losses(
            model, x, labels, Draws(0.25, torch.Generator().manual_seed(0), torch.arange(50), 50), 1.0
        )
        for labels in (y, (y + 1) % 10)
    ]
    assert torch.equal(found[0].values, found[1].values)
    assert not torch.equal(found[0].accuracy, found[1].accuracy)
    with torch.no_grad():
        restored = model[0](x + Draws(0.25, torch.Generator().manual_seed(0), torch.arange(50), 50).noises(x)[0])
        expected = functional.cross_entropy(undefended(restored), undefended(x).argmax(1), reduction="none")
    torch.testing.assert_close(found[0].values, 0.01 * expected)


@pytest.mark.parametrize("recipe", [name for name in QUICK if name != "denoiser"])
def test_every_recipe_trains_in_mixed_precision_too(recipe):
    losses = []
    train(
        seeded(lambda: mlp(64, 16), 0),
        digits()[0],
        settings(recipe=QUICK[recipe], precision="bf16", epochs=3),
        on_epoch=lambda _, progress: losses.append(progress.loss),
    )
    assert losses[-1] < losses[0]

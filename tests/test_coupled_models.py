"""No model whose draws influence each other is certified, and no honest one is refused; both with default settings."""

import numpy as np
import pytest
import torch
from torch import nn

from coupled_models import CLASSES, coupled_models, honest_models, plain, random_coupled_models, random_honest_models
from smoothcert import Smoothed, tuning
from smoothcert.errors import InputError, ModelError
from smoothcert.models.classifier import Foreign

IMAGES = np.random.default_rng(0).integers(60, 160, (2, 3, 4, 4)).astype(np.uint8)
DARK, BRIGHT = np.full((3, 4, 4), 20, np.uint8), np.full((3, 4, 4), 235, np.uint8)


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch):
    """The batch size is measured as always, but not for long."""
    monkeypatch.setattr(tuning, "_SECONDS", 0.02)


def smoothed(model, **settings):
    return Smoothed(model, 0.25, CLASSES, **{"seed": 0, **settings})


def test_the_families_are_large():
    assert len(coupled_models()) + len(random_coupled_models()) >= 40
    assert len(honest_models()) + len(random_honest_models()) >= 40


@pytest.mark.parametrize("name", coupled_models())
def test_a_coupled_model_is_not_certified(name):
    with pytest.raises(ModelError):
        smoothed(coupled_models()[name]()).certify(IMAGES)


@pytest.mark.parametrize("name", coupled_models())
def test_a_coupled_model_does_not_predict(name):
    with pytest.raises(ModelError):
        smoothed(coupled_models()[name]()).predict(IMAGES)


@pytest.mark.parametrize("name", random_coupled_models())
def test_a_coupled_random_model_is_not_certified(name):
    with pytest.raises(ModelError, match="influence each other"):
        smoothed(random_coupled_models()[name](), allow_random=True).certify(IMAGES)


@pytest.mark.parametrize("name", honest_models())
def test_an_honest_model_is_not_refused(name):
    classes = {"a thousand classes": 1000, "two classes": 2}.get(name, CLASSES)
    model = honest_models()[name]()
    certificates = Smoothed(model, 0.25, classes, seed=0).certify(IMAGES)
    assert all(certificate.draws > 0 for certificate in certificates)


@pytest.mark.parametrize("name", random_honest_models())
def test_an_honest_random_model_is_not_refused(name):
    certificates = smoothed(random_honest_models()[name](), allow_random=True).certify(IMAGES)
    assert all(certificate.draws > 0 for certificate in certificates)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_model_of_one_fixed_batch_size_is_not_refused(size):
    network = plain()
    assert smoothed(Foreign(network, batch_size=size)).certify(IMAGES[0]).draws > 0


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_what_other_runtimes_run_is_not_refused(backend, precision):
    calibration = np.concatenate([IMAGES, IMAGES[:, :, ::-1]]) if precision == "int8" else None
    g = smoothed(plain(), plan=backend, precision=precision, calibration=calibration, batch_size=64)
    assert all(certificate.draws > 0 for certificate in g.certify(IMAGES))


class CoupledWhereBright(nn.Module):
    """Batch statistics for bright inputs only: a check of the first input does not see it."""

    def __init__(self):
        super().__init__()
        self.network = plain()

    def forward(self, batch):
        bright = (batch.flatten(1).mean(1) > 0.6) & (batch.flatten(1).mean(1) < 1.2)
        scores = self.network(batch)
        return torch.where(bright[:, None], scores.roll(1, 0).flip(1), scores)


def test_a_known_label_that_is_no_class_is_refused_before_anything_is_drawn():
    drawn = []
    with pytest.raises(InputError, match="Nothing was drawn"):
        smoothed(plain(), on_draws=drawn.append).certify(IMAGES[0], radii=[0.0, 0.1], label=CLASSES)
    assert sum(drawn) == 0


def test_every_input_is_checked_and_the_message_names_it():
    g = smoothed(CoupledWhereBright())
    g.certify(DARK, index=3)
    with pytest.raises(ModelError, match=r"index:4 .*influence each other"):
        g.certify(np.stack([DARK, BRIGHT]), index=3)


def test_labels_are_checked_for_every_input_too():
    def model(batch):
        """For bright inputs, whether a row is brighter than its neighbour."""
        brightness = batch.flatten(1).mean(1)
        bright = (brightness > 0.8) & (brightness < 1.05)
        return torch.where(bright, (brightness > brightness.roll(1)).long(), 2)

    g = smoothed(model)
    g.certify(DARK)
    with pytest.raises(ModelError, match="influence each other"):
        g.certify(BRIGHT)

"""One small network, trained for real, that the tests of model sources export to every kind of file."""

import numpy as np
import pytest

from networks import BLUEPRINT
from smoothcert.data.digits import load_digits
from smoothcert.models.architectures import small_cnn
from smoothcert.training.loop import seeded, train
from smoothcert.training.settings import TrainSettings


@pytest.fixture(scope="session")
def digits():
    return load_digits()


@pytest.fixture(scope="session")
def network(digits):
    training, _ = digits
    settings = TrainSettings(sigma=0.25, epochs=8, batch_size=64, learning_rate=0.05, seed=0)
    return train(seeded(small_cnn, 0), training, settings)


@pytest.fixture
def blueprint():
    return BLUEPRINT


@pytest.fixture(scope="session")
def inputs(digits):
    """Three test images whose votes are divided, so that equal votes mean something."""
    return digits[1].inputs[np.array([4, 7, 12])]

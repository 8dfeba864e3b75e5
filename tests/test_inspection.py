import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import models
from smoothcert.data import ArrayData
from smoothcert.inspection import Share, classify, inspect_model
from smoothcert.models.classifier import Classifier


class Brightest(nn.Module):
    """The class is the brightest channel; on another scale than `scale`, all scores but the first are lost."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        means = x.mean(dim=(2, 3)) / self.scale
        usable = ((means > -0.2) & (means < 1.2)).all(dim=1, keepdim=True) & (means.amax(1, keepdim=True) > 0.05)
        return torch.where(usable, means, torch.tensor([1.0, 0.0, 0.0]))


def images(count=60, side=4):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=count)
    pixels = rng.integers(60, 120, (count, 3, side, side)).astype(np.uint8)
    pixels[np.arange(count), labels] += 40
    return ArrayData(pixels, labels.astype(np.int64), ("red", "green", "blue"), "colours")


def look(model, data=None, **settings):
    data = data or images()
    given = {"sigma": 0.1, "seconds": 0.2, "n_max": 1_000, **settings}
    return inspect_model(models.load(model, input_shape=data.shape), data, range(len(data)), **given)


def test_accuracies_are_those_of_the_model_and_the_noise():
    found = look(Brightest(), sigma=0.4)
    assert found.clean.value == 1.0
    assert found.noisy.of == found.copies * 60
    # The noise of a channel's mean has standard deviation 0.4/4, the colours differ by 40/255 and a little at random.
    assert 0.7 < found.noisy.value < 0.95
    assert found.throughput > 0
    assert found.warnings == ()


def test_the_papers_procedure_takes_its_fixed_number_of_draws_and_the_default_fewer():
    default, paper = look(Brightest(), sigma=0.4, n_max=20_000, total=7).estimates
    assert (default.procedure, paper.procedure) == ("default", "paper")
    assert paper.draws_per_input == 20_100
    assert default.draws_per_input < 20_100
    assert paper.seconds / default.seconds == pytest.approx(paper.draws_per_input / default.draws_per_input)
    assert paper.inputs == 7


def test_a_model_trained_on_other_pixels_is_found_out():
    found = look(Brightest(scale=255.0))
    assert found.clean.value < 0.6
    name, share, mean, std = found.better_scaling
    assert (name, share.value, mean) == ("0 to 255", 1.0, (0.0, 0.0, 0.0))
    assert "--mean 0 0 0 --std 0.00392157" in found.warnings[0]
    model = models.load(Brightest(255.0), mean=mean, std=std)
    fixed = inspect_model(model, images(), range(60), sigma=0.1, seconds=0.1, n_max=100)
    assert fixed.clean.value == 1.0
    assert fixed.warnings == ()


def test_data_without_labels_has_no_accuracy():
    data = images()
    found = look(Brightest(), ArrayData(data.inputs, None, None, "unlabelled"))
    assert found.clean is found.noisy is None
    assert found.estimates[1].draws_per_input == 1_100
    assert found.to_dict()["clean_accuracy"] is None


@pytest.mark.parametrize(
    ("names", "labels", "said"),
    [
        (("green", "red", "blue"), None, "Class 0 of the data, 'green', is number 1 of the model"),
        (("red", "green", "blue", "grey"), None, "names 4 classes, the model has 3"),
        (None, [7] * 60, "labels up to 7, the model 3 classes only"),
        (None, [2, 1, 0] * 20, "hardly better than guessing"),
    ],
)
def test_classes_that_do_not_fit_are_a_warning(names, labels, said):
    data = images()
    labels = data.labels if labels is None else np.array(labels)
    model = Classifier(network=Brightest(), source="here", kind="module", classes=("red", "green", "blue"))
    found = inspect_model(
        model, ArrayData(data.inputs, labels, names, "colours"), range(60), sigma=0.1, seconds=0.1, n_max=100
    )
    assert any(said in warning for warning in found.warnings), found.warnings


def test_other_noise_than_in_training_is_a_warning():
    model = Classifier(network=Brightest(), source="here", kind="module", sigma=0.5)
    found = inspect_model(model, images(), range(60), sigma=0.25, seconds=0.1, n_max=100)
    assert found.warnings == ("The model was trained with noise σ = 0.5, not 0.25.",)


def test_scores_that_are_nan_are_no_class():
    def network(x):
        scores = x.mean(dim=(2, 3))
        scores[0] = float("nan")
        return scores

    labels = classify(network, images().inputs[:5], torch.device("cpu"))
    assert labels[0] == -1
    np.testing.assert_array_equal(labels[1:], images().labels[1:5])


def test_shares_come_with_their_exact_interval():
    """Clopper and Pearson's for 9 of 10, from their relation to the binomial distribution."""
    from scipy.stats import binom

    low, high = Share(9, 10).interval
    assert binom.sf(8, 10, low) == pytest.approx(0.025)
    assert binom.cdf(9, 10, high) == pytest.approx(0.025)

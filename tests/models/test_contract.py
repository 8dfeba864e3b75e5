import pytest
import torch
from torch import nn

from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.contract import check_contract, evaluating

PROBES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network(*extra):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 6, 3), *extra, nn.Flatten(), nn.Linear(216, 10))


class DynamicQuantisation(nn.Module):
    """Eight-bit activations scaled by the batch's largest value, as dynamic quantisation does."""

    def forward(self, x):
        scale = x.abs().max() / 127
        return (x / scale).round() * scale


def check(model, **settings):
    return check_contract(model, PROBES, **{"num_classes": None, **settings}).num_classes


def test_a_sound_network_passes_and_tells_its_classes():
    assert check(network(nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))) == 10


def test_labels_pass_when_the_number_of_classes_is_given():
    model = network()
    assert check(lambda batch: model(batch).argmax(1), num_classes=10) == 10
    with pytest.raises(ModelError, match="num_classes"):
        check(lambda batch: model(batch).argmax(1))


@pytest.mark.parametrize("classes", [9, 11])
def test_another_number_of_columns_is_refused(classes):
    with pytest.raises(ModelError, match="10 columns"):
        check(network(), num_classes=classes)


@pytest.mark.parametrize(
    "output",
    [
        lambda batch: torch.zeros(len(batch)),
        lambda batch: (torch.zeros(len(batch), 10),),
        lambda batch: {"logits": torch.zeros(len(batch), 10)},
        lambda batch: torch.zeros(len(batch), 10).numpy(),
        lambda batch: torch.zeros(len(batch), 10, 1),
        lambda batch: torch.zeros(len(batch), 1),
        lambda batch: torch.zeros(len(batch) + 1, 10),
        lambda batch: torch.zeros(len(batch), 10, dtype=torch.complex64),
        lambda batch: batch.sum(),
        lambda batch: torch.full((len(batch), 10), float("nan")),
        lambda batch: batch.no_such_thing,
    ],
)
def test_an_output_of_another_form_is_refused(output):
    with pytest.raises(ModelError):
        check(output)


def test_labels_beyond_the_last_class_are_refused():
    with pytest.raises(ModelError, match="below num_classes=10"):
        check(lambda batch: torch.full((len(batch),), 10), num_classes=10)


def test_one_class_is_no_classifier():
    with pytest.raises(ConfigError, match="num_classes"):
        check(network(), num_classes=1)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(6, track_running_stats=False),
        DynamicQuantisation(),
        nn.Sequential(DynamicQuantisation(), nn.ReLU()),
    ],
)
def test_layers_through_which_samples_influence_each_other_are_refused(layer):
    with pytest.raises(ModelError, match="influence each other"):
        check(network(layer))


def test_label_models_through_which_samples_influence_each_other_are_refused():
    model = network(nn.BatchNorm2d(6, track_running_stats=False))
    with pytest.raises(ModelError, match="influence each other"):
        check(lambda batch: (model(batch) * 50).argmax(1), num_classes=10)


def test_a_random_model_must_be_declared():
    def model(batch):
        return torch.rand(len(batch), 10)

    with pytest.raises(ModelError, match="allow_random"):
        check(model)
    assert check(model, allow_random=True) == 10


def test_some_nan_scores_are_no_breach():
    """They are counted as votes for no class later on."""
    model = network()

    def sometimes(batch):
        scores = model(batch)
        scores[batch.flatten(1)[:, 0] > 0.5] = torch.nan
        return scores

    assert check(sometimes) == 10


def test_every_part_gets_its_own_mode_back():
    model = network(nn.Dropout(0.5), nn.BatchNorm2d(6))
    model.train()
    model[1].eval()
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model] == [True, False, True, True, True]


def test_the_mode_is_restored_after_an_error():
    model = network().train()
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training

"""Lipschitz-margin training against its formula by hand, and what it does to certified radii."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.baselines.lipschitz import lipschitz_radii, margin_slopes
from smoothcert.baselines.network import read_network
from smoothcert.baselines.spectral import norm_estimate
from smoothcert.data.dataset import ArrayData
from smoothcert.data.digits import load_digits
from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.architectures import mlp, small_cnn
from smoothcert.models.layers import Normalize
from smoothcert.training.loop import Trainer, seeded, train
from smoothcert.training.recipes import RECIPES, Draws
from smoothcert.training.recipes.lipschitz_margin import LipschitzMargin
from smoothcert.training.settings import TrainSettings

COUNT, CLASSES = 6, 3


class Doubles(Draws):
    def noises(self, x, copies=1):
        return super().noises(x, copies).double()


def draws(sigma: float = 0.0, count: int = COUNT) -> Draws:
    return Doubles(sigma, torch.Generator().manual_seed(7), torch.arange(count), count)


def classifier() -> nn.Sequential:
    return seeded(lambda: mlp(4, 5, classes=CLASSES), 3).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(COUNT, 4, generator=torch.Generator().manual_seed(1)).double()
    return x, torch.arange(COUNT) % CLASSES


def formula(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, margin: float) -> np.ndarray:
    """−log softmax of the raised scores, input by input, with norms by singular values."""
    first, last = (model[i].weight.detach().numpy() for i in (1, 3))
    slope = np.linalg.svd(first, compute_uv=False)[0]
    values = []
    for scores, label in zip(model(x).tolist(), y.tolist(), strict=True):
        raised = [
            score + margin * slope * math.dist(last[label], last[j]) * (j != label) for j, score in enumerate(scores)
        ]
        values.append(math.log(sum(math.exp(one) for one in raised)) - raised[label])
    return np.array(values)


# Many steps: then power iteration has the norm to all digits, and the formula needs none.
EXACT = LipschitzMargin(margin=0.4, steps=500)


@pytest.mark.parametrize("strength", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_the_losses_are_those_of_the_formula(sigma, strength):
    (x, y), model = batch(), classifier()
    noisy = x + draws(sigma).noises(x)[0]
    found = EXACT.losses(model, x, y, draws(sigma), strength)
    np.testing.assert_allclose(found.values.detach().numpy(), formula(model, noisy, y, 0.4 * strength), rtol=1e-9)
    assert torch.equal(found.accuracy, (model(noisy).argmax(1) == y).float())


def test_the_gradients_are_those_of_the_formula_by_finite_differences():
    (x, y), model = batch(), classifier()
    EXACT.losses(model, x, y, draws(), 1.0).values.mean().backward()
    for parameter in model.parameters():
        numbers = parameter.detach().view(-1)
        for place in range(len(numbers)):
            before, means = numbers[place].item(), []
            for change in (1e-5, -1e-5):
                numbers[place] = before + change
                means.append(formula(model, x, y, 0.4).mean())
            numbers[place] = before
            slope = parameter.grad.view(-1)[place].item()
            assert slope == pytest.approx((means[0] - means[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_a_margin_of_0_is_plain_cross_entropy():
    (x, y), model = batch(), classifier()
    found = LipschitzMargin(margin=0.0).losses(model, x, y, draws(), 1.0).values
    torch.testing.assert_close(found, nn.functional.cross_entropy(model(x), y, reduction="none"))


def test_more_steps_of_power_iteration_raise_the_estimate_and_with_it_the_loss():
    (x, y), model = batch(), classifier()
    losses = [LipschitzMargin(steps=n).losses(model, x, y, draws(), 1.0).values.sum().item() for n in (1, 3, 300)]
    assert losses[0] < losses[1] <= losses[2]


def test_where_the_label_still_leads_the_input_is_certified_at_the_margin():
    """A loss below log 2 means that the raised scores are largest for the label, so that the radius is the margin."""
    data, _ = load_digits()
    x, y = torch.from_numpy(data.inputs[:300]).double() / 255, torch.from_numpy(data.labels[:300])
    chosen = settings(recipe="lipschitz-margin:margin=0.3", learning_rate=0.2)
    model = train(seeded(lambda: mlp(64, 32), 0), few()[0], chosen).double()
    losses = LipschitzMargin(margin=0.3, steps=300).losses(model, x, y, draws(count=300), 1.0).values
    with torch.no_grad():
        labels, radii = lipschitz_radii(read_network(model, (1, 8, 8)), x)
    sure, right = losses < math.log(2), labels == y
    assert 100 < sure.sum() < 250
    assert right[sure].all()
    assert (radii[sure] > 0.3).all()
    assert (radii > 0.3).sum() < 290  # else that says nothing


def test_warms_up_linearly():
    recipe = LipschitzMargin(warmup=2)
    assert [recipe.strength(epoch, 40) for epoch in (0, 0.5, 2, 30)] == [0.0, 0.25, 1.0, 1.0]


# ---- training ----------------------------------------------------------------------------------------------------


def few() -> tuple[ArrayData, torch.Tensor, torch.Tensor]:
    whole, test = load_digits()
    data = ArrayData(whole.inputs[:600], whole.labels[:600], None, "digits")
    return data, torch.from_numpy(test.inputs[:300]).double() / 255, torch.from_numpy(test.labels[:300])


def settings(**changes) -> TrainSettings:
    chosen = {"sigma": 0.0, "epochs": 4, "batch_size": 32, "learning_rate": 0.05, "seed": 0, "device": "cpu"}
    return TrainSettings(**{**chosen, **changes})


def trained(recipe: str) -> nn.Module:
    return train(seeded(small_cnn, 0), few()[0], settings(recipe=recipe, epochs=8))


def certified(model: nn.Module, radius: float) -> float:
    _, x, y = few()
    labels, radii = lipschitz_radii(read_network(copy.deepcopy(model).double(), (1, 8, 8)), x)
    return ((labels == y) & (radii >= radius)).double().mean().item()


def test_raises_certified_accuracy_far_above_plain_training():
    plain, robust = (certified(trained(one), 0.2) for one in ("gaussian", "lipschitz-margin:margin=0.1"))
    assert plain < 0.05
    assert robust > 0.4


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Normalize([0.3], [0.5]),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_trains_networks_with_batch_norm_and_normalisation_in_either_precision(precision):
    losses = []
    train(
        seeded(Scaled, 0),
        few()[0],
        settings(recipe="lipschitz-margin:margin=0.1", sigma=0.1, precision=precision),
        on_epoch=lambda _, progress: losses.append(progress.loss),
    )
    assert losses[-1] < 0.7 * losses[0]


def test_batch_norm_counts_by_its_running_statistics_and_stays_in_training_mode():
    model, (_, x, y) = seeded(Scaled, 0).double(), few()
    recipe, scores = LipschitzMargin(margin=0.5), []
    model.register_forward_hook(lambda *given: scores.append(given[2].detach()))
    found = recipe.losses(model, x, y, draws(count=300), 1.0).values
    assert all(part.training for part in model.modules())
    slopes = margin_slopes(read_network(model.eval(), (1, 8, 8)), norm_estimate)
    raised = scores[0] + 0.5 * slopes[y] * (torch.arange(10) != y[:, None])  # the first call is in training mode
    torch.testing.assert_close(found, nn.functional.cross_entropy(raised, y, reduction="none"))


def test_going_on_from_a_state_ends_with_the_same_weights_to_the_bit():
    chosen = settings(recipe="lipschitz-margin", sigma=0.1, epochs=2, batch_size=100)
    whole = Trainer(seeded(Scaled, 0), few()[0], chosen)
    for _ in range(5):
        whole.advance()
    tensors, progress = whole.state()
    resumed = Trainer(seeded(Scaled, 0), few()[0], chosen)
    resumed.restore({name: one.clone() for name, one in tensors.items()}, dict(progress))
    while whole.progress.step < whole.steps:
        assert resumed.advance() == whole.advance()
    for one, other in zip(whole.finish().state_dict().values(), resumed.finish().state_dict().values(), strict=True):
        assert torch.equal(one, other)


# ---- what cannot be ----------------------------------------------------------------------------------------------


def test_a_network_of_other_layers_is_refused_by_name():
    x, y = batch()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    with pytest.raises(ModelError, match="Tanh"):
        LipschitzMargin().losses(model, x, y, draws(), 1.0)


def test_compiled_networks_are_refused_before_the_training_and_in_it():
    with pytest.raises(ConfigError, match="lipschitz-margin:steps=3 cannot be compiled: it bounds layer after layer"):
        settings(recipe="lipschitz-margin:steps=3", compile=True).check()
    (x, y), compiled = batch(), torch.compile(classifier(), backend="eager")
    with pytest.raises(ConfigError, match=r"Expected the network itself.*got OptimizedModule"):
        LipschitzMargin().losses(compiled, x, y, draws(), 1.0)


@pytest.mark.parametrize("text", ["margin=-1", "margin=nan", "steps=0", "warmup=-1"])
def test_settings_out_of_range_are_refused(text):
    with pytest.raises(ConfigError, match=f"Expected `{text.partition('=')[0]}` to be"):
        RECIPES.parse(f"lipschitz-margin:{text}")

"""Networks for deterministic certificates: their shapes, their slopes, and weights that outlast saving and copying."""

import copy
import sys

import pytest
import torch
from torch import nn

from smoothcert import data, models
from smoothcert.baselines.lipschitz import lipschitz_radii, margin_slopes
from smoothcert.baselines.network import read_network
from smoothcert.data.dataset import ArrayData
from smoothcert.errors import ConfigError, MissingExtraError, ModelError
from smoothcert.models.architectures import build
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.models.contract import check_contract
from smoothcert.training.loop import Trainer, seeded, train
from smoothcert.training.settings import TrainSettings

SHAPE = (1, 8, 8)


def few() -> ArrayData:
    whole = data.load("digits", split="train")
    return ArrayData(whole.inputs[:500], whole.labels[:500], whole.classes, whole.name)


def settings(**changes) -> TrainSettings:
    chosen = {"sigma": 0.0, "epochs": 3, "batch_size": 25, "learning_rate": 0.1, "seed": 0, "device": "cpu"}
    return TrainSettings(**{**chosen, **changes})


def fresh(name: str = "lipschitz-cnn") -> nn.Module:
    return seeded(lambda: build(name, classes=10, input_shape=SHAPE), 0)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return train(fresh(), few(), settings())


def inputs(count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    test = data.load("digits", split="test")
    return torch.from_numpy(test.inputs[:count]).float() / 255, torch.from_numpy(test.labels[:count])


def test_wong_cnn_has_the_layers_of_the_paper():
    seen = []
    model = build("wong-cnn", classes=10)
    for part in model:
        part.register_forward_hook(lambda part, _, y: seen.append((type(part).__name__, *y.shape[1:])))
    model(torch.rand(1, 1, 28, 28))
    units = [("ReLU", 16, 14, 14), ("ReLU", 32, 7, 7), ("ReLU", 100), ("Linear", 10)]
    assert [one for one in seen if one in units] == units
    assert sum(p.numel() for p in model.parameters()) == 16 * 17 + 32 * (16 * 16 + 1) + 100 * 1569 + 1010


@pytest.mark.parametrize("name", ["wong-cnn", "lipschitz-cnn"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 12)])
def test_takes_images_of_any_channels_with_sides_that_can_be_halved_twice(name, shape):
    model = build(name, classes=4, input_shape=shape).eval()
    assert model(torch.rand(2, *shape)).shape == (2, 4)
    assert read_network(model, shape).nodes[-1].shape == (4,)
    with pytest.raises(ConfigError, match="multiples of 4"):
        build(name, classes=4, input_shape=(1, 30, 28))


@pytest.mark.parametrize("state", ["fresh", "trained"])
def test_no_layer_but_the_last_brings_inputs_apart(state, trained):
    model = copy.deepcopy(fresh().eval() if state == "fresh" else trained).double()
    for part in (one for one in model[:-1] if hasattr(one, "weight")):
        matrix = part.weight.detach().flatten(1)
        windows = 2.0 if isinstance(part, nn.Conv2d) else 1.0  # each pixel is in four windows: √4
        singular = windows * torch.linalg.svdvals(matrix)
        assert singular.max() < 1.01
        assert singular.min() > 0.7  # distances are kept as well
    torch.testing.assert_close(model[-1].weight.norm(dim=1), torch.full((10,), 4.0).double())
    slopes = margin_slopes(read_network(model, SHAPE)).detach()
    assert (slopes <= 8 * 1.01**3).all()


def test_slopes_that_are_found_stay_below_the_bound(trained):
    x, _ = inputs(50)
    model = copy.deepcopy(trained).double()
    slopes = margin_slopes(read_network(model, SHAPE)).detach()
    point = x.double().requires_grad_()
    scores = model(point)
    for first, second in [(0, 1), (3, 8), (9, 4)]:
        (gradient,) = torch.autograd.grad((scores[:, first] - scores[:, second]).sum(), point, retain_graph=True)
        steepest = gradient.flatten(1).norm(dim=1).max()
        assert 0.2 * slopes[first, second] < steepest <= slopes[first, second]


def test_training_learns_and_certifies_more_than_a_plain_network(trained):
    x, y = inputs()
    certified = []
    for model in (train(fresh("wong-cnn"), few(), settings()), trained):
        network = read_network(copy.deepcopy(model).double().requires_grad_(False), SHAPE)
        labels, radii = lipschitz_radii(network, x.double())
        certified.append(((labels == y) & (radii > 0.2)).double().mean().item())
    assert (trained(x).argmax(1) == y).double().mean() > 0.85
    assert certified[1] > max(0.5, certified[0] + 0.3)


def test_every_call_in_eval_mode_gives_the_same_scores_and_changes_nothing(trained):
    x, _ = inputs(8)
    before = copy.deepcopy(trained.state_dict())
    first = trained(x)
    assert torch.equal(first, trained(x))
    assert check_contract(trained, x, num_classes=10).num_classes == 10
    assert all(torch.equal(one, before[name]) for name, one in trained.state_dict().items())


def test_a_copy_in_double_precision_is_the_same_network(trained):
    x, _ = inputs(20)
    double = copy.deepcopy(trained).double()
    assert all(one.dtype == torch.float64 for one in double.state_dict().values())
    torch.testing.assert_close(double(x.double()), trained(x).double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(read_network(double, SHAPE)(x.double()), double(x.double()))


def test_a_checkpoint_gives_the_same_scores_again(trained, tmp_path):
    x, _ = inputs(20)
    blueprint = Blueprint(architecture="lipschitz-cnn", num_classes=10, input_shape=SHAPE)
    save_checkpoint(tmp_path / "m.safetensors", trained, blueprint)
    loaded = models.load(tmp_path / "m.safetensors").network
    assert torch.equal(loaded(x), trained(x))
    assert torch.equal(loaded(x), trained(x))


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}, {"recipe": "lipschitz-margin"}, {"precision": "bf16"}])
def test_going_on_from_a_state_ends_with_the_same_weights_to_the_bit(changes):
    chosen = settings(sigma=0.1, batch_size=100, epochs=2, **changes)
    whole = Trainer(fresh(), few(), chosen)
    for _ in range(4):
        whole.advance()
    tensors, progress = whole.state()
    resumed = Trainer(fresh(), few(), chosen)
    resumed.restore({name: one.clone() for name, one in tensors.items()}, dict(progress))
    while whole.progress.step < whole.steps:
        assert resumed.advance() == whole.advance()
    found = [one.finish().state_dict() for one in (whole, resumed)]
    assert all(one.dtype == torch.float32 for one in found[0].values())
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())


def test_lipschitz_margin_trains_it_too():
    losses = []
    chosen = settings(recipe="lipschitz-margin:margin=0.2")
    train(fresh(), few(), chosen, on_epoch=lambda _, progress: losses.append(progress.loss))
    assert losses[-1] < 0.7 * losses[0]


def test_without_deel_torchlip_only_this_network_is_missing(monkeypatch, tmp_path, trained):
    blueprint = Blueprint(architecture="lipschitz-cnn", num_classes=10, input_shape=SHAPE)
    save_checkpoint(tmp_path / "m.safetensors", trained, blueprint)
    for name in ("deel", "deel.torchlip", "deel.torchlip.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    assert build("wong-cnn", classes=10)
    with pytest.raises(MissingExtraError, match=r"deel-torchlip is needed.*smoothcert\[lipschitz\]"):
        build("lipschitz-cnn", classes=10)
    with pytest.raises(ModelError, match=r"smoothcert\[lipschitz\]"):
        models.load(tmp_path / "m.safetensors")

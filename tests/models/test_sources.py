"""The same weights through every kind of source must give the same votes; other models must certify too."""

import re
import sys
import urllib.request

import numpy as np
import pytest
import torch
from torch import nn

from networks import BLUEPRINT, votes
from smoothcert import Normalize, Smoothed, models
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelError
from smoothcert.models.checkpoints import save_checkpoint
from smoothcert.models.classifier import Classifier

EXPORTED = {0: torch.export.Dim("batch")}


@pytest.fixture(scope="module")
def expected(network, inputs):
    counts = votes(network, inputs)
    assert (np.sort(counts, axis=1)[:, -2] > 10).any(), "votes that all agree would prove nothing"
    return counts


def onnx(network, path, *, batch=2, dynamic=True):
    shapes = (EXPORTED,) if dynamic else None
    example = (torch.rand(batch, 1, 8, 8),)
    torch.onnx.export(network, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return path


def pt2(network, path, *, batch=2, dynamic=True):
    shapes = (EXPORTED,) if dynamic else None
    torch.export.save(torch.export.export(network, (torch.rand(batch, 1, 8, 8),), dynamic_shapes=shapes), path)
    return path


def checkpoint(network, path):
    save_checkpoint(path, network, BLUEPRINT)
    return path


def saved(content, path):
    torch.save(content, path)
    return path


def code(path):
    path.write_text(
        "from smoothcert.models.architectures import small_cnn\nimport torch\n"
        "def make():\n"
        "    network = small_cnn()\n"
        f"    network.load_state_dict(torch.load({str(path.with_suffix('.pt'))!r}))\n"
        "    return network\n"
    )
    return f"{path}:make"


MAKERS = {
    "checkpoint": lambda n, d: checkpoint(n, d / "m.safetensors"),
    "folder": lambda n, d: checkpoint(n, d / "model.safetensors").parent,
    "onnx": lambda n, d: onnx(n, d / "m.onnx"),
    "onnx, batches of 3": lambda n, d: onnx(n, d / "m.onnx", batch=3, dynamic=False),
    "torch.export": lambda n, d: pt2(n, d / "m.pt2"),
    "torch.export, batches of 5": lambda n, d: pt2(n, d / "m.pt2", batch=5, dynamic=False),
    "a file of code": lambda n, d: (saved(n.state_dict(), d / "own_code.pt"), code(d / "own_code.py"))[1],
    "module": lambda n, _: n,
    "function": lambda n, _: lambda batch: n(batch).detach().numpy(),
    "ensemble of itself": lambda n, d: [n, checkpoint(n, d / "m.safetensors"), onnx(n, d / "m.onnx")],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_weights_give_the_same_votes_through_every_source(kind, network, inputs, expected, tmp_path):
    loaded = models.load(MAKERS[kind](network, tmp_path))
    found = votes(loaded, inputs)
    # Another summation order may turn a draw that is all but tied.
    assert np.abs(found - expected).max() <= 3
    assert loaded.weights_hash is not None or kind == "function"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_ensemble_by_name_is_the_mean_of_scores(network, tmp_path):
    other = seeded_copy(network)
    first, second = checkpoint(network, tmp_path / "a.safetensors"), onnx(other, tmp_path / "b.onnx")
    ensemble = models.load(f"ensemble:{first},{second}")
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(ensemble(x), (network(x) + other(x)) / 2, atol=1e-5, rtol=1e-5)
    assert ensemble.num_classes == 10
    assert ensemble.classes == BLUEPRINT.classes
    assert ensemble.input_shape == (1, 8, 8)


def seeded_copy(network):
    import copy

    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.7)
    return other


def test_members_of_an_ensemble_must_agree_on_their_classes(network, tmp_path):
    first = checkpoint(network, tmp_path / "a.safetensors")
    second = Classifier(network=nn.Flatten(), source="other", kind="module", num_classes=64)
    with pytest.raises(ModelError, match="one num_classes in an ensemble, got 10 and 64"):
        models.load([first, second])


def test_labels_have_no_mean(inputs):
    labels = models.load([lambda batch: batch.flatten(1).argmax(1)], num_classes=64)
    with pytest.raises(ModelError, match="scores"):
        votes(labels, inputs)


def test_what_a_checkpoint_knows_comes_with_it(network, tmp_path):
    loaded = models.load(checkpoint(network, tmp_path / "m.safetensors"))
    assert loaded.kind == "checkpoint"
    assert (loaded.input_shape, loaded.num_classes, loaded.sigma) == ((1, 8, 8), 10, 0.25)
    assert loaded.classes == BLUEPRINT.classes
    assert "none needed" in loaded.normalization
    with pytest.raises(InputError, match=r"\(1, 8, 8\)"):  # Smoothed takes the shape from it
        Smoothed(loaded, 0.25).certify(np.zeros((8, 8, 1), np.uint8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_declares_its_shape_and_classes(network, tmp_path):
    loaded = models.load(onnx(network, tmp_path / "m.onnx"))
    assert (loaded.input_shape, loaded.num_classes) == ((1, 8, 8), 10)


class LastChannels(nn.Module):
    """A network that takes images [H, W, C], as those of TensorFlow do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.permute(0, 3, 1, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_onnx_model_of_images_with_channels_last_is_fed_such(network, inputs, expected, tmp_path):
    torch.onnx.export(
        LastChannels(network).eval(),
        (torch.rand(2, 8, 8, 1),),
        tmp_path / "m.onnx",
        dynamo=True,
        dynamic_shapes=(EXPORTED,),
        verbose=False,
    )
    loaded = models.load(tmp_path / "m.onnx")
    assert loaded.input_shape == (1, 8, 8)
    assert any("[H, W, C]" in note for note in loaded.notes)
    assert np.abs(votes(loaded, inputs) - expected).max() <= 3


def test_weights_without_their_network_need_its_name(network, inputs, expected, tmp_path):
    path = saved(network.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(ModelError, match="--arch"):
        models.load(path)
    np.testing.assert_array_equal(votes(models.load(path, arch="small-cnn"), inputs), expected)
    with pytest.raises(ModelError, match="not those of this architecture"):
        models.load(path, arch="lenet")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("make", [torch.jit.trace, lambda network, _: torch.jit.script(network)])
def test_torchscript_is_refused_in_one_line_that_says_what_to_export_instead(network, tmp_path, make, unsafe):
    make(network, torch.rand(2, 1, 8, 8)).save(tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"m\.pt is a TorchScript module.*\(\.pt2\).*\(\.onnx\)") as refused:
        models.load(tmp_path / "m.pt", unsafe=unsafe, arch="small-cnn")
    assert "\n" not in str(refused.value)


def test_a_declared_normalisation_stands_in_front(network):
    loaded = models.load(network, mean=[0.1], std=[0.5])
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), network((x - 0.1) / 0.5))
    assert "(0.1)" in loaded.normalization
    with pytest.raises(ConfigError, match="normalises by itself"):
        models.load(nn.Sequential(Normalize([0.0], [1.0]), network), mean=[0.1], std=[0.5])
    with pytest.raises(ConfigError, match="together"):
        models.load(network, mean=[0.1])


def test_images_of_another_size_are_resized_inside(network, tmp_path):
    loaded = models.load(checkpoint(network, tmp_path / "m.safetensors")).fitted((1, 16, 16))
    assert loaded.input_shape == (1, 16, 16)
    assert loaded(torch.rand(2, 1, 16, 16)).shape == (2, 10)
    assert "16×16 are resized to 8×8" in loaded.notes[-1]
    with pytest.raises(InputError, match=r"\(1, 8, 8\).*got \(3, 8, 8\)"):
        models.load(tmp_path / "m.safetensors").fitted((3, 8, 8))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing-like-it", "Expected a model"),
        ("missing.onnx", "no file"),
        ("picture.jpeg", "Expected a model"),
        ("no_such_package_at_all:make", "Cannot import"),
        ("ensemble:missing.onnx,missing.pt", "no file"),
    ],
)
def test_what_is_no_model_is_a_clear_error(source, said):
    with pytest.raises(ModelError, match=said):
        models.load(source)


def test_a_folder_without_a_model_says_what_was_expected(tmp_path):
    with pytest.raises(ModelError, match=re.escape("model.safetensors (a training run)")):
        models.load(tmp_path)


@pytest.mark.parametrize(("library", "source"), [("timm", "timm:resnet18"), ("torchvision", "torchvision:resnet18")])
def test_a_library_that_is_not_installed_is_named(monkeypatch, library, source):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*pip install 'smoothcert\[{library}\]'"):
        models.load(source)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_runtime_missing_is_named(monkeypatch, network, tmp_path):
    path = onnx(network, tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"smoothcert\[onnx\]"):
        models.load(path)


def test_a_module_keeps_its_mode(network):
    model = nn.Sequential(network, nn.Dropout()).train()
    loaded = models.load(model)
    votes(loaded, np.zeros((1, 1, 8, 8), np.uint8))
    assert model.training
    assert model[1].training


def test_the_least_other_normalisation_has_another_hash(network):
    """The words of a normalisation are short; its hash is not."""
    one, same, other = (models.load(network, mean=[mean], std=[0.5]) for mean in (0.1, 0.1, 0.1000001))
    assert one.normalization == other.normalization
    assert one.weights_hash == same.weights_hash != other.weights_hash
    assert models.load(network, mean=[0.1], std=[0.5], weights_hash=one.weights_hash).weights_hash == one.weights_hash
    with pytest.raises(ModelError, match="Expected weights with"):
        models.load(network, mean=[0.1000001], std=[0.5], weights_hash=one.weights_hash)


def test_a_denoiser_stands_in_front_and_needs_the_noise(network, inputs):
    with pytest.raises(ConfigError, match="sigma"):
        models.load(network, denoiser="tv")
    plain, denoised = models.load(network), models.load(network, denoiser="tv", sigma=0.25)
    assert "denoiser" in denoised.notes[-1]
    assert (votes(denoised, inputs) != votes(plain, inputs)).any()


def test_weights_are_held_to_the_hash_that_was_recorded(network, tmp_path):
    path = checkpoint(network, tmp_path / "m.safetensors")
    recorded = models.load(path).weights_hash
    assert models.load(path, weights_hash=recorded).weights_hash == recorded
    save_checkpoint(path, seeded_copy(network), BLUEPRINT)
    with pytest.raises(ModelError, match=f"Expected weights with {recorded}"):
        models.load(path, weights_hash=recorded)


def test_declared_classes_must_be_those_of_the_model(network, tmp_path):
    path = checkpoint(network, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="num_classes=7, got 10"):
        models.load(path, num_classes=7)
    with pytest.raises(ModelError, match="10 class names"):
        models.load(path, classes=["a", "b"])
    assert models.load(path, classes=list("abcdefghij")).classes == tuple("abcdefghij")


def test_urls_are_not_fetched(monkeypatch):
    """A model comes from where the user put it, or through a library that has its own checks."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_: pytest.fail("asked the network"))
    with pytest.raises(ModelError, match="Expected a model"):
        models.load("https://example.org/model")

"""The same weights through every kind of source must give the same votes; other models must certify too."""

import json
import os
import re
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import joblib
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from torch import nn

from networks import RECIPE
from smoothcert import FixedN, Normalize, Smoothed, models
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelError
from smoothcert.models.architectures import cifar_resnet
from smoothcert.models.checkpoints import save_checkpoint
from smoothcert.models.classifier import Classifier

PROCEDURE = FixedN(n=2_000, n0=50, alpha=0.01)
EXPORTED = {0: torch.export.Dim("batch")}


def votes(model, inputs, **settings):
    results = Smoothed(model, 0.25, seed=3, progress=False, **settings).certify(inputs, PROCEDURE, index=0)
    return np.array([result.stages[1].counts for result in results])


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


def torchscript(network, path):
    torch.jit.trace(network, torch.rand(2, 1, 8, 8)).save(path)
    return path


def checkpoint(network, path):
    save_checkpoint(path, network, RECIPE)
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
    "torchscript": lambda n, d: torchscript(n, d / "m.pt"),
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
    assert ensemble.classes == RECIPE.classes
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
    assert loaded.classes == RECIPE.classes
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


def test_the_papers_checkpoints_load_with_their_normalisation(tmp_path):
    """As the research code writes them: the names of another code, behind the prefix of a Sequential."""
    network = cifar_resnet(20).eval()
    theirs = {f"1.layer.{place}": tensor for place, tensor in enumerate(network.state_dict().values())}
    path = saved({"arch": "cifar_resnet20", "epoch": 90, "state_dict": theirs}, tmp_path / "checkpoint.pth.tar")
    loaded = models.load(path)
    x = torch.rand(2, 3, 32, 32)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), network(Normalize(mean, std)(x)))
    assert (loaded.input_shape, loaded.num_classes) == ((3, 32, 32), 10)
    assert any("by order" in note for note in loaded.notes)
    assert "0.4914" in loaded.normalization


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


# Transformers


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    names = dict(enumerate(["cat", "dog", "frog"]))
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, num_channels=3, num_labels=3, id2label=names, **sizes)
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    ViTImageProcessorPil(
        size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    ).save_pretrained(folder)
    return folder, model


def test_a_transformers_model_gets_its_processors_normalisation(vit):
    folder, model = vit
    for source in (f"hf:{folder}", folder):
        loaded = models.load(source)
        x = torch.rand(4, 3, 16, 16)
        normal = (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(pixel_values=normal).logits, atol=1e-4, rtol=1e-4)
        assert (loaded.kind, loaded.input_shape, loaded.num_classes) == ("transformers", (3, 16, 16), 3)
        assert loaded.classes == ("cat", "dog", "frog")
        assert "(0.1, 0.2, 0.3)" in loaded.normalization


def test_a_transformers_model_certifies(vit):
    loaded = models.load(f"hf:{vit[0]}")
    result = Smoothed(loaded, 0.25, seed=0).certify(np.full((3, 16, 16), 90, np.uint8), PROCEDURE)
    assert sum(result.stages[1].counts) == 2_000
    assert len(result.stages[1].counts) == 3


@pytest.mark.parametrize(
    ("settings", "mean", "std"),
    [
        ({"do_rescale": False}, [0.1 / 255] * 3, [0.5 / 255] * 3),
        ({"do_normalize": False}, [0.0] * 3, [1.0] * 3),
        ({"rescale_factor": 1 / 127.5}, [0.05] * 3, [0.25] * 3),
    ],
)
def test_unusual_processors_are_measured_not_read(vit, tmp_path, settings, mean, std):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    vit[1].save_pretrained(tmp_path)
    usual = {"size": {"height": 16, "width": 16}, "image_mean": [0.1] * 3, "image_std": [0.5] * 3}
    ViTImageProcessorPil(**usual, **settings).save_pretrained(tmp_path)
    layer = models.load(tmp_path).network[0]
    np.testing.assert_allclose(layer.mean.flatten(), mean, atol=1e-6)
    np.testing.assert_allclose(layer.std.flatten(), std, rtol=1e-5)


@pytest.mark.parametrize("missing", ["preprocessor_config.json", "model.safetensors", "config.json"])
def test_an_incomplete_transformers_folder_is_a_clear_error(vit, tmp_path, missing):
    for file in vit[0].iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError):
        models.load(f"hf:{tmp_path}")


# Scikit-learn


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(max_iter=200), RandomForestClassifier(20, random_state=0), SVC(gamma=0.05)],
    ids=lambda one: type(one).__name__,
)
def test_an_estimator_certifies_by_its_own_answers(digits, inputs, estimator):
    training, test = digits
    estimator.fit(training.inputs.reshape(-1, 64) / 255, training.labels)
    loaded = models.load(estimator)
    rows = torch.from_numpy(test.inputs[:200]).float() / 255
    answers = loaded(rows)
    labels = answers if answers.ndim == 1 else answers.argmax(1)
    np.testing.assert_array_equal(labels, estimator.predict(rows.flatten(1)))
    assert (loaded.num_classes, loaded.classes) == (10, tuple("0123456789"))
    assert (votes(loaded, inputs).sum(axis=1) == 2_000).all()


def test_classes_of_an_estimator_are_numbered_in_their_order(digits):
    training, _ = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    estimator = SVC(gamma=0.05).fit(training.inputs.reshape(-1, 64) / 255, names[training.labels])
    loaded = models.load(estimator)
    rows = torch.from_numpy(training.inputs[:50]).float() / 255
    assert [loaded.classes[label] for label in loaded(rows)] == estimator.predict(rows.flatten(1)).tolist()


def test_a_joblib_file_needs_the_flag(digits, tmp_path):
    training, _ = digits
    estimator = LogisticRegression(max_iter=200).fit(training.inputs.reshape(-1, 64) / 255, training.labels)
    joblib.dump(estimator, tmp_path / "model.joblib")
    with pytest.raises(ModelError, match="--unsafe-load"):
        models.load(tmp_path / "model.joblib")
    loaded = models.load(tmp_path / "model.joblib", unsafe=True)
    assert loaded.weights_hash.startswith("sha256:")
    assert loaded(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_an_unfitted_estimator_is_refused():
    with pytest.raises(ModelError, match="fitted"):
        models.load(LogisticRegression())


# Python code and services


class Service(BaseHTTPRequestHandler):
    """Answers a batch of images with labels alone: whether the upper half is brighter than the lower."""

    def do_POST(self):
        rows = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32).reshape(-1, 2, 32)
        content = json.dumps((rows[:, 0].mean(1) > rows[:, 1].mean(1)).astype(int).tolist()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def service():
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_service_that_returns_labels_only_certifies(service, tmp_path):
    path = tmp_path / "remote_client.py"
    path.write_text(
        "import json, urllib.request\n"
        "def labels(batch):\n"
        f"    with urllib.request.urlopen({service!r}, batch.numpy().tobytes()) as answer:\n"
        "        return json.load(answer)\n"
    )
    with pytest.raises(ModelError, match="num_classes"):
        votes(models.load(f"{path}:labels"), np.zeros((1, 1, 8, 8), np.uint8))
    image = np.full((1, 8, 8), 100, np.uint8)
    image[:, :4] += 12
    [counts] = votes(models.load(f"{path}:labels", num_classes=2), image[None])
    p = 0.5 * (1 + float(torch.erf(torch.tensor(12 / 255 * 32**0.5 / (0.25 * 2**0.5) / 2**0.5))))
    assert counts[1] / 2_000 == pytest.approx(p, abs=0.05)


def test_a_package_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.flatten(1)[:, :3]\n"
        "ready = Net()\n"
        "def classify(batch):\n"
        "    return batch.flatten(1)[:, :4]\n"
        "def broken():\n"
        "    raise OSError('no weights here')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, columns in (("Net", 3), ("ready", 3), ("classify", 4)):
        assert models.load(f"my_models.nets:{name}")(torch.rand(2, 1, 2, 2)).shape == (2, columns)
    for name, said in (
        ("broken", "no weights here"),
        ("nothing", "no such name"),
        ("number", "got int"),
    ):
        with pytest.raises(ModelError, match=said):
            models.load(f"my_models.nets:{name}")
    with pytest.raises(ModelError, match=r"Cannot import 'my_models\.none'"):
        models.load("my_models.none:x")


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


def test_a_denoiser_stands_in_front_and_needs_the_noise(network, inputs):
    with pytest.raises(ConfigError, match="sigma"):
        models.load(network, denoiser="gaussian")
    plain, denoised = models.load(network), models.load(network, denoiser="gaussian", sigma=0.25)
    assert "denoiser" in denoised.notes[-1]
    assert (votes(denoised, inputs) != votes(plain, inputs)).any()


def test_weights_are_held_to_the_hash_that_was_recorded(network, tmp_path):
    path = checkpoint(network, tmp_path / "m.safetensors")
    recorded = models.load(path).weights_hash
    assert models.load(path, weights_hash=recorded).weights_hash == recorded
    save_checkpoint(path, seeded_copy(network), RECIPE)
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

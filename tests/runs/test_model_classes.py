"""Labels that are no class of the model are refused before anything is drawn or written."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from run_fixtures import ROWS
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.data import ArrayData
from smoothcert.errors import InputError
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.smoothing import run_dataset
from smoothcert.training.directory import make_plan, run_training
from smoothcert.training.settings import TrainSettings

LABELS = [0, 3, 2, 207, 1, 999]


def four_classes():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        network[1].weight.copy_(torch.linspace(-1, 1, 256).view(4, 64))
    return network


def images(labels=LABELS):
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 8, 8), np.uint8)
    return ArrayData(pixels, np.array(labels), None, "pictures")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model of four classes as an ONNX file and as Python code, and a data set with more."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("files")
    shapes = ({0: torch.export.Dim("batch")},)
    example = (torch.zeros(2, 1, 8, 8),)
    network = four_classes().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter uses what torch deprecates
        torch.onnx.export(network, example, folder / "model.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    (folder / "model.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
    )
    data = images()
    np.savez(folder / "data.npz", images=data.inputs, labels=data.labels)
    return folder


COMMANDS = {
    "certify": ["certify", "--sigma", "0.5"],
    "certify known labels": ["certify", "--sigma", "0.5", "--radii", "0", "0.25", "--known-labels"],
    "predict": ["predict", "--sigma", "0.5"],
    "baseline": ["baseline"],
    "attack-base": ["attack-base"],
}


@pytest.mark.parametrize("model", ["model.onnx", "model.py:make"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_label_that_is_no_class_of_the_model_is_refused(files, tmp_path, capsys, command, model):
    name, *settings = COMMANDS[command]
    if model.endswith("onnx") and not name.startswith(("certify", "predict")):
        pytest.skip("bounds and gradients need the network itself")
    out = tmp_path / "run"
    assert main([name, str(files / model), str(files / "data.npz"), *settings, "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "Input 3 of data.npz has label 207, but the model has 4 classes (0 to 3)" in line
    assert "2 of 6 inputs have such labels" in line
    assert not out.exists()


def test_only_the_selected_inputs_count(files, tmp_path):
    words = [str(files / "model.onnx"), str(files / "data.npz"), "--sigma", "0.5", "--n-max", "200"]
    out = tmp_path / "run"
    assert main(["certify", *words, "--indices", "0", "1", "2", "4", "--out", str(out)]) == 0
    assert main(["verify", str(out)]) == 0
    assert main(["certify", *words, "--indices", "5", "1", "--out", str(tmp_path / "other")]) == 2


def test_nothing_is_drawn_before(tmp_path):
    drawn = []
    with pytest.raises(InputError, match="label 207"):
        run_dataset(
            ModelSpec(source=four_classes()),
            images(),
            runs.CertifySettings(sigma=0.5),
            tmp_path / "run",
            on_draws=drawn.append,
        )
    assert drawn == []
    assert not (tmp_path / "run" / ROWS).exists()


def test_a_data_set_without_labels_is_certified(tmp_path):
    data = images()
    unlabelled = ArrayData(data.inputs, None, None, "pictures")
    run = runs.certify_dataset(four_classes(), unlabelled, tmp_path / "run", runs.CertifySettings(sigma=0.5, n_max=200))
    assert run.complete
    assert not run.errors


def test_a_test_set_with_more_classes_is_refused_before_training(tmp_path):
    settings = TrainSettings(sigma=0.25, epochs=1, batch_size=4, learning_rate=0.01, seed=0)
    plan = make_plan(images([0, 1, 2, 3]), settings, architecture="small-cnn")
    with pytest.raises(InputError, match="Input 3 of pictures has label 207, but the model has 4 classes"):
        run_training(plan, tmp_path / "training", test=images())
    assert not (tmp_path / "training").exists()

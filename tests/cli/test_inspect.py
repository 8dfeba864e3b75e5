import json

import numpy as np
import pytest
import torch

from smoothcert.cli import main
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.training.loop import seeded


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    shape = {"num_classes": 10, "input_shape": (1, 8, 8)}
    blueprint = Blueprint(architecture="small-cnn", classes=tuple("0123456789"), **shape)
    save_checkpoint(path, seeded(small_cnn, 0), blueprint)
    return path


FAST = ["--seconds", "0.1", "--n-max", "200", "--batch-size", "64"]


def test_a_model_alone_shows_what_it_says_about_itself(capsys, checkpoint):
    assert main(["inspect", str(checkpoint)]) == 0
    out = capsys.readouterr().out
    for word in ("(checkpoint)", "1×8×8", "10: 0, 1, 2", "none needed", "38,282", "sha256:"):
        assert word in out


def test_with_data_it_shows_accuracy_throughput_and_estimates(capsys, checkpoint):
    assert main(["inspect", str(checkpoint), "--data", "digits", *FAST, "--price-per-hour", "2"]) == 0
    out = capsys.readouterr().out
    for word in (
        "digits (test): 500 inputs",
        "100 looked at",
        "accuracy, clean",
        "σ = 0.25",
        "per second",
        "paper",
        "cost",
    ):
        assert word in out
    assert "hardly better than guessing" in out  # random weights


def test_json_is_one_object(capsys, checkpoint):
    assert main(["inspect", str(checkpoint), "--data", "digits", *FAST, "--json", "--first", "20", "--every", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == {"name": "digits (test)", "inputs": 500, "shape": [1, 8, 8], "looked_at": 20}
    assert found["estimates"][1]["inputs"] == 20
    assert found["model"]["num_classes"] == 10
    assert found["clean_accuracy"]["of"] == 20
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["weights_hash"] == found["model"]["weights_hash"]


def test_images_of_another_size_are_resized_inside_the_model_and_said_so(capsys, checkpoint, tmp_path):
    np.savez(tmp_path / "large.npz", images=np.zeros((3, 1, 16, 16), np.uint8), labels=np.arange(3))
    assert main(["inspect", str(checkpoint), "--data", str(tmp_path / "large.npz"), *FAST]) == 0
    assert "16×16 are resized to 8×8" in " ".join(capsys.readouterr().out.split())


def test_a_denoiser_is_named(capsys, checkpoint):
    assert main(["inspect", str(checkpoint), "--denoiser", "tv", "--sigma", "0.5"]) == 0
    assert "tv for σ = 0.5" in " ".join(capsys.readouterr().out.split())


def test_settings_come_from_a_file_too(capsys, checkpoint, tmp_path):
    (tmp_path / "i.toml").write_text(
        f'model = "{checkpoint}"\ndata = "digits"\nseconds = 0.1\nindices = [3, 1]\nn-max = 200\n'
    )
    assert main(["inspect", "--config", str(tmp_path / "i.toml")]) == 0
    assert "2 looked at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.onnx"], 3, "There is no file missing.onnx"),
        (["{model}", "--sigma", "0"], 2, "`sigma`"),
        (["{model}", "--data", "digits", "--seconds", "-1"], 2, "`seconds`"),
        (["{model}", "--data", "no-such-data"], 2, "no-such-data"),
        (["{model}", "--data", "digits", "--first", "0"], 2, "`first`"),
        (["{model}", "--data", "digits", "--indices", "1", "--first", "3"], 2, "either `indices`"),
        (["{model}", "--data", "digits", "--indices", "500"], 2, "500"),
        (["{model}", "--mean", "0.5"], 2, "`mean` and `std` together"),
        (["{model}", "--denoiser", "magic"], 2, "`denoiser`"),
        (["{model}", "--arch", "lenet"], 3, "not 'lenet'"),
        (["{model}", "--num-classes", "3"], 3, "num_classes=3"),
    ],
)
def test_mistakes_are_one_clear_line(capsys, checkpoint, arguments, code, said):
    assert main(["inspect", *(one.format(model=checkpoint) for one in arguments)]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


def test_names_cannot_write_to_the_terminal(capsys, tmp_path):
    """A61: a class name with an escape sequence is shown, not obeyed."""
    shape = {"num_classes": 2, "input_shape": (1, 8, 8)}
    recipe = Blueprint(architecture="small-cnn", classes=("\x1b[31mred\ttab", "[bold]b"), **shape)
    save_checkpoint(tmp_path / "m.safetensors", seeded(lambda: small_cnn(2), 0), recipe)
    assert main(["inspect", str(tmp_path / "m.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "\t" not in out
    assert "[bold]b" in out
    assert main(["inspect", "\x1b[31mmissing.onnx"]) == 3
    assert "\x1b" not in capsys.readouterr().err


def test_unsafe_files_name_the_flag_that_exists(capsys, tmp_path):
    torch.save(torch.nn.Flatten(), tmp_path / "m.pt")
    assert main(["inspect", str(tmp_path / "m.pt")]) == 3
    assert "--unsafe-load" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "m.pt"), "--unsafe-load"]) == 0

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from smoothcert import models
from smoothcert.cli import main
from smoothcert.models.dncnn import load_dncnn

FAST = ["--sigma", "0.25", "--epochs", "1", "--batch-size", "64", "--seed", "0"]


def train(out, *more):
    return main(["train", "digits", *FAST, "--out", str(out), *map(str, more)])


def record_of(out):
    return json.loads((out / "train.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A trained network; not to be changed."""
    out = tmp_path_factory.mktemp("trained") / "net"
    assert train(out) == 0
    return out


def only_line(err):
    [line] = err.splitlines()
    return line


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def images(count=40, colours=1):
    generator = np.random.default_rng(2)
    return generator.integers(0, 256, (count, colours, 8, 8), np.uint8), np.arange(count) % 4


# What it says


def test_help_has_all_settings_and_examples(capsys):
    assert main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    for flag in (
        "--sigma",
        "--recipe",
        "--epochs",
        "--resume",
        "--arch",
        "--start",
        "--classifier",
        "--tensorboard",
        "--config",
    ):
        assert flag in printed
    assert "smoothcert train mnist --sigma 0.5" in printed.partition("examples:")[2]
    assert "torchrun --nproc-per-node" in printed.partition("examples:")[2]


def test_the_command_trains_and_says_what_is_next(capsys, tmp_path):
    out = tmp_path / "net"
    assert train(out) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    words = " ".join(captured.out.split())
    assert "digits (test): " in words
    assert "of each of 500 inputs" in words
    assert f"smoothcert certify {out} digits --sigma 0.25" in words
    assert models.load(out).sigma == 0.25


def test_the_next_command_can_be_copied_from_one_line(capsys, tmp_path):
    out = tmp_path / ("a rather long name " * 5).strip().replace(" ", "-")
    assert train(out) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Next: ")]
    assert line.endswith("--out RUN")


def test_json_is_one_object(capsys, tmp_path):
    assert train(tmp_path / "net", "--json") == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert printed.count("\n") == 1
    assert found == {"out": str(tmp_path / "net"), **record_of(tmp_path / "net")}
    assert 0 <= found["result"]["test"]["accuracy"] <= 1


def test_a_training_that_is_complete_is_said_again(capsys, net):
    before = (net / "model.safetensors").stat().st_mtime_ns
    assert train(net, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(net), **record_of(net)}
    assert (net / "model.safetensors").stat().st_mtime_ns == before


# Mistakes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--recipe", "gausian"], "Did you mean 'gaussian'?"),
        (["--recipe", "consistency:wait=5"], "Did you mean 'weight'?"),
        (["--recipe", "consistency:weight=much"], "`weight`"),
        (["--recipe", "gaussian:copies=2"], "no settings"),
        (["--recipe", "smoothadv:steps=0"], "`steps`"),
        (["--recipe", "denoiser"], "`classifier`"),
        (["--sigma", "-0.25"], "`sigma`"),
        (["--sigma", "nan"], "`sigma`"),
        (["--epochs", "0"], "`epochs`"),
        (["--batch-size", "0"], "`batch_size`"),
        (["--learning-rate", "0"], "`learning_rate`"),
        (["--momentum", "1"], "`momentum`"),
        (["--ema", "1"], "`ema`"),
        (["--lr-warmup", "1"], "`lr_warmup`"),
        (["--seed", "-1"], "`seed`"),
        (["--arch", "lennet"], "lennet"),
        (["--arch", "lenet"], "(1, 8, 8)"),
        (["--size", "9"], "size"),
        (["--save-every", "nan"], "`save_every`"),
        (["--time-limit", "0"], "`time_limit`"),
        (["--time-limit", "nan"], "`time_limit`"),
        (["--recipe", "dual", "--time-limit", "1e-12"], "more than the time limit of 1e-12 h"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(capsys, tmp_path, flags, said):
    assert train(tmp_path / "net", *flags) == 2
    captured = capsys.readouterr()
    assert said in only_line(captured.err)
    assert captured.out == ""
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line_and_writes_nothing(capsys, tmp_path, device):
    assert train(tmp_path / "net", "--device", device) != 0
    assert device.partition(":")[0] in only_line(capsys.readouterr().err).lower()
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--recipe", "denoiser", "--sigma", "0"], "`sigma`"), (["--recipe", "denoiser", "--arch", "lenet"], "arch")],
)
def test_mistakes_about_denoisers_write_nothing(capsys, net, tmp_path, flags, said):
    assert train(tmp_path / "denoiser", *flags, "--classifier", net) == 2
    assert said in only_line(capsys.readouterr().err)
    assert not (tmp_path / "denoiser").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [("digts", "Did you mean 'digits'?"), ("nowhere/at.npz", "nowhere/at.npz"), ("mnist", "data fetch mnist")],
)
def test_missing_data_are_one_line_and_write_nothing(capsys, tmp_path, data, said):
    arguments = ["train", data, *FAST, "--data-root", str(tmp_path / "none"), "--out", str(tmp_path / "net")]
    assert main(arguments) == 2
    assert said in only_line(capsys.readouterr().err)
    assert not (tmp_path / "net").exists()


def test_inputs_without_labels_are_not_trained_on(capsys, tmp_path):
    path = save(tmp_path / "bare.npz", images=images()[0])
    assert main(["train", path, *FAST, "--out", str(tmp_path / "net")]) == 2
    assert "labels" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "net").exists()


def test_a_start_is_any_model_whose_weights_fit(capsys, net, tmp_path):
    assert train(tmp_path / "more", "--start", net, "--learning-rate", "1e-9") == 0
    assert models.load(net).weights_hash in record_of(tmp_path / "more")["start"]
    assert train(tmp_path / "other", "--start", net, "--arch", "mlp-7") == 3
    assert "architecture 'small-cnn', not 'mlp-7'" in only_line(capsys.readouterr().err)
    assert train(tmp_path / "none", "--start", tmp_path / "none.safetensors") == 3
    assert "none.safetensors" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "none").exists()


def test_a_classifier_that_is_not_there_is_one_line_and_writes_nothing(capsys, tmp_path):
    assert train(tmp_path / "net", "--recipe", "denoiser", "--classifier", tmp_path / "none.safetensors") == 3
    assert "none.safetensors" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "net").exists()


def test_a_rate_that_is_too_high_is_said_to_be(capsys, tmp_path):
    assert train(tmp_path / "net", "--learning-rate", "1e30") == 3
    line = only_line(capsys.readouterr().err)
    assert "Training diverged" in line
    assert "epoch 1 at learning rate 1e+30" in line
    assert "Lower the learning rate" in line
    assert not (tmp_path / "net" / "model.safetensors").exists()


def test_a_directory_that_is_in_use_for_something_else_is_left_alone(capsys, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    assert train(tmp_path) == 6
    assert "not empty" in only_line(capsys.readouterr().err)
    assert [one.name for one in tmp_path.iterdir()] == ["letter.txt"]
    assert train(tmp_path / "letter.txt") == 6
    assert train(tmp_path / "a" / "b") == 6
    assert not (tmp_path / "a").exists()


def test_what_cannot_be_resumed_is_said(capsys, net, tmp_path):
    assert train(net) == 6
    assert "--resume" in only_line(capsys.readouterr().err)
    assert train(net, "--resume", "--sigma", "0.5") == 4
    assert "settings.sigma is 0.25 there and 0.5 here" in only_line(capsys.readouterr().err)
    assert train(tmp_path / "none", "--resume") == 4
    assert "no training" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "none").exists()


# Settings from a file


def test_all_settings_come_from_a_file_and_flags_win(tmp_path):
    lines = [
        'data = "digits"',
        f'out = "{tmp_path / "net"}"',
        "sigma = 0.5",
        "epochs = 3",
        "batch-size = 128",
        'recipe = "consistency:weight=5"',
        'augment = ["crop"]',
        "ema = 0.9",
        "seed = 4",
    ]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert main(["train", "--config", str(tmp_path / "c.toml"), "--sigma", "0.25", "--epochs", "1"]) == 0
    found = record_of(tmp_path / "net")["settings"]
    assert (found["sigma"], found["epochs"], found["batch_size"], found["seed"]) == (0.25, 1, 128, 4)
    assert (found["augment"], found["ema"]) == (["crop"], 0.9)
    assert (found["recipe"]["name"], found["recipe"]["weight"], found["recipe"]["copies"]) == ("consistency", 5.0, 2)


@pytest.mark.parametrize(
    ("line", "said"), [("epoch = 3", "'epoch'"), ('epochs = "3"', "`epochs`"), ("sigma = [", "TOML")]
)
def test_a_mistake_in_the_file_is_named(capsys, tmp_path, line, said):
    (tmp_path / "c.toml").write_text(line)
    assert train(tmp_path / "net", "--config", tmp_path / "c.toml") == 2
    assert said in only_line(capsys.readouterr().err)
    assert not (tmp_path / "net").exists()


# Data of one's own


def test_splits_of_a_file_are_trained_and_measured_on(tmp_path):
    (x, y), (x_test, y_test) = images(40, colours=3), images(12, colours=3)
    path = save(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    assert main(["train", path, *FAST, "--arch", "resnet20", "--out", str(tmp_path / "net")]) == 0
    record = record_of(tmp_path / "net")
    assert (record["data"]["inputs"], record["normalize"]) == (40, True)
    assert (record["result"]["test"]["inputs"], record["result"]["test"]["data"]) == (12, "own.npz (test)")
    assert models.load(tmp_path / "net").num_classes == 4


def test_test_inputs_without_labels_do_not_spoil_a_training(tmp_path):
    (x, y), (x_test, _) = images(), images(12)
    path = save(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x_test)
    assert main(["train", path, *FAST, "--out", str(tmp_path / "net")]) == 0
    assert "test" not in record_of(tmp_path / "net")["result"]


def test_accuracy_on_the_training_inputs_does_not_pass_for_that_on_others(tmp_path):
    """A file without splits has no inputs that the network has not seen."""
    x, y = images()
    path = save(tmp_path / "own.npz", images=x, labels=y)
    assert main(["train", path, *FAST, "--out", str(tmp_path / "net")]) == 0
    assert "test" not in record_of(tmp_path / "net")["result"]


def test_a_denoiser_is_trained_for_a_classifier(capsys, net, tmp_path):
    x, y = images()
    path = save(tmp_path / "own.npz", images=x, labels=y)
    arguments = ["train", path, *FAST, "--recipe", "denoiser", "--classifier", str(net), "--learning-rate", "0.01"]
    assert main([*arguments, "--out", str(tmp_path / "denoiser")]) == 0
    weights = tmp_path / "denoiser" / "model.safetensors"
    assert load_dncnn(weights).trained_sigma == 0.25
    assert models.load(net).weights_hash in record_of(tmp_path / "denoiser")["classifier"]
    capsys.readouterr()
    assert main(["inspect", str(net), "--denoiser", str(weights), "--sigma", "0.25"]) == 0
    assert "denoiser" in capsys.readouterr().out


OWN_RECIPE = Path(__file__).parents[2] / "examples" / "own_recipe.py"


def test_a_recipe_from_a_file_trains_resumes_and_is_recorded(tmp_path):
    words = ["train", "digits", "--sigma", "0.25", "--recipe", f"{OWN_RECIPE}:SmoothedLabels:share=0.2"]
    words += ["--epochs", "1", "--seed", "0", "--out", str(tmp_path / "net")]
    assert main(words) == 0
    record = json.loads((tmp_path / "net" / "train.json").read_text())
    recipe = record["settings"]["recipe"]
    assert (recipe["name"], recipe["share"]) == ("smoothed-labels", 0.2)
    assert recipe["origin"]["source"] == f"{OWN_RECIPE}:SmoothedLabels"
    assert recipe["origin"]["sha256"] == hashlib.sha256(OWN_RECIPE.read_bytes()).hexdigest()
    assert "own_recipe.py" in (tmp_path / "net" / "README.md").read_text("utf-8")
    assert main([*words, "--resume"]) == 0

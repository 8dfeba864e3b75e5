"""`smoothcert baseline`: deterministic bounds of a network into a run that the other commands take."""

import json
import re
import shlex

import numpy as np
import pytest
import torch

from attack_fixtures import cut, forged, rows_path
from smoothcert import runs
from smoothcert.baselines.methods import make_certifier
from smoothcert.cli import COMMANDS, _parse, main
from smoothcert.data import load
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.training.loop import seeded

METHODS = ("lipschitz", "dual", "crown")  # auto_LiRPA is tested with a stand-in


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


def network():
    """Of some use on the digits, though it was never trained: scores are brought to the same level."""
    model = seeded(small_cnn, 1)
    with torch.no_grad():
        model[-1].bias -= model(torch.from_numpy(load("digits").batch(range(100))).float() / 255).mean(0)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    save_checkpoint(path, network(), Blueprint(architecture="small-cnn", num_classes=10, input_shape=(1, 8, 8)))
    return path


METHODS = ("lipschitz", "dual", "crown")
FEW = ["--every", "100", "--batch-size", "2", "--method", "lipschitz"]


@pytest.fixture
def baseline(checkpoint, capsys):
    return lambda *words: call(capsys, "baseline", checkpoint, "digits", *FEW, *words)


def test_help_ends_with_examples_that_the_command_line_takes(capsys):
    assert main(["baseline", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(COMMANDS["baseline"].examples)
    for words in ("Tsuzuku et al. 2018", "Wong & Kolter 2018", "Zhang et al. 2018", "--method", "--resume"):
        assert words in " ".join(out.split())
    lines = re.findall(r"^  (smoothcert .*?)(?:   .*)?$", COMMANDS["baseline"].examples, re.MULTILINE)
    parsed = [_parse(shlex.split(line)[1:]) for line in lines]
    assert sum(isinstance(one, COMMANDS["baseline"]) for one in parsed) >= 3
    for one in parsed:
        if isinstance(one, COMMANDS["baseline"] | COMMANDS["train"]):
            one.check()


@pytest.mark.parametrize("method", METHODS)
def test_bounds_a_network_and_shows_what_is_certified(checkpoint, tmp_path, capsys, method):
    out = tmp_path / "run"
    words = ["baseline", checkpoint, "digits", "--every", "200", "--batch-size", "5", "--method", method, "--out", out]
    code, shown, err = call(capsys, *words)
    assert (code, err) == (0, "")
    run = runs.open(out)
    assert (run.manifest.kind, run.manifest.indices) == ("bound", [0, 200, 400])
    certifier = make_certifier(method, network(), (1, 8, 8))
    for row in run.rows:
        [label], [radius] = certifier(torch.from_numpy(load("digits")[row["index"]])[None].float() / 255)
        assert row["label"] == int(label)
        assert row["radius"] == pytest.approx(float(radius), rel=1e-9)
    assert f"deterministic (method={method})" in shown
    assert "3, complete; 0 abstained" in shown
    assert "certified and correct %" in shown
    code, again, _ = call(capsys, "show", out)
    assert again == shown.partition(" Run: ")[0]


def test_json_sums_the_run_up(baseline, tmp_path, capsys):
    code, shown, _ = baseline("--out", tmp_path / "run", "--json")
    assert code == 0
    found = json.loads(shown)
    run = runs.open(tmp_path / "run")
    assert (found["kind"], found["rows"], found["draws"], found["alpha"]) == ("bound", 5, 0, 0.0)
    assert found["correct"] == sum(run.table()["correct"])
    for radius, share in zip(found["radii"], found["certified"], strict=True):
        assert share == np.mean([row["label"] == row["true"] and row["radius"] >= radius for row in run.rows])
    assert len(found["radii"]) > 1, "radii that suit it"


def test_a_run_that_was_cut_off_goes_on(baseline, tmp_path):
    assert baseline("--out", tmp_path / "run")[0] == 0
    content = rows_path(tmp_path / "run").read_bytes()
    cut(tmp_path / "run", 3, torn=20)
    assert baseline("--out", tmp_path / "run")[0] == 2, "it is there already"
    code, shown, err = baseline("--out", tmp_path / "run", "--resume")
    assert code == 0
    assert shown.startswith("3 of 5 inputs are there already.")
    assert err.startswith("notice: the last line of ")
    assert rows_path(tmp_path / "run").read_bytes() == content


def test_verify_computes_bounds_again_and_sees_a_forged_one(baseline, tmp_path, capsys):
    out = tmp_path / "run"
    baseline("--out", out)
    code, shown, _ = call(capsys, "verify", out)
    assert code == 0
    assert "0 of 5 bounds computed again" in shown
    assert "not checked: 5 radii, which rest on the network alone: give --again" in shown
    code, shown, _ = call(capsys, "verify", out, "--again", "5")
    assert code == 0
    assert "5 of 5 bounds computed again" in shown
    assert "--again" not in shown
    code, shown, _ = call(capsys, "verify", out, "--again", "2")
    assert "not checked: the bounds of the other" in shown
    forged(out, lambda row: row.update(radius=1.5 * row["radius"] if row["index"] == 200 else row["radius"]))
    assert call(capsys, "verify", out)[0] == 0, "by itself a run cannot show it"
    code, shown, err = call(capsys, "verify", out, "--again", "5")
    assert code == 1
    assert "wrong: line 3: " in shown
    assert "radius" in shown
    assert "1 of 1 runs failed" in err


def test_verify_needs_the_network_and_the_data_of_the_run(baseline, checkpoint, tmp_path, capsys):
    baseline("--out", tmp_path / "run")
    save_checkpoint(
        tmp_path / "other.safetensors",
        seeded(small_cnn, 9),
        Blueprint(architecture="small-cnn", num_classes=10, input_shape=(1, 8, 8)),
    )
    words = ["verify", tmp_path / "run", "--again", "1"]
    code, _, err = call(capsys, *words, "--model", tmp_path / "other.safetensors")
    assert (code, "weights are others" in err) == (3, True)
    code, _, err = call(capsys, *words, "--split", "train")
    assert (code, "fingerprint" in err) == (2, True)


def test_settings_come_from_a_file_too(checkpoint, tmp_path, capsys):
    lines = [
        f'model = "{checkpoint}"',
        'data = "digits"',
        f'out = "{tmp_path / "run"}"',
        'method = "dual"',
        "first = 2",
    ]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert call(capsys, "baseline", "--config", tmp_path / "c.toml", "--method", "lipschitz")[0] == 0
    values = runs.open(tmp_path / "run").manifest.values
    assert (values["procedure"]["method"], values["indices"]) == ("lipschitz", [0, 1])


def test_inputs_that_fail_are_counted_and_told(checkpoint, tmp_path, capsys):
    images = np.full((3, 1, 8, 8), 0.5, np.float32)
    images[1] = 1.5
    np.save(tmp_path / "images.npy", images)
    out = tmp_path / "run"
    code, shown, err = call(capsys, "baseline", checkpoint, tmp_path / "images.npy", *FEW[2:], "--out", out)
    assert code == 3
    assert "3, complete; 0 abstained, of which 1 failed" in shown
    assert "1 of 3 inputs failed and are marked so; the first, input 1: InputError" in err
    assert [set(row) >= {"error"} for row in runs.open(out).rows] == [False, True, False]
    assert call(capsys, "verify", out)[0] == 0


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--method", "magic"], 2, "magic"),
        (["--batch-size", "0"], 2, "`batch_size`"),
        (["--workers", "0"], 2, "`workers`"),
        (["--timeout", "0"], 2, "`timeout`"),
        (["--first", "0"], 2, "`first`"),
        (["--device", "abacus"], 2, "`device`"),
        (["--address", "auto"], 2, "--engine ray"),
        (["--split", "extra"], 2, "split"),
    ],
)
def test_mistakes_are_told_and_write_nothing(baseline, tmp_path, flags, code, said):
    got, shown, err = baseline(*flags, "--out", tmp_path / "run")
    assert (got, shown) == (code, "")
    assert said in err
    assert not (tmp_path / "run").exists()


def made_of(layers, folder):
    """A file with a network of these layers, as a model's source."""
    path = folder / "network.py"
    path.write_text(f"from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), {layers})\n")
    return f"{path}:make"


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_cannot_be_bounded_is_one_line_and_leaves_nothing(tmp_path, capsys, method):
    model = made_of("nn.Linear(64, 10), nn.Sigmoid()", tmp_path)
    code, shown, err = call(capsys, "baseline", model, "digits", "--method", method, "--out", tmp_path / "run")
    assert (code, shown) == (3, "")
    assert "Sigmoid" in err
    assert "Supported are linear and convolutional layers" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_network_for_other_inputs_is_one_line_and_leaves_nothing(tmp_path, capsys):
    model = made_of("nn.Linear(17, 10)", tmp_path)
    code, shown, err = call(capsys, "baseline", model, "digits", "--method", "dual", "--out", tmp_path / "run")
    assert code in (2, 3)
    assert shown == ""
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()

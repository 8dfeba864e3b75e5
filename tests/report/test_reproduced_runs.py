"""The pages in docs/results made from our own runs: what they show follows from the runs kept beside them."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tyro

from smoothcert.cli.certify import Certify
from smoothcert.cli.train import Train
from smoothcert.runs.directory import open_run
from smoothcert.runs.verification import verify_run
from smoothcert.training.recipes import RECIPES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
KEPT = sorted(path.parent for folder in ("mnist", "cifar10") for path in (RESULTS / folder).glob("*/run.json"))


@pytest.fixture
def script(monkeypatch):
    """Import a script of reproduce/ by name."""
    monkeypatch.syspath_prepend(ROOT / "reproduce")
    yield importlib.import_module
    for name in ("mnist", "cifar10", "results"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_page_is_made_from_its_runs(script, name):
    assert script(name).page() == (RESULTS / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_kept_run_verifies(path):
    found = verify_run(path)
    assert found.problems == []
    assert found.recomputed == found.rows == 500


def test_networks_and_times_are_not_kept():
    """But the baselines pages show seconds."""
    kept = {path.relative_to(RESULTS).parts[0] for path in RESULTS.rglob("times.jsonl")}
    assert kept <= {"baselines", "baselines-cifar10"}
    assert list(RESULTS.rglob("*.safetensors")) == []


def parsed(command):
    """The settings that a command line of the page gives to `smoothcert`."""
    program, name, *words = command.split()
    assert program == "smoothcert"
    return asdict(tyro.cli({"train": Train, "certify": Certify}[name], args=words))


def test_the_mnist_page_shows_the_two_commands_of_every_kept_run(script):
    mnist = script("mnist")
    assert {row.name for row in mnist.ROWS} == {path.name for path in KEPT if path.parent.name == "mnist"}
    lines = mnist.PAGE.read_text("utf-8").splitlines()
    for row in mnist.ROWS:
        assert [line for line in lines if line in row.commands()] == row.commands()


def test_the_training_commands_of_the_mnist_page_are_those_that_were_recorded(script):
    mnist = script("mnist")
    for row in mnist.ROWS:
        record = json.loads((mnist.KEPT / row.name / "train.json").read_text("utf-8"))
        settings = parsed(row.commands()[0])
        assert settings["start"] is None
        assert record.get("start") is None
        assert (settings["arch"], settings["data"]) == (record["architecture"], "mnist")
        recipe = record["settings"].pop("recipe")
        assert RECIPES.text(RECIPES.parse(settings["recipe"])) == RECIPES.text(RECIPES[recipe.pop("name")](**recipe))
        assert {key: settings[key] for key in record["settings"]} == record["settings"]


def test_the_certification_commands_of_the_mnist_page_are_those_that_were_recorded(script):
    mnist = script("mnist")
    for row in mnist.ROWS:
        settings = parsed(row.commands()[1])
        values = open_run(mnist.KEPT / row.name).manifest.values
        assert {key: settings[key] for key in ("sigma", "alpha", "seed", "noise")}.items() <= values.items()
        # Without radii, the procedure auto is Planned.
        assert (settings["procedure"], settings["radii"], values["procedure"]["name"]) == ("auto", (), "Planned")
        assert {key: settings[key] for key in ("n_max", "rival", "effort")}.items() <= values["procedure"].items()
        assert settings["precision"] == values["plan"].get("precision", "fp32")
        assert list(range(0, 10_000, settings["every"])) == values["indices"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 13}, "epochs"),
        ({"recipe": "gaussian"}, "recipe"),
        ({"effort": "full"}, "effort"),
        ({"precision": "int8"}, "precision"),
    ],
)
def test_a_row_with_other_settings_than_its_run_is_refused(script, change, said):
    mnist = script("mnist")
    row = mnist.ROWS[-1]
    with pytest.raises(ValueError, match=f"{said} differ"):
        mnist.check_recorded(replace(row, **change), open_run(mnist.KEPT / row.name))


def test_a_network_that_began_with_the_weights_of_another_is_refused(script, tmp_path):
    mnist = script("mnist")
    row = mnist.ROWS[0]
    shutil.copytree(mnist.KEPT / row.name, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "train.json").read_text("utf-8"))
    (tmp_path / "run" / "train.json").write_text(json.dumps({**record, "start": "net/model.safetensors"}), "utf-8")
    with pytest.raises(ValueError, match="start differ"):
        mnist.check_recorded(row, open_run(tmp_path / "run"))


def test_what_the_mnist_page_concludes_follows_from_its_table(script):
    mnist = script("mnist")
    lines = [line.strip("| ").split(" | ") for line in mnist.PAGE.read_text("utf-8").splitlines() if "`" in line[:30]]
    table = {(line[1].strip("`").partition(":")[0], line[0]): line for line in lines if len(line) > 10}
    assert len(table) == len(mnist.ROWS)
    ours, papers, log, published = ({key: float(line[i]) for key, line in table.items()} for i in (3, 4, 5, 6))

    def percent(one, other):
        return [round(100 * (one[key] / other[key] - 1), 1) for key in table]

    assert percent(papers, log) == [1.8, 0.7, -3.5, -7.9, -4.0, -5.9]
    assert percent(ours, papers) == [0.0, 0.3, 8.6, 9.3, 6.2, 6.5]
    assert percent(log, published) == [-1.4, -1.4, -0.8, -0.4, -0.4, -0.5]
    at_one = [key for key in table if key[1] == "1"]
    ranking = sorted(at_one, key=published.get)
    assert [key[0] for key in ranking] == ["gaussian", "stability", "consistency", "smoothadv"]
    assert [key[0] for key in sorted(at_one, key=ours.get)] == ["stability", "gaussian", "consistency", "smoothadv"]
    draws = [int(table[key][-1].replace(",", "")) / 100_100 for key in at_one]
    assert (round(min(draws), 2), round(max(draws), 2)) == (0.19, 0.29)


def test_a_run_is_kept_without_its_network_and_this_machines_names(script, tmp_path):
    folder = tmp_path / "home" / "net" / "run"
    folder.parent.mkdir(parents=True)
    shutil.copytree(RESULTS / "baselines" / "smoothed_certified_sigma=0.5", folder)
    (folder.parent / "model.safetensors").write_bytes(b"weights")
    (folder.parent / "train.json").write_text(json.dumps({"start": "/home/me/other/model.safetensors"}))
    keep_run = script("results").keep_run
    keep_run(folder, tmp_path / "without", times=False)
    keep_run(folder, tmp_path / "with")
    files = {"certificates.jsonl", "run.json", "train.json"}
    assert {path.name for path in (tmp_path / "without").iterdir()} == files
    assert {path.name for path in (tmp_path / "with").iterdir()} == {*files, "times.jsonl"}
    assert json.loads((tmp_path / "with" / "train.json").read_text()) == {"start": "other/model.safetensors"}
    assert verify_run(tmp_path / "without").problems == []

"""`make reproduce-baselines`: the commands of reproduce/baselines.py, and the page that follows from its runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evidence import FOLDER
from smoothcert.cli import _parse
from smoothcert.cli.baseline import Baseline
from smoothcert.cli.certify import Certify
from smoothcert.cli.train import Train
from smoothcert.data.publications import WONG2018
from smoothcert.report.run_tables import run_table
from smoothcert.runs import open as open_run

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "reproduce" / "baselines.py"
RESULTS = ROOT / "docs" / "results"
RELEASED = FOLDER / "weights" / "wong2018"


@pytest.fixture
def script(monkeypatch):
    """reproduce/baselines.py as a module; its commands are recorded instead of run."""
    monkeypatch.syspath_prepend(ROOT / "reproduce")
    spec = importlib.util.spec_from_file_location("reproduce_baselines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.commands = []

    def record(jobs, *_, **__):
        for job in jobs:
            module.commands.extend(job.commands())

    monkeypatch.setattr(module, "smoothcert", module.commands.append)
    monkeypatch.setattr(module, "run_jobs", record)
    yield module
    sys.modules.pop("results", None)


def parsed(commands):
    return [_parse(list(map(str, words))) for words in commands if words[0] != "card"]


# ---- commands ------------------------------------------------------------------------------------------------------


def test_figure_13_trains_and_certifies_three_networks_on_the_data_that_is_named(script, tmp_path):
    script.compare(tmp_path, "svhn", None, workers=1)
    found = parsed(script.commands)
    assert {one.data for one in found} == {"svhn"}
    assert [one.arch for one in found if isinstance(one, Train)] == ["resnet20", "wong-cnn", "mlp-7"]
    assert [one.method for one in found if isinstance(one, Baseline)] == ["lipschitz", "crown"]
    (smoothed,) = (one for one in found if isinstance(one, Certify))
    assert (smoothed.sigma, smoothed.alpha, smoothed.n_max) == (0.1, 0.001, 100_000)
    for one in found:
        one.check()


@pytest.mark.skipif(not RELEASED.is_dir(), reason=f"the released network is not there: {RELEASED}")
def test_figure_7_bounds_the_first_network_of_the_released_cascade(script, monkeypatch, tmp_path):
    monkeypatch.setenv("SMOOTHCERT_DATA", str(tmp_path))
    (tmp_path / "wong2018").symlink_to(RELEASED.resolve())
    script.bound_released(tmp_path / "out")
    (command,) = parsed(script.commands)
    file = RELEASED / WONG2018.downloads[0].file
    cascade = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    network = command.model_spec(0.0).load().network
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = load_wong(cascade[0])
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    torch.testing.assert_close(network(pixels), plain((pixels - mean) / 0.225))
    assert (command.method, command.every, command.data) == ("dual", 50, "cifar10")


def load_wong(weights):
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 4, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 4, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(2048, 100),
        torch.nn.ReLU(),
        torch.nn.Linear(100, 10),
    )
    layers.load_state_dict(weights)
    return layers.eval()


def test_a_resnet_that_is_given_is_not_trained(script, tmp_path):
    script.certify_resnet(tmp_path, Path("net"))
    script.certify_resnet(tmp_path, None)
    given, train, own = parsed(script.commands)
    assert (given.model, own.model) == ("net", str(tmp_path / "resnet56"))
    assert (train.arch, train.sigma, train.epochs) == ("resnet56", 0.25, 30)
    assert given.radii == own.radii == script.RADII_7
    assert given.known_labels


def test_without_the_released_network_one_line_says_what_to_run(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path / "out"],
        env={**os.environ, "SMOOTHCERT_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: wong2018 is not there")
    assert done.stderr.endswith("Run: smoothcert data fetch wong2018\n")
    assert not (tmp_path / "out").exists()


# ---- the page ------------------------------------------------------------------------------------------------------


def rows_of(page):
    """Cells of all tables by the name of the row."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[0]: [cell.strip("*") for cell in cells[1:]] for cells in lines}


@pytest.mark.parametrize("figure", ["figure7", "figure13"])
def test_the_accuracies_on_the_page_follow_from_the_runs_that_are_kept(script, figure):
    shown = rows_of((RESULTS / "baselines-cifar10.md").read_text("utf-8"))
    kept = RESULTS / "baselines-cifar10"
    comparison = script.figure7(Path()) if figure == "figure7" else script.figure13(Path(), "cifar10")
    runs = [open_run(kept / f"{path.parent.name}_{path.name}") for path in comparison.lines.values()]
    table = run_table(runs, comparison.radii)
    assert len({tuple(row["index"] for row in run.rows) for run in runs}) == 1
    for number, name in enumerate(comparison.lines):
        cells = [column.cells[number] for column in table.columns]
        assert shown[name][: len(cells)] == cells

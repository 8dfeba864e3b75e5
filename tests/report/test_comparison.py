"""Certifiers side by side: only on the same inputs, with what each of them takes."""

import json
import shutil

import numpy as np
import pytest
import torch

from attack_fixtures import attack, bound, certified, forged, half_spaces, pixels, relu_network, replaced
from page_fixtures import imported, made_run
from smoothcert import runs
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.models.spec import ModelSpec
from smoothcert.report.comparison import check_comparable, comparison_table
from smoothcert.report.run_tables import as_markdown, run_table
from smoothcert.runs.bounding import bound_dataset
from smoothcert.runs.directory import TIMES, Run
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.settings import BoundSettings
from smoothcert.training.loop import seeded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three certifiers of one network on the same inputs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs")
    bound(path / "crown", method="crown")
    bound(path / "lipschitz", method="lipschitz")
    certified(path / "smoothed", pixels(), network=relu_network())
    torch.set_num_threads(before)
    return path


@pytest.fixture
def opened(folder):
    return lambda *names: [runs.open(folder / name) for name in names]


def column(table, heading):
    [found] = [one for one in table.columns if one.heading == heading]
    return found


# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_table_is_that_of_the_runs_with_their_times(opened):
    found = opened("crown", "lipschitz", "smoothed")
    table, plain = comparison_table(found, (0.0, 0.05)), run_table(found, (0.0, 0.05))
    assert table.names == plain.names == ("CROWN", "Lipschitz margin", "σ = 0.5")
    assert table.columns[: len(plain.columns)] == plain.columns
    assert [one.heading for one in table.columns[len(plain.columns) :]] == ["training s", "s / input"]
    assert "All on the same 11 inputs of pixels.npz" in table.notes[0]
    assert any("deterministic" in note for note in table.notes)


def test_seconds_per_input_are_the_mean_of_those_noted(opened):
    found = opened("crown", "smoothed")
    shown = column(comparison_table(found), "s / input")
    for run, value in zip(found, shown.values, strict=True):
        noted = [json.loads(line)["seconds"] for line in (run.path / TIMES).read_text().splitlines()]
        assert len(noted) == 11
        assert value == pytest.approx(np.mean(noted))
    assert not shown.compared, "a long time is not the best"


def test_without_times_nothing_is_said(folder, tmp_path):
    paths = [shutil.copytree(folder / name, tmp_path / name) for name in ("crown", "smoothed")]
    (paths[0] / TIMES).unlink()
    (paths[1] / TIMES).write_text("not a number\n")
    shown = column(comparison_table([runs.open(path) for path in paths]), "s / input")
    assert (shown.values, shown.cells) == ((None, None), ("", ""))


def trained(folder, seconds=None):
    """A network in the folder of its training."""
    folder.mkdir()
    blueprint = Blueprint(architecture="small-cnn", num_classes=10, input_shape=(1, 8, 8))
    save_checkpoint(folder / "model.safetensors", seeded(small_cnn, 0), blueprint)
    if seconds is not None:
        (folder / "train.json").write_text(json.dumps({"result": {"seconds": seconds}}))
    return folder


def test_training_times_come_from_where_the_network_lies(tmp_path):
    data = ArrayData(np.zeros((2, 1, 8, 8), np.uint8), np.zeros(2, np.int64), None, "dark")
    found = []
    for name, source, seconds in (
        ("file", "model.safetensors", 1234.6),
        ("unknown", "model.safetensors", None),
        ("broken", "model.safetensors", "long"),
    ):
        path = trained(tmp_path / name, seconds)
        settings = BoundSettings(method="lipschitz")
        found.append(bound_dataset(ModelSpec(source=str(path / source)), data, settings, tmp_path / f"{name}-run"))
    shown = column(comparison_table(found, (0.0,)), "training s")
    assert shown.values == (1234.6, None, None)
    assert shown.cells == ("1,235", "", "")
    shutil.rmtree(tmp_path / "file")
    assert column(comparison_table(found, (0.0,)), "training s").values == (None, None, None)


def test_a_comparison_can_be_written_as_markdown(opened):
    text = as_markdown(comparison_table(opened("crown", "smoothed"), (0.0, 0.05)))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:1] + lines[2:]}) == 1
    assert len(lines) == 4


# ---- what cannot be compared ---------------------------------------------------------------------------------------


def test_one_run_or_none_is_no_comparison(opened):
    for few in ([], opened("crown")):
        with pytest.raises(ConfigError, match=f"at least two runs to compare, got {len(few)}"):
            comparison_table(few)


def test_other_inputs_of_the_same_data_are_refused(opened, tmp_path):
    for indices in ([0, 1, 2], [*range(1, 11), 0]):
        other = bound(tmp_path / f"run-{len(indices)}", indices=indices, method="lipschitz")
        with pytest.raises(ConfigError, match="is not on the same inputs"):
            comparison_table([*opened("crown"), other])


def test_a_run_that_is_not_done_is_refused(opened):
    [run, other] = opened("crown", "lipschitz")
    with pytest.raises(ConfigError, match="let both runs end"):
        comparison_table([run, Run(other.path, other.manifest, other.rows[:5])])


def test_two_runs_without_rows_are_refused(opened):
    halves = [Run(run.path, run.manifest, []) for run in opened("crown", "lipschitz")]
    with pytest.raises(ConfigError, match="no rows"):
        comparison_table(halves)


def test_other_data_are_refused_though_they_have_the_same_name(opened, tmp_path):
    data = pixels()
    data.inputs[0, 0, 0, 0] ^= 1
    other = bound(tmp_path / "run", data, method="lipschitz")
    assert other.manifest.values["data"]["name"] == "pixels.npz"
    with pytest.raises(ConfigError, match="not on the same data"):
        comparison_table([*opened("crown"), other])


def test_any_of_several_may_be_the_wrong_one(opened, tmp_path):
    other = bound(tmp_path / "run", indices=[0, 1], method="lipschitz")
    with pytest.raises(ConfigError, match="is not on the same inputs"):
        check_comparable([*opened("crown", "lipschitz"), other])
    check_comparable(opened("crown", "lipschitz", "smoothed"))


def test_logs_do_not_say_what_they_are_about(tmp_path):
    log = imported(tmp_path)
    with pytest.raises(ConfigError, match="not on the same data"):
        comparison_table([log, log])


def test_predictions_and_attacks_are_refused(monkeypatch, opened, tmp_path):
    replaced(monkeypatch, lambda target, _: target.x)
    data = half_spaces()
    attacked = attack(
        certified(tmp_path / "certified", data), tmp_path / "attacked", factor=(1.0,), attacks=("strong",)
    )
    predicted = made_run("sequential", 11)
    for other in (attacked, predicted):
        with pytest.raises(ConfigError, match=f"runs that certify.*{other.manifest.kind!r}"):
            comparison_table([*opened("crown"), other])


def test_forged_votes_count_for_less_here_too(folder, tmp_path):
    """Claims are computed anew from the votes, as in every table."""
    shutil.copytree(folder / "smoothed", tmp_path / "forged")
    false = forged(tmp_path / "forged", lambda row: row.update(radius=3 * row["radius"]))
    table = comparison_table([runs.open(folder / "crown"), false])
    assert any("do not give what is recorded" in note for note in table.notes)
    assert column(table, "ACR").values[1] == column(run_table([runs.open(folder / "smoothed")]), "ACR").values[0]


def test_runs_of_other_indices_in_the_manifest_are_told_by_their_rows(opened):
    [run, other] = opened("crown", "lipschitz")
    moved = Manifest({**other.manifest.values, "indices": list(range(1, 12))})
    rows = [{**row, "index": row["index"] + 1} for row in other.rows]
    with pytest.raises(ConfigError, match="same inputs"):
        check_comparable([run, Run(other.path, moved, rows)])

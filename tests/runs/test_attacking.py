"""Runs that attack: only what is certified, judged by fresh draws, the same bytes however they came about."""

import shutil

import numpy as np
import pytest
import torch

from attack_fixtures import (
    DISTANCES,
    SIGMA,
    WRONG,
    attack,
    certified,
    cut,
    half_spaces,
    linear,
    replaced,
    rows_path,
    with_small_attacks,
)
from smoothcert import Smoothed, runs
from smoothcert.attacks.on_smoothed import PaperAttack
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError, InputError, ModelChangedError, ModelError, ResumeError
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.attack_summary import outcomes, summarize_attack
from smoothcert.runs.attacking import certified_inputs, pack, unpack
from smoothcert.runs.bounding import bound_dataset
from smoothcert.runs.settings import AttackSettings, BoundSettings
from smoothcert.stats.procedures import SequentialPredict, describe


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(monkeypatch):
    with_small_attacks(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("certified") / "run")


# ---- which inputs, and what their rows hold ------------------------------------------------------------------------


def test_rows_are_those_of_the_inputs_that_are_certified_and_right(small, run, tmp_path):
    assert run.rows[WRONG]["radius"] > 0, "the input of another class is certified"
    assert run.rows[2]["label"] is None, "the input at the boundary is not"
    found = attack(run, tmp_path / "run", attacks=("paper",), factor=(1.0, 3.0))
    expected = [k for k in range(len(DISTANCES)) if k not in (2, WRONG)]
    assert [row["index"] for row in found.rows] == found.manifest.indices == expected
    for row in found.rows:
        old = run.rows[row["index"]]
        assert {name: row[name] for name in ("input", "true", "label", "radius", "noise")} == {
            name: old[name] for name in ("input", "true", "label", "radius", "noise")
        }
        assert [(one["attack"], one["factor"]) for one in row["attempts"]] == [("paper", 1.0), ("paper", 3.0)]
    assert found.rows == runs.open(tmp_path / "run").rows


def test_without_labels_everything_certified_is_attacked(small, tmp_path):
    data = half_spaces(labelled=False)
    run = certified(tmp_path / "certified", data)
    found = attack(run, tmp_path / "run", data, attacks=("paper",), factor=(1.0,))
    assert [row["index"] for row in found.rows] == [k for k in range(len(DISTANCES)) if k != 2]
    assert all(row["true"] is None for row in found.rows)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 8, 100])
def test_fewer_inputs_are_taken_evenly(monkeypatch, run, tmp_path, most):
    replaced(monkeypatch, lambda target, *_: target.x)
    eligible = sorted(certified_inputs(run))
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(1.0,), most=most, n_max=100)
    places = [eligible.index(row["index"]) for row in found.rows]
    assert len(places) == min(most, len(eligible))
    assert places[0] == 0
    if most > 1:
        assert places[-1] == len(eligible) - 1
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1


def test_the_manifest_says_what_was_attacked_and_how(small, run, tmp_path):
    found = attack(run, tmp_path / "run", attacks=("ddn",), factor=(1.0, 2), alpha=0.01, n_max=500, seed=7, clip=True)
    values = found.manifest.values
    assert (values["kind"], values["sigma"], values["alpha"], values["seed"]) == ("attack", SIGMA, 0.01, 7)
    assert (values["attacks"], values["factors"], values["clip"]) == (["ddn"], [1.0, 2.0], True)
    assert values["procedure"] == describe(SequentialPredict(alpha=0.01, n_max=500))
    assert values["attacked"] == {"run": run.manifest.run_id, "alpha": 0.001, "source": str(run.path)}
    assert values["model"]["weights_hash"] == run.manifest.values["model"]["weights_hash"]
    assert values["data"] == run.manifest.values["data"]


def test_the_manifest_holds_the_settings_of_each_attack(monkeypatch, run, tmp_path):
    replaced(monkeypatch, lambda target, *_: target.x)
    monkeypatch.setattr(PaperAttack, "search", lambda _, target, *__: target.x)
    found = attack(run, tmp_path / "run", attacks=("paper", "strong"), factor=(1.0,), n_max=100, precision="bf16")
    assert found.manifest.values["attack_settings"] == {
        "paper": {
            "batch_size": 256,
            "precision": "bf16",
            "step_size": 0.1,
            "steps": 20,
            "copies": 1000,
            "most_steps": 1000,
        },
        "strong": {"batch_size": 256, "precision": "bf16"},
    }


def test_the_judge_runs_in_fp32_whatever_the_precision_of_the_search(monkeypatch, run, tmp_path):
    mixed = []
    predict = Smoothed.predict

    def watched(self, x, *rest, **options):
        mixed.append(torch.is_autocast_enabled("cpu"))
        return predict(self, x, *rest, **options)

    def search(target, radius):
        assert torch.is_autocast_enabled("cpu")
        return target.x

    monkeypatch.setattr(Smoothed, "predict", watched)
    replaced(monkeypatch, search)
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(1.0,), precision="bf16")
    assert not found.errors
    assert mixed == [False] * len(found.rows)


def test_with_clip_points_stay_in_the_range_of_pixels(monkeypatch, run, tmp_path):
    seen = []
    predict = Smoothed.predict

    def watched(self, x, *args, **options):
        seen.append(x)
        return predict(self, x, *args, **options)

    monkeypatch.setattr(Smoothed, "predict", watched)
    replaced(monkeypatch, lambda target, *_: target.x + 100)
    attack(run, tmp_path / "clipped", attacks=("strong",), factor=(8.0,), clip=True)
    assert all(x.max() <= 1 for x in seen)
    seen.clear()
    attack(run, tmp_path / "free", attacks=("strong",), factor=(8.0,))
    assert all(x.max() > 1 for x in seen)


# ---- the same bytes ------------------------------------------------------------------------------------------------

CHEAP = {"attacks": ("paper", "ddn"), "factor": (1.0, 2.0)}


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """A run that nothing disturbed; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        with_small_attacks(patch)
        return attack(run, tmp_path_factory.mktemp("whole") / "run", **CHEAP).path


@pytest.mark.parametrize(("lines", "torn"), [(0, 0), (3, 0), (3, 50), (7, 400), (7, 1)])
def test_a_run_goes_on_from_anywhere_and_ends_the_same(small, run, whole, tmp_path, lines, torn):
    shutil.copytree(whole, tmp_path / "run")
    cut(tmp_path / "run", lines, torn)
    assert len(runs.open(tmp_path / "run").rows) == lines
    told = []
    found = attack(run, tmp_path / "run", resume=True, watch=lambda rows, _: told.extend(rows), **CHEAP)
    assert found.complete
    assert [row["index"] for row in told] == found.manifest.indices[lines:]
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_every_forward_pass_of_an_attack_is_heard_of(small, run, tmp_path):
    """So that --timeout can tell a long attack from one that hangs."""
    heard = []
    found = attack(run, tmp_path / "run", attacks=("paper",), factor=(1.0,), draws=heard.append)
    steps = 4 * len(found.rows)
    assert heard.count(0) > steps
    assert sum(heard) == sum(stage["n"] for row in found.rows for one in row["attempts"] for stage in one["stages"])


def test_ctrl_c_in_the_middle_keeps_what_is_done(small, run, whole, tmp_path):
    count = 0

    def stop(*_):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack(run, tmp_path / "run", watch=stop, **CHEAP)
    assert len(runs.open(tmp_path / "run").rows) == 3
    attack(run, tmp_path / "run", resume=True, **CHEAP)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(small, run, whole, tmp_path):
    attack(run, tmp_path / "again", **CHEAP)
    other = attack(run, tmp_path / "other", seed=1, **CHEAP)
    assert rows_path(tmp_path / "again").read_bytes() == rows_path(whole).read_bytes()
    for row, old in zip(other.rows, runs.open(whole).rows, strict=True):
        assert [one["stages"] for one in row["attempts"]] != [one["stages"] for one in old["attempts"]]


def test_inputs_do_not_depend_on_their_neighbours(small, run, whole, tmp_path):
    some = attack(run, tmp_path / "run", most=3, **CHEAP)
    everything = {row["index"]: row for row in runs.open(whole).rows}
    assert some.rows == [everything[index] for index in some.manifest.indices]


def test_attempts_do_not_depend_on_those_before_them(small, run, whole, tmp_path):
    alone = attack(run, tmp_path / "run", attacks=("ddn",), factor=(2.0,))
    for row, old in zip(alone.rows, runs.open(whole).rows, strict=True):
        assert row["attempts"] == old["attempts"][-1:]


def test_without_a_seed_a_run_keeps_its_key_and_another_one_has_its_own(small, run, tmp_path):
    few = {"attacks": ("paper",), "factor": (2.0,), "most": 3, "seed": None}
    first = attack(run, tmp_path / "run", **few)
    content = rows_path(tmp_path / "run").read_bytes()
    cut(tmp_path / "run", 1)
    attack(run, tmp_path / "run", resume=True, **few)
    assert rows_path(tmp_path / "run").read_bytes() == content
    other = attack(run, tmp_path / "other", **few)
    assert other.manifest.values["key"] != first.manifest.values["key"]


def test_two_processes_write_the_same_bytes(run, tmp_path):
    few = {"attacks": ("strong",), "factor": (2.0,), "most": 3}
    attack(run, tmp_path / "here", **few)
    attack(run, tmp_path / "two", workers=2, **few)
    content = rows_path(tmp_path / "here").read_bytes()
    assert content.count(b"\n") == 3
    assert rows_path(tmp_path / "two").read_bytes() == content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"factor": (1.0, 3.0)}, "factors"),
        ({"attacks": ("paper",)}, "attacks"),
        ({"alpha": 0.01}, "alpha"),
        ({"n_max": 999}, r"procedure\.n_max"),
        ({"clip": True}, "clip"),
        ({"precision": "bf16"}, r"attack_settings\.paper\.precision"),
        ({"seed": 5}, "seed"),
        ({"most": 2}, "indices"),
    ],
)
def test_another_setting_is_named_and_nothing_is_touched(small, run, whole, tmp_path, changes, said):
    shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ResumeError, match=said):
        attack(run, tmp_path / "run", resume=True, **{**CHEAP, **changes})
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_a_run_of_other_certificates_is_not_gone_on_with(small, run, whole, tmp_path):
    other = certified(tmp_path / "other", seed=9)
    shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ResumeError, match=r"attacked\.run"):
        attack(other, tmp_path / "run", resume=True, **CHEAP)


# ---- what is refused, and what fails -------------------------------------------------------------------------------


def test_other_data_and_another_model_are_refused_and_nothing_is_left(run, tmp_path):
    data = half_spaces()
    other = ArrayData(1 - data.inputs, data.labels, None, data.name)
    with pytest.raises(InputError, match=r"half-spaces.npz is not the data of .*: its fingerprint is another"):
        attack(run, tmp_path / "run", other)
    network = linear()
    with torch.no_grad():
        network[1].bias += 1e-3
    with pytest.raises(ModelError, match="its weights are others"):
        attack(run, tmp_path / "run", network=network)
    assert list(tmp_path.iterdir()) == []


def test_only_runs_that_certify_by_smoothing_are_attacked(small, run, tmp_path):
    predictions = runs.predict_dataset(
        linear(), half_spaces(), tmp_path / "predicted", runs.PredictSettings(sigma=SIGMA, n_max=50, seed=0)
    )
    bounds = bound_dataset(
        ModelSpec(source=linear()), half_spaces(), BoundSettings(method="lipschitz"), tmp_path / "bounds"
    )
    attacked = attack(run, tmp_path / "attacked", attacks=("paper",), factor=(1.0,), most=1)
    for other in (predictions, bounds, attacked):
        with pytest.raises(ConfigError, match=rf"Expected a run of `smoothcert certify`.*{other.manifest.kind!r}"):
            attack(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_certifies_nothing_has_nothing_to_attack(tmp_path):
    data = half_spaces((0.001, -0.001))
    run = certified(tmp_path / "certified", data)
    with pytest.raises(ConfigError, match="nothing to attack"):
        attack(run, tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"factor": ()}, "`factor`"),
        ({"factor": (1.0, -1.0)}, "`factor`"),
        ({"factor": (float("nan"),)}, "`factor`"),
        ({"factor": (1.0, 2.0, 1.0)}, "`factor`"),  # or its attempts would count twice
        ({"attacks": ()}, "`attacks`"),
        ({"attacks": ("paper", "paper")}, "`attacks`"),
        ({"attacks": ("pgd",)}, "`attacks`"),
        ({"precision": "int8"}, "`precision`"),
        ({"alpha": 0.0}, "`alpha`"),
        ({"n_max": 0}, "`n_max`"),
        ({"workers": 0}, "`workers`"),
        ({"timeout": 0.0}, "`timeout`"),
    ],
)
def test_settings_out_of_range_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        AttackSettings(**changes).check()


def test_a_model_without_gradients_is_refused_before_anything_is_written(tmp_path):
    def labels(batch):
        return (batch.flatten(1).mean(1) > 0.5).long()

    data = half_spaces()
    settings = runs.CertifySettings(sigma=SIGMA, n_max=200, procedure="paper", seed=0, batch_size=100)
    source = ModelSpec(source=labels, settings={"num_classes": 2})
    from smoothcert.runs.attacking import attack_run
    from smoothcert.runs.smoothing import run_dataset

    run = run_dataset(source, ArrayData(data.inputs, None, None, data.name), settings, tmp_path / "certified")
    with pytest.raises(ModelError, match="scores"):
        attack_run(run, source, ArrayData(data.inputs, None, None, data.name), AttackSettings(seed=0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Damaged(ArrayData):
    """The same data, some of whose inputs cannot be read any more, or not as numbers."""

    def __getitem__(self, index):
        if index == 4:
            raise OSError("no such\npicture")
        return np.full_like(self.inputs[index], np.nan) if index == 6 else self.inputs[index]


def test_inputs_that_cannot_be_read_or_hold_no_numbers_get_a_row_that_says_so(small, run, whole, tmp_path):
    data = half_spaces()
    damaged = Damaged(data.inputs, data.labels, None, data.name)
    found = attack(run, tmp_path / "run", damaged, **CHEAP)
    errors = {row["index"]: row["error"] for row in found.errors}
    assert set(errors) == {4, 6}
    assert errors[4] == "OSError: no such picture"
    assert errors[6].startswith("InputError: Expected finite")
    assert all("attempts" not in row for row in found.errors)
    others = [row for row in found.rows if row["index"] not in (4, 6)]
    assert others == [row for row in runs.open(whole).rows if row["index"] not in (4, 6)]
    assert summarize_attack(found)["errors"] == 2
    assert all(one.attempts == len(found.rows) - 2 for one in outcomes(found))


def test_an_attack_that_fails_costs_its_input_only(monkeypatch, run, tmp_path):
    def fails(target, radius):
        if target.label == 0:
            raise RuntimeError("lost my way")
        return target.x

    replaced(monkeypatch, fails)
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(1.0,))
    assert {row["index"] for row in found.errors} == {1, 4, 7}
    assert all(row["error"] == "RuntimeError: lost my way" for row in found.errors)


def test_an_attack_that_changes_the_weights_ends_the_run(monkeypatch, run, tmp_path):
    def changes(target, radius):
        next(target.model.parameters()).data += 1e-3
        return target.x

    replaced(monkeypatch, changes)
    with pytest.raises(ModelChangedError, match="changed"):
        attack(run, tmp_path / "run", attacks=("strong",), factor=(1.0,))
    assert runs.open(tmp_path / "run").rows == []


# ---- points in rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 32, 32), (5,)])
def test_a_packed_point_is_unpacked_as_it_was(shape):
    point = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    point.flat[0] = np.float32(1e-45)
    packed = pack(point)
    assert set(packed) == {"shape", "float32"}
    assert packed["float32"].isascii()
    assert unpack(packed).shape == shape
    assert unpack(packed).tobytes() == point.tobytes()


# ---- from Python ---------------------------------------------------------------------------------------------------


def test_the_same_attack_from_python(small, run, whole, tmp_path):
    settings = runs.AttackSettings(seed=0, n_max=1000, **CHEAP)
    found = runs.attack(run, linear(), half_spaces(), tmp_path / "run", settings)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()
    some = runs.attack(run, linear(), half_spaces(), str(tmp_path / "some"), settings, inputs=2)
    assert some.rows == [found.rows[0], found.rows[-1]]
    again = runs.attack(run, linear(), half_spaces(), tmp_path / "some", settings, inputs=2, resume=True)
    assert again.rows == some.rows

"""Runs of deterministic bounds: a class and a radius for each input, by no chance at all."""

import itertools
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from attack_fixtures import SHAPE, bound, cut, distance, forged, half_spaces, linear, pixels, relu_network, rows_path
from smoothcert import runs
from smoothcert.attacks.foolbox_attacks import attack_base
from smoothcert.baselines.methods import make_certifier
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelChangedError, ModelError, ResumeError
from smoothcert.models.architectures import mlp
from smoothcert.models.spec import ModelSpec
from smoothcert.report.claims import claims
from smoothcert.runs import bounding
from smoothcert.runs.directory import TIMES
from smoothcert.runs.redrawing import draw_again
from smoothcert.runs.verification import verify_run
from smoothcert.time_limit import TimeLimit, TimeLimitError
from smoothcert.training.loop import seeded

METHODS = ("lipschitz", "dual", "crown")  # auto_LiRPA is tested with a stand-in

SLOW = pytest.mark.slow
METHODS = ("lipschitz", "dual", "crown")
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed; not to be changed."""
    return bound(tmp_path_factory.mktemp("whole") / "run").path


# ---- what rows hold ------------------------------------------------------------------------------------------------


@every_method
def test_rows_are_what_the_method_says_of_each_input(tmp_path, method):
    data = pixels()
    run = bound(tmp_path / "run", data, method=method)
    certifier = make_certifier(method, relu_network(), SHAPE)
    for row, x in zip(run.rows, data.inputs, strict=True):
        [label], [radius] = certifier(torch.from_numpy(x)[None].float() / 255)
        assert row["label"] == int(label)
        assert row["radius"] == pytest.approx(float(radius), rel=1e-9)
    assert [row["true"] for row in run.rows] == data.labels.tolist()
    assert [row["index"] for row in run.rows] == list(range(11))
    assert all(set(row) == {"index", "true", "input", "label", "radius"} for row in run.rows)
    assert sum(row["radius"] > 0 for row in run.rows) == 11


def test_the_same_run_from_python(whole, tmp_path):
    settings = runs.BoundSettings(method="dual", batch_size=4)
    runs.bound_dataset(relu_network(), pixels(), tmp_path / "run", settings)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()
    some = runs.bound_dataset(relu_network(), pixels(), str(tmp_path / "some"), settings, indices=[8, 9, 10])
    assert [row["radius"] for row in some.rows] == [row["radius"] for row in runs.open(whole).rows[8:]]


@every_method
def test_of_a_linear_classifier_the_radius_is_the_distance_to_the_boundary(tmp_path, method):
    data = half_spaces()
    run = bound(tmp_path / "run", data, network=linear(), method=method)
    for row, x in zip(run.rows, data.inputs, strict=True):
        d = distance(x)
        assert row["label"] == int(d > 0)
        assert row["radius"] <= abs(d) + 1e-7  # weights are rounded to float32
        assert row["radius"] == pytest.approx(abs(d), rel=2e-3, abs=1e-5)  # float32 may lose the last digits


@every_method
def test_no_attack_gets_through_below_the_radius(tmp_path, method):
    data = pixels(5)
    run = bound(tmp_path / "run", data, method=method)
    x = torch.from_numpy(data.inputs).float() / 255
    answers = torch.tensor([row["label"] for row in run.rows])
    found = attack_base(relu_network(), x, answers, ("deepfool", "pgd"), clip=False, steps=20)
    for row, *norms in zip(run.rows, *(one.norms.tolist() for one in found.values()), strict=True):
        assert row["radius"] < min(norms)


def test_crown_certifies_no_less_than_dual_and_both_more_than_lipschitz(tmp_path):
    radii = {
        method: np.array([row["radius"] for row in bound(tmp_path / method, method=method).rows]) for method in METHODS
    }
    assert (radii["crown"] >= radii["dual"]).all()
    assert radii["dual"].mean() > radii["lipschitz"].mean()


def test_the_manifest_says_that_nothing_is_random(whole):
    run = runs.open(whole)
    values = run.manifest.values
    assert (values["kind"], values["alpha"], values["sigma"], values["noise"]) == ("bound", 0.0, 0.0, "none")
    assert values["procedure"] == {"name": "deterministic", "method": "dual"}
    assert "key" not in values
    assert "seed" not in values
    assert values["model"]["num_classes"] == 4
    assert run.certifies
    assert not run.has_votes
    assert not run.predicts
    assert (whole / TIMES).read_text().count("\n") == 11


def test_claims_and_the_table_of_a_run_are_its_rows(whole):
    run = runs.open(whole)
    assert [(one.label, one.radius, one.disputed) for one in claims(run)] == [
        (row["label"], row["radius"], False) for row in run.rows
    ]
    table = run.table()
    assert table["draws"] == [None] * 11
    assert table["radius"] == [row["radius"] for row in run.rows]
    assert table["correct"] == [row["label"] == row["true"] for row in run.rows]
    assert 0 < sum(table["correct"]) < 11


# ---- the same bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "torn"), [(0, 0), (3, 0), (4, 30), (10, 1)])
def test_a_run_goes_on_from_anywhere_and_ends_the_same(whole, tmp_path, lines, torn):
    shutil.copytree(whole, tmp_path / "run")
    cut(tmp_path / "run", lines, torn)
    told = []
    run = bound(tmp_path / "run", resume=True, watch=lambda rows, _: told.extend(rows))
    assert run.complete
    assert [row["index"] for row in told] == list(range(lines, 11))
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_ctrl_c_in_the_middle_keeps_what_is_done(whole, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bound(tmp_path / "run", watch=stop)
    assert len(runs.open(tmp_path / "run").rows) == 4
    bound(tmp_path / "run", resume=True)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_two_processes_write_the_same_bytes(whole, tmp_path):
    bound(tmp_path / "run", workers=2)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


@pytest.mark.parametrize("method", ["lipschitz", *(pytest.param(one, marks=SLOW) for one in ("dual", "crown"))])
def test_the_number_of_threads_makes_no_difference(tmp_path, method):
    """Nor does, therefore, the number of processes that share a machine's cores."""
    data = ArrayData(np.random.default_rng(0).integers(256, size=(4, 3, 16, 16), dtype=np.uint8), None, None, "noise")
    model = seeded(lambda: mlp(768, 200, 100), 0)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        bound(tmp_path / str(threads), data, network=model, method=method)
    assert rows_path(tmp_path / "1").read_bytes() == rows_path(tmp_path / "2").read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "crown"}, r"procedure\.method"),
        ({"batch_size": 3}, r"plan\.chunk"),
        ({"indices": [0, 1]}, "indices"),
        ({"network": seeded(lambda: mlp(16, 8, classes=4), 1)}, r"model\.weights_hash"),
        ({"data": pixels(12)}, "data"),
    ],
)
def test_another_setting_is_named_and_nothing_is_touched(whole, tmp_path, changes, said):
    shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ResumeError, match=said):
        bound(tmp_path / "run", resume=True, **changes)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_a_run_that_certifies_by_smoothing_is_not_gone_on_with(tmp_path):
    settings = runs.CertifySettings(sigma=0.5, n_max=100, seed=0, batch_size=50)
    runs.certify_dataset(relu_network(), pixels(2), tmp_path / "run", settings)
    with pytest.raises(ResumeError, match="kind"):
        bound(tmp_path / "run", pixels(2), resume=True)


# ---- what is refused, and what fails -------------------------------------------------------------------------------

UNSUPPORTED = {
    "tanh": lambda: relu_network(nn.Tanh()),
    "gelu": lambda: relu_network(nn.GELU()),
    "layer norm": lambda: relu_network(nn.LayerNorm(12)),
    "softmax": lambda: nn.Sequential(relu_network(), nn.Softmax(1)),
}


@every_method
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_a_network_with_other_layers_is_refused_before_anything_is_written(tmp_path, method, kind):
    with pytest.raises(ModelError, match=r"cannot be bounded\. Supported are linear and convolutional"):
        bound(tmp_path / "run", network=UNSUPPORTED[kind](), method=method)
    assert list(tmp_path.iterdir()) == []


def test_a_function_is_refused_before_anything_is_written(tmp_path):
    def mean(batch):
        score = batch.flatten(1).mean(1)
        return torch.stack([score, 1 - score], 1)

    with pytest.raises(ModelError, match="Supported are"):
        bound(tmp_path / "run", network=mean)
    assert list(tmp_path.iterdir()) == []


def test_inputs_of_another_shape_are_refused_before_anything_is_written(tmp_path):
    data = ArrayData(np.zeros((2, 1, 5, 5), np.uint8), None, None, "squares")
    with pytest.raises((InputError, ModelError)):
        bound(tmp_path / "run", data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "magic"}, "`method`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"workers": 0}, "`workers`"),
        ({"device": "abacus"}, "`device`"),
        ({"indices": [0, 0]}, "indices"),
    ],
)
def test_settings_out_of_range_are_refused_and_nothing_is_written(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        bound(tmp_path / "run", **changes)
    assert list(tmp_path.iterdir()) == []


class Damaged(ArrayData):
    """Data one of whose inputs cannot be read, and two are no pictures."""

    def __getitem__(self, index):
        if index == 0:
            raise OSError("no such\npicture")
        x = np.float32(self.inputs[index]) / np.float32(255)
        return {5: np.full_like(x, np.nan), 6: x + 2}.get(index, x)


def test_inputs_that_cannot_be_bounded_get_a_row_that_says_so(tmp_path, whole):
    data = pixels()
    run = bound(tmp_path / "run", Damaged(data.inputs, data.labels, None, data.name))
    errors = {row["index"]: row["error"] for row in run.errors}
    assert set(errors) == {0, 5, 6}
    assert errors[0] == "OSError: no such picture"
    assert errors[5].startswith("InputError: Expected finite values")
    assert "outside the declared range" in errors[6]
    assert all("radius" not in row for row in run.errors)
    for row, old in zip(run.rows, runs.open(whole).rows, strict=True):
        if row["index"] not in errors:
            assert row["label"] == old["label"]
            assert row["radius"] == pytest.approx(old["radius"], rel=1e-9)
    assert run.complete
    assert claims(run)[0].radius == 0.0


def test_a_network_that_changes_its_weights_ends_the_run(tmp_path):
    model = relu_network()
    rows = []

    def spoil(done, _):
        rows.extend(done)
        model[1].weight.data += 1e-3

    with pytest.raises(ModelChangedError):
        bound(tmp_path / "run", network=model, watch=spoil)
    assert runs.open(tmp_path / "run").rows == rows
    assert len(rows) == 4


def test_the_network_is_left_as_it_was(tmp_path):
    model = relu_network(nn.Dropout(0.5))
    model.train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    bound(tmp_path / "run", network=model)
    assert model.training
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.requires_grad and one.grad is None for one in model.parameters())


# ---- verifying -----------------------------------------------------------------------------------------------------


@every_method
def test_bounds_computed_again_are_the_same_and_a_forged_one_is_not(tmp_path, method):
    run, spec = bound(tmp_path / "run", method=method), ModelSpec(source=relu_network())
    assert draw_again(run, spec, pixels(), 11) == (11, [])
    found = verify_run(tmp_path / "run")
    assert found.passed
    assert any("--again" in words for words in found.unchecked)
    false = forged(tmp_path / "run", lambda row: row.update(radius=row["radius"] * (1.01 if row["index"] == 5 else 1)))
    assert verify_run(tmp_path / "run").passed, "by itself a run cannot show it"
    made, problems = draw_again(false, spec, pixels(), 11)
    assert made == 11
    assert [problem.line for problem in problems] == [6]
    assert "radius" in str(problems[0])


def test_a_forged_class_is_seen_when_computed_again(tmp_path):
    bound(tmp_path / "run")
    false = forged(tmp_path / "run", lambda row: row.update(label=(row["label"] + (row["index"] == 2)) % 4))
    _, problems = draw_again(false, ModelSpec(source=relu_network()), pixels(), 11)
    assert [problem.line for problem in problems] == [3]


def test_computing_again_refuses_other_data_and_another_network(whole):
    run = runs.open(whole)
    with pytest.raises(InputError, match="fingerprint"):
        draw_again(run, ModelSpec(source=relu_network()), pixels(12), 1)
    with pytest.raises(ModelError, match="weights are others"):
        draw_again(run, ModelSpec(source=seeded(lambda: mlp(16, 8, classes=4), 1)), pixels(), 1)


def test_without_auto_lirpa_it_says_what_to_install_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "auto_LiRPA", None)
    with pytest.raises(MissingExtraError):
        bound(tmp_path / "run", method="auto-lirpa")
    assert list(tmp_path.iterdir()) == []


# ---- time limit ----------------------------------------------------------------------------------------------------


def ticking(monkeypatch, seconds):
    """A clock that advances by a fixed number of seconds each time it is read."""
    times = itertools.count(0.0, seconds)
    monkeypatch.setattr(bounding, "TimeLimit", partial(TimeLimit, clock=lambda: next(times)))


def test_a_run_beyond_its_limit_stops_after_its_first_inputs_and_can_be_resumed(whole, tmp_path, monkeypatch):
    ticking(monkeypatch, 4e5)  # per batch of 4
    with pytest.raises(TimeLimitError, match="days for 11 inputs, more than the time limit of 24 h"):
        bound(tmp_path / "run")
    assert 0 < len(runs.open(tmp_path / "run").rows) < 11
    bound(tmp_path / "run", resume=True, time_limit=float("inf"))
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_a_run_far_beyond_its_limit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(bounding, "rough_seconds", lambda *_: 1e6)
    with pytest.raises(TimeLimitError, match="days for 11 inputs"):
        bound(tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    assert len(bound(tmp_path / "run", time_limit=1e5).rows) == 11

"""Runs that attack a base classifier: the smallest perturbations that are known to change its answers."""

import shutil
import sys

import numpy as np
import pytest
import torch
from torch import nn

from attack_fixtures import DISTANCES, WRONG, attack_base, cut, distance, half_spaces, inputs, linear, rows_path
from smoothcert import runs
from smoothcert.attacks.foolbox_attacks import attack_base as search
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError, MissingExtraError, ModelError, ResumeError
from smoothcert.models.architectures import small_cnn
from smoothcert.report.figures import load_norms
from smoothcert.runs import attacking
from smoothcert.runs.attack_summary import perturbation_norms
from smoothcert.training.loop import seeded


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed; not to be changed."""
    return attack_base(tmp_path_factory.mktemp("whole") / "run").path


class Deaf(nn.Module):
    """Class 1, whatever the input."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, x):
        return self.scores + 0 * x.flatten(1).sum(1, keepdim=True)


# ---- what rows hold ------------------------------------------------------------------------------------------------


def test_every_forward_pass_of_an_attack_is_heard_of(tmp_path):
    heard = []
    found = attack_base(tmp_path / "run", draws=heard.append)
    assert len(heard) > 5 * -(-len(found.rows) // 4)  # more than the steps of one attack on each chunk
    assert set(heard) == {0}


def test_norms_are_the_distances_to_the_boundary_and_never_less(whole):
    run = runs.open(whole)
    assert [row["index"] for row in run.rows] == list(range(len(DISTANCES)))
    for row in run.rows:
        d = distance(inputs()[row["index"]])
        assert row["label"] == int(d > 0)
        assert list(row["norms"]) == ["deepfool", "pgd"]
        assert row["norm"] == min(row["norms"].values())
        if row["index"] == WRONG:
            assert row["norm"] == 0.0
        elif abs(d) > 0.01:  # where DeepFool's overshoot and PGD's last halving hardly count
            assert abs(d) * (1 - 1e-6) < row["norm"] < 1.01 * abs(d)


def test_norms_are_those_of_the_attacks_on_the_same_batches(whole):
    run, data = runs.open(whole), half_spaces()
    for start in (0, 4, 8):
        part = slice(start, start + 4)
        x, y = torch.from_numpy(data.inputs[part]), torch.from_numpy(data.labels[part])
        found = search(linear(), x, y, ("deepfool", "pgd"), steps=5, seed=start)
        for place, row in enumerate(run.rows[part]):
            assert row["norms"] == {name: float(one.norms[place]) for name, one in found.items()}


def test_every_batch_has_random_starts_of_its_own(monkeypatch, tmp_path):
    seeds = []

    def watched(*args, seed, **settings):
        seeds.append(seed)
        return search(*args, seed=seed, **settings)

    monkeypatch.setattr(attacking, "attack_base", watched)
    attack_base(tmp_path / "run", attacks=("deepfool",), seed=100)
    attack_base(tmp_path / "other", attacks=("deepfool",), seed=0)
    assert len(set(seeds)) == len(seeds) == 6


def test_norms_are_null_where_nothing_was_found_and_0_where_it_was_wrong_already(tmp_path):
    run = attack_base(tmp_path / "run", network=Deaf())
    for row, truth in zip(run.rows, half_spaces().labels, strict=True):
        expected = None if truth == 1 else 0.0
        assert row["norm"] == expected
        assert row["norms"] == {"deepfool": expected, "pgd": expected}
    norms = perturbation_norms(run)
    assert np.array_equal(norms, np.where(half_spaces().labels == 1, np.inf, 0.0))
    assert np.array_equal(perturbation_norms(run, "pgd"), norms)
    assert np.array_equal(load_norms(tmp_path / "run"), norms)


def test_without_labels_it_is_the_answer_that_must_change(whole, tmp_path):
    run = attack_base(tmp_path / "run", half_spaces(labelled=False))
    assert [row["true"] for row in run.rows] == [None] * len(run.rows)
    assert run.rows[WRONG]["norm"] == pytest.approx(0.6, rel=0.01)  # nobody says that it is wrong
    old = runs.open(whole).rows
    assert all(row["norm"] == old[k]["norm"] for k, row in enumerate(run.rows) if k // 4 != WRONG // 4)


def test_clipping_keeps_perturbed_inputs_in_the_range_of_pixels(tmp_path):
    data = half_spaces((0.7, -0.7), labelled=False)
    brighter = ArrayData(np.where(data.inputs > 0.5, np.float32(1), np.float32(0)), None, None, data.name)
    free = attack_base(tmp_path / "free", brighter, clip=False, attacks=("pgd",), steps=20)
    clipped = attack_base(tmp_path / "clipped", brighter, attacks=("pgd",), steps=20)
    for one, other, x in zip(free.rows, clipped.rows, brighter.inputs, strict=True):
        assert one["norm"] == pytest.approx(abs(distance(x)), rel=0.02)
        assert one["norm"] <= 1.01 * other["norm"]


def test_the_same_run_from_python(whole, tmp_path):
    settings = runs.BaseAttackSettings(attacks=("deepfool", "pgd"), steps=5, batch_size=4)
    runs.attack_base_dataset(linear(), half_spaces(), tmp_path / "run", settings)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_the_manifest_says_how(whole):
    values = runs.open(whole).manifest.values
    assert (values["kind"], values["attacks"], values["steps"]) == ("attack-base", ["deepfool", "pgd"], 5)
    assert (values["seed"], values["clip"], values["plan"]) == (0, True, {"chunk": 4})
    assert (values["sigma"], values["alpha"]) == (0.0, 0.0)
    assert values["model"]["num_classes"] == 2


# ---- the same bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "torn"), [(0, 0), (3, 40), (4, 0), (9, 1)])
def test_a_run_goes_on_from_anywhere_and_ends_the_same(whole, tmp_path, lines, torn):
    """Also from within a chunk, whose inputs share their random starts."""
    shutil.copytree(whole, tmp_path / "run")
    cut(tmp_path / "run", lines, torn)
    assert attack_base(tmp_path / "run", resume=True).complete
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_ctrl_c_in_the_middle_keeps_what_is_done(whole, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_base(tmp_path / "run", watch=stop)
    assert len(runs.open(tmp_path / "run").rows) == 4
    attack_base(tmp_path / "run", resume=True)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_two_processes_write_the_same_bytes(whole, tmp_path):
    attack_base(tmp_path / "run", workers=2)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


def test_the_number_of_threads_makes_no_difference(tmp_path):
    """Nor does, therefore, the number of processes that share a machine's cores."""
    generator = np.random.default_rng(0)
    data = ArrayData(generator.integers(256, size=(3, 1, 8, 8), dtype=np.uint8), None, None, "noise")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        attack_base(tmp_path / str(threads), data, network=seeded(small_cnn, 0), attacks=("deepfool",), steps=3)
    assert rows_path(tmp_path / "1").read_bytes() == rows_path(tmp_path / "2").read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 6}, "steps"),
        ({"attacks": ("pgd",)}, "attacks"),
        ({"clip": False}, "clip"),
        ({"seed": 1}, "seed"),
        ({"batch_size": 5}, r"plan\.chunk"),
        ({"indices": [0, 1]}, "indices"),
        ({"network": Deaf()}, r"model\.weights_hash"),
        ({"data": half_spaces(labelled=False)}, r"data\.fingerprint"),
    ],
)
def test_another_setting_is_named_and_nothing_is_touched(whole, tmp_path, changes, said):
    shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ResumeError, match=said):
        attack_base(tmp_path / "run", resume=True, **changes)
    assert rows_path(tmp_path / "run").read_bytes() == rows_path(whole).read_bytes()


# ---- what is refused, and what fails -------------------------------------------------------------------------------


class Damaged(ArrayData):
    """The same data, one of whose inputs cannot be read any more, and one has no numbers."""

    def __getitem__(self, index):
        if index == 1:
            raise OSError("no such\npicture")
        return np.full_like(self.inputs[index], np.nan) if index == 5 else self.inputs[index]


def test_inputs_that_cannot_be_read_or_hold_no_numbers_get_a_row_that_says_so(whole, tmp_path):
    data = half_spaces()
    run = attack_base(tmp_path / "run", Damaged(data.inputs, data.labels, None, data.name))
    errors = {row["index"]: row["error"] for row in run.errors}
    assert set(errors) == {1, 5}
    assert errors[1] == "OSError: no such picture"
    assert errors[5].startswith("InputError: Expected finite values")
    old = runs.open(whole).rows
    for row in run.rows:
        if row["index"] not in errors:
            assert row["norm"] == pytest.approx(old[row["index"]]["norm"], rel=0.02)
    assert np.isinf(perturbation_norms(run)[[1, 5]]).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attacks": ()}, "`attacks`"),
        ({"attacks": ("pgd", "pgd")}, "`attacks`"),
        ({"attacks": ("strong",)}, "`attacks`"),
        ({"steps": 0}, "`steps`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"seed": -1}, "`seed`"),
        ({"address": "auto"}, "--engine ray"),
    ],
)
def test_settings_out_of_range_are_refused_and_nothing_is_written(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        attack_base(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_model_that_returns_labels_is_refused_before_anything_is_written(tmp_path):
    class Labels(nn.Module):
        def forward(self, x):
            return (x.flatten(1).mean(1) > 0.5).long()

    with pytest.raises(ModelError, match="Expected scores"):
        attack_base(tmp_path / "run", network=Labels())
    assert not (tmp_path / "run").exists()


def test_a_model_without_gradients_is_refused_before_anything_is_written(tmp_path):
    class Detached(nn.Module):
        def forward(self, x):
            score = x.flatten(1).mean(1).detach() - 0.5
            return torch.stack([-score, score], 1)

    with pytest.raises(ModelError, match="differentiated"):
        attack_base(tmp_path / "run", network=Detached())
    assert not (tmp_path / "run").exists()


def test_without_foolbox_it_says_what_to_install_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(MissingExtraError, match=r"smoothcert\[attacks\]"):
        attack_base(tmp_path / "run")
    assert not (tmp_path / "run").exists()

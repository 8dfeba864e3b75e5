import json

import numpy as np
import pytest
import torch

from smoothcert.errors import ConfigError, InputError
from smoothcert.replay import load_labels, load_votes, multinomial, replay, without_replacement
from smoothcert.stats.grid import Grid
from smoothcert.stats.procedures import FixedN, Predict

VOTES = np.array([[900, 60, 40], [500, 499, 1], [0, 0, 1000], [10, 980, 10]])


def rng(seed=0):
    return np.random.default_rng(seed)


def test_without_replacement_every_recorded_vote_is_drawn_once():
    draw = without_replacement(VOTES[0], rng())
    drawn = [draw(stage, n).counts for stage, n in enumerate((100, 400, 500))]
    assert np.sum(drawn, axis=0).tolist() == VOTES[0].tolist()
    assert sum(drawn[0]) == 100


def test_without_replacement_there_are_only_so_many_votes():
    draw = without_replacement(VOTES[0], rng())
    draw(0, 990)
    with pytest.raises(InputError, match="only 10 of 1,000"):
        draw(1, 11)


def test_multinomial_draws_follow_the_recorded_shares_and_never_end():
    votes = multinomial(VOTES[0], rng())(0, 1_000_000)
    assert votes.counts[0] == pytest.approx(900_000, abs=1_500)
    assert votes.n == 1_000_000


@pytest.mark.parametrize("method", ["multinomial", "without-replacement"])
def test_a_row_s_result_does_not_depend_on_the_others(method):
    def procedure(_):
        return FixedN(n=500, n0=20, alpha=0.01)

    settings = {"sigma": 0.5, "seed": 3, "method": method}
    every = replay(VOTES, procedure, **settings)
    assert replay(VOTES, procedure, indices=[3, 1], **settings) == [every[3], every[1]]
    assert replay(VOTES, procedure, **{**settings, "seed": 4}) != every


def test_conclusions_carry_label_radius_draws_and_reason():
    grid = Grid(radii=(0.0, 0.25, 0.5), sigma=0.5, n_max=2000)
    clear, tie, unanimous, _ = replay(VOTES, lambda _: grid, sigma=0.5)
    assert (clear.label, clear.reason) == (0, "claimed")
    assert 0.5 <= clear.radius < 0.5 + 1e-9
    assert (tie.label, tie.radius) == (None, 0.0)
    assert unanimous.label == 2
    assert unanimous.draws < clear.draws < 2200


def test_predictions_have_labels_without_radii():
    first, tie, *_ = replay(VOTES, lambda _: Predict(n=500), sigma=0.5)
    assert (first.label, first.radius, first.draws) == (0, 0.0, 500)
    assert tie.label is None


def test_an_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="multinomial"):
        replay(VOTES, lambda _: Predict(), sigma=0.5, method="multinomal")


TENSORS = [("floats.pth", None), ("whole.pth", None)]


def test_votes_are_read_from_arrays_tensors_and_certificates(tmp_path):
    np.save(tmp_path / "v.npy", VOTES.astype(np.int32))
    np.savez(tmp_path / "one.npz", a=VOTES)
    np.savez(tmp_path / "two.npz", a=VOTES, b=VOTES[:1])
    torch.save(torch.from_numpy(VOTES).float(), tmp_path / "floats.pth")
    torch.save(torch.from_numpy(VOTES), tmp_path / "whole.pth")
    stages = [{"counts": [9, 9, 9]}]
    lines = [json.dumps({"stages": [*stages, {"counts": row.tolist()}]}) for row in VOTES]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    for name, array in (("v.npy", None), ("one.npz", None), ("two.npz", "a"), ("c.jsonl", None), *TENSORS):
        assert load_votes(tmp_path / name, array).tolist() == VOTES.tolist()
    with pytest.raises(InputError, match="a, b"):
        load_votes(tmp_path / "two.npz")


@pytest.mark.parametrize(
    "content", [VOTES / 2, VOTES - 10, VOTES * 0, VOTES[0], VOTES[:0], VOTES[:, :1], VOTES.astype(object), VOTES[None]]
)
def test_what_is_no_table_of_votes_is_refused(tmp_path, content):
    np.save(tmp_path / "v.npy", content, allow_pickle=True)
    with pytest.raises(InputError, match=r"v\.npy"):
        load_votes(tmp_path / "v.npy")


@pytest.mark.parametrize(
    "content",
    [
        torch.tensor([[0.5, 9.5]]),
        torch.tensor([[float("nan"), 9]]),
        torch.tensor([[2.0**24, 1]]),  # a float32 that may stand for 2^24 + 1 votes
        torch.tensor([[-1.0, 9]]),
        torch.tensor([9.0, 1]),
        {"votes": torch.tensor([[9, 1]])},
        torch.nn.Linear(2, 2),  # loading it would run code
    ],
)
def test_what_is_no_tensor_of_votes_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "v.pth")
    with pytest.raises(InputError, match=r"v\.pth"):
        load_votes(tmp_path / "v.pth")


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01"])
def test_files_that_are_no_arrays_are_refused(tmp_path, content):
    for name in ("v.npy", "v.npz", "v.pth", "v.jsonl"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="v\\."):
            load_votes(tmp_path / name)
    with pytest.raises(InputError, match="missing"):
        load_votes(tmp_path / "missing.npy")


def test_labels_are_read_from_arrays_text_and_cifar_batches(tmp_path):
    np.save(tmp_path / "l.npy", np.array([3, 1]))
    (tmp_path / "l.txt").write_text("3\n1\n")
    (tmp_path / "l.bin").write_bytes(bytes([3]) + bytes(3072) + bytes([1]) + bytes(3072))
    for name in ("l.npy", "l.txt", "l.bin"):
        assert load_labels(tmp_path / name).tolist() == [3, 1]


def test_labels_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "l.txt").write_text("three\n")
    (tmp_path / "l.bin").write_bytes(bytes(100))
    np.save(tmp_path / "l.npy", np.array([0.5]))
    for name in ("l.txt", "l.bin", "l.npy", "none.txt"):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            load_labels(tmp_path / name)

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from smoothcert.data.mat_files import read_mat_arrays
from smoothcert.errors import InputError


def anything(name, shape):
    return True


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_numeric_arrays_of_all_kinds_and_shapes_are_those_that_scipy_reads(tmp_path, kind, compressed):
    rng = np.random.default_rng(3)
    arrays = {
        f"a{number}_{'long' * number}": rng.integers(0, 100, shape).astype(kind)
        for number, shape in enumerate([(1, 1), (2, 1), (1, 7), (3, 4), (2, 3, 4), (5, 1, 2, 3)])
    }
    savemat(tmp_path / "a.mat", arrays, do_compression=compressed)
    ours, theirs = read_mat_arrays(tmp_path / "a.mat", anything), loadmat(tmp_path / "a.mat")
    assert set(ours) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours[name], array)
        np.testing.assert_array_equal(ours[name], theirs[name])
        assert ours[name].dtype == array.dtype


def test_what_does_not_fit_is_passed_over_without_being_read(tmp_path):
    content = {"text": "words", "cell": np.array([1, "a"], object), "z": np.array([[1j]]), "y": [[7]]}
    savemat(tmp_path / "a.mat", content)
    assert read_mat_arrays(tmp_path / "a.mat", anything)["y"].tolist() == [[7]]
    assert set(read_mat_arrays(tmp_path / "a.mat", anything)) == {"y"}
    asked = []
    assert read_mat_arrays(tmp_path / "a.mat", lambda name, shape: asked.append((name, shape)) or False) == {}
    assert asked == [("y", (1, 1))]


@pytest.mark.parametrize("compressed", [True, False])
def test_any_damage_gives_an_error_or_arrays_and_never_a_crash(tmp_path, compressed):
    path = tmp_path / "a.mat"
    savemat(path, {"X": np.arange(60).reshape(3, 4, 5), "y": [[1], [2]]}, do_compression=compressed)
    content, rng, refused = path.read_bytes(), np.random.default_rng(4), 0
    for _ in range(400):
        damaged = bytearray(content)
        for place in rng.integers(120, len(content), 2):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_mat_arrays(path, lambda _, shape: np.prod(shape, dtype=float) < 1e6)
        except InputError:
            refused += 1
    assert refused > 40


def test_a_flipped_bit_in_compressed_content_never_changes_what_is_read(tmp_path):
    path, array, refused = tmp_path / "a.mat", np.arange(600).reshape(30, 20), 0
    savemat(path, {"X": array}, do_compression=True)
    content = path.read_bytes()
    for place in range(140, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            np.testing.assert_array_equal(read_mat_arrays(path, anything)["X"], array)
        except InputError:
            refused += 1
    assert refused > 0.9 * (len(content) - 140)  # a few bits say the same in two ways

from __future__ import annotations

import numpy as np
import pytest

from data.making import random_images
from smoothcert.data.arrays import as_inputs, load_arrays
from smoothcert.errors import ConfigError, InputError

IMAGES = random_images((4, 3, 6, 5))
LABELS = np.array([2, 0, 1, 1])


def saved(tmp_path, **arrays):
    path = tmp_path / "my.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("inputs", ["images", "x", "inputs", "data"])
@pytest.mark.parametrize("labels", ["labels", "y", "targets"])
def test_arrays_are_found_by_their_customary_names(tmp_path, inputs, labels):
    data = load_arrays(saved(tmp_path, **{inputs: IMAGES, labels: LABELS, "other": LABELS}), "test")
    np.testing.assert_array_equal(data.inputs, IMAGES)
    assert data.labels.tolist() == [2, 0, 1, 1]
    assert (data.name, data.classes) == ("my.npz", None)


def test_a_file_with_both_splits_gives_the_one_asked_for(tmp_path):
    path = saved(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:1], y_test=LABELS[1:2])
    assert load_arrays(path, "train").labels.tolist() == [2, 0, 1, 1]
    assert load_arrays(path, "test").labels.tolist() == [0]
    assert load_arrays(path, "test").name == "my.npz (test)"
    with pytest.raises(InputError, match=r"Expected an array x_val, images, .* got x_train, y_train, x_test, y_test"):
        load_arrays(path, "val")


def test_a_single_array_needs_no_name(tmp_path):
    data = load_arrays(saved(tmp_path, whatever=IMAGES), "test")
    assert len(data) == 4
    assert data.labels is None


def test_an_npy_file_takes_labels_from_another_file(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", LABELS[:, None].astype(np.uint8))
    (tmp_path / "y.txt").write_text("2\n0\n 1\r\n1\n\n")
    assert load_arrays(tmp_path / "x.npy", "test").labels is None
    for file in ("y.npy", "y.txt"):
        assert load_arrays(tmp_path / "x.npy", "test", tmp_path / file).labels.tolist() == [2, 0, 1, 1]


def test_labels_from_two_places_are_refused(tmp_path):
    np.save(tmp_path / "y.npy", LABELS)
    with pytest.raises(ConfigError, match=r"got both"):
        load_arrays(saved(tmp_path, x=IMAGES, y=LABELS), "test", tmp_path / "y.npy")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 3, 6, 5), (4, 3, 6, 5)),
        ((4, 1, 6, 5), (4, 1, 6, 5)),
        ((4, 6, 5, 3), (4, 3, 6, 5)),
        ((4, 6, 5, 1), (4, 1, 6, 5)),
        ((4, 3, 5, 3), (4, 3, 5, 3)),
        ((4, 6, 5), (4, 1, 6, 5)),
    ],
)
def test_channels_come_first_wherever_they_were(shape, expected):
    array = random_images(shape)
    inputs = as_inputs(array, "test")
    assert inputs.shape == expected
    if shape[-1] != expected[-1]:
        np.testing.assert_array_equal(inputs[1, 0], array[1, ..., 0])


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 6, 5, 4), (4, 2, 6, 5), (2, 2, 3, 6, 5), (0, 3, 6, 5), ()])
def test_other_shapes_of_bytes_are_no_images(shape):
    with pytest.raises(InputError, match=r"Expected uint8 images"):
        as_inputs(np.zeros(shape, np.uint8), "test")


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_of_any_shape_become_float32(kind):
    inputs = as_inputs(np.full((4, 7), 0.1, kind), "test")
    assert inputs.dtype == np.float32
    assert inputs[0, 0] == np.float32(kind(0.1))


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.bool_, np.complex64, "U3"])
def test_other_types_are_refused(kind):
    with pytest.raises(InputError, match=r"Expected uint8 images"):
        as_inputs(np.ones((4, 1, 6, 5), kind), "test")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_inputs_that_are_no_numbers_are_refused(bad):
    array = np.zeros((4, 7))
    array[2, 5] = bad
    with pytest.raises(InputError, match=r"Expected finite numbers .* input 2 has others"):
        as_inputs(array, "test")


@pytest.mark.parametrize(
    "labels",
    [np.array([0.0, 1, 2, 1]), np.array([0, 1, np.nan, 1]), np.array(list("abcd")), LABELS[:3], np.zeros((4, 10), int)],
)
def test_labels_that_are_no_whole_numbers_are_refused(tmp_path, labels):
    with pytest.raises(InputError, match=r"Expected 4 whole numbers as labels"):
        load_arrays(saved(tmp_path, x=IMAGES, y=labels), "test")


def test_a_negative_label_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"labels of 0 and more in my.npz, got -1"):
        load_arrays(saved(tmp_path, x=IMAGES, y=np.array([0, 1, -1, 0])), "test")


@pytest.mark.parametrize(
    "text", ["2\n0\n1", "2\n0\n1\nx", "2\n0\n1\n1.0", "2\n0\n1\nnan", "", "1\n1\n1\n99999999999999999999"]
)
def test_a_label_file_that_does_not_fit_is_refused(tmp_path, text):
    np.save(tmp_path / "x.npy", IMAGES)
    (tmp_path / "y.txt").write_text(text)
    with pytest.raises(InputError, match=r"y\.txt"):
        load_arrays(tmp_path / "x.npy", "test", tmp_path / "y.txt")


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_python_objects_are_never_unpickled(tmp_path):
    mark = tmp_path / "owned"
    array = np.empty(4, object)
    array[:] = [Touch(mark)] * 4
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    np.save(tmp_path / "inputs.npy", IMAGES)
    for path, labels in (("x.npy", None), ("x.npz", None), ("inputs.npy", tmp_path / "x.npy")):
        with pytest.raises(InputError, match=r"x\.np"):
            load_arrays(tmp_path / path, "test", labels)
    assert not mark.exists()


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_file_that_breaks_off_or_is_foreign_is_refused(tmp_path, suffix):
    path = tmp_path / f"my.{suffix}"
    np.save(path, IMAGES) if suffix == "npy" else np.savez(path, x=IMAGES)
    content = path.read_bytes()
    for kept in [0, 1, 4, 8, 20, 100, 200, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:kept])
        with pytest.raises(InputError, match=rf"my\.{suffix}"):
            load_arrays(path, "test")
    path.write_bytes(b"GIF89a" + content)
    with pytest.raises(InputError, match=r"my"):
        load_arrays(path, "test")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_flipped_bit_in_the_header_is_refused_or_harmless(tmp_path, suffix):
    path = tmp_path / f"my.{suffix}"
    np.save(path, IMAGES) if suffix == "npy" else np.savez(path, x=IMAGES)
    content = path.read_bytes()
    refused = 0
    for place in range(128):
        path.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
        try:
            assert load_arrays(path, "test").inputs.size == IMAGES.size
        except InputError:
            refused += 1
    assert refused > 20

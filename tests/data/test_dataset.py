from __future__ import annotations

import numpy as np
import pytest

from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.errors import InputError

IMAGES = np.zeros((3, 1, 2, 2), np.uint8)
LABELS = np.array([0, 1, 1])


class Mixed(Dataset):
    """Inputs of different shapes."""

    name, labels, classes, shape = "mixed", None, None, None

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full((1, 2, 2 + index % 2), index, np.uint8)

    def fingerprint(self):
        return "none"


def test_its_length_is_the_number_of_inputs_and_its_shape_that_of_each():
    data = ArrayData(IMAGES, LABELS, ("a", "b"), "tiny")
    assert len(data) == 3
    assert data.shape == data[2].shape == (1, 2, 2)


def test_floats_of_any_shape_and_missing_labels_are_fine():
    data = ArrayData(np.ones((4, 7), np.float32), None, None, "rows")
    assert (len(data), data.shape, data.labels) == (4, (7,), None)


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (IMAGES.astype(np.float64), LABELS, "Expected uint8 or float32 inputs"),
        (IMAGES.astype(np.int64), LABELS, "Expected uint8 or float32 inputs"),
        (np.zeros(3, np.uint8), LABELS, r"Expected uint8 or float32 inputs \[N, \*D\], got uint8 \(3,\)"),
        (IMAGES, LABELS[:2], "Expected 3 int64 labels"),
        (IMAGES, LABELS[:, None], "Expected 3 int64 labels"),
        (IMAGES, LABELS.astype(np.float64), "Expected 3 int64 labels"),
        (IMAGES, np.array([0, 1, 2]), "Expected labels from 0 to 1 in tiny.* got 2"),
        (IMAGES, np.array([0, 1, -1]), "Expected labels of 0 and more in tiny, got -1"),
    ],
)
def test_refuses_what_is_no_set_of_inputs_with_a_label_each(inputs, labels, said):
    with pytest.raises(InputError, match=said):
        ArrayData(inputs, labels, ("a", "b"), "tiny")


def test_without_class_names_any_label_of_0_and_more_is_one():
    assert ArrayData(IMAGES, np.array([0, 999, 5]), None, "tiny").labels[1] == 999


def test_a_batch_has_the_inputs_in_the_order_asked_for():
    assert Mixed().batch(np.array([2, 0]))[:, 0, 0, 0].tolist() == [2, 0]


def test_inputs_of_different_shapes_make_no_batch():
    with pytest.raises(InputError, match=r"different shapes, such as \(1, 2, 2\) and \(1, 2, 3\)\. Give a size"):
        Mixed().batch([0, 1])


def test_the_fingerprint_changes_with_every_input_label_and_type_and_with_nothing_else():
    def fingerprint(inputs=IMAGES, labels=LABELS, name="tiny"):
        return ArrayData(inputs, labels, None, name).fingerprint()

    other = IMAGES.copy()
    other[2, 0, 1, 1] = 1
    prints = {
        fingerprint(),
        fingerprint(other),
        fingerprint(labels=np.array([0, 1, 2])),
        fingerprint(labels=None),
        fingerprint(IMAGES.astype(np.float32)),
        fingerprint(IMAGES.reshape(3, 2, 1, 2)),
    }
    assert len(prints) == 6
    assert fingerprint() == fingerprint(IMAGES.copy(), name="other")
    assert fingerprint(np.asfortranarray(other)) == fingerprint(other)

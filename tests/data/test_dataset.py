from __future__ import annotations

import numpy as np
import pytest

from smoothcert.data.dataset import ImageData
from smoothcert.errors import InputError

IMAGES = np.zeros((3, 1, 2, 2), np.uint8)
LABELS = np.array([0, 1, 1])


def test_its_length_is_the_number_of_images():
    assert len(ImageData(IMAGES, LABELS, ("a", "b"), "tiny")) == 3


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (IMAGES.astype(np.float32), LABELS, "Expected uint8 images"),
        (IMAGES[0], LABELS, "Expected uint8 images"),
        (IMAGES, LABELS[:2], "Expected 3 int64 labels"),
        (IMAGES, LABELS.astype(np.float64), "Expected 3 int64 labels"),
        (IMAGES, np.array([0, 1, 2]), "Expected labels from 0 to 1"),
        (IMAGES, np.array([0, 1, -1]), "Expected labels from 0 to 1"),
    ],
)
def test_refuses_what_is_not_a_labelled_set_of_8_bit_images(images, labels, said):
    with pytest.raises(InputError, match=said):
        ImageData(images, labels, ("a", "b"), "tiny")

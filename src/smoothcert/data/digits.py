"""Scikit-learn's handwritten digits as 8-bit images: 1,797 of 8×8 pixels, small enough for a demo."""

from __future__ import annotations

import numpy as np

from smoothcert.data.dataset import ArrayData
from smoothcert.errors import MissingExtraError

TEST_SIZE = 500
_SPLIT_SEED = 2019  # part of the data set's definition: another number would be another test set


def load_digits() -> tuple[ArrayData, ArrayData]:
    """The 1,297 training and 500 test images, always split in the same way.

    The original grey levels 0 to 16 become round(v·255/16), so that every pixel lies on the 8-bit grid.
    """
    try:
        from sklearn.datasets import load_digits as sklearn_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "demo") from error
    raw = sklearn_digits()
    images = np.rint(raw.images[:, None] * (255 / 16)).astype(np.uint8)
    labels = raw.target.astype(np.int64)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    classes = tuple(str(digit) for digit in range(10))

    def part(rows: np.ndarray, name: str) -> ArrayData:
        return ArrayData(images[rows], labels[rows], classes, name)

    return part(order[TEST_SIZE:], "digits (train)"), part(order[:TEST_SIZE], "digits (test)")

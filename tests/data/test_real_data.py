"""The real data sets, where they are on this machine: what everybody knows about them must come out."""

from __future__ import annotations

import numpy as np
import pytest

from data.making import real_root
from smoothcert.data import KNOWN, check, load
from smoothcert.data.known import find


def real(name, split):
    if find(KNOWN[name], real_root(), split) is None:
        pytest.skip(f"{name} ({split}) is not under {real_root()}")
    return load(name, split=split, root=real_root())


def moments(data):
    """Mean and standard deviation of each channel, in units of pixels in [0, 1]."""
    counts = [np.bincount(data.inputs[:, channel].ravel(), minlength=256) for channel in range(data.shape[0])]
    levels = np.arange(256) / 255
    means = [np.average(levels, weights=count) for count in counts]
    spreads = [np.sqrt(np.average((levels - m) ** 2, weights=count)) for m, count in zip(means, counts, strict=True)]
    return np.array([means, spreads])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", [[0.1307], [0.3081]]),
        ("fashion-mnist", [[0.2860], [0.3530]]),
        ("cifar10", [[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]]),
    ],
)
def test_training_images_have_their_known_means_and_spreads(name, expected):
    data = real(name, "train")
    assert len(data) == KNOWN[name].counts["train"]
    np.testing.assert_allclose(moments(data), expected, atol=6e-5)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("mnist", [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
        ("fashion-mnist", [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]),
        ("cifar10", [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]),
    ],
)
def test_test_labels_start_as_everybody_knows(name, first):
    data = real(name, "test")
    assert (len(data), data.shape) == (10_000, KNOWN[name].shape)
    assert data.labels[:10].tolist() == first
    assert data.name == f"{name} (test)"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mnist", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("fashion-mnist", [1000] * 10),
        ("cifar10", [1000] * 10),
    ],
)
def test_test_labels_are_as_many_per_class_as_published(name, counts):
    assert np.bincount(real(name, "test").labels).tolist() == counts


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_files_have_their_published_sums(name):
    real(name, "test")
    assert check(name, real_root())


def test_pixels_stand_where_they_should():
    """A seven has its bar on top, and the sky of the first ship is above the sea."""
    seven = real("mnist", "test")[0][0]
    assert seven[7:10].sum() > 3 * seven[20:23].sum()
    assert np.count_nonzero(seven[:5]) == 0
    plane = real("cifar10", "test")[3]  # class airplane, against a bright sky
    assert plane.shape == (3, 32, 32)
    assert plane[:, :4].mean() > 150

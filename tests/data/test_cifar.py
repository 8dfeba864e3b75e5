from __future__ import annotations

import numpy as np
import pytest

from data.making import random_images, write_binary, write_pickle
from smoothcert.data.cifar import read_binary, read_class_names, read_python
from smoothcert.errors import InputError

IMAGES = random_images((4, 3, 32, 32))
FINE, COARSE = np.array([3, 99, 0, 42]), np.array([1, 19, 0, 7])
LENGTH = 3073


def test_the_binary_version_gives_back_images_and_labels_of_all_files_in_order(tmp_path):
    paths = [tmp_path / "data_batch_1.bin", tmp_path / "data_batch_2.bin"]
    write_binary(paths[0], IMAGES[:3], FINE[:3])
    write_binary(paths[1], IMAGES[3:], FINE[3:])
    images, labels = read_binary(paths, label_bytes=1)
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()
    assert labels.dtype == np.int64


def test_of_two_label_bytes_the_second_is_the_fine_label(tmp_path):
    write_binary(tmp_path / "test.bin", IMAGES, COARSE, FINE)
    images, labels = read_binary([tmp_path / "test.bin"], label_bytes=2)
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()


def test_both_versions_of_the_same_data_are_equal(tmp_path):
    write_binary(tmp_path / "test.bin", IMAGES, COARSE, FINE)
    write_pickle(
        tmp_path / "test",
        {"data": IMAGES.reshape(4, -1), "fine_labels": FINE.tolist(), "coarse_labels": COARSE.tolist()},
    )
    ours, theirs = read_binary([tmp_path / "test.bin"], 2), read_python([tmp_path / "test"], "fine_labels")
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])
    assert theirs[1].dtype == np.int64


@pytest.mark.parametrize("kept", [0, 1, 100, LENGTH - 1, LENGTH + 1, 2 * LENGTH - 1])
def test_a_binary_file_that_breaks_off_is_named_with_the_sizes(tmp_path, kept):
    path = tmp_path / "test_batch.bin"
    write_binary(path, IMAGES, FINE)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=f"records of 3,073 bytes in {path}.*got {kept:,} bytes"):
        read_binary([path], label_bytes=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, r"an array `data` \[N, 3072\]"),
        ({"data": np.zeros((4, 3071), np.uint8), "labels": [0] * 4}, "3071"),
        ({"data": np.zeros(3072, np.uint8), "labels": [0]}, "3072"),
        ({"data": "pixels", "labels": [0]}, "got str"),
        ({"data": IMAGES.reshape(4, -1)}, "4 whole numbers `labels`"),
        ({"data": IMAGES.reshape(4, -1), "labels": [0, 1, 2]}, "4 whole numbers"),
        ({"data": IMAGES.reshape(4, -1), "labels": [0, 1, 2, 3.5]}, "4 whole numbers"),
        ({"data": IMAGES.reshape(4, -1), "labels": [0, 1, 2, -1]}, "4 whole numbers"),
        ({"data": IMAGES.reshape(4, -1), "labels": [0, 1, 2, True]}, "4 whole numbers"),
        ({"data": IMAGES.reshape(4, -1), "labels": [0, 1, 2, 10**30]}, "4 whole numbers"),
        ({"data": IMAGES.reshape(4, -1), "labels": 7}, "4 whole numbers"),
    ],
)
def test_a_pickle_with_other_content_is_refused(tmp_path, content, said):
    write_pickle(tmp_path / "test_batch", content)
    with pytest.raises(InputError, match=said):
        read_python([tmp_path / "test_batch"], "labels")


def test_class_names_come_from_either_version_or_not_at_all(tmp_path):
    assert read_class_names(tmp_path) is None
    write_pickle(tmp_path / "meta", {"fine_label_names": ["apple", "bear"], "coarse_label_names": ["fruit"]})
    assert read_class_names(tmp_path) == ("apple", "bear")
    (tmp_path / "fine_label_names.txt").write_text("apple\nbowl\n\n")
    assert read_class_names(tmp_path) == ("apple", "bowl")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*none.bin"):
        read_binary([tmp_path / "none.bin"], 1)
    with pytest.raises(InputError, match=r"Cannot read .*none"):
        read_python([tmp_path / "none"], "labels")

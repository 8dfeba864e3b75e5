from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from scipy.io import savemat

from data.making import random_images
from smoothcert.data.svhn import read_mat
from smoothcert.errors import InputError

IMAGES = random_images((32, 32, 3, 5))
LABELS = np.array([[1], [10], [9], [10], [2]], np.uint8)


def written(tmp_path, content, *, compressed=True):
    path = tmp_path / "test_32x32.mat"
    savemat(path, content, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [True, False])
def test_images_are_turned_and_the_label_10_is_the_digit_0(tmp_path, compressed):
    images, labels = read_mat(written(tmp_path, {"X": IMAGES, "y": LABELS}, compressed=compressed))
    assert labels.tolist() == [1, 0, 9, 0, 2]
    assert labels.dtype == np.int64
    for index in range(5):
        np.testing.assert_array_equal(images[index], IMAGES[..., index].transpose(2, 0, 1))


@pytest.mark.parametrize(
    "content",
    [
        {"X": IMAGES},
        {"y": LABELS},
        {"X": IMAGES.astype(np.float64), "y": LABELS},
        {"X": IMAGES[:31], "y": LABELS},
        {"X": IMAGES.transpose(3, 0, 1, 2), "y": LABELS},
        {"X": IMAGES[..., :0], "y": LABELS[:0]},
        {"X": IMAGES, "y": LABELS[:4]},
        {"Z": IMAGES},
    ],
)
def test_other_contents_are_refused_with_what_was_expected(tmp_path, content):
    with pytest.raises(InputError, match=r"Expected `X` uint8 \(32, 32, 3, N\) and `y`.*test_32x32.mat"):
        read_mat(written(tmp_path, content))


@pytest.mark.parametrize("labels", [[1, 2, 3, 4, 11], [1, 2, 3, 4, 2.5], [1, 2, 3, 4, np.nan], [1, 2, 3, 4, -1]])
def test_labels_that_are_no_digits_are_refused(tmp_path, labels):
    with pytest.raises(InputError, match=r"labels from 1 to 10"):
        read_mat(written(tmp_path, {"X": IMAGES, "y": np.array(labels)[:, None]}))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_file_that_breaks_off_anywhere_is_refused(tmp_path, compressed):
    path = written(tmp_path, {"X": IMAGES, "y": LABELS}, compressed=compressed)
    content = path.read_bytes()
    for kept in [0, 1, 100, 126, 128, 130, 140, 200, 1000, len(content) // 2, len(content) - 30]:
        path.write_bytes(content[:kept])
        with pytest.raises(InputError, match=r"test_32x32.mat"):
            read_mat(path)


def test_a_size_that_nobody_has_is_not_believed(tmp_path):
    def element(kind, content):
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    def matrix(name, shape):
        flags, sizes = element(6, struct.pack("<II", 9, 0)), element(5, struct.pack(f"<{len(shape)}i", *shape))
        packed = zlib.compress(element(14, flags + sizes + element(1, name) + element(2, bytes(8))))
        return struct.pack("<II", 15, len(packed)) + packed

    path = tmp_path / "huge.mat"
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H2s", 0x0100, b"IM")
    path.write_bytes(header + matrix(b"X", (32, 32, 3, 2**30)) + matrix(b"y", (2**30, 1)))
    with pytest.raises(InputError, match=r"the cropped digits, got neither"):
        read_mat(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "test_32x32.mat"
    for content in (b"\x89HDF\r\n\x1a\n" + bytes(600), b"<html>" * 100, bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"test_32x32.mat"):
            read_mat(path)
    with pytest.raises(InputError, match=r"none.mat"):
        read_mat(tmp_path / "none.mat")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_flipped_bit_in_the_header_is_refused_or_harmless(tmp_path, compressed):
    path = written(tmp_path, {"X": IMAGES, "y": LABELS}, compressed=compressed)
    content = path.read_bytes()
    refused = 0
    for place in range(124, 220):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        try:
            assert read_mat(path)[0].shape == (5, 3, 32, 32)
        except InputError:
            refused += 1
    assert refused > 20

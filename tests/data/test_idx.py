from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from smoothcert.data.idx import read_idx
from smoothcert.errors import InputError

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
CONTENT = struct.pack(">HBB3I", 0, 8, 3, 5, 4, 3) + IMAGES.tobytes()


def written(tmp_path, content, name="images-idx3-ubyte"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_reads_what_was_written_plain_and_compressed(tmp_path, name):
    array = read_idx(written(tmp_path, CONTENT, name), 3)
    np.testing.assert_array_equal(array, IMAGES)
    assert array.dtype == np.uint8
    array[0] = 0  # torch warns about arrays that cannot be written to


@pytest.mark.parametrize("kept", range(0, len(CONTENT), 7))
@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_a_file_that_breaks_off_is_named_with_the_sizes(tmp_path, kept, name):
    path = written(tmp_path, CONTENT[:kept], name)
    expected = "Expected an idx file" if kept < 16 else f"Expected 60 bytes.*got {kept - 16}"
    with pytest.raises(InputError, match=expected) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_a_file_that_goes_on_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"Expected 60 bytes.*got more than 60"):
        read_idx(written(tmp_path, CONTENT + b"\0"), 3)


@pytest.mark.parametrize("bit", range(16 * 8))
def test_any_flipped_bit_of_the_header_is_noticed(tmp_path, bit):
    content = bytearray(CONTENT)
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InputError):
        read_idx(written(tmp_path, bytes(content)), 3)


def test_a_header_that_asks_for_too_much_is_not_believed(tmp_path):
    with pytest.raises(InputError, match=r"at most 67,108,864 bytes"):
        read_idx(written(tmp_path, struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**10, 2**10)), 3)


@pytest.mark.parametrize("kept", [0, 5, 20, 60])
def test_a_compressed_file_that_breaks_off_is_refused(tmp_path, kept):
    path = tmp_path / "images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(CONTENT, mtime=0)[:kept])
    with pytest.raises(InputError, match=r"images-idx3-ubyte.gz"):
        read_idx(path, 3)


def test_a_flipped_bit_in_a_compressed_file_never_changes_what_is_read(tmp_path):
    content = gzip.compress(CONTENT, mtime=0)
    path = tmp_path / "images-idx3-ubyte.gz"
    read = []
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            np.testing.assert_array_equal(read_idx(path, 3), IMAGES)
            read.append(place)
        except InputError:
            continue
    assert set(read) <= {*range(3, 10), len(content) - 9}  # time, system, and bits that fill up the last byte


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*nothing"):
        read_idx(tmp_path / "nothing", 1)

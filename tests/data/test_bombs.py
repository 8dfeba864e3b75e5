"""Small files that ask for much memory, and text that readers choke on: an InputError, in little memory."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np
import pytest

from hostile_files import UNPACKED, assert_refused, outcomes, write_zeros


def npy_header(shape, dtype="|u1"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def compressed_npz(path):
    head = npy_header((UNPACKED // 64, 8, 8))
    with zipfile.ZipFile(path, "w") as archive:
        write_zeros(archive, "images.npy", len(head) + UNPACKED, head)


def npz_by_another_method(path):
    """Declares 1,000 bytes, and unpacks to more before zipfile cuts them off."""
    head = npy_header((10, 10, 9))
    with zipfile.ZipFile(path, "w") as archive:
        write_zeros(archive, "images.npy", UNPACKED, head, zipfile.ZIP_BZIP2)
    content = path.read_bytes()
    size = struct.pack("<I", UNPACKED)
    assert content.count(size) >= 1
    path.write_bytes(content.replace(size, struct.pack("<I", len(head) + 900)))


def npz_with_a_forged_header(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", npy_header((10**12, 8, 8)) + bytes(100))


def npy_with_a_forged_header(path):
    path.write_bytes(npy_header((10**12, 8, 8)) + bytes(100))


def npy_of_objects(path):
    np.save(path, np.array([{}, []], object), allow_pickle=True)


def npy_with_a_number_of_many_digits(path):
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)


def npy_nested_deeply(path):
    text = b"(" * 9000
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)


def compressed_idx(path):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, UNPACKED // 64, 8, 8))
        for _ in range(UNPACKED // 2**20):
            file.write(bytes(2**20))


def compressed_mat(path):
    count = UNPACKED // 3072

    def part(kind, content):
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    head = part(6, bytes([9, 0, 0, 0, 0, 0, 0, 0])) + part(5, struct.pack("<4i", 32, 32, 3, count)) + part(1, b"X")
    packer = zlib.compressobj()
    size = count * 3072
    packed = packer.compress(struct.pack("<II", 14, len(head) + 8 + size) + head + struct.pack("<II", 2, size))
    for _ in range(size // 3072):
        packed += packer.compress(bytes(3072))
    packed += packer.flush()
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed)


def pickle_with_room_for_many(path):
    path.write_bytes(b"\x80\x02}r" + struct.pack("<I", 2**25) + b".")


def pickle_that_copies(path):
    text = b"X" + struct.pack("<I", 2**20) + b"x" * 2**20 + b"q\x01"
    call = b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nq\x00" + text + b"]" + (call + b"a") * 400 + b".")


def long_label_file(path):
    with path.open("wb") as file:
        file.truncate(2**30)  # a hole, which takes no space


BOMBS = {
    "compressed.npz": (compressed_npz, "load({!r})", "would unpack to"),
    "bz2.npz": (npz_by_another_method, "load({!r})", "another method than deflate"),
    "forged.npz": (npz_with_a_forged_header, "load({!r})", "the header asks for 64,000,000,000,000 bytes"),
    "forged.npy": (npy_with_a_forged_header, "load({!r})", "the header asks for 64,000,000,000,000 bytes"),
    "objects.npy": (npy_of_objects, "load({!r})", "it holds Python objects"),
    "digits.npy": (npy_with_a_number_of_many_digits, "load({!r})", "Expected arrays of numbers"),
    "nested.npy": (npy_nested_deeply, "load({!r})", "Expected arrays of numbers"),
    "idx.gz": (compressed_idx, "read_idx(Path({!r}), 3)", "its header asks for 536,870,912"),
    "svhn.mat": (compressed_mat, "read_mat(Path({!r}))", "more than"),
    "room": (pickle_with_room_for_many, "read_pickle(Path({!r}))", "room for 33,554,432 objects"),
    "copies": (pickle_that_copies, "read_pickle(Path({!r}))", "more than 100 calls"),
    "labels.csv": (
        long_label_file,
        "read_labels(Path({!r}), 3)",
        "Expected at most 268,435,456 bytes in the label file",
    ),
}
SETUP = """
from smoothcert.data import load
from smoothcert.data.idx import read_idx
from smoothcert.data.label_files import read_labels
from smoothcert.data.pickles import read_pickle
from smoothcert.data.svhn import read_mat
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    for name, (write, _, _) in BOMBS.items():
        write(folder / name)
        assert (folder / name).stat().st_blocks * 512 < 2**22, f"{name} is no small file"
    return outcomes({name: call.format(str(folder / name)) for name, (_, call, _) in BOMBS.items()}, SETUP)


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_asks_for_much_memory_is_refused_in_little(opened, name):
    assert_refused(opened[name], "InputError", BOMBS[name][2])


def test_arrays_that_compress_well_still_load(tmp_path):
    from smoothcert.data import load

    images = np.zeros((1000, 28, 28), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=np.arange(1000))
    assert len(load(tmp_path / "a.npz")) == 1000
    large = np.zeros((90_000, 28, 28), np.uint8)  # more than is harmless, of the compressed size of simple shapes
    large[::3, ::2, 3::9] = np.random.default_rng(0).integers(0, 255, large[::3, ::2, 3::9].shape, np.uint8)
    np.savez_compressed(tmp_path / "b.npz", images=large)
    assert large.nbytes > 64 * 2**20
    assert load(tmp_path / "b.npz").shape == (1, 28, 28)

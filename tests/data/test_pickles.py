from __future__ import annotations

import builtins
import io
import os
import pickle
import pickletools

import numpy as np
import pytest

from smoothcert.data.pickles import read_pickle
from smoothcert.errors import InputError

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 12)


def written(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
    return path


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_reads_dictionaries_of_values_and_arrays(tmp_path, protocol):
    content = {"data": ARRAY, "labels": [1, 2], "batch_label": "training batch 1 of 5", "raw": b"\xff\x00"}
    read = read_pickle(written(tmp_path, pickle.dumps(content, protocol=protocol)))
    np.testing.assert_array_equal(read.pop("data"), ARRAY)
    assert read == {key: value for key, value in content.items() if key != "data"}


def test_reads_what_python_2_wrote(tmp_path):
    # Python 2 had one type for text and bytes; the array's content stands there as text, module paths are the old ones.
    raw = bytes(range(200, 206))
    content = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06" + raw + b"tbs."
    )
    np.testing.assert_array_equal(read_pickle(written(tmp_path, content))["data"].reshape(-1), list(raw))


def test_arrays_in_fortran_order_are_read_as_they_were(tmp_path):
    array = np.asfortranarray(ARRAY)
    np.testing.assert_array_equal(read_pickle(written(tmp_path, {"data": array}))["data"], ARRAY)


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        (os.system, ("touch {}",), "posix.system"),
        (os.mkdir, ("{}",), "posix.mkdir"),
        (builtins.eval, ("open('{}', 'w')",), "eval"),
        (builtins.open, ("{}", "w"), "io.open"),
        (np.fromfile, ("{}",), "fromfile"),
        (builtins.getattr, (os, "mkdir"), "getattr"),
    ],
)
def test_no_function_of_a_pickle_is_ever_called(tmp_path, function, args, named):
    mark = tmp_path / "owned"
    filled = [arg.format(mark) if isinstance(arg, str) else Call(__import__, "os") for arg in args]
    path = written(tmp_path, {"data": Call(function, *filled)})
    with pytest.raises(InputError, match=r"Nothing of it was run") as caught:
        read_pickle(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value) or "__import__" in str(caught.value)
    assert not mark.exists()


def test_the_malicious_pickle_would_have_done_harm(tmp_path):
    mark = tmp_path / "owned"
    pickle.loads(pickle.dumps(Call(os.mkdir, str(mark))))
    assert mark.exists()


@pytest.mark.parametrize("array", [ARRAY.astype(np.int64), ARRAY.astype(object), np.zeros(2, "u1,f8")])
def test_refuses_arrays_of_anything_but_bytes(tmp_path, array):
    with pytest.raises(InputError, match=r"data_batch_1"):
        read_pickle(written(tmp_path, {"data": array}))


@pytest.mark.parametrize("content", [[1, 2], "text", None, ARRAY])
def test_refuses_what_is_no_dictionary(tmp_path, content):
    with pytest.raises(InputError, match=r"Expected a dictionary"):
        read_pickle(written(tmp_path, content))


def test_refuses_objects_from_elsewhere(tmp_path):
    class Away(pickle.Pickler):
        def persistent_id(self, obj):
            return "key" if obj == "away" else None

    buffer = io.BytesIO()
    Away(buffer, protocol=2).dump({"data": "away"})
    with pytest.raises(InputError, match=r"from elsewhere"):
        read_pickle(written(tmp_path, buffer.getvalue()))


def test_a_pickle_cannot_change_the_reader_itself(tmp_path):
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct"):
        content = b"\x80\x02c" + name + b"\n}X\x01\x00\x00\x00aK\x01sb."
        pickletools.dis(content, out=io.StringIO())
        with pytest.raises(InputError):
            read_pickle(written(tmp_path, content))
    np.testing.assert_array_equal(read_pickle(written(tmp_path, {"data": ARRAY}))["data"], ARRAY)


def test_a_file_that_breaks_off_anywhere_is_refused(tmp_path):
    content = pickle.dumps({"data": ARRAY, "labels": [0, 1]}, protocol=2)
    for kept in range(len(content)):
        with pytest.raises(InputError, match=r"data_batch_1"):
            read_pickle(written(tmp_path, content[:kept]))


def test_damage_gives_an_error_or_a_dictionary_and_nothing_else(tmp_path):
    content = pickle.dumps({"data": ARRAY, "labels": [0, 1]}, protocol=2)
    refused = 0
    for place in range(len(content)):
        damaged = content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :]
        try:
            assert isinstance(read_pickle(written(tmp_path, damaged)), dict)
        except InputError:
            refused += 1
    assert refused > len(content) / 3

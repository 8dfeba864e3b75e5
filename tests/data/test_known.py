from __future__ import annotations

import re

import pytest

from smoothcert.data.known import CIFAR10, KNOWN, MNIST, SVHN, canonical_name, check_split, expected_files, find, known
from smoothcert.errors import InputError


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("MNIST", "mnist"),
        ("fashion_mnist", "fashion-mnist"),
        ("FashionMNIST", "fashion-mnist"),
        ("cifar-10", "cifar10"),
        ("CIFAR_100", "cifar100"),
        ("SVHN", "svhn"),
        ("ImageNet", "imagenet"),
        (" digits ", "digits"),
        ("cifar", None),
        ("", None),
    ],
)
def test_the_usual_spellings_are_understood(spelt, name):
    assert canonical_name(spelt) == name


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"got 'minst'\. Did you mean 'mnist'\?"):
        known("minst")
    with pytest.raises(InputError, match=r"one of digits, mnist, .*got 'q\\x1b'\.$"):
        known("q\x1b")


def test_every_file_of_every_layout_has_a_checksum_and_every_download_a_size():
    for data in KNOWN.values():
        files = {file for layout in data.layouts for names in layout.files.values() for file in names}
        assert files == set(data.md5 or {})
        assert all(set(layout.files) == set(data.counts) for layout in data.layouts)
        sums = [*(data.md5 or {}).values(), *(download.checksum for download in data.downloads)]
        assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in sums)
        assert all(download.size > 1000 for download in data.downloads)
        assert bool(data.downloads) == bool(data.layouts)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (MNIST, "mnist"),
        (MNIST, "mnist/MNIST/raw"),
        (MNIST, "mnist/raw"),
        (MNIST, "MNIST/raw"),
        (CIFAR10, "cifar10"),
        (CIFAR10, "cifar10/cifar-10-batches-bin"),
        (CIFAR10, "cifar-10-batches-bin"),
        (SVHN, "svhn"),
        (SVHN, "SVHN"),
    ],
)
def test_all_customary_places_are_looked_at(tmp_path, data, place):
    assert find(data, tmp_path, "test") is None
    (tmp_path / place).mkdir(parents=True)
    for file in data.layouts[0].files["test"]:
        (tmp_path / place / file).write_bytes(b"")
    found = find(data, tmp_path, "test")
    assert found.folder == tmp_path / place
    assert [file.name for file in found.files] == list(data.layouts[0].files["test"])
    assert find(data, tmp_path, "train") is None


@pytest.mark.parametrize("place", ["cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py"])
def test_the_python_version_is_found_too(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "test_batch").write_bytes(b"")
    assert find(CIFAR10, tmp_path, "test").kind == "python"


def test_files_right_under_the_root_belong_to_no_data_set(tmp_path):
    for file in MNIST.layouts[0].files["test"]:
        (tmp_path / file).write_bytes(b"")
    assert find(MNIST, tmp_path, "test") is None


def test_a_split_that_is_not_complete_is_not_found(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(b"")
    assert find(MNIST, tmp_path, "test") is None
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    assert find(MNIST, tmp_path, "test").files[1].name == "t10k-labels-idx1-ubyte.gz"


def test_what_is_expected_is_said_in_words(tmp_path):
    said = expected_files(CIFAR10, tmp_path, "test")
    assert said == (
        f"test_batch.bin in {tmp_path}/cifar10/cifar-10-batches-bin or "
        f"test_batch in {tmp_path}/cifar10/cifar-10-batches-py"
    )


def test_a_split_that_does_not_exist_is_named():
    assert check_split(SVHN, "extra") == "extra"
    with pytest.raises(InputError, match=r"a split of mnist, one of train, test, got 'val'"):
        check_split(MNIST, "val")

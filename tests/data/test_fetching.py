from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from data.making import COUNT, dawdles, hangs_up, random_images, write_binary, write_idx
from smoothcert.data import known as table
from smoothcert.data import load
from smoothcert.data.fetching import check, fetch, missing, whereabouts
from smoothcert.errors import InputError, OutputError

LABELS = np.arange(COUNT)


def md5(content):
    return hashlib.md5(content).hexdigest()


def left_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def mnist(small, server, monkeypatch, tmp_path_factory):
    """A small MNIST on the server, with its true sizes and sums in the table."""
    downloads, sums, made = [], {}, tmp_path_factory.mktemp("made")
    for prefix, split in (("train", "train"), ("t10k", "test")):
        write_idx(made / f"{prefix}-images-idx3-ubyte", random_images((COUNT, 28, 28)))
        write_idx(made / f"{prefix}-labels-idx1-ubyte", LABELS.astype(np.uint8))
        for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
            content = (made / name).read_bytes()
            packed = gzip.compress(content, mtime=0)
            server.files[f"/{name}.gz"] = packed
            downloads.append(table.Download(f"{name}.gz", len(packed), md5(packed), split))
            sums[name] = md5(content)
    data = replace(table.KNOWN["mnist"], downloads=tuple(downloads), md5=sums, url=server.url)
    monkeypatch.setitem(table.KNOWN, "mnist", data)
    return data


@pytest.fixture
def cifar10(small, server, monkeypatch, tmp_path_factory):
    """A small CIFAR-10 archive on the server."""
    folder = tmp_path_factory.mktemp("made") / "cifar-10-batches-bin"
    for number in range(1, 6):
        write_binary(folder / f"data_batch_{number}.bin", random_images((2, 3, 32, 32), number), LABELS[:2])
    write_binary(folder / "test_batch.bin", random_images((COUNT, 3, 32, 32)), LABELS)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
    content = buffer.getvalue()
    server.files["/cifar-10-binary.tar.gz"] = content
    data = replace(
        table.KNOWN["cifar10"],
        downloads=(table.Download("cifar-10-binary.tar.gz", len(content), md5(content)),),
        md5=table.KNOWN["cifar10"].md5 | {file.name: md5(file.read_bytes()) for file in folder.iterdir()},
        url=server.url,
    )
    monkeypatch.setitem(table.KNOWN, "cifar10", data)
    return data


ALL = [f"mnist/{p}-{k}-ubyte.gz" for p in ("t10k", "train") for k in ("images-idx3", "labels-idx1")]


def test_all_files_arrive_are_whole_and_load(mnist, tmp_path):
    counted = []
    new = fetch("MNIST", tmp_path, advance=counted.append)
    assert left_in(tmp_path) == ALL == sorted(str(path.relative_to(tmp_path)) for path in new)
    assert sum(counted) == sum(download.size for download in mnist.downloads)
    assert check("mnist", tmp_path) == [tmp_path / "mnist" / one.file for one in mnist.downloads]
    assert load("mnist", root=tmp_path).labels.tolist() == LABELS.tolist()
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in new)


def test_what_is_there_and_whole_is_not_fetched_again(mnist, server, tmp_path):
    fetch("mnist", tmp_path)
    server.requests.clear()
    assert fetch("mnist", tmp_path) == []
    assert server.requests == []


def test_a_damaged_file_is_fetched_again(mnist, server, tmp_path):
    fetch("mnist", tmp_path)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    server.requests.clear()
    fetch("mnist", tmp_path)
    assert server.requests == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]
    assert len(check("mnist", tmp_path)) == 4


def test_only_the_split_asked_for_is_fetched(mnist, tmp_path):
    fetch("mnist", tmp_path, split="test")
    assert left_in(tmp_path) == ["mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"]
    assert len(check("mnist", tmp_path)) == 2
    with pytest.raises(InputError, match=r"one of train, test, got 'val'"):
        fetch("mnist", tmp_path, split="val")


def test_a_mirror_takes_the_place_of_the_publisher(mnist, server, monkeypatch, tmp_path):
    monkeypatch.setitem(table.KNOWN, "mnist", replace(mnist, url="http://127.0.0.1:9/"))
    server.files |= {f"/deep/mirror{name}": content for name, content in list(server.files.items())}
    fetch("mnist", tmp_path, mirror=f"{server.url}deep/mirror", split="test")
    assert server.requests[0] == "/deep/mirror/t10k-images-idx3-ubyte.gz"


def test_svhns_extra_images_come_only_when_asked_for(tmp_path):
    assert [one.file for one in missing(table.SVHN, tmp_path)] == ["train_32x32.mat", "test_32x32.mat"]
    assert [one.file for one in missing(table.SVHN, tmp_path, "extra")] == ["extra_32x32.mat"]


NAME = "/t10k-images-idx3-ubyte.gz"
BAD = {
    "flipped": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), r"Expected the MD5 sum \w+ of .* got \w+"),
    "short": (lambda content: content[:-1], r"Expected [\d,]+ bytes from .*, got [\d,]+\."),
    "long": (lambda content: content + b"\0", r"Expected [\d,]+ bytes from .*, got more\."),
    "empty": (lambda content: content[:0], r"got 0\."),
    "missing": (lambda content: content and None, r"Cannot fetch .*: the server says 404\."),
    "hangs up": (lambda content: hangs_up(content[:50], len(content)), r"got 50\.|Cannot fetch"),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD.keys())
def test_a_bad_download_leaves_nothing_behind_and_says_what_to_do(mnist, server, tmp_path, change, said):
    whole, server.files[NAME] = server.files[NAME], change(server.files[NAME])
    with pytest.raises(InputError, match=said) as caught:
        fetch("mnist", tmp_path, split="test")
    assert left_in(tmp_path) == []
    assert f"{server.url}t10k-images-idx3-ubyte.gz" in str(caught.value)
    assert f"Place t10k-images-idx3-ubyte.gz into {tmp_path / 'mnist'} by hand" in str(caught.value)
    assert "\n" not in str(caught.value)
    server.files[NAME] = whole
    assert len(fetch("mnist", tmp_path, split="test")) == 2


def test_a_server_that_falls_silent_is_given_up(mnist, server, tmp_path):
    server.files["/t10k-images-idx3-ubyte.gz"] = dawdles(0.6)
    with pytest.raises(InputError, match=r"Cannot fetch .*timed out"):
        fetch("mnist", tmp_path, split="test", timeout=0.1)
    assert left_in(tmp_path) == []


def test_a_server_that_is_not_there_is_one_line(mnist, tmp_path):
    with pytest.raises(InputError, match=r"Cannot fetch http://127\.0\.0\.1:9/.*Place .* by hand"):
        fetch("mnist", tmp_path, mirror="http://127.0.0.1:9/")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("mirror", ["file:///etc/", "ftp://example.org/", "/etc"])
def test_only_the_web_is_fetched_from(mnist, tmp_path, mirror):
    with pytest.raises(InputError, match=r"starts with http:// or https://"):
        fetch("mnist", tmp_path, mirror=mirror)


def test_an_interruption_leaves_no_partial_file(mnist, tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", tmp_path, advance=interrupt)
    assert left_in(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_output_error(mnist, tmp_path):
    (tmp_path / "mnist").write_text("a file")
    with pytest.raises(OutputError, match=r"Cannot write into"):
        fetch("mnist", tmp_path)


def test_a_damaged_file_that_would_hide_the_new_one_must_go_first(mnist, tmp_path):
    folder = tmp_path / "mnist"
    write_idx(folder / "t10k-images-idx3-ubyte", random_images((COUNT, 28, 28), seed=5))
    write_idx(folder / "t10k-labels-idx1-ubyte", LABELS.astype(np.uint8))
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte or a file beside it is damaged\. Remove it"):
        fetch("mnist", tmp_path, split="test")
    assert len(fetch("mnist", tmp_path, split="train")) == 2


def test_an_archive_is_unpacked_and_itself_not_kept(cifar10, tmp_path):
    new = fetch("cifar10", tmp_path)
    expected = sorted(f"cifar10/cifar-10-batches-bin/{name}" for name in cifar10.md5 if name.endswith(".bin"))
    assert left_in(tmp_path) == expected
    assert len(new) == len(check("cifar10", tmp_path)) == 6
    assert load("cifar10", root=tmp_path).labels.tolist() == LABELS.tolist()
    assert fetch("cifar10", tmp_path) == []


def test_a_bad_archive_with_the_right_sum_still_writes_nothing(cifar10, server, monkeypatch, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    content = buffer.getvalue()
    server.files["/cifar-10-binary.tar.gz"] = content
    download = table.Download("cifar-10-binary.tar.gz", len(content), md5(content))
    monkeypatch.setitem(table.KNOWN, "cifar10", replace(cifar10, downloads=(download,)))
    with pytest.raises(InputError, match=r"'\.\./outside' is not allowed"):
        fetch("cifar10", tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(("name", "said"), [("digits", "come with scikit-learn"), ("imagenet", "register at https://")])
def test_what_cannot_be_fetched_says_how_to_get_it(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        fetch(name, tmp_path)


def test_check_finds_a_flipped_bit_plain_and_compressed(mnist, tmp_path):
    fetch("mnist", tmp_path)
    packed = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(packed.read_bytes()))
    plain = packed.with_suffix("")
    plain.write_bytes(content)
    check("mnist", tmp_path)
    content[100] ^= 1
    plain.write_bytes(content)
    with pytest.raises(InputError, match=f"Expected the MD5 sum {mnist.md5[plain.name]} of {plain}, got"):
        check("mnist", tmp_path)
    plain.unlink()
    packed.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(InputError, match=r"Expected the MD5 sum"):
        check("mnist", tmp_path)
    packed.write_bytes(packed.read_bytes()[:500])
    with pytest.raises(InputError, match=r"Cannot read .*Fetch it again"):
        check("mnist", tmp_path)


def test_check_of_what_is_missing_says_how_to_fetch_it(tmp_path):
    with pytest.raises(InputError, match=r"svhn is not there: .*`smoothcert data fetch svhn`"):
        check("svhn", tmp_path)
    assert check("digits", tmp_path) == []


def test_whereabouts_name_the_folder_of_each_data_set(mnist, tmp_path):
    assert set(whereabouts(tmp_path).values()) == {None}
    fetch("mnist", tmp_path, split="test")
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    places = whereabouts(tmp_path)
    assert places["mnist"] == tmp_path / "mnist"
    assert places["imagenet"] == tmp_path / "imagenet" / "val"
    assert places["cifar10"] is None

from __future__ import annotations

import gzip
import hashlib
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from data.making import Server, real_root, write_idx
from smoothcert.cli import main
from smoothcert.cli.data import Data
from smoothcert.data import known as table
from smoothcert.data.publications import COHEN2019, PUBLICATIONS
from smoothcert.errors import ConfigError, InputError


def shown(*args, **settings):
    """What the command prints."""
    out = io.StringIO()
    Data(*args, **settings).run(Console(file=out, width=200, highlight=False))
    return out.getvalue()


@pytest.fixture
def server():
    one = Server()
    yield one
    one.close()


@pytest.fixture
def tiny(server, monkeypatch, tmp_path_factory):
    """MNIST with two test images, on a server."""
    made, downloads, sums = tmp_path_factory.mktemp("made"), [], {}
    write_idx(made / "t10k-images-idx3-ubyte", np.zeros((2, 28, 28), np.uint8))
    write_idx(made / "t10k-labels-idx1-ubyte", np.array([0, 1], np.uint8))
    for path in sorted(made.iterdir()):
        packed = gzip.compress(path.read_bytes(), mtime=0)
        server.files[f"/{path.name}.gz"] = packed
        downloads.append(table.Download(f"{path.name}.gz", len(packed), hashlib.md5(packed).hexdigest(), "test"))
        sums[path.name] = hashlib.md5(path.read_bytes()).hexdigest()
    data = replace(table.MNIST, counts={"test": 2}, downloads=tuple(downloads), md5=sums, url="http://127.0.0.1:9/")
    monkeypatch.setitem(table.KNOWN, "mnist", data)


def test_fetched_files_are_named_and_then_checked_and_listed(tiny, server, tmp_path):
    out = shown("fetch", "mnist", data_root=tmp_path, mirror=server.url)
    files = [f"{tmp_path}/mnist/t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    assert out.splitlines() == [f"fetched: {file}" for file in files]
    assert shown("fetch", "MNIST", data_root=tmp_path) == "mnist is there and whole; nothing was fetched.\n"
    assert shown("check", "mnist", data_root=tmp_path).splitlines() == [f"whole: {file}" for file in files]
    rows = {line.split()[0]: line for line in shown("list", data_root=tmp_path).splitlines() if line.strip()}
    assert f" {tmp_path}/mnist " in rows["mnist"]
    assert "missing" in rows["cifar10"]
    assert "comes with scikit-learn" in rows["digits"]


def test_every_data_set_is_listed(tmp_path):
    out = shown("list", data_root=tmp_path)
    assert [line.split()[0] for line in out.splitlines() if re.match(r" [a-z]+[\d-]*", line)][1:] == list(table.KNOWN)
    assert "train test extra" in out


def test_published_evidence_is_fetched_checked_and_listed_with_its_attribution(server, monkeypatch, tmp_path):
    content = b"idx\tlabel\n"
    server.files["/predict/N_100"] = content
    download = table.Download("predict/N_100", len(content), hashlib.sha256(content).hexdigest())
    publication = replace(COHEN2019, downloads=(download,))
    monkeypatch.setitem(PUBLICATIONS, "cohen2019", publication)
    file, attribution = f"{tmp_path}/cohen2019/predict/N_100", publication.attribution.splitlines()
    assert f"{'|'.join(attribution)}|where: missing" in shown("list", data_root=tmp_path).replace("\n", "|")
    fetched = shown("fetch", "cohen2019", data_root=tmp_path, mirror=server.url)
    assert fetched.splitlines() == [f"fetched: {file}", *attribution]
    assert shown("check", "cohen2019", data_root=tmp_path).splitlines() == [f"whole: {file}"]
    again = shown("fetch", "cohen2019", data_root=tmp_path, mirror="http://127.0.0.1:9/")
    assert again.splitlines() == ["cohen2019 is there and whole; nothing was fetched.", *attribution]
    assert f"where: {tmp_path}/cohen2019\n" in shown("list", data_root=tmp_path)


def test_a_folder_that_would_steer_the_terminal_is_listed_escaped(tmp_path):
    strange = tmp_path / "[bold]a\x1b[2J\tb"
    (strange / "imagenet" / "val").mkdir(parents=True)
    out = shown("list", data_root=strange)
    assert "\x1b" not in out
    assert "[bold]a\\x1b[2J\\tb/imagenet/val" in "".join(out.split())


def test_a_missing_name_says_what_to_write():
    with pytest.raises(ConfigError, match=r"as in `smoothcert data check mnist`"):
        shown("check")
    with pytest.raises(ConfigError, match=r"as in `smoothcert data fetch mnist`"):
        shown("fetch")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"Did you mean 'mnist'\?"):
        shown("fetch", "minst", data_root=tmp_path)


def test_imagenet_says_where_to_register(tmp_path):
    with pytest.raises(InputError, match=r"register at https://image-net\.org"):
        shown("fetch", "imagenet", data_root=tmp_path)


def test_a_failed_fetch_is_an_error_and_leaves_nothing(tiny, tmp_path):
    with pytest.raises(InputError, match=r"Cannot fetch http://127\.0\.0\.1:9/t10k-images"):
        shown("fetch", "mnist", data_root=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_has_no_files_needs_no_check(tmp_path):
    assert (
        shown("check", "digits", data_root=tmp_path) == "digits comes with scikit-learn; there are no files to check.\n"
    )


def test_the_files_that_are_there_are_whole():
    if table.find(table.MNIST, real_root(), "test") is None:
        pytest.skip(f"mnist is not under {real_root()}")
    assert "whole: " in shown("check", "mnist", data_root=real_root())


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["fetch"], 2, "Expected the name of a data set"),
        (["fetch", "minst"], 2, "Did you mean 'mnist'?"),
        (["fetch", "svhn", "--split", "val"], 2, "one of train, test, extra, got 'val'"),
        (["fetch", "mnist", "--mirror", "http://127.0.0.1:9"], 2, "Cannot fetch http://127.0.0.1:9/train-images"),
        (["check", "cifar100"], 2, "cifar100 is not there"),
        (["fetch", "imagenet"], 2, "register at"),
        (["check", "cohen2019"], 2, "Run: smoothcert data fetch cohen2019"),
        (["fetch", "cohen2019-votes", "--split", "test"], 2, "no split of cohen2019-votes"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(tmp_path, capsys, args, code, said):
    assert main(["data", *args, "--data-root", str(tmp_path)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_root_that_cannot_be_written_exits_with_6(tmp_path, capsys):
    (tmp_path / "mnist").write_text("a file")
    assert main(["data", "fetch", "mnist", "--data-root", str(tmp_path), "--mirror", "http://127.0.0.1:9"]) == 6
    assert "Cannot write into" in capsys.readouterr().err


def test_the_root_may_come_from_a_config_file(tmp_path, capsys):
    (tmp_path / "root" / "imagenet" / "val").mkdir(parents=True)
    (tmp_path / "data.toml").write_text(f'data-root = "{tmp_path / "root"}"\n')
    assert main(["data", "list", "--config", str(tmp_path / "data.toml")]) == 0
    assert "root/imagenet/val" in "".join(capsys.readouterr().out.split())


def test_the_help_shows_examples(capsys):
    assert main(["data", "--help"]) == 0
    assert "smoothcert data fetch mnist" in capsys.readouterr().out

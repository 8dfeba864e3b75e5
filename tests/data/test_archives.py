from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from smoothcert.data.archives import Limits, unpack
from smoothcert.errors import InputError, OutputError

FILES = {"batches/one.bin": b"1" * 1000, "batches/two.bin": b"2" * 2000, "readme.txt": b"hello"}


def member(name, content=b"x", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), link
    return info, content


def archive(tmp_path, *extra, files=FILES, packed=True):
    path = tmp_path / "data.tar.gz"
    with tarfile.open(path, "w:gz" if packed else "w") as tar:
        for info, content in [*(member(*item) for item in files.items()), *extra]:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def left_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("packed", [True, False])
def test_files_and_folders_are_unpacked_whole(tmp_path, packed):
    path = archive(tmp_path, member("empty", b"", tarfile.DIRTYPE), packed=packed)
    new = unpack(path, tmp_path / "out")
    assert new == [tmp_path / "out" / name for name in FILES]
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES
    assert left_in(tmp_path / "out") == ["batches", "batches/one.bin", "batches/two.bin", "readme.txt"]


def test_files_of_the_same_names_are_replaced_and_others_left(tmp_path):
    (tmp_path / "out" / "batches").mkdir(parents=True)
    (tmp_path / "out" / "batches" / "one.bin").write_bytes(b"damaged")
    (tmp_path / "out" / "batches" / "mine").write_bytes(b"mine")
    unpack(archive(tmp_path), tmp_path / "out")
    assert (tmp_path / "out" / "batches" / "one.bin").read_bytes() == FILES["batches/one.bin"]
    assert (tmp_path / "out" / "batches" / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (member("../outside"), "leads out"),
        (member("batches/../../outside"), "leads out"),
        (member("..\\outside"), "leads out"),
        (member("{tmp}/outside"), "absolute"),
        (member("C:/outside"), "absolute"),
        (member("link", b"", tarfile.SYMTYPE, "/etc/passwd"), "link to /etc/passwd"),
        (member("link", b"", tarfile.SYMTYPE, "readme.txt"), "link to readme.txt"),
        (member("hard", b"", tarfile.LNKTYPE, "readme.txt"), "link to readme.txt"),
        (member("device", b"", tarfile.CHRTYPE), "neither a file nor a folder"),
        (member("device", b"", tarfile.BLKTYPE), "neither a file nor a folder"),
        (member("pipe", b"", tarfile.FIFOTYPE), "neither a file nor a folder"),
        (member("../folder", b"", tarfile.DIRTYPE), "leads out"),
        (member("readme.txt", b"again"), "there twice"),
        (member("\x1b[31m/../x"), "leads out"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_bad_member_is_named_and_nothing_is_written(tmp_path, bad, fault, first):
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    info, content = bad
    bad = info.replace(name=info.name.replace("{tmp}", str(tmp_path)), deep=False), content
    path = archive(inside, bad) if not first else archive(inside, bad, *(member(*i) for i in FILES.items()), files={})
    if first and fault == "there twice":
        path = archive(inside, bad)
    with pytest.raises(InputError, match=f"is not allowed, .*{fault}") as caught:
        unpack(path, inside / "out")
    shown = bad[0].name.replace("\x1b", "\\x1b")
    assert f"'{shown}'" in str(caught.value)
    assert left_in(tmp_path) == ["deep", "deep/inside", "deep/inside/data.tar.gz"]


def test_too_many_members_are_refused(tmp_path):
    path = archive(tmp_path, *(member(f"n{number}") for number in range(50)), files={})
    assert len(unpack(path, tmp_path / "out", Limits(entries=50))) == 50
    with pytest.raises(InputError, match=r"'n49' is not allowed, it is more than 49 members"):
        unpack(path, tmp_path / "other", Limits(entries=49))
    assert not (tmp_path / "other").exists()


def test_very_many_members_are_refused_by_default_before_all_are_read(tmp_path):
    path = tmp_path / "many.tar.gz"
    names = b"".join(tarfile.TarInfo(f"n{number}").tobuf() for number in range(10_001))
    path.write_bytes(gzip.compress(names + b"not even a header", 1, mtime=0))
    with pytest.raises(InputError, match=r"'n10000' is not allowed, it is more than 10,000 members"):
        unpack(path, tmp_path / "out")


def test_too_much_content_is_refused_by_the_declared_size(tmp_path):
    with pytest.raises(InputError, match=r"'batches/two.bin' is not allowed, it takes more than 2,999 bytes"):
        unpack(archive(tmp_path), tmp_path / "out", Limits(size=2_999))
    unpack(archive(tmp_path), tmp_path / "out", Limits(size=3_005))


def test_a_thousandfold_expansion_is_refused(tmp_path):
    path = archive(tmp_path, files={"zeros": bytes(24_000_000)})
    assert path.stat().st_size < 24_000
    with pytest.raises(InputError, match=r"'zeros' is not allowed, it takes more than"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_forged_header_gets_no_memory(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**40
    path = tmp_path / "data.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)))
    with pytest.raises(InputError, match=r"data\.tar\.gz, got damage: a header of"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_that_breaks_off_is_refused_and_nothing_is_written(tmp_path, packed):
    path = archive(tmp_path, packed=packed)
    content = path.read_bytes()
    for kept in [0, 1, 100, 511, 512, 600, 1024, 2000, len(content) // 2, 4608, 5632]:
        if kept >= (len(content) - 10 if packed else 5632):  # from there on the end has been seen
            continue
        path.write_bytes(content[:kept])
        with pytest.raises(InputError, match=r"data\.tar\.gz"):
            unpack(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(tmp_path):
    path = archive(tmp_path, packed=False)
    content = bytearray(path.read_bytes())
    place = content.index(b"batches/two.bin")
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"breaks off, or a header is damaged"):
        unpack(path, tmp_path / "out")


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "data.tar.gz"
    path.write_bytes(b"<html>" * 1000)
    with pytest.raises(InputError, match=r"Expected a tar archive"):
        unpack(path, tmp_path / "out")
    with pytest.raises(InputError, match=r"Cannot read .*none"):
        unpack(tmp_path / "none", tmp_path / "out")


def test_a_place_that_cannot_be_written_is_an_output_error_and_leaves_no_rest(tmp_path):
    (tmp_path / "out" / "readme.txt").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"Cannot unpack into"):
        unpack(archive(tmp_path), tmp_path / "out")
    assert not list((tmp_path / "out").glob(".unpacking*"))

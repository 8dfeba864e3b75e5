from __future__ import annotations

import errno
import os
import stat

import pytest

from smoothcert.errors import OutputError
from smoothcert.files import check_writable, prepare_folder, replacing


def test_the_file_appears_whole_once_the_block_is_done(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as partial:
        partial.write_text("new")
        assert not path.exists()
        assert partial.parent == tmp_path
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_old_file_stays_when_the_block_fails(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half_done():
        with replacing(path) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_done()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_an_output_error_and_the_old_file_stays(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OutputError, match=r"Cannot write .*a.txt: No space left"), replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_gets_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "ours") as partial:
        partial.write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "ours")}
    assert len(modes) == 1


def test_a_missing_folder_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="Cannot write"), replacing(tmp_path / "none" / "a.txt"):
        pass
    with pytest.raises(OutputError, match=r"there is no folder .*none. Create it first"):
        check_writable(tmp_path / "none" / "a.txt")


def test_a_folder_in_the_place_of_a_file_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="it is a folder"):
        check_writable(tmp_path)


def test_checking_leaves_nothing_behind_and_touches_nothing(tmp_path):
    check_writable(tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.txt").write_text("old")
    check_writable(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_folder_that_refuses_writing_is_an_output_error(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Not by file modes: the superuser may write anywhere.
    monkeypatch.setattr("smoothcert.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        check_writable(tmp_path / "a.txt")


def test_a_folder_is_prepared_by_creating_it_and_other_files_in_it_stay(tmp_path):
    prepare_folder(tmp_path / "out", ["a"])
    (tmp_path / "out" / "mine").write_text("keep")
    prepare_folder(tmp_path / "out", ["a"])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_created_is_an_output_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Cannot create the folder"):
        prepare_folder(tmp_path / "file", [])
    with pytest.raises(OutputError, match="there is no folder"):
        prepare_folder(tmp_path / "file" / "out", [])
    with pytest.raises(OutputError, match="there is no folder"):
        prepare_folder(tmp_path / "none" / "out", [])


def test_a_folder_in_the_place_of_an_output_file_is_found_in_time(tmp_path):
    (tmp_path / "out" / "a.png").mkdir(parents=True)
    with pytest.raises(OutputError, match="it is a folder"):
        prepare_folder(tmp_path / "out", ["a.png"])

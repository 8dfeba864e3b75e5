"""The file of rows: whatever happens to it, no wrong row is ever read, and no right one lost but the last."""

import errno
import os
import random

import pytest

from smoothcert.errors import OutputError, ResumeError
from smoothcert.runs import journal
from smoothcert.runs.journal import Journal, as_bytes, decode_line, encode_line, read_lines, write_once

RUN = "the run"
WORDS = ("σ", "\u2028", "\x00", '"', "\\", "\n", "\r\n", "\ud800", "😀", "sum", "NaN", "", "a" * 300)


def random_value(generator, depth=0):
    kind = generator.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return generator.choice((True, False))
    if kind == 2:
        return generator.randrange(-(10**20), 10**20)
    if kind == 3:
        exponent = generator.randrange(-320, 308)
        return generator.choice((0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, generator.random() * 10.0**exponent))
    if kind == 4:
        return "".join(generator.choice(WORDS) for _ in range(generator.randrange(4)))
    if kind == 5:
        return [random_value(generator, depth + 1) for _ in range(generator.randrange(4))]
    return {f"{generator.choice(WORDS)}{i}": random_value(generator, depth + 1) for i in range(generator.randrange(4))}


def random_rows(seed, count):
    generator = random.Random(seed)
    return [{"index": i, **{f"name {k}": random_value(generator) for k in range(3)}} for i in range(count)]


ROWS = [{"index": 7, "label": None, "radius": 0.25}, {"index": 3, "label": 1}, {"index": 5, "label": 2, "radius": 0.5}]
CONTENT = as_bytes(ROWS, RUN)
LINES = CONTENT.splitlines(keepends=True)


@pytest.mark.parametrize("seed", range(20))
def test_any_row_is_read_back_as_it_was_written(tmp_path, seed):
    rows = random_rows(seed, 20)
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        for start in range(0, 20, 7):
            file.append(rows[start : start + 7])
    found, size, notice = read_lines(path, RUN)
    assert repr(found) == repr(rows)  # which tells -0.0 from 0.0 and 1 from 1.0 from True
    assert size == path.stat().st_size
    assert notice is None
    assert path.read_bytes() == as_bytes(rows, RUN)


def test_a_line_is_one_line_of_ascii_with_its_checksum_last():
    line = encode_line(RUN, 0, {"word": "σ\n\u2028"})
    assert line == line.decode("ascii").encode()
    assert line.count(b"\n") == 1
    assert line.endswith(b'"}\n')
    assert line.rindex(b'"sum":') > line.index(b'"word":')


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_json_does_not_know_is_never_written(tmp_path, bad):
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        file.append(ROWS[:1])
        with pytest.raises(ValueError, match="JSON"):
            file.append([{"radius": bad}])
        file.append(ROWS[1:])
    assert path.read_bytes() == CONTENT


def test_a_line_belongs_to_its_run_and_its_place():
    line = encode_line(RUN, 1, ROWS[0])[:-1]
    assert decode_line(RUN, 1, line) == ROWS[0]
    with pytest.raises(ValueError, match="checksum"):
        decode_line(RUN, 2, line)
    with pytest.raises(ValueError, match="checksum"):
        decode_line("another run", 1, line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"sum"',
        b'{"sum":""}',
        b'{"index":1}',
        b"\x00" * 40,
        b"\xef\xbb\xbf" + encode_line(RUN, 0, ROWS[0])[:-1],
        encode_line(RUN, 0, ROWS[0])[:-1] + b"\r",
        encode_line(RUN, 0, ROWS[0])[:-1] + b" ",
        encode_line(RUN, 0, ROWS[0]).replace(b":7", b": 7")[:-1],
        encode_line(RUN, 0, ROWS[0]).replace(b'{"index":7', b'{"index":8,"index":7')[:-1],
        encode_line(RUN, 0, ROWS[0]).replace(b"0.25", b"0.250")[:-1],
        b"[" * 100_000,
        b"9" * 5000,
    ],
)
def test_only_the_very_bytes_that_were_written_are_a_row(line):
    with pytest.raises((ValueError, RecursionError)):
        decode_line(RUN, 0, line)


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "rows"
    for place in range(len(CONTENT)):
        number = CONTENT[:place].count(b"\n") + 1
        start = len(b"".join(LINES[: number - 1]))
        for bit in range(8):
            flipped = bytearray(CONTENT)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            if b"\n" in flipped[start:-1]:
                with pytest.raises(ResumeError, match=f"in line {number} "):
                    read_lines(path, RUN)
            else:  # it is in the last line there is
                rows, size, notice = read_lines(path, RUN)
                assert rows == ROWS[: number - 1]
                assert size == start
                assert "was cut off" in notice
            assert path.read_bytes() == flipped


@pytest.mark.parametrize("length", range(len(CONTENT) + 1))
def test_a_file_that_ends_anywhere_is_mended(tmp_path, length):
    path = tmp_path / "rows"
    path.write_bytes(CONTENT[:length])
    complete = CONTENT[:length].count(b"\n")
    with Journal(path, RUN) as file:
        assert file.rows == ROWS[:complete]
        assert (file.notice is not None) == (not CONTENT[:length].endswith(b"\n") and length > 0)
        assert path.read_bytes() == as_bytes(ROWS[:complete], RUN)
        file.append(ROWS[complete:])
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0" * 4096 + b"\n", b"\n", b"garbage", b"\xff\xfe\n", b"{}\n"])
def test_what_a_crash_of_the_machine_leaves_behind_the_last_row_is_dropped(tmp_path, tail):
    path = tmp_path / "rows"
    path.write_bytes(CONTENT + tail)
    with Journal(path, RUN) as file:
        assert file.rows == ROWS
        assert "dropped" in file.notice
    assert path.read_bytes() == CONTENT


DAMAGES = {
    "NULs": (1, LINES[0][:-9] + b"\0" * 8 + b"\n" + LINES[1] + LINES[2]),
    "CRLF": (1, CONTENT.replace(b"\n", b"\r\n")),
    "BOM": (1, b"\xef\xbb\xbf" + CONTENT),
    "UTF-16": (1, CONTENT.decode().encode("utf-16")),
    "deleted": (1, LINES[1] + LINES[2]),
    "swapped": (1, LINES[1] + LINES[0] + LINES[2]),
    "swapped last": (2, LINES[0] + LINES[2] + LINES[1]),
    "duplicated": (2, LINES[0] + LINES[0] + LINES[1] + LINES[2]),
    "truncated": (2, LINES[0] + LINES[1][:20] + b"\n" + LINES[2]),
    "joined": (1, LINES[0][:-1] + LINES[1] + LINES[2]),
    "empty line": (2, LINES[0] + b"\n" + LINES[1] + LINES[2]),
    "another run's": (2, LINES[0] + encode_line("another run", 1, ROWS[1]) + LINES[2]),
    "another place's": (2, LINES[0] + encode_line(RUN, 4, ROWS[1]) + LINES[2]),
    "another value": (2, LINES[0] + LINES[1].replace(b'"label":1', b'"label":2') + LINES[2]),
    "damaged and torn": (3, LINES[0] + LINES[1] + LINES[2].replace(b"5", b"6") + b"{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_before_the_end_names_its_line_and_touches_nothing(tmp_path, damage):
    number, content = DAMAGES[damage]
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(ResumeError, match=f"damaged in line {number} "):
        Journal(path, RUN)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_an_error_of_ours(tmp_path):
    with pytest.raises(ResumeError, match="Cannot read"):
        read_lines(tmp_path, RUN)


class Disk:
    """Stands for os.pwrite and os.fsync on a disk with room for so many bytes, which takes them in small portions."""

    def __init__(self, room, *, code=errno.ENOSPC, portion=10**9):
        self.room, self.code, self.portion = room, code, portion
        self.pwrite_really = os.pwrite

    def pwrite(self, file, content, offset):
        if self.room <= 0:
            raise OSError(self.code, os.strerror(self.code))
        written = self.pwrite_really(file, content[: min(self.room, self.portion)], offset)
        self.room -= written
        return written


def random_offsets(count, seed=0):
    return sorted(random.Random(seed).sample(range(len(LINES[0]), len(CONTENT)), count))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG], ids=errno.errorcode.get)
@pytest.mark.parametrize("offset", random_offsets(20))
def test_a_full_disk_leaves_the_rows_before_and_goes_on_once_there_is_room(tmp_path, monkeypatch, offset, code):
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        file.append(ROWS[:1])
        monkeypatch.setattr(journal.os, "pwrite", Disk(offset - len(LINES[0]), code=code).pwrite)
        with pytest.raises(OutputError, match="1 rows before are safe") as caught:
            file.append(ROWS[1:])
        assert os.strerror(code) in str(caught.value)
        assert caught.value.exit_code == 6
        assert path.read_bytes() == LINES[0]
    monkeypatch.undo()
    with Journal(path, RUN) as file:
        assert file.notice is None
        file.append(ROWS[1:])
    assert path.read_bytes() == CONTENT


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path, monkeypatch):
    path = tmp_path / "rows"
    monkeypatch.setattr(journal.os, "pwrite", Disk(10**9, portion=3).pwrite)
    with Journal(path, RUN) as file:
        file.append(ROWS)
    assert path.read_bytes() == CONTENT


def fail(code):
    def call(*_):
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_rows_that_cannot_be_synced_are_not_there(tmp_path, monkeypatch, code):
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        file.append(ROWS[:1])
        monkeypatch.setattr(journal.os, "fsync", fail(code))
        with pytest.raises(OutputError, match=os.strerror(code)):
            file.append(ROWS[1:])
        assert path.read_bytes() == LINES[0]
        monkeypatch.undo()
        file.append(ROWS[1:])
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("offset", random_offsets(5, seed=1))
def test_a_disk_that_cannot_even_shorten_the_file_is_mended_by_the_next_to_open_it(tmp_path, monkeypatch, offset):
    path = tmp_path / "rows"
    with Journal(path, RUN) as file:
        file.append(ROWS[:1])
        monkeypatch.setattr(journal.os, "pwrite", Disk(offset - len(LINES[0]), code=errno.EIO).pwrite)
        monkeypatch.setattr(journal.os, "ftruncate", fail(errno.EIO))
        with pytest.raises(OutputError):
            file.append(ROWS[1:])
    assert path.read_bytes() == CONTENT[:offset]
    monkeypatch.undo()
    with Journal(path, RUN) as file:
        file.append(ROWS[len(file.rows) :])
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_an_interruption_while_writing_leaves_whole_rows(tmp_path, monkeypatch, call, stop):
    path = tmp_path / "rows"
    really = getattr(os, call)

    def interrupted(*arguments):
        really(*(argument[:50] if isinstance(argument, bytes) else argument for argument in arguments))
        raise stop

    with Journal(path, RUN) as file:
        file.append(ROWS[:1])
        monkeypatch.setattr(journal.os, call, interrupted)
        with pytest.raises(stop):
            file.append(ROWS[1:])
    assert path.read_bytes() == LINES[0]


def test_rows_are_on_disk_when_append_returns(tmp_path, monkeypatch):
    calls = []
    for name in ("pwrite", "fsync"):
        really = getattr(os, name)
        monkeypatch.setattr(
            journal.os, name, lambda *a, name=name, really=really: calls.append((name, a[0])) or really(*a)
        )
    with Journal(tmp_path / "rows", RUN) as file:
        calls.clear()
        file.append(ROWS)
        assert [name for name, _ in calls] == ["pwrite", "fsync"]
        assert calls[0][1] == calls[1][1]


def test_a_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path):
    with pytest.raises(OutputError, match="No such file"):
        Journal(tmp_path / "nowhere" / "rows", RUN)


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_no_file_stays_open(tmp_path, monkeypatch):
    before = open_files()
    with Journal(tmp_path / "rows", RUN) as file:
        file.append(ROWS)
    file.close()  # once more is no error
    monkeypatch.setattr(journal.os, "ftruncate", fail(errno.EIO))
    with pytest.raises(OutputError):
        Journal(tmp_path / "rows", RUN)
    assert open_files() == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_written_once_is_there_whole_or_not_at_all(tmp_path, monkeypatch, call):
    path = tmp_path / "run.json"
    write_once(path, b"first")
    monkeypatch.setattr(os, call, fail(errno.ENOSPC))
    with pytest.raises(OutputError, match="No space left"):
        write_once(path, b"second, and longer")
    monkeypatch.undo()
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]

"""A file of JSON lines that a crash at any point leaves readable.

Every line carries a checksum over its run, its place and its content. Lines are appended whole and synced to disk
before the next; what a crash cuts off is the last line alone, which is dropped when the file is opened again. A line
that does not have its checksum anywhere else is an error: it was altered. Rows of inputs that failed can be replaced: a
new file then takes the place of the old one in a single step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smoothcert.errors import OutputError, ResumeError

Row = dict[str, Any]
_SUM = "sum"


def encode_line(run_id: str, place: int, row: Row) -> bytes:
    """A row as its line in the file, with the checksum last."""
    text = json.dumps(row, separators=(",", ":"), allow_nan=False)
    return f'{text[:-1]},"{_SUM}":"{_checksum(run_id, place, text)}"}}\n'.encode()


def decode_line(run_id: str, place: int, line: bytes) -> Row:
    """The row in a line without its end; ValueError if it is not exactly what was written at this place."""
    row = json.loads(line.decode("ascii"))
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    row.pop(_SUM, None)
    if encode_line(run_id, place, row) != line + b"\n":
        raise ValueError("its checksum is another")
    return row


def _checksum(run_id: str, place: int, text: str) -> str:
    return hashlib.sha256(f"{run_id}\n{place}\n{text}".encode()).hexdigest()[:16]


def read_lines(path: Path, run_id: str) -> tuple[list[Row], int, str | None]:
    """The rows in a file, how many bytes they take, and a notice if what follows them was cut off.

    ResumeError naming the line if any but the last is damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0, None
    except OSError as error:
        raise ResumeError(f"Cannot read {path}: {error.strerror}.") from error
    lines = content.split(b"\n")
    torn = lines.pop() != b""  # nothing follows the end of a last line that is whole
    rows: list[Row] = []
    whole = 0
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(decode_line(run_id, number - 1, line))
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not torn:
                torn = True
                break
            raise ResumeError(
                f"{path} is damaged in line {number} ({error}): it was altered after it was written. Restore it from "
                "a copy, or start again elsewhere."
            ) from error
        whole += len(line) + 1
    notice = f"the last line of {path} was cut off; it is dropped and made again" if torn else None
    return rows, whole, notice


class Journal:
    """The file open for appending, after the rows that are there. Use as a context manager, under the run's lock."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self._run_id = path, run_id
        self.rows, self._size, self.notice = read_lines(path, run_id)
        self._file = -1
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
            os.ftruncate(self._file, self._size)
            sync_folder(self.path.parent)
        except OSError as error:
            self.close()
            raise OutputError(f"Cannot write {self.path}: {error.strerror}.") from error

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows and return when they are on disk; OutputError, and the file as before, if they cannot be."""
        content = b"".join(encode_line(self._run_id, place, row) for place, row in enumerate(rows, len(self.rows)))
        try:
            _write(self._file, content, self._size)
            os.fsync(self._file)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            if isinstance(error, OSError):
                raise OutputError(
                    f"Cannot write {self.path}: {error.strerror}. The {len(self.rows):,} rows before are safe; make "
                    "room and resume with --resume."
                ) from error
            raise
        self._size += len(content)
        self.rows += rows

    def replace_failed(self, rows: Mapping[int, Row]) -> None:
        """Replace rows of failed inputs by place, and return when the new file is on disk.

        OutputError, and the file as before, if it cannot be written. Results are never replaced.
        """
        if any("error" not in self.rows[place] for place in rows):
            raise ValueError("only rows of inputs that failed may be replaced")
        replaced = [rows.get(place, row) for place, row in enumerate(self.rows)]
        content = as_bytes(replaced, self._run_id)
        write_once(self.path, content)
        self.close()
        self.rows, self._size = replaced, len(content)
        self._open()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing is left to be written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write(file: int, content: bytes, offset: int) -> None:
    """Write all of `content` at `offset`, however little the system takes at a time."""
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], offset + done)


def write_once(path: Path, content: bytes) -> None:
    """Write a file that is either there whole and on disk, or not there."""
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error


def sync_folder(folder: Path) -> None:
    """Have the folder's entries on disk, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def as_bytes(rows: Iterable[Row], run_id: str) -> bytes:
    """The file that a run with these rows has."""
    return b"".join(encode_line(run_id, place, row) for place, row in enumerate(rows))

"""Files of labels: one number per line, lines of a file name and a number, or a table with a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.data.numpy_files import read_numpy
from smoothcert.data.wnids import wnid_labels, wnids
from smoothcert.errors import InputError
from smoothcert.files import read_at_most

FILE_COLUMNS = ("file", "filename", "path", "image")
LABEL_COLUMNS = ("label", "class", "target")
_MOST_BYTES = 256 * 2**20  # a million lines of 256 bytes
CUSTOMARY_NAMES = ("labels.csv", "labels.tsv", "index.tsv")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels of files in the order in which these were asked for, with class names and hashes where they are known."""

    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...] | None
    sha256: tuple[str, ...] | None = None


def find_label_file(folder: Path) -> Path | None:
    """A label file under one of its customary names."""
    return next((folder / name for name in CUSTOMARY_NAMES if (folder / name).is_file()), None)


def label_files(path: Path, files: Sequence[str]) -> Labelled:
    """The labels that the label file at `path` gives to `files`; InputError unless it fits them one to one."""
    text = _text(path)
    lines = _lines(text)
    if not lines:
        raise InputError(f"Expected labels in {printable(path)}, got an empty file.")
    if all(_is_whole(line) for line in lines):
        return Labelled(_in_order(path, lines, len(files)), None)
    columns = _columns(lines[0])
    return _listed(path, lines, files) if columns is None else _tabled(path, text, columns, files)


def read_labels(path: Path, count: int) -> npt.NDArray[np.int64]:
    """`count` labels from a .npy file or from text with one per line."""
    if path.suffix == ".npy":
        found = read_numpy(path)
        if isinstance(found, dict):
            raise InputError(f"Expected one array of labels in {printable(path)}, got an archive of {len(found)}.")
        return as_labels(found, count, printable(path))
    return _in_order(path, _lines(_text(path)), count)


def as_labels(labels: npt.NDArray[np.generic], count: int, source: str) -> npt.NDArray[np.int64]:
    """The array as int64 labels [count]; InputError for fractions, NaN, text or another number of them."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        raise InputError(
            f"Expected {count:,} whole numbers as labels in {source}, one per input, got {labels.dtype} {labels.shape}."
        )
    return labels.astype(np.int64)


def _text(path: Path) -> str:
    content = read_at_most(path, _MOST_BYTES, InputError, f"the label file {printable(path)}")
    return content.decode("utf-8-sig", errors="surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _is_whole(text: str) -> bool:
    digits = text.strip().removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19  # 19 digits no longer fit


def _in_order(path: Path, lines: Sequence[str], count: int) -> npt.NDArray[np.int64]:
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise InputError(
                f"Expected a whole number per line in {printable(path)}, got '{printable(line[:40])}' in line {number}."
            )
    if len(lines) != count:
        raise InputError(f"Expected {count:,} labels in {printable(path)}, one per input, got {len(lines):,}.")
    return np.array([int(line) for line in lines], np.int64)


def _listed(path: Path, lines: Sequence[str], files: Sequence[str]) -> Labelled:
    """Lines of a file name, white space and a number, as ImageNet's lists have them."""
    parts = [line.rsplit(None, 1) for line in lines]
    if not all(len(part) == 2 and _is_whole(part[1]) for part in parts):
        raise InputError(
            f"Expected in {printable(path)} a header with a column of {' or '.join(FILE_COLUMNS)} and one of "
            f"{' or '.join(LABEL_COLUMNS)}; or a number per line; or a file name and a number per line. Got "
            f"'{printable(lines[0][:60])}'."
        )
    rows = _rows_of(path, [name.strip() for name, _ in parts], files)
    return Labelled(np.array([int(parts[row][1]) for row in rows], np.int64), None)


def _columns(header: str) -> list[str] | None:
    """The names of all columns if there is one of files and one of labels, else None."""
    names = [name.strip().strip('"').lower() for name in header.split(_separator(header))]
    return names if set(names) & set(FILE_COLUMNS) and set(names) & set(LABEL_COLUMNS) else None


def _separator(header: str) -> str:
    return "\t" if "\t" in header else ","


def _tabled(path: Path, text: str, columns: list[str], files: Sequence[str]) -> Labelled:
    table = _table(path, text, columns)
    rows = _rows_of(path, table[_first(FILE_COLUMNS, columns)], files)
    column = {name: [values[row] for row in rows] for name, values in table.items()}
    labels, classes = _numbers(path, column[_first(LABEL_COLUMNS, columns)])
    if "wnid" in column:
        _check_wnids(path, labels, column["wnid"])
        classes = wnids()
    return Labelled(labels, classes, tuple(column["sha256"]) if "sha256" in column else None)


def _first(wanted: Sequence[str], columns: Sequence[str]) -> str:
    return next(name for name in wanted if name in columns)


def _table(path: Path, text: str, columns: list[str]) -> dict[str, list[str]]:
    """The columns by name; values may be quoted, and then hold separators and line breaks."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=_separator(_lines(text)[0]), strict=True))
    except csv.Error as error:
        raise InputError(f"Expected a table in {printable(path)}, got one that is damaged: {error}.") from error
    rows = [row for row in rows if row][1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise InputError(
                f"Expected {len(columns)} values in every row of {printable(path)}, got {len(row)} in row {number}."
            )
    return {name: [row[place].strip() for row in rows] for place, name in enumerate(columns)}


def _rows_of(path: Path, names: Sequence[str], files: Sequence[str]) -> list[int]:
    """For each file the row that names it."""
    places_of = _places(files)
    row_of: dict[int, int] = {}
    for row, name in enumerate(names):
        places = places_of.get(name, [])
        if len(places) != 1 or places[0] in row_of:
            fault = "several files" if len(places) > 1 else "a file named before" if places else "no file"
            raise InputError(f"Expected one image per row of {printable(path)}, '{printable(name)}' is {fault}.")
        row_of[places[0]] = row
    if len(row_of) < len(files):
        lost = next(file for place, file in enumerate(files) if place not in row_of)
        raise InputError(f"Expected a label for every image in {printable(path)}, there is none for {printable(lost)}.")
    return [row_of[place] for place in range(len(files))]


def _places(files: Sequence[str]) -> dict[str, list[int]]:
    """Under which names a label file may mean a file: its own, or what follows an underscore in it."""
    places: dict[str, list[int]] = {}
    for place, file in enumerate(files):
        for cut in (at + 1 for at, one in enumerate(file) if one == "_"):
            places.setdefault(file[cut:], []).append(place)
    return places | {file: [place] for place, file in enumerate(files)}


def _numbers(path: Path, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], tuple[str, ...] | None]:
    """Labels as numbers: as they are, by ImageNet's order for its ids, else by the sorted order of the names."""
    if all(_is_whole(text) for text in texts):
        return np.array([int(text) for text in texts], np.int64), None
    places = wnid_labels(texts, printable(path))
    if places is not None:
        return places, wnids()
    odd = next((text for text in texts if not text or _is_number(text)), None)
    if odd is not None:
        raise InputError(
            f"Expected labels in {printable(path)} that are all whole numbers or all names, got '{printable(odd)}' "
            "among them."
        )
    classes = tuple(sorted(set(texts)))
    return np.array([classes.index(text) for text in texts], np.int64), classes


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_wnids(path: Path, labels: npt.NDArray[np.int64], ids: Sequence[str]) -> None:
    known = {wnid: place for place, wnid in enumerate(wnids())}
    for label, wnid in zip(labels.tolist(), ids, strict=True):
        if known.get(wnid) != label:
            raise InputError(
                f"Expected label {known.get(wnid, 'none')} for {printable(wnid)} in {printable(path)}, its place among "
                f"ImageNet's sorted classes, got {label}."
            )

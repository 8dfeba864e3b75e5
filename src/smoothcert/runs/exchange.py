"""Runs to and from other tools: the paper's logs, CSV, Parquet."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from smoothcert import __version__
from smoothcert.checks import check_alpha, check_choice, check_count, check_sigma
from smoothcert.data.names import printable
from smoothcert.errors import ConfigError, InputError, MissingExtraError, OutputError
from smoothcert.files import check_writable, replacing
from smoothcert.records import exact_decimal, radius_text
from smoothcert.runs.directory import ROWS, TIMES, Run, Writer
from smoothcert.runs.journal import Row, as_bytes, write_once
from smoothcert.runs.manifest import FILE, FORMAT, Manifest
from smoothcert.runs.scope import margin_in_words

Format = Literal["tsv", "csv", "parquet"]
Times = dict[int, float]

_CERTIFY = ("idx", "label", "predict", "radius", "correct", "time")
_PREDICT = ("idx", "label", "predict", "correct", "time")
_ABSTAINED = _UNLABELLED = -1
_LONGEST = 1e9  # seconds; what is beyond is no time an input took
_PRINTED = 1.005  # the paper's logs have three digits, rounded to nearest


# Export


def export_run(run: Run, path: Path, format: Format) -> tuple[str, ...]:  # noqa: A002 - as the flag is called
    """Write the rows of `run` into a new file, and return notices of what the file cannot say.

    tsv is the form of the paper's logs, where an input that failed counts as an abstention. Radii have all their digits
    in every format, so that reading them back gives the same numbers.
    """
    writer = _WRITERS[check_choice("format", format, _WRITERS)]
    if run.attacks:
        raise ConfigError(f"{run.path} holds attacks, for which others' logs have no form.")
    check_new_file(path)
    if format == "parquet":
        _pyarrow()
    times = read_times(run)
    with replacing(path) as partial:
        writer(run, times, partial)
    return tuple(_notices(run, format))


def format_of(path: Path) -> Format:
    """The format that a file's name asks for."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in _WRITERS:
        known = ", ".join(f".{name}" for name in _WRITERS)
        raise ConfigError(f"Expected a file name that ends in {known}, got {path.name!r}. Or give --format.")
    return suffix  # type: ignore[return-value]


def check_new_file(path: Path) -> None:
    """Raise the error that writing a new file `path` would end in; nothing is ever overwritten."""
    check_writable(path)
    if path.is_file():
        raise ConfigError(f"There is a file {path} already, and nothing is overwritten. Choose another --out.")
    if os.path.lexists(path):  # a device, or a link to nowhere
        raise OutputError(f"Cannot write {path}: it is no ordinary file. Choose another --out.")


def read_times(run: Run) -> Times:
    """Seconds by input, as far as they are known; what was noted last holds, and damaged lines are left out."""
    try:
        lines = (run.path / TIMES).read_bytes().splitlines()
    except OSError:
        return {}
    found: Times = {}
    for line in lines:
        try:
            entry = json.loads(line)
            index, seconds = int(entry["index"]), float(entry["seconds"])
        except (ValueError, KeyError, TypeError, OverflowError):  # times are no evidence: one more or less is no matter
            continue
        if 0 <= seconds <= _LONGEST:
            found[index] = seconds
    return found


def _notices(run: Run, name: Format) -> Iterator[str]:
    total = len(run.manifest.indices)
    if run.notice:
        yield run.notice
    if not run.complete:
        yield f"the run is not complete: {len(run.rows):,} of {total:,} inputs were exported"
    if margin := margin_in_words(run):
        yield f"the file does not say that {margin}"
    if run.errors and name == "tsv":
        yield f"{len(run.errors):,} of {len(run.rows):,} inputs failed; the log has them as abstentions"


def _write_tsv(run: Run, times: Times, path: Path) -> None:
    columns = _PREDICT if run.predicts else _CERTIFY
    with path.open("w", encoding="ascii", newline="") as file:
        file.write("\t".join(columns) + "\n")
        for row in run.rows:
            cells = _log_cells(row, times)
            file.write("\t".join(cells[name] for name in columns) + "\n")


def _log_cells(row: Row, times: Times) -> dict[str, str]:
    """A row as the paper writes it."""
    label, truth = row.get("label"), row["true"]
    return {
        "idx": str(row["index"]),
        "label": str(_UNLABELLED if truth is None else truth),
        "predict": str(_ABSTAINED if label is None else label),
        "radius": "0.0" if label is None else repr(float(row.get("radius", 0.0))),
        "correct": str(int(label is not None and label == truth)),
        "time": str(timedelta(seconds=times.get(row["index"], 0.0))),
    }


def _columns(run: Run, times: Times) -> dict[str, list[Any]]:
    table = run.table()
    return {**table, "seconds": [times.get(index) for index in table["index"]]}


def _write_csv(run: Run, times: Times, path: Path) -> None:
    columns = _columns(run, times)
    columns["radius"] = [repr(radius) for radius in columns["radius"]]
    columns["correct"] = [int(correct) for correct in columns["correct"]]
    columns["error"] = [None if error is None else _harmless(error) for error in columns["error"]]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _harmless(text: str) -> str:
    r"""Text that a spreadsheet takes for text: never for a formula, never for a new line.

    >>> _harmless("=cmd()"), _harmless("a\tb")
    ("'=cmd()", 'a\\tb')
    """
    shown = printable(text)
    starts_badly = text.lstrip()[:1] in tuple("=+-@＝＋－＠") or shown[:1] != text[:1]
    return f"'{shown}" if text and starts_badly else shown


def _write_parquet(run: Run, times: Times, path: Path) -> None:
    pyarrow, parquet = _pyarrow()
    columns = _columns(run, times)
    # Half a surrogate pair, from a file name perhaps, is no UTF-8.
    columns["error"] = [None if one is None else one.encode("utf-8", "backslashreplace") for one in columns["error"]]
    kinds = {"radius": pyarrow.float64(), "seconds": pyarrow.float64(), "correct": pyarrow.bool_()}
    kinds["error"] = pyarrow.string()
    fields = [pyarrow.field(name, kinds.get(name, pyarrow.int64())) for name in columns]
    schema = pyarrow.schema(fields, metadata={"smoothcert": _about(run)})
    parquet.write_table(pyarrow.Table.from_pydict(columns, schema=schema), path)


def _about(run: Run) -> str:
    """What the radii mean: kept in the file, which may travel without its run."""
    values = run.manifest.values
    about = {name: values[name] for name in ("kind", "sigma", "alpha", "procedure")}
    return json.dumps({**about, "run": run.manifest.run_id}, allow_nan=False)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


_WRITERS: dict[str, Callable[[Run, Times, Path], None]] = {
    "tsv": _write_tsv,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


# Import


@dataclass(frozen=True, slots=True)
class Log:
    """What a log of CERTIFY or PREDICT says, in the order of its lines."""

    kind: Literal["certify", "predict"]
    rows: list[Row]
    times: Times
    sha256: str


def import_log(
    path: Path, out: Path, *, sigma: float, alpha: float, n: int | None = None, data: str | None = None
) -> Run:
    """Make a run in `out` from the log of CERTIFY or PREDICT at `path`, as the paper's code writes it.

    The log does not say its noise level, failure probability and draws: `sigma`, `alpha` and `n` must be those it was
    made with. Radii are taken as they are printed. Where `n` is known, a radius that n draws cannot certify at `alpha`
    is an error.
    """
    sigma, alpha = check_sigma(sigma), check_alpha(alpha)
    if n is not None:
        check_count("n", n)
    with new_run(out) as writer:
        log = read_log(path)
        if n is not None and log.kind == "certify":
            _check_reach(path, log, n, alpha, sigma)
        manifest = Manifest(_describe(path, log, sigma=sigma, alpha=alpha, n=n, data=data))
        return fill(writer, manifest, log.rows, log.times)


def _describe(path: Path, log: Log, *, sigma: float, alpha: float, n: int | None, data: str | None) -> dict[str, Any]:
    """The content of run.json: as of a run made here, with None for what a log does not say."""
    unknown = ("source", "kind", "weights_hash", "num_classes", "classes", "input_shape", "normalization")
    return {
        "format": FORMAT,
        "kind": "import",
        "sigma": sigma,
        "alpha": alpha,
        "noise": None,
        "procedure": {"name": "imported"} | ({} if n is None else {"n": n}),
        "known_labels": False,
        "model": {**dict.fromkeys(unknown), "notes": []},
        "data": {"name": "unknown" if data is None else printable(data)},
        "log": {"kind": log.kind, "source": printable(path.name), "sha256": log.sha256},
        "indices": [row["index"] for row in log.rows],
        "versions": {"smoothcert": __version__},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check_reach(path: Path, log: Log, n: int, alpha: float, sigma: float) -> None:
    """A log that claims more than it can was made with another n, sigma or alpha than those given."""
    from smoothcert.stats.radii import max_radius

    most = max_radius(n, alpha, sigma)
    for number, row in enumerate(log.rows, start=2):
        if row["radius"] > most * _PRINTED:
            raise ConfigError(
                f"{_place(path, number)} has the radius {exact_decimal(row['radius'])}, but with sigma = {sigma:g} and "
                f"alpha = {alpha:g}, {n:,} draws certify at most {radius_text(most)}. Give the `sigma`, `alpha` and "
                "`n` that the log was made with."
            )


def read_log(path: Path) -> Log:
    """The rows of a log; InputError naming the line unless every one is as CERTIFY or PREDICT writes it."""
    content = _content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"Expected text in {_place(path, line)}, got bytes that are no UTF-8.") from error
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    if lines == [""]:
        raise InputError(f"Expected a log of CERTIFY or PREDICT in {printable(path)}, got an empty file.")
    columns = tuple(lines[0].split("\t"))
    if columns not in (_CERTIFY, _PREDICT):
        raise InputError(
            f"Expected the header {' '.join(_CERTIFY)}, or the same without radius, separated by tabs, in "
            f"{_place(path, 1)}, got {lines[0][:80]!r}."
        )
    if len(lines) == 1:
        raise InputError(f"Expected a log of CERTIFY or PREDICT in {printable(path)}, got a header without rows.")
    rows, times = _read_rows(path, columns, lines[1:])
    kind: Literal["certify", "predict"] = "certify" if columns == _CERTIFY else "predict"
    return Log(kind, rows, times, hashlib.sha256(content).hexdigest())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the log {printable(path)}: {error.strerror}.") from error


def _place(path: Path, line: int) -> str:
    return f"line {line} of {printable(path)}"


def _read_rows(path: Path, columns: Sequence[str], lines: Sequence[str]) -> tuple[list[Row], Times]:
    rows, times = [], {}
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        try:
            if len(cells) != len(columns):
                raise ValueError(f"{len(columns)} columns, got {len(cells)}")
            row, seconds = _read_row(dict(zip(columns, cells, strict=True)))
        except ValueError as error:
            raise InputError(f"In {_place(path, number)}, expected {error}.") from error
        first = seen.setdefault(row["index"], number)
        if first != number:
            raise InputError(
                f"In {_place(path, number)}, expected an input that was not there yet, got {row['index']} again, as in "
                f"line {first}."
            )
        rows.append(row)
        times[row["index"]] = seconds
    return rows, times


def _read_row(cells: Mapping[str, str]) -> tuple[Row, float]:
    """A line's row and seconds; ValueError of the form "this, got that"."""
    index = _whole(cells, "idx", least=0)
    truth, label = (_whole(cells, name, least=-1) for name in ("label", "predict"))
    correct, right = cells["correct"], int(label == truth and label != _ABSTAINED)
    if correct != str(right):
        raise ValueError(f"`correct` {right} with label {truth} and predict {label}, got {correct!r}")
    row: Row = {
        "index": index,
        "true": None if truth == _UNLABELLED else truth,
        "label": None if label == _ABSTAINED else label,
    }
    if "radius" in cells:
        row["radius"] = _radius(cells["radius"])
        if row["radius"] > 0 and label == _ABSTAINED:
            raise ValueError(f"`radius` 0.0 with predict -1, which abstains, got {cells['radius']!r}")
    return row, _seconds(cells["time"])


# Python's own int() and float() take 1_000, spaces, nan and digits of any script.
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_REAL = re.compile(r"[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,5}) days?, )?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,9})?)")


def _whole(cells: Mapping[str, str], name: str, *, least: int) -> int:
    text = cells[name]
    if not _WHOLE.fullmatch(text) or int(text) < least:
        raise ValueError(f"`{name}` to be a whole number >= {least}, got {text[:40]!r}")
    return int(text)


def _radius(text: str) -> float:
    value = float(text) if _REAL.fullmatch(text) else math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"`radius` to be a finite number >= 0, got {text[:40]!r}")
    return value


def _seconds(text: str) -> float:
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    value = float(text) if _REAL.fullmatch(text) else math.nan
    if not value <= _LONGEST:
        raise ValueError(f"`time` in seconds or as H:MM:SS.ffffff, got {text[:40]!r}")
    return value


# Runs that are written at once


def new_run(out: Path) -> Writer:
    """The writer of a run that is made as a whole; ConfigError or OutputError if it cannot go to `out`."""
    if (out / FILE).exists():
        raise ConfigError(f"There is a run in {out} already, and nothing is overwritten. Choose another --out.")
    return Writer(out, resume=False)


def fill(writer: Writer, manifest: Manifest, rows: Sequence[Row], times: Times) -> Run:
    """Write all of a run. The manifest comes last: a folder is a run only once everything is there."""
    folder = writer.path
    entries = ({"index": row["index"], "seconds": times[row["index"]]} for row in rows if row["index"] in times)
    try:
        write_once(folder / ROWS[manifest.kind], as_bytes(rows, manifest.run_id))
        write_once(folder / TIMES, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        manifest.write(folder)
    except BaseException:
        for name in (ROWS[manifest.kind], TIMES, FILE):
            (folder / name).unlink(missing_ok=True)
        raise
    return Run(folder, manifest, rows)

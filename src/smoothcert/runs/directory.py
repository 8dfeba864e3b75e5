"""Run directories: opened for reading, or for one writer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smoothcert.errors import ConfigError, InputError, MissingExtraError, OutputError, ResumeError
from smoothcert.lock import Lock
from smoothcert.records import Certificate, Prediction
from smoothcert.runs.journal import Journal, Row, read_lines
from smoothcert.runs.manifest import FILE, Manifest, differences, read_manifest
from smoothcert.runs.retired import retirement
from smoothcert.runs.rows import row_result

if TYPE_CHECKING:
    import pandas

ROWS = {
    "certify": "certificates.jsonl",
    "predict": "predictions.jsonl",
    "import": "certificates.jsonl",
    "bound": "certificates.jsonl",
    "attack": "attacks.jsonl",
    "attack-base": "attacks.jsonl",
}
LOCK = "lock"
TIMES = "times.jsonl"


class Run:
    """A run on disk, whole or under way: its manifest, its rows, and what these say."""

    def __init__(self, path: Path, manifest: Manifest, rows: Sequence[Row], notice: str | None = None) -> None:
        self.path, self.manifest, self.rows, self.notice = path, manifest, list(rows), notice

    @property
    def complete(self) -> bool:
        """True when every input has its row."""
        return len(self.rows) == len(self.manifest.indices)

    @property
    def predicts(self) -> bool:
        """True for answers without radii, of a run that predicts or of a log of such a one."""
        return self.manifest.kind == "predict" or self.manifest.values.get("log", {}).get("kind") == "predict"

    @property
    def certifies(self) -> bool:
        """True for classes with radii, whatever they rest on."""
        return self.manifest.kind in ("certify", "bound") or (self.manifest.kind == "import" and not self.predicts)

    @property
    def attacks(self) -> bool:
        """True for attacks, on a smoothed classifier or on a base classifier."""
        return self.manifest.kind in ("attack", "attack-base")

    @property
    def has_votes(self) -> bool:
        """True if the rows rest on votes that are in the run; logs have none, deterministic bounds need none."""
        return self.manifest.kind in ("certify", "predict", "attack")

    @property
    def retirement(self) -> str | None:
        """Which version verifies the run, if its procedure is one that this version does not have."""
        return retirement(self.manifest.values["procedure"])

    @property
    def sigma(self) -> float:
        """The noise level."""
        return float(self.manifest.values["sigma"])

    @cached_property
    def certificates(self) -> list[Certificate | Prediction | None]:
        """The results in the order of the rows; None for inputs that failed and for imported rows, without votes."""
        return [row_result(row, self.manifest.values) for row in self.rows]

    @property
    def votes(self) -> npt.NDArray[np.int64]:
        """All stages' votes by input and class [rows, classes]; rows without votes are zeros."""
        classes = self.manifest.values["model"]["num_classes"]
        if classes is None:
            raise InputError("An imported log holds no votes; only runs that certify or predict do.")
        counts = np.zeros((len(self.rows), classes), np.int64)
        for place, result in enumerate(self.certificates):
            for stage in () if result is None else result.stages:
                counts[place] += stage.counts
        return counts

    @property
    def errors(self) -> list[Row]:
        """The rows of inputs that failed."""
        return [row for row in self.rows if "error" in row]

    def table(self) -> dict[str, list[Any]]:
        """The rows as columns: index, true, label (None: abstained), radius, correct, draws, error."""
        results = zip(self.rows, self.certificates, strict=True)
        return {
            "index": [row["index"] for row in self.rows],
            "true": [row["true"] for row in self.rows],
            "label": [row.get("label") for row in self.rows],
            "radius": [float(row.get("radius", 0.0)) for row in self.rows],
            "correct": [row.get("label") is not None and row["label"] == row["true"] for row in self.rows],
            "draws": [None if result is None else result.draws for _, result in results],
            "error": [row.get("error") for row in self.rows],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """`table` as a data frame of pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "pandas") from error
        return pandas.DataFrame(self.table())


def open_run(path: str | Path) -> Run:
    """The run in a directory, for reading; it may still be under way.

    ResumeError if the manifest or a row is damaged. `notice` says if a last line that is cut off was left out, and if
    the run's procedure is one that this version does not have.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest.kind not in ROWS:
        raise ResumeError(f"Expected a run of a kind known here in {folder}, got {manifest.kind!r}.")
    rows, _, notice = read_lines(folder / ROWS[manifest.kind], manifest.run_id)
    _check_rows(folder, manifest, rows)
    notices = filter(None, (notice, retirement(manifest.values["procedure"])))
    return Run(folder, manifest, rows, "; ".join(notices) or None)


def _check_rows(folder: Path, manifest: Manifest, rows: Sequence[Row]) -> None:
    indices = manifest.indices
    if len(rows) > len(indices):
        raise ResumeError(f"Expected at most {len(indices):,} rows in {folder}, got {len(rows):,}.")
    for number, (row, index) in enumerate(zip(rows, indices, strict=False), start=1):
        if row.get("index") != index:
            raise ResumeError(f"Expected line {number} in {folder} to be about input {index}, got {row.get('index')}.")


class Writer:
    """The one that may write to a run: holds its lock from before the model is loaded until all is written."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self._journal: Journal | None = None
        self._created = _make_folder(path)
        self._lock = Lock(path / LOCK)
        try:
            self.existing = self._existing(resume)
        except BaseException:
            self.close()
            raise

    def _existing(self, resume: bool) -> Manifest | None:
        if (self.path / FILE).exists():
            if not resume:
                raise ConfigError(
                    f"There is a run in {self.path} already, and nothing is overwritten. Add --resume to go on with "
                    "it, or choose another --out."
                )
            return read_manifest(self.path)
        strange = [entry.name for entry in self.path.iterdir() if entry.name != LOCK and not entry.name.startswith(".")]
        if strange:
            raise ConfigError(f"Expected a new or empty folder for the run, {self.path} holds {strange[0]!r}.")
        return None

    def start(self, manifest: Manifest) -> Journal:
        """Write the manifest, or hold it against the one that is there; return the journal to append to."""
        if self.existing is None:
            manifest.write(self.path)
        else:
            changed = differences(self.existing.values, manifest.values)
            if changed:
                raise ResumeError(
                    f"This is not the run in {self.path}; what differs: {'; '.join(changed)}. Repeat its settings, or "
                    "choose another --out."
                )
            manifest = self.existing
        self._journal = Journal(self.path / ROWS[manifest.kind], manifest.run_id)
        _check_rows(self.path, manifest, self._journal.rows)
        return self._journal

    def close(self) -> None:
        """Close the files and let others write; a folder made in vain is removed."""
        if self._journal is not None:
            self._journal.close()
        begun = (self.path / FILE).exists()
        self._lock.release(remove=not begun)
        if self._created and not begun:
            with contextlib.suppress(OSError):  # others have put something there
                self.path.rmdir()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_folder(path: Path) -> bool:
    """Make the run's folder if there is none; True if so."""
    try:
        if path.exists() and not path.is_dir():
            raise OutputError(f"Cannot write a run to {path}: it is not a folder.")
        if not path.parent.is_dir():
            raise OutputError(f"Cannot create {path}: there is no folder {path.parent}. Create it first.")
        path.mkdir()
    except FileExistsError:
        return False
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"Cannot create {path}: {error.strerror}.") from error
    return True

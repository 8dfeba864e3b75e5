"""Writing results: whole files or none, and a clear word before the work starts if they cannot be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smoothcert.errors import OutputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once the block has written it without an error."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())  # mkstemp makes files that only the owner may read
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(path: Path) -> None:
    """Raise OutputError unless a file `path` could be written now; nothing is left behind."""
    if path.is_dir():
        raise OutputError(f"Cannot write {path}: it is a folder. Name a file.")
    if not path.parent.is_dir():
        raise OutputError(f"Cannot write {path}: there is no folder {path.parent}. Create it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error


def prepare_folder(folder: Path, names: list[str]) -> None:
    """Create `folder` if needed and raise OutputError unless files of these names can be written into it."""
    if not folder.parent.is_dir():
        raise OutputError(f"Cannot create {folder}: there is no folder {folder.parent}. Create it first.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    for name in names:
        check_writable(folder / name)

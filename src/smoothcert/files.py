"""Reading files within limits, and atomic writes with early checks that outputs are writable."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smoothcert.errors import OutputError, SmoothcertError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may hold.

    Attributes:
        entries: the number of members.
        size: bytes that its members unpack to.
        ratio: bytes that its members unpack to, per byte of the archive.
        harmless: bytes that may be unpacked into memory whatever the ratio, as any machine has them.
    """

    entries: int = 10_000
    size: int = 4 * 2**30
    ratio: int = 1000
    harmless: int = 64 * 2**20

    def in_memory(self, packed: int) -> int:
        """How many bytes `packed` bytes may unpack to in memory; as many as they are themselves in any case."""
        return max(packed, self.harmless, min(self.size, self.ratio * packed))


def zip_fault(archive: zipfile.ZipFile, packed: int, limits: Limits) -> str | None:
    """Why the members of a zip archive of `packed` bytes must not be read into memory; None if they may.

    Sizes are judged as the archive declares them. zipfile never returns more of a member than that, but decompresses
    more first unless the method is deflate: other methods, which neither torch nor numpy writes, are a fault.
    """
    members = archive.infolist()
    if len(members) > limits.entries:
        return f"it has {len(members):,} members, more than {limits.entries:,}"
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return "it is compressed by another method than deflate"
    total, most = sum(member.file_size for member in members), limits.in_memory(packed)
    if total > most:
        return f"its {packed:,} bytes would unpack to {total:,}, more than {most:,}"
    return None


def read_at_most(path: Path, most: int | None, error: type[SmoothcertError], name: str | None = None) -> bytes:
    """The content of a file, called `name` in messages; `error` if it cannot be read or is longer than `most` bytes."""
    name = name or str(path)
    parts: list[bytes] = []
    length = 0
    try:
        with path.open("rb") as file:
            # Pipes and devices have no size; of a file, one part is all of it.
            step = max(os.fstat(file.fileno()).st_size, 2**16) + 1
            while part := file.read(step if most is None else min(step, most - length + 1)):
                length += len(part)
                parts.append(part)
                if most is not None and length > most:
                    raise error(f"Expected at most {most:,} bytes in {name}, got more.")
    except OSError as reason:
        raise error(f"Cannot read {name}: {reason.strerror}.") from reason
    except (MemoryError, OverflowError) as reason:
        raise error(f"Cannot read {name}: it does not fit into memory.") from reason
    return b"".join(parts)


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

"""Unpacking tar archives that one need not trust: every member is looked at before anything is written."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from smoothcert.data.names import printable
from smoothcert.errors import InputError, OutputError
from smoothcert.files import Limits

_LONGEST_READ = 2**20  # no header is longer; one that says so wants our memory


def unpack(archive: Path, into: Path, limits: Limits | None = None) -> list[Path]:
    """Unpack a tar archive, plain or gzip, into the folder `into` and return the files.

    InputError naming the member, and nothing written, if one would land elsewhere, is no file or folder, or if there
    is more than the limits allow. Files of the same names are replaced; each is whole at any time.
    """
    with _opened(archive) as tar:
        files = _checked(tar, archive, limits or Limits())
    into.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking.", dir=into) as temporary, _opened(archive) as tar:
            for member in tar:
                if member.name in files:
                    _write(tar, member, Path(temporary) / member.name)
            for name in files:
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(temporary) / name).replace(into / name)
    except OSError as error:
        raise OutputError(f"Cannot unpack into {printable(into)}: {error.strerror or error}.") from error
    return [into / name for name in files]


class _Wary(io.RawIOBase):
    """A file that refuses to be read in large pieces, which only a forged header asks for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        raw = archive.open("rb")
    except OSError as error:
        raise InputError(f"Cannot read {printable(archive)}: {error.strerror}.") from error
    try:
        with raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw)
            with tarfile.open(fileobj=cast(IO[bytes], _Wary(file)), mode="r:") as tar:
                yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"Expected a tar archive in {printable(archive)}, got damage: {printable(error)}.") from error


def _checked(tar: tarfile.TarFile, archive: Path, limits: Limits) -> dict[str, int]:
    """The regular files by name, in order; sizes are judged as declared, before anything is unpacked."""
    most = min(limits.size, limits.ratio * archive.stat().st_size)
    files: dict[str, int] = {}
    total = 0
    for number, member in enumerate(tar, start=1):
        total += member.size
        if number > limits.entries:
            raise _refusal(archive, member, f"it is more than {limits.entries:,} members")
        if total > most:
            raise _refusal(archive, member, f"it takes more than {most:,} bytes to unpack so far")
        fault = _fault(member)
        if fault is None and member.isfile() and member.name in files:
            fault = "it is there twice"
        if fault is not None:
            raise _refusal(archive, member, fault)
        if member.isfile():
            files[member.name] = member.size
    _check_end(tar)
    return files


def _check_end(tar: tarfile.TarFile) -> None:
    """Python takes a damaged header for the end; the true end is a block of zeros."""
    source = cast(IO[bytes], tar.fileobj)
    source.seek(tar.offset)
    if source.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it breaks off, or a header is damaged")


def _fault(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ":" in member.name:
        return "its path is absolute"
    if ".." in path.parts or "\\" in member.name:
        return "its path leads out of the folder"
    if member.issym() or member.islnk():
        return f"it is a link to {printable(member.linkname)}"
    if not (member.isfile() or member.isdir()) or member.issparse():
        return "it is neither a file nor a folder"
    return None


def _refusal(archive: Path, member: tarfile.TarInfo, fault: str) -> InputError:
    return InputError(
        f"Refused to unpack {printable(archive)}: its member '{printable(member.name)}' is not allowed, {fault}."
    )


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"no content of {member.name}")
    with content, path.open("xb") as file:
        shutil.copyfileobj(content, file, 64 * 1024)
    if path.stat().st_size != member.size:
        raise tarfile.ReadError(f"{member.name} breaks off")

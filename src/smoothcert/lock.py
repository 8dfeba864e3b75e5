"""One writer per run: a lock that the operating system releases when its holder ends, however it ends.

Some network and user-space file systems have no such locks. There a file that exists while the lock is held takes their
place (`filelock.SoftFileLock`), and a warning says so.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import SoftFileLock, Timeout

from smoothcert.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("smoothcert")

SOFT = ".lock.soft"
_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)  # the last two: some file systems, and Windows
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


class Lock:
    """Holds the file `path` locked. OutputError at once, naming the holder, if another process has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = not path.exists()
        self._soft: SoftFileLock | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"Cannot write {path}: {error.strerror}.") from error
        try:
            self._take()
            self._write_holder()
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and not isinstance(error, OutputError):
                raise OutputError(f"Cannot lock {path}: {error.strerror}.") from error
            raise

    def _take(self) -> None:
        taken = _try_lock(self._file)
        if taken is None or (taken and not self._excludes_others()):
            self._take_soft()
        elif not taken or not self._is_current():
            raise self._held()

    def _excludes_others(self) -> bool:
        """False where the system grants a lock to everyone who asks for it."""
        if fcntl is None:
            return True
        try:
            other = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:  # its last holder has just removed it
            return True
        try:
            return os.fstat(other).st_ino != os.fstat(self._file).st_ino or not _try_lock(other)
        finally:
            os.close(other)

    def _is_current(self) -> bool:
        """False if the last holder has removed the file since we opened it: then another may lock a new one."""
        return fcntl is None or (self._path.exists() and os.fstat(self._file).st_ino == self._path.stat().st_ino)

    def _take_soft(self) -> None:
        marker = self._path.with_name(SOFT)
        soft = SoftFileLock(marker, timeout=0, thread_local=False)
        try:
            soft.acquire()
        except Timeout as error:
            raise self._held(f"If that process has ended, delete {marker}.") from error
        self._soft = soft
        log.warning(
            "the file system of %s does not support locks: %s marks it as being written to, and stays if this process "
            "is killed",
            *(self._path.parent, SOFT),
        )

    def _held(self, more: str = "") -> OutputError:
        holder = os.pread(self._file, 200, 0).decode(errors="replace").strip() if fcntl else ""
        words = (
            f"{self._path.parent} is locked by {holder or 'another process'}, which is writing to it. Wait for it to "
            f"end, or choose another --out. {more}"
        )
        return OutputError(words.strip())

    def _write_holder(self) -> None:
        if fcntl is not None:  # on Windows nobody else could read it
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self, *, remove: bool = False) -> None:
        """Let others write.

        The file stays, since removing it could let two holders lock two files of one name; only what this lock created
        is removed with `remove`, for a folder that is given up.
        """
        if self._file < 0:
            return
        if remove and self._made:
            with suppress(OSError):
                self._path.unlink()  # while it is locked: later it may be another's
        if self._soft is not None:
            self._soft.release()
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _try_lock(file: int) -> bool | None:
    """Lock an open file: True if it is locked now, False if another holds it, None if the file system cannot."""
    try:
        if fcntl is None:
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True

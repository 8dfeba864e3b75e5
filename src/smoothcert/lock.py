"""One writer per run: a lock that the operating system releases when its holder ends, however it ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from smoothcert.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Lock:
    """Holds the file `path` locked. OutputError at once, naming the holder, if another process has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.made = not path.exists()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"Cannot write {path}: {error.strerror}.") from error
        try:
            self._take()
        except OSError as error:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip() if fcntl else ""
            os.close(self._file)
            raise OutputError(
                f"{path.parent} is locked by {holder or 'another process'}, which is writing to it. Wait for it to "
                "end, or choose another --out."
            ) from error

    def _take(self) -> None:
        if fcntl is None:
            import msvcrt

            msvcrt.locking(self._file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            return
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not self._path.exists() or os.fstat(self._file).st_ino != self._path.stat().st_ino:
            raise BlockingIOError("its last holder has just removed it")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others write. The file stays: removing it would let two holders lock two files of one name."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

"""Signals that wait until it is a good moment to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Pending:
    """The signal that has come and waits, if one has."""

    number: int | None = None


@contextmanager
def deferring() -> Iterator[Pending]:
    """Hold back Ctrl-C and requests to end: they take effect at the end of the block, which must look for them.

    A second signal takes effect at once. In a thread, which gets no signals, nothing changes.
    """
    pending = Pending()
    old = {}

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, handler)

    def wait(number: int, _: FrameType | None) -> None:
        if pending.number is not None:
            restore()
            signal.raise_signal(number)
        pending.number = number

    try:
        for number in _ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # what is ignored stays so
                old[number] = signal.signal(number, wait)
    except ValueError:  # not the main thread
        pass
    try:
        yield pending
    finally:
        restore()
    if pending.number is not None:
        signal.raise_signal(pending.number)

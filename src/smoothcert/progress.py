"""A progress bar that stays out of the way: only on a terminal, and only once a job has taken two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE = 2.0


class ProgressBar:
    """Counts towards `total`; call `advance`. Use as a context manager."""

    def __init__(
        self, description: str, total: int, *, enabled: bool | None = None, patience: float | None = None
    ) -> None:
        self._description, self._total, self._done = description, total, 0
        self._patience = PATIENCE if patience is None else patience
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def advance(self, amount: int = 1, description: str | None = None) -> None:
        """Count `amount` more, and show so if the job is taking long."""
        self._done += amount
        self._description = description or self._description
        if self._bar is None and self._enabled and time.monotonic() - self._started >= self._patience:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True, force_terminal=True),  # asked for, or known to be one
                transient=True,
            )
            self._bar.add_task(self._description, total=self._total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=self._description)

    def set_progress(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        self._total = total
        self.advance(done - self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

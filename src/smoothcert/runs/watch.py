"""A run under way, for whoever watches: draws, rate, time left and accuracy so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from smoothcert.progress import ProgressBar
from smoothcert.stats.accuracy import floor_percent


class Watch:
    """A progress bar over a run's inputs; silent where it is not `enabled`, by default where there is no terminal."""

    def __init__(
        self, kind: str, *, enabled: bool | None = None, on_start: Callable[[int, int, str | None], None] | None = None
    ) -> None:
        self._verb = {"certify": "certified", "predict": "right", "bound": "right"}.get(kind)
        self._enabled = enabled
        self._on_start = on_start
        self._bar: ProgressBar | None = None
        self._drawn = self._settled = self._right = self._rows = self._labelled = 0
        self._began = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)

    def start(self, done: int, total: int, notice: str | None = None) -> None:
        """Begin with so many inputs done already."""
        if self._on_start is not None:
            self._on_start(done, total, notice)
        self._bar = ProgressBar("inputs", total, enabled=self._enabled)
        self._bar.advance(done)
        self._began = time.monotonic()

    def draws(self, number: int) -> None:
        """Draws that were made."""
        self._drawn += number
        self._show(0)

    def rows(self, rows: Sequence[dict[str, Any]], draws: int) -> None:
        """Rows that were written, and the draws that they rest on."""
        self._settled += draws
        self._drawn = max(self._drawn, self._settled)
        self._rows += len(rows)
        self._right += sum(row.get("label") is not None and row["label"] == row["true"] for row in rows)
        self._labelled += sum(row["true"] is not None for row in rows)
        self._show(len(rows))

    def _show(self, rows: int) -> None:
        rate = self._drawn / max(1e-9, time.monotonic() - self._began)
        words = f"inputs · {self._drawn:,} draws · {rate:,.0f}/s" if self._drawn else "inputs"
        if self._labelled and self._verb:
            words += f" · {floor_percent(self._right / self._rows)} % {self._verb}"
        if self._bar is not None:
            self._bar.advance(rows, words)

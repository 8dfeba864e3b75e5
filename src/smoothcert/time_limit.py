"""How long a job will take, estimated from its first part, and whether that is longer than its limit allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from smoothcert.errors import ConfigError

DEFAULT_HOURS = 24.0
_MEASURED = 5.0  # seconds of work after which an estimate is made
_WORTH_TELLING = 60.0  # seconds; shorter jobs are not announced
_UNITS = (
    ("s", 1.0, 90.0),
    ("min", 60.0, 90.0),
    ("h", 3600.0, 48.0),
    ("days", 86_400.0, 700.0),
    ("years", 31_557_600.0, math.inf),
)
_ROUGH = 4.0  # factor by which an estimate made before the first step may be too high


class TimeLimitError(ConfigError):
    """A job would take longer than its time limit."""


class TimeLimit:
    """Estimates the duration of a job, announces it once, and tells when it is beyond a limit.

    The first part of a job is not measured, as it may include compilation and other work that is done only once.
    """

    def __init__(
        self,
        hours: float = DEFAULT_HOURS,
        *,
        on_estimate: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hours = check_hours(hours)
        self._on_estimate, self._clock = on_estimate or (lambda _: None), clock
        self._total, self._done, self._noun = 0, 0, ""
        self._measured = 0  # what was done since the first part
        self._began: float | None = None
        self._estimate: float | None = None

    def check_beforehand(self, seconds: float, total: int, noun: str) -> None:
        """Raise TimeLimitError by a rough estimate of the whole job, made before its first step."""
        if seconds > _ROUGH * self.hours * 3600:
            raise self._error(seconds, total, noun)

    def start(self, total: int, noun: str) -> None:
        """Begin a job of `total` inputs, named by `noun`."""
        self._total, self._done, self._noun = total, 0, noun

    def advance(self, count: int) -> None:
        """Note that `count` more are done; announces the estimate as soon as there is one."""
        self._done += count
        if self._began is None:
            self._began = self._clock()
            return
        self._measured += count
        elapsed = self._clock() - self._began
        if self._estimate is None and elapsed >= _MEASURED and self._done < self._total:
            self._estimate = elapsed / self._measured * self._total
            if self._estimate >= _WORTH_TELLING:
                self._on_estimate(f"About {duration(self._estimate)} for {self._total:,} {self._noun}.")

    @property
    def exceeded(self) -> bool:
        """True if the estimate is beyond the limit."""
        return self._estimate is not None and self._estimate > self.hours * 3600

    def error(self) -> TimeLimitError:
        """What to raise if the limit is exceeded."""
        return self._error(self._estimate or 0.0, self._total, self._noun)

    def _error(self, seconds: float, total: int, noun: str) -> TimeLimitError:
        return TimeLimitError(
            f"This would take about {duration(seconds)} for {total:,} {noun}, more than the time limit of "
            f"{self.hours:g} h. Choose fewer inputs or a smaller network, or raise --time-limit (hours, or inf)."
        )


def check_hours(hours: float) -> float:
    """Raise ConfigError unless `hours` is above 0; inf is no limit."""
    if not hours > 0:
        raise ConfigError(f"Expected `time_limit` to be a number of hours > 0, got {hours!r}.")
    return hours


def duration(seconds: float) -> str:
    """A duration in words, to two digits.

    >>> [duration(seconds) for seconds in (42, 700, 8_000, 400_000, 1e8)]
    ['42 s', '12 min', '2.2 h', '4.6 days', '3.2 years']
    """
    name, size = next((name, size) for name, size, most in _UNITS if seconds / size < most)
    value = seconds / size
    if value < 10 and name != "s":
        return f"{value:.1f} {name}"
    return f"{value:,.0f} {name}"

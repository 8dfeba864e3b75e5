from __future__ import annotations

import math

import pytest

from smoothcert.errors import ConfigError
from smoothcert.time_limit import TimeLimit, TimeLimitError, duration


class Clock:
    """A clock that moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def worked(seconds: list[float], total: int, hours: float = 24.0) -> tuple[TimeLimit, list[str]]:
    """A job whose inputs took these seconds each, and what was announced."""
    clock, told = Clock(), list[str]()
    limit = TimeLimit(hours, on_estimate=told.append, clock=clock)
    limit.start(total, "inputs")
    for one in seconds:
        clock.now += one
        limit.advance(1)
    return limit, told


def test_the_estimate_is_announced_once_after_the_first_seconds():
    limit, told = worked([3.0] * 20, total=240)
    assert told == ["About 12 min for 240 inputs."]
    assert not limit.exceeded


def test_the_first_input_is_not_measured_as_it_may_include_preparations():
    limit, told = worked([3600.0, 3.0, 3.0], total=240)
    assert told == ["About 12 min for 240 inputs."]
    assert not limit.exceeded


def test_short_jobs_are_not_announced():
    assert worked([0.1] * 100, total=200)[1] == []
    assert worked([6.0, 6.0], total=2)[1] == []


def test_a_job_beyond_the_limit_is_told_with_its_estimate():
    limit, told = worked([10.0, 10.0], total=100_000)
    assert limit.exceeded
    assert told == ["About 12 days for 100,000 inputs."]
    assert "about 12 days for 100,000 inputs" in str(limit.error())
    assert "--time-limit" in str(limit.error())
    assert not worked([10.0, 10.0], total=8_000)[0].exceeded
    assert worked([10.0, 10.0], total=9_000)[0].exceeded
    assert not worked([10.0, 10.0], total=9_000, hours=48)[0].exceeded
    assert not worked([10.0, 10.0], total=10**9, hours=math.inf)[0].exceeded


def test_a_rough_estimate_refuses_only_what_is_far_beyond_the_limit():
    limit = TimeLimit(1.0)
    limit.check_beforehand(3 * 3600, 10, "inputs")
    with pytest.raises(TimeLimitError, match=r"about 5\.0 h for 10 inputs, more than the time limit of 1 h"):
        limit.check_beforehand(5 * 3600, 10, "inputs")
    TimeLimit(math.inf).check_beforehand(1e12, 10, "inputs")


@pytest.mark.parametrize("hours", [0, -1.0, math.nan])
def test_limits_are_above_0(hours):
    with pytest.raises(ConfigError, match="time_limit"):
        TimeLimit(hours)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (91, "1.5 min"), (5399, "90 min"), (5401, "1.5 h"), (1e12, "31,688 years")],
)
def test_durations_are_told_in_a_unit_that_suits_them(seconds, words):
    assert duration(seconds) == words

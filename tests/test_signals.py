"""Signals wait until it is a good moment to end, and no longer."""

import os
import signal
import threading

import pytest

from smoothcert.signals import deferring

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CaughtError(Exception):
    """What the handlers of these tests raise."""


@pytest.fixture
def seen():
    """Handlers that note the signals, in the order in which they took effect; put back as they were."""
    noted = []
    before = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in ENDING}
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(number) for number in ENDING]


@pytest.mark.parametrize("number", ENDING)
def test_one_signal_waits_and_takes_effect_at_the_end(seen, number):
    with deferring() as pending:
        assert pending.number is None
        os.kill(os.getpid(), number)
        assert pending.number == number
        assert seen == []
    assert seen == [number]


def test_ctrl_c_interrupts_at_the_end():
    reached = []
    with pytest.raises(KeyboardInterrupt), deferring() as pending:  # noqa: PT012 - what is reached matters
        signal.raise_signal(signal.SIGINT)
        reached.append(pending.number)
    assert reached == [signal.SIGINT]


def test_where_no_signal_comes_nothing_happens(seen):
    with deferring() as pending:
        pass
    assert pending.number is None
    assert seen == []


@pytest.mark.parametrize("first", ENDING)
@pytest.mark.parametrize("second", ENDING)
def test_a_second_signal_takes_effect_at_once(first, second):
    def stop(number, _):
        raise CaughtError(number)

    before = {number: signal.signal(number, stop) for number in ENDING}
    reached = []
    try:
        with pytest.raises(CaughtError) as caught, deferring():  # noqa: PT012 - what is reached matters
            signal.raise_signal(first)
            reached.append("after the first")
            signal.raise_signal(second)
            reached.append("after the second")
        assert caught.value.args == (second,)
        assert reached == ["after the first"]
        assert handlers() == [stop] * len(ENDING)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_are_put_back_however_the_block_ends(seen):
    before = handlers()
    with deferring():
        assert all(new != old for new, old in zip(handlers(), before, strict=True))
    assert handlers() == before
    with pytest.raises(CaughtError), deferring():
        raise CaughtError
    assert handlers() == before
    with deferring():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


def test_an_error_in_the_block_is_what_comes_out_even_where_a_signal_waits(seen):
    with pytest.raises(CaughtError), deferring():  # noqa: PT012 - the order is what is tested
        signal.raise_signal(signal.SIGTERM)
        raise CaughtError


def test_blocks_may_follow_one_another(seen):
    for _ in range(2):
        with deferring() as pending:
            signal.raise_signal(signal.SIGTERM)
            assert pending.number == signal.SIGTERM
    assert seen == [signal.SIGTERM] * 2


def test_in_a_thread_nothing_changes(seen):
    before, found = handlers(), []

    def work():
        with deferring() as pending:
            found.append((pending.number, handlers()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(None, before)]
    assert handlers() == before


def test_a_signal_that_is_ignored_stays_ignored(seen):
    """As nohup has it for hang-ups, and a script for Ctrl-C of what it starts in the background."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    with deferring() as pending:
        for number in ENDING:
            signal.raise_signal(number)
            signal.raise_signal(number)
        assert pending.number is None
    assert handlers() == [signal.SIG_IGN] * len(ENDING)

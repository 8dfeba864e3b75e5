"""Who does the work on one machine: this process, or several that can die and be replaced.

An engine takes chunks and yields (number, rows, seconds) as they are done, in any order; a chunk may come twice. The
certificates do not depend on the engine, nor on the number of workers.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from smoothcert.allocator import keep_freed_memory
from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.runs.rows import Row
from smoothcert.runs.work import Chunk, Task, Worker
from smoothcert.sampling import MAX_WORKERS
from smoothcert.signals import deferring

Done = tuple[int, list[Row], float]
OnDraws = Callable[[int], None]
ATTEMPTS = 3  # a chunk whose worker dies so often is given up
BEAT_SECONDS = 0.5
_GOODBYE_SECONDS = 5.0
_HAS_MASK = hasattr(signal, "pthread_sigmask")
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def run_here(worker: Worker, chunks: Iterable[Chunk]) -> Iterator[Done]:
    """Work chunks off in this process, one after the other."""
    for chunk in chunks:
        started = time.monotonic()
        rows = worker.work(chunk)
        yield chunk.number, rows, time.monotonic() - started


def given_up(chunk: Chunk, reason: str) -> list[Row]:
    """Rows for the inputs of a chunk that could not be worked off."""
    pairs = zip(chunk.indices, chunk.truths, strict=True)
    return [{"index": index, "true": truth, "error": reason} for index, truth in pairs]


def threads_per_process(processes: int) -> int:
    """How many of the machine's cores each of so many processes gets, and can use."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, available // processes))


class Clock:
    """Measures time in ticks that are meant to be short; the excess of a long tick does not count.

    A tick that took far longer than intended means that this process did something else or was itself stopped, by a
    signal or with its container or virtual machine. Its workers were not watched then, and most likely stopped too.
    """

    def __init__(self, timeout: float | None) -> None:
        self.tick = BEAT_SECONDS if timeout is None else min(BEAT_SECONDS, timeout / 8)
        self._looked = time.monotonic()

    def passed(self) -> float:
        """Seconds since the last call, at most two ticks."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        return min(passed, 2 * self.tick)


def attempts_after_hang(attempts: int) -> int:
    """The number of attempts to count for a chunk that hangs: one more is made, as the worker may have been paused."""
    return max(attempts, ATTEMPTS - 2)


def _end_with_parent() -> None:
    """End this process when the driver ends, however that ends, and whatever the model is doing at that time."""
    if sys.platform == "linux":  # works even if the model hangs in code that keeps Python's threads from running
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # type: ignore[union-attr]  # returns at once if the parent ended before we came here
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True, name="smoothcert-parent").start()


def _serve(task: Task, threads: int, beat: float, pipe: Connection) -> None:
    """A worker process: answers chunks with rows until the pipe is closed; tells of draws every `beat` seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when to stop
    _unblock_interrupts()
    _end_with_parent()
    keep_freed_memory()
    import torch

    torch.set_num_threads(threads)
    lock, drawn, told = threading.Lock(), 0, time.monotonic()

    def on_draws(number: int) -> None:
        nonlocal drawn, told
        with lock:
            drawn += number
            if time.monotonic() - told >= beat:
                told = time.monotonic()
                pipe.send(("draws", drawn))
                drawn = 0

    try:
        worker = task.start(on_draws=on_draws)
        pipe.send(("ready", None))
        while True:
            rows = worker.work(pipe.recv())
            with lock:
                pipe.send(("draws", drawn))
                drawn = 0
                pipe.send(("done", rows))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the driver is gone
    except Exception as error:
        pipe.send(("failed", (type(error).__name__, str(error))))


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes with Ctrl-C blocked, since it reaches the whole group of processes; here it takes effect later.

    It must not be ignored for this purpose: then it would be lost.
    """
    with deferring():
        if not _HAS_MASK:
            yield
            return
        resource_tracker.ensure_running()  # started with the first process, it would lift the block
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unblock_interrupts() -> None:
    """Undo in a worker process, which ignores Ctrl-C by now, what it inherited: what it starts shall not inherit it."""
    if _HAS_MASK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@dataclass(eq=False)
class _Hand:
    """A worker process as the driver sees it."""

    process: Any
    pipe: Connection
    chunk: Chunk | None = None
    started: float = 0.0
    silent: float = 0.0
    """Seconds since it was last heard of, without the time during which it or the driver was stopped."""
    ready: bool = False

    def give(self, chunk: Chunk) -> None:
        self.chunk, self.started, self.silent = chunk, time.monotonic(), 0.0
        self.pipe.send(chunk)

    @property
    def stopped(self) -> bool:
        """True if a signal has stopped the process, as SIGSTOP does, and none has continued it."""
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def end(self) -> None:
        self.pipe.close()
        if self.ready and self.chunk is None:  # waiting for work, it goes by itself, with all that libraries have made
            self.process.join(_GOODBYE_SECONDS)
        self.process.kill()
        self.process.join()


class Processes:
    """Worker processes on this machine, each with its own model and threads."""

    def __init__(self, task: Task, workers: int, *, timeout: float | None, on_draws: OnDraws) -> None:
        self._task, self._workers, self._timeout, self._on_draws = task, workers, timeout, on_draws
        self._threads = threads_per_process(workers)
        self._context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._hands: list[_Hand] = []
        self._attempts: dict[int, int] = {}
        self._waiting: deque[Chunk] = deque()
        self._stillborn = 0  # workers in a row that died before they had the model
        self._clock = Clock(timeout)

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """Hand chunks out one by one, replace workers that die, yield what is done."""
        source = iter(chunks)
        try:
            for _ in range(self._workers):
                self._hire()
            while True:
                self._hand_out(source)
                if not any(hand.chunk for hand in self._hands):
                    return
                yield from self._listen()
        finally:
            for hand in self._hands:
                hand.pipe.close()  # all at once
            for hand in self._hands:
                hand.end()

    def _hire(self) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (self._task, self._threads, self._clock.tick, theirs)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        with _interrupts_held_back():  # until it is known to whoever ends the processes
            process.start()
            theirs.close()
            self._hands.append(_Hand(process, ours))

    def _hand_out(self, source: Iterator[Chunk]) -> None:
        for hand in self._hands:
            if hand.chunk is None:
                chunk = self._waiting.popleft() if self._waiting else next(source, None)
                if chunk is None:
                    return
                try:
                    hand.give(chunk)
                except (BrokenPipeError, ConnectionResetError):
                    hand.chunk = chunk  # its death is noticed when it is listened to

    def _listen(self) -> Iterator[Done]:
        by_pipe = {hand.pipe: hand for hand in self._hands}
        for pipe in wait(list(by_pipe), timeout=self._clock.tick):
            hand = by_pipe[pipe]  # type: ignore[index]
            try:
                what, content = hand.pipe.recv()
            except (EOFError, ConnectionResetError, OSError):
                yield from self._replace(hand, "the worker process died")
                continue
            yield from self._heard(hand, what, content)
        yield from self._hung()

    def _heard(self, hand: _Hand, what: str, content: Any) -> Iterator[Done]:
        hand.silent, hand.ready, self._stillborn = 0.0, True, 0
        if what == "draws":
            self._on_draws(content)
        elif what == "failed":
            name, message = content
            kind = ModelChangedError if name == "ModelChangedError" else ModelError
            raise kind(message if name.endswith("Error") and message else f"{name}: {message}")
        elif what == "done" and hand.chunk is not None:
            chunk, hand.chunk = hand.chunk, None
            yield chunk.number, content, time.monotonic() - hand.started

    def _hung(self) -> Iterator[Done]:
        """Replace workers that have not made a forward pass for too long; loading the model does not count."""
        passed = self._clock.passed()
        for hand in list(self._hands):
            if self._timeout is None or hand.chunk is None or not hand.ready or hand.stopped:
                continue
            hand.silent += passed
            if hand.silent > self._timeout:
                attempts = self._attempts.get(hand.chunk.number, 0)
                self._attempts[hand.chunk.number] = attempts_after_hang(attempts)
                yield from self._replace(hand, f"no forward pass was done within {self._timeout:g} seconds")

    def _replace(self, hand: _Hand, reason: str) -> Iterator[Done]:
        hand.end()
        self._hands.remove(hand)
        chunk = hand.chunk
        if not hand.ready:
            self._stillborn += 1
            if self._stillborn >= ATTEMPTS:
                raise ModelError(f"Worker processes end before they are ready (exit code {hand.process.exitcode}).")
            self._waiting.extend([] if chunk is None else [chunk])
        elif chunk is not None:
            self._attempts[chunk.number] = self._attempts.get(chunk.number, 0) + 1
            if self._attempts[chunk.number] >= ATTEMPTS:
                yield chunk.number, given_up(chunk, f"ModelError: {reason}"), time.monotonic() - hand.started
            else:
                self._waiting.append(chunk)
        self._hire()

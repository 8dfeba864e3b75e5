"""Who does the work on one machine: this process, or several that can die and be replaced.

An engine takes chunks and yields (number, rows, seconds) as they are done, in any order; a chunk may come twice. The
certificates do not depend on the engine, nor on the number of workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.runs.rows import Row
from smoothcert.runs.work import Chunk, Task, Worker
from smoothcert.sampling import MAX_WORKERS

Done = tuple[int, list[Row], float]
OnDraws = Callable[[int], None]
ATTEMPTS = 3  # a chunk whose worker dies so often is given up
_BEAT_SECONDS = 0.5
_GOODBYE_SECONDS = 5.0


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


def _serve(task: Task, threads: int, beat: float, pipe: Connection) -> None:
    """A worker process: answers chunks with rows until the pipe is closed; tells of draws every `beat` seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when to stop
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
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(eq=False)
class _Hand:
    """A worker process as the driver sees it."""

    process: Any
    pipe: Connection
    chunk: Chunk | None = None
    started: float = 0.0
    heard: float = 0.0
    ready: bool = False

    def give(self, chunk: Chunk) -> None:
        self.chunk, self.started = chunk, time.monotonic()
        self.heard = self.started
        self.pipe.send(chunk)

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

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """Hand chunks out one by one, replace workers that die, yield what is done."""
        source = iter(chunks)
        try:
            self._hands = [self._hire() for _ in range(self._workers)]
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

    def _hire(self) -> _Hand:
        ours, theirs = self._context.Pipe()
        beat = min(_BEAT_SECONDS, (self._timeout or _BEAT_SECONDS) / 4)
        process = self._context.Process(target=_serve, args=(self._task, self._threads, beat, theirs), daemon=True)
        with _deaf_to_interrupts():  # which it inherits: Ctrl-C reaches the whole group of processes
            process.start()
        theirs.close()
        return _Hand(process, ours, heard=time.monotonic())

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
        for pipe in wait(list(by_pipe), timeout=self._patience()):
            hand = by_pipe[pipe]  # type: ignore[index]
            try:
                what, content = hand.pipe.recv()
            except (EOFError, ConnectionResetError, OSError):
                yield from self._replace(hand, "the worker process died")
                continue
            yield from self._heard(hand, what, content)
        yield from self._hung()

    def _heard(self, hand: _Hand, what: str, content: Any) -> Iterator[Done]:
        hand.heard = time.monotonic()
        hand.ready, self._stillborn = True, 0
        if what == "draws":
            self._on_draws(content)
        elif what == "failed":
            name, message = content
            kind = ModelChangedError if name == "ModelChangedError" else ModelError
            raise kind(message if name.endswith("Error") and message else f"{name}: {message}")
        elif what == "done" and hand.chunk is not None:
            chunk, hand.chunk = hand.chunk, None
            yield chunk.number, content, time.monotonic() - hand.started

    def _patience(self) -> float:
        return 5.0 if self._timeout is None else min(5.0, self._timeout / 4)

    def _hung(self) -> Iterator[Done]:
        """Give up what has not made a forward pass for too long; loading the model does not count."""
        for hand in list(self._hands):
            silent = time.monotonic() - hand.heard
            if self._timeout is not None and hand.chunk is not None and hand.ready and silent > self._timeout:
                self._attempts[hand.chunk.number] = ATTEMPTS  # it would hang again
                yield from self._replace(hand, f"no forward pass was done within {self._timeout:g} seconds")

    def _replace(self, hand: _Hand, reason: str) -> Iterator[Done]:
        hand.end()
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
        self._hands[self._hands.index(hand)] = self._hire()

"""The only place where model, noise and input meet: noisy copies in, integer votes out."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.errors import ModelError
from smoothcert.models.contract import Model, evaluating, is_labels
from smoothcert.noise import Noise, rows_per_block
from smoothcert.records import Votes
from smoothcert.streams import Stream

log = logging.getLogger("smoothcert")

_MAX_WORKERS = 4  # more than that and Python's global lock is what they wait for


@dataclass(frozen=True, slots=True)
class Plan:
    """How the forward passes are run. It changes how long they take, not which noise is drawn."""

    batch_size: int
    channels_last: bool = False
    workers: int = 1


def pick_device(model: Model, device: str | torch.device | None) -> torch.device:
    """The device asked for; else the fastest one here for a module, and the CPU for any other callable."""
    if device is not None:
        return torch.device(device)
    if isinstance(model, nn.Module):
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
    return torch.device("cpu")


def worker_count(model: Model, device: torch.device) -> int:
    """Several workers for a module on the CPU; one for a GPU, and for callables that may not be thread-safe."""
    if device.type == "cpu" and isinstance(model, nn.Module):
        return min(torch.get_num_threads(), _MAX_WORKERS)
    return 1


@cache
def worker_pool(workers: int) -> ThreadPoolExecutor:
    """Threads that share out torch's CPU threads between them, kept for the life of the process.

    Two workers with one thread each beat one worker with two: while one makes noise, the other classifies.
    """
    threads = torch.get_num_threads()
    ready = threading.Barrier(workers + 1)

    def start() -> None:
        torch.get_num_threads()  # a thread's first look at its setting overwrites it: have that behind us
        torch.set_num_threads(max(1, threads // workers))
        ready.wait()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="smoothcert")
    for _ in range(workers):
        pool.submit(start)
    ready.wait()
    torch.set_num_threads(threads)  # new threads inherit the last setting; this one keeps its own
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker_pool.cache_clear)  # threads do not survive a fork


@contextmanager
def preserved_random_state(*, enabled: bool = True) -> Iterator[None]:
    """Leave the caller's global random state as it was, whatever the model does to it.

    Not for models that are random on purpose: they would see the same state for every input.
    """
    if not enabled:
        yield
        return
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - saved, never drawn from
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


class Tally:
    """Votes so far, kept on the model's device so that no batch waits for the host."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # One place per class, then: no class, label out of range, ties.
        self._places = torch.zeros(num_classes + 3, dtype=torch.int64, device=device)
        self._classes = num_classes

    def add(self, output: Tensor) -> None:
        """Count a batch of scores [B, K] or labels [B]."""
        if is_labels(output):
            labels = output.long()
            none, outside = labels < 0, labels >= self._classes
        else:
            best = output.amax(dim=1)  # NaN if any score of the row is
            labels = output.argmax(dim=1)  # the first of several equal ones, on every device
            none, outside = best.isnan(), torch.zeros_like(labels, dtype=torch.bool)
            self._places[-1] += ((output == best[:, None]).sum(dim=1) > 1).sum()
        labels = labels.masked_fill(none, self._classes).masked_fill(outside, self._classes + 1)
        self._places.scatter_add_(0, labels, torch.ones_like(labels))

    def votes(self) -> Votes:
        """What was counted; ModelError if a label was out of range."""
        *counts, invalid, outside, ties = self._places.tolist()
        if outside:
            raise ModelError(f"Expected labels below num_classes={self._classes}, got {outside} larger ones.")
        return Votes.of(counts, invalid, ties)


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class _Worker:
    """Makes noisy copies and classifies them, in its own buffer of whole blocks."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.tally = Tally(job.num_classes, job.device)
        self.buffer = np.empty((min(job.rows_per_task, job.n), job.centre.size), np.float32)

    def run(self) -> Tally:
        with torch.inference_mode():
            for task in self.job.tasks():
                self._classify(task)
        return self.tally

    def _classify(self, task: int) -> None:
        """Count one task's votes, in smaller batches where memory demands it: of the same copies."""
        job, done = self.job, 0
        rows = self._fill(task)
        while done < len(rows) and not job.stopped:
            size = min(job.batch_size, len(rows) - done)
            try:
                output = self._forward(rows[done : done + size])
            except Exception as error:
                if not _out_of_memory(error) or size == 1:
                    raise
                job.shrink(size)
                rows = self._fill(task)  # the model may have changed its input before it failed
                continue
            self.tally.add(output)
            done += size
        job.done(len(rows))

    def _fill(self, task: int) -> npt.NDArray[np.float32]:
        job = self.job
        rows = self.buffer[: min(job.rows_per_task, job.n - task * job.rows_per_task)]
        first = task * job.rows_per_task // job.rows_per_block
        for offset in range(0, len(rows), job.rows_per_block):
            block = rows[offset : offset + job.rows_per_block]
            job.noise.fill(job.centre, job.stream, first + offset // job.rows_per_block, block)
        return rows

    def _forward(self, rows: npt.NDArray[np.float32]) -> Tensor:
        job = self.job
        batch = torch.from_numpy(rows).view(-1, *job.shape).to(job.device)
        if job.channels_last:
            batch = batch.contiguous(memory_format=torch.channels_last)
        output = job.model(batch)
        if not isinstance(output, Tensor) or len(output) != len(rows):
            raise ModelError(f"Expected {len(rows)} answers, one per input, got {getattr(output, 'shape', output)}.")
        return output


class _Job:
    """One request for votes, handed out to workers block by block."""

    def __init__(
        self,
        model: Model,
        noise: Noise,
        x: npt.NDArray[np.float32],
        n: int,
        *,
        num_classes: int,
        stream: Stream,
        plan: Plan,
        device: torch.device,
        on_draws: Callable[[int], None] | None,
    ) -> None:
        self.model, self.noise, self.n, self.stream, self.device = model, noise, n, stream, device
        self.num_classes, self.shape = num_classes, x.shape
        self.centre = noise.centre(x)
        self.batch_size, self.channels_last = plan.batch_size, plan.channels_last and x.ndim == 3
        self.rows_per_block = rows_per_block(x.size)
        self.rows_per_task = -(-plan.batch_size // self.rows_per_block) * self.rows_per_block
        self.stopped = False
        self._on_draws = on_draws
        self._lock = threading.Lock()
        self._next = iter(range(-(-n // self.rows_per_task)))

    @property
    def task_count(self) -> int:
        return -(-self.n // self.rows_per_task)

    def tasks(self) -> Iterator[int]:
        while not self.stopped:
            with self._lock:
                task = next(self._next, None)
            if task is None:
                return
            yield task

    def done(self, draws: int) -> None:
        if self._on_draws is not None:
            with self._lock:
                self._on_draws(draws)

    def shrink(self, failed: int) -> None:
        with self._lock:
            if failed // 2 < self.batch_size:
                self.batch_size = failed // 2
                log.warning("out of memory at batch size %d; going on with %d", failed, self.batch_size)


def count_votes(
    model: Model,
    noise: Noise,
    x: npt.NDArray[np.float32],
    n: int,
    *,
    num_classes: int,
    stream: Stream,
    plan: Plan,
    device: torch.device,
    on_draws: Callable[[int], None] | None = None,
) -> Votes:
    """Classify `n` noisy copies of `x` [*D] and count the votes, in memory for one batch a worker.

    The copies are the first n of `stream`, whatever the plan. The model runs in eval mode and inference mode;
    its own modes are restored. `on_draws` is told of every task's number of draws when it is done.
    """
    job = _Job(model, noise, x, n, num_classes=num_classes, stream=stream, plan=plan, device=device, on_draws=on_draws)
    workers = min(plan.workers, job.task_count)
    with evaluating(model):
        if workers == 1:
            return _Worker(job).run().votes()
        futures = [worker_pool(plan.workers).submit(_Worker(job).run) for _ in range(workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            job.stopped = True  # on an error or Ctrl-C the other workers end with their task
            wait(futures)
        votes = [future.result().votes() for future in futures]
    return sum(votes[1:], start=votes[0])

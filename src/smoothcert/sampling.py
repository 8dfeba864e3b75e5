"""The only place where model, noise and input meet: noisy copies in, integer votes out."""

from __future__ import annotations

import logging
import os
import random
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.agreement import is_labels
from smoothcert.models.contract import Model, evaluating, is_out_of_memory
from smoothcert.noise import Noise, rows_per_block
from smoothcert.reclassification import Reclassification
from smoothcert.records import Votes
from smoothcert.staging import make_staging, own_stream
from smoothcert.streams import Stream

log = logging.getLogger("smoothcert")

MAX_WORKERS = 4  # more than that and Python's global lock is what they wait for
# A noise block that crosses the line between two tasks is made for both of them: so lines are not too close, where
# each worker has tasks enough to be done at about the same time as the others.
_BLOCKS_PER_TASK = 2
_TASKS_PER_WORKER = 8
_TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """How the forward passes are run. It changes how long they take, not which noise is drawn.

    Scores can differ in their last bits with the batch size, the layout and the number of `threads` that torch computes
    one batch with (by default the workers' share of torch's), but not with the number of workers.
    """

    batch_size: int
    channels_last: bool = False
    workers: int = 1
    threads: int | None = None
    backend: str = "eager"
    precision: str = "fp32"

    @property
    def is_plain(self) -> bool:
        """True where the network is run as it is."""
        return self.backend == "eager" and self.precision == "fp32"

    @property
    def execution(self) -> str:
        """What runs the base classifier, in words."""
        return f"{self.backend}, {self.precision}"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A wish for the votes of the first `n` copies that `noise` makes of `x` [*D] from `stream`."""

    noise: Noise
    x: npt.NDArray[np.float32]
    n: int
    stream: Stream


def pick_device(model: Model, device: str | torch.device | None) -> torch.device:
    """The device asked for; else the fastest one here for a module, and the CPU for any other callable."""
    if device is not None:
        try:
            return torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"Expected `device` to be one that is here, got {str(device)!r}: {reason}") from error
    if isinstance(model, nn.Module):
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
    return torch.device("cpu")


def worker_count(model: Model, device: torch.device) -> int:
    """As many as the CPU has threads; two for a GPU, of which one makes noise while the other's is classified.

    One for other devices, and for callables that may not be thread-safe.
    """
    safe = isinstance(model, nn.Module) and all(getattr(part, "thread_safe", True) for part in model.modules())
    most = {"cpu": MAX_WORKERS, "cuda": 2}.get(device.type, 1) if safe else 1
    return min(torch.get_num_threads(), most)


def in_layout(model: Model, *, channels_last: bool) -> Model:
    """The model with the weights of its convolutions in the layout of the inputs, or their outputs may not follow it.

    The caller's module stays as it is. Where weights lie otherwise in memory, the result is a copy of the module tree
    that shares everything else with it.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return model
    layout = torch.channels_last if channels_last else torch.contiguous_format
    weights: dict[int, nn.Parameter] = {}
    with torch.inference_mode(False), torch.no_grad():
        for weight in model.parameters():
            if weight.ndim != 4:
                continue
            # By strides: weights with one channel pass for either layout, yet theirs decides that of the outputs.
            laid = torch.empty_like(weight, memory_format=layout)
            if weight.stride() != laid.stride():
                weights[id(weight)] = nn.Parameter(laid.copy_(weight), requires_grad=weight.requires_grad)
    return _with_weights(model, weights, {}) if weights else model


def _with_weights(module: nn.Module, weights: Mapping[int, nn.Parameter], copies: dict[int, nn.Module]) -> nn.Module:
    """A copy of a module tree in which some weights, named by their `id`, are replaced; `copies` holds those made."""
    if id(module) in copies:
        return copies[id(module)]
    copy = object.__new__(type(module))
    copies[id(module)] = copy
    copy.__dict__ = dict(module.__dict__)
    replaced = {name: weights.get(id(weight), weight) for name, weight in module._parameters.items()}
    children = {
        name: None if child is None else _with_weights(child, weights, copies)
        for name, child in module._modules.items()
    }
    copy.__dict__.update(_parameters=replaced, _buffers=dict(module._buffers), _modules=children)
    return copy


@cache
def worker_pool(workers: int, threads_each: int | None = None) -> ThreadPoolExecutor:
    """Threads that share out torch's CPU threads between them, kept for the life of the process.

    Two workers with one thread each beat one worker with two: while one makes noise, the other classifies.
    """
    threads = torch.get_num_threads()
    ready = threading.Barrier(workers + 1)

    def start() -> None:
        torch.get_num_threads()  # a thread's first look at its setting overwrites it: have that behind us
        torch.set_num_threads(threads_each or max(1, threads // workers))
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
def preserved_random_state(seed: int | None = None) -> Iterator[None]:
    """Leave the caller's global random state as it was, whatever the model does to it.

    With `seed`, the state inside starts from it. Without, it starts from the caller's, which is not for models that
    are random on purpose: they would see the same state for every input.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - saved, never drawn from
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002 - what models use that draw from it
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


class Tally:
    """Votes so far on each of some requests, kept on the model's device so that no batch waits for the host."""

    def __init__(self, num_classes: int, device: torch.device, requests: int = 1) -> None:
        # For each request one place per class, then: no class, label out of range, ties.
        self._places = torch.zeros(requests * (num_classes + 3), dtype=torch.int64, device=device)
        self._classes, self._width = num_classes, num_classes + 3

    def add(self, output: Tensor, owners: Tensor | None = None) -> None:
        """Count a batch of scores [B, K] or labels [B] for the requests numbered `owners` [B], by default the first."""
        start = 0 if owners is None else owners * self._width
        if is_labels(output):
            labels = output.long()
            none = labels < 0
        else:
            labels = output.argmax(dim=1)  # the first of several equal ones, on every device
            best = output.gather(1, labels[:, None])  # NaN if any score of the row is
            none = best[:, 0].isnan()
            equal = output == best
            # On the CPU it is cheaper to see first whether there are ties at all; on a GPU that would be waiting.
            if output.device.type != "cpu" or int(equal.count_nonzero()) > len(none) - int(none.count_nonzero()):
                tied = (equal.sum(dim=1) > 1).long()
                self._places.scatter_add_(0, torch.full_like(labels, self._width - 1) + start, tied)
        outside = labels >= self._classes
        places = labels.masked_fill(none, self._classes).masked_fill(outside, self._classes + 1)
        self._places.scatter_add_(0, places + start, torch.ones_like(labels))

    def join(self, other: Tally) -> None:
        """Take over what another worker counted for the same requests."""
        self._places += other._places

    def votes(self) -> list[Votes]:
        """What was counted, request by request; ModelError if a label was out of range."""
        rows = self._places.view(-1, self._width)
        too_large = int(rows[:, -2].sum())
        if too_large:
            raise ModelError(f"Expected labels below num_classes={self._classes}, got {too_large} larger ones.")
        return [Votes.of(counts, invalid, ties) for *counts, invalid, _, ties in rows.tolist()]


class _Worker:
    """Makes the noisy copies of a task in its own buffer and classifies them, batch after batch."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.tally = Tally(job.num_classes, job.device, len(job.requests))
        noises = (request.noise for request in job.requests)
        self.staging = make_staging(job.device, job.most_rows, job.row_size, noises)

    def run(self) -> Tally:
        with torch.inference_mode(), own_stream(self.job.device):
            for task in self.job.tasks():
                self._classify(task)
        return self.tally

    def _classify(self, task: range) -> None:
        """Count one task's votes, in smaller batches where memory demands it: of the same copies."""
        job, done = self.job, 0
        pieces = list(job.pieces(task))
        owners = _owners(pieces, task).to(job.device)
        first = task.start - pieces[0].start
        self._fill(pieces)
        while done < len(task) and not job.stopped:
            size = min(job.batch_size, len(task) - done)
            try:
                output = self._forward(first + done, size, task.start + done)
            except Exception as error:
                if not is_out_of_memory(error) or size == 1:
                    raise
                job.shrink(size)
                self._fill(pieces)  # the model may have changed its input before it failed
                continue
            self.tally.add(output, owners[done : done + size])
            done += size
        self.staging.close()
        job.done(len(task))

    def _fill(self, pieces: list[_Piece]) -> None:
        """Make the noisy copies of some pieces, the first of them in the first row."""
        job, origin = self.job, pieces[0].start
        self.staging.open()
        for piece in pieces:
            request, rows = job.requests[piece.request], (piece.start - origin, piece.stop - origin)
            self.staging.fill(*rows, request.noise, job.centres[piece.request], request.stream, piece.block)

    def _forward(self, start: int, size: int, draw: int) -> Tensor:
        """The answers to `size` rows of the buffer, of which the first is the job's draw number `draw`."""
        job = self.job
        batch = self.staging.send(start, start + size).view(-1, *job.shape)
        if job.channels_last:
            batch = batch.contiguous(memory_format=torch.channels_last)
        # Copied before the model sees them, as it may change its input.
        sampled = [(request, row, batch[row : row + 1].clone()) for request, row in job.sampled(draw, size)]
        output = job.model(batch)
        if not isinstance(output, Tensor) or len(output) != size:
            raise ModelError(f"Expected {size} answers, one per input, got {getattr(output, 'shape', output)}.")
        for request, row, inputs in sampled:
            job.keep(request, inputs, output[row : row + 1])
        return output


class _Piece(NamedTuple):
    """The copies `start` to `stop` of a job: a noise block of one request, from its first row on."""

    request: int
    block: int
    start: int
    stop: int


def _owners(pieces: list[_Piece], task: range) -> Tensor:
    """The number of the request that each row of a task belongs to."""
    numbers = [piece.request for piece in pieces]
    rows = [piece.stop - max(piece.start, task.start) for piece in pieces]
    return torch.from_numpy(np.repeat(np.array(numbers, np.int64), rows))


class _Job:
    """The copies that some requests ask for, one request behind the other, handed out to workers task by task.

    Tasks are cut at whole batches, wherever that is in a request: every batch but the last is full, and which
    copies share a batch depends on the requests and the plan alone, not on which worker was the quicker.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        *,
        num_classes: int,
        plan: Plan,
        device: torch.device,
        on_draws: Callable[[int], None] | None,
        again: Reclassification | None = None,
    ) -> None:
        self.model, self.requests, self.num_classes, self.device = model, requests, num_classes, device
        self.shape, self.row_size = requests[0].x.shape, requests[0].x.size
        if any(request.x.shape != self.shape for request in requests):
            raise ValueError("requests that share batches must have inputs of one shape")
        self.centres = [request.noise.centre(request.x) for request in requests]
        self.batch_size, self.channels_last = plan.batch_size, plan.channels_last and len(self.shape) == 3
        self.stopped = False
        self._on_draws = on_draws
        self._lock = threading.Lock()
        self._starts = list(accumulate((request.n for request in requests), initial=0))
        self._rows_per_block = rows_per_block(self.row_size)
        self._rows_per_task = self._task_length(plan)
        self._next = iter(range(0, self._starts[-1], self._rows_per_task))
        self._again = again
        samples = () if again is None else again.samples
        self._sampled = [
            start + number for start, numbers in zip(self._starts, samples, strict=False) for number in numbers
        ]

    def _task_length(self, plan: Plan) -> int:
        """Rows in a task: whole batches, and about as many rows as a block or a few of them."""
        share = self._starts[-1] // (plan.workers * _TASKS_PER_WORKER)
        blocks = min(_BLOCKS_PER_TASK, max(1, share // self._rows_per_block))
        return -(-blocks * self._rows_per_block // plan.batch_size) * plan.batch_size

    @property
    def task_count(self) -> int:
        return -(-self._starts[-1] // self._rows_per_task)

    @property
    def most_rows(self) -> int:
        """The rows that a task's pieces can have: the first of them may begin a block too early."""
        return min(self._rows_per_task + self._rows_per_block - 1, self._starts[-1])

    def tasks(self) -> Iterator[range]:
        while not self.stopped:
            with self._lock:
                start = next(self._next, None)
            if start is None:
                return
            yield range(start, min(start + self._rows_per_task, self._starts[-1]))

    def pieces(self, task: range) -> Iterator[_Piece]:
        """The blocks that hold a task's rows; the first may begin before them, the last is cut where they end."""
        row = task.start
        while row < task.stop:
            request = bisect_right(self._starts, row) - 1
            block, into = divmod(row - self._starts[request], self._rows_per_block)
            start = row - into
            row = min(start + self._rows_per_block, self._starts[request + 1], task.stop)
            yield _Piece(request, block, start, row)

    def sampled(self, draw: int, size: int) -> Iterator[tuple[int, int]]:
        """The draws from number `draw` on, `size` of them, that are to be classified again: request and row of each."""
        first, last = bisect_left(self._sampled, draw), bisect_left(self._sampled, draw + size)
        for number in self._sampled[first:last]:
            yield bisect_right(self._starts, number) - 1, number - draw

    def keep(self, request: int, inputs: Tensor, answers: Tensor) -> None:
        assert self._again is not None  # noqa: S101 - for the type checker: else there are no samples
        self._again.keep(request, inputs, answers)

    def done(self, draws: int) -> None:
        if self._on_draws is not None:
            with self._lock:
                self._on_draws(draws)

    def shrink(self, failed: int) -> None:
        with self._lock:
            if failed // 2 < self.batch_size:
                self.batch_size = failed // 2
                log.warning("out of memory at batch size %d; going on with %d", failed, self.batch_size)


def count_votes_together(
    model: Model,
    requests: Sequence[Request],
    *,
    num_classes: int,
    plan: Plan,
    device: torch.device,
    on_draws: Callable[[int], None] | None = None,
    again: Reclassification | None = None,
) -> list[Votes]:
    """Classify the noisy samples that each request asks for and count its votes, in memory for one task a worker.

    The requests' inputs have one shape, and their samples share forward batches. Each request's samples are the
    first n of its own stream, whatever the plan and the other requests. The model runs in eval mode and inference
    mode; its own modes are restored. `on_draws` is called with every task's number of draws when it is done. With
    `again`, some samples are classified again alone; ModelError if their answers differ.
    """
    if not requests:
        return []
    channels_last = plan.channels_last and requests[0].x.ndim == 3
    with evaluating(model):
        laid = in_layout(model, channels_last=channels_last)
        job = _Job(laid, requests, num_classes=num_classes, plan=plan, device=device, on_draws=on_draws, again=again)
        votes = _run_job(job, plan)
        if again is not None:
            with torch.inference_mode():
                again.check(laid, votes, [request.stream.input_id for request in requests])
    return votes


def _run_job(job: _Job, plan: Plan) -> list[Votes]:
    """The votes of a job's requests, counted by as many workers as the plan has and the job can use."""
    workers = min(plan.workers, job.task_count)
    if workers <= 1 and plan.threads is None:
        return _Worker(job).run().votes()
    futures = [worker_pool(plan.workers, plan.threads).submit(_Worker(job).run) for _ in range(workers)]
    try:
        _wait_for(futures, FIRST_EXCEPTION)
    finally:
        job.stopped = True  # on an error or Ctrl-C the other workers end with their task
        _wait_for(futures, ALL_COMPLETED)
    tally, *others = [future.result() for future in futures]
    for other in others:
        tally.join(other)
    return tally.votes()


def _wait_for(futures: Sequence[Future[Tally]], when: str) -> None:
    """Wait in short turns: a signal that arrives just before an endless wait would not be noticed until its end."""
    while True:
        done, pending = wait(futures, timeout=_TURN_SECONDS, return_when=when)
        failed = when == FIRST_EXCEPTION and any(future.exception() is not None for future in done)
        if not pending or failed:
            return


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
    """Classify the first `n` noisy copies of `x` [*D] and count the votes: `count_votes_together` for one request."""
    [votes] = count_votes_together(
        model, [Request(noise, x, n, stream)], num_classes=num_classes, plan=plan, device=device, on_draws=on_draws
    )
    return votes

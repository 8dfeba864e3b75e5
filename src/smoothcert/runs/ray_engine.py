"""Work on a Ray cluster: actors hold the model and turn chunks into rows, this process hands out and collects.

An actor has one chunk at a time. A chunk whose actor or node dies is given out again, so it may be worked off twice;
it is then the same rows, and whoever collects them keeps one. See docs/cluster.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

from smoothcert import errors
from smoothcert.allocator import keep_freed_memory
from smoothcert.errors import ConfigError, MissingExtraError, ModelError, SmoothcertError
from smoothcert.runs.engines import ATTEMPTS, BEAT_SECONDS, Clock, Done, OnDraws, attempts_after_hang, given_up
from smoothcert.runs.ray_guardian import environment, guarding
from smoothcert.runs.settings import EngineSettings
from smoothcert.runs.work import Chunk, Task, describe_error
from smoothcert.sampling import MAX_WORKERS

log = logging.getLogger("smoothcert")

_STORE_BYTES = 256 * 2**20  # chunks and rows are small; Ray would take a third of the memory
_LATE_SECONDS = 20.0  # an actor that has no process by then lacks a node to run on
_CHECK_SECONDS = 60.0
_MOST_IDLE = 0.2  # share of the CPUs that may be left over for actors with more threads, thus fewer models
_NEEDED = "Expected on every node: this version of smoothcert, what the model needs, and memory for it."


def run_on_ray(task: Task, settings: EngineSettings, chunks: Iterator[Chunk], on_draws: OnDraws) -> Iterator[Done]:
    """Work chunks off on the Ray cluster at `settings.address`, or on one that is started here for the time being.

    Yields (number, rows, seconds) in any order. A Ray that this process has initialised already is used as it is, and
    left running.
    """
    with _cluster(settings) as ray:
        crew = _crew(ray.nodes(), settings.workers, on_gpus=task.device.startswith("cuda"))
        yield from _Actors(ray, task, crew, timeout=settings.timeout, on_draws=on_draws).run(chunks)


class Answer(NamedTuple):
    """What an actor says when a call is done: its draws so far, and rows, or an error's name and text."""

    drawn: int
    rows: list[dict[str, Any]] | None = None
    error: tuple[str, str] | None = None


class _Actor:
    """A worker as a Ray actor. Its calls return what went wrong: raised, it would come with pages of traceback."""

    def __init__(self) -> None:
        self._drawn = 0
        self._worker: Any = None

    def prepare(self, held: list[Any], threads: int, folder: str) -> Answer:
        """Load the model of the task that `held` refers to, as the driver would in its `folder`."""
        with contextlib.suppress(OSError):
            os.chdir(folder)
        return self._answer(lambda: self._load(held, threads))

    def _load(self, held: list[Any], threads: int) -> None:
        import ray
        import torch

        torch.get_num_threads()  # a thread's first look at its setting overwrites it: have that behind us
        torch.set_num_threads(threads)
        keep_freed_memory()
        task: Task = ray.get(held[0])  # in here, so that a model that cannot be unpickled is an answer too
        if task.device.startswith("cuda"):
            task = replace(task, device="cuda:0")  # Ray shows an actor its own GPU only
        self._worker = task.start(on_draws=self._on_draws)
        self._worker.check_weights()

    def _on_draws(self, number: int) -> None:
        self._drawn += number

    def work(self, chunk: Chunk) -> Answer:
        """The rows of a chunk."""
        return self._answer(lambda: self._worker.work(chunk))

    def check(self) -> Answer:
        """Whether the weights are still those that were loaded."""
        return self._answer(lambda: self._worker.check_weights())

    def drawn(self) -> int:
        """Draws so far; answered while a chunk is being worked on."""
        return self._drawn

    def _answer(self, call: Callable[[], Any]) -> Answer:
        try:
            rows = call()
        except Exception as error:
            text = " ".join(str(error).split())
            return Answer(self._drawn, error=(type(error).__name__, f"{text} (on the node {platform.node()})"))
        return Answer(self._drawn, rows)


def _import_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read on import; nothing is reported to anyone
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray") from error
    return ray


@contextlib.contextmanager
def _cluster(settings: EngineSettings) -> Iterator[ModuleType]:
    """Ray, connected to a cluster; only what is started here is shut down."""
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    own = settings.address is None
    with guarding() if own else contextlib.nullcontext({}) as marks:
        with _kept_sigterm(), environment(marks):
            _connect(ray, settings)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: ModuleType, settings: EngineSettings) -> None:
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if settings.address is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        quiet |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
        # Who asks for more workers than cores gets them, as without Ray.
        ray.init(address="local", num_cpus=max(cores, settings.workers or 1), **quiet)
        return
    try:
        ray.init(address=settings.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Expected a Ray cluster at the address {settings.address!r}, cannot join one ({describe_error(error)}). "
            "Start it with `ray start --head`, or drop `address` to work on this machine alone."
        ) from error


@contextlib.contextmanager
def _kept_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which ray.init replaces by its own: one that exits with another code."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    with contextlib.suppress(ValueError):  # not the main thread: Ray could not replace it either
        signal.signal(signal.SIGTERM, before)


class _Crew(NamedTuple):
    """How many actors there shall be, and what each of them gets."""

    workers: int
    threads: int
    gpus: int

    @property
    def words(self) -> str:
        gpu = f" and {self.gpus} GPU" if self.gpus else ""
        return f"{self.threads} CPU{'s' if self.threads > 1 else ''}{gpu}"


def _crew(nodes: list[dict[str, Any]], workers: int | None, *, on_gpus: bool) -> _Crew:
    """Actors that fit on the nodes: one per GPU, with a thread to feed it, or with as many threads as they can use.

    By default as many as there are GPUs, or as the CPUs are enough for.
    """
    found = [node["Resources"] for node in nodes if node["Alive"]]
    cpus = [int(one.get("CPU", 0)) for one in found]
    most = sum(min(int(one.get("GPU", 0)), c) for one, c in zip(found, cpus, strict=True)) if on_gpus else sum(cpus)
    if workers is None and not most:
        what = "a GPU and a CPU on one node" if on_gpus else "a CPU"
        raise ConfigError(f"Expected {what} in the Ray cluster, there is none. Add nodes, or choose another `device`.")
    if on_gpus:
        return _Crew(workers or most, threads=1, gpus=1)

    def fitting(threads: int) -> int:
        return sum(c // threads for c in cpus)  # an actor lives on one node

    choices = range(MAX_WORKERS, 0, -1)
    if workers is not None:
        return _Crew(workers, threads=next((t for t in choices if fitting(t) >= workers), 1), gpus=0)
    threads = next(t for t in choices if t * fitting(t) >= (1 - _MOST_IDLE) * most)
    return _Crew(fitting(threads), threads, gpus=0)


@dataclass(eq=False)
class _Hand:
    """An actor as the driver sees it, with the calls that it has not answered yet."""

    actor: Any
    present: Any
    prepared: Any
    hired: float
    deaths: int = 0
    """How many that stood here died before they were ready."""
    ready: bool = False
    chunk: Chunk | None = None
    rows: Any = None
    drawn: Any = None
    asked: float = 0.0
    started: float = 0.0
    told: int = 0
    silent: float = 0.0

    def give(self, chunk: Chunk) -> None:
        self.chunk, self.rows = chunk, self.actor.work.remote(chunk)
        self.started, self.silent = time.monotonic(), 0.0

    def ask(self) -> None:
        """Ask for the draws so far, now and then, while a chunk is being worked on."""
        if self.chunk is not None and self.drawn is None and time.monotonic() - self.asked >= BEAT_SECONDS:
            self.asked = time.monotonic()
            self.drawn = self.actor.drawn.options(concurrency_group="watch").remote()

    @property
    def awaited(self) -> list[Any]:
        return [call for call in (self.present, self.prepared, self.rows, self.drawn) if call is not None]


class _Actors:
    """The actors of a run."""

    def __init__(self, ray: ModuleType, task: Task, crew: _Crew, *, timeout: float | None, on_draws: OnDraws) -> None:
        self._ray, self._crew, self._timeout, self._on_draws = ray, crew, timeout, on_draws
        self._task = [_stored(ray, task)]  # in a list Ray passes it on as it is, and does not look it up
        self._kind = ray.remote(
            num_cpus=crew.threads, num_gpus=crew.gpus, max_restarts=0, concurrency_groups={"watch": 1}
        )(_Actor)
        self._hands: list[_Hand] = []
        self._attempts: dict[int, int] = {}
        self._waiting: deque[Chunk] = deque()
        self._late = _LATE_SECONDS
        self._clock = Clock(timeout)

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """Hand chunks out one by one, replace actors that die, yield what is done."""
        source = iter(chunks)
        try:
            self._hands = [self._hire() for _ in range(self._crew.workers)]
            while self._hand_out(source):
                yield from self._listen()
                yield from self._hung()
                self._note_missing()
            self._check_weights()
        finally:
            for hand in self._hands:
                self._end(hand)

    def _hire(self, deaths: int = 0) -> _Hand:
        actor = self._kind.remote()
        prepared = actor.prepare.remote(self._task, self._crew.threads, os.getcwd())
        return _Hand(actor, actor.__ray_ready__.remote(), prepared, hired=time.monotonic(), deaths=deaths)

    def _end(self, hand: _Hand) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or the cluster is
            self._ray.kill(hand.actor)

    def _hand_out(self, source: Iterator[Chunk]) -> bool:
        """Give every free actor a chunk, and have one more at hand; False when all are done."""
        self._read_one(source)
        for hand in self._hands:
            if self._waiting and hand.ready and hand.chunk is None:
                hand.give(self._waiting.popleft())
                self._read_one(source)
        return bool(self._waiting) or any(hand.chunk for hand in self._hands)

    def _read_one(self, source: Iterator[Chunk]) -> None:
        if not self._waiting:
            self._waiting.extend(chunk for chunk in (next(source, None),) if chunk is not None)

    def _listen(self) -> Iterator[Done]:
        """Wait for the next answer, then take all that are there."""
        for hand in self._hands:
            hand.ask()
        calls = {call: hand for hand in self._hands for call in hand.awaited}
        self._ray.wait(list(calls), timeout=self._clock.tick)
        answered, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in answered:
            hand = calls[call]
            if hand in self._hands:  # not replaced since, on account of another call
                yield from self._heard(hand, call)

    def _heard(self, hand: _Hand, call: Any) -> Iterator[Done]:
        answer, lost = self._get(call)
        if lost is not None:
            yield from self._replace(hand, "the worker process died", lost)
            return
        if call == hand.present:
            hand.present = None
        elif call == hand.prepared:
            _check(answer)
            hand.prepared, hand.ready = None, True
        elif call == hand.drawn:
            hand.drawn = None
            self._tell(hand, answer)
        elif call == hand.rows and hand.chunk is not None:
            _check(answer)
            self._tell(hand, answer.drawn)
            chunk, hand.chunk, hand.rows = hand.chunk, None, None
            yield chunk.number, answer.rows, time.monotonic() - hand.started

    def _get(self, call: Any) -> tuple[Any, str | None]:
        """What was answered, or how the actor was lost."""
        try:
            return self._ray.get(call), None
        except self._ray.exceptions.RayTaskError as error:  # a call that came to grief outside our own code
            raise ModelError(f"A call of a Ray actor failed: {_last_line(error)}. {_NEEDED}") from None
        except self._ray.exceptions.RayError as error:
            return None, _last_line(error)

    def _tell(self, hand: _Hand, drawn: int) -> None:
        """Pass on the draws that are new: answers can overtake each other."""
        if drawn > hand.told:
            self._on_draws(drawn - hand.told)
            hand.told, hand.silent = drawn, 0.0

    def _hung(self) -> Iterator[Done]:
        """Replace actors that have not made a forward pass for too long; loading the model does not count."""
        passed = self._clock.passed()
        for hand in [hand for hand in self._hands if hand.chunk is not None]:
            hand.silent += passed
            if self._timeout is not None and hand.chunk is not None and hand.silent > self._timeout:
                attempts = self._attempts.get(hand.chunk.number, 0)
                self._attempts[hand.chunk.number] = attempts_after_hang(attempts)
                yield from self._replace(hand, f"no forward pass was done within {self._timeout:g} seconds")

    def _replace(self, hand: _Hand, reason: str, details: str = "") -> Iterator[Done]:
        self._end(hand)
        place = self._hands.index(hand)
        if hand.ready:
            self._hands[place] = self._hire()
        elif hand.deaths + 1 < ATTEMPTS:
            self._hands[place] = self._hire(hand.deaths + 1)
        else:
            self._do_without(hand, details)
        chunk = hand.chunk
        if chunk is None:
            return
        log.warning("a Ray actor was lost with inputs %s: %s", ", ".join(map(str, chunk.indices)), reason)
        self._attempts[chunk.number] = self._attempts.get(chunk.number, 0) + 1
        if self._attempts[chunk.number] >= ATTEMPTS:
            yield chunk.number, given_up(chunk, f"ModelError: {reason}"), time.monotonic() - hand.started
        else:
            self._waiting.appendleft(chunk)

    def _do_without(self, hand: _Hand, details: str) -> None:
        """Leave a place empty whose actors die while they load the model; one node of many may be out of order."""
        self._hands.remove(hand)
        what = f"a Ray actor died before it had loaded the model, {ATTEMPTS} times: {details}. {_NEEDED}"
        if not self._hands:
            raise ModelError(what[0].upper() + what[1:])
        log.warning("%s Going on without it.", what)

    def _note_missing(self) -> None:
        """Say so when actors wait for a node that has room for them."""
        now = time.monotonic()
        missing = [hand for hand in self._hands if hand.present is not None and now - hand.hired > self._late]
        if missing:
            there = len(self._hands) - len(missing)
            log.warning(
                "%d of %d Ray actors have not started after %.0f seconds: each needs %s free on one node; %s",
                *(len(missing), len(self._hands), self._late, self._crew.words),
                f"going on with {there}" if there else "waiting (see `ray status`)",
            )
            self._late *= 2

    def _check_weights(self) -> None:
        """Raise ModelChangedError if the weights of an actor are others than those that it loaded."""
        calls = [hand.actor.check.remote() for hand in self._hands if hand.ready]
        answered, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_CHECK_SECONDS) if calls else ([], [])
        for call in answered:
            with contextlib.suppress(self._ray.exceptions.RayError):  # it died, after its work was done
                _check(self._ray.get(call))


def _stored(ray: ModuleType, task: Task) -> Any:
    """The task in Ray's object store, to be fetched by every actor; weights on a GPU of ours travel as on the CPU."""
    import torch

    source = task.model.source
    if isinstance(source, torch.nn.Module) and any(one.device.type != "cpu" for one in source.parameters()):
        task = replace(task, model=replace(task.model, source=deepcopy(source).cpu()))
    try:
        return ray.put(task)
    except Exception as error:  # whatever pickling the user's objects raises
        raise ModelError(
            f"Expected a model that can be sent to other processes, got {describe_error(error)}. Give it as a file, or "
            "as package.module:name."
        ) from error


def _check(answer: Answer) -> None:
    """Raise the error that an actor answered with, in one line and of its own kind."""
    if answer.error is None:
        return
    name, text = answer.error
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SmoothcertError) and kind is not MissingExtraError:
        raise kind(text)
    raise ModelError(f"{name}: {text}")


def _last_line(error: Exception) -> str:
    """The cause of an error that Ray has wrapped in the text of its traceback."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause if cause is not None else error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")[:500]

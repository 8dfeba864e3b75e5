"""Images decoded and augmented in worker processes, ahead of the steps that need them.

What an image looks like in an epoch depends on the seed, the epoch and its index alone, so batches are the same
whatever the number of workers, and a resumed training sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import data as torch_data

from smoothcert.checks import check_count
from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.errors import SmoothcertError
from smoothcert.training.augmentations import WINDOW_TRIES, augmented, random_window
from smoothcert.training.seeding import generator_for

MOST_WORKERS = 8
_running: WeakSet[Any] = WeakSet()

Request = tuple[int, Sequence[int]]
"""An epoch, and indices of inputs."""


class Decoder(torch_data.Dataset[Tensor | SmoothcertError]):
    """Batches [B, *D] of a data set by (epoch, indices), augmented."""

    def __init__(self, data: Dataset, seed: int = 0, augment: Sequence[str] = ()) -> None:
        self._data, self._seed, self._augment = data, seed, augment

    def __getitem__(self, request: Request) -> Tensor | SmoothcertError:
        """The batch, or the error that kept it from being made: a DataLoader would bury one that is raised."""
        try:
            return self._batch(*request)
        except SmoothcertError as error:
            return error

    def _batch(self, epoch: int, rows: Sequence[int]) -> Tensor:
        if not rows:  # a process can have no part in an epoch's last batch
            return torch.empty(0, *self._data.shape)
        if not self._augment:
            return torch.from_numpy(self._data.batch(rows))
        chance = torch.stack([self._chance(epoch, row) for row in rows])
        if "resized-crop" in self._augment:
            images = np.stack([self._cut_out(row, one[3:]) for row, one in zip(rows, chance, strict=True)])
        else:
            images = self._data.batch(rows)
        return augmented(torch.from_numpy(images), self._augment, chance[:, :3].T)

    def _cut_out(self, row: int, chance: Tensor) -> npt.NDArray[np.uint8]:
        return self._data.cropped(row, partial(random_window, chance=chance.view(WINDOW_TRIES, 4).tolist()))

    def _chance(self, epoch: int, row: int) -> Tensor:
        """Random numbers in [0, 1) for one image: two for its shift, one for its mirroring, the rest for its window."""
        return torch.rand(3 + 4 * WINDOW_TRIES, generator=generator_for(self._seed, f"augment epoch {epoch}", row))


def workers_for(data: Dataset, wanted: int | None) -> int:
    """How many processes decode `data`: none for arrays, else as many as wanted, or this process's CPUs, at most 8."""
    if isinstance(data, ArrayData):
        return 0
    if wanted is not None:
        return check_count("workers", wanted, least=0)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def decode_ahead(
    decoder: Decoder, requests: Iterable[Request], workers: int, *, pin_memory: bool = False
) -> Iterator[Tensor]:
    """The batch of each request, in order; each worker has up to two of them ready before they are asked for.

    With 0 workers, images are decoded in this process. Closing the generator ends the workers.
    """
    batches = _start(decoder, requests, workers, pin_memory)
    try:
        while (batch := next(batches, None)) is not None:
            if isinstance(batch, SmoothcertError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise SmoothcertError(
            "A process that decodes images was killed, perhaps for lack of memory or of space in /dev/shm. Use fewer "
            f"--workers than {workers}."
        ) from error
    finally:
        _end(batches)


def _start(
    decoder: Decoder, requests: Iterable[Request], workers: int, pin_memory: bool
) -> Iterator[Tensor | SmoothcertError]:
    """A DataLoader's iterator, started without a trace in this process."""
    handler = _child_handler()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs
        loader = torch_data.DataLoader(
            decoder,
            batch_size=None,  # a request is a whole batch
            sampler=requests,
            num_workers=workers,
            pin_memory=pin_memory,
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # or it would draw from the global one
        )
        batches = iter(loader)
    if handler is not None:
        # DataLoader's own handler would raise in the middle of whatever runs when a worker dies; without it, asking
        # for the next batch does.
        signal.signal(signal.SIGCHLD, handler)
    _running.add(batches)
    return batches


def _end(batches: Any) -> None:
    """End a DataLoader's workers now: by itself it does so when nothing refers to it, and a traceback may."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


@atexit.register
def _end_all() -> None:
    """End the workers of generators that nobody closed, or Python would wait for them at its exit."""
    for batches in list(_running):
        _end(batches)


def _child_handler() -> Any:
    """What happens here when a child process ends; None where DataLoader cannot change it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return None
    return signal.getsignal(signal.SIGCHLD)


def _ignore_signals(_: int) -> None:
    """Leave Ctrl-C and requests to end to the main process, which saves its state first and then ends the workers."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

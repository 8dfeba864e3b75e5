"""The way of noisy copies from where they are made to where they are classified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothcert.device_noise import fill_on_device
from smoothcert.noise import GridGaussianNoise, Noise
from smoothcert.streams import Stream

Array32 = npt.NDArray[np.float32]


class Staging(ABC):
    """Where noisy copies are made: `open`, `fill` all rows, `send` them batch by batch, `close`, and again."""

    @abstractmethod
    def open(self) -> None:
        """Take the next buffer, once nobody reads it any more."""

    @abstractmethod
    def fill(self, start: int, stop: int, noise: Noise, centre: Array32, stream: Stream, block: int) -> None:
        """Make the first copies of a noise block in the rows from `start` to `stop`."""

    @abstractmethod
    def send(self, start: int, stop: int) -> Tensor:
        """Some rows [stop − start, size], on the device or on their way there."""

    @abstractmethod
    def close(self) -> None:
        """Everything of this buffer has been sent."""


class HostStaging(Staging):
    """Buffers on the host, and transfers to the device.

    For a GPU there are two, pinned: one is filled while the content of the other is on its way, and nothing waits but
    for a buffer that is still being read. `make_event` makes what is recorded behind a buffer's last transfer.
    """

    def __init__(
        self, device: torch.device, rows: int, row_size: int, make_event: Callable[[], Any] | None = None
    ) -> None:
        on_gpu = device.type == "cuda"
        self._device = device
        self._make_event = torch.cuda.Event if on_gpu and make_event is None else make_event
        count = 1 if self._make_event is None else 2
        self._buffers = [torch.empty(rows, row_size, pin_memory=on_gpu) for _ in range(count)]
        self._sent: list[Any] = [None] * count
        self._turn = 0

    def open(self) -> None:
        """Take the other buffer, once it has been read."""
        self._turn = (self._turn + 1) % len(self._buffers)
        if self._sent[self._turn] is not None:
            self._sent[self._turn].synchronize()

    def fill(self, start: int, stop: int, noise: Noise, centre: Array32, stream: Stream, block: int) -> None:
        """By numpy or the C kernel."""
        noise.fill(centre, stream, block, self._buffers[self._turn][start:stop].numpy())

    def send(self, start: int, stop: int) -> Tensor:
        """Without waiting, as the buffer is pinned; on the CPU the rows themselves."""
        return self._buffers[self._turn][start:stop].to(self._device, non_blocking=True)

    def close(self) -> None:
        """Have what has been sent so far marked."""
        if self._make_event is not None:
            event = self._make_event()
            event.record()
            self._sent[self._turn] = event


class DeviceStaging(Staging):
    """A buffer on the device, where grid noise is made: what is queued there is done in order, so nothing waits."""

    def __init__(self, device: torch.device, rows: int, row_size: int) -> None:
        self._buffer = torch.empty(rows, row_size, device=device)
        self._centres: dict[int, tuple[Array32, Tensor]] = {}

    def open(self) -> None:
        """There is one buffer only."""

    def fill(self, start: int, stop: int, noise: Noise, centre: Array32, stream: Stream, block: int) -> None:
        """By torch operations on the device; the centre is sent there once."""
        assert isinstance(noise, GridGaussianNoise)  # noqa: S101 - `make_staging` sees to it
        if id(centre) not in self._centres:  # kept, so that its address is not another's before long
            self._centres[id(centre)] = centre, torch.from_numpy(centre).to(self._buffer.device)
        fill_on_device(noise, self._centres[id(centre)][1], stream, block, self._buffer[start:stop])

    def send(self, start: int, stop: int) -> Tensor:
        """The rows themselves."""
        return self._buffer[start:stop]

    def close(self) -> None:
        """Nothing is on its way."""


def make_staging(device: torch.device, rows: int, row_size: int, noises: Iterable[Noise]) -> Staging:
    """On a GPU its own noise, if that is grid noise: float noise comes from the host, to be the same everywhere."""
    if device.type == "cuda" and all(isinstance(noise, GridGaussianNoise) for noise in noises):
        return DeviceStaging(device, rows, row_size)
    return HostStaging(device, rows, row_size)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, queue what this thread does apart from what others do, and wait for it in the end."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # for the weights, which may still be on their way
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()

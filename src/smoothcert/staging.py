"""The way of noisy copies from where they are made to where they are classified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Staging:
    """Buffers on the host that noisy copies are made in, and their way to the device.

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

    def open(self) -> npt.NDArray[np.float32]:
        """The next buffer [rows, row_size], once nobody reads it any more."""
        self._turn = (self._turn + 1) % len(self._buffers)
        if self._sent[self._turn] is not None:
            self._sent[self._turn].synchronize()
        array: npt.NDArray[np.float32] = self._buffers[self._turn].numpy()
        return array

    def send(self, start: int, stop: int) -> Tensor:
        """Some rows of the open buffer, on the device or on their way there."""
        return self._buffers[self._turn][start:stop].to(self._device, non_blocking=True)

    def close(self) -> None:
        """Everything of the open buffer has been sent."""
        if self._make_event is not None:
            event = self._make_event()
            event.record()
            self._sent[self._turn] = event


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

"""Where a training runs: one process by default, several under a launcher, through Hugging Face Accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.errors import MissingExtraError


class Engine:
    """One process on one device."""

    rank, world = 0, 1

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        self.device, self._precision = device, precision

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that forward passes are computed in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bf16")

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return values

    def wait(self) -> None:
        """Go on when all processes have come this far."""

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over all processes."""


class AccelerateEngine(Engine):
    """One of several processes, as `accelerate launch` or `torchrun` has started them."""

    def __init__(self, precision: str = "fp32", *, cpu: bool = False) -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise MissingExtraError("accelerate", "distributed") from error
        self._accelerator = Accelerator(cpu=cpu)
        super().__init__(self._accelerator.device, precision)
        self.rank, self.world = self._accelerator.process_index, self._accelerator.num_processes

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return self._accelerator.reduce(values, "sum")

    def wait(self) -> None:
        """Go on when all processes have come this far."""
        self._accelerator.wait_for_everyone()

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum all gradients in one go: recipes with attacks inside would confuse a wrapper around the network."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        summed = self.add_up(torch.cat([one.flatten() for one in gradients]))
        for gradient, part in zip(gradients, summed.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def make_engine(device: torch.device, precision: str) -> Engine:
    """The engine for this process: a launcher has told whether there are others."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return AccelerateEngine(precision, cpu=device.type == "cpu")
    return Engine(device, precision)

"""Where a training runs: in one process on one device, or in several that `torchrun` started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from smoothcert.errors import ConfigError, SmoothcertError

_LAUNCHER = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Engine:
    """One process on one device."""

    rank, world = 0, 1

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        self.device, self._precision = device, precision

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._precision == "bf16")

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return values

    def wait(self) -> None:
        """Wait until all processes have reached this point."""

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over all processes."""


class DistributedEngine(Engine):
    """One of several processes started by `torchrun`: NCCL between GPUs, Gloo between CPUs."""

    def __init__(self, device: torch.device, precision: str = "fp32") -> None:
        super().__init__(_own_device(device), precision)
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
            atexit.register(distributed.destroy_process_group)
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        total = values.clone()
        try:
            distributed.all_reduce(total)
        except RuntimeError as error:
            raise SmoothcertError("Another process of this training ended; its own message says why.") from error
        return total

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        self.add_up(torch.zeros(1, device=self.device))

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum all gradients in one call.

        DistributedDataParallel would do so during the backward pass, but it expects one forward pass per step, and
        recipes with attacks take many.
        """
        gradients = [p.grad for p in parameters if p.grad is not None]
        total = self.add_up(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, total.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _own_device(device: torch.device) -> torch.device:
    """The device of this process: on a machine with several GPUs, the one of its local rank."""
    if device.type != "cuda":
        return device
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= count:
        raise ConfigError(f"Expected at most one process per GPU, got local rank {local} with {count} GPUs.")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def make_engine(device: torch.device, precision: str) -> Engine:
    """The engine of this process, from the environment that `torchrun` sets."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Engine(device, precision)
    missing = [name for name in _LAUNCHER if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {world}, but {missing[0]} is not set. Start several processes with torchrun, or unset "
            "WORLD_SIZE to train in one."
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Several processes train on CUDA devices or CPUs, not on {device.type}. Add --device cpu.")
    return DistributedEngine(device, precision)

"""TorchInductor: C++ code made for one network and one batch size, its weights built in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from smoothcert.backends.exporting import exported
from smoothcert.backends.interface import Backend, Executable, Source, identity
from smoothcert.models.hashes import hash_tensors

_OPTIONS: dict[str, str | bool | int] = {
    "freezing": True,  # weights are constants, laid out and packed for the kernels that use them
    "cpp.threads": 1,  # as many as are written into the code; the sampler's workers bring threads of their own
    "compile_threads": 1,  # else compiler processes would stay until the end
}


class Compiled(Backend):
    """What torch.compile would run, without its guards.

    They compile anew for every number of threads and every mode that a caller is in. The graph from torch.export is
    compiled once, here, and runs in all of them.
    """

    name = "compile"
    sized = True

    def missing(self) -> str | None:
        """A compiler, where there is none."""
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        return None if shutil.which(compiler) else f"a C++ compiler ({compiler})"

    def make(self, source: Source, precision: str) -> nn.Module:
        """Code for batches of the source's size; others are cut and filled up to it."""
        import torch._inductor

        program = exported(source, batch_size=source.batch_size)
        example = source.probes(source.batch_size)
        call = torch._inductor.compile(program.module(), [example], options=_OPTIONS)
        content = hash_tensors(source.network.state_dict()).encode()
        run = _Padded(call, source.batch_size)
        return Executable(run, identity(self.name, precision, content), source.device, source.batch_size)


class _Padded:
    """Calls a function of batches of one size with pieces of that size, the last filled up with zeros."""

    def __init__(self, call: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self._call, self._size = call, batch_size

    def __call__(self, batch: Tensor) -> Tensor:
        if len(batch) == self._size:
            return self._call(batch)
        empty = batch.new_zeros(-len(batch) % self._size, *batch.shape[1:])
        pieces = torch.cat([batch, empty]).split(self._size)
        return torch.cat([self._call(piece) for piece in pieces])[: len(batch)]

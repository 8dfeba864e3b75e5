"""The network as torch runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoothcert.backends.interface import Backend, Executable, Source, identity
from smoothcert.errors import ConfigError
from smoothcert.models.hashes import hash_tensors

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Eager(Backend):
    """The network itself; in 16 bits where a device gains by it."""

    name = "eager"
    precisions = ("fp32", "bf16", "fp16")

    def make(self, source: Source, precision: str) -> nn.Module:
        """The network; for 16 bits under autocast, which ConfigError refuses where it would be slower."""
        if precision == "fp32":
            return source.network
        if source.device.type != "cuda":
            raise ConfigError(
                f"Expected `precision` fp32 on the {source.device.type.upper()}, got {precision}, which makes torch "
                "slower there. Take the backend openvino or onnxruntime and int8 for speed."
            )
        content = hash_tensors(source.network.state_dict()).encode()
        run = _Autocast(source.network, _TYPES[precision])
        return Executable(run, identity(self.name, precision, content), source.device)


class _Autocast:
    """Calls a network with 16-bit arithmetic where torch thinks that precise enough."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        self._network, self._dtype = network, dtype

    def __call__(self, batch: Tensor) -> Tensor:
        with torch.autocast(batch.device.type, self._dtype):
            scores: Tensor = self._network(batch).float()
            return scores

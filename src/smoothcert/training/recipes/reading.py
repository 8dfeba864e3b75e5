"""The layers of a network in training, for recipes that bound what it computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoothcert.baselines.network import Network, read_network
from smoothcert.errors import ConfigError


def layers_of(model: nn.Module, x: Tensor) -> Network:
    """The network that `model` is now in eval mode, for inputs like x [B, *D]; its operations hold the parameters.

    Read anew in each step, as weights may be computed from others. Batch norm is taken by its running statistics.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
        raise ConfigError(
            f"Expected the network itself, whose layers can be bounded, got {type(model).__name__}. Train it without "
            "--compile and without a wrapper around it."
        )
    with exactly(x):
        return read_network(model, tuple(x.shape[1:]))


def exactly(x: Tensor) -> torch.autocast:
    """Where mixed precision is switched off: sums of bounds need the digits."""
    return torch.autocast(x.device.type, enabled=False)

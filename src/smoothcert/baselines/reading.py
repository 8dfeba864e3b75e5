"""A module beside the network that it was read as, compared at every input that is certified."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smoothcert.baselines.lipschitz import deviations
from smoothcert.baselines.network import Network, read_network
from smoothcert.baselines.operations import Shape
from smoothcert.errors import InputError, ModelError


@dataclass(frozen=True, eq=False)
class Reading:
    """A copy of a module in eval mode, and the network in float64 that it was read as.

    Weights are those that the module computes with, in its own precision, so that float64 holds them exactly.
    """

    module: nn.Module
    network: Network

    @classmethod
    def of(cls, model: nn.Module, shape: Shape) -> Reading:
        """Read a copy of `model` for inputs of `shape`. Raises ModelError if it contains unsupported operations."""
        try:
            module = copy.deepcopy(model).eval().requires_grad_(False)
        except (RuntimeError, TypeError) as error:
            raise ModelError(f"The network could not be copied ({type(error).__name__}: {error}).") from error
        return cls(module, read_network(module, shape, strict=True).to(torch.float64))

    @torch.no_grad()
    def answers(self, x: Tensor) -> Tensor:
        """The classes [B] that the module gives to inputs x [B, *D].

        Raises ModelError if its scores are further from the network's than rounding can explain: bounds of the
        network then say nothing about the module.
        """
        own = x.to(self.network.dtype)
        if not torch.equal(own.double().nan_to_num(0.0), x.double().nan_to_num(0.0)):
            raise InputError(f"Expected inputs in the precision of the network, {self.network.dtype}, got {x.dtype}.")
        scores = self.module(own.clone())
        values = self.network.values(x.double())
        expected = values[-1]
        if scores.dtype != self.network.dtype or scores.shape != expected.shape:
            raise ModelError(
                f"Expected scores {list(expected.shape)} in {self.network.dtype} from the module, as when it was read, "
                f"got {list(scores.shape)} in {scores.dtype}."
            )
        allowed = deviations(self.network).of_scores(values, torch.zeros(len(x), dtype=torch.float64, device=x.device))
        apart = (scores.double() - expected).abs()
        # Inputs that are not finite, and scores that may overflow, are not certified.
        judged = allowed.isfinite() & x.flatten(1).isfinite().all(1)[:, None]
        wrong = judged & ~(apart <= allowed)
        if bool(wrong.any()):
            place = int(wrong.any(1).nonzero()[0])
            raise ModelError(
                f"The network was not read as it computes: at input {place} of the batch the module's scores are "
                f"{scores[place].tolist()}, those of the network as read {expected[place].tolist()}, and rounding "
                f"explains at most {float(allowed[place].max()):.1e}. Nothing can be certified for such a module."
            )
        return scores.argmax(1)

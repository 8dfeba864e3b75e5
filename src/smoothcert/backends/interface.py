"""What a backend is: a way to run the base classifier f, told apart from the others by its speed and its rounding.

Certificates are about the f that was executed, whatever ran it: Theorem 1 of Cohen et al. 2019 asks nothing of f. So a
backend may round otherwise than torch does, or compute with eight bits, as long as each row's answer depends on that
row alone. But a run has to record which f it was, which is what `content_hash` is for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.backends.isolation import isolated
from smoothcert.checks import check_choice, check_count
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelError, SmoothcertError
from smoothcert.models.agreement import differing, score_spread
from smoothcert.models.contract import evaluating
from smoothcert.models.hashes import hash_bytes, hash_tensors

# Of the spread of the scores: other orders of summation make 1e-6 of it, another network makes far more.
_TOLERANCE = 1e-3
_PROBES = 3
_COMPARED = 8
_CALIBRATION_ROWS = 64  # at a time
_LONGEST = 400  # characters of an error that is not ours


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The base classifier to be built, and what it will be given.

    Attributes:
        network: takes inputs [B, *D], returns scores [B, K]. It is left as it is.
        shape: of one input, [*D].
        batch_size: how many inputs most calls will have. Any other number works too.
        calibration: noisy inputs [N, *D] such as will be classified, which int8 takes its ranges of values from.
    """

    network: nn.Module
    shape: tuple[int, ...]
    batch_size: int
    calibration: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        inputs = self.calibration
        if inputs is not None and (inputs.dtype != np.float32 or not len(inputs) or inputs.shape[1:] != self.shape):
            wanted = ("N", *self.shape)
            raise InputError(f"Expected `calibration` float32 of shape {wanted}, got {inputs.dtype} {inputs.shape}.")

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        tensors = (*self.network.parameters(), *self.network.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def calibration_batches(self) -> list[npt.NDArray[np.float32]]:
        """The noisy inputs [≤ 64, *D] that int8 takes its ranges from; ConfigError if none were given."""
        inputs = self.calibration
        if inputs is None:
            raise ConfigError("Expected noisy inputs as `calibration` for int8, got none: its ranges come from them.")
        return [inputs[start : start + _CALIBRATION_ROWS] for start in range(0, len(inputs), _CALIBRATION_ROWS)]

    def probes(self, rows: int = _PROBES) -> Tensor:
        """Inputs [rows, *D] to try a network with, the same each time, on its device."""
        values = torch.rand(rows, *self.shape, generator=torch.Generator().manual_seed(0))
        return values.to(self.device)


class Backend(ABC):
    """A way to run a network. `build` checks what `make` made: a backend is not trusted with being the same network."""

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    sized: ClassVar[bool] = False
    """True if what is built suits one batch size above others."""
    modules: ClassVar[tuple[str, ...]] = ()
    """What it imports beyond torch, and"""
    extra: ClassVar[str] = ""
    """which of our extras that comes with."""

    def missing(self) -> str | None:
        """What it needs and is not installed here; None if it can be used. Nothing is imported to find out."""
        return next((module for module in self.modules if find_spec(module) is None), None)

    @abstractmethod
    def make(self, source: Source, precision: str) -> nn.Module:
        """The network in a form that runs; errors of any kind may be raised, and anything be printed."""

    def build(self, source: Source, precision: str = "fp32") -> nn.Module:
        """The network as a module that keeps the contract of a base classifier, and may be called by several threads.

        Raises ConfigError for a precision that it does not have, MissingExtraError if it is not installed, and
        ModelError if it cannot run this network or gets other scores than torch does.
        """
        check_choice("precision", precision, self.precisions)
        if (package := self.missing()) is not None:
            raise self._not_here(package)
        if precision == "int8":
            source.calibration_batches()  # refused before there is work to do
        with isolated(), evaluating(source.network), torch.no_grad():
            try:
                built = self.make(source, precision).eval()
                if built is source.network:
                    return built
                scores, expected = built(source.probes(_COMPARED)), source.network(source.probes(_COMPARED))
            except ConfigError:
                raise
            except Exception as error:  # each library has its own kinds
                raise ModelError(f"The backend {self.name} cannot run this network: {_reason(error)}") from error
        self._compare(scores, expected, precision)
        return built

    def _not_here(self, package: str) -> SmoothcertError:
        if self.extra:
            return MissingExtraError(package, self.extra)
        return ConfigError(f"Expected {package} for the backend {self.name}, got none.")

    def _compare(self, scores: Tensor, expected: Tensor, precision: str) -> None:
        if expected.ndim != 2 or scores.shape != expected.shape:
            shapes = f"{tuple(scores.shape)} for torch's {tuple(expected.shape)}"
            raise ModelError(f"Expected scores [B, K] of the backend {self.name}, got {shapes}.")
        if precision == "fp32" and differing(expected, scores, score_spread(expected), relative=_TOLERANCE).any():
            worst = float((scores - expected).abs().nan_to_num(torch.inf).max())
            raise ModelError(
                f"The backend {self.name} computes other scores than torch, which differ by up to {worst:.2g}."
            )


class Executable(nn.Module):
    """A network that is run by something else than the module itself, on its own device, by any number of threads."""

    thread_safe = True

    def __init__(
        self,
        run: Callable[[Tensor], Tensor],
        identity: str,
        device: torch.device,
        fixed_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        # In a tuple, so that a module in there is not taken for a part of this one: it is fixed as it is.
        self._held = (run,)
        self.identity, self.own_device, self.fixed_batch_size = identity, device, fixed_batch_size

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K] of a batch [B, *D] in any layout, brought to where the batch is."""
        # Nothing is copied unless it has to be.
        return self._held[0](x.detach().to(self.own_device, torch.float32).contiguous()).to(x.device)

    def extra_repr(self) -> str:
        """What is run."""
        return self.identity


def identity(backend: str, precision: str, *content: bytes) -> str:
    """A hash of what a backend executes: its own name, the precision, and the model as it is handed to the runtime."""
    return hash_bytes(f"{backend} {precision}\n".encode(), *content)


def content_hash(built: nn.Module) -> str:
    """Which f a built module is: the same for every build of the same source, in any process on this machine.

    With int8, ranges of activations are a part of it, whose last bits may be others on another kind of CPU.
    """
    return built.identity if isinstance(built, Executable) else hash_tensors(built.state_dict())


def _reason(error: BaseException) -> str:
    """What started it all, which says more than the errors that wrap it, on one line of bearable length."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:_LONGEST]}" + "…" * (len(words) > _LONGEST)

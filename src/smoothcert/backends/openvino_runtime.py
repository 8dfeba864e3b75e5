"""OpenVINO: the network as an OpenVINO model, in 32 bits or quantised to 8 by NNCF."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.backends.exporting import exported
from smoothcert.backends.interface import Backend, Executable, Source, identity
from smoothcert.backends.isolation import signal_stack_kept

_SETTINGS = {
    "INFERENCE_NUM_THREADS": 1,  # the sampler's workers bring threads of their own
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,  # else all of them may be tied to one core
    "INFERENCE_PRECISION_HINT": "f32",  # CPUs that can would take bf16 unasked
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # ranges are fixed, or the rows of a batch might influence each other
}
_TELEMETRY = "openvino_telemetry"


class OpenVino(Backend):
    """OpenVINO on the CPU, with one thread per call; int8 is static, its ranges fixed by calibration."""

    name = "openvino"
    sized = True
    precisions = ("fp32", "int8")
    modules = ("openvino", "nncf")
    extra = "openvino"

    def make(self, source: Source, precision: str) -> nn.Module:
        """The network converted, quantised if wanted, and compiled by each thread that calls it."""
        with _unreported():
            import openvino

            model = openvino.convert_model(exported(source))
            model.reshape([-1, *source.shape])
            if precision == "int8":
                model = _quantised(model, source.calibration_batches())
        content = _content(model)
        run = _Requests(model, source.batch_size)
        return Executable(run, identity(self.name, precision, *content), torch.device("cpu"))


class _Requests:
    """Calls a model from any number of threads, each of which has its own compiled one.

    A compiled model with one stream serves one caller at a time, and with several streams has threads that nobody
    asked for. Batches of the expected size get a model for that size, which is a little faster.
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        self._model, self._size = model, batch_size
        self._own = threading.local()
        self._lock = threading.Lock()

    def __call__(self, batch: Tensor) -> Tensor:
        import openvino

        with signal_stack_kept():
            request = self._request(len(batch) == self._size)
            request.set_input_tensor(openvino.Tensor(batch.numpy(), shared_memory=True))
            request.infer()
            return torch.from_numpy(request.get_output_tensor().data.copy())

    def _request(self, full: bool) -> Any:
        """This thread's request for full batches, or for all others."""
        known = vars(self._own)
        name = "full" if full else "other"
        if name not in known:
            known[name] = self._compile(full)
        return known[name]

    def _compile(self, full: bool) -> Any:
        import openvino

        with self._lock:
            model = self._model.clone()
        if full:
            model.reshape([self._size, *list(model.input(0).partial_shape)[1:]])
        return openvino.Core().compile_model(model, "CPU", _SETTINGS).create_infer_request()


@contextmanager
def _unreported() -> Iterator[None]:
    """Without OpenVINO's telemetry package, which OpenVINO and NNCF can do without, and then report nothing.

    Its own switch is a file in the user's home directory. Who imports OpenVINO before us has what that file says.
    """
    if _TELEMETRY in sys.modules:
        yield
        return
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # importing it fails now
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]


def _quantised(model: Any, batches: list[npt.NDArray[np.float32]]) -> Any:
    """The model with 8-bit layers, ranges of activations from the least and largest values seen.

    By default NNCF takes the mean of what it saw, and cuts off the noise: five times the error on digits.
    """
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    ranges = nncf.AdvancedQuantizationParameters(activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX)
    return nncf.quantize(model, nncf.Dataset(batches), subset_size=len(batches), advanced_parameters=ranges)


def _content(model: Any) -> tuple[bytes, bytes]:
    """The model as its two files, less the names and notes, which count what was made before it in this process."""
    import openvino

    with TemporaryDirectory() as folder:
        graph, weights = Path(folder, "network.xml"), Path(folder, "network.bin")
        openvino.serialize(model, graph, weights)
        nameless = re.sub(rb' names?="[^"]*"', b"", graph.read_bytes())
        return re.sub(rb"<rt_info>.*?</rt_info>", b"", nameless, flags=re.DOTALL), weights.read_bytes()

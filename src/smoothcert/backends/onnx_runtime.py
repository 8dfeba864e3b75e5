"""ONNX Runtime: the network as an ONNX graph, in 32 bits or quantised to 8."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.backends.exporting import exported
from smoothcert.backends.interface import Backend, Executable, Source, identity

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_INPUT, _OUTPUT = "inputs", "scores"


class OnnxRuntime(Backend):
    """ONNX Runtime on the CPU, with one thread per call.

    int8 is static: ranges are fixed by calibration, and for weights per channel. Dynamic quantisation, whose ranges
    come from the batch at hand, would let the rows of a batch influence each other.
    """

    name = "onnxruntime"
    precisions = ("fp32", "int8")
    modules = ("onnxruntime", "onnx", "onnxscript")
    extra = "onnx"

    def make(self, source: Source, precision: str) -> nn.Module:
        """The network exported, quantised if wanted, and loaded from memory."""
        # Before the first import: official builds report models and sessions to Microsoft otherwise.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        content = _onnx(source)
        if precision == "int8":
            content = _quantised(content, source.calibration_batches())
        run = _Session(_session(content))
        return Executable(run, identity(self.name, precision, content), torch.device("cpu"))


class _Session:
    """Calls a session, which takes the batch and gives the scores without a copy."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def __call__(self, batch: Tensor) -> Tensor:
        [scores] = self._session.run([_OUTPUT], {_INPUT: batch.numpy()})
        return torch.from_numpy(scores)


def _onnx(source: Source) -> bytes:
    """The network as an ONNX file, without the notes about its making, paths among them."""
    program = torch.onnx.export(
        exported(source), dynamo=True, input_names=[_INPUT], output_names=[_OUTPUT], verbose=False
    )
    assert program is not None  # noqa: S101 - for the type checker: only the older exporter gives none
    model: Any = program.model_proto
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _quantised(content: bytes, batches: list[npt.NDArray[np.float32]]) -> bytes:
    """An ONNX file whose layers compute with 8 bits, ranges of activations from the least and largest values seen."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = iter([{_INPUT: batch} for batch in batches])

        def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
            return next(self._feeds, None)

    with TemporaryDirectory() as folder:
        whole, small = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        whole.write_bytes(content)
        quantize_static(
            whole,
            small,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,  # unsigned by signed is what CPUs have instructions for
            weight_type=QuantType.QInt8,
        )
        return small.read_bytes()


def _session(content: bytes) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the sampler's workers bring threads of their own
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

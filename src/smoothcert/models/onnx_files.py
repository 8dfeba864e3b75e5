"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from smoothcert.errors import MissingExtraError, ModelError
from smoothcert.models.classifier import Classifier, Foreign
from smoothcert.models.hashes import hash_files
from smoothcert.models.torch_files import first_line

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
_MOST_WORKERS = 4  # that call the session at the same time


def load_onnx(path: Path) -> Classifier:
    """The model in an .onnx file, whose first input is a batch of images [B, C, H, W] or [B, H, W, C], or of vectors.

    A model for one batch size is fed batches of that size.
    """
    weights_hash = _hash(path)
    session = _session(path)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or inputs[0].type not in _DTYPES or not inputs[0].shape:
        found = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        raise ModelError(f"Expected one floating-point input with a batch dimension in {path}, got {found}.")
    batch, *sides = inputs[0].shape
    last = len(sides) == 3 and sides[2] in (1, 3) and sides[0] not in (1, 3)
    output = _output(path, outputs)
    fixed = batch if isinstance(batch, int) else None
    run = _Runner(session, inputs[0].name, output.name, _DTYPES[inputs[0].type], channels_last=last)
    shape = (sides[2], *sides[:2]) if last else tuple(sides)
    columns = output.shape[1] if len(output.shape or ()) == 2 else None
    return Classifier(
        network=Foreign(run, thread_safe=True, batch_size=fixed),
        source=str(path),
        kind="onnx",
        weights_hash=weights_hash,
        input_shape=shape if all(isinstance(side, int) for side in shape) else None,
        num_classes=columns if isinstance(columns, int) else None,
        notes=_notes(fixed, last),
    )


class _Runner:
    """Calls a session with a batch and returns one of its outputs."""

    def __init__(
        self, session: InferenceSession, source: str, target: str, dtype: type[np.generic], *, channels_last: bool
    ) -> None:
        self._session, self._source, self._target = session, source, target
        self._dtype, self._channels_last = dtype, channels_last

    def __call__(self, batch: Tensor) -> Tensor:
        if self._channels_last:
            batch = batch.permute(0, 2, 3, 1)
        array = np.ascontiguousarray(batch.numpy(), self._dtype)
        [answer] = self._session.run([self._target], {self._source: array})
        return torch.from_numpy(np.asarray(answer))


def _hash(path: Path) -> str:
    """The hash of the file, and of the weights beside it where they were too large to be in it."""
    beside = (path.with_name(f"{path.name}{suffix}") for suffix in (".data", "_data"))
    try:
        return hash_files(path, *(one for one in beside if one.is_file()))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error


def _session(path: Path) -> InferenceSession:
    try:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import; nothing is reported to anyone
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("ONNX Runtime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    cores = os.cpu_count() or 1
    options.intra_op_num_threads = max(1, cores // _MOST_WORKERS)  # the sampler's workers bring threads of their own
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors have no common class but this one
        raise ModelError(
            f"Expected a whole ONNX model in {path}: {first_line(error)} It may be truncated, or its weights missing: "
            "they can be in a second file that must lie beside it."
        ) from error


def _output(path: Path, outputs: list[Any]) -> Any:
    """The scores [B, K], or else the labels [B]."""
    scores = [one for one in outputs if one.type in _DTYPES and len(one.shape or ()) == 2]
    labels = [one for one in outputs if one.type in ("tensor(int64)", "tensor(int32)") and len(one.shape or ()) == 1]
    if scores or labels:
        return (scores or labels)[0]
    found = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in outputs)
    raise ModelError(f"Expected scores [B, K] or labels [B] among the outputs of {path}, got {found}.")


def _notes(fixed: int | None, channels_last: bool) -> tuple[str, ...]:
    notes = []
    if fixed is not None:
        notes.append(
            f"the model takes batches of {fixed} only: it is fed such; export it with a dynamic batch for speed"
        )
    if channels_last:
        notes.append("the model takes images [H, W, C]: they are turned round for it")
    return tuple(notes)

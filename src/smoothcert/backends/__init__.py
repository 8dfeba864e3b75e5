"""Ways to run the base classifier faster than torch does as it is: `BACKENDS["openvino"].build(source, "int8")`."""

from __future__ import annotations

from smoothcert.backends.compiled import Compiled
from smoothcert.backends.eager import Eager
from smoothcert.backends.folded import Folded
from smoothcert.backends.interface import Backend, Source, content_hash
from smoothcert.backends.onnx_runtime import OnnxRuntime
from smoothcert.backends.openvino_runtime import OpenVino

__all__ = ["BACKENDS", "PRECISIONS", "Backend", "Source", "content_hash"]

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (Eager(), Folded(), Compiled(), OnnxRuntime(), OpenVino())
}
PRECISIONS = tuple(dict.fromkeys(name for backend in BACKENDS.values() for name in backend.precisions))

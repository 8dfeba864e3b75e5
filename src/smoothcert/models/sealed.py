"""Weights and a description of them in one safetensors file, under one hash.

Safetensors has no checksum: a flipped bit in a weight would go unnoticed, and so would a changed description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from smoothcert.errors import ModelError
from smoothcert.files import read_at_most, replacing
from smoothcert.models.hashes import hash_bytes, hash_tensors

_METADATA = "smoothcert"
_FORMAT = 1


def write_sealed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and what is to be said about them, all or nothing."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = {"format": _FORMAT, **about}
    sealed = {**described, "hash": _seal(described, whole)}
    content = save(whole, {_METADATA: json.dumps(sealed, allow_nan=False)})
    with replacing(path) as partial:
        partial.write_bytes(content)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors of a file, and what is said about them; None there if the file is not one of ours.

    ModelError for a file that is damaged: one that is not whole, or whose hash is another.
    """
    content = read_at_most(path, None, ModelError)
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"Expected a whole safetensors file, got {len(content):,} bytes in {path} that are none ({error}). It may "
            "be truncated: fetch it again."
        ) from error
    about = _metadata(path, content)
    if about is None:
        return tensors, None
    try:
        expected, found = about.pop("hash", None), _seal(about, tensors)
    except RecursionError as error:
        raise ModelError(f"The metadata of {path} is damaged: it is nested too deeply. Fetch it again.") from error
    if expected != found:
        raise ModelError(f"{path} is damaged: expected {expected}, got {found}. Fetch it again.")
    if about.pop("format", None) != _FORMAT:
        raise ModelError(f"Expected a file of format {_FORMAT} in {path}. Use the version that wrote it.")
    return tensors, about


def _seal(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    return hash_bytes(json.dumps(about, sort_keys=True).encode(), hash_tensors(tensors).encode())


def _metadata(path: Path, content: bytes) -> dict[str, Any] | None:
    length = int.from_bytes(content[:8], "little")  # that the header is whole has been seen
    try:
        text = json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(_METADATA)
        return None if text is None else dict(json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"The metadata of {path} is damaged ({error}). Fetch it again.") from error

"""Hashes that name weights."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def hash_tensors(tensors: Mapping[str, Any]) -> str:
    """The SHA-256 of a state dict: names, types, shapes and bits, whatever their order and device."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        if not isinstance(value, Tensor):  # extra state of some layers
            digest.update(f"{name}:{value!r}".encode())
            continue
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def hash_bytes(*contents: bytes) -> str:
    """The SHA-256 of the content of a file, or of several one after the other."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return f"sha256:{digest.hexdigest()}"


def hash_files(*paths: Path) -> str:
    """The SHA-256 of the content of files one after the other, as `hash_bytes` has it, without reading them whole."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def checksums(network: Any) -> tuple[int, ...]:
    """A checksum of every weight and buffer; quick, as it guards against accidents rather than forgery."""
    if not isinstance(network, nn.Module):
        return ()
    tensors = (t.detach().cpu().contiguous() for t in (*network.parameters(), *network.buffers()))
    return tuple(zlib.crc32(one.reshape(-1).view(torch.uint8).numpy()) for one in tensors)

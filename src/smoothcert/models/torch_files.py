"""PyTorch's own files: weights in .pt and .pth, and pickled modules behind a flag."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.errors import ModelError
from smoothcert.files import Limits, read_at_most, zip_fault
from smoothcert.models.architectures import ALIASES, ARCHITECTURES
from smoothcert.models.checkpoints import foreign_weights
from smoothcert.models.classifier import Classifier
from smoothcert.models.hashes import hash_tensors
from smoothcert.models.naming import MatchBy

UNSAFE = (
    "Loading it would run code from the file. If you trust whoever made it, allow that with --unsafe-load (unsafe=True)"
)
_TAR_MAGIC_AT = 257
_UNPACKED = Limits(ratio=10)  # torch compresses code, but no weights
_NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights
# The research code of Cohen et al. 2019 normalises before its networks, by numbers that its checkpoints leave out.
_PAPER_NORMALIZATION = {
    "cifar_resnet20": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar_resnet110": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "resnet50": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def read_whole(path: Path) -> bytes:
    """The file's content; for a zip archive, as torch writes, after each member has met its checksum."""
    content = read_at_most(path, None, ModelError)
    if not content:
        raise ModelError(f"Expected a model in {path}, got an empty file.")
    if content[_TAR_MAGIC_AT:].startswith(b"ustar"):
        raise ModelError(f"{path} is a tar archive. Unpack it, and name the model in it.")
    if content.startswith(b"PK"):
        check_archive(path, content, _UNPACKED)
    return content


def check_archive(path: Path, content: bytes, limits: Limits) -> None:
    """Raise ModelError unless the zip archive `content`, from the file `path`, is whole and unpacks within limits."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            fault = zip_fault(archive, len(content), limits)
            broken = archive.testzip() if fault is None else None
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise ModelError(f"{path} is truncated or damaged ({error}). Fetch it again.") from error
    if fault is not None:
        raise ModelError(f"Expected a model as torch writes it in {path}, got an archive that is none: {fault}.")
    if broken is not None:
        raise ModelError(f"{path} is damaged: {broken} in it does not have its checksum. Fetch it again.")


def load_torch_file(
    path: Path,
    *,
    arch: str | None,
    num_classes: int | None,
    input_shape: tuple[int, ...] | None,
    match_by: MatchBy = "name",
    unsafe: bool,
) -> Classifier:
    """Weights for one of our architectures or, if `unsafe`, a pickled module."""
    content = read_whole(path)
    if _is_torchscript(content):
        raise ModelError(
            f"{path} is a TorchScript module, which is not supported. Export the model with torch.export.save (.pt2) "
            "or torch.onnx.export (.onnx) instead."
        )
    found = _unpickled(path, content, unsafe)
    if isinstance(found, nn.Module):
        return Classifier(
            network=found.eval(), source=str(path), kind="module", weights_hash=hash_tensors(found.state_dict())
        )
    weights, named = _weights_in(found, path)
    architecture = arch or named
    if architecture is None:
        raise ModelError(f"{path} holds weights but not of which network. Name it, with --arch or arch=…")
    loaded = foreign_weights(
        weights, architecture, path, num_classes=num_classes, input_shape=input_shape, match_by=match_by
    )
    if named in _PAPER_NORMALIZATION:
        return loaded.normalized(*_PAPER_NORMALIZATION[named])
    return loaded


def _is_torchscript(content: bytes) -> bool:
    if not content.startswith(b"PK"):
        return False
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _unpickled(path: Path, content: bytes, unsafe: bool) -> Any:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = _wanted(error)
        if wanted is None:
            raise _not_loaded(path, error) from error
        if not unsafe:
            raise ModelError(f"{path} is a pickle that needs more than tensors: {wanted}. {UNSAFE}.") from error
    except Exception as error:  # bytes that are no pickle make torch's reader fail in any way, MemoryError included
        raise _not_loaded(path, error) from error
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    except Exception as error:  # whatever the code in the file does
        raise _not_loaded(path, error) from error


def _not_loaded(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"Expected a file of torch.save in {path}, got one that cannot be read ({type(error).__name__}: "
        f"{first_line(error)}). It may be truncated or of another kind."
    )


def _wanted(error: Exception) -> str | None:
    """What the pickle asks for beyond tensors, from torch's long message; None if it is no sound pickle at all."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return None if found is None else found[1]


def first_line(error: BaseException) -> str:
    """The first line of an error's message, and of a long one its beginning."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _weights_in(found: Any, path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The tensors in what was unpickled, and the architecture if it is named there and one of ours."""
    named = found.get("arch") if isinstance(found, Mapping) else None
    for key in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"Expected weights by name in {path}, got {type(found).__name__}. Save model.state_dict().")
    known = isinstance(named, str) and (named in ARCHITECTURES or named in ALIASES)
    return {str(name): tensor for name, tensor in found.items()}, named if known else None

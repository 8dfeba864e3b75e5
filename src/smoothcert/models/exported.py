"""Programs of torch.export in .pt2 archives.

torch.export.load trusts its file: it unpickles what is not a plain tensor, evaluates the expressions of symbolic shapes
and looks up any attribute of torch as an operator. So an archive is first searched for anything beyond tensors, the
operators of ATen and arithmetic on sizes; what has more is refused, unless it is declared to be trusted.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from smoothcert.errors import ModelError
from smoothcert.files import Limits
from smoothcert.models.classifier import Classifier, Foreign
from smoothcert.models.hashes import hash_bytes
from smoothcert.models.torch_files import UNSAFE, check_archive, first_line, read_whole

_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|torchvision)\.\w+(\.\w+)?"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_)"
)
_NAMES = re.compile(r"[A-Za-z_]\w*")
_SIZES = re.compile(r"[su]\d+|L|size|args")
_FUNCTIONS = frozenset(
    [
        "Symbol",
        "Integer",
        "positive",
        "integer",
        "nonnegative",
        "True",
        "False",
        "Mod",
        "PythonMod",
        "Max",
        "Min",
        "FloorDiv",
        "CeilDiv",
        "CleanDiv",
        "Eq",
        "Ne",
        "Lt",
        "Le",
        "Gt",
        "Ge",
        "And",
        "Or",
        "Not",
        "Add",
        "Mul",
        "Pow",
        "IntTrueDiv",
        "FloatTrueDiv",
        "floor",
        "ceiling",
        "and",
        "or",
        "not",
        "math",
    ]
)
_MOST_POWERS = 4
# Exponents are single digits, and a power is not the exponent of another one.
_SMALL_POWERS = re.compile(
    r"(?:(?!\*\*|Pow).|\*\*\s*\d(?![\w.]|\s*\*\*)|Pow\(Symbol\('\w+'[^()]*\), Integer\(\d\)\))*", re.DOTALL
)
_NOT_COMPRESSED = Limits(ratio=1, harmless=0)  # archives within the archive, of which there may be many
_PUNCTUATION = re.compile(r"[\w\s+\-*/%()<>=!,.&|~\[\]']*")


def load_exported(path: Path, *, unsafe: bool) -> Classifier:
    """A program that torch.export.save wrote; a program for one batch size is fed batches of that size."""
    content = read_whole(path)
    if not content.startswith(b"PK"):
        raise ModelError(f"Expected an archive of torch.export.save in {path}, got something else.")
    if not unsafe:
        _refuse_code(path, content)
    try:
        with _silent("torch.export"):
            program = torch.export.load(io.BytesIO(content))
        module = program.module()
        shape = _input_shape(program)
    except Exception as error:  # torch raises many kinds here, down to bare AssertionError
        raise ModelError(
            f"Expected a program of torch.export with one image batch as its input in {path}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    fixed = shape[0] if isinstance(shape[0], int) else None
    device = next((tensor.device for tensor in program.state_dict.values()), torch.device("cpu"))
    return Classifier(
        network=Foreign(module, thread_safe=True, device=device, batch_size=fixed),
        source=str(path),
        kind="torch.export",
        weights_hash=hash_bytes(content),
        input_shape=tuple(shape[1:]) if all(isinstance(side, int) for side in shape[1:]) else None,
        notes=() if fixed is None else (f"the program takes batches of {fixed} only: it is fed such",),
    )


class _silent:  # noqa: N801 - a context manager, used like a function
    """Keeps a library's warnings from the terminal where their cause is reported as an error anyway."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def __enter__(self) -> None:
        self._log.disabled = True

    def __exit__(self, *_: object) -> None:
        self._log.disabled = False


def _input_shape(program: Any) -> list[int | Any]:
    [name] = program.graph_signature.user_inputs
    [node] = [node for node in program.graph.nodes if node.op == "placeholder" and node.name == name]
    return list(node.meta["val"].shape)


def _refuse_code(path: Path, content: bytes) -> None:
    """Raise ModelError if loading or running the archive could do more than compute with tensors."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickled: set[str] = set()
    for name, data in members.items():
        if name.endswith(".json"):
            pickled |= _check_json(path, name, data)
    for name, data in members.items():
        base = name.rsplit("/", 1)[-1]
        if base.startswith(("custom_obj", "opaque_obj")):
            raise ModelError(f"{path} holds an object that is not a tensor ({base}). {UNSAFE}.")
        if base.endswith(".so") or "/aotinductor/" in name:
            raise ModelError(f"{path} holds compiled code ({base}). {UNSAFE}.")
        if data and (base.endswith(".pt") or base in pickled):
            _check_pickle(path, base, data)


def _check_pickle(path: Path, name: str, data: bytes) -> None:
    if data.startswith(b"PK"):
        check_archive(path, data, _NOT_COMPRESSED)
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # after any error, torch.export would go on to the unsafe way
        raise ModelError(f"{path} holds a pickle that needs more than tensors ({name}). {UNSAFE}.") from error


def _check_json(path: Path, name: str, data: bytes) -> set[str]:
    """Check the operators and expressions of a program; return the members that torch would unpickle."""
    try:
        program = json.loads(data)
        for key, value in _strings(program):
            if key == "target" and not _OPERATORS.fullmatch(value):
                raise ModelError(f"{path} calls {value[:80]!r}, which is not an operator of ATen. {UNSAFE}.")
            if key in ("expr_str", "guards_code") and not _is_arithmetic(value):
                raise ModelError(f"{path} evaluates {value[:80]!r}, which is more than arithmetic on sizes. {UNSAFE}.")
        payloads = program.get("config", {}).values() if isinstance(program, dict) else ()
        return {str(entry["path_name"]) for entry in payloads if entry.get("use_pickle")}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged: {name} in it is not the JSON of a program.") from error


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with the key that it, or the list it is in, stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, name)


def _is_arithmetic(text: str) -> bool:
    """True for arithmetic on sizes that ends soon: a tower of powers such as 9**9**9 would not."""
    if text.count("**") + text.count("Pow") > _MOST_POWERS or not _SMALL_POWERS.fullmatch(text):
        return False
    return _PUNCTUATION.fullmatch(text) is not None and all(
        name in _FUNCTIONS or _SIZES.fullmatch(name) for name in _NAMES.findall(text)
    )

"""Models that are Python objects: modules, functions, estimators, and factories of these."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from smoothcert.errors import ModelError
from smoothcert.models.classifier import AS_GIVEN, Classifier, Foreign, affine_words
from smoothcert.models.estimators import from_estimator, is_estimator
from smoothcert.models.hashes import hash_tensors
from smoothcert.models.layers import Normalize
from smoothcert.user_files import import_file


def load_object(spec: str) -> Classifier:
    """What `package.module:name` or `file.py:name` names: a model, or a function of no arguments that makes one."""
    place, _, name = spec.rpartition(":")
    if place.endswith(".py"):
        return _made(_module(place, spec), place, name, spec)
    with _working_folder_importable():  # a factory may import more
        return _made(_module(place, spec), place, name, spec)


def _made(found: Any, place: str, name: str, spec: str) -> Classifier:
    """The model called `name` in a module, made first if it is a factory."""
    for part in name.split("."):
        if not hasattr(found, part):
            raise ModelError(f"Expected {part!r} in {place}, which has no such name.")
        found = getattr(found, part)
    if _is_factory(found):
        try:
            found = found()
        except Exception as error:
            raise ModelError(f"{spec} failed to make a model: {type(error).__name__}: {error}.") from error
    return from_object(found, spec)


def from_object(value: Any, source: str | None = None) -> Classifier:
    """Any model as a Classifier: one already, a module, an estimator, or a function of a batch."""
    source = source or f"{type(value).__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, Classifier):
        return value
    if isinstance(value, nn.Module):
        return Classifier(
            network=value,
            source=source,
            kind="module",
            normalization=_first_layer(value),
            weights_hash=hash_tensors(value.state_dict()),
        )
    if is_estimator(value):
        return from_estimator(value, source)
    if callable(value):
        return Classifier(network=Foreign(value), source=source, kind="function")
    raise ModelError(
        f"Expected {source} to be a module, a function of a batch, an estimator or a factory of one, got "
        f"{type(value).__name__}."
    )


def _first_layer(module: nn.Module) -> str:
    """What can be seen of a module's normalisation: a layer of ours at its front."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    if isinstance(module, Normalize):
        return (
            f"the network's first layer: {affine_words(module.mean.flatten().tolist(), module.std.flatten().tolist())}"
        )
    return AS_GIVEN


def _is_factory(value: Any) -> bool:
    """A class, or a function that needs no argument; what needs one is taken for the classifier itself."""
    if isinstance(value, nn.Module | Classifier) or is_estimator(value) or not callable(value):
        return False
    return isinstance(value, type) or not _required(value)


def _required(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


def _module(place: str, spec: str) -> Any:
    try:
        if place.endswith(".py"):
            return import_file(Path(place))
        return import_module(place)
    except Exception as error:  # whatever the user's code raises while it is imported
        raise ModelError(f"Cannot import {place!r} for {spec!r}: {type(error).__name__}: {error}.") from error


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """Find packages in the working folder, where users keep their own code, as `python -m` would."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:  # the user's code may have changed the path too
            sys.path.remove(here)

"""Weights from a file into a network, matched by name.

Order and shapes alone do not tell which tensor belongs where: a network that declares two norms of the same width in
another order would load without an error and compute something else. So they count only if the user asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smoothcert.errors import ModelError
from smoothcert.models.naming import NamingScheme

_SHOWN = 4
# How many batches a norm has seen. It matters only to further training, and torch wrote none before version 0.4.1.
_COUNTER = ".num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Match:
    """Weights under the names of the network they are for, and what a user should know about how they were matched."""

    weights: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load `weights` into `network` by name; ModelError if they do not fit."""
    names = list(network.state_dict())
    match = match_by_name(names, weights)
    if match is None:
        raise ModelError(describe_mismatch(names, weights, source))
    fill(network, match.weights, source)


def match_by_name(
    names: Sequence[str], weights: Mapping[str, Tensor], schemes: Sequence[NamingScheme] = ()
) -> Match | None:
    """Match weights by the network's own `names` or those of one of the `schemes`; None if neither fits.

    Prefixes that wrappers such as DataParallel put in front of every name ("module.", "1.") are dropped.
    """
    for unwrapped in _unwrapped(weights):
        if _same(names, unwrapped):
            return Match(unwrapped)
        for scheme in schemes:
            theirs = {name: scheme.translate(name) for name in names}
            if _same(theirs.values(), unwrapped):
                ours = {name: unwrapped[other] for name, other in theirs.items() if other in unwrapped}
                return Match(ours, (f"parameter names were translated from those of {scheme.code}",))
    return None


def match_by_order(names: Sequence[str], weights: Mapping[str, Tensor]) -> Match | None:
    """Match the k-th tensor with the k-th name; None if their numbers differ."""
    if len(weights) != len(names):
        names = [name for name in names if not name.endswith(_COUNTER)]
    if len(weights) != len(names):
        return None
    note = "weights were matched by their order, as asked for, not by name: check the accuracy before you rely on it"
    return Match(dict(zip(names, weights.values(), strict=True)), (note,))


def fill(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy matched weights into `network`; ModelError for a tensor of another shape."""
    expected = network.state_dict()
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"Expected {name} of shape {tuple(expected[name].shape)} in {source}, got {tuple(tensor.shape)}."
            )
    network.load_state_dict({**expected, **weights})


def count_values(network: nn.Module) -> int:
    """How many values a file must hold to fill `network`, which may be on the meta device."""
    return sum(tensor.numel() for name, tensor in network.state_dict().items() if not name.endswith(_COUNTER))


def check_enough(values: int, weights: Mapping[str, Tensor], source: str) -> None:
    """Raise ModelError unless the file holds as many as `values` values; to be called before a network is built.

    A few bytes of metadata, or a tensor that repeats one number, can describe a network that no machine has memory for.
    """
    storages = {}
    for name, tensor in weights.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ModelError(f"Expected plain tensors in {source}, got {name}: {tensor.layout} on {tensor.device}.")
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
    found = sum(storages.values())
    if values > found:
        raise ModelError(
            f"The weights in {source} are not those of this architecture: it needs {values:,} values, got {found:,}."
        )


def describe_mismatch(
    names: Sequence[str], weights: Mapping[str, Tensor], source: str, schemes: Sequence[NamingScheme] = ()
) -> str:
    """Say which names are missing and which are unexpected, in the scheme that comes nearest."""
    candidates = [set(names), *({scheme.translate(name) for name in names} for scheme in schemes)]
    pairs = [(expected, set(found)) for found in _unwrapped(weights) for expected in candidates]
    expected, found = max(pairs, key=lambda pair: len(pair[0] & pair[1]))
    missing = sorted(name for name in expected - found if not name.endswith(_COUNTER))
    return (
        f"The weights in {source} are not those of this architecture: {_listed('missing', missing)}; "
        f"{_listed('unexpected', sorted(found - expected))}."
    )


def _unwrapped(weights: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """The weights as they are, then without the first part of their names as long as all have the same one."""
    while True:
        yield weights
        heads = {name.partition(".")[0] for name in weights}
        if len(heads) != 1 or not all(name.partition(".")[2] for name in weights):
            return
        weights = {name.partition(".")[2]: tensor for name, tensor in weights.items()}


def _same(expected: Iterable[str], found: Mapping[str, Tensor]) -> bool:
    """True if the names are the same, apart from counters that the file may lack."""
    differing = set(expected) ^ set(found)
    return all(name.endswith(_COUNTER) and name not in found for name in differing)


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return f"nothing {what}"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"

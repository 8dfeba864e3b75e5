"""Weights into a network whose parameters may have other names than the file's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from smoothcert.errors import ModelError

_SHOWN = 4


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> tuple[str, ...]:
    """Load `weights` into `network` by name, else by order; return notes on how. ModelError if they do not fit.

    Prefixes that wrappers leave behind ("module.", "1.") are dropped. Where names differ otherwise, the tensors must
    have just the shapes of the network's, one after the other: the same architecture in another's words.
    """
    expected = network.state_dict()
    found = _without_prefix(weights, set(expected))
    if set(found) == set(expected):
        _check_shapes(expected, found, source)
        network.load_state_dict(found)
        return ()
    if _in_order(expected, found):
        network.load_state_dict(dict(zip(expected, found.values(), strict=True)))
        return ("weights were matched by order and shape, as their names are another code's",)
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    raise ModelError(
        f"The weights in {source} are not those of this architecture: {_listed('missing', missing)}; "
        f"{_listed('not expected', extra)}."
    )


def _without_prefix(weights: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The weights without what DataParallel or a wrapping Sequential put before every name."""
    found = dict(weights)
    while found and not names & set(found):
        heads = {name.split(".", 1)[0] for name in found}
        if len(heads) > 1 or any("." not in name for name in found):
            break
        found = {name.split(".", 1)[1]: tensor for name, tensor in found.items()}
    return found


def _check_shapes(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> None:
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise ModelError(
                f"Expected {name} of shape {tuple(tensor.shape)} in {source}, got {tuple(found[name].shape)}."
            )


def _in_order(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> bool:
    return [t.shape for t in expected.values()] == [t.shape for t in found.values()]


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return f"nothing {what}"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"

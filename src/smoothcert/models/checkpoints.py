"""Trained networks of ours on disk: weights in safetensors, with everything needed to rebuild the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.errors import LAST_WITH_RETIRED_PARTS, ModelError, SmoothcertError
from smoothcert.models.architectures import ALIASES, ARCHITECTURES, build, outline
from smoothcert.models.classifier import AS_GIVEN, Classifier, affine_words
from smoothcert.models.hashes import hash_bytes, hash_tensors
from smoothcert.models.layers import Normalize
from smoothcert.models.naming import SCHEMES, MatchBy
from smoothcert.models.sealed import read_safetensors, write_sealed
from smoothcert.models.weights import (
    check_enough,
    count_values,
    describe_mismatch,
    fill,
    load_weights,
    match_by_name,
    match_by_order,
)

WEIGHTS_FILE = "model.safetensors"  # in a training run's directory
_NOT_DESIGN = ("seed", "result", "device", "compile")
_ORDER_HINT = (
    " The file holds as many tensors, under names of a scheme that we do not know. Rename them; or, if they are in the "
    "order in which this architecture declares its own, load them with --match-weights order (match_weights='order')."
)


def _built(architecture: str, num_classes: int, input_shape: tuple[int, ...] | None) -> nn.Module:
    """The network with weights that will be replaced; drawing them leaves the caller's random state alone."""
    with torch.random.fork_rng(devices=[]):
        return build(architecture, classes=num_classes, input_shape=input_shape)


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How a network is built and how it came about: what a checkpoint says beside its weights."""

    architecture: str
    num_classes: int
    input_shape: tuple[int, ...]
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    sigma: float | None = None
    data: str | None = None
    training: dict[str, Any] = field(default_factory=dict)

    def network(self) -> nn.Module:
        """The network without its weights, behind its normalisation if it has one."""
        network = _built(self.architecture, self.num_classes, self.input_shape)
        if self.mean is not None and self.std is not None:
            network = nn.Sequential(Normalize(self.mean, self.std), network)
        return network

    def count_values(self) -> int:
        """How many values the weights of the network are, at least; the network itself is not built."""
        return count_values(outline(self.architecture, classes=self.num_classes, input_shape=self.input_shape))

    @property
    def recipe(self) -> str | None:
        """The name of the recipe that the network was trained by, if it is known."""
        recipe = self.training.get("recipe")
        return recipe.get("name") if isinstance(recipe, dict) else recipe

    @property
    def design(self) -> str | None:
        """A hash of the architecture, data and training but for its seed and what came of it; None if not trained."""
        if not self.training:
            return None
        settings = {name: value for name, value in self.training.items() if name not in _NOT_DESIGN}
        # None stands where version 0.1 had the number of projected directions: designs keep their hashes.
        parts = [self.architecture, self.num_classes, self.input_shape, None, self.data, settings]
        return hash_bytes(json.dumps(parts, sort_keys=True).encode())

    @property
    def normalization(self) -> str:
        """Where pixels are brought to the network's own scale."""
        if self.mean is None or self.std is None:
            return AS_GIVEN.replace("declared", "needed")
        return f"the network's first layer: {affine_words(self.mean, self.std)}"


def save_checkpoint(path: Path, network: nn.Module, blueprint: Blueprint) -> None:
    """Write the weights of `network`, which `blueprint.network()` could have made, and that; all or nothing."""
    weights = network.state_dict()
    load_weights(blueprint.network(), weights, str(path))  # what does not fit fails here rather than when it is needed
    write_sealed(path, weights, asdict(blueprint))


def load_checkpoint(
    path: Path,
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    match_by: MatchBy = "name",
) -> Classifier:
    """A network from a .safetensors file: one that smoothcert wrote, or any other if its `architecture` is given."""
    weights, about = read_safetensors(path)
    if about is None:
        if architecture is None:
            raise ModelError(
                f"{path} holds weights but not of which network: it was not written by smoothcert. Name its "
                "architecture, with --arch or arch=…"
            )
        if match_by == "order":
            raise ModelError(
                f"{path} does not keep the order in which tensors were declared, as no safetensors file does. Rename "
                "them, or save them with torch.save."
            )
        return foreign_weights(
            weights, architecture, path, num_classes=num_classes, input_shape=input_shape, match_by=None
        )
    blueprint = _blueprint(path, about, weights)
    if architecture not in (None, blueprint.architecture):
        raise ModelError(f"{path} holds a network of architecture {blueprint.architecture!r}, not {architecture!r}.")
    network = blueprint.network()
    load_weights(network, weights, str(path))
    return Classifier(
        network=network.eval(),
        source=str(path),
        kind="checkpoint",
        normalization=blueprint.normalization,
        weights_hash=hash_tensors(weights),
        input_shape=blueprint.input_shape,
        num_classes=blueprint.num_classes,
        classes=blueprint.classes,
        sigma=blueprint.sigma,
        recipe=blueprint.recipe,
        design=blueprint.design,
    )


def read_blueprint(path: Path) -> Blueprint:
    """What a checkpoint of ours says beside its weights."""
    weights, about = read_safetensors(path)
    if about is None:
        raise ModelError(f"Expected a checkpoint written by smoothcert, got {path} without our metadata.")
    return _blueprint(path, about, weights)


def foreign_weights(
    weights: Mapping[str, Tensor],
    architecture: str,
    path: Path,
    *,
    num_classes: int | None,
    input_shape: tuple[int, ...] | None,
    match_by: MatchBy | None = "name",
) -> Classifier:
    """A network of a named architecture with weights from other code.

    Weights are matched by name: ours, or those of a known naming scheme. With `match_by` "order", the k-th tensor of
    the file is taken for the k-th of the network where no names fit; None says that the file has no such order.
    """
    source, known = str(path), ALIASES.get(architecture, architecture)
    schemes = SCHEMES.get(known, ())
    names = list(_built(architecture, 2, None).state_dict())
    match = match_by_name(names, weights, schemes)
    if match is None and match_by == "order":
        match = match_by_order(names, weights)
    if match is None:
        hint = _ORDER_HINT if match_by == "name" and match_by_order(names, weights) is not None else ""
        raise ModelError(describe_mismatch(names, weights, source, schemes) + hint)
    last = match.weights.get(names[-1])
    if num_classes is None and (last is None or last.ndim == 0 or len(last) < 2):
        raise ModelError(f"Cannot tell from {path} how many classes there are: give num_classes.")
    classes = num_classes or len(last)
    check_enough(count_values(outline(architecture, classes=classes, input_shape=input_shape)), match.weights, source)
    network = _built(architecture, classes, input_shape)
    fill(network, match.weights, source)
    return Classifier(
        network=network.eval(),
        source=source,
        kind="weights",
        weights_hash=hash_tensors(weights),
        input_shape=input_shape or ARCHITECTURES[known].input_shape,
        num_classes=classes,
        notes=match.notes,
    )


def _blueprint(path: Path, about: dict[str, Any], weights: Mapping[str, Tensor]) -> Blueprint:
    """What the metadata describes: a network that the weights of the same file can fill."""
    known = {one.name for one in fields(Blueprint)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    if given.pop("directions", None) is not None:
        raise ModelError(
            f"{path} holds a network behind a projection of its inputs (`--directions`), which this version does not "
            f"have. Load it with {LAST_WITH_RETIRED_PARTS}."
        )
    try:
        if set(given) - known:
            raise TypeError(f"unknown {', '.join(sorted(set(given) - known))}")
        blueprint = Blueprint(**given)
        check_enough(blueprint.count_values(), weights, str(path))
        blueprint.network()
    except (TypeError, ValueError, SmoothcertError) as error:
        raise ModelError(f"The metadata of {path} does not describe a network ({str(error)[:300]}).") from error
    return blueprint

"""Trained networks of ours on disk: weights in safetensors, with everything needed to rebuild the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.errors import ConfigError, ModelError, SmoothcertError
from smoothcert.models.architectures import ALIASES, ARCHITECTURES, build
from smoothcert.models.classifier import AS_GIVEN, Classifier, affine_words
from smoothcert.models.hashes import hash_tensors
from smoothcert.models.layers import Normalize, Projected, front_projection
from smoothcert.models.sealed import read_safetensors, write_sealed
from smoothcert.models.weights import load_weights

WEIGHTS_FILE = "model.safetensors"  # in a training run's directory


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
    directions: int | None = None
    """On how many directions inputs are projected, if they are; the weights say which."""
    sigma: float | None = None
    data: str | None = None
    training: dict[str, Any] = field(default_factory=dict)

    def network(self) -> nn.Module:
        """The network without its weights, behind its normalisation and its projection if it has them."""
        network = _built(self.architecture, self.num_classes, self.input_shape)
        if self.mean is not None and self.std is not None:
            network = nn.Sequential(Normalize(self.mean, self.std), network)
        if self.directions is not None:
            some = torch.eye(self.directions, prod(self.input_shape)).unflatten(1, self.input_shape)
            network = nn.Sequential(Projected(some), network)
        return network

    @property
    def recipe(self) -> str | None:
        """The name of the recipe that the network was trained by, if it is known."""
        recipe = self.training.get("recipe")
        return recipe.get("name") if isinstance(recipe, dict) else recipe

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
) -> Classifier:
    """A network from a .safetensors file: of ours, or any other if its `architecture` is given."""
    weights, about = read_safetensors(path)
    if about is None:
        if architecture is None:
            raise ModelError(
                f"{path} holds weights but not of which network: it was not written by smoothcert. Name its "
                "architecture, with --arch or arch=…"
            )
        return foreign_weights(weights, architecture, path, num_classes=num_classes, input_shape=input_shape)
    blueprint = _blueprint(path, about)
    if architecture not in (None, blueprint.architecture):
        raise ModelError(f"{path} holds a network of architecture {blueprint.architecture!r}, not {architecture!r}.")
    network = blueprint.network()
    load_weights(network, weights, str(path))
    projection = front_projection(network)
    notes: tuple[str, ...] = ()
    if projection is not None:
        notes = (f"sees inputs projected on {projection.count} directions: noise is added to these coordinates",)
        try:
            projection.check()
        except ConfigError as error:
            raise ModelError(f"{path} is damaged: {error}") from error
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
        notes=notes,
    )


def read_blueprint(path: Path) -> Blueprint:
    """What a checkpoint of ours says beside its weights."""
    _, about = read_safetensors(path)
    if about is None:
        raise ModelError(f"Expected a checkpoint written by smoothcert, got {path} without our metadata.")
    return _blueprint(path, about)


def foreign_weights(
    weights: Mapping[str, Tensor],
    architecture: str,
    path: Path,
    *,
    num_classes: int | None,
    input_shape: tuple[int, ...] | None,
) -> Classifier:
    """A network of a named architecture with weights from elsewhere."""
    network = _built(architecture, num_classes or _classes_in(weights, architecture, path), input_shape)
    notes = load_weights(network, weights, str(path))
    return Classifier(
        network=network.eval(),
        source=str(path),
        kind="weights",
        weights_hash=hash_tensors(weights),
        input_shape=input_shape or ARCHITECTURES[ALIASES.get(architecture, architecture)].input_shape,
        num_classes=num_classes or len(list(network.state_dict().values())[-1]),
        notes=notes,
    )


def _classes_in(weights: Mapping[str, Tensor], architecture: str, path: Path) -> int:
    """The number of classes: the length of the last layer's bias, by its name or, in another's words, by its place."""
    last = list(_built(architecture, 2, None).state_dict())[-1]
    bias = [tensor for name, tensor in weights.items() if f".{name}".endswith(f".{last}")] or list(weights.values())[
        -1:
    ]
    if len(bias) != 1 or bias[0].ndim != 1 or len(bias[0]) < 2:
        raise ModelError(f"Cannot tell from {path} how many classes there are: give num_classes.")
    return len(bias[0])


def _blueprint(path: Path, about: dict[str, Any]) -> Blueprint:
    known = {one.name for one in fields(Blueprint)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    try:
        if set(given) - known:
            raise TypeError(f"unknown {', '.join(sorted(set(given) - known))}")
        blueprint = Blueprint(**given)
        blueprint.network()
    except (TypeError, ValueError, SmoothcertError) as error:
        raise ModelError(f"The metadata of {path} does not describe a network ({error}).") from error
    return blueprint

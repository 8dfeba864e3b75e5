"""A module read as a network of known operations, by tracing it: what bounds of any kind start from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from smoothcert.baselines.operations import (
    Conv,
    Input,
    Linear,
    MaxPool,
    Operation,
    Relu,
    Reshape,
    Scale,
    Shape,
    Sorting,
    Sum,
    average_pool,
    batch_norm,
)
from smoothcert.errors import ModelError
from smoothcert.models.contract import evaluating
from smoothcert.models.layers import Normalize, Projected

SUPPORTED = (
    "linear and convolutional layers, batch norm in eval mode, ReLU, average and max-pooling, flatten, sums, "
    "normalisation, dropout and group sort"
)


@dataclass(frozen=True, eq=False)
class Node:
    """An operation, the places of the nodes whose values it takes, and the shape of its own, without the batch."""

    operation: Operation
    inputs: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes in an order in which they can be computed: the input is the first, the scores [K] are the last."""

    nodes: tuple[Node, ...]

    def values(self, x: Tensor) -> list[Tensor]:
        """The values of all nodes for a batch x [B, *D]."""
        found: list[Tensor] = []
        for node in self.nodes:
            found.append(node.operation(*(found[i] for i in node.inputs)) if node.inputs else node.operation(x))
        return found

    def __call__(self, x: Tensor) -> Tensor:
        """The scores [B, K] of a batch x [B, *D]."""
        return self.values(x)[-1]


def read_network(model: Any, shape: Shape) -> Network:
    """The network that `model` is in eval mode, for inputs of `shape`; ModelError for what is not supported.

    Its operations hold the model's own parameters. The result is held against the model on random inputs.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"Bounds of a network need its layers, as a torch module; got {type(model).__name__}.")
    builder = _Builder(shape, _example(model, shape))
    single = isinstance(model, tuple(_MODULES))  # which is seen as a layer only from outside
    with evaluating(model):
        builder.read(nn.Sequential(model) if single else model)
        network = Network(tuple(builder.nodes))
        _compare(model, network, builder.example)
    return network


def _example(model: nn.Module, shape: Shape) -> Tensor:
    """Two inputs between 0 and 1, spread evenly, where and as the parameters are."""
    like = next((one for one in model.parameters()), torch.zeros(()))
    numbers = torch.linspace(0, 1, 2 * int(torch.Size(shape).numel()))
    return numbers[torch.arange(len(numbers)) * 7919 % len(numbers)].view(2, *shape).to(like)


@torch.no_grad()
def _compare(model: nn.Module, network: Network, example: Tensor) -> None:
    own, read = model(example), network(example)
    digits = {"rtol": 1e-9, "atol": 1e-9} if own.dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    if own.ndim != 2 or own.shape != read.shape or not torch.allclose(own, read, **digits):
        raise ModelError("The network was not read as it computes: its scores differ from the model's.")


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize | Projected) or super().is_leaf_module(m, module_qualified_name) or _sorts(m)


def _sorts(module: nn.Module) -> bool:
    """True for deel-torchlip's sorting activations, which is not imported for it."""
    return type(module).__module__.startswith("deel.torchlip") and type(module).__name__ in _SORTS


_SORTS = ("GroupSort", "GroupSort2", "FullSort")


class _Place(int):
    """The place of a node, as an argument: not a number that the module computes with."""


class _Builder:
    """Nodes, appended one after the other while a traced module is gone through."""

    def __init__(self, shape: Shape, example: Tensor) -> None:
        self.example = example
        self.nodes = [Node(Input(), (), shape)]
        self._values = [example]

    def add(self, operation: Operation, *inputs: int) -> _Place:
        """Append an operation on the nodes at these places; its own place."""
        with torch.no_grad():
            value = operation(*(self._values[i] for i in inputs))
        self._values.append(value)
        self.nodes.append(Node(operation, tuple(int(i) for i in inputs), tuple(value.shape[1:])))
        return _Place(len(self.nodes) - 1)

    def shape(self, place: int) -> Shape:
        """The shape of a node's value."""
        return self.nodes[place].shape

    def read(self, model: nn.Module) -> None:
        """Go through everything that `model` does to its input."""
        try:
            graph = _Tracer().trace(model)
        except Exception as error:
            raise ModelError(
                f"The network could not be followed ({type(error).__name__}: {error}). Supported are {SUPPORTED}."
            ) from error
        modules = dict(model.named_modules())
        places: dict[fx.Node, Any] = {}
        for step in graph.nodes:
            try:
                places[step] = self._step(step, places, modules)
            except RuntimeError as error:
                raise ModelError(f"The network does not take inputs of shape {self.nodes[0].shape}: {error}") from error
            except _UnsupportedError as error:
                raise ModelError(f"{error} cannot be bounded. Supported are {SUPPORTED}.") from None
        if len(self.nodes[-1].shape) != 1:
            raise ModelError(f"Expected scores [B, K] from the network, got values of shape {self.nodes[-1].shape}.")

    def _step(self, step: fx.Node, places: dict[fx.Node, Any], modules: Mapping[str, nn.Module]) -> Any:
        arguments = [places[a] if isinstance(a, fx.Node) else a for a in step.args]
        settings = {name: places[a] if isinstance(a, fx.Node) else a for name, a in step.kwargs.items()}
        if step.op == "placeholder":
            return _Place(0)
        if step.op == "output":
            if arguments != [len(self.nodes) - 1]:
                raise _UnsupportedError("An output that is not what was computed last")
            return None
        if step.op == "call_module":
            return self._module(modules[str(step.target)], str(step.target), arguments[0])
        name = step.target if isinstance(step.target, str) else getattr(step.target, "__name__", str(step.target))
        if step.op not in ("call_function", "call_method") or name not in _FUNCTIONS:
            raise _UnsupportedError(f"The operation {name!r}")
        return _FUNCTIONS[name](self, *arguments, **settings)

    def _module(self, module: nn.Module, name: str, place: int) -> int:
        for kind, read in _MODULES.items():
            if isinstance(module, kind):
                return read(self, module, place)
        if _sorts(module):
            return self.add(Sorting(module), place)
        raise _UnsupportedError(f"The layer {name!r}, {type(module).__name__},")


class _UnsupportedError(Exception):
    pass


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _linear(builder: _Builder, module: nn.Linear, place: int) -> int:
    return builder.add(Linear(module.weight, module.bias), place)


def _conv(builder: _Builder, module: nn.Conv2d, place: int) -> int:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise _UnsupportedError(f"Padding {module.padding_mode!r}, {module.padding!r}")
    padding, dilation = _pair(module.padding), _pair(module.dilation)
    convolution = Conv(module.weight, module.bias, _pair(module.stride), padding, dilation, module.groups)
    return builder.add(convolution, place)


def _batch_norm(builder: _Builder, module: nn.BatchNorm1d | nn.BatchNorm2d, place: int) -> int:
    if module.running_mean is None:
        raise _UnsupportedError("Batch norm without running statistics")
    return builder.add(batch_norm(module, len(builder.shape(place))), place)


def _normalize(builder: _Builder, module: Normalize, place: int) -> int:
    return builder.add(Scale(1 / module.std, -module.mean / module.std), place)


def _projected(builder: _Builder, module: Projected, place: int) -> int:
    shape, flat = builder.shape(place), module.directions.flatten(1).to(builder.example.dtype)
    coordinates = builder.add(Linear(flat, None), builder.add(Reshape((flat.shape[1],)), place))
    return builder.add(Reshape(shape), builder.add(Linear(flat.T, None), coordinates))


def _relu(builder: _Builder, place: int, inplace: bool = False) -> int:  # noqa: ARG001 - the same either way
    return builder.add(Relu(), place)


def _flatten(builder: _Builder, place: int, start_dim: int = 0, end_dim: int = -1) -> int:
    if (start_dim, end_dim) != (1, -1):
        raise _UnsupportedError("Flattening of other dimensions than those of one input")
    return builder.add(Reshape((int(torch.Size(builder.shape(place)).numel()),)), place)


def _add(builder: _Builder, first: Any, second: Any, alpha: Any = 1) -> int:
    if not (isinstance(first, _Place) and isinstance(second, _Place)):
        raise _UnsupportedError("A sum with a number")
    if alpha != 1:
        raise _UnsupportedError("A weighted sum (alpha)")
    if builder.shape(first) != builder.shape(second):
        raise _UnsupportedError("A sum of different shapes")
    return builder.add(Sum(), first, second)


def _max_pool(
    builder: _Builder,
    place: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> int:
    if _pair(dilation) != (1, 1) or ceil_mode or return_indices:
        raise _UnsupportedError("Max-pooling with dilation, ceil_mode or indices")
    size = _pair(kernel_size)
    return builder.add(MaxPool(size, _pair(stride) if stride else size, _pair(padding)), place)


def _avg_pool(
    builder: _Builder,
    place: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,  # noqa: ARG001 - makes no difference without padding
    divisor_override: int | None = None,
) -> int:
    if _pair(padding) != (0, 0) or ceil_mode or divisor_override:
        raise _UnsupportedError("Average pooling with padding, ceil_mode or another divisor")
    size = _pair(kernel_size)
    step = _pair(stride) if stride else size
    return builder.add(average_pool(builder.shape(place)[0], size, step, builder.example), place)


def _global_average(builder: _Builder, place: int, output_size: Any = 1) -> int:
    if _pair(output_size) != (1, 1):
        raise _UnsupportedError("Adaptive pooling to more than one value")
    channels, height, width = builder.shape(place)
    return builder.add(average_pool(channels, (height, width), (1, 1), builder.example), place)


def _mean(builder: _Builder, place: int, dim: Any = None, keepdim: bool = False) -> int:
    over = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if len(builder.shape(place)) != 3 or sorted(one % 4 for one in over) != [2, 3]:
        raise _UnsupportedError("A mean over other dimensions than height and width")
    pooled = _global_average(builder, place)
    return pooled if keepdim else builder.add(Reshape(builder.shape(pooled)[:1]), pooled)


def _nothing(_: _Builder, __: nn.Module, place: int) -> int:
    return place


_MODULES: dict[type[nn.Module], Callable[[_Builder, Any, int], int]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm1d: _batch_norm,
    Normalize: _normalize,
    Projected: _projected,
    nn.ReLU: lambda builder, _, place: _relu(builder, place),
    nn.Flatten: lambda builder, module, place: _flatten(builder, place, module.start_dim, module.end_dim),
    nn.MaxPool2d: lambda builder, m, place: _max_pool(
        builder, place, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices
    ),
    nn.AvgPool2d: lambda builder, m, place: _avg_pool(
        builder, place, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    ),
    nn.AdaptiveAvgPool2d: lambda builder, module, place: _global_average(builder, place, module.output_size),
    nn.Identity: _nothing,
    nn.Dropout: _nothing,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    operator.add.__name__: _add,
    operator.iadd.__name__: _add,
    functional.relu.__name__: _relu,
    "relu_": _relu,
    "flatten": _flatten,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    functional.adaptive_avg_pool2d.__name__: _global_average,
    "mean": _mean,
}

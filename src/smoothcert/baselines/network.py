"""A module read as a network of known operations, by tracing it: what bounds of any kind start from.

A traced graph says which operations a module calls, but not what else happens when they are executed: an operation in
place overwrites a tensor that other steps still use, a hook or an autocast context changes values unseen. So every step
is executed as it is read. Values that were overwritten must not be used again, and the module itself must dispatch
the same operations as its steps do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode

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
from smoothcert.models.layers import Normalize

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
    """Nodes in an order in which they can be computed: the input is the first, the scores [K] are the last.

    `dtype` is the precision in which the module computes, whatever precision the operations are kept in.
    """

    nodes: tuple[Node, ...]
    dtype: torch.dtype = torch.float32

    def to(self, dtype: torch.dtype) -> Network:
        """The same network with its parameters in another precision, for computing bounds."""
        return replace(self, nodes=tuple(replace(one, operation=one.operation.to(dtype)) for one in self.nodes))

    def values(self, x: Tensor) -> list[Tensor]:
        """The values of all nodes for a batch x [B, *D]."""
        found: list[Tensor] = []
        for node in self.nodes:
            found.append(node.operation(*(found[i] for i in node.inputs)) if node.inputs else node.operation(x))
        return found

    def __call__(self, x: Tensor) -> Tensor:
        """The scores [B, K] of a batch x [B, *D]."""
        return self.values(x)[-1]


def read_network(model: Any, shape: Shape, *, strict: bool = False) -> Network:
    """The network that `model` is in eval mode, for inputs of `shape`; ModelError for what is not supported.

    Its operations hold the model's own parameters. The result is compared with the model on two inputs. With `strict`,
    which certificates need, hooks and operations that tracing does not show are refused as well.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"Bounds of a network need its layers, as a torch module; got {type(model).__name__}.")
    builder = _Builder(shape, _example(model, shape))
    single = isinstance(model, tuple(_MODULES))  # which is seen as a layer only from outside
    with evaluating(model):
        executed = builder.read(nn.Sequential(model) if single else model)
        network = Network(tuple(builder.nodes), builder.example.dtype)
        dispatched = _compare(model, network, builder.example)
    if strict:
        _refuse_unseen(model, dispatched, executed)
    return network


def _example(model: nn.Module, shape: Shape) -> Tensor:
    """Two inputs between 0 and 1, spread evenly, where and as the parameters are."""
    like = next((one for one in model.parameters()), torch.zeros(()))
    numbers = torch.linspace(0, 1, 2 * int(torch.Size(shape).numel()))
    return numbers[torch.arange(len(numbers)) * 7919 % len(numbers)].view(2, *shape).to(like)


@torch.no_grad()
def _compare(model: nn.Module, network: Network, example: Tensor) -> list[str]:
    """Compare the scores for an example; the names of the operations that the model dispatches for them."""
    copied = _copied(example)
    try:
        with _recording() as operations:
            own = model(copied)
    except RuntimeError as error:
        raise ModelError(f"The network fails on inputs that its layers take, one after the other: {error}") from error
    read = network(example)
    relative, absolute = _TOLERANCES.get(own.dtype, (0.1, 0.1))
    same = own.ndim == 2 and own.shape == read.shape
    if not same or not torch.allclose(own.double(), read.double(), rtol=relative, atol=absolute):
        raise ModelError("The network was not read as it computes: its scores differ from the model's.")
    return operations


def _refuse_unseen(model: nn.Module, dispatched: list[str], executed: list[str]) -> None:
    """Raise ModelError for hooks, and unless the model dispatches the operations that its traced steps execute."""
    for name, module in model.named_modules():
        before = module._forward_pre_hooks.values()
        weights_only = all(isinstance(hook, WeightNorm | SpectralNorm) for hook in before)
        if module._forward_hooks or not weights_only:
            label = f"The layer {name!r}" if name else "The network"
            raise ModelError(
                f"{label} has forward hooks, which may change what it computes. Remove them to certify it."
            )
    if dispatched != executed:
        unseen = [one for one in dispatched if one not in executed] or dispatched
        raise ModelError(
            "The network was not read as it computes: tracing it does not show all that it does "
            f"({', '.join(dict.fromkeys(unseen))}). Remove contexts such as autocast, and other side effects."
        )


# Only gross mistakes are meant: `Reading` compares by proved bounds, at every input that is certified.
_TOLERANCES = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-3, 1e-4)}


class _Recorder(TorchDispatchMode):
    """Notes the names of the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def _recording() -> Iterator[list[str]]:
    """The names of the operations executed meanwhile; without gradients, on tensors that count their changes."""
    with torch.inference_mode(False), torch.no_grad(), _Recorder() as recorder:
        yield recorder.operations


def _copied(example: Tensor) -> Tensor:
    """A copy that may be overwritten, and counts its changes even if the example was made in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        return example.clone()


class _Proxy(fx.Proxy):
    """Records a += b as the operation in place that it is; fx itself takes it for a + b."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize) or super().is_leaf_module(m, module_qualified_name) or _sorts(m)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Execution:
    """Executes the steps of a traced module one by one, and refuses one that uses a value overwritten in place.

    Each tensor counts its changes, together with all views of the same memory. A step may use a result only while its
    count is what it was when the result was computed.
    """

    def __init__(self, modules: Mapping[str, nn.Module], example: Tensor) -> None:
        self._modules, self._example = modules, _copied(example)
        self._results: dict[fx.Node, Any] = {}
        self._changes: dict[fx.Node, int | None] = {}
        self.operations: list[str] = []

    def run(self, step: fx.Node) -> None:
        """Execute the next step."""
        for source in step.all_input_nodes:
            if _changes(self._results[source]) != self._changes[source]:
                raise _UnsupportedError(
                    f"The value {source.name!r}, overwritten in place before {step.name!r} uses it again,"
                )
        with _recording() as operations:
            self._results[step] = self._result(step)
        self._changes[step] = _changes(self._results[step])
        self.operations += operations

    def _result(self, step: fx.Node) -> Any:
        arguments = fx.node.map_arg(step.args, self._results.__getitem__)
        settings = fx.node.map_arg(step.kwargs, self._results.__getitem__)
        if step.op == "placeholder":
            return self._example
        if step.op == "call_module":
            return self._modules[str(step.target)](*arguments, **settings)
        if step.op == "call_method":
            return getattr(arguments[0], str(step.target))(*arguments[1:], **settings)
        if step.op == "call_function" and callable(step.target):
            return step.target(*arguments, **settings)
        return None


def _changes(value: Any) -> int | None:
    return value._version if isinstance(value, Tensor) else None


def _as_written(module: nn.Module, kind: type[nn.Module]) -> bool:
    """True if calling the module runs the forward method of `kind`."""
    own = "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__
    return type(module).forward is kind.forward and not own


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
        for value in vars(operation).values():
            if isinstance(value, Tensor) and type(value) not in (Tensor, nn.Parameter):
                raise _UnsupportedError(f"A weight of type {type(value).__name__}, which may compute in its own way,")
        with torch.no_grad():
            value = operation(*(self._values[i] for i in inputs))
        self._values.append(value)
        self.nodes.append(Node(operation, tuple(int(i) for i in inputs), tuple(value.shape[1:])))
        return _Place(len(self.nodes) - 1)

    def shape(self, place: int) -> Shape:
        """The shape of a node's value."""
        return self.nodes[place].shape

    def read(self, model: nn.Module) -> list[str]:
        """Go through everything that `model` does to its input; the names of the operations that it dispatches."""
        try:
            graph = _Tracer().trace(model)
        except Exception as error:
            raise ModelError(
                f"The network could not be followed ({type(error).__name__}: {error}). Supported are {SUPPORTED}."
            ) from error
        modules = dict(model.named_modules())
        execution = _Execution(modules, self.example)
        places: dict[fx.Node, Any] = {}
        try:
            if not _as_written(model, type(model)):
                raise _UnsupportedError(f"{type(model).__name__} with a forward method of its own")
            for step in graph.nodes:
                places[step] = self._step(step, places, modules, execution)
        except RuntimeError as error:
            raise ModelError(f"The network does not take inputs of shape {self.nodes[0].shape}: {error}") from error
        except _UnsupportedError as error:
            raise ModelError(f"{error} cannot be bounded. Supported are {SUPPORTED}.") from None
        if len(self.nodes[-1].shape) != 1:
            raise ModelError(f"Expected scores [B, K] from the network, got values of shape {self.nodes[-1].shape}.")
        return execution.operations

    def _step(
        self, step: fx.Node, places: dict[fx.Node, Any], modules: Mapping[str, nn.Module], execution: _Execution
    ) -> Any:
        arguments = [places[a] if isinstance(a, fx.Node) else a for a in step.args]
        settings = {name: places[a] if isinstance(a, fx.Node) else a for name, a in step.kwargs.items()}
        read = self._reader(step, modules)
        execution.run(step)
        if step.op == "placeholder":
            return _Place(0)
        if step.op == "output":
            if not isinstance(arguments[0], _Place) or arguments[0] != len(self.nodes) - 1:
                raise _UnsupportedError("An output that is not what was computed last")
            return None
        try:
            return read(self, *arguments, **settings)
        except (TypeError, ValueError, IndexError) as error:  # arguments that the reader does not know
            raise _UnsupportedError(f"The operation {step.name!r} as it is called here ({error})") from error

    def _reader(self, step: fx.Node, modules: Mapping[str, nn.Module]) -> Callable[..., int | None]:
        """What reads a step; _UnsupportedError for one that is not known."""
        if step.op in ("placeholder", "output"):
            return lambda *_: None
        if step.op == "call_module":
            return self._layer(modules[str(step.target)], str(step.target))
        name = step.target if isinstance(step.target, str) else getattr(step.target, "__name__", str(step.target))
        # Functions are known by identity: others may have the same name.
        readers: Mapping[Any, Callable[..., int]] = _METHODS if step.op == "call_method" else _FUNCTIONS
        if step.op not in ("call_function", "call_method") or step.target not in readers:
            raise _UnsupportedError(f"The operation {name!r}")
        return readers[step.target]

    def _layer(self, module: nn.Module, name: str) -> Callable[..., int]:
        kind = next((one for one in _MODULES if isinstance(module, one)), type(module) if _sorts(module) else None)
        if kind is None:
            raise _UnsupportedError(f"The layer {name!r}, {type(module).__name__},")
        if not _as_written(module, kind):
            raise _UnsupportedError(f"The layer {name!r}, {type(module).__name__}, with a forward method of its own")
        if module.training:
            raise _UnsupportedError(f"The layer {name!r}, {type(module).__name__}, which stays in training mode,")
        read = _MODULES.get(kind, _sorting)
        return lambda builder, place: read(builder, module, place)


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


def _sorting(builder: _Builder, module: nn.Module, place: int) -> int:
    factor = getattr(module, "_coefficient_lip", None)
    if factor != 1:
        raise _UnsupportedError(f"{type(module).__name__} with a Lipschitz coefficient of {factor}")
    return builder.add(Sorting(module), place)


def _relu(builder: _Builder, place: int, inplace: bool = False) -> int:  # noqa: ARG001 - see `_Execution`
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
_FUNCTIONS: dict[Callable[..., Any], Callable[..., int]] = {
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    functional.relu: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    torch.flatten: _flatten,
    functional.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    functional.avg_pool2d: _avg_pool,
    functional.adaptive_avg_pool2d: _global_average,
    torch.mean: _mean,
}
_METHODS: dict[str, Callable[..., int]] = {
    "add": _add,
    "add_": _add,
    "relu": _relu,
    "relu_": _relu,
    "flatten": _flatten,
    "mean": _mean,
}

"""Batch normalisation folded into the layer before it: in evaluation it is but a scale and a shift per channel."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from smoothcert.backends.interface import Backend, Source

_CONVOLUTIONS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
}


class Folded(Backend):
    """The network, run by torch, without the batch norms that directly follow a convolution or linear layer."""

    name = "folded"

    def make(self, source: Source, precision: str) -> nn.Module:  # noqa: ARG002 - there is one
        """A copy with other weights, or the network itself if there is nothing to fold."""
        norms = tuple(_CONVOLUTIONS.values())
        if not any(isinstance(part, norms) for part in source.network.modules()):
            return source.network
        graph = fx.symbolic_trace(copy.deepcopy(source.network))
        ShapeProp(graph).propagate(source.probes())
        pairs = _pairs(graph)
        for before, norm in pairs:
            _fold(graph, before, norm)
        graph.recompile()
        return graph if pairs else source.network


def _pairs(graph: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Layers, each with the batch norm that alone takes its output."""
    calls = [node for node in graph.graph.nodes if node.op == "call_module"]
    uses = Counter(node.target for node in calls)
    pairs = [(node.args[0], node) for node in calls if node.args and node.args[0] in calls]
    return [
        (before, norm)
        for before, norm in pairs
        # A layer that is called twice, or whose output goes elsewhere too, must stay as it is.
        if len(before.users) == 1 and uses[before.target] == 1 and uses[norm.target] == 1 and _fits(graph, before, norm)
    ]


def _fits(graph: fx.GraphModule, before: fx.Node, norm: fx.Node) -> bool:
    layer, after = graph.get_submodule(str(before.target)), graph.get_submodule(str(norm.target))
    # By exact type: subclasses, parametrised layers among them, compute their weights in ways of their own.
    if type(layer) is nn.Linear:
        known = type(after) is nn.BatchNorm1d and len(before.meta["tensor_meta"].shape) == 2
    else:
        known = type(layer) in _CONVOLUTIONS and type(after) is _CONVOLUTIONS[type(layer)]
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in (layer, after))
    return known and not hooked and getattr(after, "running_mean", None) is not None


def _fold(graph: fx.GraphModule, before: fx.Node, norm: fx.Node) -> None:
    layer, after = graph.get_submodule(str(before.target)), graph.get_submodule(str(norm.target))
    fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
    parent, _, name = str(before.target).rpartition(".")
    setattr(graph.get_submodule(parent), name, fuse(layer, after))
    norm.replace_all_uses_with(before)
    graph.graph.erase_node(norm)
    graph.delete_submodule(str(norm.target))

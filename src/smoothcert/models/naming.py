"""Parameter names that other code bases use for our architectures.

To support another code base, add a `NamingScheme` under the architectures that it shares with us. Nothing else needs to
change: `load_weights` tries our own names first, then every scheme of the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MatchBy = Literal["name", "order"]
"""How weights find their place in a network."""

_CIFAR_DEPTHS = (20, 32, 44, 56, 110)


@dataclass(frozen=True, slots=True)
class NamingScheme:
    """How another code base names the modules of one architecture.

    Attributes:
        code: the code base.
        modules: its name for each of our modules that has parameters or buffers.
    """

    code: str
    modules: Mapping[str, str]

    def translate(self, name: str) -> str:
        """The name in this scheme of our parameter or buffer `name`."""
        module, _, tensor = name.rpartition(".")
        return f"{self.modules[module]}.{tensor}"


def _cifar_resnet_modules(depth: int, *, shortcut: str, head: str) -> dict[str, str]:
    """The modules of `cifar_resnet`, with `shortcut` and `head` in which code bases differ."""
    per_stage = (depth - 2) // 6
    blocks = 3 * per_stage
    modules = {"0": "conv1", "1": "bn1"}
    for block in range(blocks):
        ours = str(3 + block)  # behind a convolution, a norm and a ReLU
        theirs = f"layer{1 + block // per_stage}.{block % per_stage}"
        modules[f"{ours}.first"] = f"{theirs}.conv1"
        modules[f"{ours}.first_norm"] = f"{theirs}.bn1"
        modules[f"{ours}.second"] = f"{theirs}.conv2"
        modules[f"{ours}.second_norm"] = f"{theirs}.bn2"
        modules[f"{ours}.shortcut.0"] = f"{theirs}.{shortcut}.0"
        modules[f"{ours}.shortcut.1"] = f"{theirs}.{shortcut}.1"
    modules[str(3 + blocks + 2)] = head  # behind pooling and flattening
    return modules


# ResNet-18 and ResNet-50 need no entry: their parameters have torchvision's names.
SCHEMES: dict[str, tuple[NamingScheme, ...]] = {
    f"resnet{depth}": (
        NamingScheme(
            "the code of Cohen et al. 2019 and torchvision",
            _cifar_resnet_modules(depth, shortcut="downsample", head="fc"),
        ),
        NamingScheme(
            "akamaster/pytorch_resnet_cifar10", _cifar_resnet_modules(depth, shortcut="shortcut", head="linear")
        ),
    )
    for depth in _CIFAR_DEPTHS
}

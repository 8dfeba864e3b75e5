"""Small networks for the demo, the tests and the benchmarks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def mlp(inputs: int, *hidden: int, classes: int = 10) -> nn.Sequential:
    """A fully connected ReLU network on flattened inputs."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else inputs, classes))


def small_cnn(classes: int = 10) -> nn.Sequential:
    """Two convolutions and a linear layer for 8×8 greyscale images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def lenet(classes: int = 10) -> nn.Sequential:
    """LeNet for 28×28 greyscale images: 20 and 50 convolutions of 5×5, 500 hidden units, 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


class _Residual(nn.Module):
    """Two 3×3 convolutions around which the input is added; a strided 1×1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def cifar_resnet(depth: int = 20, classes: int = 10) -> nn.Sequential:
    """The residual networks of He et al. 2016 for 32×32 colour images; depth is 6k + 2: 20, 32, 44, 56, 110."""
    blocks = (depth - 2) // 6
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width in (16, 32, 64):
        for i in range(blocks):
            layers.append(_Residual(before, width, stride=2 if i == 0 and width > 16 else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

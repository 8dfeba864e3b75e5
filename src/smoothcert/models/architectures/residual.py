"""Residual networks, with convolutions initialised as He et al. 2015 have it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from smoothcert.errors import ConfigError


def _he_init(model: nn.Module) -> None:
    """Initialise convolutions as He et al. 2015, so that the signal's variance is kept through ReLU layers."""
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


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


def cifar_resnet(depth: int = 20, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The residual networks of He et al. 2016 for 32×32 images; depth is 6k + 2: 20, 32, 44, 56, 110.

    As in the code of Cohen et al., a 1×1 convolution bridges blocks that change the shape: ResNet-20 has 272,474
    parameters and ResNet-110 1,730,714.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ConfigError(f"Expected `depth` to be 6k + 2, such as 20, 32, 44, 56 or 110, got {depth}.")
    blocks = (depth - 2) // 6
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width in (16, 32, 64):
        for i in range(blocks):
            layers.append(_Residual(before, width, stride=2 if i == 0 and width > 16 else 1))
            before = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    _he_init(model)
    return model


class _PreActivation(nn.Module):
    """Norm, ReLU and 3×3 convolution, twice, around which the input is added: He et al. 2016, "Identity mappings".

    Where the shape changes, a 1×1 convolution takes the place of the identity, after the first norm and ReLU.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(before)
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = None if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.first_norm(x))
        y = self.second(functional.relu(self.second_norm(self.first(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(depth: int = 16, factor: int = 4, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The wide residual networks of Zagoruyko & Komodakis 2016, without dropout; depth is 6k + 4.

    WRN-16-4, the network of Tsuzuku et al. 2018 on SVHN, has 2,748,890 parameters.
    """
    if depth < 10 or (depth - 4) % 6:
        raise ConfigError(f"Expected `depth` to be 6k + 4, such as 16, 28 or 40, got {depth}.")
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False)]
    before = 16
    for stage, width in enumerate((16 * factor, 32 * factor, 64 * factor)):
        for i in range((depth - 4) // 6):
            layers.append(_PreActivation(before, width, stride=2 if i == 0 and stage > 0 else 1))
            before = width
    head = [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    model = nn.Sequential(*layers, *head)
    _he_init(model)
    return model


class _WongBlock(nn.Module):
    """A residual block without norms, whose shortcut is always a convolution; halving uses even kernels."""

    def __init__(self, before: int, after: int, *, halve: bool) -> None:
        super().__init__()
        size, skip, stride = (4, 2, 2) if halve else (3, 1, 1)
        self.first = nn.Conv2d(before, after, size, stride, 1)
        self.second = nn.Conv2d(after, after, 3, 1, 1)
        self.shortcut = nn.Conv2d(before, after, skip, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def wong_resnet(classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Sequential:
    """The small ResNet of Wong et al. 2018, "Scaling provable adversarial defenses", that the paper compares with.

    A convolution of 16 channels, four blocks of 16, 16, 32 and 64 channels, the last two halving the sides, and 1000
    hidden units; no batch norm. On 32×32 colour images it has 107,496 ReLU units and 4,214,850 parameters.
    """
    channels, height, width = shape
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 3, 1, 1),
        nn.ReLU(),
        _WongBlock(16, 16, halve=False),
        _WongBlock(16, 16, halve=False),
        _WongBlock(16, 32, halve=True),
        _WongBlock(32, 64, halve=True),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 1000),
        nn.ReLU(),
        nn.Linear(1000, classes),
    )
    _he_init(model)
    return model


class _Basic(nn.Module):
    """Two 3×3 convolutions around which the input is added."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """Convolutions of 1×1, 3×3 (the strided one) and 1×1 around which the input is added."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.expansion
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = _projection(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


def _projection(before: int, after: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and before == after:
        return None
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


class ImageNetResNet(nn.Module):
    """The residual networks of He et al. 2016 for 224×224 images.

    A bottleneck strides in its 3×3 convolution, as torchvision's does ("version 1.5") and with it the paper's
    ResNet-50. Parameters have torchvision's names and order, so that its weights can be loaded as they are.
    """

    def __init__(
        self, block: type[_Basic] | type[_Bottleneck], blocks: tuple[int, ...], classes: int, channels: int = 3
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self._before = 64
        self.layer1 = self._stage(block, 64, blocks[0], stride=1)
        self.layer2 = self._stage(block, 128, blocks[1], stride=2)
        self.layer3 = self._stage(block, 256, blocks[2], stride=2)
        self.layer4 = self._stage(block, 512, blocks[3], stride=2)
        self.fc = nn.Linear(self._before, classes)
        _he_init(self)

    def _stage(self, block: type[_Basic] | type[_Bottleneck], width: int, count: int, stride: int) -> nn.Sequential:
        layers = []
        for i in range(count):
            layers.append(block(self._before, width, stride if i == 0 else 1))
            self._before = width * block.expansion
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K] of a batch [B, C, H, W]."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def resnet18(classes: int = 1000, channels: int = 3) -> ImageNetResNet:
    """ResNet-18 for 224×224 images: 11,689,512 parameters with 1000 classes."""
    return ImageNetResNet(_Basic, (2, 2, 2, 2), classes, channels)


def resnet50(classes: int = 1000, channels: int = 3) -> ImageNetResNet:
    """ResNet-50 for 224×224 images, the paper's network for ImageNet: 25,557,032 parameters with 1000 classes."""
    return ImageNetResNet(_Bottleneck, (3, 4, 6, 3), classes, channels)

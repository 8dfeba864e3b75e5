"""Small networks whose answers can be certified without noise, by the baselines: one plain, one of bounded slope."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from smoothcert.errors import MissingExtraError

_SCALE = 4.0  # cross-entropy on scores that change by at most this per unit of distance


def wong_cnn(classes: int = 10, shape: tuple[int, ...] = (1, 28, 28)) -> nn.Sequential:
    """The convolutional network of Wong & Kolter 2018: 16 and 32 channels, each halving the sides, 100 hidden units.

    On 28×28 greyscale images it has 4,804 ReLU units and 166,406 parameters.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def lipschitz_cnn(classes: int = 10, shape: tuple[int, ...] = (1, 28, 28)) -> nn.Sequential:
    """`wong_cnn` with layers of deel-torchlip, none of which brings two inputs further apart, and sorting for ReLU.

    Serrurier et al. 2021, "Achieving robustness in classification using optimal transport with hinge regularization":
    all singular values of a layer's weights are brought near 1 while it learns, and sorting pairs of values (Anil et
    al. 2019) keeps distances where ReLU would lose them. In eval mode the weights are those of the last training step.
    """
    try:
        from deel.torchlip import GroupSort2
        from deel.torchlip.utils import frobenius_norm
    except ImportError as error:
        raise MissingExtraError("deel-torchlip", "lipschitz") from error
    channels, height, width = shape
    last = frobenius_norm(_begun(nn.Linear(100, classes)))  # each row of length 1
    register_parametrization(last, "weight", _Times(_SCALE))
    return nn.Sequential(
        _orthogonal(nn.Conv2d(channels, 16, 4, stride=2, padding=1)),
        GroupSort2(),
        _orthogonal(nn.Conv2d(16, 32, 4, stride=2, padding=1)),
        GroupSort2(),
        nn.Flatten(),
        _orthogonal(nn.Linear(32 * (height // 4) * (width // 4), 100)),
        GroupSort2(),
        last,
    )


def _orthogonal(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """The layer with weights as torchlip's SpectralConv2d and SpectralLinear have them.

    Those are not used themselves: torch.fx looks into layers that are not torch's own, and would not see what they are.
    """
    from deel.torchlip.utils import bjorck_norm, lconv_norm

    # A largest singular value that is estimated too small lets Björck's iteration diverge.
    spectral_norm(_begun(layer), n_power_iterations=3, eps=1e-3)
    bjorck_norm(layer)
    return lconv_norm(layer) if isinstance(layer, nn.Conv2d) else layer


def _begun(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.orthogonal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class _Times(nn.Module):
    """Weights times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, weight: Tensor) -> Tensor:
        return self.factor * weight

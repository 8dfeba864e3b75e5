import pytest
import torch
from torch import nn

from smoothcert import AvgPooled, FixedN, GaussianNoise, Normalize, Resized, Smoothed
from smoothcert.errors import ConfigError
from smoothcert.models.architectures import cifar_resnet, lenet, mlp, small_cnn


def test_normalize_standardises_each_channel():
    layer = Normalize([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    x = torch.rand(5, 3, 4, 4)
    expected = torch.stack([(x[:, 0] - 0.1) / 1, (x[:, 1] - 0.2) / 2, (x[:, 2] - 0.3) / 4], dim=1)
    assert torch.allclose(layer(x), expected)
    assert set(layer.state_dict()) == {"mean", "std"}


@pytest.mark.parametrize(("mean", "std"), [([0.0], [1.0, 1.0]), ([0.0], [0.0]), ([0.0], [-1.0])])
def test_normalize_refuses_what_cannot_be_divided_by(mean, std):
    with pytest.raises(ConfigError, match="std > 0"):
        Normalize(mean, std)


class Halves(nn.Module):
    """Votes by which half of an 8×8 image is brighter: enough structure to have interesting probabilities."""

    def forward(self, x):
        difference = x[:, 0, :4].mean(dim=(1, 2)) - x[:, 0, 4:].mean(dim=(1, 2))
        return torch.stack([difference, -difference], dim=1)


def test_twice_the_resolution_certifies_twice_the_radius():
    """Cohen et al. 2019, Proposition 7, on vote proportions and on certified radii."""
    large = torch.zeros(1, 16, 16)
    large[0, :8] += 0.10  # p_A is about 0.98 at σ' = 0.25
    small = torch.nn.functional.avg_pool2d(large[None], 2)[0]
    procedure = FixedN(n=100_000, n0=100, alpha=0.001)
    low = Smoothed(Halves(), 0.25, noise=GaussianNoise(0.25), seed=1).certify(small, procedure)
    high = Smoothed(AvgPooled(Halves()), 0.5, noise=GaussianNoise(0.5), seed=1).certify(large, procedure)
    assert low.label == high.label == 0
    shares = [c.stages[1].counts[0] / 100_000 for c in (low, high)]
    assert 0.9 < shares[0] < 0.999
    assert abs(shares[0] - shares[1]) < 0.003
    assert high.radius == pytest.approx(2 * low.radius, rel=0.03)


def test_resized_classifies_at_the_size_the_model_was_made_for():
    sizes = []

    class Spy(nn.Module):
        def forward(self, x):
            sizes.append(x.shape)
            return x.mean(dim=(2, 3))

    assert Resized(Spy(), (8, 8))(torch.ones(2, 3, 20, 30)).shape == (2, 3)
    assert sizes == [(2, 3, 8, 8)]
    assert torch.allclose(Resized(Spy(), (8, 8))(torch.full((1, 3, 20, 30), 0.7)), torch.tensor(0.7))


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (lenet(), (1, 28, 28), 431_080),
        (mlp(784, 512, 512), (1, 28, 28), 784 * 512 + 512 + 512 * 512 + 512 + 5130),
        (cifar_resnet(20), (3, 32, 32), 272_474),
        (cifar_resnet(110), (3, 32, 32), 1_730_714),
        (small_cnn(), (1, 8, 8), 38_282),
    ],
)
def test_architectures_have_the_published_size(model, shape, parameters):
    assert model.eval()(torch.rand(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters

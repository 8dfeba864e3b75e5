import math

import pytest
import torch
from torch import nn

from smoothcert import AvgPooled, FixedN, GaussianNoise, Normalize, Projected, Resized, Smoothed
from smoothcert.errors import ConfigError
from smoothcert.models.architectures import cifar_resnet, lenet, mlp, small_cnn
from smoothcert.models.layers import Lifted, front_projection, principal_directions, split_projection


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


def orthonormal(count, *shape, seed=0):
    """Random directions [count, *shape]."""
    drawn = torch.randn(math.prod(shape), count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T.reshape(count, *shape)


def test_a_projection_keeps_what_lies_in_its_directions_and_drops_the_rest():
    directions = orthonormal(3, 2, 4)
    layer, x = Projected(directions), torch.rand(5, 2, 4)
    assert layer.count == 3
    parts = torch.einsum("bij,kij->bk", x.double(), directions)
    torch.testing.assert_close(layer.coordinates(x).double(), parts, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer(x).double(), torch.einsum("bk,kij->bij", parts, directions), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(layer(x)), layer(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(Lifted(layer)(layer.coordinates(x)), layer(x))


def test_a_projection_lengthens_nothing():
    """The largest singular value, in double precision, of what single precision has made of the directions."""
    for seed in range(20):
        layer = Projected(orthonormal(30, 64, seed=seed).float())
        assert torch.linalg.matrix_norm(layer.directions.double(), 2) < 1


@pytest.mark.parametrize(
    "directions",
    [
        torch.eye(3, 4)[0],
        torch.eye(3, 4)[:0],
        torch.eye(3, 4).long(),
        1.001 * torch.eye(3, 4),
        0.999 * torch.eye(3, 4),
        torch.tensor([[1.0, 0.0, 0.0], [0.001, 1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [0.0, float("nan")]]),
        torch.cat([torch.eye(2), torch.tensor([[0.6, 0.8]])]),
    ],
    ids=["one", "none", "whole numbers", "long", "short", "not orthogonal", "twice", "nan", "too many"],
)
def test_directions_must_be_orthonormal(directions):
    with pytest.raises(ConfigError, match="`directions`"):
        Projected(directions)


def test_directions_that_were_changed_are_noticed():
    model = nn.Sequential(Projected(torch.eye(2, 4)), nn.Linear(4, 2))
    model[0].directions *= 1.00001
    with pytest.raises(ConfigError, match="as the layer was made with"):
        Smoothed(model, 0.5)


def test_a_model_is_behind_a_projection_only_if_all_of_it_is():
    projection, x = Projected(torch.eye(1, 2)), torch.rand(3, 2)
    model = nn.Sequential(projection, nn.Linear(2, 2), nn.ReLU())
    found, behind = split_projection(model)
    assert found is front_projection(model) is projection
    assert torch.equal(behind(projection.coordinates(x)), model(x))

    class Both(nn.Sequential):
        """Takes the input past its projection."""

        def forward(self, x):
            return super().forward(x) + x

    class Kinder(Projected):
        """Drops nothing."""

        def forward(self, x):
            return x

    hooked, hooked_first, replaced = (nn.Sequential(Projected(torch.eye(1, 2)), nn.Linear(2, 2)) for _ in range(3))
    hooked.register_forward_hook(lambda _, args, out: out + args[0])
    hooked_first[0].register_forward_pre_hook(lambda _, args: (args[0].flip(1),))
    replaced.forward = lambda x: x
    for other in (
        hooked,
        hooked_first,
        replaced,
        nn.Sequential(Kinder(torch.eye(1, 2))),
        nn.Linear(2, 2),
        nn.Sequential(),
        nn.Sequential(nn.Identity(), projection),
        Both(projection),
        lambda x: x,
    ):
        assert split_projection(other) == (None, other)


def test_principal_directions_are_those_in_which_inputs_are_longest():
    rng = torch.Generator().manual_seed(0)
    axes, lengths = orthonormal(6, 2, 3), torch.tensor([5.0, 4.0, 3.0, 0.3, 0.2, 0.1], dtype=torch.float64)
    inputs = torch.einsum("nk,kij->nij", torch.randn(4000, 6, generator=rng, dtype=torch.float64) * lengths, axes)
    found = principal_directions(inputs.float(), 3)
    assert found.shape == (3, 2, 3)
    cosines = torch.einsum("kij,lij->kl", found, axes).abs()
    torch.testing.assert_close(cosines[:, :3], torch.eye(3, dtype=torch.float64), rtol=0, atol=0.2)
    assert cosines[:, 3:].max() < 0.02
    Projected(found)
    with pytest.raises(ConfigError, match="count"):
        principal_directions(inputs, 7)


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

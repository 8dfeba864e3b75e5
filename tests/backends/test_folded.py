import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from smoothcert.backends import BACKENDS, Source, content_hash
from smoothcert.models.hashes import hash_tensors


def uneven(network):
    """Batch norms that do something, and everything in float64, in which folding must be exact to 1e-12."""
    torch.manual_seed(0)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and part.running_mean is not None:
            part.running_mean.normal_()
            part.running_var.uniform_(0.2, 3)
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and part.affine:
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return network.eval()


def norms(network):
    return sum(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for part in network.modules())


def build(network, shape):
    return BACKENDS["folded"].build(Source(network, shape, 4))


def check_same(network, built, shape):
    inputs = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(built.double()(inputs), network.double()(inputs), rtol=1e-5, atol=1e-5)


class Twice(nn.Module):
    """One convolution, called before each of two batch norms."""

    def __init__(self):
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x):
        return self.second(self.conv(self.first(self.conv(x)))).flatten(1)


class Branched(nn.Module):
    """A convolution whose output goes past the batch norm too."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x):
        y = self.conv(x)
        return (self.norm(y) + y).flatten(1)


class OneNorm(nn.Module):
    """A batch norm behind two convolutions in turn."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x):
        return self.norm(self.second(self.norm(self.first(x)))).flatten(1)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrised():
    conv = nn.Conv2d(2, 2, 3)
    parametrize.register_parametrization(conv, "weight", Doubled())
    return nn.Sequential(conv, nn.BatchNorm2d(2), nn.Flatten())


def hooked():
    conv = nn.Conv2d(2, 2, 3)
    conv.register_forward_hook(lambda *call: call[2].abs())
    return nn.Sequential(conv, nn.BatchNorm2d(2), nn.Flatten())


@pytest.mark.parametrize(
    "name", ["mlp", "small-cnn", "lenet", "resnet8", pytest.param("resnet20", marks=pytest.mark.slow)]
)
def test_it_conforms(conforms, name):
    conforms("folded", name)


def test_every_batch_norm_of_a_residual_network_goes(source):
    given = source("resnet20")
    built = BACKENDS["folded"].build(given)
    assert norms(given.network) == 21  # of two shortcuts too
    assert norms(built) == 0
    assert content_hash(built) == content_hash(BACKENDS["folded"].build(source("resnet20")))
    assert content_hash(built) != hash_tensors(given.network.state_dict())


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_without_batch_norms_it_is_the_network_itself(source, name):
    given = source(name)
    assert BACKENDS["folded"].build(given) is given.network


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, groups=2, bias=False), nn.BatchNorm2d(4), nn.Flatten()), (2, 7, 7)),
        (nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4, affine=False), nn.Flatten()), (2, 7)),
        (nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4, eps=0.1), nn.Flatten()), (2, 4, 4, 4)),
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
    ],
    ids=["grouped", "1d", "3d", "linear"],
)
def test_what_can_be_folded_is(network, shape):
    built = build(uneven(network), shape)
    assert norms(built) == 0
    check_same(network, built, shape)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Twice(), (2, 5, 5)),
        (Branched(), (2, 5, 5)),
        (OneNorm(), (2, 7, 7)),
        (parametrised(), (2, 5, 5)),
        (hooked(), (2, 5, 5)),
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Flatten()), (5, 6)),  # normalises rows, not outputs
        (nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.Flatten()), (2, 5, 5)),
        (nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.BatchNorm2d(2), nn.Flatten()), (2, 5, 5)),
    ],
    ids=["called twice", "branched", "one norm", "parametrised", "hooked", "rows", "before", "transposed"],
)
def test_what_cannot_be_folded_stays(network, shape):
    kept = norms(uneven(network))
    built = build(network, shape)
    assert norms(built) == kept
    check_same(network, built, shape)

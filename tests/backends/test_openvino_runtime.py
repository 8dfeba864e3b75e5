import pytest
import torch
from torch import nn

from smoothcert.backends import BACKENDS, Source
from smoothcert.errors import ModelError


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x).flatten(1)


@pytest.mark.parametrize(
    "name",
    ["small-cnn", "resnet8", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mlp", "lenet", "resnet20"))],
)
def test_it_conforms(conforms, capfd, name):
    conforms("openvino", name)
    assert capfd.readouterr() == ("", "")


def test_an_operator_that_it_does_not_have_is_refused(capfd):
    with pytest.raises(ModelError, match=r"backend openvino cannot run this network.*bessel_j0") as caught:
        BACKENDS["openvino"].build(Source(Unknown().eval(), (1, 4, 4), 4))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")

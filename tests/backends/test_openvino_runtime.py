import ctypes
import gc
import signal
import sys

import pytest
import torch
from torch import nn

from smoothcert.backends import BACKENDS, Source
from smoothcert.backends.isolation import SignalStack
from smoothcert.errors import ModelError
from smoothcert.models.architectures import small_cnn
from smoothcert.training.loop import seeded


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stack_t of Linux")
def test_the_stack_that_signals_are_handled_on_is_the_one_from_before():
    """OpenVINO sets up one of its own where there is AMX, and gives its memory back: Ctrl-C would crash."""

    def stack():
        found = SignalStack()
        assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
        return found.start, found.flags, found.size

    before = stack()
    built = BACKENDS["openvino"].build(Source(seeded(small_cnn, 0), (1, 8, 8), 4))
    assert stack() == before
    built(torch.rand(4, 1, 8, 8))
    assert stack() == before
    noted, old = [], signal.signal(signal.SIGINT, lambda *_: noted.append(1))
    del built
    gc.collect()
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, old)
    assert noted == [1]

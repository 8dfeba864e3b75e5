import pytest
import torch

from smoothcert.backends import BACKENDS, content_hash
from smoothcert.backends.eager import _Autocast
from smoothcert.errors import ConfigError
from smoothcert.models.hashes import hash_tensors


def test_it_is_the_network_itself(source):
    given = source("small-cnn")
    built = BACKENDS["eager"].build(given)
    assert built is given.network
    assert content_hash(built) == hash_tensors(given.network.state_dict())


def test_it_conforms(conforms):
    conforms("eager", "small-cnn")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_are_refused_on_the_cpu(source, precision):
    with pytest.raises(ConfigError, match=f"fp32 on the CPU, got {precision}, which makes torch slower"):
        BACKENDS["eager"].build(source("small-cnn"), precision)


def test_autocast_rounds_and_gives_float32_back(source):
    """What a GPU would run, on the CPU."""
    given = source("small-cnn")
    inputs = given.probes(16)
    with torch.no_grad():
        scores, expected = _Autocast(given.network, torch.bfloat16)(inputs), given.network(inputs)
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, expected)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0.05)

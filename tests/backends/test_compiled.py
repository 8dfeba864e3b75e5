import pytest

from smoothcert.backends import BACKENDS, content_hash
from smoothcert.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    ["small-cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "lenet", "resnet8", "resnet20"))],
)
def test_it_conforms(conforms, capfd, name):
    conforms("compile", name)
    assert capfd.readouterr() == ("", "")


def test_without_a_compiler_it_says_so(source, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in BACKENDS["compile"].missing()
    with pytest.raises(ConfigError, match=r"C\+\+ compiler \(no-such-compiler\) for the backend compile"):
        BACKENDS["compile"].build(source("small-cnn"))


def test_the_hash_is_that_of_the_weights(source):
    hashes = [content_hash(BACKENDS["compile"].build(source("small-cnn"))) for _ in range(2)]
    assert hashes[0] == hashes[1] != content_hash(BACKENDS["eager"].build(source("small-cnn")))

import copy
import logging
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.backends import BACKENDS, Backend, Source, content_hash
from smoothcert.backends.interface import Executable
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelError
from smoothcert.models.architectures import mlp
from smoothcert.models.classifier import Foreign

EXTRAS = [("onnxruntime", "onnxruntime", "onnx"), ("onnxruntime", "onnxscript", "onnx")]
EXTRAS += [("openvino", "openvino", "openvino"), ("openvino", "nncf", "openvino")]


class Lambda(Backend):
    name = "lambda"
    precisions = ("fp32", "int8")

    def __init__(self, make):
        self._make = make

    def make(self, source, precision):
        return self._make(source)


class Branching(nn.Module):
    """A network that takes another path for bright inputs, which no graph can show."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm2d(1), mlp(64, 8), mlp(64, 8)

    def forward(self, x):
        x = self.norm(x)
        return self.first(x) if x.sum() > 0 else self.second(x)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return mlp(64, 16).eval()


def given(model=None, **settings):
    return Source(model or network(), **{"shape": (1, 8, 8), "batch_size": 4, **settings})


def test_the_family():
    assert list(BACKENDS) == ["eager", "folded", "compile", "onnxruntime", "openvino"]
    assert {name: backend.name for name, backend in BACKENDS.items()} == {name: name for name in BACKENDS}
    assert [name for name, backend in BACKENDS.items() if "int8" in backend.precisions] == ["onnxruntime", "openvino"]
    assert all(backend.precisions[0] == "fp32" for backend in BACKENDS.values())


@pytest.mark.parametrize(
    "inputs",
    [np.zeros((5, 1, 8, 8)), np.zeros((5, 64), np.float32), np.zeros((0, 1, 8, 8), np.float32)],
    ids=["float64", "flat", "empty"],
)
def test_calibration_is_float32_of_the_shape(inputs):
    with pytest.raises(InputError, match="calibration"):
        given(calibration=inputs)


def test_a_batch_has_rows():
    with pytest.raises(ConfigError, match="batch_size"):
        given(batch_size=0)


def test_calibration_is_handed_out_whole_and_in_order():
    inputs = np.random.default_rng(0).random((150, 1, 8, 8), np.float32)
    batches = given(calibration=inputs).calibration_batches()
    assert np.array_equal(np.concatenate(batches), inputs)
    assert len(batches) == 3


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_int8_without_calibration_is_refused(backend):
    with pytest.raises(ConfigError, match="calibration"):
        BACKENDS[backend].build(given(), "int8")


@pytest.mark.parametrize(("backend", "precision"), [("folded", "int8"), ("compile", "bf16"), ("onnxruntime", "int4")])
def test_a_precision_that_is_not_there_is_refused(backend, precision):
    with pytest.raises(ConfigError, match="Expected `precision` to be one of fp32"):
        BACKENDS[backend].build(given(), precision)


@pytest.mark.parametrize(("backend", "package", "extra"), EXTRAS)
def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, backend, package, extra):
    assert BACKENDS[backend].missing() is None
    monkeypatch.setitem(sys.modules, package, None)
    assert BACKENDS[backend].missing() == package
    with pytest.raises(MissingExtraError, match=rf"{package} .*smoothcert\[{extra}\]"):
        BACKENDS[backend].build(given())


@pytest.mark.parametrize("backend", ["folded", "compile", "onnxruntime", "openvino"])
@pytest.mark.parametrize(
    "model", [Branching().eval(), nn.Sequential(nn.BatchNorm2d(1), Foreign(lambda batch: batch.numpy()[:, 0, 0]))]
)
def test_a_network_that_is_no_graph_is_refused_in_one_line(backend, model, capfd):
    with pytest.raises(ModelError, match=f"backend {backend} cannot run this network") as caught:
        BACKENDS[backend].build(given(model))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_another_network_is_found_out():
    """A backend is not trusted: one wrong weight is enough."""
    other = copy.deepcopy(network())
    with torch.no_grad():
        other[1].weight[0, 0] += 0.1
    with pytest.raises(ModelError, match="other scores than torch"):
        Lambda(lambda _: other).build(given())
    inputs = np.zeros((1, 1, 8, 8), np.float32)
    assert Lambda(lambda _: other).build(given(calibration=inputs), "int8") is other


def test_scores_of_another_shape_are_found_out():
    with pytest.raises(ModelError, match=r"\(8, 10\)"):
        Lambda(lambda _: nn.Sequential(network(), nn.Flatten(0))).build(given())
    labels = Foreign(lambda batch: torch.zeros(len(batch), dtype=torch.long))
    with pytest.raises(ModelError, match="Expected scores"):
        Lambda(lambda _: Foreign(labels)).build(given(labels))


def test_scores_that_are_no_numbers_are_found_out():
    with pytest.raises(ModelError, match="differ by up to inf"):
        Lambda(lambda _: Foreign(lambda batch: torch.full((len(batch), 10), torch.nan))).build(given())


def test_a_constant_network_is_no_reason_to_refuse():
    def almost(offset):
        return Foreign(lambda batch: torch.full((len(batch), 10), 5.0) + offset * torch.arange(10))

    Lambda(lambda _: almost(1e-6)).build(given(almost(0)))
    with pytest.raises(ModelError, match="other scores than torch"):
        Lambda(lambda _: almost(1e-3)).build(given(almost(0)))


def test_what_fails_only_when_it_runs_is_refused_too():
    with pytest.raises(ModelError, match="lambda cannot run this network: ZeroDivisionError"):
        Lambda(lambda _: Foreign(lambda _: 1 / 0)).build(given())


def test_the_first_cause_is_told():
    def fail(source):
        try:
            raise KeyError("the cause\nand much more")
        except KeyError as error:
            raise RuntimeError("a wrapper") from error

    with pytest.raises(ModelError, match=r"lambda .*KeyError.*the cause"):
        Lambda(fail).build(given())


def test_the_network_is_evaluated_and_keeps_its_mode():
    model = nn.Sequential(nn.Dropout(0.5), network()).train()
    modes = []
    built = Lambda(lambda source: modes.append(source.network.training) or network()).build(given(model))
    assert modes == [False]
    assert model.training
    assert not built.training


def test_nothing_that_the_process_shares_is_changed(capfd):
    """Not by a library that prints, warns, logs, and draws."""

    def noisy(source):
        sys.stdout.write("a line\n")
        sys.stderr.write("a line\n")
        logging.warning("a warning")  # sets up a handler too
        logging.getLogger().setLevel(logging.DEBUG)
        logging.setLoggerClass(type("Other", (logging.Logger,), {}))
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        return source.network

    def shared():
        root = logging.getLogger()
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
        return states, root.level, root.handlers[:], logging.getLoggerClass(), logging.root.manager.disable

    before = shared()
    Lambda(noisy).build(given())
    assert shared() == before
    assert capfd.readouterr() == ("", "")


def test_the_hash_tells_weights_backends_and_precisions_apart():
    inputs = np.random.default_rng(0).random((10, 1, 8, 8), np.float32)
    first, second = given(network(0), calibration=inputs), given(network(1), calibration=inputs)
    kinds = [(first, "eager", "fp32"), (first, "onnxruntime", "fp32"), (first, "openvino", "fp32")]
    kinds += [(first, "openvino", "int8"), (second, "eager", "fp32"), (second, "openvino", "fp32")]
    hashes = [content_hash(BACKENDS[name].build(one, bits)) for one, name, bits in kinds]
    assert len(set(hashes)) == len(hashes)
    assert all(one.startswith("sha256:") for one in hashes)
    assert content_hash(BACKENDS["eager"].build(given(network(0)))) == hashes[0]


def test_an_executable_takes_any_layout_and_keeps_gradients_out():
    seen = []

    def run(batch):
        seen.append(batch)
        return batch.flatten(1)[:, :2]

    module = Executable(run, "sha256:0", torch.device("cpu"))
    batch = torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    assert torch.equal(module(batch), batch.detach().flatten(1)[:, :2])
    assert seen[0].is_contiguous()
    assert not seen[0].requires_grad
    plain = torch.rand(4, 3, 5, 5)
    module(plain)
    assert seen[1].data_ptr() == plain.data_ptr()  # no copy where none is needed
    assert not list(module.parameters())

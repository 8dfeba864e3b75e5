import onnx
import pytest
import torch
from torch import nn

from smoothcert.backends import BACKENDS, Source
from smoothcert.backends.isolation import isolated
from smoothcert.backends.onnx_runtime import _onnx
from smoothcert.errors import ModelError

LINEAR = ["Gemm", "Relu", "Gemm"]


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x).flatten(1)


@pytest.mark.parametrize(
    "name",
    ["small-cnn", "resnet8", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mlp", "lenet", "resnet20"))],
)
def test_it_conforms(conforms, capfd, name):
    conforms("onnxruntime", name)
    assert capfd.readouterr() == ("", "")


def test_the_file_holds_the_network_and_no_paths(source):
    with isolated():
        content = _onnx(source("small-cnn"))
    assert b"site-packages" not in content
    assert b"stack_trace" not in content
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Conv", "Relu", "Conv", "Relu", "Reshape", *LINEAR]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # any number of rows


def test_an_operator_that_it_does_not_have_is_refused(capfd):
    with pytest.raises(ModelError, match=r"backend onnxruntime cannot run this network.*bessel_j0") as caught:
        BACKENDS["onnxruntime"].build(Source(Unknown().eval(), (1, 4, 4), 4))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")

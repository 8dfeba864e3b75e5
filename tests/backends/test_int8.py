import pytest


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_it_is_nearly_the_network_and_a_base_classifier_in_its_own_right(conforms_in_int8, capfd, backend):
    conforms_in_int8(backend)
    assert capfd.readouterr() == ("", "")

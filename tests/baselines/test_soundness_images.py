"""A part of test_soundness.py: networks with convolutions."""

from __future__ import annotations

import pytest

from baselines.test_soundness import check_family

IMAGES = ["convolution", "batch norm and average"]


@pytest.mark.parametrize("family", IMAGES)
def test_no_radius_is_above_the_true_one(family):
    check_family(family, range(28))


@pytest.mark.slow
@pytest.mark.parametrize("family", IMAGES)
def test_no_radius_of_many_more_networks_is_above_the_true_one(family):
    check_family(family, range(1000, 1150))

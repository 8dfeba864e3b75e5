"""A part of test_soundness.py: networks with max-pooling."""

from __future__ import annotations

import pytest

from baselines.oracles import FAMILIES
from baselines.test_soundness import VECTORS, check_family
from baselines.test_soundness_images import IMAGES

POOLING = [family for family in FAMILIES if family not in (*VECTORS, *IMAGES)]


@pytest.mark.parametrize("family", POOLING)
def test_no_radius_is_above_the_true_one(family):
    check_family(family, range(24))


@pytest.mark.slow
@pytest.mark.parametrize("family", POOLING)
def test_no_radius_of_many_more_networks_is_above_the_true_one(family):
    check_family(family, range(1000, 1100))

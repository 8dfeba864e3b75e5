"""No certified radius of a tiny network is larger than the true one, which an exhaustive search finds.

Networks on vectors are here, others in test_soundness_images.py and test_soundness_pooling.py: 208 of them in all, and
more by `make test-slow`.
"""

from __future__ import annotations

import pytest
import torch

from baselines.claims import METHODS, judged, tiny_case

VECTORS = ["one layer", "two layers", "residual", "residual, then ReLU"]
LEAST = {"lipschitz": 0.04, "same": 0.5, "adaptive": 0.5}  # of the true radius, on average over a family


def check_family(family: str, seeds: range) -> None:
    """Every method on networks of a family: sound, and not trivially so."""
    parts = {name: [] for name in LEAST}
    for seed in seeds:
        case = tiny_case(family, seed)
        for name in LEAST:
            wrong, shares = judged(METHODS[name], case)
            assert wrong == [], name
            parts[name].append(shares[case.radii.isfinite()])
    for name, least in LEAST.items():
        shares = torch.cat(parts[name])
        assert shares.mean() > least, name
        assert (shares > 0).double().mean() > 0.99, name


@pytest.mark.parametrize("family", VECTORS)
def test_no_radius_is_above_the_true_one(family):
    check_family(family, range(26))


@pytest.mark.slow
@pytest.mark.parametrize("family", VECTORS)
def test_no_radius_of_many_more_networks_is_above_the_true_one(family):
    check_family(family, range(1000, 1150))

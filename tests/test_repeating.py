"""What makes a result repeatable anywhere: its key, its index, and the plan of its forward passes."""

import numpy as np
import pytest
import torch

from smoothcert import FixedN, Grid, Predict, Smoothed
from smoothcert.errors import ConfigError, InputError
from smoothcert.models.architectures import small_cnn
from smoothcert.sampling import Plan
from smoothcert.training.loop import seeded

IMAGES = np.random.default_rng(0).integers(256, size=(5, 1, 8, 8), dtype=np.uint8)
PROCEDURE = FixedN(n=500, n0=50, alpha=0.01)


@pytest.fixture(scope="module")
def network():
    return seeded(small_cnn, 3)


def smoothed(network, **settings):
    return Smoothed(network, 0.5, **{"batch_size": 32, "progress": False, **settings})


def test_a_key_repeats_the_noise_of_the_result_that_shows_it(network):
    first = smoothed(network).certify(IMAGES[0], PROCEDURE)
    assert smoothed(network, key=first.key).certify(IMAGES[0], PROCEDURE) == first
    assert smoothed(network).certify(IMAGES[0], PROCEDURE) != first


@pytest.mark.parametrize("key", ["", "00", "zz" * 32, "00" * 31, "00" * 33])
def test_what_is_no_key_is_refused(network, key):
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        smoothed(network, key=key)


@pytest.mark.parametrize(
    ("settings", "said"), [({"key": "00" * 32, "seed": 0}, "`key` or `seed`"), ({"plan": Plan(8)}, "`plan` or")]
)
def test_two_ways_to_say_the_same_are_refused(network, settings, said):
    with pytest.raises(ConfigError, match=said):
        smoothed(network, **settings)


def test_inputs_of_a_batch_can_have_any_indices(network):
    model = smoothed(network, seed=0)
    together = model.certify(IMAGES, PROCEDURE, index=[9, 3, 70, 0, 4])
    alone = [
        model.certify(image, PROCEDURE, index=index) for image, index in zip(IMAGES, [9, 3, 70, 0, 4], strict=True)
    ]
    assert together == alone
    assert [one.input_id for one in together] == ["index:9", "index:3", "index:70", "index:0", "index:4"]


@pytest.mark.parametrize("index", [[1, 2], [1, 2, 3, 4, 4], [1, 2, 3, 4, -5], [1, 2, 3, 4, 0.5]])
def test_indices_must_be_different_whole_numbers_one_per_input(network, index):
    with pytest.raises(ConfigError, match="index"):
        smoothed(network).certify(IMAGES, PROCEDURE, index=index)


@pytest.mark.parametrize("plan", [Plan(32, workers=w, threads=t) for w in (1, 2, 3) for t in (None, 1)], ids=str)
def test_the_number_of_workers_changes_nothing(network, plan):
    """Nor do short stages that share their batches with those of other inputs."""
    grid = Grid(radii=(0.0, 0.3), sigma=0.5, n_max=2_000)
    expected = smoothed(network, batch_size=None, plan=Plan(32, threads=1), seed=0).certify(IMAGES, grid, index=0)
    assert smoothed(network, batch_size=None, plan=plan, seed=0).certify(IMAGES, grid, index=0) == expected


def test_known_labels_go_with_a_grid_of_ones_own(network):
    model = smoothed(network, seed=0)
    grid = Grid(radii=(0.0, 0.3), sigma=0.5, n_max=2_000)
    found = model.certify(IMAGES, grid, label=[1, 2, 3, 4, 5], index=0)
    assert found == model.certify(IMAGES, radii=(0.0, 0.3), label=[1, 2, 3, 4, 5], n_max=2_000, index=0)
    assert [one.procedure["label"] for one in found] == [1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="goes with `radii`"):
        model.certify(IMAGES, PROCEDURE, label=[1, 2, 3, 4, 5])


def test_draws_are_told_as_they_are_made(network):
    told = []
    smoothed(network, on_draws=told.append).predict(IMAGES, Predict(n=300))
    assert sum(told) == 5 * 300


def test_the_contract_is_checked_on_its_own(network):
    assert smoothed(network).check(IMAGES[0]) == 10
    with pytest.raises(InputError, match="range"):
        smoothed(network).check(np.full((1, 8, 8), 7.0, np.float32))


def test_threads_of_ones_own_leave_the_callers_setting_alone(network):
    before = torch.get_num_threads()
    smoothed(network, batch_size=None, plan=Plan(32, workers=2, threads=1)).predict(IMAGES[0], Predict(n=300))
    assert torch.get_num_threads() == before

from __future__ import annotations

import numpy as np
import pytest

from smoothcert.data.selection import select_indices
from smoothcert.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"start": 2, "every": 3}, [2, 5]),
        ({"first": 2}, [0, 1]),
        ({"start": 6, "first": 100}, [6]),
        ({"every": 100}, [0]),
    ],
)
def test_takes_every_kth_index_from_start_on_and_at_most_first(settings, expected):
    assert select_indices(7, **settings).tolist() == expected


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"every": 0}, "every"),
        ({"every": -1}, "every"),
        ({"every": 1.5}, "every"),
        ({"every": True}, "every"),
        ({"first": -5}, "first"),
        ({"first": 0}, "first"),
        ({"first": 2.0}, "first"),
        ({"start": 7}, "start"),
        ({"start": 8}, "start"),
        ({"start": -1}, "start"),
        ({"start": "0"}, "start"),
    ],
)
def test_refuses_settings_that_select_nothing_or_make_no_sense(settings, named):
    with pytest.raises(ConfigError, match=f"Expected `{named}` to be a whole number .*, got "):
        select_indices(7, **settings)


def test_refuses_to_select_from_an_empty_data_set():
    with pytest.raises(ConfigError, match=r"nothing to select"):
        select_indices(0)


def test_a_list_of_indices_is_taken_as_it_is():
    chosen = select_indices(7, indices=[5, 0, 6])
    assert chosen.tolist() == [5, 0, 6]
    assert chosen.dtype == np.int64
    assert select_indices(7, indices=np.array([3])).tolist() == [3]


@pytest.mark.parametrize("indices", [[7], [-1], [0, 1.5], [True], ["1"], [None], [2**60]])
def test_refuses_indices_that_name_no_input(indices):
    with pytest.raises(ConfigError, match=r"Expected `indices` to be a whole number from 0 to 6, got "):
        select_indices(7, indices=indices)


def test_refuses_an_index_that_is_listed_twice():
    with pytest.raises(ConfigError, match=r"without repetitions, got 4 more than once"):
        select_indices(7, indices=[1, 4, 2, 4])


def test_refuses_an_empty_list():
    with pytest.raises(ConfigError, match=r"at least one index"):
        select_indices(7, indices=[])


@pytest.mark.parametrize("other", [{"start": 1}, {"every": 2}, {"first": 3}])
def test_refuses_a_list_beside_another_selection(other):
    with pytest.raises(ConfigError, match=r"either `indices` or"):
        select_indices(7, indices=[1], **other)

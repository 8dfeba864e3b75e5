from __future__ import annotations

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
    with pytest.raises(ConfigError, match="nothing to select"):
        select_indices(0)

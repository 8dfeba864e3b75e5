from __future__ import annotations

import io

import pytest
from rich.console import Console

from smoothcert.errors import InputError
from smoothcert.report.tables import AccuracyRow, accuracy_row, accuracy_table, best_per_column

AT = [0.0, 0.5]


def printed(*args, width=80, **kwargs) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(accuracy_table(*args, **kwargs))
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


def test_a_row_holds_certified_accuracies_and_the_average_radius():
    row = accuracy_row("σ = 1", [0.25, 0.5, 0.75, 0.0], [True, True, False, True], AT)
    assert row == AccuracyRow("σ = 1", (0.5, 0.25), 0.1875)


def test_the_best_of_each_column_are_all_that_tie_and_nobody_at_0():
    assert best_per_column([(0.2, 0.3, 0.3), (0.5, 0.1, 0.2), (0.0, 0.0, 0.0)]) == [{1, 2}, {0}, set()]


def test_the_best_is_marked_with_a_star_so_that_it_survives_without_colour():
    lines = printed([AccuracyRow("low", (0.9, 0.1), 0.3), AccuracyRow("high", (0.8, 0.4), 0.2)], AT)
    assert lines[2].split() == ["low", "90.0*", "10.0", "0.300*"]
    assert lines[3].split() == ["high", "80.0", "40.0*", "0.200"]


def test_percentages_and_average_radii_are_rounded_down():
    lines = printed([AccuracyRow("σ", (0.66666, 0.29), 0.12399)], AT)
    assert lines[2].split() == ["σ", "66.6*", "29.0*", "0.123*"]


def test_an_upper_bound_is_rounded_up_and_never_marked():
    rows = [AccuracyRow("σ", (0.5, 0.1), 0.2)]
    lines = printed(rows, AT, upper_bound=AccuracyRow("attacked", (0.9, 0.66661), float("inf")))
    assert lines[-1].split() == ["attacked", "90.0", "66.7", "–"]
    assert lines[2].split() == ["σ", "50.0*", "10.0*", "0.200*"]


def test_nine_radii_fit_into_80_characters_even_if_everything_is_certified():
    at = [i / 10 for i in range(9)]
    full = AccuracyRow("σ = 0.25", (1.0,) * 9, 1.234)
    lines = printed([full], at, upper_bound=AccuracyRow("undefended", (1.0,) * 9, 0.0))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert lines[2].split() == ["σ", "=", "0.25", *["100.0*"] * 9, "1.234*"]


def test_refuses_a_row_of_another_length():
    with pytest.raises(InputError, match="Expected 2 accuracies in row 'σ', got 1"):
        accuracy_table([AccuracyRow("σ", (0.5,), 0.1)], AT)

from __future__ import annotations

import math
import re

import pytest
from scipy.special import ndtr, ndtri

from smoothcert.cli import main
from smoothcert.cli.plan import bar, fewest_draws


def cells(out: str) -> dict[str, list[str]]:
    """The printed rows by their first cell."""
    rows = [line.split() for line in out.splitlines() if re.match(r"\s*[\d.,]+ ", line)]
    return {row[0]: row[1:] for row in rows}


def test_the_fewest_draws_are_those_of_the_closed_form(capsys):
    assert main(["plan", "--sigma", "0.5", "--alpha", "0.01", "--radii", "0.5", "1.1", "2"]) == 0
    rows = cells(capsys.readouterr().out)
    for radius in (0.5, 1.1, 2):
        expected = math.ceil(math.log(0.01) / math.log(ndtr(radius / 0.5)))
        assert rows[f"{radius:g}"] == [f"{radius / 0.5:g}", f"{expected:,}"]


def test_the_largest_radii_are_those_of_the_closed_form_rounded_down(capsys):
    assert main(["plan", "--sigma", "0.25", "--n", "100", "1000", "100000"]) == 0
    rows = cells(capsys.readouterr().out)
    for n in (100, 1000, 100_000):
        exact = 0.25 * -ndtri(-math.expm1(math.log(0.001) / n))
        printed = rows[f"{n:,}"][0]
        assert printed == f"{math.floor(exact * 10_000) / 10_000:.4f}"
        assert float(printed) <= exact


def test_by_default_radii_are_multiples_of_sigma(capsys):
    assert main(["plan", "--sigma", "2"]) == 0
    rows = cells(capsys.readouterr().out)
    assert [rows[r][1] for r in ("2", "4", "6")] == ["40", "301", "5,114"]


def test_what_no_number_of_draws_can_certify_is_said_so(capsys):
    assert main(["plan", "--sigma", "0.25", "--radii", "0.5", "25"]) == 0
    assert cells(capsys.readouterr().out)["25"] == ["100", "beyond", "2^53"]
    assert fewest_draws(0.5, 0.25, 0.001) == "301"


def test_too_few_draws_for_anything_certify_nothing(capsys):
    assert main(["plan", "--n", "9", "10"]) == 0
    rows = cells(capsys.readouterr().out)
    assert rows["9"] == ["none"]
    assert float(rows["10"][0]) > 0


def test_says_in_words_what_the_numbers_mean(capsys):
    main(["plan"])
    assert "at least this many noisy copies" in " ".join(capsys.readouterr().out.split())


def test_bars_are_as_long_as_their_values():
    assert bar(2.0, 2.0, width=4) == "████"
    assert bar(0.5, 2.0, width=4) == "█"
    assert bar(0.0, 2.0) == bar(0.0, 0.0) == ""
    assert bar(1.125, 2.0, width=4) == "██▎"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_written_where_asked_and_its_place_printed(tmp_path, capsys, suffix):
    path = tmp_path / f"plan.{suffix}"
    assert main(["plan", "--out", str(path)]) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)
    assert f"Figure: {path}" in capsys.readouterr().out


def test_a_path_with_square_brackets_is_printed_as_it_is(tmp_path, capsys):
    path = tmp_path / "[bold]plan.svg"
    assert main(["plan", "--out", str(path)]) == 0
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--sigma", "0"], "`sigma` to be a finite number > 0"),
        (["--sigma", "-1"], "`sigma` to be a finite number > 0"),
        (["--sigma", "nan"], "`sigma` to be a finite number > 0"),
        (["--sigma", "inf"], "`sigma` to be a finite number > 0"),
        (["--alpha", "0"], "`alpha` in (0, 0.5), got 0.0"),
        (["--alpha", "-0.1"], "`alpha` in (0, 0.5)"),
        (["--alpha", "0.5"], "`alpha` in (0, 0.5)"),
        (["--alpha", "1"], "`alpha` in (0, 0.5)"),
        (["--alpha", "nan"], "`alpha` in (0, 0.5), got nan"),
        (["--radii", "0.5", "0"], "`radii` to be finite numbers > 0, got 0.0"),
        (["--radii", "inf"], "`radii`"),
        (["--n", "0"], "`n` to be a whole number"),
        (["--n", "100", "-5"], "`n` to be a whole number"),
        (["--n", str(2**53 + 1)], "`n` to be a whole number"),
        (["--n"], "at least one number of draws"),
    ],
)
def test_bad_settings_exit_with_2_name_option_value_and_range_and_write_nothing(tmp_path, capsys, flags, named):
    assert main(["plan", *flags, "--out", str(tmp_path / "plan.png")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: Expected ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [("plan.gif", 2, "ends in .png, .svg"), ("none/plan.png", 6, "there is no folder"), (".", 2, "ends in .png")],
)
def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_printed(tmp_path, capsys, out, code, said):
    assert main(["plan", "--out", str(tmp_path / out)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


def test_a_tiny_alpha_is_accepted(capsys):
    assert main(["plan", "--alpha", "1e-300", "--radii", "0.5"]) == 0
    assert cells(capsys.readouterr().out)["0.5"] == ["2", "30,017"]


def test_a_config_file_gives_defaults_and_flags_win_over_it(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text("sigma = 1\nalpha = 0.01\nradii = [2, 3.0]\n")
    assert main(["plan", "--config", str(path), "--alpha", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "σ = 1, α = 0.001" in out
    assert cells(out)["3"] == ["3", "5,114"]
    assert main(["plan", f"--config={path}"]) == 0
    assert "σ = 1, α = 0.01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sigmaa = 1", "unknown key 'sigmaa'. Did you mean 'sigma'?"),
        ("sigma = 'abc'", "expected `sigma` to be a number, got 'abc'"),
        ("sigma = 0", "Expected `sigma` to be a finite number > 0"),
        ("sigma = ", "is not valid TOML"),
    ],
)
def test_a_bad_config_file_exits_with_2_and_one_line(tmp_path, capsys, text, said):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    assert main(["plan", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_config_file_that_does_not_exist_exits_with_2(tmp_path, capsys):
    assert main(["plan", "--config", str(tmp_path / "none.toml")]) == 2
    assert "Cannot read the config file" in capsys.readouterr().err

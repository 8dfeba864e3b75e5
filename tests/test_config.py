from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from smoothcert.cli import main
from smoothcert.config import load_config
from smoothcert.errors import ConfigError


@dataclass(frozen=True)
class Command:
    sigma: float
    batch_size: int = 1
    sigmas: tuple[float, ...] = ()
    out: Path | None = None
    name: str = "x"
    secure: bool = False
    config: Path | None = None


def load(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(Command, path)


def test_values_are_converted_to_the_types_of_the_fields(tmp_path):
    values = load(
        tmp_path, 'sigma = 1\nbatch_size = 8\nsigmas = [0.5, 1]\nout = "a/b.png"\nname = "y"\nsecure = true\n'
    )
    assert values == {
        "sigma": 1.0,
        "batch_size": 8,
        "sigmas": (0.5, 1.0),
        "out": Path("a/b.png"),
        "name": "y",
        "secure": True,
    }
    assert [type(v) for v in (values["sigma"], *values["sigmas"])] == [float] * 3


def test_only_what_the_file_says_is_returned_and_an_empty_file_says_nothing(tmp_path):
    assert load(tmp_path, "") == {}


def test_hyphens_are_as_good_as_underscores_but_not_both_at_once(tmp_path):
    assert load(tmp_path, "batch-size = 3") == {"batch_size": 3}
    with pytest.raises(ConfigError, match="given twice"):
        load(tmp_path, "batch-size = 3\nbatch_size = 4")


@pytest.mark.parametrize(("wrong", "right"), [("sigam", "sigma"), ("bacth_size", "batch_size"), ("Sigmas", "sigmas")])
def test_a_misspelt_key_is_refused_and_the_nearest_one_named(tmp_path, wrong, right):
    with pytest.raises(ConfigError, match=f"settings.toml: unknown key '{wrong}'. Did you mean '{right}'"):
        load(tmp_path, f"{wrong} = 1")


def test_a_key_that_resembles_none_is_refused_with_the_whole_list(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'zzz'. Expected one of sigma, batch_size, sigmas, out"):
        load(tmp_path, "zzz = 1")


def test_a_table_is_an_unknown_key_and_so_is_another_config_file(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'demo'"):
        load(tmp_path, "[demo]\nsigma = 1")
    with pytest.raises(ConfigError, match="unknown key 'config'"):
        load(tmp_path, 'config = "other.toml"')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('sigma = "abc"', "expected `sigma` to be a number, got 'abc'"),
        ("sigma = true", "expected `sigma` to be a number, got True"),
        ("sigma = [1.0]", r"expected `sigma` to be a number, got \[1.0\]"),
        ("batch_size = 2.5", "expected `batch_size` to be a whole number, got 2.5"),
        ("batch_size = true", "expected `batch_size` to be a whole number, got True"),
        ("sigmas = 0.5", "expected `sigmas` to be a list, each item a number, got 0.5"),
        ('sigmas = [0.5, "x"]', "expected `sigmas` to be a list, each item a number, got"),
        ("out = 3", "expected `out` to be a path in quotes, got 3"),
        ("secure = 1", "expected `secure` to be true or false, got 1"),
        ("name = 1", "expected `name` to be a text, got 1"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_key_value_and_expected_type(tmp_path, line, said):
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, line)


def test_nan_and_inf_are_numbers_here_and_left_to_the_range_checks(tmp_path):
    assert load(tmp_path, "sigma = inf") == {"sigma": float("inf")}


def test_invalid_toml_is_refused_with_the_line(tmp_path):
    with pytest.raises(ConfigError, match=r"settings.toml is not valid TOML: .*line 2"):
        load(tmp_path, "sigma = 1\nbatch_size = = 3\n")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Cannot read the config file .*No such file"):
        load_config(Command, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"Cannot read the config file .*directory"):
        load_config(Command, tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(Command, tmp_path / "binary.toml")


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path):
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbfsigma = 1.5\r\nbatch_size = 2\r\n")
    assert load_config(Command, path) == {"sigma": 1.5, "batch_size": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sigma = " + "[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ("sigma = " + "{a = " * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
        ("sigma = " + "9" * 5_000, "is not a config file"),
        ("sigma = 0x" + "f" * 5_000, "too large to print"),
        ("batch-size = 0x" + "f" * 5_000, "too large to print"),
        ("batch-size = " + "9" * 40, "expected `batch-size` to be"),
        ("batch-size = " + "[" * 300 + "]" * 300, "expected `batch-size` to be"),
        ("#" * 2**20 + "\nsigma = 1", "at most 1,048,576 bytes"),
    ],
    ids=["lists", "tables", "digits", "hexadecimal", "hexadecimal int", "40 digits", "300 lists", "long"],
)
def test_a_file_that_no_one_would_write_is_refused_in_one_sentence(tmp_path, capsys, text, said):
    (tmp_path / "settings.toml").write_text(text)
    assert main(["certify", "--config", str(tmp_path / "settings.toml")]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "Traceback" not in shown
    assert len(shown) < 1_000

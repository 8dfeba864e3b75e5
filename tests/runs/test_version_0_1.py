"""Runs that version 0.1 wrote: they open, verify, and draw the same votes again."""

import shutil
from pathlib import Path

import pytest

from smoothcert.cli import main

RUNS = Path(__file__).parents[1] / "fixtures" / "version_0_1"
DRAWN = ["planned", "grid", "known-labels", "paper", "predict", "predict-paper"]
BOUNDS = ["crown", "dual", "lipschitz"]
OTHERS = ["attack", "attack-base", "imported"]


@pytest.fixture(autouse=True)
def _there(monkeypatch):
    monkeypatch.chdir(RUNS)


@pytest.mark.parametrize("run", [*DRAWN, *BOUNDS, *OTHERS])
def test_it_is_shown(run, capsys):
    assert main(["show", run]) == 0
    assert "digits" in capsys.readouterr().out or run == "imported"


@pytest.mark.parametrize("run", [*DRAWN, *BOUNDS, *OTHERS])
def test_it_verifies(run):
    assert main(["verify", run]) == 0


@pytest.mark.parametrize("run", DRAWN)
def test_its_votes_are_drawn_again_from_streams_named_as_they_were(run, capsys):
    assert main(["verify", run, "--again", "2"]) == 0
    assert "2 of them drawn again" in capsys.readouterr().out


@pytest.mark.parametrize("run", ["planned", "grid", "paper"])
def test_it_is_resumed_with_the_noise_that_it_began_with(run, tmp_path):
    """Half of its rows are taken away; the rest must come out as version 0.1 made them, byte for byte."""
    resumed = tmp_path / run
    shutil.copytree(RUNS / run, resumed)
    rows = (resumed / "certificates.jsonl").read_bytes().splitlines(keepends=True)
    (resumed / "certificates.jsonl").write_bytes(b"".join(rows[:2]))
    settings = ["--sigma", "0.25", "--seed", "1", "--batch-size", "64", "--plan", "eager", "--chunk", "2"]
    settings += ["--n-max", "2000", "--first", "6", "--resume", "--out", str(resumed)]
    extra = {"planned": [], "grid": ["--radii", "0", "0.25", "0.5"], "paper": ["--procedure", "paper"]}[run]
    assert main(["certify", "net", "digits", *settings, *extra]) == 0
    assert (resumed / "certificates.jsonl").read_bytes() == b"".join(rows)

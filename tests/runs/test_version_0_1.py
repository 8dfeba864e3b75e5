"""Runs that version 0.1 wrote: they open, verify, and draw the same votes again."""

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

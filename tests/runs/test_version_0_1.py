"""Runs that version 0.1 wrote: they open, verify, and draw the same votes again.

Those of retired procedures open and show what they record, and name the version that verifies them.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest

from smoothcert import runs
from smoothcert.cli import main
from smoothcert.records import floor_decimal

RUNS = Path(__file__).parents[1] / "fixtures" / "version_0_1"
DRAWN = ["planned", "grid", "known-labels", "paper", "predict", "predict-paper"]
BOUNDS = ["crown", "dual", "lipschitz"]
OTHERS = ["attack", "attack-base", "imported"]
VERSION = "which this version does not have; verify with smoothcert 0.1 (commit 2632d2d)"
RETIRED = {
    "wide": f"recorded by the procedure `wide`, {VERSION}",
    "randomized": f"recorded with randomized bounds, {VERSION}",
}


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


# Retired procedures


def printed(capsys):
    """What was printed since the last time, without line breaks."""
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("run", "notice"), RETIRED.items())
def test_a_retired_run_shows_what_it_records(run, notice, capsys):
    rows = runs.open(run).rows
    assert all(row["radius"] > 0 for row in rows)
    assert main(["show", run]) == 0
    shown = printed(capsys)
    assert "6, complete" in shown
    assert notice in shown
    for row in rows:
        assert main(["show", run, "--index", str(row["index"])]) == 0
        shown = printed(capsys)
        assert f"class {row['label']} certified within L2 radius {floor_decimal(row['radius'], 4)}" in shown
        assert notice in shown


@pytest.mark.parametrize(("run", "notice"), RETIRED.items())
@pytest.mark.parametrize("again", [[], ["--again", "2"]], ids=["by itself", "again"])
def test_a_retired_run_is_never_called_verified(run, notice, again, capsys):
    assert main(["verify", run, *again]) == 7
    assert printed(capsys) == f"{run}: not verified, {notice}"
    assert main(["verify", run, *again, "--json"]) == 7
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["recomputed"], found["problems"]) == (False, 0, [])
    assert found["retirement"] == notice


def test_other_runs_are_verified_beside_a_retired_one_and_a_damaged_one_counts_more(tmp_path, capsys):
    assert main(["verify", "wide", "planned"]) == 7
    assert "planned: nothing wrong" in capsys.readouterr().out
    damaged = shutil.copytree(RUNS / "wide", tmp_path / "damaged")
    text = (damaged / "certificates.jsonl").read_text()
    (damaged / "certificates.jsonl").write_text(text.replace('"radius":0.3', '"radius":0.9', 1))
    assert main(["verify", "wide", str(damaged)]) == 1
    assert "1 of 2 runs failed" in capsys.readouterr().err


@pytest.mark.parametrize(("run", "notice"), RETIRED.items())
def test_tables_and_pages_have_the_recorded_radii_of_a_retired_run_and_say_so(run, notice, tmp_path, capsys):
    rows = runs.open(run).rows
    assert main(["table", run, "--format", "csv"]) == 0
    [measured] = csv.DictReader(capsys.readouterr().out.splitlines())
    right = [row["radius"] if row["label"] == row["true"] else 0.0 for row in rows]
    assert float(measured["ACR"]) == pytest.approx(sum(right) / len(right))
    assert main(["table", run]) == 0
    assert f"{run} was {notice}. Its radii are as recorded, not recomputed." in printed(capsys)
    assert main(["plot", "certified-accuracy", run, "--out", str(tmp_path / "figure.svg")]) == 0
    assert f"{run} was {notice}" in printed(capsys)
    assert main(["report", run, "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count(notice) >= 2
    assert "nothing about them was recomputed" in page
    assert "do not give what is recorded" not in page
    assert "smoothcert certify" not in page
    assert "smoothcert verify" not in page


@pytest.mark.parametrize("run", RETIRED)
def test_a_retired_run_is_not_resumed_with_another_procedure(run, tmp_path, capsys):
    resumed = shutil.copytree(RUNS / run, tmp_path / run)
    settings = ["--sigma", "0.25", "--seed", "1", "--batch-size", "64", "--plan", "eager", "--chunk", "2"]
    settings += ["--n-max", "2000", "--first", "6", "--resume", "--out", str(resumed)]
    assert main(["certify", "net", "digits", *settings]) == 4
    assert "what differs: procedure." in capsys.readouterr().err

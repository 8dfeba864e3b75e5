from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from page_fixtures import CLASSES, PROCEDURES, SIGMA, Reader, imported, made_run, manifest, one_row, saved, written
from smoothcert.cli import COMMANDS, _parse, main
from smoothcert.cli.report import Report
from smoothcert.errors import ConfigError, InputError, OutputError, ResumeError
from smoothcert.report.page import check_report_path, write_report
from smoothcert.report.page.commands import repeat_command
from smoothcert.report.page.html import embedded_json
from smoothcert.report.page.runs import shown_runs
from smoothcert.runs.directory import Run
from smoothcert.runs.manifest import Manifest
from smoothcert.stats.accuracy import certified_accuracy, floor_percent
from smoothcert.stats.grid import Grid


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "report.html"


# ---- what is on the page -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROCEDURES)
def test_every_procedure_has_its_page(out, name):
    page = written([made_run(name)], out)
    assert "α = 0.001" in page.text
    assert "smoothcert verify runs/" in page.text
    assert f"smoothcert {'predict' if name in ('predict', 'sequential') else 'certify'} m.safetensors" in page.text
    assert ("Certified accuracy" in page.text) == (name not in ("predict", "sequential"))
    assert "By class" in page.text
    assert "draws" in page.text
    assert "notice" not in page.text.lower()


def test_the_headline_is_the_share_certified_at_the_radius_rounded_down(out):
    run = made_run("paper", 30)
    table = run.table()
    shares = [certified_accuracy(table["radius"], table["correct"], radius) for radius in (0.0, 0.25, 0.5)]
    page = written([run], out)
    for share in shares:
        assert f"{floor_percent(share)} %" in page.text
    assert (
        f"{floor_percent(shares[-1])} % of 30 inputs of data.npz have their true class certified within L2 radius 0.5"
        in page.text
    )


@pytest.mark.parametrize("name", ["margin", "paper-margin", "grid-margin"])
def test_a_margin_is_said_and_repeated(out, name):
    page = written([made_run(name)], out)
    assert "σ = 0.5, lead ≥ 0.1" in page.text
    assert "within its radius, a class leads every other class by at least 0.1 in probability" in page.text
    assert "certified with a lead of at least 0.1 in probability" in page.text
    assert "Predictions with enough draws rarely abstain there" in page.text
    assert "--margin 0.1" in page.text
    plain = written([made_run("planned")], out).text
    assert "margin" not in plain.split("Manifest")[0]
    assert "lead" not in plain.split("Manifest")[0]


def test_known_labels_are_said(out):
    run = made_run("grid", known_labels=True)
    assert {row["label"] for row in run.rows} - {row["true"] for row in run.rows} <= {None}
    page = written([run], out)
    assert "hold for each input's true class" in page.text
    assert "--radii 0 0.25 0.5 --known-labels" in page.text
    assert "may have a certificate for another class" in page.text


def test_without_labels_claims_are_counted_and_nothing_is_right_or_wrong(out):
    run = made_run("paper", labelled=False)
    page = written([run], out)
    certified = sum(row["label"] is not None for row in run.rows)
    assert f"40: {certified} certified; {40 - certified} abstained" in page.text
    assert "have a class certified" in page.text
    assert "true class certified" not in page.text
    assert "By class" not in page.text


def test_an_imported_log_says_that_it_has_no_votes(out, tmp_path):
    page = written([imported(tmp_path)], out)
    assert "without votes" in page.text
    assert "cannot be verified" in page.text
    assert "smoothcert verify" not in page.text
    assert "smoothcert import sigma_0.50 --sigma 0.5 --alpha 0.001 --out RUN" in page.text
    assert "0.4999" in page.text
    assert "Never rounded up" not in page.text


def test_an_imported_log_of_predictions_works_too(out, tmp_path):
    page = written([imported(tmp_path, radius=False)], out)
    assert "2 inputs without their true class" in page.text
    assert "Certified accuracy" not in page.text


def test_an_incomplete_run_says_so_first(out):
    run = made_run("planned", 20)
    half = Run(run.path, run.manifest, run.rows[:7], notice="the last line was cut off")
    page = written([half], out)
    assert "not complete. Shares are of the 7 inputs done so far, out of 20." in page.text
    assert "the last line was cut off" in page.text
    assert page.text.index("not complete") < page.text.index("%")


def test_a_run_without_rows_yet_has_a_page(out):
    run = made_run("paper", 3)
    assert "No input is done yet." in written([Run(run.path, run.manifest, [])], out).text


def test_failed_inputs_are_said_and_count_as_not_certified(out):
    run = made_run("paper", 10)
    rows = [{"index": 0, "true": 0, "error": "InputError: <torn> file"}, *run.rows[1:]]
    page = written([Run(run.path, run.manifest, rows)], out)
    assert "1 of 10 inputs failed; they count as not certified." in page.text
    assert "InputError: <torn> file" in page.text
    assert page.data["runs"][0]["notes"] == {"0": "InputError: <torn> file"}
    assert page.data["runs"][0]["label"][0] == -1


def test_several_runs_stand_side_by_side_under_their_names(out, tmp_path):
    found = [made_run("paper"), made_run("planned"), made_run("sequential"), imported(tmp_path)]
    page = written(found, out)
    names = [shown.name for shown in shown_runs(found)]
    assert len(set(names)) == 4
    assert all(name in page.text for name in names)
    assert [run["name"] for run in page.data["runs"]] == [names[0], names[1], names[3]]


def test_the_manifest_is_there_as_json(out):
    run = made_run("grid", 30, data={"name": "d", "inputs": 30, "fingerprint": 'sha256:"<', "classes": ["ä", "b"]})
    page = written([run], out)
    text = page.text[page.text.index('{ "format": 1') :]
    shown = json.loads(text[: text.index(" Made by smoothcert")])
    assert shown.pop("indices") == "30 inputs, from 0 to 29; run.json has the list"
    assert shown == {name: value for name, value in run.manifest.values.items() if name != "indices"}


def test_the_same_runs_give_the_same_page(out, tmp_path):
    write_report([made_run()], out)
    write_report([made_run()], tmp_path / "again.html")
    assert out.read_bytes() == (tmp_path / "again.html").read_bytes()


# ---- safety --------------------------------------------------------------------------------------------------------

EVIL = "</script><script>alert(1)</script>\u2028\u202e<img src=x onerror=alert(2)>&\"'"


def test_text_from_files_is_shown_and_never_obeyed(out):
    run = made_run("paper", 8)
    values = dict(run.manifest.values)
    values["model"] = {**values["model"], "source": EVIL, "classes": [EVIL] * CLASSES, "notes": [EVIL]}
    values["data"] = {**values["data"], "name": EVIL, "fingerprint": EVIL}
    rows = [{"index": 0, "true": 0, "error": EVIL}, *run.rows[1:]]
    page = written([Run(Path(EVIL.replace("/", "|")), Manifest(values), rows, notice=EVIL)], out)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert "<img src=x onerror=alert(2)>" in page.text
    text = out.read_text("utf-8")
    assert "\u2028" not in text
    assert "\u202e" not in text
    assert page.data["runs"][0]["classes"]["0"].startswith(EVIL)


def test_names_that_are_no_unicode_do_not_stop_the_page(out):
    run = made_run("paper", 4)
    write_report([Run(Path("run-\udcff"), run.manifest, run.rows)], out)
    assert "run-\\udcff" in out.read_text("utf-8")


def test_nothing_is_loaded_from_anywhere(out):
    page = written([made_run("paper")], out, data=None)
    policy = next(
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in "".join(page.raw["style"])
    addresses = set(re.findall(r"https?://[^\s\"']+", out.read_text("utf-8")))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a kind of element; nothing is there to load


def test_json_in_a_script_cannot_end_it():
    text = embedded_json({"a": EVIL})
    assert json.loads(text) == {"a": EVIL}
    assert not set(text) & {"<", ">", "&", "\u2028"}


# ---- repeating -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"indices": list(range(0, 100, 5)), "data": {"name": "mnist (train)", "inputs": 100}}, "mnist --split train"),
        ({"indices": list(range(0, 100, 5)), "data": {"name": "mnist (test)", "inputs": 100}}, "--every 5 --batch"),
        ({"indices": [0, 1, 2], "data": {"name": "mnist (test)", "inputs": 100}}, "--first 3"),
        ({"indices": [4, 2]}, "--indices 4 2"),
        ({"seed": None, "secure": True}, "--secure --batch-size 64"),
        ({"model": {"source": "my net.onnx", "num_classes": 4}}, "certify 'my net.onnx' data.npz --sigma 0.5"),
    ],
)
def test_the_command_that_makes_the_run_again(changes, flags):
    run = made_run("paper", 1, **changes)
    assert flags in repeat_command(shown_runs([run])[0])


def vars_of(procedure):
    return {(field.name, getattr(procedure, field.name)) for field in fields(procedure)} | {("kind", type(procedure))}


def test_the_command_is_one_that_the_command_line_takes():
    for name in PROCEDURES:
        [shown] = shown_runs([made_run(name, 2)])
        words = shlex.split(repeat_command(shown))
        command = _parse(words[1:])
        assert vars_of(PROCEDURES[name]) <= vars_of(command.make_procedure()) or name == "sequential"
        assert (command.sigma, command.alpha, command.seed) == (SIGMA, 0.001, 1)


# ---- the command ---------------------------------------------------------------------------------------------------


def reported(*paths: Path, out: Path, **options) -> str:
    text = StringIO()
    Report(paths=paths, out=out, **options).run(Console(file=text, width=200))
    return text.getvalue()


def test_the_command_reads_runs_and_writes_the_page(out, tmp_path):
    one, two = saved(made_run("paper"), tmp_path / "one"), saved(made_run("predict"), tmp_path / "two")
    printed = reported(one, two, out=out)
    assert "runs: 2" in printed
    assert str(out) in printed
    assert "without pictures" in printed
    assert Reader(out.read_text("utf-8")).data["runs"][0]["index"] == list(range(40))


def test_the_command_line_takes_it(out, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "report", Report)
    one = saved(made_run("paper", 6), tmp_path / "one")
    assert main(["report", str(one), "--out", str(out), "--no-images", "--gallery", "3"]) == 0
    assert "runs: 1" in capsys.readouterr().out
    assert main(["report", str(one), "--out", str(tmp_path / "report.txt")]) == 2
    assert main(["report", str(tmp_path), "--out", str(out)]) == 4
    assert main(["report", "--help"]) == 0
    assert "smoothcert report run --out report.html" in capsys.readouterr().out


def test_a_report_needs_no_torch(out, tmp_path):
    one = saved(made_run("grid"), tmp_path / "one")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\nfrom smoothcert import runs\nfrom smoothcert.report.page import write_report\n"
        "write_report([runs.open(sys.argv[1])], Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, str(one), str(out)], check=True)
    assert out.is_file()


def test_an_earlier_report_is_replaced_and_nothing_else(out, tmp_path):
    write_report([made_run("paper", 4)], out)
    first = out.read_bytes()
    write_report([made_run("paper", 5)], out)
    assert out.read_bytes() != first
    other = tmp_path / "mine.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match="no report of smoothcert's"):
        write_report([made_run("paper", 4)], other)
    assert other.read_text() == "<p>mine</p>"


def test_mistakes_are_told_before_any_work(tmp_path):
    run = made_run("paper", 4)
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        check_report_path(tmp_path / "report.pdf")
    with pytest.raises(OutputError, match="there is no folder"):
        check_report_path(tmp_path / "none" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OutputError, match="it is a folder"):
        check_report_path(tmp_path / "folder.html")
    (tmp_path / "link.html").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="no ordinary file"):
        check_report_path(tmp_path / "link.html")
    with pytest.raises(ConfigError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ConfigError, match="`gallery`"):
        write_report([run], tmp_path / "report.html", gallery=401)
    with pytest.raises(ResumeError, match="Expected a run in"):
        reported(tmp_path, out=tmp_path / "report.html")
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        reported(tmp_path, out=tmp_path / "report")
    assert not (tmp_path / "report.html").exists()


def test_data_that_were_named_but_are_not_there_are_an_error(out):
    with pytest.raises(InputError, match="there is no"):
        write_report([made_run("paper", 4)], out, data="nowhere/data.npz")
    assert not out.exists()


# ---- radii that were not tested, inputs that were chosen -----------------------------------------------------------


def test_a_grid_run_has_dashes_and_a_curve_that_ends(tmp_path):
    grid, plan = made_run("grid", 40), made_run("planned", 40)
    values = {**grid.manifest.values, "procedure": {**grid.manifest.values["procedure"], "radii": [0.0, 0.3]}}
    other = Run(grid.path / "other", Manifest(values), grid.rows)
    page = written([grid, plan, other], tmp_path / "report.html", images=False)
    shown = {one["name"]: one for one in page.data["runs"]}
    assert [one["tested"] for one in page.data["runs"]] == [[0.0, 0.25, 0.5], None, [0.0, 0.3]]
    assert all(one["most"] is None or 1.3 < one["most"] < 1.4 for one in shown.values())
    assert "of tested radii only" in page.text
    assert "where the run did not test it" in page.text
    assert "beyond which nothing is known" in page.text
    [curve] = [one["d"] for tag, one in page.tags if tag == "path" and one.get("data-run") == "0"]
    end = page.data["end"]
    assert int(re.findall(r"H(\d+)", curve)[-1]) == int(2000 * 0.5 / end)
    assert not curve.endswith("V1000")


def test_the_headline_is_at_a_radius_that_all_runs_decide(tmp_path):
    page = written([made_run("grid", 40), made_run("planned", 40)], tmp_path / "report.html", images=False)
    assert page.text.count("certified within L2 radius 0.5:") == 2
    assert "was not tested" not in page.text


def only_zero() -> Run:
    """A run that tested radius 0 alone."""
    procedure = Grid(radii=(0.0,), sigma=SIGMA, n_max=2_000)
    generator = np.random.default_rng(0)
    rows = [one_row(index, index % CLASSES, procedure, generator) for index in range(12)]
    return Run(Path("runs") / "zero", manifest(procedure, 12), rows)


def test_a_run_at_radius_zero_claims_classes_only(tmp_path):
    page = written([only_zero()], tmp_path / "report.html", images=False)
    assert "have their true class certified (class only, no radius)" in page.text
    assert "within L2 radius 0" not in page.text
    assert "0.0000" not in page.text


def test_cards_say_which_inputs_were_certified(tmp_path):
    run = made_run("paper", 40)
    every = Run(run.path, run.manifest, run.rows[::4])
    chosen = Run(run.path / "b", run.manifest, [run.rows[k] for k in (1, 4, 30)])
    page = written([every, chosen], tmp_path / "report.html", images=False)
    assert "Selection every 4th of 40 inputs" in page.text
    assert "Selection 3 chosen inputs: not a sample of the 40" in page.text
    assert "bound nothing about the rest of the data" in page.text

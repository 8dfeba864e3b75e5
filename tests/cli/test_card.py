import json
import re
import shutil

import numpy as np
import pytest

from smoothcert import runs
from smoothcert.cli import main
from smoothcert.records import floor_decimal
from smoothcert.runs.summary import default_radii, summarize

FAST = ["--epochs", "6", "--batch-size", "64", "--sigma", "0.25"]
CERTIFY = ["--n-max", "300", "--batch-size", "64", "--chunk", "2", "--seed", "0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two networks, a and b, and the run of a on seven inputs; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate("ab"):
        assert main(["train", "digits", *FAST, "--seed", str(seed), "--out", str(folder / name)]) == 0
    assert certified(folder / "a", folder / "run", "--first", "7") == 0
    return folder


@pytest.fixture
def net(made, tmp_path):
    return shutil.copytree(made / "a", tmp_path / "a")


def certified(model, out, *more, data="digits", sigma=0.25):
    flags = ["--sigma", str(sigma), *CERTIFY, *map(str, more)]
    return main(["certify", str(model), str(data), "--out", str(out), *flags])


def card(net, *paths):
    return main(["card", str(net), *map(str, paths)])


def text_of(net):
    return (net / "README.md").read_text("utf-8")


def only_line(err):
    [line] = err.splitlines()
    return line


def cells(text, start):
    """The cells of each table row that begins like this."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [[cell.strip() for cell in row.strip("|").split("|")[1:]] for row in rows]


def test_help_has_examples(capsys):
    assert main(["card", "--help"]) == 0
    assert "smoothcert card lenet run" in capsys.readouterr().out.partition("examples:")[2]


def test_certified_accuracy_goes_into_the_card_and_nothing_else_changes(made, net, capsys):
    before = text_of(net)
    assert card(net, made / "run") == 0
    assert capsys.readouterr().out.strip() == str(net / "README.md")
    text = text_of(net)
    assert "Not measured yet" in before
    assert "Not measured yet" not in text
    parts = [part.partition("## Certified accuracy") for part in (before, text)]
    assert parts[0][0] == parts[1][0]
    assert parts[0][2].partition("## Use")[2] == parts[1][2].partition("## Use")[2]
    run = runs.open(made / "run")
    where = "On 7 inputs of digits (test), the first 7 of 500 inputs, smoothed with σ = 0.25"
    assert f"{where}, by the procedure Planned with α = 0.001" in text
    assert f"{sum(one.draws for one in run.certificates):,} draws" in text
    assert card(net, made / "run") == 0
    assert text_of(net) == text  # written anew, not appended


def test_no_figure_exceeds_what_the_run_shows(made, net):
    assert card(net, made / "run") == 0
    run = runs.open(made / "run")
    summary = summarize(run, default_radii(run))
    [radii], [shares] = cells(text_of(net), "radius"), cells(text_of(net), "certified and correct %")
    assert [float(radius) for radius in radii] == pytest.approx(summary["radii"])
    assert any(share not in (0.0, 1.0) for share in summary["certified"])  # or rounding would not show
    for printed, share in zip(shares, summary["certified"], strict=True):
        assert float(printed) <= 100 * share + 1e-9
        assert float(printed) > 100 * share - 0.1
    radius = re.search(r"average certified radius ([0-9.]+):", text_of(net)).group(1)
    assert radius == str(floor_decimal(summary["average_radius"], 3))
    assert float(radius) <= summary["average_radius"]


def test_several_runs_have_a_table_each(made, net, tmp_path):
    assert certified(net, tmp_path / "other", "--first", "3", "--radii", "0", "0.1", "0.3", sigma=0.5) == 0
    assert card(net, made / "run", tmp_path / "other") == 0
    text = text_of(net)
    assert len(cells(text, "certified and correct %")) == 2
    assert cells(text, "radius")[1] == ["0", "0.1", "0.3"]
    assert (
        "On 3 inputs of digits (test), the first 3 of 500 inputs, smoothed with σ = 0.5, by the procedure Grid" in text
    )
    assert re.search(r"draws; average of the tested radii [0-9.]+:", text)


def test_a_run_of_another_model_is_refused_and_the_card_stays(made, tmp_path, capsys):
    other = shutil.copytree(made / "b", tmp_path / "b")
    before = text_of(other)
    assert card(other, made / "run") == 3
    assert f"{made / 'run'} is a run of another model" in only_line(capsys.readouterr().err)
    assert text_of(other) == before


def test_a_run_with_something_in_front_of_the_model_is_of_another_model(made, net, tmp_path, capsys):
    assert certified(net, tmp_path / "run", "--first", "2", "--denoiser", "tv") == 0
    before = text_of(net)
    assert card(net, tmp_path / "run") == 3
    assert "another model" in capsys.readouterr().err
    assert text_of(net) == before


def test_one_bad_run_among_good_ones_leaves_the_card(made, net, tmp_path):
    assert certified(made / "b", tmp_path / "bad", "--first", "2") == 0
    before = text_of(net)
    assert card(net, made / "run", tmp_path / "bad") == 3
    assert text_of(net) == before


def test_what_is_no_training_or_no_run_is_said(made, net, tmp_path, capsys):
    assert card(tmp_path / "none", made / "run") == 3
    assert "train.json" in only_line(capsys.readouterr().err)
    assert card(net, tmp_path / "none") != 0
    assert "none" in only_line(capsys.readouterr().err)
    assert card(net, made / "a") != 0
    assert only_line(capsys.readouterr().err)


def test_a_training_that_is_not_complete_gets_no_card(made, net, capsys):
    record = json.loads((net / "train.json").read_text("utf-8"))
    record.pop("result")
    (net / "train.json").write_text(json.dumps(record))
    before = text_of(net)
    assert card(net, made / "run") in (2, 3)
    assert str(net) in only_line(capsys.readouterr().err)
    assert text_of(net) == before


def test_a_run_that_predicts_has_nothing_to_certify(made, net, tmp_path, capsys):
    flags = ["--sigma", "0.25", *CERTIFY, "--first", "3"]
    assert main(["predict", str(net), "digits", "--out", str(tmp_path / "run"), *flags]) == 0
    before = text_of(net)
    capsys.readouterr()
    assert card(net, tmp_path / "run") in (2, 3)
    assert "predict" in only_line(capsys.readouterr().err)
    assert text_of(net) == before


def test_a_run_without_rows_has_nothing_to_say(made, net, tmp_path, capsys):
    empty = shutil.copytree(made / "run", tmp_path / "run")
    (empty / "certificates.jsonl").write_bytes(b"")
    assert card(net, empty) in (2, 3)
    assert str(empty) in only_line(capsys.readouterr().err)


def test_a_run_that_was_cut_off_is_said_to_be(made, net, tmp_path):
    part = shutil.copytree(made / "run", tmp_path / "run")
    lines = (part / "certificates.jsonl").read_bytes().splitlines(keepends=True)
    (part / "certificates.jsonl").write_bytes(b"".join(lines[:3]))
    if card(net, part) == 0:
        assert "3 of 7 inputs" in text_of(net)
    else:
        assert "Not measured yet" in text_of(net)


def test_inputs_without_labels_are_not_called_correct(made, net, tmp_path):
    np.save(tmp_path / "bare.npy", np.full((3, 1, 8, 8), 70, np.uint8))
    assert certified(net, tmp_path / "run", data=tmp_path / "bare.npy") == 0
    assert card(net, tmp_path / "run") == 0
    assert cells(text_of(net), "certified %")
    assert not cells(text_of(net), "certified and correct %")

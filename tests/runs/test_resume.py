"""Going on with a run: the same one, from wherever it stopped, or an error that says what is not the same."""

import json
import re
import shutil

import numpy as np
import pytest

from run_fixtures import FLAGS, INPUTS, ROWS, arguments, certify, settings
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.data import ArrayData, load
from smoothcert.errors import ConfigError, ResumeError, SmoothcertError
from smoothcert.runs.journal import Journal, encode_line
from smoothcert.runs.manifest import FILE, Manifest, read_manifest

pytest_plugins = ["run_fixtures"]


@pytest.fixture
def half(whole, reference, tmp_path):
    """A run that stopped in the middle of a chunk."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    cut(folder, reference, 10)
    return folder


def cut(folder, reference, lines):
    (folder / ROWS).write_bytes(b"".join(reference.splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("lines", [0, 1, 4, 10, INPUTS - 1])
def test_a_run_goes_on_from_any_row(files, half, reference, lines):
    cut(half, reference, lines)
    run = certify(files, half, resume=True)
    assert (half / ROWS).read_bytes() == reference
    assert run.complete
    assert run.rows == runs.open(half).rows


def test_a_run_whose_file_of_rows_is_not_there_yet_goes_on(files, half, reference):
    (half / ROWS).unlink()
    assert not runs.open(half).rows
    certify(files, half, resume=True)
    assert (half / ROWS).read_bytes() == reference


def test_only_what_is_missing_is_worked_on(files, half):
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.smoothing import run_dataset

    told = []
    run_dataset(
        ModelSpec(source=str(files.model)),
        load(files.data),
        settings(),
        half,
        resume=True,
        on_start=lambda *words: told.append(words),
        on_rows=lambda rows, draws: told.append(([row["index"] for row in rows], draws)),
    )
    assert told[0] == (10, INPUTS, None)
    assert [indices for indices, _ in told[1:3]] == [[10, 11], [12, 13, 14, 15]]  # the rest of a chunk, then the next
    assert [index for indices, _ in told[1:] for index in indices] == list(range(10, INPUTS))
    assert all(draws == len(indices) * (100 + FLAGS["n_max"]) for indices, draws in told[1:])


def test_a_complete_run_is_left_as_it_is(files, whole, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    assert certify(files, folder, resume=True).complete
    assert main(arguments(files, folder, "--resume")) == 0
    assert f"{INPUTS} of {INPUTS} inputs are there already" in "".join(capsys.readouterr())
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before


def test_resume_starts_a_run_where_there_is_none(files, tmp_path, reference):
    certify(files, tmp_path / "new", resume=True)
    assert (tmp_path / "new" / ROWS).read_bytes() == reference
    (tmp_path / "empty").mkdir()
    certify(files, tmp_path / "empty", resume=True)
    assert (tmp_path / "empty" / ROWS).read_bytes() == reference


@pytest.mark.parametrize("leftovers", [["lock"], ["lock", ".run.json.part"]])
def test_a_run_that_was_killed_before_its_manifest_starts_again(files, tmp_path, reference, leftovers):
    for name in leftovers:
        (tmp_path / name).write_text("{")
    certify(files, tmp_path)
    assert (tmp_path / ROWS).read_bytes() == reference


def test_the_file_cut_anywhere_in_its_last_two_lines_becomes_the_same_file(half, reference):
    run_id = read_manifest(half).run_id
    lines = reference.splitlines(keepends=True)
    rows = [{name: value for name, value in json.loads(line).items() if name != "sum"} for line in lines]
    start = len(reference) - len(lines[-1]) - len(lines[-2])
    for length in range(start, len(reference) + 1):
        (half / ROWS).write_bytes(reference[:length])
        kept = reference[:length].count(b"\n")
        assert len(runs.open(half).rows) == kept
        with Journal(half / ROWS, run_id) as journal:
            assert journal.rows == rows[:kept]
            assert (journal.notice is None) == reference[:length].endswith(b"\n")
            assert (half / ROWS).read_bytes() == b"".join(lines[:kept])
            journal.append(rows[kept:])
        assert (half / ROWS).read_bytes() == reference


@pytest.mark.parametrize("missing", [1, 2, 40, 200, 300])
def test_a_torn_tail_is_told_and_made_again(files, half, reference, capsys, missing):
    (half / ROWS).write_bytes(reference[:-missing])
    assert "was cut off" in runs.open(half).notice
    assert main(["show", str(half)]) == 0
    assert "was cut off" in capsys.readouterr().out.replace("\n", " ")
    assert main(arguments(files, half, "--resume")) == 0
    err = capsys.readouterr().err
    assert err.startswith("notice: the last line of ")
    assert err.count("was cut off") == 1
    assert (half / ROWS).read_bytes() == reference


def flip(lines, number):
    lines[number] = lines[number][:30] + bytes([lines[number][30] ^ 4]) + lines[number][31:]


def replace_line(lines, number, content):
    lines[number] = content


def swap(lines, number):
    lines[number], lines[number + 1] = lines[number + 1], lines[number]


def foreign(lines, number):
    row = json.loads(lines[number])
    del row["sum"]
    lines[number] = encode_line("another run", number, row)


DAMAGES = {
    "a flipped bit": flip,
    "NULs": lambda lines, k: replace_line(lines, k, b"\0" * (len(lines[k]) - 1) + b"\n"),
    "CRLF": lambda lines, k: replace_line(lines, k, lines[k][:-1] + b"\r\n"),
    "a BOM": lambda lines, k: replace_line(lines, k, b"\xef\xbb\xbf" + lines[k]),
    "deleted": lambda lines, k: lines.pop(k),
    "swapped": swap,
    "duplicated": lambda lines, k: lines.insert(k, lines[k - 1]),
    "truncated": lambda lines, k: replace_line(lines, k, lines[k][:50] + b"\n"),
    "of another run": foreign,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_the_middle_names_the_line_and_touches_nothing(files, half, reference, capsys, damage):
    lines = reference.splitlines(keepends=True)
    DAMAGES[damage](lines, 7)
    damaged = b"".join(lines)
    assert damaged != reference
    (half / ROWS).write_bytes(damaged)
    with pytest.raises(ResumeError, match=r"damaged in line 8 "):
        certify(files, half, resume=True)
    for words in (arguments(files, half, "--resume"), ["show", str(half)]):
        assert main(words) == 4
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert "damaged in line 8 " in captured.err
    assert (half / ROWS).read_bytes() == damaged


def test_rows_of_other_inputs_are_not_accepted(files, half):
    """With valid checksums, as only a fault of the program could write them."""
    run_id = read_manifest(half).run_id
    (half / ROWS).write_bytes(encode_line(run_id, 0, {"index": 1, "true": 0, "error": "none"}))
    for call in (lambda: runs.open(half), lambda: certify(files, half, resume=True)):
        with pytest.raises(ResumeError, match=r"line 1 .* to be about input 0, got 1"):
            call()


def test_more_rows_than_inputs_are_not_accepted(files, half, reference):
    run_id = read_manifest(half).run_id
    (half / ROWS).write_bytes(reference + encode_line(run_id, INPUTS, {"index": INPUTS, "true": 0, "error": "none"}))
    for call in (lambda: runs.open(half), lambda: certify(files, half, resume=True)):
        with pytest.raises(ResumeError, match=f"at most {INPUTS} rows"):
            call()


def names(error):
    """The names of what differs, out of the message."""
    found = re.search(r"what differs: (.*)\. Repeat its settings", str(error))
    assert found, str(error)
    return {part.partition(":")[0] for part in found[1].split("; ")}


CHANGES = {
    "sigma": ({"sigma": 0.25}, {"sigma"}),
    "alpha": ({"alpha": 0.01}, {"alpha", "procedure.alpha"}),
    "n_max": ({"n_max": 65}, {"procedure.n"}),
    "seed": ({"seed": 2}, {"seed", "key"}),
    "noise": ({"noise": "gaussian"}, {"noise"}),
    "batch size": ({"batch_size": 16}, {"plan.batch_size"}),
    "chunk": ({"chunk": 5}, {"plan.chunk"}),
    "indices": ({"indices": range(INPUTS - 1)}, {"indices"}),
    "order of indices": ({"indices": [*range(1, INPUTS), 0]}, {"indices"}),
    "random": ({"allow_random": True}, {"allow_random"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_setting_is_named_and_nothing_else(files, half, change):
    changes, expected = CHANGES[change]
    before = {path.name: path.read_bytes() for path in half.iterdir()}
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True, **changes)
    assert names(caught.value) == expected
    del before["lock"]
    assert {path.name: path.read_bytes() for path in half.iterdir() if path.name != "lock"} == before
    certify(files, half, resume=True)  # it was not spoilt


def test_another_procedure_is_named(files, half):
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True, procedure="planned")
    assert "procedure.name" in names(caught.value)
    assert all(name.startswith("procedure.") for name in names(caught.value))


def test_other_radii_are_named(files, tmp_path):
    grid = {"procedure": "grid", "n_max": 200}
    certify(files, tmp_path / "run", indices=range(4), radii=(0.0, 0.25), **grid)
    with pytest.raises(ResumeError) as caught:
        certify(files, tmp_path / "run", indices=range(4), resume=True, radii=(0.0, 0.5), **grid)
    assert names(caught.value) == {"procedure.radii"}
    with pytest.raises(ResumeError) as caught:
        certify(files, tmp_path / "run", indices=range(4), resume=True, radii=(0.0, 0.25), known_labels=True, **grid)
    assert names(caught.value) == {"known_labels"}


def test_other_weights_are_named_wherever_they_lie(files, half):
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True, model=str(files.other_model))
    assert names(caught.value) == {"model.weights_hash"}


def test_other_data_is_named_though_it_has_the_same_name(files, half):
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True, data=files.other_data)
    assert names(caught.value) == {"data.fingerprint"}


def test_other_labels_are_other_data(files, half):
    data = load(files.data)
    other = ArrayData(data.inputs, np.roll(data.labels, 1), data.classes, data.name)
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True, data=other)
    assert names(caught.value) == {"data.fingerprint"}


def test_another_kind_of_run_is_named(files, half, capsys):
    assert main(arguments(files, half, "--resume", kind="predict")) == 4
    assert "kind: " in capsys.readouterr().err


def rewritten(folder, **changes):
    """The manifest as another machine or version would have written it."""
    values = dict(read_manifest(folder).values)
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    Manifest(values).write(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"versions": {"smoothcert": "0.0.9"}}, "versions.smoothcert"),
        ({"versions": {"torch": "2.4.0"}}, "versions.torch"),
        ({"versions": {"numpy": "1.26.0"}}, "versions.numpy"),
        ({"device": "cuda (some other card)"}, "device"),
        ({"dtype": "float16"}, "dtype"),
        ({"plan": {"channels_last": True}}, None),
    ],
)
def test_another_version_or_device_is_named(files, half, changes, expected):
    rewritten(half, **changes)
    (half / ROWS).unlink()
    if expected is None:  # what was measured when the run began is taken over
        certify(files, half, resume=True)
        return
    with pytest.raises(ResumeError) as caught:
        certify(files, half, resume=True)
    assert names(caught.value) == {expected}


def test_rows_do_not_go_with_another_manifest(files, half):
    rewritten(half, versions={"torch": "2.4.0"})
    with pytest.raises(ResumeError, match="damaged in line 1 "):
        runs.open(half)


def test_another_host_another_python_and_a_moved_model_are_the_same_run(files, half, reference, tmp_path):
    rewritten(half, host="elsewhere", python="3.99.0", created="1970-01-01T00:00:00+00:00", workers=7)
    moved = tmp_path / "moved.safetensors"
    shutil.copy(files.model, moved)
    certify(files, half, resume=True, model=str(moved))
    assert (half / ROWS).read_bytes() == reference
    assert read_manifest(half).values["host"] == "elsewhere"


def test_moved_data_of_the_same_name_is_the_same_run(files, half, reference, tmp_path):
    shutil.copy(files.data, tmp_path / files.data.name)
    certify(files, half, resume=True, data=tmp_path / files.data.name)
    assert (half / ROWS).read_bytes() == reference


def test_a_manifest_edited_by_hand_is_refused(files, half, capsys):
    text = (half / FILE).read_text()
    (half / FILE).write_text(text.replace('"sigma": 0.5', '"sigma": 0.25'))
    assert main(arguments(files, half, "--resume", sigma=0.25)) == 4
    assert "was altered" in capsys.readouterr().err
    assert main(["show", str(half)]) == 4


def test_without_a_seed_the_run_keeps_its_key(files, tmp_path):
    first = certify(files, tmp_path / "run", seed=None)
    content = (tmp_path / "run" / ROWS).read_bytes()
    cut(tmp_path / "run", content, 5)
    again = certify(files, tmp_path / "run", seed=None, resume=True)
    assert again.manifest.values["key"] == first.manifest.values["key"]
    assert (tmp_path / "run" / ROWS).read_bytes() == content
    other = certify(files, tmp_path / "other", seed=None)
    assert other.manifest.values["key"] != first.manifest.values["key"]


def test_a_seed_need_not_be_repeated(files, half, reference):
    certify(files, half, resume=True, seed=None)
    assert (half / ROWS).read_bytes() == reference


def test_a_seed_does_not_go_with_a_run_that_has_a_key_of_its_own(files, tmp_path):
    certify(files, tmp_path / "run", indices=range(2), seed=None)
    with pytest.raises(ResumeError) as caught:
        certify(files, tmp_path / "run", indices=range(2), resume=True, seed=3)
    assert names(caught.value) == {"seed", "key"}


def test_batch_size_and_chunk_need_not_be_repeated(files, half, reference):
    certify(files, half, resume=True, batch_size=None, chunk=None)
    assert (half / ROWS).read_bytes() == reference


def test_what_was_measured_is_measured_once(files, tmp_path):
    free = {"batch_size": None, "chunk": None, "procedure": "planned", "n_max": 200, "indices": range(6)}
    first = certify(files, tmp_path / "run", **free)
    content = (tmp_path / "run" / ROWS).read_bytes()
    cut(tmp_path / "run", content, 2)
    certify(files, tmp_path / "run", resume=True, **free)
    assert (tmp_path / "run" / ROWS).read_bytes() == content
    assert read_manifest(tmp_path / "run").values["plan"] == first.manifest.values["plan"]


def test_a_run_that_is_there_needs_resume(files, half, capsys):
    before = (half / ROWS).read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        certify(files, half)
    assert main(arguments(files, half)) == 2
    assert "already" in capsys.readouterr().err
    assert (half / ROWS).read_bytes() == before


def test_a_run_of_a_kind_not_known_here_is_refused(whole, tmp_path):
    Manifest({**read_manifest(whole).values, "kind": "dream"}).write(tmp_path)
    with pytest.raises(SmoothcertError, match="dream"):
        runs.open(tmp_path)


@pytest.mark.parametrize("indices", [[0, INPUTS], [0, -1], [3, 3], [0, 1, 2, 3, 4, 5, 4], [0.5], []])
def test_indices_that_name_no_input_or_one_twice_are_refused_before_anything_is_written(files, tmp_path, indices):
    with pytest.raises(ConfigError):
        certify(files, tmp_path / "run", indices=indices)
    assert not (tmp_path / "run").exists()

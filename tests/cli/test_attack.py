"""`smoothcert attack` and `smoothcert attack-base`: from a run and from a network to what attacks came to."""

import json
import re
import shlex
import shutil
import signal
import sys

import numpy as np
import pytest
import torch

from attack_fixtures import SIGMA, Straight, cut, forged, replaced, rows_path, with_small_attacks, write_files
from run_fixtures import launch, size_of, wait_for
from smoothcert import runs
from smoothcert.attacks.on_smoothed import SMOOTHED_ATTACKS
from smoothcert.cli import COMMANDS, _parse, main
from smoothcert.records import exact_decimal
from smoothcert.report.figures.attacks import attack_success
from smoothcert.report.naming import run_names
from smoothcert.runs.attack_summary import outcomes, perturbation_norms, summarize_attack, table_radii

SMOOTHED = ["--sigma", SIGMA, "--n-max", "1000", "--procedure", "paper", "--seed", "0", "--batch-size", "250"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a linear classifier, its inputs and a run that certifies them."""
    folder = tmp_path_factory.mktemp("place")
    model, data = write_files(folder)
    words = ["certify", f"{model}:make", data, *SMOOTHED, "--out", folder / "run"]
    assert main([str(word) for word in words]) == 0
    return folder


@pytest.fixture
def attack(place, capsys):
    """The command, on the run of this module unless another one is given."""

    def command(*words, run=place / "run"):
        return call(capsys, "attack", run, "--data", place / "half-spaces.npz", "--seed", "0", *words)

    return command


@pytest.fixture
def attack_base(place, capsys):
    few = ["--attacks", "deepfool", "pgd", "--steps", "5", "--batch-size", "4"]

    def command(*words):
        model, data = f"{place / 'half_space.py'}:make", place / "half-spaces.npz"
        return call(capsys, "attack-base", model, data, *few, *words)

    return command


@pytest.fixture
def small(monkeypatch):
    with_small_attacks(monkeypatch)


# ---- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["attack", "attack-base"])
def test_help_ends_with_examples_that_the_command_line_takes(capsys, command):
    code, _, _ = call(capsys, command, "--help")
    assert code == 0
    lines = re.findall(r"^  (smoothcert .*?)(?:   .*)?$", COMMANDS[command].examples, re.MULTILINE)
    assert len(lines) >= 3
    parsed = [_parse(shlex.split(line)[1:]) for line in lines]
    own = [one for one in parsed if isinstance(one, COMMANDS[command])]
    assert own
    for one in own:
        one.check()
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.endswith(COMMANDS[command].examples)


def test_help_explains_the_settings(capsys):
    _, out, _ = call(capsys, "attack", "--help")
    for flag in ("--factor", "--attacks", "--inputs", "--clip", "--resume", "--workers", "--json", "--config"):
        assert flag in out
    assert "Directory of a run of `smoothcert certify`" in out
    assert "--every" not in out, "the inputs are those of the run"


# ---- attacking a run -----------------------------------------------------------------------------------------------


def test_attacks_a_run_and_shows_what_came_of_it(small, attack, tmp_path, capsys):
    out = tmp_path / "attacked"
    code, shown, err = attack("--attacks", "paper", "ddn", "--factor", "1", "2", "--n-max", "1000", "--out", out)
    assert (code, err) == (0, "")
    run = runs.open(out)
    assert (run.manifest.kind, run.complete, len(run.rows)) == ("attack", True, 8)
    assert "8 inputs, complete" in shown
    assert "Within R no attack changed an answer (by chance at most about 0.024 may)." in shown
    for one in outcomes(run):
        assert f"{one.attack} {one.factor:g} R 8 {100 * one.successes / 8:.1f}" in shown
    assert f"smoothcert show {out}" in shown
    code, again, _ = call(capsys, "show", out)
    assert code == 0
    assert again == shown.partition(" Run: ")[0]


def test_json_is_the_summary(small, attack, tmp_path, capsys):
    code, shown, _ = attack("--attacks", "paper", "--factor", "2", "--inputs", "3", "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(shown) == summarize_attack(runs.open(tmp_path / "run"))
    code, shown, _ = call(capsys, "show", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(shown) == summarize_attack(runs.open(tmp_path / "run"))


def test_radii_with_a_margin_are_told_apart(small, place, attack, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "attacked"
    words = ["certify", f"{place / 'half_space.py'}:make", place / "half-spaces.npz", *SMOOTHED, "--margin", "0.1"]
    assert call(capsys, *words, "--out", run)[0] == 0
    code, shown, _ = attack("--attacks", "paper", "--factor", "1", "--inputs", "3", "--out", out, run=run)
    assert code == 0
    assert "R is a radius with a margin: within its radius, a class leads every other class by at least 0.1" in shown
    found = runs.open(out)
    assert found.manifest.values["attacked"]["margin"] == summarize_attack(found)["margin"] == 0.1
    assert call(capsys, "verify", out)[0] == 0
    figure = attack_success([found])
    assert any("lead ≥ 0.1, paper" in text.get_text() for text in figure.axes[0].get_legend().get_texts())
    attack("--attacks", "paper", "--factor", "1", "--inputs", "3", "--out", tmp_path / "plain")
    plain = runs.open(tmp_path / "plain")
    assert "margin" not in plain.manifest.values["attacked"]
    assert summarize_attack(plain)["margin"] == 0
    assert all(
        name.endswith("lead ≥ 0.1") == (one is found)
        for name, one in zip(run_names([found, plain]), [found, plain], strict=True)
    )


def test_one_input_is_shown_with_its_attempts(small, attack, tmp_path, capsys):
    attack("--attacks", "paper", "--factor", "1", "--inputs", "2", "--out", tmp_path / "run")
    row = runs.open(tmp_path / "run").rows[0]
    code, shown, _ = call(capsys, "show", tmp_path / "run", "--index", row["index"], "--json")
    assert code == 0
    assert json.loads(shown) == row
    code, shown, _ = call(capsys, "show", tmp_path / "run", "--index", row["index"])
    assert code == 0
    assert "without votes" not in shown, "attempts have votes"
    radius, norm = re.search(r"certified: class \d, radius ([\d.]+) .*? at ([\d.]+):", shown).groups()
    assert float(radius) <= row["radius"] < float(radius) + 1e-4, "a certified radius is rounded down"
    assert float(norm) >= row["attempts"][0]["norm"] > float(norm) - 1e-6, "what an attack needed is rounded up"
    assert "paper" in shown


def test_the_run_goes_through_the_other_commands(small, attack, tmp_path, capsys):
    out = tmp_path / "run"
    attack("--attacks", "paper", "--factor", "1", "2", "--inputs", "3", "--out", out)
    code, shown, _ = call(capsys, "verify", out)
    assert code == 0
    assert "3 of 3 rows made anew from their votes" in shown
    assert call(capsys, "plot", "attack-success", out, "--out", tmp_path / "figure.svg")[0] == 0
    assert (tmp_path / "figure.svg").exists()


def test_violations_are_told_one_by_one(monkeypatch, place, attack, tmp_path):
    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Straight)
    shutil.copytree(place / "run", tmp_path / "forged")
    forged(tmp_path / "forged", lambda row: row.update(radius=5 * row["radius"]))
    words = ["--attacks", "strong", "--factor", "1", "--out", tmp_path / "run"]
    code, shown, _ = attack(*words, run=tmp_path / "forged")
    assert code == 0
    run = runs.open(tmp_path / "run")
    assert "Violations: within R the answer of 8 of 8 inputs changed" in shown
    for row in run.rows:
        # With all digits: in six, the two are often the same.
        line = f"input {row['index']}: strong at {row['attempts'][0]['norm']!r}, certified {row['radius']!r}; class"
        assert line in shown
    assert all("point" in row["attempts"][0] for row in run.rows)


def test_violations_are_told_also_where_attacks_were_given_more_room(monkeypatch, place, attack, tmp_path):
    def near(target, radius):
        far = Straight().search(target, radius, None)
        return target.x + 0.4 * (far - target.x)

    replaced(monkeypatch, near)
    shutil.copytree(place / "run", tmp_path / "forged")
    forged(tmp_path / "forged", lambda row: row.update(radius=5 * row["radius"]))
    words = ["--attacks", "strong", "--factor", "2", "--out", tmp_path / "run"]
    _, shown, _ = attack(*words, run=tmp_path / "forged")
    assert len(summarize_attack(runs.open(tmp_path / "run"))["violated"]) == 8
    assert "Violations: within R the answer of 8 of 8 inputs changed" in shown


def test_a_run_that_was_cut_off_goes_on(small, attack, tmp_path):
    words = ["--attacks", "paper", "--factor", "2", "--out", tmp_path / "run"]
    assert attack(*words)[0] == 0
    content = rows_path(tmp_path / "run").read_bytes()
    cut(tmp_path / "run", 5, torn=40)
    assert attack(*words)[0] == 2, "it is there already"
    code, shown, err = attack(*words, "--resume")
    assert code == 0
    assert shown.startswith("5 of 8 inputs are there already.")
    assert err.startswith("notice: the last line of ")
    assert rows_path(tmp_path / "run").read_bytes() == content


def test_ctrl_c_ends_the_command_with_its_rows_kept(place, attack, tmp_path):
    words = ["attack", place / "run", "--data", place / "half-spaces.npz", "--seed", "0", "--attacks", "strong"]
    words += ["--factor", "2", "--n-max", "500"]
    process = launch([str(word) for word in (*words, "--out", tmp_path / "run")])
    rows = tmp_path / "run" / "attacks.jsonl"
    # Two lines: one that is being written when the signal comes is taken back.
    assert wait_for(lambda: size_of(rows) > 0 and rows.read_bytes().count(b"\n") > 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    if process.returncode != 0:  # else it was faster than we were
        assert (process.returncode, err) == (130, "error: interrupted\n")
    kept = rows_path(tmp_path / "run").read_bytes()
    flags = ["--attacks", "strong", "--factor", "2", "--n-max", "500"]
    assert attack(*flags, "--out", tmp_path / "run", "--resume")[0] == 0
    assert attack(*flags, "--out", tmp_path / "whole")[0] == 0
    whole = rows_path(tmp_path / "whole").read_bytes()
    assert rows_path(tmp_path / "run").read_bytes() == whole
    assert kept
    assert whole.startswith(kept)


def test_all_settings_come_from_a_file_too(small, place, tmp_path, capsys):
    lines = [
        f'path = "{place / "run"}"',
        f'data = "{place / "half-spaces.npz"}"',
        f'out = "{tmp_path / "run"}"',
        "factor = [1, 2.5]",
        'attacks = ["paper"]',
        "inputs = 2",
        "seed = 3",
    ]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert call(capsys, "attack", "--config", tmp_path / "c.toml", "--seed", "4")[0] == 0
    values = runs.open(tmp_path / "run").manifest.values
    assert (values["factors"], values["attacks"], values["seed"], len(values["indices"])) == (
        [1.0, 2.5],
        ["paper"],
        4,
        2,
    )


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--inputs", "0"], 2, "`inputs`"),
        (["--factor", "0"], 2, "`factor`"),
        (["--attacks", "paper", "paper"], 2, "`attacks`"),
        (["--alpha", "1"], 2, "`alpha`"),
        (["--n-max", "0"], 2, "`n_max`"),
        (["--workers", "0"], 2, "`workers`"),
        (["--device", "abacus"], 2, "`device`"),
        (["--data", "{}/other.npz"], 2, "not the data of"),
        (["--data", "{}/none.npz"], 2, "none.npz"),
        (["--model", "{}/other.py:make"], 3, "not the model of"),
        (["--model", "{}/nothing.onnx"], 3, "nothing.onnx"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(place, attack, tmp_path, flags, code, said):
    found = np.load(place / "half-spaces.npz")
    np.savez(tmp_path / "other.npz", x=1 - found["x"], y=found["y"])
    (tmp_path / "other.py").write_text(
        (place / "half_space.py").read_text().replace("manual_seed(5)", "manual_seed(6)")
    )
    got, shown, err = attack(*(flag.format(tmp_path) for flag in flags), "--out", tmp_path / "run")
    assert (got, shown) == (code, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_runs_of_another_kind_are_refused_in_one_line(small, attack, place, tmp_path, capsys):
    assert attack("--attacks", "paper", "--factor", "1", "--inputs", "1", "--out", tmp_path / "attacked")[0] == 0
    code, _, err = attack("--out", tmp_path / "run", run=tmp_path / "attacked")
    assert code == 2
    assert "Expected a run of `smoothcert certify`" in err
    code, _, err = attack("--out", tmp_path / "run", run=tmp_path)
    assert code == 4
    assert "Expected a run in" in err
    assert not (tmp_path / "run").exists()


# ---- attacking a network -------------------------------------------------------------------------------------------


def test_attacks_a_network_and_shows_what_is_left_of_its_accuracy(attack_base, tmp_path, capsys):
    code, shown, err = attack_base("--out", tmp_path / "run")
    assert (code, err) == (0, "")
    run = runs.open(tmp_path / "run")
    norms = {name: perturbation_norms(run, name) for name in ("deepfool", "pgd")}
    norms["all"] = perturbation_norms(run)
    assert "10 inputs, complete" in shown
    assert "robust accuracy is at most, in %" in shown
    for radius in table_radii(norms["all"]):
        cells = " ".join(f"{100 * np.mean(one > radius):.1f}" for one in norms.values())  # of ten inputs
        assert f"{exact_decimal(radius)} {cells}" in shown
    code, again, _ = call(capsys, "show", tmp_path / "run")
    assert again == shown.partition(" Run: ")[0]


def test_a_selection_and_json(attack_base, tmp_path):
    code, shown, _ = attack_base("--every", "3", "--out", tmp_path / "run", "--json")
    assert code == 0
    run = runs.open(tmp_path / "run")
    assert run.manifest.indices == [0, 3, 6, 9]
    assert json.loads(shown) == summarize_attack(run)
    assert json.loads(shown)["correct"] == 3


def test_the_run_is_the_dashed_line_of_a_figure(attack_base, place, tmp_path, capsys):
    attack_base("--out", tmp_path / "run")
    words = ["plot", "certified-accuracy", place / "run", "--undefended", tmp_path / "run", "--out"]
    assert call(capsys, *words, tmp_path / "figure.svg")[0] == 0
    assert "undefended" in (tmp_path / "figure.svg").read_text()
    code, _, err = call(capsys, *words[:4], place / "run", "--out", tmp_path / "other.svg")
    assert code == 2
    assert "Expected a run of `smoothcert attack-base`" in err
    assert call(capsys, "verify", tmp_path / "run")[0] == 0


def test_a_base_attack_that_was_cut_off_goes_on(attack_base, tmp_path):
    assert attack_base("--out", tmp_path / "run")[0] == 0
    content = rows_path(tmp_path / "run").read_bytes()
    cut(tmp_path / "run", 6, torn=10)
    code, shown, _ = attack_base("--out", tmp_path / "run", "--resume")
    assert code == 0
    assert shown.startswith("6 of 10 inputs are there already.")
    assert rows_path(tmp_path / "run").read_bytes() == content


def test_without_foolbox_the_command_says_what_to_install(attack_base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    code, shown, err = attack_base("--out", tmp_path / "run")
    assert (code, shown) == (5, "")
    assert err == "error: foolbox is needed for this: pip install 'smoothcert[attacks]'\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "0"], "`steps`"),
        (["--batch-size", "0"], "`batch_size`"),
        (["--seed", "-1"], "`seed`"),
        (["--first", "0"], "`first`"),
        (["--indices", "99"], "indices"),
        (["--address", "auto"], "--engine ray"),
    ],
)
def test_mistakes_about_networks_are_one_line_and_write_nothing(attack_base, tmp_path, flags, said):
    code, shown, err = attack_base(*flags, "--out", tmp_path / "run")
    assert (code, shown) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()

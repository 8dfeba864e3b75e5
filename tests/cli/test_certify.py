import json

import numpy as np
import pytest

from smoothcert import runs
from smoothcert.cli import main
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.training.loop import seeded


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    blueprint = Blueprint(architecture="small-cnn", num_classes=10, input_shape=(1, 8, 8))
    save_checkpoint(path, seeded(small_cnn, 1), blueprint)
    return str(path)


FAST = ["--sigma", "0.25", "--n-max", "300", "--batch-size", "64", "--chunk", "2", "--seed", "0"]


def test_certifies_a_data_set_and_shows_the_table(capsys, checkpoint, tmp_path):
    out = tmp_path / "run"
    assert main(["certify", checkpoint, "digits", "--out", str(out), *FAST, "--every", "100"]) == 0
    printed = capsys.readouterr().out
    for word in ("digits (test)", "5, complete", "Planned", "certified and correct %", f"smoothcert show {out}"):
        assert word in " ".join(printed.split())
    run = runs.open(out)
    assert [row["index"] for row in run.rows] == [0, 100, 200, 300, 400]
    assert main(["show", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[:5] == printed.splitlines()[:5]


def test_json_sums_the_run_up(capsys, checkpoint, tmp_path):
    arguments = ["certify", checkpoint, "digits", "--out", str(tmp_path / "run"), *FAST, "--first", "4", "--json"]
    assert main([*arguments, "--radii", "0", "0.1", "--known-labels"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = runs.open(tmp_path / "run")
    assert (found["kind"], found["rows"], found["radii"]) == ("certify", 4, [0.0, 0.1])
    assert found["draws"] == sum(result.draws for result in run.certificates)
    assert found["correct"] == sum(run.table()["correct"])
    assert run.manifest.values["procedure"]["name"] == "Grid"
    assert [result.procedure["label"] for result in run.certificates] == [row["true"] for row in run.rows]
    assert main(["show", str(tmp_path / "run"), "--json", "--radii", "0", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.parametrize("procedure", [[], ["--procedure", "paper"], ["--radii", "0", "0.05"]])
def test_a_margin_is_certified_shown_and_verified(capsys, checkpoint, tmp_path, procedure):
    words = ["certify", checkpoint, "digits", *FAST, "--first", "6", *procedure, "--out"]
    out = tmp_path / "run"
    assert main([*words, str(out), "--margin", "0.05"]) == 0
    assert "leads every other class by at least 0.05 in probability" in " ".join(capsys.readouterr().out.split())
    run = runs.open(out)
    assert run.manifest.values["procedure"]["margin"] == 0.05
    certified = [row for row in run.rows if row["radius"] > 0]
    assert certified
    assert main(["show", str(out), "--index", str(certified[0]["index"])]) == 0
    assert "leads by at least 0.05" in capsys.readouterr().out
    assert main(["show", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["margin"] == 0.05
    assert main(["verify", str(out), "--again", "3"]) == 0
    assert main(["export", str(out), "--out", str(tmp_path / "log.tsv")]) == 0
    captured = capsys.readouterr()
    assert "does not say that within its radius, a class leads" in " ".join((captured.out + captured.err).split())
    assert main([*words, str(out), "--resume"]) != 0
    assert "procedure.margin: 0.05 -> 0.0" in capsys.readouterr().err


def test_the_papers_procedure_makes_its_draws(checkpoint, tmp_path):
    assert (
        main(
            [
                "certify",
                checkpoint,
                "digits",
                "--out",
                str(tmp_path / "r"),
                *FAST,
                "--procedure",
                "paper",
                "--first",
                "2",
            ]
        )
        == 0
    )
    assert [result.draws for result in runs.open(tmp_path / "r").certificates] == [400, 400]


def test_one_input_is_shown_with_its_evidence(capsys, checkpoint, tmp_path):
    assert main(["certify", checkpoint, "digits", "--out", str(tmp_path / "r"), *FAST, "--indices", "7", "3"]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "r"), "--index", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["input_id"] == "index:3"
    assert shown == runs.open(tmp_path / "r").certificates[1].to_dict()
    assert main(["show", str(tmp_path / "r"), "--index", "4"]) == 2
    assert "no row of input 4" in capsys.readouterr().err


def test_predictions_are_a_run_too(capsys, checkpoint, tmp_path):
    assert main(["predict", checkpoint, "digits", "--out", str(tmp_path / "r"), *FAST, "--first", "6"]) == 0
    assert "abstained %" in capsys.readouterr().out
    run = runs.open(tmp_path / "r")
    assert run.manifest.kind == "predict"
    assert (tmp_path / "r" / "predictions.jsonl").is_file()
    assert len(run.certificates) == 6
    assert all(0 <= result.p_value <= 1 for result in run.certificates)
    with_paper = [
        "predict",
        checkpoint,
        "digits",
        "--out",
        str(tmp_path / "p"),
        *FAST,
        "--procedure",
        "paper",
        "--first",
        "2",
    ]
    assert main(with_paper) == 0
    assert [result.draws for result in runs.open(tmp_path / "p").certificates] == [300, 300]


def test_shards_are_disjoint_parts_of_the_selection(checkpoint, tmp_path):
    seen = []
    for number in (1, 2, 3):
        out = tmp_path / str(number)
        flags = ["--first", "7", "--shard", f"{number}/3"]
        assert main(["certify", checkpoint, "digits", "--out", str(out), *FAST, *flags]) == 0
        seen += runs.open(out).manifest.indices
    assert sorted(seen) == list(range(7))


def test_all_settings_come_from_a_file_too(checkpoint, tmp_path):
    lines = [
        f'model = "{checkpoint}"',
        'data = "digits"',
        f'out = "{tmp_path / "r"}"',
        "sigma = 0.25",
        "radii = [0, 0.25]",
        "n-max = 300",
        'effort = "quick"',
        "first = 2",
    ]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert main(["certify", "--config", str(tmp_path / "c.toml"), "--sigma", "0.5"]) == 0
    values = runs.open(tmp_path / "r").manifest.values
    assert (values["sigma"], values["procedure"]["effort"], values["procedure"]["n_max"]) == (0.5, "quick", 300)


def test_an_effort_may_be_a_number(checkpoint, tmp_path):
    draws = {}
    for effort in ("1e-3", "1e-6"):
        out = tmp_path / effort
        flags = ["--out", str(out), "--effort", effort, "--sigma", "0.25", "--n-max", "2000", "--first", "2"]
        assert main(["certify", checkpoint, "digits", *flags]) == 0
        assert runs.open(out).manifest.values["procedure"]["effort"] == float(effort)
        draws[effort] = sum(result.draws for result in runs.open(out).certificates)
    assert draws["1e-3"] < draws["1e-6"]


def test_unlabelled_inputs_are_certified_without_being_right_or_wrong(capsys, checkpoint, tmp_path):
    np.save(tmp_path / "images.npy", np.full((3, 1, 8, 8), 70, np.uint8))
    assert main(["certify", checkpoint, str(tmp_path / "images.npy"), "--out", str(tmp_path / "r"), *FAST]) == 0
    assert "certified %" in capsys.readouterr().out
    run = runs.open(tmp_path / "r")
    assert run.table()["true"] == [None] * 3
    assert run.table()["correct"] == [False] * 3


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--sigma", "0"], 2, "`sigma`"),
        (["--alpha", "0.5"], 2, "`alpha`"),
        (["--n-max", "0"], 2, "n"),
        (["--radii", "0.1", "--procedure", "paper"], 2, "`radii`"),
        (["--procedure", "grid"], 2, "`radii`"),
        (["--known-labels"], 2, "`radii`"),
        (["--effort", "-1"], 2, "`effort`"),
        (["--margin", "1"], 2, "`margin` in [0, 1)"),
        (["--margin", "-0.1"], 2, "`margin` in [0, 1)"),
        (["--margin", "0.9", "--n-max", "100"], 2, "with margin=0.9"),
        (["--workers", "0"], 2, "`workers`"),
        (["--timeout", "0"], 2, "`timeout`"),
        (["--chunk", "0"], 2, "`chunk`"),
        (["--address", "auto"], 2, "--engine ray"),
        (["--shard", "1/3"], 2, "`seed`"),
        (["--shard", "4/3", "--seed", "0", "--batch-size", "8", "--chunk", "1"], 2, "`shard`"),
        (["--shard", "x", "--seed", "0", "--batch-size", "8", "--chunk", "1"], 2, "`shard`"),
        (["--secure", "--seed", "1"], 2, "secure"),
        (["--first", "0"], 2, "`first`"),
        (["--split", "extra"], 2, "split"),
        (["--arch", "lenet"], 3, "lenet"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(capsys, checkpoint, tmp_path, flags, code, said):
    out = tmp_path / "run"
    assert main(["certify", checkpoint, "digits", "--out", str(out), "--sigma", "0.25", *flags]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not out.exists()


def test_known_labels_need_labels(capsys, checkpoint, tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((3, 1, 8, 8), np.uint8))
    arguments = ["certify", checkpoint, str(tmp_path / "images.npy"), "--out", str(tmp_path / "r"), *FAST]
    assert main([*arguments, "--radii", "0", "--known-labels"]) == 2
    assert "has none" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_secure_run_has_a_fresh_key_and_grid_noise(checkpoint, tmp_path):
    keys = set()
    for name in "ab":
        settings = ["--sigma", "0.25", "--n-max", "300", "--first", "1", "--secure"]
        assert main(["certify", checkpoint, "digits", "--out", str(tmp_path / name), *settings]) == 0
        run = runs.open(tmp_path / name)
        keys.add(run.manifest.values["key"])
        assert run.certificates[0].noise == "grid"
    assert len(keys) == 2


def test_reading_a_run_needs_no_torch(checkpoint, tmp_path):
    import subprocess
    import sys

    assert main(["certify", checkpoint, "digits", "--out", str(tmp_path / "r"), *FAST, "--first", "2"]) == 0
    block = "import sys; sys.modules['torch'] = None\n"
    code = f"{block}from smoothcert import runs\nprint(len(runs.open(sys.argv[1]).certificates))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "r"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"

"""`smoothcert plot`: every kind from the command line, and every wrong command in one line."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from run_fixtures import arguments, certify, files  # noqa: F401 - files is a fixture
from smoothcert import cli
from smoothcert.cli.plot import Plot
from smoothcert.report.figures import FIGURES


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "plot", Plot)


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):  # noqa: F811
    """Small runs of a small network, by every procedure."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"indices": range(12)}
    certify(files, folder / "paper", **few)
    certify(files, folder / "other", sigma=0.25, **few)
    certify(files, folder / "planned", procedure="planned", n_max=200, **few)
    certify(files, folder / "grid", procedure="grid", radii=(0.0, 0.25), n_max=200, **few)
    for n in (20, 64):
        words = arguments(files, folder / f"predict-{n}", "--first", "12", kind="predict", n_max=n)
        assert cli.main(words) == 0
    np.save(folder / "norms.npy", np.linspace(0, 1, 12))
    votes = np.random.default_rng(0).multinomial(1100, [0.7, 0.2, 0.1], 20)
    np.savez(folder / "votes.npz", a=votes, b=votes[::-1])
    np.save(folder / "labels.npy", np.zeros(20, np.int64))
    (folder / "disc.py").write_text("def network(batch):\n    return (batch.norm(dim=1) > 1).long()\n")
    (folder / "images").mkdir()
    for name in ("one", "two"):
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 24, 3), np.uint8)).save(
            folder / f"images/{name}.png"
        )
    return folder


def plot(capsys, *words):
    code = cli.main(["plot", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# What to give to each kind, from the folder of the runs.
EVERY = {
    "certified-accuracy": ["{}/paper", "{}/other", "--undefended", "{}/norms.npy", "--names", "a", "b", "--limit", "2"],
    "theorem-radius": [],
    "theorem-accuracy": ["{}/planned"],
    "other-n": ["{}/votes.npz", "--array", "a", "--sigma", "0.5", "--labels", "{}/labels.npy", "--n", "100", "10000"],
    "other-alpha": ["{}/paper", "--alphas", "0.1", "0.0001"],
    "training-noise": ["{}/paper"],  # the network says that it was trained at 0.25
    "lower-bound": ["{}/grid", "--rho", "0.01"],
    "best-radius": ["--sigma", "0.5", "--alpha", "0.01", "--n", "1000"],
    "predictions": ["{}/predict-20", "{}/predict-64"],
    "tuning": [],
    "attack-success": ["--norms", "{}/norms.npy"],
    "noise": ["--data", "{}/images", "--size", "16", "--sigmas", "0.5", "--seed", "1"],
    "resolution": ["--data", "{}/images", "--size", "16", "--indices", "1", "--factor", "4", "--sigma", "0.25"],
    "draws": ["{}/planned", "{}/grid"],
    "class-accuracy": ["{}/paper", "--radii", "0", "0.25"],
    "radius-histogram": ["{}/paper", "{}/planned"],
    "decision-regions": ["--model", "{}/disc.py:network", "--point", "-0.5", "0.25", "--sigma", "0.4", "--n", "500"],
    "worst-case": ["--p-a", "0.9", "--p-b", "0.05", "--sigma", "0.25"],
    "proof": ["--p-a", "0.7"],
    "linear": ["--p-a", "0.95", "--sigma", "1"],
}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_is_drawn_from_real_runs(runs, tmp_path, capsys, kind):
    words = [word.format(runs) for word in EVERY[kind]]
    path = tmp_path / "figure.svg"
    code, out, err = plot(capsys, kind, *words, "--out", path, "--title", "Title of mine")
    assert (code, err) == (0, "")
    assert out == f"Figure: {path}\n"
    text = path.read_text()
    assert text.startswith("<?xml")
    assert "Title of mine" in text


def test_size_and_resolution_are_as_asked(runs, tmp_path, capsys):
    path = tmp_path / "figure.png"
    words = ["--width", "3", "--height", "2", "--dpi", "100"]
    assert plot(capsys, "certified-accuracy", runs / "paper", "--out", path, *words)[0] == 0
    with Image.open(path) as image:
        assert image.size == (300, 200)


def test_the_same_command_writes_the_same_pdf(runs, tmp_path, capsys):
    for name in ("a.pdf", "b.pdf"):
        assert plot(capsys, "class-accuracy", runs / "paper", "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_a_run_under_way_is_drawn_with_a_notice(runs, tmp_path, capsys):
    part = tmp_path / "part"
    part.mkdir()
    (part / "run.json").write_bytes((runs / "paper" / "run.json").read_bytes())
    rows = (runs / "paper" / "certificates.jsonl").read_bytes().splitlines(keepends=True)
    (part / "certificates.jsonl").write_bytes(b"".join(rows[:5]))
    code, out, _ = plot(capsys, "certified-accuracy", part, "--out", tmp_path / "a.svg")
    assert code == 0
    assert "is not complete: 5 of 12 rows" in out


def test_help_lists_every_kind_with_an_example(capsys):
    code, out, _ = plot(capsys, "--help")
    assert code == 0
    for name, kind in FIGURES.items():
        assert f"  {name}: {kind.help}\n" in out
        assert f"smoothcert plot {name} " in out
        assert kind.example in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["certified-acuracy", "{}/paper"], "Did you mean 'certified-accuracy'?"),
        (["certified-accuracy"], "at least one run for certified-accuracy, got 0"),
        (["lower-bound", "{}/paper", "{}/other"], "exactly 1 run"),
        (["tuning", "{}/paper"], "no run for tuning"),
        (["draws", "{}/paper", "--rho", "0.1"], "`rho` has no meaning for draws"),
        (["draws", "{}/paper", "--sigma", "0.1"], "`sigma` has no meaning for draws"),
        (["draws", "{}/paper", "--undefended", "x.npy"], "`undefended` has no meaning for draws"),
        (["noise"], "images must be given: --data"),
        (["noise", "--data", "nothing"], "nothing"),
        (["noise", "--data", "{}/images", "--size", "16", "--indices", "7"], "`indices`"),
        (["resolution", "--data", "{}/images", "--size", "16", "--factor", "3"], "divide the image"),
        (["attack-success", "{}/paper"], "Expected a run of `smoothcert attack`"),
        (["attack-success", "{}/paper", "--norms", "{}/labels.npy"], "each of the 12 inputs"),
        (["certified-accuracy", "{}/paper", "--undefended", "{}/none.npy"], "Cannot read norms"),
        (["certified-accuracy", "{}/predict-20"], "have no radii"),
        (["certified-accuracy", "{}/paper", "--limit", "-1"], "`limit`"),
        (["certified-accuracy", "{}/paper", "--names", "a", "b"], "a name for each"),
        (["certified-accuracy", "{}/paper", "--width", "0"], "`width` in inches"),
        (["certified-accuracy", "{}/paper", "--height", "nan"], "`height` in inches"),
        (["certified-accuracy", "{}/paper", "--dpi", "1"], "`dpi` from 10"),
        (["certified-accuracy", "{}/paper", "--labels", "{}/labels.npy"], "--labels is for a file of votes"),
        (["certified-accuracy", "{}/paper", "--size", "3"], "--size is for --data"),
        (["other-n", "{}/grid"], "does not draw a fixed number"),
        (["other-n", "{}/votes.npz", "--array", "a"], "give --sigma"),
        (["other-n", "{}/votes.npz", "--array", "c", "--sigma", "1"], "got 'c'"),
        (["other-n", "{}/votes.npz", "--array", "a", "--sigma", "0"], "`sigma`"),
        (["other-n", "{}/none.npz", "--sigma", "1"], "No such file"),
        (["other-n", "{}/paper", "--n", "0"], "`n`"),
        (["other-alpha", "{}/paper", "--alphas", "0.7"], "`alpha`"),
        (["theorem-accuracy", "{}/grid"], "certified at a grid of radii"),
        (["lower-bound", "{}/paper", "--rho", "0"], "`rho`"),
        (["predictions", "{}/predict-20", "{}/paper"], "holds certificates"),
        (["training-noise", "{}/paper", "{}/other"], "one noise level"),
        (["class-accuracy", "{}/paper", "--radii", "0", "1", "2", "3", "4"], "one to 4 finite `radii`"),
        (["draws", "{}/paper", "--model", "{}/disc.py:network"], "`model` has no meaning for draws"),
        (["linear", "--p-b", "0.1"], "`p_b` has no meaning for linear"),
        (["linear", "{}/paper"], "no run for linear"),
        (["worst-case", "--p-a", "0.4"], "p_b <= p_a"),
        (["decision-regions", "--model", "{}/disc.py:network"], "give `point` and `sigma`"),
        (["decision-regions", "--point", "1", "2", "3"], "two finite numbers"),
    ],
)
def test_wrong_commands_end_with_2_one_line_and_no_file(runs, tmp_path, capsys, words, said):
    path = tmp_path / "figure.svg"
    code, out, err = plot(capsys, *(word.format(runs) for word in words), "--out", path)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_or_read(runs, tmp_path, capsys):
    run = runs / "paper"
    assert plot(capsys, "draws", run, "--out", tmp_path / "a.gif")[0] == 2
    assert plot(capsys, "draws", run, "--out", tmp_path / "none" / "a.svg")[0] == 6
    code, _, err = plot(capsys, "draws", tmp_path / "no-run", "--out", tmp_path / "a.svg")
    assert code == 4
    assert "Expected a run in" in err


def test_a_model_that_cannot_be_loaded_or_asked_ends_with_3(runs, tmp_path, capsys):
    (tmp_path / "wrong.py").write_text("import torch\nnetwork = torch.nn.Linear(3, 2)\n")
    for name, said in (("none", "no such name"), ("network", "Expected a model of two-dimensional inputs")):
        words = ["--model", f"{tmp_path}/wrong.py:{name}", "--point", "0", "0", "--sigma", "1"]
        code, _, err = plot(capsys, "decision-regions", *words, "--out", tmp_path / "a.svg")
        assert code == 3
        assert said in err
        assert not (tmp_path / "a.svg").exists()


def test_a_config_file_gives_settings(runs, tmp_path, capsys):
    config = tmp_path / "plot.toml"
    config.write_text(
        f'kind = "certified-accuracy"\npaths = ["{runs}/paper"]\nout = "{tmp_path}/a.svg"\ntitle = "From a file"\n'
    )
    assert plot(capsys, "--config", config)[0] == 0
    assert "From a file" in (tmp_path / "a.svg").read_text()

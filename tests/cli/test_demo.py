from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from smoothcert import Certificate, runs
from smoothcert.cli import demo_steps, main
from smoothcert.data.digits import load_digits
from smoothcert.models.architectures import small_cnn
from smoothcert.noise import GridGaussianNoise
from smoothcert.stats.procedures import FixedN, run

TINY = ["--epochs", "1", "--inputs", "5", "--n", "200", "--sigmas", "0.1", "0.3"]
FILES = {
    "certified-accuracy.png",
    "certified-accuracy.svg",
    "model-sigma-0.1.safetensors",
    "model-sigma-0.3.safetensors",
    "model-undefended.safetensors",
    "noise.png",
    "report.html",
    "run-sigma-0.1",
    "run-sigma-0.3",
}
SAME = {"certified-accuracy.svg", "noise.png", "model-sigma-0.1.safetensors", "run-sigma-0.3/certificates.jsonl"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def printed(folder):
    """Runs the demo once for this file; what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        screen = io.StringIO()
        patch.setattr(sys, "stdout", screen)
        assert main(["demo", "--out", str(folder), *TINY]) == 0
    return screen.getvalue()


def certificates(folder: Path) -> list[tuple[int, int, Certificate]]:
    made = [runs.open(path) for path in sorted(folder.glob("run-sigma-*"))]
    return [
        (row["index"], row["true"], certificate)
        for one in made
        for row, certificate in zip(one.rows, one.certificates, strict=True)
    ]


def test_writes_its_files_and_nothing_else(printed, folder):
    assert {p.name for p in folder.iterdir()} == FILES


def test_prints_the_table_the_meaning_and_where_the_files_are(printed, folder):
    assert "Certified accuracy in %" in printed
    assert [line.split()[:3] for line in printed.splitlines() if line.startswith("σ")] == [
        ["σ", "=", "0.1"],
        ["σ", "=", "0.3"],
    ]
    assert "What this means" in printed
    assert f"{folder}/report.html" in printed


def test_alpha_is_not_said_of_an_image_that_was_picked_for_its_result(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "out"), *TINY, "--epochs", "10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "What this means Test image" in said
    assert "For an image picked beforehand, the probability that they mislead us is at most 0.001." in said
    assert "This one was picked afterwards" in said
    assert "the 10 results of this demo together: on average at most 0.010 of them are false" in said


def test_the_certificates_read_back_and_carry_index_and_true_label(printed, folder):
    test = load_digits()[1]
    rows = certificates(folder)
    assert [(index, c.sigma) for index, _, c in rows] == [(i, s) for s in (0.1, 0.3) for i in (0, 100, 200, 300, 400)]
    assert all(truth == test.labels[index] for index, truth, _ in rows)


def test_the_runs_stand_up_to_verification_and_the_report_is_about_them(printed, folder, capsys):
    assert main(["verify", *map(str, folder.glob("run-sigma-*")), "--again", "2"]) == 0
    page = (folder / "report.html").read_text("utf-8")
    assert "σ = 0.1" in page
    assert "σ = 0.3" in page


def test_every_radius_follows_from_the_recorded_votes_by_the_papers_procedure(printed, folder):
    for _, _, certificate in certificates(folder):
        assert certificate.noise == "grid"
        assert [stage.n for stage in certificate.stages] == [100, 200]
        bounds, _ = run(FixedN(n=200, n0=100, alpha=0.001), lambda stage, _n, c=certificate: c.stages[stage])
        radius = GridGaussianNoise(certificate.sigma).radius(bounds)
        assert certificate.radius == radius
        assert certificate.label == (bounds.label if radius > 0 else None)


def test_the_weights_load_into_the_network_they_came_from(printed, folder):
    for name in ("sigma-0.1", "sigma-0.3", "undefended"):
        model = small_cnn()
        model.load_state_dict(load_file(folder / f"model-{name}.safetensors"))
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_figures_can_be_read_and_are_not_blank(printed, folder):
    for name in ("certified-accuracy.png", "noise.png"):
        image = matplotlib.image.imread(folder / name)
        assert min(image.shape[:2]) > 200
        assert image.std() > 0.05


def test_the_same_seed_gives_the_same_files_and_another_seed_others(printed, folder, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "again"), *TINY]) == 0
    assert main(["demo", "--out", str(tmp_path / "other"), *TINY, "--seed", "1"]) == 0
    capsys.readouterr()
    for name in SAME:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes(), name


def test_replaces_its_own_files_and_keeps_others(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "noise.png").write_text("old")
    assert main(["demo", "--out", str(tmp_path), *TINY, "--seed", "5"]) == 0
    state = torch.get_rng_state(), torch.get_num_threads()
    assert main(["demo", "--out", str(tmp_path), *TINY]) == 0
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert (tmp_path / "noise.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in tmp_path.iterdir()} == FILES | {"mine.txt"}
    assert torch.equal(torch.get_rng_state(), state[0])
    assert torch.get_num_threads() == state[1]
    assert capsys.readouterr().err == ""  # no progress bar without a terminal


@pytest.fixture
def no_training(monkeypatch):
    def fail(*_):
        pytest.fail("trained before everything was checked")

    monkeypatch.setattr(demo_steps, "train_models", fail)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--sigmas", "0"], "`sigma` to be a finite number > 0"),
        (["--sigmas", "0.1", "-0.2"], "`sigma` to be a finite number > 0"),
        (["--sigmas", "nan"], "`sigma` to be a finite number > 0"),
        (["--sigmas", "inf"], "`sigma` to be a finite number > 0"),
        (["--sigmas"], "`sigmas` to be different noise levels, at least one"),
        (["--sigmas", "0.1", "0.1"], "`sigmas` to be different noise levels"),
        (["--alpha", "0"], "`alpha` in (0, 0.5)"),
        (["--alpha", "0.5"], "`alpha` in (0, 0.5)"),
        (["--alpha", "nan"], "`alpha` in (0, 0.5)"),
        (["--n", "0"], "`n` to be a whole number"),
        (["--n", "5"], "n=5 can never certify at alpha=0.001; need n>=10"),
        (["--inputs", "0"], "`inputs` to be a whole number from 1 to 500"),
        (["--inputs", "-5"], "`inputs` to be a whole number from 1 to 500"),
        (["--inputs", "501"], "`inputs` to be a whole number from 1 to 500"),
        (["--epochs", "0"], "`epochs` to be a whole number"),
        (["--seed", "-1"], "`seed` to be a whole number from 0"),
        (["--radii", "-0.1"], "`radii` to be finite numbers >= 0"),
        (["--radii"], "`radii` to be finite numbers >= 0"),
    ],
)
def test_bad_settings_exit_with_2_before_anything_is_written(tmp_path, capsys, no_training, flags, named):
    assert main(["demo", "--out", str(tmp_path / "out"), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_key_in_the_config_file_exits_with_2_and_writes_nothing(tmp_path, capsys, no_training):
    path = tmp_path / "demo.toml"
    path.write_text('epoch = 5\nout = "out"')
    assert main(["demo", "--config", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "unknown key 'epoch'. Did you mean 'epochs'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_exits_with_6_before_the_training(tmp_path, capsys, no_training):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full" / "noise.png").mkdir(parents=True)
    for out in ("file", "file/out", "none/out", "full"):
        assert main(["demo", "--out", str(tmp_path / out)]) == 6
        err = capsys.readouterr().err
        assert err.startswith("error: Cannot ")
        assert err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_missing_extra_exits_with_5_before_the_training(tmp_path, capsys, no_training, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 5
    assert "pip install 'smoothcert[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def group(radii, labels, truths):
    template = {"alpha": 0.1, "sigma": 1.0, "noise": "grid", "procedure": {}, "stages": [], "key": "", "input_id": ""}
    bounds = {"label": None, "q_a_upper": 1.0, "p_b_upper": 1.0}
    made = [
        Certificate.from_dict({**template, "label": label, "radius": radius, "bounds": bounds})
        for label, radius in zip(labels, radii, strict=True)
    ]
    return demo_steps.Certified(1.0, np.arange(len(made)), np.array(truths), made)


def test_the_example_is_the_correct_certificate_in_the_middle():
    certified = group([0.9, 0.1, 0.5, 0.7, 0.0], [1, 1, 1, 2, None], [1, 1, 1, 1, 1])
    assert certified.correct.tolist() == [True, True, True, False, False]
    assert certified.typical_correct() == 2
    assert math.isclose(certified.average_radius, 1.5 / 5)


def test_without_a_correct_certificate_there_is_no_example_and_the_demo_says_so(tmp_path, capsys, monkeypatch):
    nothing = group([0.0] * 5, [None] * 5, [0] * 5)
    assert nothing.typical_correct() is None
    monkeypatch.setattr(demo_steps, "certify", lambda *_: nothing)
    monkeypatch.setattr(demo_steps, "write_all", lambda *_: [])
    assert main(["demo", "--out", str(tmp_path), *TINY]) == 0
    assert "No image was certified with its true class" in capsys.readouterr().out


@pytest.mark.slow
def test_with_its_own_settings_each_noise_level_is_best_somewhere(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("σ")]
    assert len(rows) == 3
    assert all("*" in row for row in rows)
    claims = certificates(tmp_path / "out")
    assert len(claims) == 300
    right = [certificate.label == label for _, label, certificate in claims]
    assert sum(right) > 270

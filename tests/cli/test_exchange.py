"""The commands export, import and merge."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import smoothcert.cli
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.cli.export import Export
from smoothcert.cli.import_run import Import
from smoothcert.cli.merge import Merge
from smoothcert.data.dataset import ArrayData

LOG = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.378\t1\t0:00:15.400000\n20\t7\t-1\t0.0\t0\t0:00:15\n"


class MeanOfChannel(torch.nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    own = {"export": Export, "import": Import, "merge": Merge}
    monkeypatch.setattr(smoothcert.cli, "COMMANDS", {**smoothcert.cli.COMMANDS, **own})


@pytest.fixture
def run(capsys):
    def call(*args):
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def log(tmp_path):
    (tmp_path / "sigma_0.25").write_text(LOG)
    return tmp_path / "sigma_0.25"


def make(out, indices):
    rng = np.random.default_rng(0)
    data = ArrayData(rng.integers(0, 200, (4, 3, 4, 4), dtype=np.uint8), np.zeros(4, np.int64), None, "noise")
    settings = runs.CertifySettings(sigma=0.25, seed=1, n_max=200, batch_size=100, chunk=1, device="cpu")
    return runs.certify_dataset(MeanOfChannel(), data, out, settings, indices=indices)


def test_there_and_back(run, log, tmp_path):
    code, out, err = run("import", log, "--out", tmp_path / "run", "--sigma", "0.25", "--alpha", "0.01", "--n", 100_000)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"2 rows, run: {tmp_path / 'run'}"
    assert "notice: a log holds no votes" in out
    assert runs.open(tmp_path / "run").manifest.values["alpha"] == 0.01
    code, out, err = run("export", tmp_path / "run", "--out", tmp_path / "again.tsv")
    assert (code, out, err) == (0, f"2 rows: {tmp_path / 'again.tsv'}\n", "")
    assert (tmp_path / "again.tsv").read_text() == LOG


def test_an_imported_run_is_shown(run, log, tmp_path):
    run("import", log, "--out", tmp_path / "run", "--sigma", "0.25", "--data", "cifar10")
    code, out, _ = run("show", tmp_path / "run", "--radii", "0", "0.25", "0.5")
    assert code == 0
    assert "cifar10" in out
    shown = [line.split() for line in out.splitlines() if line.strip().startswith("0.")]
    assert [(radius, float(share)) for radius, share in shown] == [("0.25", 50), ("0.5", 0)]


def test_the_format_comes_from_the_name_or_the_flag(run, log, tmp_path):
    run("import", log, "--out", tmp_path / "run", "--sigma", "0.25")
    for name, format_, start in [
        ("a.csv", (), b'"index"'),
        ("a.parquet", (), b"PAR1"),
        ("b", ("--format", "csv"), b'"'),
    ]:
        code, _, err = run("export", tmp_path / "run", "--out", tmp_path / name, *format_)
        assert (code, err) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(start)
    code, _, err = run("export", tmp_path / "run", "--out", tmp_path / "sigma_0.5")
    assert code == 2
    assert "ends in .tsv, .csv, .parquet, got 'sigma_0.5'. Or give --format." in err


def test_refusals_have_their_exit_codes(run, log, tmp_path):
    run("import", log, "--out", tmp_path / "run", "--sigma", "0.25")
    cases = {
        2: [
            ("import", log, "--out", tmp_path / "run", "--sigma", "0.25"),
            ("import", log, "--out", tmp_path / "new", "--sigma", "-1"),
            ("import", log, "--out", tmp_path / "new", "--sigma", "0.01", "--n", 1000),
            ("import", tmp_path / "missing", "--out", tmp_path / "new", "--sigma", "0.25"),
            ("merge", tmp_path / "run", "--out", tmp_path / "new"),
        ],
        4: [
            ("export", tmp_path / "missing", "--out", tmp_path / "new.tsv"),
            ("merge", tmp_path / "run", tmp_path / "missing", "--out", tmp_path / "new"),
        ],
        6: [
            ("export", tmp_path / "run", "--out", tmp_path / "missing" / "new.tsv"),
            ("export", tmp_path / "run", "--out", tmp_path, "--format", "tsv"),
            ("import", log, "--out", tmp_path / "missing" / "new", "--sigma", "0.25"),
            ("merge", tmp_path / "run", tmp_path / "run", "--out", tmp_path / "missing" / "new"),
        ],
    }
    for expected, commands in cases.items():
        for command in commands:
            code, out, err = run(*command)
            assert (code, out) == (expected, ""), command
            assert err.startswith("error: ")
            assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "sigma_0.25"]


def test_an_existing_file_is_refused(run, log, tmp_path):
    run("import", log, "--out", tmp_path / "run", "--sigma", "0.25")
    (tmp_path / "kept.tsv").write_text("precious")
    code, _, err = run("export", tmp_path / "run", "--out", tmp_path / "kept.tsv")
    assert code == 2
    assert "nothing is overwritten" in err
    assert (tmp_path / "kept.tsv").read_text() == "precious"


def test_parts_are_merged(run, tmp_path):
    for number in range(2):
        make(tmp_path / str(number), range(number, 4, 2))
    code, out, err = run("merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "whole")
    assert (code, out, err) == (0, f"4 rows of 2 runs: {tmp_path / 'whole'}\n", "")
    assert runs.open(tmp_path / "whole").rows == make(tmp_path / "single", range(4)).rows


def test_an_unfinished_run_is_exported_with_a_notice(run, tmp_path):
    made = make(tmp_path / "run", range(2))
    file = made.path / "certificates.jsonl"
    file.write_bytes(file.read_bytes()[:-7])
    code, out, _ = run("export", tmp_path / "run", "--out", tmp_path / "run.csv")
    assert code == 0
    assert "notice: the run is not complete: 1 of 2 inputs were exported" in out
    assert "was cut off" in out


def test_settings_come_from_a_file(run, log, tmp_path):
    (tmp_path / "import.toml").write_text("sigma = 0.25\nalpha = 0.01\n")
    code, _, err = run("import", log, "--out", tmp_path / "run", "--config", tmp_path / "import.toml")
    assert (code, err) == (0, "")
    assert runs.open(tmp_path / "run").manifest.values["alpha"] == 0.01


@pytest.mark.parametrize("name", ["export", "import", "merge"])
def test_help_ends_with_examples(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert f"smoothcert {name} " in out.partition("examples:")[2]


def test_exchanging_needs_no_torch(log, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from smoothcert.runs.exchange import export_run, import_log\n"
        "import smoothcert.runs.merging\n"
        "run = import_log(Path('sigma_0.25'), Path('run'), sigma=0.25, alpha=0.01, n=100_000)\n"
        "export_run(run, Path('again.tsv'), 'tsv')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "again.tsv").read_text() == LOG

"""`smoothcert tune`, and what `certify` makes of it."""

import json

import numpy as np
import pytest

from run_fixtures import make_files
from smoothcert.cli import main
from smoothcert.cli.card import _table
from smoothcert.runs import open as open_run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch, own_cache):
    monkeypatch.setattr("smoothcert.execution._SECONDS", 0.001)
    monkeypatch.setattr("smoothcert.execution._ROUNDS", 1)
    monkeypatch.setattr("smoothcert.execution.SIZES", (16,))


def certify(files, out, *words):
    flags = ["--sigma", "0.5", "--n-max", "64", "--procedure", "paper", "--seed", "1", "--chunk", "4"]
    return main(["certify", str(files.model), str(files.data), *flags, "--out", str(out), *words])


def plan_of(path):
    return open_run(path).manifest.values["plan"]


def test_tune_shows_what_it_tried_and_certify_uses_the_fastest(files, tmp_path, capsys):
    assert main(["tune", str(files.model), "--data", str(files.data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {trial["plan"]["backend"] for trial in found["trials"]} == {"eager", "onnxruntime", "openvino"}
    best = max(found["trials"], key=lambda trial: trial["rate"])
    assert found["plan"] == best["plan"]
    assert certify(files, tmp_path / "run") == 0
    recorded = plan_of(tmp_path / "run")
    assert recorded["batch_size"] == 16
    assert recorded.get("backend", "eager") == best["plan"]["backend"]
    assert certify(files, tmp_path / "eager", "--plan", "eager") == 0
    assert "backend" not in plan_of(tmp_path / "eager")


def test_tune_prints_a_table_with_the_fastest_first(files, capsys):
    assert main(["tune", str(files.model), "--data", str(files.data)]) == 0
    out = capsys.readouterr().out
    for word in ("backend", "copies/s", "openvino", "1.00", "Fastest here:", "certify uses it from now on"):
        assert word in out


def test_one_backend_alone_is_not_remembered(files, capsys, own_cache):
    assert main(["tune", str(files.model), "--data", str(files.data), "--plan", "onnxruntime"]) == 0
    assert "not remembered" in capsys.readouterr().out
    assert list(own_cache.rglob("plans/*")) == []


@pytest.mark.parametrize("words", [["--precision", "int8", "--plan", "folded"], ["--sigma", "0"]])
def test_wrong_settings_end_with_2_and_one_line(files, capsys, words):
    assert main(["tune", str(files.model), "--data", str(files.data), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_inspect_shows_int8_beside_fp32(files, capsys):
    flags = ["--seconds", "0.1", "--n-max", "200", "--precision", "int8", "--plan", "onnxruntime"]
    assert main(["inspect", str(files.model), "--data", str(files.data), *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["executed"].startswith("onnxruntime, int8, sha256:")
    both = [found["noisy_accuracy"], found["noisy_accuracy_in_fp32"]]
    assert both[0]["of"] == both[1]["of"]
    assert abs(both[0]["value"] - both[1]["value"]) < 0.1
    assert main(["inspect", str(files.model), "--data", str(files.data), *flags]) == 0
    assert "% in fp32" in capsys.readouterr().out


# Runs


def test_a_run_in_int8_records_what_was_smoothed_and_goes_on_as_it_began(files, tmp_path, capsys):
    out = tmp_path / "run"
    int8 = ["--plan", "onnxruntime", "--precision", "int8", "--batch-size", "32"]
    assert certify(files, out, *int8) == 0
    whole = (out / "certificates.jsonl").read_bytes()
    recorded = plan_of(out)
    assert (recorded["backend"], recorded["precision"]) == ("onnxruntime", "int8")
    assert recorded["executed"].startswith("onnxruntime, int8, sha256:")
    assert open_run(out).certificates[0].executed == recorded["executed"]
    assert certify(files, tmp_path / "plain", "--plan", "eager", "--batch-size", "32") == 0
    assert whole != (tmp_path / "plain" / "certificates.jsonl").read_bytes()
    (out / "certificates.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    assert certify(files, out, "--precision", "int8", "--resume") == 0
    assert (out / "certificates.jsonl").read_bytes() == whole
    capsys.readouterr()
    assert certify(files, out, "--resume") == 4
    assert "plan.precision" in capsys.readouterr().err
    assert certify(files, out, "--precision", "int8", "--plan", "openvino", "--resume") == 4
    assert "plan.backend" in capsys.readouterr().err


def test_workers_in_other_processes_run_the_same_network(files, tmp_path):
    for name, words in {"here": [], "there": ["--workers", "2"]}.items():
        assert certify(files, tmp_path / name, "--plan", "openvino", "--batch-size", "32", *words) == 0
    here, there = ((tmp_path / name / "certificates.jsonl").read_bytes() for name in ("here", "there"))
    assert here == there


def test_a_worker_that_builds_another_network_is_refused(files, tmp_path, capsys, monkeypatch):
    from smoothcert.runs.smoothing import SmoothingTask

    real = SmoothingTask.__init__

    def forged(self, **values):
        real(self, **{**values, "executed": "openvino, fp32, sha256:0"})

    monkeypatch.setattr(SmoothingTask, "__init__", forged)
    assert certify(files, tmp_path / "run", "--plan", "openvino") == 3
    assert "Expected to run the model as openvino, fp32, sha256:0" in capsys.readouterr().err


def test_verify_draws_again_by_the_same_backend(files, tmp_path, capsys):
    out = tmp_path / "run"
    assert certify(files, out, "--plan", "openvino", "--precision", "int8", "--batch-size", "32") == 0
    words = ["--again", "8", "--model", str(files.model), "--data", str(files.data)]
    assert main(["verify", str(out), *words]) == 0
    assert "8" in capsys.readouterr().out


def test_long_runs_are_tuned_for_and_short_ones_are_not(files, tmp_path, monkeypatch, own_cache):
    assert certify(files, tmp_path / "short") == 0
    assert list(own_cache.rglob("plans/*.json")) == []
    monkeypatch.setattr("smoothcert.runs.smoothing._TUNED_SECONDS", 0.0)
    assert certify(files, tmp_path / "long") == 0
    assert len(list(own_cache.rglob("plans/*.json"))) == 1
    assert np.isin(plan_of(tmp_path / "long").get("backend", "eager"), ["eager", "folded", "onnxruntime", "openvino"])


def test_show_and_report_name_what_was_smoothed(files, tmp_path, capsys):
    out = tmp_path / "run"
    assert certify(files, out, "--plan", "openvino", "--precision", "int8") == 0
    capsys.readouterr()
    assert main(["show", str(out)]) == 0
    assert "openvino, int8," in capsys.readouterr().out
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "run by openvino, int8" in page
    assert "What was smoothed is the network as run by" in page
    assert "--plan openvino --precision int8" in page


def test_a_card_names_what_was_smoothed_and_int8_certificates_are_not_attacked_in_fp32(files, tmp_path, capsys):
    out = tmp_path / "run"
    assert certify(files, out, "--plan", "openvino", "--precision", "int8") == 0
    assert _table(open_run(out))[0].startswith("The network as run by openvino, int8, sha256:")
    capsys.readouterr()
    assert main(["attack", str(out), "--data", str(files.data), "--out", str(tmp_path / "attacked")]) == 2
    err = capsys.readouterr().err
    assert "certifies the network in int8, which is another than the one that would be attacked" in err
    assert not (tmp_path / "attacked").exists()


def test_a_named_backend_goes_on_by_the_same_command(files, tmp_path):
    out = tmp_path / "run"
    assert certify(files, out, "--plan", "folded") == 0
    whole = (out / "certificates.jsonl").read_bytes()
    (out / "certificates.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    assert certify(files, out, "--plan", "folded", "--resume") == 0
    assert (out / "certificates.jsonl").read_bytes() == whole

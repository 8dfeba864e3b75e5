import contextlib
import io
import json
import os
import shutil
import signal
import threading
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from run_fixtures import finished, launch, size_of, wait_for
from smoothcert import runs
from smoothcert.cli import jobs, main
from smoothcert.lock import Lock
from smoothcert.models.sealed import read_safetensors

FAST = ["--epochs", "1", "--batch-size", "64"]
CERTIFY = ["--certify", "--every", "100", "--n-max", "200"]


class InThread:
    """Stands for a process: the same command, in the thread that waits for it, which takes no time to start."""

    started: list

    def __init__(self, words, *, stdout, stderr, env, **_):
        assert words[1:3] == ["-m", "smoothcert"]
        self.words, self.file = words[3:], stdout
        self.started.append(self.words)

    def wait(self):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = main(self.words)
        self.file.write(out.getvalue().encode())
        return code

    def terminate(self):
        raise AssertionError("nothing is to be ended")


@pytest.fixture
def commands(monkeypatch):
    """Have a sweep's commands run in this process; the list of what was started."""
    monkeypatch.setattr(InThread, "started", [], raising=False)
    monkeypatch.setattr(jobs, "subprocess", SimpleNamespace(Popen=InThread))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield InThread.started
    torch.set_num_threads(before)


def run(out, *more, data="digits"):
    return main(["sweep", str(data), *FAST, "--out", str(out), *map(str, more)])


def record_of(out):
    return json.loads((out / "train.json").read_text("utf-8"))


def tensors(out):
    return read_safetensors(out / "model.safetensors")[0]


def trainings(out):
    return {one.name for one in out.iterdir() if (one / "model.safetensors").exists()}


def times(out):
    return {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}


def only_line(err):
    [line] = err.splitlines()
    return line


def test_help_has_examples_and_no_settings_of_a_single_training(capsys):
    assert main(["sweep", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "smoothcert sweep mnist --sigmas" in printed.partition("examples:")[2]
    for flag in ("--sigma ", "--recipe ", "--seed "):
        assert flag not in printed


def test_every_combination_has_a_directory_and_is_made_once(commands, capsys, tmp_path):
    out = tmp_path / "deep" / "sweep"
    flags = ["--sigmas", "0.25", "0.5", "--recipes", "gaussian", "consistency:weight=5,copies=3", "--seeds", "0", "7"]
    assert run(out, *flags) == 0
    names = {
        f"{recipe}_sigma={sigma}_seed={seed}"
        for recipe in ("gaussian", "consistency-weight=5-copies=3")
        for sigma in ("0.25", "0.5")
        for seed in (0, 7)
    }
    assert trainings(out) == names
    assert sorted(capsys.readouterr().out.split()) == sorted(str(out / name) for name in names)
    for name in names:
        found = record_of(out / name)["settings"]
        assert f"_sigma={found['sigma']:g}_seed={found['seed']}" in name
        assert found["recipe"]["name"] in name
        assert found["epochs"] == 1
        assert "Network and model card" in (out / f"{name}.log").read_text("utf-8")
    found = record_of(out / "consistency-weight=5-copies=3_sigma=0.5_seed=7")["settings"]["recipe"]
    assert (found["weight"], found["copies"]) == (5.0, 3)
    networks = [tensors(out / name)["0.weight"].numpy().tobytes() for name in names]
    assert len(set(networks)) == 8

    before = times(out)
    assert run(out, *flags) == 0
    assert times(out) == before
    shutil.rmtree(out / "gaussian_sigma=0.5_seed=7")
    assert run(out, *flags) == 0
    again = times(out)
    assert {path.parent.name for path in before if again[path] != before[path]} == {"gaussian_sigma=0.5_seed=7"}


def test_a_directory_is_the_training_that_the_command_train_makes(commands, tmp_path):
    assert run(tmp_path / "sweep", "--sigmas", "0.25", "--seeds", "3", "--ema", "0.9", "--augment", "crop") == 0
    words = ["train", "digits", *FAST, "--sigma", "0.25", "--seed", "3", "--ema", "0.9", "--augment", "crop"]
    assert main([*words, "--out", str(tmp_path / "net")]) == 0
    one, other = tensors(tmp_path / "sweep" / "gaussian_sigma=0.25_seed=3"), tensors(tmp_path / "net")
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_sweep_that_was_cut_off_goes_on(commands, tmp_path):
    out = tmp_path / "sweep"
    assert run(out, "--sigmas", "0.25") == 0
    before = times(out)
    assert run(out, "--sigmas", "0.25", "0.5") == 0
    assert trainings(out) == {"gaussian_sigma=0.25_seed=0", "gaussian_sigma=0.5_seed=0"}
    assert {path: times(out)[path] for path in before} == before
    begun = out / "gaussian_sigma=0.5_seed=0"
    expected, record = tensors(begun), record_of(begun)
    record.pop("result")  # as if it had been cut off before it was complete
    (begun / "train.json").write_text(json.dumps(record))
    (begun / "model.safetensors").unlink()
    assert run(out, "--sigmas", "0.25", "0.5") == 0
    assert all(torch.equal(tensors(begun)[name], expected[name]) for name in expected)


def test_a_training_that_fails_is_named_and_the_others_finish(commands, capsys, tmp_path):
    out, bad = tmp_path / "sweep", "consistency-weight=1e30_sigma=0.25_seed=0"
    assert run(out, "--sigmas", "0.25", "--recipes", "gaussian", "consistency:weight=1e30", "stability") == 3
    line = only_line(capsys.readouterr().err)
    assert f"1 of 3 trainings failed: {bad} (exit code 3, see {out / bad}.log)." in line
    assert "Training diverged" in (out / f"{bad}.log").read_text("utf-8")
    assert trainings(out) == {"gaussian_sigma=0.25_seed=0", "stability_sigma=0.25_seed=0"}


def test_where_all_fail_all_are_named(commands, capsys, tmp_path):
    assert run(tmp_path / "sweep", "--sigmas", "0.25", "0.5", "--learning-rate", "1e30") == 3
    line = only_line(capsys.readouterr().err)
    assert "2 of 2" in line
    assert "sigma=0.25" in line
    assert "sigma=0.5" in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sigmas", "0.25", "0.25"], "`sigmas`"),
        (["--recipes", "gaussian", "gaussian"], "`recipes`"),
        (["--seeds", "1", "2", "1"], "`seeds`"),
        (["--sigmas", "0.25", "-1"], "`sigma`"),
        (["--recipes", "gaussian", "gausian"], "Did you mean 'gaussian'?"),
        (["--epochs", "0"], "`epochs`"),
        (["--jobs", "0"], "`jobs`"),
        (["--certify", "--every", "0"], "`every`"),
        (["--certify", "--certify-sigmas", "0"], "`sigma`"),
        (["--certify", "--certify-sigmas", "0.5", "--n-max", "0"], "`n_max`"),
        (["--certify", "--n-max", "0"], "`n_max`"),
        (["--certify", "--radii", "-1"], "radi"),
        (["--seeds", "0", "-1"], "`seed`"),
        (["--arch", "lenet"], "(1, 8, 8)"),
        (["--recipes", "denoiser"], "`classifier`"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(commands, capsys, tmp_path, flags, said):
    assert run(tmp_path / "sweep", "--sigmas", "0.25", *flags) == 2
    assert said in only_line(capsys.readouterr().err)
    assert commands == []
    assert not (tmp_path / "sweep").exists()


def test_missing_data_are_one_line_and_start_nothing(commands, capsys, tmp_path):
    assert run(tmp_path / "sweep", "--sigmas", "0.25", data="digts") == 2
    assert "Did you mean 'digits'?" in only_line(capsys.readouterr().err)
    assert not (tmp_path / "sweep").exists()


def test_a_place_that_cannot_be_written_is_one_line(commands, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert run(tmp_path / "file", "--sigmas", "0.25") == 6
    assert str(tmp_path / "file") in only_line(capsys.readouterr().err)


def test_settings_come_from_a_file_too(commands, tmp_path):
    lines = ['data = "digits"', "sigmas = [0.25, 0.5]", "epochs = 1", "seeds = [4]", 'recipes = ["stability"]']
    (tmp_path / "c.toml").write_text("\n".join(lines))
    flags = ["--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "sweep"), "--sigmas", "0.5"]
    assert main(["sweep", *flags]) == 0
    assert trainings(tmp_path / "sweep") == {"stability_sigma=0.5_seed=4"}


def test_noise_levels_that_differ_little_do_not_share_a_directory(commands, tmp_path):
    assert run(tmp_path / "sweep", "--sigmas", "0.12345671", "0.12345672") == 0
    assert len(trainings(tmp_path / "sweep")) == 2


def test_paths_and_devices_reach_the_commands(commands, tmp_path):
    out = tmp_path / "sweep"
    assert run(out, "--sigmas", "0.25", *CERTIFY, "--data-root", tmp_path, "--device", "cpu") == 0
    written = [tomllib.loads(path.read_text("utf-8")) for path in sorted((out / "settings").iterdir())]
    assert len(written) == 2
    for settings in written:
        assert (settings["data_root"], settings["device"]) == (str(tmp_path), "cpu")


def test_any_letters_in_settings_reach_the_commands(tmp_path):
    job = jobs.Job(tmp_path / "net", {"classifier": 'mödel "😀"', "data": "digits", "augment": ()}, ())
    [words] = job.commands()
    written = tomllib.loads((tmp_path / "settings" / "net.toml").read_text("utf-8"))
    assert written == {"classifier": 'mödel "😀"', "augment": []}
    assert words[:2] == ["train", "digits"]


# Certifying


def test_networks_are_certified_and_their_cards_say_so(commands, tmp_path):
    out = tmp_path / "sweep"
    assert run(out, "--sigmas", "0.25", "0", "--seeds", "5", *CERTIFY) == 0
    net = out / "gaussian_sigma=0.25_seed=5"
    certified = runs.open(net / "certified_sigma=0.25")
    assert certified.complete
    assert certified.sigma == 0.25
    assert [row["index"] for row in certified.rows] == [0, 100, 200, 300, 400]
    card = (net / "README.md").read_text("utf-8")
    assert "certified and correct %" in card
    assert "Not measured yet" not in card
    bare = out / "gaussian_sigma=0_seed=5"
    assert "Not measured yet" in (bare / "README.md").read_text("utf-8")  # without noise there is nothing to certify at
    before = {path: path.read_bytes() for path in net.rglob("*.jsonl")}
    assert run(out, "--sigmas", "0.25", "0", "--seeds", "5", *CERTIFY) == 0
    assert {path: path.read_bytes() for path in net.rglob("*.jsonl")} == before
    assert (net / "README.md").read_text("utf-8") == card


def test_networks_are_certified_at_other_noise_than_they_were_trained_with(commands, tmp_path):
    out = tmp_path / "sweep"
    flags = [*CERTIFY, "--certify-sigmas", "0.5", "1", "--radii", "0", "0.25"]
    assert run(out, "--sigmas", "0.25", *flags) == 0
    net = out / "gaussian_sigma=0.25_seed=0"
    for sigma in (0.5, 1.0):
        found = runs.open(net / f"certified_sigma={sigma:g}")
        assert found.sigma == sigma
        assert found.manifest.values["procedure"]["radii"] == [0.0, 0.25]
        assert f"smoothed with σ = {sigma:g}," in (net / "README.md").read_text("utf-8")
    assert {one.name for one in net.iterdir() if one.is_dir()} == {"certified_sigma=0.5", "certified_sigma=1"}


def test_a_sweep_of_denoisers_with_certification_works_or_is_refused(commands, capsys, tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (30, 1, 8, 8), np.uint8), np.arange(30) % 10
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    assert main(["train", "digits", *FAST, "--sigma", "0", "--seed", "0", "--out", str(tmp_path / "net")]) == 0
    flags = ["--sigmas", "0.25", "--recipes", "denoiser", "--classifier", tmp_path / "net", "--learning-rate", "0.01"]
    code = run(tmp_path / "sweep", *flags, "--certify", "--every", "1", "--n-max", "100", data=tmp_path / "own.npz")
    assert code in (0, 2)
    assert (tmp_path / "sweep").exists() == (code == 0)


# Real processes

# A step takes so long that a second signal would find the child at work.
LONG = ["--epochs", "8", "--batch-size", "1297"]


@pytest.mark.parametrize(
    "whom", [pytest.param("the sweep alone", marks=pytest.mark.slow), "all its processes, as a terminal does"]
)
def test_ctrl_c_ends_the_children_with_their_state_saved_and_the_sweep_goes_on_later(commands, tmp_path, whom):
    out = tmp_path / "sweep"
    words = ["sweep", "digits", *LONG, "--sigmas", "0.25", "--recipes", "macer:copies=8", "--seeds", "0", "1"]
    words += ["--out", str(out)]
    process = launch(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
    net = out / "macer-copies=8_sigma=0.25_seed=0"
    assert wait_for(lambda: size_of(net / "log.jsonl") > 0, process)
    if whom == "the sweep alone":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "error: interrupted\n")
    Lock(net / "lock").release()  # or its holder would still be there
    assert not (out / "macer-copies=8_sigma=0.25_seed=1").exists()
    assert (net / "state.safetensors").exists(), "what was trained is lost"
    step = read_safetensors(net / "state.safetensors")[1]["progress"]["step"]
    assert 1 <= step < 8
    assert main(words) == 0
    assert len(trainings(out)) == 2
    alone = ["--sigma", "0.25", "--recipe", "macer:copies=8", "--seed", "0", "--out", str(tmp_path / "net")]
    assert main(["train", "digits", *LONG, *alone]) == 0
    one, other = tensors(net), tensors(tmp_path / "net")
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow
def test_several_trainings_run_side_by_side(tmp_path):
    words = ["sweep", "digits", *FAST, "--sigmas", "0.25", "0.5", "--seeds", "0", "1", "--out", str(tmp_path / "sweep")]
    done = finished([*words, "--jobs", "2", *CERTIFY], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.code, done.err) == (0, "")
    assert len(trainings(tmp_path / "sweep")) == 4
    assert len(list((tmp_path / "sweep").glob("*/certified_*/run.json"))) == 4


def test_no_thread_is_left_behind(commands, tmp_path):
    before = threading.active_count()
    assert run(tmp_path / "sweep", "--sigmas", "0.25") == 0
    assert threading.active_count() == before

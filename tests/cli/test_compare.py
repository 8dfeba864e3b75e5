"""`smoothcert compare`: certifiers side by side, from runs that are there or from trainings of its own."""

import contextlib
import io
import json
import re
import shlex
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import savemat

from attack_fixtures import attack_base, bound, certified, pixels, relu_network
from run_fixtures import launch, size_of, wait_for
from smoothcert import runs
from smoothcert.cli import _parse, jobs, main
from smoothcert.cli.compare import FIGURE, SETTINGS, TABLE, Compare
from smoothcert.data import known
from smoothcert.models.architectures import ARCHITECTURES
from smoothcert.report.comparison import comparison_table
from smoothcert.report.run_tables import as_markdown
from smoothcert.training.recipes import RECIPES


def call(capsys, *words):
    code = main(["compare", *map(str, words)])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- help ----------------------------------------------------------------------------------------------------------


def examples():
    lines = re.findall(r"^  (smoothcert .*?)(?:   .*)?$", Compare.examples, re.MULTILINE)
    return [_parse(shlex.split(line)[1:]) for line in lines]


def test_help_ends_with_examples_that_the_command_line_takes(capsys):
    assert main(["compare", "--help"]) == 0
    assert capsys.readouterr().out.endswith(Compare.examples)
    assert len(examples()) >= 4
    assert all(isinstance(one, Compare) for one in examples())


def test_the_papers_settings_name_data_networks_and_recipes_that_there_are():
    for setting in SETTINGS.values():
        assert setting.data in known.KNOWN
        assert setting.architecture in ARCHITECTURES
        for recipe in setting.recipes:
            RECIPES.parse(recipe)
        assert all(0 < sigma < 2 for sigma in setting.sigmas)
    for one in examples():
        assert one.arch is None or one.arch in ARCHITECTURES
        for recipe in one.recipes or ():
            RECIPES.parse(recipe)


# ---- runs that are there -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    bound(path / "crown", method="crown")
    bound(path / "few", method="lipschitz", indices=[0, 1])
    bound(path / "moved", pixels(12), method="lipschitz", indices=range(11))
    certified(path / "smoothed", pixels(), network=relu_network())
    attack_base(path / "undefended", pixels(), network=relu_network(), attacks=("deepfool",))
    return path


def test_two_runs_become_a_table_and_a_figure(folder, tmp_path, capsys):
    out = tmp_path / "comparison"
    paths = [folder / "crown", folder / "smoothed"]
    code, shown, err = call(capsys, *paths, "--radii", "0", "0.05", "--undefended", folder / "undefended", "--out", out)
    assert (code, err) == (0, "")
    table = comparison_table([runs.open(path) for path in paths], (0.0, 0.05))
    assert (out / TABLE).read_text("utf-8") == f"{as_markdown(table)}\n![certified accuracy]({FIGURE})\n"
    assert (out / FIGURE).read_bytes().startswith(b"\x89PNG")
    for words in ("CROWN", "σ = 0.5", "s / input", "All on the same 11 inputs", f"Table and figure: {out}"):
        assert words in shown
    assert {path.name for path in out.iterdir()} == {TABLE, FIGURE}
    before = (out / TABLE).read_bytes(), (out / FIGURE).read_bytes()
    assert call(capsys, *paths, "--radii", "0", "0.05", "--undefended", folder / "undefended", "--out", out)[0] == 0
    assert ((out / TABLE).read_bytes(), (out / FIGURE).read_bytes()) == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "either runs to compare or --setting"),
        (["{}/crown", "--setting", "crown"], 2, "either runs to compare or --setting"),
        (["{}/crown"], 2, "at least two runs"),
        (["{}/crown", "{}/few"], 2, "not on the same inputs"),
        (["{}/crown", "{}/moved"], 2, "not on the same data"),
        (["{}/crown", "{}/undefended"], 2, "'attack-base'"),
        (["{}/crown", "{}/none"], 4, "Expected a run in"),
        (["{}/crown", "{}/smoothed", "--undefended", "{}/crown"], 2, "smoothcert attack-base"),
        (["{}/crown", "{}/smoothed", "--undefended", "{}/none"], 2, "norms"),
        (["{}/crown", "{}/smoothed", "--data", "mnist"], 2, "--setting"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_writes_nothing(folder, tmp_path, capsys, words, code, said):
    got, shown, err = call(capsys, *(word.format(folder) for word in words), "--out", tmp_path / "out")
    assert (got, shown) == (code, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_other_things_keeps_them(folder, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    code, _, _ = call(capsys, folder / "crown", folder / "smoothed", "--out", tmp_path)
    assert code in (0, 2)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    (tmp_path / "file").touch()
    code, _, err = call(capsys, folder / "crown", folder / "smoothed", "--out", tmp_path / "file")
    assert code == 6
    assert err.count("\n") == 1


# ---- trainings of its own ------------------------------------------------------------------------------------------


class Here:
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


@pytest.fixture
def commands(monkeypatch):
    """Have the comparison's commands run in this process; the list of what was started."""
    monkeypatch.setattr(Here, "started", [], raising=False)
    monkeypatch.setattr(jobs, "subprocess", SimpleNamespace(Popen=Here))
    return Here.started


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Data of a few images of 8×8."""
    path = tmp_path_factory.mktemp("data") / "own.npz"
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (30, 1, 8, 8), np.uint8), np.arange(30) % 10
    np.savez(path, x_train=x[:24], y_train=y[:24], x_test=x[24:], y_test=y[24:])
    return path


def flags(data, *more):
    common = ["--data", data, "--epochs", "1", "--every", "3", "--n-max", "200", "--sigmas", "0.25"]
    return [*common, "--smooth-arch", "small-cnn", "--arch", "small-cnn", *more]


def contents(out):
    """What must not change when nothing is to be done; networks are not even written again."""
    rows = {path: path.read_bytes() for path in (*out.rglob("*.jsonl"), out / TABLE)}
    return rows, {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}


def check_comparison(out, method, recipe, data_name):
    """The networks, runs and files of a comparison; their two runs."""
    net = out / f"bounded_{recipe.replace(':', '-')}_sigma=0_seed=0"
    smoothed = runs.open(out / "smoothed_gaussian_sigma=0.25_seed=0" / "certified_sigma=0.25")
    bounds = runs.open(net / f"bounded_{method}")
    assert (smoothed.manifest.kind, smoothed.sigma, smoothed.complete) == ("certify", 0.25, True)
    assert (bounds.manifest.kind, bounds.complete) == ("bound", True)
    assert bounds.manifest.values["procedure"]["method"] == method
    assert bounds.manifest.values["data"]["name"] == smoothed.manifest.values["data"]["name"] == data_name
    assert bounds.manifest.values["model"]["weights_hash"] != smoothed.manifest.values["model"]["weights_hash"]
    settings = json.loads((net / "train.json").read_text("utf-8"))["settings"]
    assert (settings["sigma"], settings["recipe"]["name"]) == (0.0, recipe.partition(":")[0])
    assert settings["epochs"] == 1
    text = (out / TABLE).read_text("utf-8")
    assert text == f"{as_markdown(comparison_table([smoothed, bounds]))}\n![certified accuracy]({FIGURE})\n"
    assert (out / FIGURE).read_bytes().startswith(b"\x89PNG")
    [training] = [one for one in comparison_table([smoothed, bounds]).columns if one.heading == "training s"]
    assert all(value is not None and value >= 0 for value in training.values), "from where the networks lie"
    return smoothed, bounds


@pytest.mark.parametrize(
    ("setting", "recipe"),
    [("crown", "gaussian"), ("dual", "dual:epsilon=0.1"), ("lipschitz", "lipschitz-margin:margin=0.1")],
)
def test_a_setting_trains_certifies_and_compares_and_the_second_time_does_nothing_anew(
    commands, own, tmp_path, capsys, setting, recipe
):
    out = tmp_path / "deep" / "comparison"
    words = ["--setting", setting, *flags(own, "--recipes", recipe), "--out", out]
    code, shown, err = call(capsys, *words)
    assert (code, err) == (0, "")
    smoothed, bounds = check_comparison(out, setting, recipe, "own.npz (test)")
    assert smoothed.manifest.indices == bounds.manifest.indices == [0, 3]
    assert [one[0] for one in commands] == ["train", "certify", "card", "train", "baseline"]
    assert f"Table and figure: {out}" in shown
    before = contents(out)
    assert call(capsys, *words)[0] == 0
    assert contents(out) == before


def svhn(root, monkeypatch, count=8):
    """House numbers in their own layout, but a few only and drawn at random."""
    monkeypatch.setitem(known.KNOWN, "svhn", replace(known.SVHN, counts=dict.fromkeys(known.SVHN.counts, count)))
    (root / "svhn").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        content = {
            "X": generator.integers(0, 256, (32, 32, 3, count), np.uint8),
            "y": (np.arange(count) % 10 + 1)[:, None].astype(np.uint8),
        }
        savemat(root / "svhn" / f"{split}_32x32.mat", content, do_compression=True)


def test_the_comparison_by_lipschitz_margin_is_on_svhn(commands, monkeypatch, tmp_path, capsys):
    """With smaller networks than the paper's, on a stand-in in SVHN's own layout."""
    svhn(tmp_path / "root", monkeypatch)
    words = ["--setting", "lipschitz", "--data-root", tmp_path / "root", "--epochs", "1", "--every", "4"]
    words += ["--n-max", "50", "--sigmas", "0.25", "--arch", "resnet20", "--smooth-arch", "resnet20"]
    code, _, err = call(capsys, *words, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    smoothed, _ = check_comparison(tmp_path / "out", "lipschitz", "lipschitz-margin:margin=0.1", "svhn (test)")
    assert smoothed.manifest.indices == [0, 4]


@pytest.mark.slow
def test_the_papers_network_for_svhn_goes_through_too(commands, monkeypatch, tmp_path, capsys):
    svhn(tmp_path / "root", monkeypatch, count=4)
    words = ["--setting", "lipschitz", "--data-root", tmp_path / "root", "--epochs", "1", "--every", "2"]
    words += ["--n-max", "50", "--sigmas", "0.25", "--smooth-arch", "resnet20", "--out", tmp_path / "out"]
    assert call(capsys, *words)[0] == 0
    check_comparison(tmp_path / "out", "lipschitz", "lipschitz-margin:margin=0.1", "svhn (test)")


def test_what_was_cut_off_goes_on(commands, own, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--setting", "crown", *flags(own), "--out", out]
    assert call(capsys, *words)[0] == 0
    before, networks = contents(out)
    runs_of = list(out.rglob("certificates.jsonl"))
    assert len(runs_of) == 2
    for rows in runs_of:
        rows.write_bytes(rows.read_bytes()[:-30])  # as after kill -9
    (out / TABLE).unlink()
    assert call(capsys, *words)[0] == 0
    after, still = contents(out)
    assert {path: after[path] for path in runs_of} == {path: before[path] for path in runs_of}
    assert still == networks, "no network was trained again"


def test_several_recipes_and_noise_levels_are_all_in_the_table(commands, own, tmp_path, capsys):
    recipes = ["--recipes", "gaussian", "stability"]
    words = ["--setting", "lipschitz", *flags(own, *recipes, "--sigmas", "0.25", "0.5"), "--out", tmp_path / "out"]
    code, _, err = call(capsys, *words)
    assert (code, err) == (0, "")
    lines = [line for line in (tmp_path / "out" / TABLE).read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + 4
    assert len({line.split("|")[1] for line in lines[1:]}) == 4


def test_a_training_that_fails_is_named(commands, own, tmp_path, capsys):
    words = ["--setting", "crown", *flags(own, "--learning-rate", "1e30"), "--out", tmp_path / "out"]
    code, shown, err = call(capsys, *words)
    assert (code, shown) == (3, "")
    assert "2 of 2 trainings failed: smoothed_gaussian_sigma=0.25_seed=0 (exit code 3, see " in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out" / TABLE).exists()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--epochs", "0"], 2, "`epochs`"),
        (["--every", "0"], 2, "`every`"),
        (["--first", "0"], 2, "`first`"),
        (["--n-max", "0"], 2, "`n_max`"),
        (["--n-max", "5"], 2, "can never certify"),
        (["--jobs", "0"], 2, "`jobs`"),
        (["--time-limit", "0"], 2, "`time_limit`"),
        (["--recipes", "dual", "--time-limit", "1e-12"], 2, "for 24 training inputs, more than the time limit"),
        (["--batch-size", "0"], 2, "`batch_size`"),
        (["--learning-rate", "-1"], 2, "`learning_rate`"),
        (["--sigmas", "0"], 2, "`sigma`"),
        (["--sigmas", "0.25", "0.25"], 2, "`sigmas`"),
        (["--recipes", "dual", "dual"], 2, "`recipes`"),
        (["--recipes", "duel"], 2, "Did you mean 'dual'?"),
        (["--arch", "lenet"], 2, "(1, 8, 8)"),
        (["--data", "digts"], 2, "Did you mean 'digits'?"),
        (["--undefended", "nowhere.npy"], 2, "nowhere.npy"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(commands, own, tmp_path, capsys, more, code, said):
    got, shown, err = call(capsys, "--setting", "dual", *flags(own, *more), "--out", tmp_path / "out")
    assert (got, shown) == (code, "")
    assert said in err
    assert err.count("\n") == 1
    assert commands == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hours", [0.5, float("inf")])
def test_the_commands_of_a_job_have_its_time_limit(tmp_path, hours):
    bound = {"data": "digits", "method": "dual", "time_limit": hours}
    job = jobs.Job(tmp_path / "net", {"data": "digits", "sigma": 0.0, "time_limit": hours}, [], [bound])
    assert [_parse(command).time_limit for command in job.commands()] == [hours, hours]


def test_settings_come_from_a_file_too(commands, own, tmp_path, capsys):
    lines = ['setting = "lipschitz"', f'data = "{own}"', "epochs = 1", "every = 3", "n-max = 200"]
    lines += [
        'recipes = ["gaussian"]',
        'arch = "small-cnn"',
        'smooth-arch = "small-cnn"',
        "sigmas = [0.5]",
        f'out = "{tmp_path / "out"}"',
    ]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert call(capsys, "--config", tmp_path / "c.toml", "--sigmas", "0.25")[0] == 0
    check_comparison(tmp_path / "out", "lipschitz", "gaussian", "own.npz (test)")


@pytest.mark.slow
def test_ctrl_c_ends_the_children_with_what_was_trained_kept(commands, own, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--setting", "lipschitz", *flags(own, "--recipes", "gaussian", "--epochs", "3000"), "--out", out]
    process = launch(["compare", *map(str, words)])
    log = out / "smoothed_gaussian_sigma=0.25_seed=0" / "log.jsonl"
    assert wait_for(lambda: size_of(log) > 0, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert (log.parent / "state.safetensors").exists(), "what was trained is lost"
    assert not (out / TABLE).exists()

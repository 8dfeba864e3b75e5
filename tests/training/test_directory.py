"""A training's directory: what is in it, that it is a model, and who may go on in it."""

import json
import shutil
from functools import partial
from itertools import count, pairwise

import numpy as np
import pytest
import torch

from smoothcert import models
from smoothcert.data import ArrayData, load
from smoothcert.errors import ConfigError, InputError, ModelError, OutputError, ResumeError, SmoothcertError
from smoothcert.lock import Lock
from smoothcert.models.checkpoints import read_blueprint
from smoothcert.models.dncnn import load_dncnn
from smoothcert.models.layers import Normalize
from smoothcert.models.sealed import read_safetensors, write_sealed
from smoothcert.time_limit import TimeLimit, TimeLimitError
from smoothcert.training import directory
from smoothcert.training.directory import make_plan, run_training
from smoothcert.training.recipes import RECIPES
from smoothcert.training.settings import TrainSettings

STEPS = 21  # per epoch of 1,297 digits in batches of 64
COMPLETE = {"README.md", "lock", "log.jsonl", "model.safetensors", "train.json"}


class StopError(Exception):
    """The end of a training before its time."""


def settings(**changes):
    common = {"sigma": 0.25, "epochs": 2, "batch_size": 64, "learning_rate": 0.1, "seed": 0, "device": "cpu"}
    return TrainSettings(**{**common, **changes})


@pytest.fixture(scope="module")
def digits():
    return load("digits", split="train"), load("digits", split="test")


@pytest.fixture(scope="module")
def few(digits):
    """A few of the digits, for what need not learn anything."""
    return ArrayData(digits[0].inputs[:100], digits[0].labels[:100], digits[0].classes, "a few digits")


def colours(count=48):
    generator = np.random.default_rng(5)
    images = generator.integers(0, 256, (count, 3, 8, 8), np.uint8)
    images[:, 1] //= 4  # channels that differ
    return ArrayData(images, np.arange(count) % 4, None, "colours")


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
    """The directory of a training of four epochs that nothing disturbed; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "net"
    run_training(make_plan(digits[0], settings(epochs=4)), out, test=digits[1])
    return out


def interrupted(plan, out, step, **options):
    """Have a training stop as by an error after so many steps, its state saved after every step."""

    def stop(progress, trainer):
        if progress.step >= step:
            raise StopError

    with pytest.raises(StopError):
        run_training(plan, out, save_every=0.0, on_progress=stop, **options)
    return out


def names(out):
    return {one.name for one in out.iterdir()}


def record_of(out):
    return json.loads((out / "train.json").read_text("utf-8"))


def test_a_finished_training_leaves_what_it_promises(whole):
    assert names(whole) == COMPLETE
    record = record_of(whole)
    assert (record["architecture"], record["normalize"], record["processes"]) == ("small-cnn", False, 1)
    assert record["settings"]["recipe"] == {"name": "gaussian"}
    assert record["settings"]["sigma"] == 0.25
    assert record["data"]["inputs"] == 1297
    assert record["data"]["fingerprint"] == load("digits", split="train").fingerprint()
    assert record["versions"]["torch"] == torch.__version__
    assert record["result"]["epochs"] == 4
    assert record["result"]["test"]["inputs"] == 500


def test_the_log_has_a_line_per_epoch(whole):
    lines = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert all(before["loss"] > after["loss"] for before, after in pairwise(lines))
    assert lines[-1]["accuracy"] > lines[0]["accuracy"]
    rates = [line["learning_rate"] for line in lines]
    assert rates == [settings(epochs=4).rate(epoch - 1 / STEPS) for epoch in (1, 2, 3, 4)]
    assert all(0 <= before["seconds"] <= after["seconds"] for before, after in pairwise(lines))


def test_the_directory_is_a_model(whole, digits):
    loaded = models.load(whole)
    assert (loaded.sigma, loaded.num_classes, loaded.input_shape) == (0.25, 10, (1, 8, 8))
    assert loaded.classes == tuple("0123456789")
    with torch.inference_mode():
        answers = loaded.network(torch.from_numpy(digits[1].inputs).float() / 255).argmax(1).numpy()
    found = record_of(whole)["result"]["test"]
    assert found["accuracy"] == np.mean(answers == digits[1].labels) > 0.6
    assert 0.3 < found["noisy_accuracy"] < found["accuracy"]
    about = read_blueprint(whole / "model.safetensors")
    assert about.data == "digits (train)"
    assert about.training["recipe"] == {"name": "gaussian"}


def test_a_network_without_noise_says_so(few, tmp_path):
    run_training(make_plan(few, settings(sigma=0.0)), tmp_path / "net")
    assert models.load(tmp_path / "net").sigma == 0
    assert "trained under no noise" in (tmp_path / "net" / "README.md").read_text("utf-8")
    assert "test" not in record_of(tmp_path / "net")["result"]


# Who may go on


def test_a_second_start_is_refused_unless_it_resumes(whole, digits, tmp_path, monkeypatch):
    out = shutil.copytree(whole, tmp_path / "net")
    plan = make_plan(digits[0], settings(epochs=4))
    with pytest.raises(OutputError, match="--resume"):
        run_training(plan, out)
    monkeypatch.setattr(directory, "Trainer", None)  # a complete training is not begun again
    before = {name: (out / name).stat().st_mtime_ns for name in COMPLETE - {"lock"}}
    assert run_training(plan, out, resume=True).record == record_of(whole)
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sigma": 0.5}, "settings.sigma is 0.25 there and 0.5 here"),
        ({"epochs": 5}, "settings.epochs"),
        ({"batch_size": 32}, "settings.batch_size"),
        ({"recipe": "stability"}, "settings.recipe"),
        ({"ema": 0.9}, "settings.ema"),
        ({"seed": 1}, "settings.seed"),
        ({"precision": "bf16"}, "settings.precision"),
    ],
)
def test_with_other_settings_it_is_another_training(few, tmp_path, change, said):
    out = interrupted(make_plan(few, settings()), tmp_path / "net", 2)
    with pytest.raises(ResumeError, match=said):
        run_training(make_plan(few, settings(**change)), out, resume=True)


def test_with_other_data_or_another_network_it_is_another_training(few, digits, tmp_path):
    out = interrupted(make_plan(few, settings()), tmp_path / "net", 2)
    with pytest.raises(ResumeError, match=r"data\.name"):
        run_training(make_plan(digits[0], settings()), out, resume=True)
    inputs = few.inputs.copy()
    inputs[0, 0, 0, 0] ^= 1
    with pytest.raises(ResumeError, match=r"data\.fingerprint"):
        run_training(make_plan(ArrayData(inputs, few.labels, few.classes, few.name), settings()), out, resume=True)
    with pytest.raises(ResumeError, match="architecture is 'small-cnn' there and 'mlp-7' here"):
        run_training(make_plan(few, settings(), architecture="mlp-7"), out, resume=True)
    with pytest.raises(ResumeError, match="normalize"):
        run_training(make_plan(few, settings(), normalize=True), out, resume=True)
    run_training(make_plan(few, settings()), out, resume=True)
    assert names(out) == COMPLETE


def test_what_was_never_begun_is_not_resumed(few, tmp_path):
    with pytest.raises(ResumeError, match="no training"):
        run_training(make_plan(few, settings()), tmp_path / "net", resume=True)
    assert not (tmp_path / "net").exists()


def test_a_directory_of_something_else_is_left_alone(few, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        run_training(make_plan(few, settings()), tmp_path)
    with pytest.raises(OutputError, match="no folder"):
        run_training(make_plan(few, settings()), tmp_path / "a" / "b")
    assert names(tmp_path) == {"notes.txt"}


def test_a_file_is_no_directory_for_a_training(few, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        run_training(make_plan(few, settings()), tmp_path / "notes.txt")


def test_a_damaged_state_is_not_gone_on_from(few, tmp_path):
    plan = make_plan(few, settings())
    state = interrupted(plan, tmp_path / "net", 2) / "state.safetensors"
    content = state.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        state.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"state\.safetensors"):
            run_training(plan, tmp_path / "net", resume=True)
    from safetensors.torch import save_file

    save_file({"sums": torch.zeros(3)}, state)
    with pytest.raises(ModelError, match="not written by smoothcert"):
        run_training(plan, tmp_path / "net", resume=True)
    state.write_bytes(content)
    run_training(plan, tmp_path / "net", resume=True)


def test_a_damaged_record_is_one_clear_error(few, tmp_path):
    plan = make_plan(few, settings())
    record = interrupted(plan, tmp_path / "net", 2) / "train.json"
    record.write_text(record.read_text("utf-8")[:100], "utf-8")
    with pytest.raises(SmoothcertError, match=r"train\.json"):
        run_training(plan, tmp_path / "net", resume=True)


def test_two_processes_do_not_train_in_one_directory(few, tmp_path):
    plan = make_plan(few, settings())
    out = interrupted(plan, tmp_path / "net", 2)
    with Lock(out / "lock"), pytest.raises(OutputError, match="locked by process"):
        run_training(plan, out, resume=True)
    assert (out / "state.safetensors").exists()
    run_training(plan, out, resume=True)


def test_a_fresh_seed_is_recorded_and_kept(few, tmp_path):
    plan = make_plan(few, settings(seed=None))
    seeds = []
    for name in "ab":
        out = interrupted(plan, tmp_path / name, 2)
        seeds.append(record_of(out)["settings"]["seed"])
        run_training(plan, out, resume=True)
        assert record_of(out)["settings"]["seed"] == seeds[-1]
    assert seeds[0] != seeds[1]
    run_training(make_plan(few, settings(seed=seeds[0])), tmp_path / "again")
    again, first = (read_safetensors(tmp_path / name / "model.safetensors")[0] for name in ("again", "a"))
    assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize("writing", ["save_checkpoint", "_write_json", "write_card"])
def test_a_training_cut_off_between_its_last_writings_is_completed(few, tmp_path, monkeypatch, writing):
    plan, out = make_plan(few, settings()), tmp_path / "net"

    def fail(*_):
        raise StopError

    interrupted(plan, out, 2)
    with monkeypatch.context() as patch:
        patch.setattr(directory, writing, fail)
        with pytest.raises(StopError):
            run_training(plan, out, resume=True)
    run_training(plan, out, resume=True)
    assert names(out) == COMPLETE


def test_a_start_cut_off_before_its_record_was_written_can_be_made_again(few, tmp_path):
    out = tmp_path / "net"
    out.mkdir()
    (out / "lock").touch()
    (out / ".train.json.abcdefgh.part").touch()  # kill -9 leaves such a file
    run_training(make_plan(few, settings()), out)
    assert names(out) >= COMPLETE


# What is written besides


def test_tensorboard_has_every_epoch_once_even_after_an_interruption(few, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plan = make_plan(few, settings(epochs=5))
    out = interrupted(plan, tmp_path / "net", 4, tensorboard=True)  # the second of two epochs is lost, logged or not
    run_training(plan, out, resume=True, tensorboard=True)
    events = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for name in ("loss", "accuracy", "learning_rate"):
        found = {event.step: event.value for event in events.Scalars(name)}
        assert len(events.Scalars(name)) == len(found) == 5
        assert found == {line["epoch"]: pytest.approx(line[name], rel=1e-6) for line in log}


def test_without_tensorboard_installed_the_error_names_the_extra(few, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(SmoothcertError, match=r"smoothcert\[tensorboard\]"):
        run_training(make_plan(few, settings()), tmp_path / "net", tensorboard=True)


def test_colour_images_are_normalised_inside_the_network(tmp_path):
    data = colours()
    plan = make_plan(data, settings(), architecture="resnet20")
    run_training(plan, tmp_path / "net")
    about = read_blueprint(tmp_path / "net" / "model.safetensors")
    pixels = data.inputs / 255
    np.testing.assert_allclose(about.mean, pixels.mean((0, 2, 3)), atol=5.1e-5)
    np.testing.assert_allclose(about.std, pixels.std((0, 2, 3)), atol=5.1e-5)
    assert about.mean[1] < about.mean[0] / 3
    loaded = models.load(tmp_path / "net")
    assert isinstance(loaded.network[0], Normalize)
    assert "first layer" in loaded.normalization
    assert loaded.num_classes == 4  # as many as there are labels
    with pytest.raises(ConfigError, match="normalises by itself"):
        models.load(tmp_path / "net", mean=(0.5,) * 3, std=(0.5,) * 3)


def test_noise_is_added_to_the_pixels_before_they_are_normalised(monkeypatch, tmp_path):
    shown = []
    forward = Normalize.forward
    monkeypatch.setattr(Normalize, "forward", lambda self, x: (shown.append(x.detach().clone()), forward(self, x))[1])
    data = ArrayData(np.full((512, 3, 8, 8), 128, np.uint8), np.arange(512) % 2, None, "grey")
    run_training(make_plan(data, settings(epochs=1), architecture="resnet20"), tmp_path / "net")
    pixels = torch.cat(shown)
    assert pixels.mean().item() == pytest.approx(128 / 255, abs=0.01)
    assert pixels.std().item() == pytest.approx(0.25, abs=0.01)


def test_normalisation_follows_the_channels_unless_asked_for(few):
    assert make_plan(few, settings()).blueprint().mean is None
    asked = make_plan(few, settings(), normalize=True).blueprint()
    assert asked.mean == (pytest.approx(float(few.inputs.mean() / 255), abs=1e-4),)
    assert make_plan(colours(), settings(), architecture="resnet20", normalize=False).blueprint().mean is None


# Behind a projection, as version 0.1 could train


def as_by_0_1(path, directions):
    """Give a checkpoint what version 0.1 wrote into it: on how many directions inputs are projected, or None."""
    weights, about = read_safetensors(path)
    if directions is not None:
        weights = {f"1.{name}": tensor for name, tensor in weights.items()}
        weights["0.directions"] = torch.eye(directions, 64).view(directions, 1, 8, 8)
    write_sealed(path, weights, {**about, "directions": directions})


def test_a_network_behind_a_projection_names_the_version_that_loads_it(whole, few, tmp_path):
    net = shutil.copytree(whole, tmp_path / "net")
    as_by_0_1(net / "model.safetensors", 20)
    for read in (models.load, lambda path: read_blueprint(path / "model.safetensors")):
        with pytest.raises(ModelError, match=r"behind a projection .* Load it with smoothcert 0.1 \(commit 2632d2d\)"):
            read(net)


def test_a_checkpoint_of_0_1_without_a_projection_is_the_same_network_and_design(whole, tmp_path):
    net = shutil.copytree(whole, tmp_path / "net")
    as_by_0_1(net / "model.safetensors", None)
    old, new = models.load(net), models.load(whole)
    assert (old.weights_hash, old.design) == (new.weights_hash, new.design)
    assert old.design is not None


@pytest.mark.parametrize("directions", [None, 20])
def test_a_training_of_0_1_is_resumed_unless_it_is_behind_a_projection(few, tmp_path, directions):
    interrupted(make_plan(few, settings()), tmp_path / "net", 1)
    record = record_of(tmp_path / "net")
    (tmp_path / "net" / "train.json").write_text(json.dumps({**record, "directions": directions}))
    if directions is None:
        run_training(make_plan(few, settings()), tmp_path / "net", resume=True)
        assert "result" in record_of(tmp_path / "net")
    else:
        with pytest.raises(ResumeError, match=r"behind a projection .* Resume it with smoothcert 0.1"):
            run_training(make_plan(few, settings()), tmp_path / "net", resume=True)


# Beginning with another network's weights


def test_a_training_can_begin_with_the_weights_of_a_network(digits, whole, tmp_path):
    start = models.load(whole)
    plan = make_plan(digits[0], settings(epochs=1, learning_rate=1e-9), start=start)
    run_training(plan, tmp_path / "net")
    before, after = start.network.state_dict(), models.load(tmp_path / "net").network.state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)
    assert record_of(tmp_path / "net")["start"] == f"{whole / 'model.safetensors'} ({start.weights_hash})"
    assert f"| began as | {whole / 'model.safetensors'}" in (tmp_path / "net" / "README.md").read_text("utf-8")


def test_a_network_that_is_trained_further_leaves_the_one_it_began_as_alone(few, whole, tmp_path):
    start = models.load(whole)
    before = {name: tensor.clone() for name, tensor in start.network.state_dict().items()}
    run_training(make_plan(few, settings(), start=start), tmp_path / "net")
    assert all(torch.equal(before[name], tensor) for name, tensor in start.network.state_dict().items())
    assert models.load(tmp_path / "net").weights_hash != start.weights_hash


def test_the_start_brings_its_architecture_and_its_normalisation(tmp_path):
    run_training(make_plan(colours(), settings(epochs=1), architecture="resnet20"), tmp_path / "first")
    darker = ArrayData(colours().inputs // 2, colours().labels, None, "darker")
    plan = make_plan(darker, settings(), start=models.load(tmp_path / "first"))
    first, second = read_blueprint(tmp_path / "first" / "model.safetensors"), plan.blueprint()
    assert (plan.architecture, plan.normalize) == ("resnet20", True)
    np.testing.assert_array_equal(np.float32([second.mean, second.std]), np.float32([first.mean, first.std]))


def test_foreign_weights_can_be_begun_with_if_their_architecture_is_named(few, whole, tmp_path):
    weights = models.load(whole).network.state_dict()
    torch.save(weights, tmp_path / "foreign.pth")
    start = models.load(tmp_path / "foreign.pth", arch="small-cnn")
    found = make_plan(few, settings(), architecture="small-cnn", start=start).network().state_dict()
    assert all(torch.equal(weights[name], found[name]) for name in weights)
    with pytest.raises(ModelError, match="not those of this architecture"):
        make_plan(few, settings(), architecture="mlp-7", start=start)


def test_a_start_that_does_not_fit_is_refused(few, whole, tmp_path):
    start = models.load(whole)
    two = ArrayData(few.inputs, few.labels % 2, None, "two classes")
    with pytest.raises(ModelError, match=r"of shape \(2, .*got \(10, "):
        make_plan(two, settings(), start=start)
    with pytest.raises(ModelError, match="not those of this architecture"):
        make_plan(few, settings(), start=models.load(lambda x: x.flatten(1)[:, :10]))
    with pytest.raises(ConfigError, match="drop `normalize`"):
        make_plan(few, settings(), start=start, normalize=True)
    with pytest.raises(ConfigError, match="drop `start`"):
        make_plan(few, settings(recipe="denoiser"), classifier=start.network, start=start)
    interrupted(make_plan(few, settings(), start=start), tmp_path / "net", 1)
    with pytest.raises(ResumeError, match=r"start is '.*' there and None here"):
        run_training(make_plan(few, settings()), tmp_path / "net", resume=True)


# Denoisers


def test_a_trained_denoiser_goes_in_front_of_its_classifier(few, whole, tmp_path):
    base = models.load(whole)
    plan = make_plan(
        few,
        settings(epochs=1, recipe="denoiser", learning_rate=0.01),
        classifier=base.network,
        classifier_source="whole",
    )
    run_training(plan, tmp_path / "denoiser", test=few)
    path = tmp_path / "denoiser" / "model.safetensors"
    denoiser = load_dncnn(path)
    assert (denoiser.trained_sigma, denoiser.channels) == (0.25, 1)
    together = models.load(whole, denoiser=str(path), sigma=0.25)
    assert together.weights_hash != base.weights_hash
    x = torch.from_numpy(few.inputs).float() / 255
    with torch.inference_mode():
        assert torch.equal(together.network(x), models.load(whole).network(denoiser(x)))
    before = plan.network()[0].state_dict()
    assert not torch.equal(before["noise.0.weight"], denoiser.state_dict()["noise.0.weight"])
    kept, now = models.load(whole).network.state_dict(), base.network.state_dict()
    assert all(torch.equal(kept[name], now[name]) for name in kept)
    assert record_of(tmp_path / "denoiser")["classifier"] == "whole"


def test_a_denoiser_needs_a_classifier_and_others_take_none(few, whole):
    base = models.load(whole).network
    with pytest.raises(ConfigError, match="`classifier`"):
        make_plan(few, settings(recipe="denoiser"))
    with pytest.raises(ConfigError, match="`classifier`"):
        make_plan(few, settings(), classifier=base)


def test_a_denoiser_is_not_compiled_together_with_its_classifier(few, whole):
    with pytest.raises(ConfigError, match="compiled"):
        make_plan(few, settings(recipe="denoiser", compile=True), classifier=models.load(whole).network)


def test_a_denoiser_is_not_trained_without_noise(few, whole):
    with pytest.raises(ConfigError, match="sigma"):
        make_plan(few, settings(recipe="denoiser", sigma=0.0), classifier=models.load(whole).network)


def test_a_denoiser_is_not_trained_for_a_classifier_of_other_images(whole, tmp_path):
    with pytest.raises(SmoothcertError):
        run_training(
            make_plan(colours(), settings(recipe="denoiser"), classifier=models.load(whole).network), tmp_path / "net"
        )
    assert not (tmp_path / "net").exists()


# Plans that cannot be


def test_what_cannot_be_trained_is_said_before(few, tmp_path):
    with pytest.raises(InputError, match="labels"):
        make_plan(ArrayData(few.inputs, None, None, "bare"), settings())
    with pytest.raises(InputError, match="labels"):
        make_plan(ArrayData(few.inputs[:0], few.labels[:0], None, "empty"), settings())
    with pytest.raises(ConfigError, match="architecture"):
        make_plan(colours(), settings())
    with pytest.raises(ConfigError, match="lenet"):
        make_plan(few, settings(), architecture="lenet")
    with pytest.raises(ConfigError, match="resnet21"):
        make_plan(few, settings(), architecture="resnet21")


def test_test_inputs_that_cannot_be_measured_on_do_not_cost_the_network(few, tmp_path):
    bare = ArrayData(few.inputs, None, None, "bare")
    out = tmp_path / "net"
    try:
        run_training(make_plan(few, settings()), out, test=bare)
    except InputError:
        assert not out.exists()  # said before anything was done
    else:
        assert (out / "model.safetensors").exists()


# Other ways to compute


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "denoiser"])
def test_every_recipe_works_in_mixed_precision(few, tmp_path, name):
    plan = make_plan(few, settings(epochs=1, recipe=name, precision="bf16", learning_rate=0.01))
    run_training(plan, tmp_path / "net")
    tensors, _ = read_safetensors(tmp_path / "net" / "model.safetensors")
    assert all(one.dtype == torch.float32 and one.isfinite().all() for one in tensors.values())


def test_a_state_says_how_far_the_training_is(few, tmp_path):
    out = interrupted(make_plan(few, settings(epochs=5)), tmp_path / "net", 4)
    _, about = read_safetensors(out / "state.safetensors")
    assert about["progress"]["step"] == 3  # the error came before the fourth was saved
    assert [line["epoch"] for line in about["log"]] == [1]
    assert about["seconds"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns about what its compiler does
@pytest.mark.parametrize("recipe", ["gaussian", "smoothadv:copies=2,steps=2,warmup=0"])
def test_a_compiled_network_is_trained_alike(few, tmp_path, recipe):
    if not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    found = []
    for compiled in (False, True):
        plan = make_plan(few, settings(recipe=recipe, compile=compiled, learning_rate=0.01))
        out = tmp_path / str(compiled)
        run_training(plan, out)
        found.append(read_safetensors(out / "model.safetensors")[0])
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-3, atol=1e-4)


# ---- time limit ----------------------------------------------------------------------------------------------------


def test_a_training_beyond_its_limit_stops_with_its_state_saved_and_can_be_resumed(few, tmp_path, monkeypatch):
    plan = make_plan(few, settings(epochs=3, batch_size=50))
    run_training(plan, tmp_path / "whole")
    times, told = count(0.0, 5 * 3600.0), []  # for each step, of two per epoch
    monkeypatch.setattr(directory, "TimeLimit", partial(TimeLimit, clock=lambda: next(times)))
    with pytest.raises(TimeLimitError, match="about 30 h for 300 training inputs, more than the time limit of 24 h"):
        run_training(plan, tmp_path / "net", on_estimate=told.append)
    assert told == ["About 30 h for 300 training inputs."]
    assert "model.safetensors" not in names(tmp_path / "net")
    with pytest.raises(TimeLimitError):  # the rest is too long for this limit as well
        run_training(plan, tmp_path / "net", resume=True, time_limit=10.0)
    run_training(plan, tmp_path / "net", resume=True, time_limit=float("inf"))
    logs = [(tmp_path / one / "log.jsonl").read_text("utf-8") for one in ("net", "whole")]
    assert [[json.loads(line)["epoch"] for line in log.splitlines()] for log in logs] == [[1, 2, 3]] * 2
    found, expected = (read_safetensors(tmp_path / one / "model.safetensors")[0] for one in ("net", "whole"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_training_within_its_limit_is_not_stopped(few, tmp_path, monkeypatch):
    times = count(0.0, 2400.0)  # 20 h in all
    monkeypatch.setattr(directory, "TimeLimit", partial(TimeLimit, clock=lambda: next(times)))
    run_training(make_plan(few, settings(epochs=3, batch_size=10)), tmp_path / "net")
    assert "model.safetensors" in names(tmp_path / "net")


def test_a_training_far_beyond_its_limit_is_refused_before_anything_is_written(few, tmp_path, monkeypatch):
    monkeypatch.setattr("smoothcert.training.recipes.dual.seconds_per_pass", lambda *_: 1800.0)
    plan = make_plan(few, settings(epochs=3, recipe="dual", sigma=0.0))
    with pytest.raises(TimeLimitError, match="about 12 days for 300 training inputs"):
        run_training(plan, tmp_path / "net")
    assert not (tmp_path / "net").exists()
    directory.check_time(plan, TimeLimit(80.0))  # the estimate, an hour for each input, may be four times too high
    with pytest.raises(TimeLimitError):
        directory.check_time(plan, TimeLimit(70.0))

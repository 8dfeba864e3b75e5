"""Several processes share every batch and end with the network that one would have made.

Run by a launcher, this module is what its processes do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smoothcert.cli import main
from smoothcert.data import ArrayData, load
from smoothcert.errors import ConfigError
from smoothcert.models.sealed import read_safetensors
from smoothcert.training.directory import make_plan, run_training
from smoothcert.training.engine import DistributedEngine, Engine, make_engine
from smoothcert.training.settings import TrainSettings

TRAIN = ["train", "digits", "--sigma", "0.25", "--epochs", "2", "--batch-size", "200", "--seed", "0", "--json"]


def torchrun(*words):
    """The command that starts two processes, and its environment."""
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    # --standalone picks a free port.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, *map(str, words)], environment


def by_launcher(*words):
    """What two processes print."""
    command, environment = torchrun(*words)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


def record_of(out):
    return json.loads((out / "train.json").read_text("utf-8"))


def log(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def assert_close(out, reference):
    """The same network and log but for rounding.

    Two processes add up the halves of a batch's gradient, one adds up all of it: in another order, so the last of seven
    digits differs, and with it every step that follows. An attack that turns at a sign makes more of that.
    """
    tensors, expected = (read_safetensors(path / "model.safetensors")[0] for path in (out, reference))
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = tensor.double().abs().max().item()
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=2e-4 * scale, msg=name)
    for line, other in zip(log(out), log(reference), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert line["accuracy"] == pytest.approx(other["accuracy"], abs=0.005)


# The command


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A directory trained by two processes, and what they printed. The last batch has 97 inputs, 49 and 48 of them."""
    folder = tmp_path_factory.mktemp("launched")
    done = by_launcher("-m", "smoothcert", *TRAIN, "--out", folder / "net")
    assert done.returncode == 0, done.stderr
    return folder / "net", done.stdout


def test_two_processes_train_the_network_that_one_trains(launched, tmp_path):
    out, _ = launched
    assert record_of(out)["processes"] == 2
    assert main([*TRAIN, "--out", str(tmp_path / "net")]) == 0
    assert_close(out, tmp_path / "net")
    measured, expected = (record_of(one)["result"]["test"] for one in (out, tmp_path / "net"))
    assert measured["inputs"] == expected["inputs"] == 500
    for name in ("accuracy", "noisy_accuracy"):
        assert measured[name] == pytest.approx(expected[name], abs=0.005)
    assert {one.name for one in out.iterdir()} == {one.name for one in (tmp_path / "net").iterdir()}


def test_two_processes_print_one_object(launched):
    out, printed = launched
    assert json.loads(printed)["out"] == str(out)


# Recipes, odd batches, interruptions: many trainings in one start of two processes

CASES = {
    "consistency": {"recipe": "consistency", "batch_size": 64},
    "an attack and averaged weights": {
        "recipe": "smoothadv:copies=2,steps=2,warmup=0",
        "ema": 0.9,
        "learning_rate": 0.02,
    },
    "cat-rs": {"recipe": "cat-rs:copies=2,steps=2"},
    "a fresh seed": {"seed": None},
    "interrupted": {"batch_size": 3},
    "a last batch of one": {"batch_size": 49},
    "a last batch of one, attacked": {"batch_size": 49, "recipe": "smoothmix:copies=2,steps=2"},
}
NORMED = "batch norm, and a last batch of one"  # the last to be tried: where one process fails, all end


class StopError(Exception):
    """The end of a training before its time."""


def few():
    data = load("digits", split="train")
    return ArrayData(data.inputs[:99], data.labels[:99], data.classes, "digits")


def run_case(name, out, **changes):
    common = {"sigma": 0.25, "epochs": 2, "batch_size": 33, "learning_rate": 0.05, "seed": 0, "device": "cpu"}
    given = CASES["a last batch of one, attacked" if name == NORMED else name]
    network = "resnet20" if name == NORMED else "small-cnn"
    plan = make_plan(few(), TrainSettings(**{**common, **given, **changes}), architecture=network)

    def stop(progress, _):
        if progress.step == 20:  # of 33 in an epoch
            raise StopError

    if name == "interrupted" and make_engine(torch.device("cpu"), "fp32").world > 1:
        with pytest.raises(StopError):
            run_training(plan, out, save_every=0.0, on_progress=stop)
        run_training(plan, out, resume=True)
    else:
        run_training(plan, out)


def _main() -> None:
    """In each of the processes: what the engine does, then all trainings."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    engine = make_engine(torch.device("cpu"), "fp32")
    assert isinstance(engine, DistributedEngine)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,), (), (5,))]
    for number, parameter in enumerate(parameters[:3]):
        parameter.grad = torch.full_like(parameter, (engine.rank + 1) * 10.0**number)
    parameters[0].grad = parameters[0].grad.t().contiguous().t()  # as channels-last weights have it: other strides
    parameters[0].grad[1, 2] = engine.rank
    engine.add_up_gradients(parameters)
    summed = [None if one.grad is None else one.grad.flatten().tolist() for one in parameters]
    total = engine.add_up(torch.tensor([1, engine.rank])).tolist()
    seen = {"rank": engine.rank, "world": engine.world, "gradients": summed, "total": total}
    (folder / f"engine-{engine.rank}.json").write_text(json.dumps(seen))
    for number, name in enumerate([*CASES, NORMED]):
        run_case(name, folder / str(number))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, by_launcher(__file__, folder).stderr


@pytest.mark.parametrize("name", CASES)
def test_whatever_is_trained_two_processes_share_it(trained, tmp_path, name):
    folder, said = trained
    out = folder / str(list(CASES).index(name))
    assert (out / "model.safetensors").exists(), said
    run_case(name, tmp_path / "net", seed=record_of(out)["settings"]["seed"])
    assert_close(out, tmp_path / "net")


def test_a_process_without_inputs_does_not_spoil_a_network_with_batch_norm(trained):
    """Statistics of a batch are each process's own, so that the network is another than that of one process."""
    folder, said = trained
    out = folder / str(len(CASES))
    assert (out / "model.safetensors").exists(), said
    assert all(one.isfinite().all() for one in read_safetensors(out / "model.safetensors")[0].values())
    assert len(log(out)) == 2


def test_gradients_are_summed_over_the_processes(trained):
    folder, _ = trained
    for rank in (0, 1):
        seen = json.loads((folder / f"engine-{rank}.json").read_text())
        assert (seen["rank"], seen["world"]) == (rank, 2)
        assert seen["gradients"] == [[3, 3, 3, 3, 3, 1], [30] * 4, [300], None]
        assert seen["total"] == [2, 1]


# One process


def test_one_process_needs_no_group(monkeypatch):
    for world in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if world:
            monkeypatch.setenv("WORLD_SIZE", world)
        engine = make_engine(torch.device("cpu"), "fp32")
        assert type(engine) is Engine
        assert (engine.rank, engine.world, engine.device.type) == (0, 1, "cpu")
    numbers = torch.from_numpy(np.arange(3.0))
    assert torch.equal(engine.add_up(numbers), numbers)
    assert not torch.distributed.is_initialized()


def test_an_incomplete_environment_ends_in_one_clear_line(monkeypatch, capsys, tmp_path):
    """Some schedulers set WORLD_SIZE for programs that they do not start through torchrun."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2, but RANK is not set\. Start .* torchrun"):
        make_engine(torch.device("cpu"), "fp32")
    assert main([*TRAIN, "--out", str(tmp_path / "net")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: WORLD_SIZE is 2")
    assert captured.out == ""
    assert not (tmp_path / "net").exists()


def test_several_processes_need_gpus_or_cpus(monkeypatch):
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "",
        "MASTER_PORT": "",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"not on mps\. Add --device cpu"):
        make_engine(torch.device("mps"), "fp32")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="one process per GPU, got local rank 0 with 0 GPUs"):
        make_engine(torch.device("cuda"), "fp32")


if __name__ == "__main__":
    _main()

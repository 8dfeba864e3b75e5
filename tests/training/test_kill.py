"""Errors, signals and kill -9 at any point of a training: what goes on ends with the same network, bit for bit.

Run as a script, this module is a process that has torch loaded and forks a child for every training, so that many can
be killed: at random moments, and before every single thing that a training does to its files.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from run_fixtures import launch, size_of, wait_for
from smoothcert.cli import main
from smoothcert.data import ArrayData, load
from smoothcert.models.sealed import read_safetensors
from smoothcert.training.directory import make_plan, run_training
from smoothcert.training.loop import Trainer
from smoothcert.training.settings import TrainSettings

pytest_plugins = ["run_fixtures"]

COMPLETE = {"README.md", "lock", "log.jsonl", "model.safetensors", "train.json"}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


class StopError(Exception):
    """The end of a training before its time."""


@pytest.fixture(autouse=True)
def _one_thread():
    """As the processes that are started: how sums are split among threads shows in their last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(out):
    """Everything in the network's file but the time it took."""
    tensors, about = read_safetensors(out / "model.safetensors")
    about["training"]["result"].pop("seconds")
    return tensors, about


def log(out):
    """All lines of the log, without the time."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same(out, reference):
    (tensors, about), (expected, expected_about) = weights(out), weights(reference)
    assert about == expected_about
    assert tensors.keys() == expected.keys()
    for name in expected:
        assert torch.equal(tensors[name], expected[name]), name
    assert log(out) == log(reference)
    assert not (out / "state.safetensors").exists()


# Errors in between


@cache
def digits():
    data = load("digits", split="train")
    return ArrayData(data.inputs[:400], data.labels[:400], data.classes, "digits")


def colours():
    generator = np.random.default_rng(5)
    return ArrayData(generator.integers(0, 256, (66, 3, 8, 8), np.uint8), np.arange(66) % 4, None, "colours")


CASES = {
    "gaussian": (digits, {"batch_size": 16}, {}),
    "an attack and averaged weights": (
        digits,
        {"batch_size": 16, "recipe": "smoothadv:copies=2,steps=2,warmup=1", "ema": 0.9, "schedule": "step"},
        {},
    ),
    "batch norm, augmentation and averaged weights": (
        colours,
        {"batch_size": 8, "recipe": "consistency", "ema": 0.99, "augment": ("crop", "flip"), "lr_warmup": 1.5},
        {"architecture": "resnet20"},
    ),
}


def planned(case):
    data, changes, more = CASES[case]
    return make_plan(
        data(), TrainSettings(sigma=0.25, epochs=3, learning_rate=0.05, seed=3, device="cpu", **changes), **more
    )


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A plan, the directory of its training that nothing disturbed, and its steps per epoch."""
    torch.set_num_threads(1)
    plan = planned(request.param)
    out = tmp_path_factory.mktemp("whole") / "net"
    run_training(plan, out)
    return plan, out, -(-len(plan.data) // plan.settings.batch_size)


@pytest.mark.parametrize("save_every", [0.0, 1e9], ids=["always saved", "never saved"])
def test_errors_at_any_step_change_nothing(case, tmp_path, monkeypatch, save_every):
    plan, whole, steps = case
    out, advance = tmp_path / "net", Trainer.advance
    stops = [1, 2, steps - 1, steps, steps + 1, 2 * steps - 3, 2 * steps, 3 * steps - 1]
    stops = stops if save_every == 0 else stops[2:5]  # as everything begins anew each time

    def limited(self):
        if self.progress.step == stops[0]:
            raise StopError
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", limited)
    while stops:
        with pytest.raises(StopError):
            run_training(plan, out, resume=(out / "train.json").exists(), save_every=save_every)
        assert (out / "state.safetensors").exists() == (save_every == 0)
        stops.pop(0)
    monkeypatch.setattr(Trainer, "advance", advance)
    run_training(plan, out, resume=True)
    assert_same(out, whole)


def test_errors_where_progress_is_told_change_nothing(case, tmp_path):
    """In the middle of an epoch and at its end, before the state of that step is saved."""
    plan, whole, steps = case
    out, told, goal = tmp_path / "net", set(), 1
    while goal <= 3 * steps:

        def stop(progress, _, goal=goal):
            if progress.step >= goal:
                told.add(progress.step)
                raise StopError

        try:
            run_training(plan, out, resume=goal > 1, save_every=0.0, on_progress=stop)
        except StopError:
            goal = max(told) + 1
        else:
            break
    assert {steps, 2 * steps, 3 * steps} <= told
    assert len(told) > 3 or steps < 20
    run_training(plan, out, resume=True)
    assert_same(out, whole)


@pytest.mark.parametrize("handler", ["ignored", "noted"])
def test_a_signal_that_ends_nothing_does_not_end_the_training_early(tmp_path, handler):
    """A job that a script started in the background ignores Ctrl-C; a program may have a handler of its own."""
    plan, out, noted = planned("gaussian"), tmp_path / "net", []
    run_training(plan, tmp_path / "whole")
    given = signal.SIG_IGN if handler == "ignored" else lambda number, _: noted.append(number)
    before = signal.signal(signal.SIGINT, given)
    try:
        run_training(plan, out, on_progress=lambda *_: signal.raise_signal(signal.SIGINT))
    except KeyboardInterrupt:  # then it must not pass for finished
        assert handler == "noted"
        assert not (out / "model.safetensors").exists()
        run_training(plan, out, resume=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert_same(out, tmp_path / "whole")


# The real command

COMMAND = ["train", "digits", "--sigma", "0.25", "--epochs", "15", "--batch-size", "64", "--seed", "1", "--ema", "0.9"]


def command(out, *more):
    resume = ["--resume"] if (out / "train.json").exists() else []
    return [*COMMAND, "--out", str(out), *resume, *more]


@pytest.fixture(scope="module")
def commanded(tmp_path_factory):
    """What the command makes when nothing disturbs it."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("commanded") / "net"
    assert main(command(out)) == 0
    return out


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_the_command_with_its_state_saved(commanded, tmp_path, capsys, number, code, said):
    out = tmp_path / "net"
    process = launch(command(out), env=ONE_THREAD)
    assert wait_for(lambda: size_of(out / "log.jsonl") > 0, process)
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) == (code, f"error: {said}\n")
    _, about = read_safetensors(out / "state.safetensors")
    assert 21 <= about["progress"]["step"] < 15 * 21
    assert len(about["log"]) == about["progress"]["step"] // 21
    assert main(command(out)) == 0
    assert_same(out, commanded)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)], ids=["twice", "many times"])
def test_the_command_killed_again_and_again_ends_with_the_same_network(commanded, tmp_path, kills):
    generator = random.Random(kills)
    out, killed = tmp_path / "net", 0
    while killed < kills:
        process = launch(command(out, "--save-every", "0.05"), env=ONE_THREAD)
        times, goal = {modified(out)}, generator.randrange(2, 6)
        wait_for(lambda out=out, times=times, goal=goal: times.add(modified(out)) or len(times) >= goal, process)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        assert "Traceback" not in err
        if process.returncode == 0:
            assert_same(out, commanded)
            out = tmp_path / f"net-{killed}"
        else:
            assert process.returncode == -signal.SIGKILL
            killed += 1
    assert main(command(out)) == 0
    assert_same(out, commanded)


def modified(out):
    """When the state was saved for the last time."""
    path = out / "state.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


# Kills by the dozen


def crash(folder, *job):
    """Have `_main` do its work in a process that has never used torch's threads, so that it can fork."""
    environment = {**ONE_THREAD, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, __file__, str(folder), *map(str, job)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_two_hundred_kills_at_random_moments_change_nothing(commanded, tmp_path):
    ends = crash(tmp_path, "times", 200)
    assert ends.pop("killed") == 200
    assert ends
    for name, code in ends.items():
        assert code == 0
        assert_same(tmp_path / name, commanded)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """Trainings killed before their first call that concerns files, their second and so on, then resumed."""
    folder = tmp_path_factory.mktemp("crashed")
    return folder, crash(folder, "calls")


def test_a_training_killed_before_any_call_ends_with_the_same_network(crashed):
    folder, codes = crashed
    assert len(codes) > 25  # or the calls were not counted
    failed = [number for number, code in codes.items() if code != 0]
    assert not failed, f"not resumed after kills before these of {len(codes)} calls: {', '.join(failed)}"
    for number in codes:
        assert_same(folder / number, folder / "whole")


def test_a_training_killed_before_any_call_has_everything_in_the_end(crashed):
    folder, codes = crashed
    lacking = {number: COMPLETE - {one.name for one in (folder / number).iterdir()} for number in codes}
    assert not {number: names for number, names in lacking.items() if names}


def test_no_half_written_files_pile_up_where_trainings_are_killed(crashed):
    folder, codes = crashed
    left = {number: [one.name for one in (folder / number).iterdir() if one.suffix == ".part"] for number in codes}
    assert not {number: names for number, names in left.items() if names}


CALLS = ("open", "replace", "chmod", "close", "unlink", "mkdir")


def _train(out: Path) -> None:
    data = digits()
    settings = TrainSettings(sigma=0.25, epochs=1, batch_size=400, learning_rate=0.05, seed=3, device="cpu", ema=0.9)
    run_training(make_plan(data, settings), out, resume=(out / "train.json").exists(), save_every=0.0, test=data)


def _forked(work) -> int:
    """Do this in a child of its own; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _train_to(out: Path, deadly: int | None = None) -> int:
    """Train, but be killed before the call of that number."""
    calls = count()
    for name in CALLS if deadly is not None else ():
        setattr(os, name, _deadly(getattr(os, name), calls, deadly))
    _train(out)
    return 0


def _deadly(real, calls, last):
    def call(*args, **options):
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    return call


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _at_all_calls(folder: Path) -> dict[str, int]:
    codes = {}
    assert _ended(_forked(lambda: _train_to(folder / "whole"))) == 0
    for number in count():
        out = folder / str(number)
        if _ended(_forked(lambda out=out, number=number: _train_to(out, number))) != -signal.SIGKILL:
            return codes  # it came to its end before so many calls
        codes[str(number)] = _ended(_forked(lambda out=out: _train_to(out)))
    raise AssertionError


def _at_random_moments(folder: Path, kills: int) -> dict[str, int]:
    generator, killed, codes = random.Random(kills), 0, {}
    out = folder / "0"
    while killed < kills:
        child = _forked(lambda out=out: main([*command(out, "--save-every", "0.02"), "--json"]))
        time.sleep(generator.uniform(0, 0.6))
        os.kill(child, signal.SIGKILL)  # not yet waited for, so it is still this one
        code = _ended(child)
        killed += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            codes[out.name] = code
            out = folder / str(len(codes))
    codes[out.name] = _ended(_forked(lambda: main([*command(out), "--json"])))
    return {**codes, "killed": killed}


def _main() -> None:
    import torch._dynamo  # which every optimizer imports, as digits() imports what it needs: once, not per child

    torch.set_num_threads(1)
    digits()
    folder, kind, *more = Path(sys.argv[1]), *sys.argv[2:]
    output = os.dup(1)
    os.dup2(2, 1)  # what the children print is not the answer
    found = _at_all_calls(folder) if kind == "calls" else _at_random_moments(folder, int(more[0]))
    os.write(output, json.dumps(found).encode())


if __name__ == "__main__":
    _main()

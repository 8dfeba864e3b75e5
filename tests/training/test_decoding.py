"""Image files decoded and augmented by worker processes: the same batches, clear errors, no process left behind."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evidence import PHOTOGRAPHS
from run_fixtures import launch, size_of, wait_for
from smoothcert.cli import main
from smoothcert.data import load
from smoothcert.data.dataset import ArrayData
from smoothcert.errors import ConfigError, InputError, MissingExtraError, SmoothcertError
from smoothcert.models.architectures import resnet18
from smoothcert.models.sealed import read_safetensors
from smoothcert.training.augmentations import WINDOW_TRIES, random_window
from smoothcert.training.batches import Batches
from smoothcert.training.decoding import Decoder, decode_ahead, workers_for
from smoothcert.training.engine import Engine
from smoothcert.training.evaluation import accuracies_of
from smoothcert.training.loop import Trainer, seeded
from smoothcert.training.settings import TrainSettings

pytest_plugins = ["run_fixtures"]

with_photographs = pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason=f"no photographs: {PHOTOGRAPHS}")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
IMAGES = 22
AUGMENT = ("resized-crop", "crop", "flip")


class Part(Engine):
    """One of several processes, as far as batches are concerned."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.world = rank, world


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of many sizes in two class folders."""
    top = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(3)
    for number in range(IMAGES):
        pixels = generator.integers(0, 256, (20 + number, 50 - number, 3), np.uint8)
        path = top / ("cats" if number % 2 else "dogs") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return top


def batches_of(folder, *, workers=0, rank=0, world=1, seed=1, augment=AUGMENT, batch_size=5):
    return Batches(load(folder, size=16), batch_size, seed, augment, Part(rank, world), workers)


def taken(batches, steps):
    found = [batches.get(step) for step in steps]
    batches.close()
    return found


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for (x, y), (other_x, other_y) in zip(found, expected, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


# ---- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [AUGMENT, (), ("flip",), ("resized-crop", "warp")], ids="+".join)
def test_batches_are_the_same_for_any_number_of_workers(folder, augment):
    expected = taken(batches_of(folder, augment=augment), range(12))  # two epochs of five steps, and two steps
    assert [len(y) for _, y in expected] == [5, 5, 5, 5, 2] * 2 + [5, 5]
    assert all(x.shape[1:] == (3, 16, 16) and x.min() >= 0 and x.max() <= 1 for x, _ in expected)
    for workers in (1, 3):
        assert_equal(taken(batches_of(folder, workers=workers, augment=augment), range(12)), expected)


def test_an_image_is_augmented_by_the_seed_the_epoch_and_its_index_alone(folder):
    def shown(**changes):
        """Each image as it is shown in the first two epochs, by (epoch, index)."""
        batches = batches_of(folder, **changes)
        steps = range(2 * batches.per_epoch)
        rows = [(step // batches.per_epoch, row) for step in steps for row in batches.rows(step).tolist()]
        return dict(zip(rows, torch.cat([x for x, _ in taken(batches, steps)]), strict=True))

    first, other_batches, other_seed = shown(), shown(batch_size=7), shown(seed=2)
    assert all(torch.equal(other_batches[key], image) for key, image in first.items())
    assert not any(torch.equal(other_seed[key], image) for key, image in first.items())
    assert not any(torch.equal(first[0, row], first[1, row]) for row in range(IMAGES))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_may_begin_anywhere(folder, workers):
    whole = taken(batches_of(folder), range(12))
    assert_equal(taken(batches_of(folder, workers=workers), range(7, 12)), whole[7:])
    assert_equal(taken(batches_of(folder, workers=workers), [3, 8, 8, 9, 0]), [whole[n] for n in (3, 8, 8, 9, 0)])


@pytest.mark.parametrize("workers", [0, 2])
def test_two_processes_share_every_batch(folder, workers):
    whole = taken(batches_of(folder, batch_size=7), range(8))  # the last batch of an epoch has one input
    parts = [taken(batches_of(folder, batch_size=7, rank=rank, world=2, workers=workers), range(8)) for rank in (0, 1)]
    for step, (x, y) in enumerate(whole):
        for rank in (0, 1):
            assert torch.equal(parts[rank][step][0], x[rank::2])
            assert torch.equal(parts[rank][step][1], y[rank::2])
    assert len(parts[1][3][1]) == 0


def test_images_without_augmentation_are_those_of_the_data_set(folder):
    data, batches = load(folder, size=16), batches_of(folder, augment=(), workers=1)
    for step, (x, y) in enumerate(taken(batches, range(5))):
        rows = batches.rows(step)
        assert torch.equal(x, torch.from_numpy(data.batch(rows)).float().div(255))
        assert y.tolist() == data.labels[rows].tolist()


def test_arrays_need_no_workers_and_image_files_as_many_as_there_are_processors(folder, monkeypatch):
    data = load(folder, size=16)
    arrays = ArrayData(data.batch(range(3)), data.labels[:3], None, "arrays")
    assert workers_for(arrays, None) == workers_for(arrays, 4) == 0
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for processors, processes, expected in [(1, 1, 1), (4, 1, 4), (64, 1, 8), (64, 4, 8), (16, 4, 4), (2, 4, 1)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=processors: set(range(count)), raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert workers_for(data, None) == expected
    assert workers_for(data, 0) == 0
    assert workers_for(data, 3) == 3
    with pytest.raises(ConfigError, match="Expected `workers`"):
        workers_for(data, -1)


def test_accuracy_is_the_same_for_any_number_of_workers_and_processes(folder):
    data = load(folder, size=32)
    model = seeded(lambda: resnet18(2), 0)
    expected = accuracies_of(model, data, 0.5, 1, Part(), 0)
    assert accuracies_of(model, data, 0.5, 1, Part(), 2) == expected

    class Counting(Part):
        def add_up(self, values):
            counts.append(values.clone())
            return values

    for rows, world in ((256, 2), (5, 3)):
        counts = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("smoothcert.training.evaluation._ROWS", rows)
            expected = accuracies_of(model, data, 0.5, 1, Part(), 0)
            for rank in range(world):
                accuracies_of(model, data, 0.5, 1, Counting(rank, world), 0)
        assert (torch.stack(counts).sum(0) / IMAGES).tolist() == pytest.approx(expected)


# ---- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(300, 400), (500, 333), (64, 64)])
def test_random_windows_have_areas_and_shapes_of_the_standard_recipe(height, width):
    chance = torch.rand(4_000, WINDOW_TRIES, 4, generator=torch.Generator().manual_seed(1)).tolist()
    windows = np.array([random_window(height, width, one) for one in chance])
    top, left, tall, wide = windows.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    area, ratio = tall * wide / (height * width), wide / tall
    assert 0.075 < area.min() < 0.1
    assert 0.85 < area.max() <= 1  # a narrow image holds no larger window of these shapes
    assert 0.72 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.38
    # Small windows always fit: among them, areas are uniform, ratios log-uniform and positions uniform.
    small = area < 0.4
    assert area[small].mean() == pytest.approx(0.24, abs=0.01)  # five standard errors
    assert np.log(ratio[small]).mean() == pytest.approx(0, abs=0.025)
    assert np.log(ratio[small]).std() == pytest.approx(math.log(4 / 3) / math.sqrt(3), abs=0.01)
    for place, free in ((top[small], height - tall[small]), (left[small], width - wide[small])):
        assert (place / free).mean() == pytest.approx(0.5, abs=0.04)
        assert (place == free).any()


def test_where_no_window_fits_the_central_one_is_taken():
    never = [[1.0, 0.5, 0.5, 0.5]] * WINDOW_TRIES
    assert random_window(30, 300, never) == (0, 130, 30, 40)
    assert random_window(300, 30, never) == (130, 0, 40, 30)
    assert random_window(1, 500, never) == (0, 249, 1, 1)
    assert random_window(100, 100, never) == (0, 0, 100, 100)


def test_a_window_is_cut_out_and_resized(folder):
    data = load(folder, size=(8, 12))
    found = data.cropped(0, lambda height, width: (3, 4, height - 10, width - 20))
    with Image.open(folder / data.files[0]) as image:
        part = image.crop((4, 3, 4 + image.width - 20, 3 + image.height - 10))
        expected = np.asarray(part.resize((12, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(found, expected.transpose(2, 0, 1))


# ---- errors ------------------------------------------------------------------------------------------------------


def damaged(folder, tmp_path):
    """The same images, one of them cut off."""
    copy = tmp_path / "damaged"
    for path in folder.rglob("*.png"):
        (copy / path.parent.name).mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        (copy / path.parent.name / path.name).write_bytes(content[:300] if path.name == "8.png" else content)
    return copy


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named(folder, tmp_path, workers):
    batches = batches_of(damaged(folder, tmp_path), workers=workers)
    with pytest.raises(InputError, match=r"Expected a whole PNG image in .*dogs.8\.png, got a damaged one"):
        taken(batches, range(5))


def test_the_command_says_which_image_is_damaged(folder, tmp_path):
    words = ["train", str(damaged(folder, tmp_path)), "--size", "16", "--arch", "wong-cnn", "--normalize", "False"]
    process = launch([*words, "--sigma", "0.25", "--workers", "2", "--out", str(tmp_path / "net")], env=ONE_THREAD)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("error: Expected a whole PNG image in ")
    assert "8.png" in err


def test_a_missing_extra_is_named_by_workers_too():
    error = pickle.loads(pickle.dumps(MissingExtraError("Pillow", "images")))
    assert isinstance(error, MissingExtraError)
    assert str(error) == "Pillow is needed for this: pip install 'smoothcert[images]'"


def test_a_worker_that_is_killed_ends_the_training_with_a_clear_error(folder):
    before = set(multiprocessing.active_children())
    batches = batches_of(folder, workers=2)
    batches.get(0)
    for worker in set(multiprocessing.active_children()) - before:
        os.kill(worker.pid, signal.SIGKILL)
    message = "A process that decodes images was killed, .* fewer --workers than 2"
    with pytest.raises(SmoothcertError, match=message):
        taken(batches, range(1, 20))  # some batches were ready
    batches.close()


# ---- the host process --------------------------------------------------------------------------------------------


def test_workers_leave_no_trace_in_this_process(folder):
    handlers = [signal.getsignal(one) for one in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)]
    state, before = torch.get_rng_state(), set(multiprocessing.active_children())
    batches = batches_of(folder, workers=2)
    batches.get(0)
    assert len(set(multiprocessing.active_children()) - before) == 2
    assert [signal.getsignal(one) for one in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)] == handlers
    batches.close()
    assert set(multiprocessing.active_children()) <= before
    assert torch.equal(torch.get_rng_state(), state)


def test_python_ends_though_nobody_ended_the_workers(folder):
    """A traceback can keep a training alive that failed."""
    program = f"""
from smoothcert.data import load
from smoothcert.training.decoding import Decoder, decode_ahead
batches = decode_ahead(Decoder(load({str(folder)!r}, size=16)), ((0, [row]) for row in range(20)), 2)
next(batches)
import sys
sys.kept = batches
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env=ONE_THREAD, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_workers_end_with_the_last_batch(folder):
    before = set(multiprocessing.active_children())
    requests = [(0, [1, 2]), (0, [3])]
    assert [len(one) for one in decode_ahead(Decoder(load(folder, size=16)), requests, 2)] == [2, 1]
    assert set(multiprocessing.active_children()) <= before


# ---- the command -------------------------------------------------------------------------------------------------


def command(folder, out, workers, epochs=400):
    resume = ["--resume"] if (out / "train.json").exists() else []
    return [
        *("train", str(folder), "--size", "16", "--arch", "wong-cnn", "--sigma", "0.25", "--epochs", str(epochs)),
        *("--batch-size", "5", "--learning-rate", "1e-5", "--seed", "1", "--augment", "resized-crop", "flip"),
        *("--workers", str(workers), "--out", str(out), *resume),
    ]


def processes_of(out):
    """Processes of the training in `out` that have not ended; workers have the command line of the one they are of."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(out) in words:
            found.append(int(folder.name))
    return found


with_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc to look for processes in")


@with_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_all_processes_saves_the_state_and_leaves_none_behind(folder, tmp_path, number):
    """Ctrl-C reaches workers as well, and so does the end of a job on a cluster; a kill does not."""
    out = tmp_path / "net"
    process = launch([*command(folder, out, 2), "--save-every", "0.05"], env=ONE_THREAD, start_new_session=True)
    assert wait_for(lambda: size_of(out / "state.safetensors") and size_of(out / "log.jsonl"), process)
    assert len(processes_of(out)) == 3
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert wait_for(lambda: not processes_of(out), seconds=30)  # they look for us every five seconds
    else:
        assert (process.returncode, len(err.splitlines())) == (128 + number, 1)
        assert processes_of(out) == []
    _, about = read_safetensors(out / "state.safetensors")
    assert 0 < about["progress"]["step"] < 2000


def test_an_interrupted_training_ends_with_the_same_network_whatever_the_workers(folder, tmp_path):
    out, whole = tmp_path / "net", tmp_path / "whole"
    torch.set_num_threads(1)
    assert main(command(folder, whole, 0, epochs=150)) == 0
    process = launch(command(folder, out, 2, epochs=150), env=ONE_THREAD)
    assert wait_for(lambda: size_of(out / "log.jsonl") > 0, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert main(command(folder, out, 1, epochs=150)) == 0
    tensors, expected = (read_safetensors(one / "model.safetensors")[0] for one in (out, whole))
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def by_torchrun(words, **options):
    """Two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ONE_THREAD}
    return subprocess.Popen([*launcher, "-m", "smoothcert", *words], **pipes, **options)


@with_proc
@pytest.mark.slow
def test_ctrl_c_under_torchrun_saves_the_state_and_leaves_no_process_behind(folder, tmp_path):
    out, whole = tmp_path / "net", tmp_path / "whole"
    assert main(command(folder, whole, 0, epochs=300)) == 0
    process = by_torchrun(command(folder, out, 1, epochs=300), start_new_session=True)
    assert wait_for(lambda: size_of(out / "log.jsonl") > 0, process)
    assert len(processes_of(out)) == 5  # torchrun, two processes, and a worker of each
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert err.count("error: interrupted\n") == 2
    assert processes_of(out) == []
    assert 0 < read_safetensors(out / "state.safetensors")[1]["progress"]["step"] < 1500
    process = by_torchrun(command(folder, out, 1, epochs=300))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    tensors, expected = (read_safetensors(one / "model.safetensors")[0] for one in (out, whole))
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-5, msg=name)


@with_proc
def test_under_torchrun_a_damaged_image_is_named_and_ends_all_processes(folder, tmp_path):
    out = tmp_path / "net"
    words = command(damaged(folder, tmp_path), out, 1)
    process = by_torchrun([*words, "--normalize", "False"])
    _, err = process.communicate(timeout=120)
    assert process.returncode
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert any(line.startswith("error: Expected a whole PNG image in ") and "8.png" in line for line in said)
    assert "smoothcert/training" not in err  # no traceback through our code
    assert processes_of(out) == []


# ---- photographs -------------------------------------------------------------------------------------------------


@pytest.fixture
def imagenet(tmp_path):
    """ImageNet's layout, with the fifty photographs to train on and three of them to measure on."""
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    (tmp_path / "imagenet" / "train").symlink_to(PHOTOGRAPHS.resolve())
    for path in sorted(PHOTOGRAPHS.glob("*.JPEG"))[:3]:
        wnid = path.name.split("_")[1]
        (tmp_path / "imagenet" / "val" / wnid).mkdir()
        (tmp_path / "imagenet" / "val" / wnid / path.name).symlink_to(path.resolve())
    return tmp_path


def on_photographs(root, *more):
    return [
        *("train", "imagenet", "--data-root", str(root), "--size", "64", "--arch", "resnet18", "--sigma", "0.25"),
        *("--epochs", "1", "--batch-size", "20", "--schedule", "step", "--precision", "bf16", "--seed", "0"),
        *("--learning-rate", "0.01", "--json", "--out", str(root / "net"), *more),
    ]


def check_training(root, printed, processes):
    record = json.loads(printed)
    assert record["processes"] == processes
    assert record["data"]["inputs"] == 50
    assert record["result"]["test"]["inputs"] == 3
    [line] = [json.loads(line) for line in (root / "net" / "log.jsonl").read_text().splitlines()]
    assert 5 < line["loss"] < 12  # log 1000 is 6.9
    tensors, about = read_safetensors(root / "net" / "model.safetensors")
    assert about["mean"] == [0.485, 0.456, 0.406]
    assert about["std"] == [0.229, 0.224, 0.225]
    assert about["num_classes"] == 1000
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in tensors.values())


@with_photographs
def test_the_command_trains_on_photographs(imagenet, capsys):
    assert main(on_photographs(imagenet)) == 0
    check_training(imagenet, capsys.readouterr().out, 1)


@with_photographs
def test_two_processes_train_on_photographs(imagenet):
    process = by_torchrun(on_photographs(imagenet))
    printed, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    check_training(imagenet, printed, 2)


@with_photographs
def test_photographs_are_the_same_for_any_number_of_workers():
    found = []
    for workers in (0, 1, 3):
        batches = Batches(load(PHOTOGRAPHS, size=64), 20, 0, ("resized-crop", "flip"), Part(), workers)
        found.append(taken(batches, range(4)))
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


# ---- mixed precision ---------------------------------------------------------------------------------------------


def test_mixed_precision_computes_in_bf16_and_channels_last_on_weights_in_fp32(folder):
    model, seen = resnet18(2), []
    convolution = next(one for one in model.modules() if isinstance(one, torch.nn.Conv2d))
    convolution.register_forward_hook(lambda _, __, output: seen.append(output))
    settings = TrainSettings(sigma=0.25, epochs=1, batch_size=8, precision="bf16", seed=0, device="cpu")
    trainer = Trainer(model, load(folder, size=32), settings, workers=0)
    trainer.advance()
    assert seen[0].dtype == torch.bfloat16
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    assert {one.grad.dtype for one in model.parameters()} == {torch.float32}

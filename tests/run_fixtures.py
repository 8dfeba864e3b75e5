"""A small network, small data and their run, for the tests of run directories.

Run as a script, this module is a process that has torch loaded and forks a child for every command, so that a hundred
crashes take seconds: see `crash_until`. It is a plugin that test modules import from: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

INPUTS = 31  # the last chunk is not full
FLAGS = {"sigma": 0.5, "n_max": 64, "procedure": "paper", "seed": 1, "batch_size": 32, "chunk": 4}
ROWS = "certificates.jsonl"


@dataclass(frozen=True)
class Files:
    """Two networks that differ in their weights, two data sets that differ in one pixel."""

    model: Path
    other_model: Path
    data: Path
    other_data: Path


def make_files(folder: Path) -> Files:
    from networks import BLUEPRINT
    from smoothcert.models.architectures import small_cnn
    from smoothcert.models.checkpoints import save_checkpoint
    from smoothcert.training.loop import seeded

    files = Files(*(folder / name for name in ("model.safetensors", "other.safetensors", "data.npz", "other/data.npz")))
    for seed, path in enumerate((files.model, files.other_model)):
        save_checkpoint(path, seeded(small_cnn, seed), BLUEPRINT)
    images, labels = make_images()
    np.savez(files.data, images=images, labels=labels)
    images[0, 0, 0, 0] ^= 1
    files.other_data.parent.mkdir()
    np.savez(files.other_data, images=images, labels=labels)
    return files


def make_images():
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (INPUTS, 1, 8, 8), np.uint8), generator.integers(0, 10, INPUTS)


def settings(**changes):
    from smoothcert.runs import CertifySettings

    return CertifySettings(**{**FLAGS, **changes})


def certify(files: Files, out: Path, *, indices=None, resume=False, model=None, data=None, **changes):
    """The run of these tests, in this process."""
    from smoothcert.data import load
    from smoothcert.runs import certify_dataset

    model = str(files.model) if model is None else model
    data = files.data if data is None else data
    data = load(data) if isinstance(data, Path) else data
    return certify_dataset(model, data, out, settings(**changes), indices=indices, resume=resume)


def arguments(files: Files, out, *more, model=None, data=None, kind="certify", **changes) -> list[str]:
    """The same run as arguments of the command line."""
    flags = {**FLAGS, **changes}
    words = [kind, str(model or files.model), str(data or files.data), "--out", str(out)]
    for name, value in flags.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return [*words, *(str(word) for word in more)]


def launch(words, **options) -> subprocess.Popen:
    """The real command, in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "smoothcert", *words], text=True, **{**pipes, **options})


def finished(words, **options) -> SimpleNamespace:
    process = launch(words, **options)
    out, err = process.communicate()
    return SimpleNamespace(code=process.returncode, out=out, err=err)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wait_for(condition, process=None, seconds=120.0) -> bool:
    """True once the condition holds; False if the process ends before. Fails only if nothing happens for very long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        if process is not None and process.poll() is not None:
            return bool(condition())
        time.sleep(0.002)
    pytest.fail("waited in vain")


# A network that behaves badly on some inputs: those with one bright quarter and three dark ones. MARKS is a folder.
WILFUL = """
import multiprocessing, os, pathlib, time
import torch
from torch import nn

MARKS = pathlib.Path(__file__).parent

class Wilful(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.last.weight.copy_(torch.randn(10, 64, generator=generator))
            self.last.bias.zero_()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        quarters = nn.functional.avg_pool2d(x, 4).flatten(1)
        for number in range(4):
            others = [k for k in range(4) if k != number]
            if ((quarters[:, number] > 0.75) & (quarters[:, others] < 0.25).all(dim=1)).any():
                getattr(self, "quarter_%d" % number)()
        return self.last(x.flatten(1))
"""


def wilful(folder: Path, body: str) -> str:
    """A model source: the wilful network with methods quarter_0 to quarter_3, or others overridden, by `body`."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    path = folder / "wilful.py"
    path.write_text(f"{WILFUL}\nclass Model(Wilful):\n{lines}")
    return f"{path}:Model"


def wilful_data(**quarters: int):
    """The images of these tests, with a bright quarter in some: quarter_0=5 has input 5 call the method quarter_0."""
    from smoothcert.data import ArrayData

    images, labels = make_images()
    for name, index in quarters.items():
        row, column = divmod(int(name[-1]), 2)
        images[index] = 0
        images[index, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 255
    return ArrayData(images, labels, None, "images")


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Files:
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def whole(files, tmp_path_factory) -> Path:
    """The directory of the run that nothing disturbed; not to be changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    certify(files, folder)
    return folder


@pytest.fixture(scope="session")
def reference(whole) -> bytes:
    """The certificates of the run that nothing disturbed."""
    content = (whole / ROWS).read_bytes()
    assert content.count(b"\n") == INPUTS
    return content


# Crashes by the hundred


def crash(files: Files, out: Path, reference: Path, *, kills: int, seed: int) -> dict[str, int]:
    """Have `crash_until` done by a process that has never used torch's threads, so that it can fork."""
    job = {"files": [str(path) for path in vars(files).values()], "out": str(out), "reference": str(reference)}
    words = [sys.executable, __file__, json.dumps({**job, "kills": kills, "seed": seed})]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def crash_until(files: Files, folder: Path, reference: bytes, *, kills: int, seed: int) -> dict[str, int]:
    """Start the run and kill -9 it at a random point, go on with it and kill it again, until so many were killed.

    A third of the kills come after a random time, a third before a random system call that concerns files, a third in
    the middle of a write. After every kill the file must be a beginning of the reference; a run that comes to its end
    must be the reference, and another one is started.
    """
    generator = random.Random(seed)
    killed, torn, runs, calls, seconds = 0, 0, 0, 30, 0.5
    while killed < kills:
        out = folder / f"run-{runs}"
        kind = generator.choice(("time", "call", "byte"))
        point = {
            "time": generator.uniform(0, seconds),
            "call": generator.randrange(calls),
            "byte": generator.randrange(len(reference)),
        }[kind]
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_and_die(files, out, kind, point)
        if kind == "time":
            time.sleep(point)
            os.kill(child, signal.SIGKILL)  # not yet waited for, so it is still this one
        _, status = os.waitpid(child, 0)
        content = (out / ROWS).read_bytes() if (out / ROWS).exists() else b""
        assert reference.startswith(content), f"{kind} {point}: the file is not a beginning of the reference"
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            killed += 1
            torn += not content.endswith(b"\n") and bool(content)
        else:
            assert os.WEXITSTATUS(status) == 0, f"{kind} {point}: exit code {os.WEXITSTATUS(status)}"
            assert content == reference, f"{kind} {point}: a run came to its end with other rows"
            seconds = time.monotonic() - started
            runs += 1
    out = folder / f"run-{runs}"
    child = os.fork()
    if child == 0:
        _run_and_die(files, out, "call", -1)
    assert os.waitpid(child, 0)[1] == 0
    assert (out / ROWS).read_bytes() == reference
    return {"kills": killed, "torn": torn, "runs": runs + 1}


def _run_and_die(files: Files, out: Path, kind: str, point: float) -> None:
    """The child: run, with system calls that kill it at a point; never returns."""
    code = 1
    try:
        import torch

        torch.set_num_threads(1)
        if kind == "call":
            _die_before_call(int(point))
        elif kind == "byte":
            _die_in_byte(out / ROWS, int(point))
        certify(files, out, resume=True)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _die_before_call(number: int) -> None:
    calls = iter(range(10**9))

    def deadly(real):
        def call(*args, **options):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in ("open", "pwrite", "fsync", "ftruncate", "replace", "mkdir", "close"):
        setattr(os, name, deadly(getattr(os, name)))


def _die_in_byte(path: Path, place: int) -> None:
    real = os.pwrite

    def pwrite(file, content, offset):
        ours = path.exists() and os.fstat(file).st_ino == path.stat().st_ino
        if ours and offset <= place < offset + len(content):
            real(file, content[: place - offset], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, content, offset)

    os.pwrite = pwrite


def _main() -> None:
    job = json.loads(sys.argv[1])
    import smoothcert.runs.smoothing  # noqa: F401 - before the first fork, and so are the tables of the noise
    from smoothcert.noise import GridGaussianNoise
    from smoothcert.streams import Stream, make_key

    noise, image = GridGaussianNoise(FLAGS["sigma"]), np.zeros((1, 8, 8), np.float32)
    noise.fill(noise.centre(image), Stream(make_key(0), "none", 0), 0, np.empty((1, image.size), np.float32))
    files = Files(*(Path(path) for path in job["files"]))
    found = crash_until(
        files, Path(job["out"]), Path(job["reference"]).read_bytes(), kills=job["kills"], seed=job["seed"]
    )
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main()

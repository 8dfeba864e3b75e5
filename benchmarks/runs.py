"""How much faster two worker processes are than one, each with one thread: the same run, in one go.

The target is 1.8. Starting the processes is left out, as it does not grow with the run: time counts from the first
chunk to the last, of a LeNet on images of 28×28 pixels.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from common import Figure, show
from smoothcert.data import ArrayData
from smoothcert.models.architectures import lenet
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.models.spec import ModelSpec
from smoothcert.runs import CertifySettings
from smoothcert.runs.smoothing import run_dataset
from smoothcert.training.loop import seeded

INPUTS = 96
DRAWS = 4_000
ROUNDS = 3


def seconds_per_input(model: Path, data: ArrayData, cores: list[int], out: Path) -> float:
    """Time per input with one worker on each of `cores`, from the first chunk that is done on."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    times: list[float] = []
    settings = CertifySettings(
        sigma=0.5, seed=0, batch_size=128, chunk=1, procedure="paper", n_max=DRAWS, workers=len(cores), timeout=600
    )
    try:
        spec = ModelSpec(source=str(model))
        run_dataset(spec, data, settings, out, on_rows=lambda *_: times.append(time.perf_counter()))
    finally:
        os.sched_setaffinity(0, every)
    warm = 2 * len(cores)  # the first chunks of each worker
    return (times[-1] - times[warm]) / (len(times) - 1 - warm)


def measure() -> list[Figure]:
    """The ratio of the medians, measured in turns."""
    rng = np.random.default_rng(0)
    data = ArrayData(
        rng.integers(256, size=(INPUTS, 1, 28, 28), dtype=np.uint8), np.zeros(INPUTS, np.int64), None, "noise"
    )
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return []
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "lenet.safetensors"
        blueprint = Blueprint(architecture="lenet", num_classes=10, input_shape=(1, 28, 28))
        save_checkpoint(model, seeded(lenet, 0), blueprint)
        for number in range(ROUNDS):
            for workers in (1, 2):
                out = Path(folder) / f"run-{workers}-{number}"
                found[workers].append(seconds_per_input(model, data, cores[:workers], out))
    one, two = (statistics.median(found[workers]) for workers in (1, 2))
    detail = f"{1e3 * one:.1f} and {1e3 * two:.1f} ms per input"
    return [Figure("2 worker processes ÷ 1", one / two, "≥ 1.8", detail)]


if __name__ == "__main__":
    show(measure(), "runs")

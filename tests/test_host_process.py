"""Calling the library changes nothing in the process that calls it."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import Smoothed
from smoothcert.errors import ModelChangedError
from smoothcert.models.contract import evaluating

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8)).astype(np.uint8)

STATE = """
import logging, os, random, signal, sys, warnings
import numpy as np, torch
from torch import nn
from smoothcert import Smoothed, allocator

def state():
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "standard modules": {name: id(sys.modules.get(name)) for name in ("json", "random", "types", "typing")},
        "filters": list(warnings.filters),
        "root logger": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)],
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "grad": (torch.is_grad_enabled(), torch.get_default_dtype()),
        "precision": (torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled),
        "functions": [getattr(torch.nn.functional, name) for name in sorted(vars(torch.nn.functional))],
        "tensor": {name: getattr(torch.Tensor, name) for name in vars(torch.Tensor)},
        "module": dict(vars(nn.Module)),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "allocator": allocator.keep_freed_memory.cache_info().currsize,
    }

network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8)).astype(np.uint8)
before = state()
for way in sys.argv[1:]:
    plan, precision = way.split(":")
    calibration = images if precision == "int8" else None
    size = None if plan == "auto" else 32
    for _ in range(2):  # what was imported the first time is used the second time
        g = Smoothed(network, 0.25, 5, plan=plan, precision=precision, calibration=calibration, batch_size=size)
        g.certify(images[0], n_max=500)
    after = state()
    changed = [name for name in before if before[name] != after[name]]
    strangers = [name for name in ("float16", "onnx_model", "fusion_utils") if name in sys.modules]
    if changed or strangers:
        sys.exit(f"{way} changed: {changed}, modules: {strangers}")
"""


@pytest.mark.parametrize(
    "ways",
    [["auto:fp32", "folded:fp32"], ["onnxruntime:fp32", "onnxruntime:int8"], ["openvino:fp32", "openvino:int8"]],
    ids=["torch", "onnxruntime", "openvino"],
)
def test_certifying_leaves_the_process_as_it_was(ways):
    done = subprocess.run(
        [sys.executable, "-c", STATE, *ways], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def convolutional():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 5))


def test_weights_of_the_caller_s_model_are_never_touched():
    model = convolutional()
    before = [(id(weight), weight.data_ptr(), weight.stride()) for weight in model.parameters()]
    seen = []

    def look(_):
        seen.append([(id(weight), weight.data_ptr(), weight.stride()) for weight in model.parameters()])

    Smoothed(model, 0.25, 5, on_draws=look).certify(IMAGES[0], n_max=2000)
    assert seen
    assert all(found == before for found in seen)


def test_modes_are_restored_by_the_last_thread_only():
    """A second user of the same module that leaves first must not restore train mode under the first one."""
    model = convolutional().train()
    inside, leave = threading.Event(), threading.Event()

    def second():
        with evaluating(model):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=second)
    thread.start()
    inside.wait(10)
    with evaluating(model[:2]):  # shares two of its parts
        leave.set()
        thread.join(10)
        assert not any(part.training for part in model[:2])
        assert model.training
        assert model[3].training
    assert all(part.training for part in model.modules())


def test_two_certifications_of_one_model_at_once_never_see_train_mode():
    class Watching(nn.Module):
        trained = 0

        def forward(self, batch):
            Watching.trained += self.training
            return batch.flatten(1)[:, :5]

    model = Watching().train()
    threads = [
        threading.Thread(target=lambda: Smoothed(model, 0.25, 5, batch_size=16).certify(IMAGES, n_max=500))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Watching.trained == 0
    assert model.training


def test_a_mode_that_somebody_else_changes_meanwhile_is_noticed():
    model = convolutional()
    with pytest.raises(ModelChangedError, match="another mode"), evaluating(model):
        model.train()


@pytest.mark.parametrize("change", ["weight", "buffer"])
def test_weights_that_change_under_way_are_noticed(change):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 5))

    def train(_):
        tensor = model[2].weight if change == "weight" else model[1].running_mean
        tensor.data.add_(1e-3)

    with pytest.raises(ModelChangedError, match="weights or buffers changed"):
        Smoothed(model, 0.25, 5, batch_size=64, on_draws=train).certify(IMAGES[0], n_max=500)


def test_weights_that_the_model_itself_changes_are_noticed_in_the_copy_that_runs():
    """Convolutions run with the channels last in a copy, and the model's code sees the copy's weights."""

    class Drifting(nn.Sequential):
        def forward(self, batch):
            if len(batch) == 64:
                self[0].weight.data.mul_(1 + 1e-6)
            return super().forward(batch)

    model = Drifting(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 5))
    with pytest.raises(ModelChangedError, match="weights or buffers changed"):
        Smoothed(model, 0.25, 5, batch_size=64).certify(IMAGES[0], n_max=500)


def test_a_model_may_be_trained_between_two_calls():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    g = Smoothed(model, 0.25, 5, batch_size=64)
    before = g.certify(IMAGES[0], n_max=500)
    with torch.no_grad():
        model[1].weight.neg_()
        model[1].bias.neg_()
    assert g.certify(IMAGES[0], n_max=500).votes != before.votes

"""The batch size and memory layout at which a model is fastest, measured once per model and shape."""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable

import torch
from torch import nn

from smoothcert.models.agreement import is_labels
from smoothcert.models.contract import Model, evaluating
from smoothcert.sampling import Plan, Tally, in_layout, worker_count, worker_pool

_SECONDS = 1.0  # after this, no further candidate is tried
_LARGEST = 1024
_UNMEASURED = 256

_plans: weakref.WeakKeyDictionary[object, dict[Hashable, Plan]] = weakref.WeakKeyDictionary()


def _seconds_per_row(model: Model, batch: torch.Tensor, tally: Tally) -> float:
    """The best of three rounds of classifying and counting, after one to warm up."""

    def once() -> float:
        start = time.perf_counter()
        tally.add(model(batch.clone(memory_format=torch.preserve_format)))
        if batch.device.type == "cuda":
            torch.cuda.synchronize(batch.device)
        return time.perf_counter() - start

    first = once()
    # A slow model is measured well enough by its first run.
    repeated = [once() for _ in range(3)] if first < _SECONDS / 10 else []
    return min([first, *repeated]) / len(batch)


def _measure(model: Model, shape: tuple[int, ...], device: torch.device, workers: int) -> Plan:
    layouts = [False, True] if len(shape) == 3 and isinstance(model, nn.Module) else [False]
    size, best, found = 8, float("inf"), Plan(8, workers=workers)
    started = time.perf_counter()
    with torch.inference_mode(), evaluating(model):
        output = model(torch.zeros(1, *shape, device=device))
        if is_labels(output):
            return Plan(
                _UNMEASURED, workers=workers
            )  # perhaps a service that is paid by the call: not to be played with
        tally = Tally(output.shape[1], device)
        while size <= _LARGEST:
            times = {}
            for channels_last in layouts:
                batch = torch.rand(size, *shape, generator=torch.Generator().manual_seed(0)).to(device)
                if channels_last:
                    batch = batch.contiguous(memory_format=torch.channels_last)
                try:
                    laid = in_layout(model, channels_last=channels_last)
                    times[channels_last] = _seconds_per_row(laid, batch, tally)
                except Exception:  # out of memory, or a model that takes no batches as long as this
                    if best == float("inf"):
                        raise
                    return found
            layout = min(times, key=times.__getitem__)
            if times[layout] < 0.98 * best:
                best, found = times[layout], Plan(size, layout, workers)
            elif times[layout] > 1.2 * best or time.perf_counter() - started > _SECONDS:
                break
            if len(layouts) == 2 and size >= 32 and times[layout] < 0.8 * times[not layout]:
                layouts = [layout]  # decided
            size *= 2
    return found


def tuned_plan(model: Model, shape: tuple[int, ...], device: torch.device) -> Plan:
    """The fastest plan found for `model` on inputs of `shape`; measured once in this process, then remembered."""
    workers = worker_count(model, device)
    key = (shape, str(device), workers)
    try:
        known = _plans.setdefault(model, {})
    except TypeError:  # cannot be weakly referenced: measured afresh
        known = {}
    if key not in known:
        args = (model, shape, device, workers)
        # Measured where it will run: in a worker, with a worker's share of the threads.
        known[key] = worker_pool(workers).submit(_measure, *args).result() if workers > 1 else _measure(*args)
    return known[key]

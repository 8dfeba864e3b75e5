"""How the base classifier is run: the backend that a plan names, built once, and the fastest plan, found by measuring.

A backend changes f by rounding at most, and int8 makes another network of it. The theorem holds for whatever is run, so
a certificate is always about what was executed; its manifest says what that was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothcert.backends import BACKENDS, PRECISIONS, Source, content_hash
from smoothcert.checks import check_choice, check_count
from smoothcert.data.dataset import Dataset
from smoothcert.errors import ConfigError, ModelError, SmoothcertError
from smoothcert.inputs import as_float32
from smoothcert.models.contract import Model, evaluating
from smoothcert.models.hashes import checksums, hash_bytes, hash_tensors
from smoothcert.noise import GaussianNoise
from smoothcert.plan_cache import plan_file, remember_plan, remembered_plan
from smoothcert.progress import ProgressBar
from smoothcert.sampling import Plan, in_layout, worker_count, worker_pool
from smoothcert.streams import Stream
from smoothcert.tuning import tuned_plan

log = logging.getLogger("smoothcert")
OnTrial = Callable[["Trial"], None]
SIZES = (32, 64, 128, 256, 512, 1024)
_SECONDS = 0.4  # of each measurement
_ROUNDS = 2
_WORSE = 0.85  # a batch size this much slower than the best so far ends the search
_LONGEST = 1.0  # seconds: after a forward pass this long, larger batches cost memory and gain nothing
_FINALISTS, _CLOSE = 4, 0.7  # how many of the fastest are measured once more, and how far from the best they may be
_MOST_INPUTS, _MOST_VALUES = 256, 2**23  # of calibration inputs
_CALIBRATION_KEY = bytes(32)  # the same noise whenever a network is made of another: it decides nothing
_CALIBRATION_STAGE = -2


def calibration_inputs(data: Dataset) -> npt.NDArray[np.float32]:
    """Inputs [N, *D] spread evenly over a data set, by which int8 chooses its scales; the same ones each time."""
    first = as_float32(data[0])
    count = min(_MOST_INPUTS, len(data), max(16, _MOST_VALUES // first.size))
    places = dict.fromkeys(np.linspace(0, len(data) - 1, count).astype(int).tolist())
    return np.stack([as_float32(data[place]) for place in places])


class Execution:
    """Finds, builds and keeps what is run in a base classifier's place, for each shape of inputs.

    Args:
        model: the base classifier, on `device`.
        sigma: the noise level that int8 is calibrated for.
        plan: "auto" for the plan that `tune` once found on this machine, else eager mode; the name of a backend; or a
            plan.
        precision: of the computations; "fp32" but where asked otherwise.
        batch_size: noisy copies per forward pass, instead of the fastest.
        calibration: inputs [N, *D], to which noise is added, for int8.
        weights_hash: the model's, if it is known.
    """

    def __init__(
        self,
        model: Model,
        sigma: float,
        device: torch.device,
        *,
        plan: Plan | str = "auto",
        precision: str = "fp32",
        batch_size: int | None = None,
        calibration: npt.NDArray[np.float32] | None = None,
        weights_hash: str | None = None,
    ) -> None:
        if isinstance(plan, Plan):
            if batch_size is not None:
                raise ConfigError("Expected either `plan` or `batch_size`, got both.")
            precision = plan.precision
        else:
            check_choice("plan", plan, ["auto", *BACKENDS])
        check_choice("precision", precision, PRECISIONS)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        if precision == "int8" and calibration is None:
            raise ConfigError("Expected inputs as `calibration` for int8, which chooses its scales by them, got none.")
        self._model, self._sigma, self._device = model, sigma, device
        self._plan, self._precision, self._batch_size = plan, precision, batch_size
        self._calibration = None if calibration is None else _noisy(calibration, sigma)
        self._weights_hash, self._is_network = weights_hash, weights_hash is not None and isinstance(model, nn.Module)
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._built: dict[tuple[int, ...], nn.Module] = {}
        self._weights: tuple[int, ...] = ()

    def plan_for(self, shape: tuple[int, ...]) -> Plan:
        """How inputs of this shape are run: as given, as remembered, or as measured now."""
        if shape not in self._plans:
            self._plans[shape] = self._find_plan(shape)
        return self._plans[shape]

    def _find_plan(self, shape: tuple[int, ...]) -> Plan:
        if isinstance(self._plan, Plan):
            return self._plan
        known = self.remembered(shape) if self._plan == "auto" else None
        if known is not None:
            return known if self._batch_size is None else replace(known, batch_size=self._batch_size)
        if self._precision == "fp32" and self._plan in ("auto", "eager"):
            if self._batch_size is None:
                return tuned_plan(self._model, shape, self._device)
            # Who names a batch size may want the same votes elsewhere: the layout is not left to a measurement.
            workers = worker_count(self._model, self._device)
            return Plan(self._batch_size, channels_last=_convolves(self._model, shape), workers=workers)
        return self.tune(shape)

    def remembered(self, shape: tuple[int, ...]) -> Plan | None:
        """The plan that was once found for this network, shape and precision on this machine."""
        path = self._plan_file(shape)
        return None if path is None else remembered_plan(path)

    def tunable(self, shape: tuple[int, ...]) -> bool:
        """True if there is nothing remembered, and the model is one that other backends can run."""
        return self._is_network and self._plan == "auto" and self._batch_size is None and self.remembered(shape) is None

    def tune(self, shape: tuple[int, ...], on_trial: OnTrial = lambda _: None, *, progress: bool | None = None) -> Plan:
        """Measure every way to run inputs of this shape, take the fastest and remember it."""
        named = isinstance(self._plan, str) and self._plan != "auto"
        trials: list[Trial] = []
        built: dict[Plan, Model] = {}
        with ProgressBar("ways to run the model tried", 1, enabled=progress) as bar:
            for trial in self._trials(shape, [str(self._plan)] if named else _tried_backends(self._device), built):
                trials.append(trial)
                bar.set_progress(len(trials), len(trials) + _FINALISTS * _ROUNDS)
            for left in self._measure_finalists(shape, trials, built):
                bar.set_progress(len(trials) + _FINALISTS * _ROUNDS - left, len(trials) + _FINALISTS * _ROUNDS)
        for trial in trials:
            on_trial(trial)
        plan = best_plan(trials)
        path = self._plan_file(shape)
        if path is not None and not named and self._batch_size is None:
            remember_plan(path, plan, [asdict(trial) for trial in trials])
        self._plans[shape] = plan
        self._built.pop(shape, None)
        return plan

    def executed(self, shape: tuple[int, ...]) -> Model:
        """What is called for a batch of inputs of this shape."""
        plan = self.plan_for(shape)
        if plan.is_plain:
            return self._model
        weights = checksums(self._model)
        if weights != self._weights:  # what was built is another network by now
            self._weights = weights
            self._built.clear()
        if shape not in self._built:
            try:
                self._built[shape] = self._build(shape, plan)
            except ModelError as error:
                if self._plan != "auto" or self._precision != "fp32":
                    raise
                log.warning("what was found to be fastest does not run, so eager mode it is: %s", error)
                self._plans[shape] = tuned_plan(self._model, shape, self._device)
                return self._model
        return self._built[shape]

    def content_hash(self, shape: tuple[int, ...]) -> str | None:
        """Which f is executed for inputs of this shape; None for the network as it is."""
        executed = self.executed(shape)
        return None if self.plan_for(shape).is_plain else content_hash(executed)  # type: ignore[arg-type]

    def _build(self, shape: tuple[int, ...], plan: Plan) -> nn.Module:
        if not isinstance(self._model, nn.Module):
            kind = type(self._model).__name__
            raise ConfigError(f"The backend {plan.backend} runs torch modules, got {kind}: use the plan eager.")
        backend = BACKENDS[plan.backend]
        if plan.precision not in backend.precisions:
            able = ", ".join(name for name, one in BACKENDS.items() if plan.precision in one.precisions)
            raise ConfigError(f"The backend {plan.backend} has no {plan.precision}; these do: {able}.")
        return backend.build(Source(self._model, shape, plan.batch_size, self._calibration), plan.precision)

    def _plan_file(self, shape: tuple[int, ...]) -> Path | None:
        """Where the plan of this network is kept; None for what has no weights to be known by."""
        if not isinstance(self._model, nn.Module) or next(self._model.parameters(), None) is None:
            return None
        if self._weights_hash is None:
            self._weights_hash = hash_tensors(self._model.state_dict())
        network = hash_bytes(self._weights_hash.encode(), repr(self._model).encode())
        return plan_file(network, shape, self._device, self._precision)

    # Measuring

    def _trials(self, shape: tuple[int, ...], backends: Sequence[str], built: dict[Plan, Model]) -> Iterator[Trial]:
        for name in backends:
            if self._precision not in BACKENDS[name].precisions:
                continue
            first = Plan(1, workers=worker_count(self._model, self._device), backend=name, precision=self._precision)
            yield from self._trials_of(shape, first, built)

    def _trials_of(self, shape: tuple[int, ...], first: Plan, built: dict[Plan, Model]) -> Iterator[Trial]:
        """Trials of one backend, in growing batches until they no longer gain; `built` is told what each runs."""
        if first.backend == "compile":  # which takes minutes: only as eager mode is fastest
            eager = tuned_plan(self._model, shape, self._device)
            yield self._try(shape, replace(eager, backend=first.backend, precision=first.precision), None, built)
            return
        layouts = (False, True) if len(shape) == 3 and first.backend in ("eager", "folded") else (False,)
        best, model = 0.0, None
        for size in SIZES if self._batch_size is None else (self._batch_size,):
            rates = {}
            for channels_last in layouts:
                plan = replace(first, batch_size=size, channels_last=channels_last)
                trial = self._try(shape, plan, None if BACKENDS[plan.backend].sized else model, built)
                model = built.get(plan)
                if model is self._model and not plan.is_plain and self._plan == "auto":
                    return  # nothing to be made of it: that is eager mode, which is tried too
                yield trial
                if trial.failure is not None:
                    return
                rates[channels_last] = trial.rate
            top = max(rates.values())
            if top < _WORSE * best or size * first.workers > _LONGEST * top:
                return
            best = max(best, top)
            layouts = tuple(layout for layout in layouts if rates[layout] >= _WORSE * top)

    def _measure_finalists(
        self, shape: tuple[int, ...], trials: list[Trial], built: dict[Plan, Model]
    ) -> Iterator[int]:
        """Measure the fastest once more, in turns: a machine that has other work is not always as fast as it was.

        Yields how many measurements are left.
        """
        best = max((trial.rate for trial in trials), default=0.0)
        close = [place for place, trial in enumerate(trials) if trial.rate > _CLOSE * best]
        finalists = sorted(close, key=lambda place: -trials[place].rate)[:_FINALISTS]
        turns = finalists * _ROUNDS if len(finalists) > 1 else []
        for number, place in enumerate(turns, 1):
            plan = trials[place].plan
            again = self._try(shape, plan, built[plan], built)
            trials[place] = replace(trials[place], rate=max(trials[place].rate, again.rate))
            yield len(turns) - number

    def _try(self, shape: tuple[int, ...], plan: Plan, model: Model | None, built: dict[Plan, Model]) -> Trial:
        """What came of a plan, which runs `model` if that was built already; what it ran goes into `built`."""
        started = time.perf_counter()
        try:
            if model is None:
                model = self._model if plan.is_plain else self._build(shape, plan)
            seconds = time.perf_counter() - started
            with evaluating(model):
                laid = in_layout(model, channels_last=plan.channels_last)
                rate = max(measured_rate(laid, shape, self._device, plan) for _ in range(_ROUNDS))
        except (SmoothcertError, RuntimeError, MemoryError) as error:
            return Trial(plan, failure=" ".join(str(error).split())[:200])
        built[plan] = model
        return Trial(plan, rate, seconds)


def _convolves(model: Model, shape: tuple[int, ...]) -> bool:
    """True for networks of images with convolutions, which are faster with the channels last."""
    return len(shape) == 3 and isinstance(model, nn.Module) and any(isinstance(m, nn.Conv2d) for m in model.modules())


def _noisy(inputs: npt.NDArray[np.float32], sigma: float) -> npt.NDArray[np.float32]:
    """The inputs under noise that no procedure sees."""
    noisy = np.empty_like(inputs)
    for place, x in enumerate(inputs):
        stream = Stream(_CALIBRATION_KEY, f"calibration:{place}", _CALIBRATION_STAGE)
        GaussianNoise(sigma).fill(x.reshape(-1), stream, 0, noisy[place].reshape(1, -1))
    return noisy


def _tried_backends(device: torch.device) -> list[str]:
    """What is installed and suits the device: compiling takes minutes on a CPU, and other runtimes run only there."""
    unsuited = ("compile",) if device.type == "cpu" else ("onnxruntime", "openvino")
    return [name for name, backend in BACKENDS.items() if backend.missing() is None and name not in unsuited]


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to run the base classifier that was tried: inputs per second by all workers, or why it failed."""

    plan: Plan
    rate: float = 0.0
    build_seconds: float = 0.0
    failure: str | None = None


def best_plan(trials: Sequence[Trial]) -> Plan:
    """The fastest plan that was tried; ModelError if none could be run."""
    best = max(trials, key=lambda trial: trial.rate, default=None)
    if best is None:
        raise ConfigError("None of the backends that are installed here can do that; for int8: openvino, onnxruntime.")
    if best.failure is not None:
        reasons = "; ".join(f"{trial.plan.backend}: {trial.failure}" for trial in trials)
        raise ModelError(f"No backend can run this network in {best.plan.precision}: {reasons}")
    return best.plan


def measured_rate(model: Model, shape: tuple[int, ...], device: torch.device, plan: Plan) -> float:
    """Inputs per second that all workers classify together, each with its share of the threads."""
    batch = torch.rand(plan.batch_size, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    if plan.channels_last:
        batch = batch.contiguous(memory_format=torch.channels_last)
    barrier = threading.Barrier(plan.workers)

    def work() -> float:
        with torch.inference_mode():
            try:
                _wait_for(model(batch))
            except BaseException:
                barrier.abort()  # the others would wait for ever
                raise
            barrier.wait()
            started, done = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - started) < _SECONDS or done == 0:
                _wait_for(model(batch))
                done += len(batch)
        return done / elapsed

    if plan.workers == 1:
        return work()
    pool = worker_pool(plan.workers, 1 if device.type == "cpu" else None)
    return sum(future.result() for future in [pool.submit(work) for _ in range(plan.workers)])


def _wait_for(scores: Tensor) -> None:
    if scores.device.type == "cuda":
        torch.cuda.synchronize(scores.device)

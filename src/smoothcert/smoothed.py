"""The smoothed classifier g: drives a procedure against a base classifier f under noise."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError, ModelChangedError, ModelError
from smoothcert.execution import Execution, OnTrial
from smoothcert.inputs import Range, as_float32, check_values, content_id, split_batch
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import Contract, Model, check_contract, evaluating, is_out_of_memory, listening
from smoothcert.models.hashes import checksums
from smoothcert.noise import NOISES, GaussianNoise, GridGaussianNoise, Noise
from smoothcert.progress import ProgressBar
from smoothcert.reclassification import Reclassification, sample_size
from smoothcert.records import Bounds, Certificate, Decision, Prediction
from smoothcert.sampling import (
    MAX_WORKERS,
    Plan,
    Request,
    count_votes_together,
    in_layout,
    pick_device,
    preserved_random_state,
)
from smoothcert.stats.grid import Grid
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import FixedN, Predict, Procedure, Running, SequentialPredict, describe, question
from smoothcert.streams import STREAM_NAMING, Stream, make_key, parse_key

Result = TypeVar("Result", Certificate, Prediction)
_PROBE_STAGE = -1
_PROBES = 8
_ROUND_BATCHES = 16  # for each worker: at a round's end one may wait for another, but only for a batch in sixteen


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One input on the way to its answer."""

    x: npt.NDArray[np.float32]
    input_id: str
    noise: Noise
    procedure: Procedure[Any]
    running: Running[Any]

    def request(self, key: bytes, naming: int) -> Request:
        """What the procedure wants next, from the stream of its stage."""
        asked = question(self.procedure) if naming >= 2 else ""
        stream = Stream(key, self.input_id, len(self.running.stages), asked)
        return Request(self.noise, self.x, self.running.wanted, stream)


def _next_round(pending: deque[_Case], plan: Plan) -> list[_Case]:
    """Take the first cases that together want draws enough to keep all workers busy.

    More of them would not make a round more efficient, only longer without news. Cases that want little are no
    more than the workers' batches have rows, so that they take no more memory than those, and fill them still. How many
    workers there are makes no difference, so that the same draws share a batch on any machine.
    """
    most_cases = MAX_WORKERS * plan.batch_size
    chosen: list[_Case] = []
    draws = 0
    while pending and len(chosen) < most_cases and draws < _ROUND_BATCHES * most_cases:
        chosen.append(pending.popleft())
        draws += chosen[-1].running.wanted
    return chosen


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the paper's procedures, which call the number of draws n."""
    if "effort" in settings:
        raise ConfigError("The paper's procedure draws a fixed number: drop `effort`, or give n_max.")
    return {"n" if name == "n_max" else name: value for name, value in settings.items()}


def _refuse_settings(settings: dict[str, Any]) -> None:
    if settings:
        raise ConfigError(f"A procedure has its own {', '.join(settings)}: give them there.")


def _label_at(label: int | Sequence[int] | None, place: int, count: int) -> int | None:
    """The known label of one of so many inputs."""
    if label is None:
        return None
    labels = np.atleast_1d(np.asarray(label))
    if labels.shape != (count,):
        raise InputError(f"Expected one label per input, {count} in all, got shape {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer) or labels[place] < 0:
        raise InputError(f"Expected whole-number labels >= 0, got {labels[place]!r}.")
    return int(labels[place])


def _input_ids(inputs: Sequence[npt.NDArray[np.float32]], index: int | Sequence[int] | None) -> list[str]:
    """The names of the inputs in the noise stream, each another one: draws must not serve twice."""
    if index is None:
        return [content_id(one) for one in inputs]
    if isinstance(index, int | np.integer):
        first = check_count("index", index, least=0)
        return [f"index:{first + i}" for i in range(len(inputs))]
    numbers = [check_count("index", one, least=0) for one in index]
    if len(numbers) != len(inputs) or len(set(numbers)) < len(numbers):
        raise ConfigError(f"Expected {len(inputs)} different numbers in `index`, one per input, got {numbers}.")
    return [f"index:{number}" for number in numbers]


def _check_unchanged(before: tuple[int, ...], model: Model) -> None:
    """Raise ModelChangedError if the checksums of the weights and buffers are not what they were before."""
    if checksums(model) != before:
        raise ModelChangedError(
            "The model's weights or buffers changed while it was being certified: its draws are not those of one "
            "classifier. Do not train it at the same time, and make sure that it does not modify its weights in "
            "eval mode."
        )


class Smoothed:
    """The classifier that answers with the class `model` chooses most often on noisy copies of the input.

    Args:
        model: what `models.load` gives, or any callable from a batch [B, *D] to scores [B, K] or integer labels [B]; a
            module is put into eval mode while it is used and moved to `device`. Normalisation belongs inside it (see
            `Normalize`). A module on the CPU is called from several threads at once.
        sigma: the noise's standard deviation, in the units of the input (pixels in [0, 1]).
        num_classes: how many classes there are; found out by asking the model if it returns scores.
        noise: "grid" for inputs on the 8-bit grid k/255, sound in floating-point arithmetic too; "gaussian" for any
            input; "auto" takes "grid" where the input is on it and "gaussian" elsewhere, and the result says which.
        input_shape: the shape of one input. Without it, arrays of one or three dimensions are one input and those of
            two or four are batches.
        input_range: inputs must lie within it; None for data without a range.
        batch_size: noisy copies per forward pass; by default the fastest, measured once per model and shape.
        device: by default "cuda" or "mps" for a module where there is one, else "cpu".
        seed: repeats the same noise. By default a fresh 256-bit key is drawn from the operating system, after the
            weights are fixed; either way the key is in every result, and asking the same question twice gives the
            same answer.
        key: the key of an earlier result in hexadecimal, to draw the same noise again.
        plan: how to run the forward passes: "auto" as `tune` once found to be fastest on this machine, else in eager
            mode; "eager" always so; the name of another backend; or a `Plan`. It changes how long they take, and scores
            by rounding.
        precision: "fp32", or "bf16", "fp16" and "int8" where a backend has them. An int8 network is another base
            classifier than the one it was made from: certificates are about the former, and say so.
        calibration: a batch of inputs by which int8 chooses its scales, with noise added to them.
        secure: for evidence against an adversary who may have chosen the model: only grid noise, no seed.
        allow_random: accept a model whose answers are random (fresh for every row); Theorem 1 covers it.
        naming: how streams of noise are named, as runs record it (see `streams`); 1 repeats what older versions drew.
        progress: show a progress bar for what takes longer than two seconds; by default on a terminal.
        on_draws: called with the number of draws whenever some were made.
    """

    def __init__(
        self,
        model: Model | Classifier,
        sigma: float,
        num_classes: int | None = None,
        *,
        noise: str | Noise = "auto",
        input_shape: Sequence[int] | None = None,
        input_range: Range | None = (0.0, 1.0),
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        plan: Plan | str = "auto",
        precision: str = "fp32",
        calibration: Any = None,
        seed: int | None = None,
        key: str | None = None,
        secure: bool = False,
        allow_random: bool = False,
        naming: int = STREAM_NAMING,
        progress: bool | None = None,
        on_draws: Callable[[int], None] | None = None,
    ) -> None:
        weights_hash = None
        if isinstance(model, Classifier):
            num_classes = model.num_classes if num_classes is None else num_classes
            input_shape = model.input_shape if input_shape is None else input_shape
            weights_hash = model.weights_hash
            model = model.network
        if not callable(model):
            raise ConfigError(f"Expected `model` to be callable on a batch, got {type(model).__name__}.")
        self.sigma = check_sigma(sigma)
        if num_classes is not None:
            check_count("num_classes", num_classes, least=2)
        if isinstance(noise, Noise):
            if noise.sigma != self.sigma:
                raise ConfigError(f"Expected `noise` with sigma={self.sigma:g}, got {noise.sigma:g}.")
        else:
            check_choice("noise", noise, ["auto", *NOISES])
        if key is not None and seed is not None:
            raise ConfigError("Expected either `key` or `seed`, got both.")
        if secure and seed is not None:
            raise ConfigError("A secure run draws its key from the operating system: drop `seed` or `secure`.")
        if secure and noise not in ("auto", "grid"):
            raise ConfigError("A secure run needs grid noise: float noise can be seen through by a hostile model.")
        self.device = pick_device(model, device)
        self.model = model.to(self.device) if isinstance(model, nn.Module) else model
        self.num_classes = num_classes
        self.input_shape = None if input_shape is None else tuple(input_shape)
        self.input_range = input_range
        self._noise = noise
        self._secure, self._allow_random, self._progress = secure, allow_random, progress
        self._on_draws = on_draws
        self._execution = Execution(
            self.model,
            self.sigma,
            self.device,
            plan=plan,
            precision=precision,
            batch_size=batch_size,
            calibration=None if calibration is None else as_float32(calibration),
            weights_hash=weights_hash,
        )
        self._key = make_key(seed) if key is None else parse_key(key)
        self._naming = check_count("naming", naming, most=STREAM_NAMING)
        self._checked: dict[tuple[int, ...], Contract] = {}
        self._checked_weights: tuple[int, ...] = ()

    def __repr__(self) -> str:
        noise = self._noise if isinstance(self._noise, str) else self._noise.name
        return f"Smoothed({type(self.model).__name__}, sigma={self.sigma:g}, noise={noise!r}, device='{self.device}')"

    @property
    def key(self) -> str:
        """The key that all noise derives from, in hexadecimal."""
        return self._key.hex()

    def certify(
        self,
        x: Any,
        procedure: Procedure[Bounds] | str | None = None,
        *,
        radii: Sequence[float] | None = None,
        label: int | Sequence[int] | None = None,
        alpha: float | None = None,
        n_max: int | None = None,
        effort: str | float | None = None,
        margin: float | None = None,
        index: int | Sequence[int] | None = None,
    ) -> Certificate | list[Certificate]:
        """Certify one input, or each of a batch: a class and the L2 radius within which it cannot change.

        With probability at least 1 − alpha over the noise, each certificate's claim is true.

        Args:
            x: one input or a batch of them, torch or numpy.
            procedure: how to go about it. By default `Grid` where `radii` are given and `Planned` elsewhere, which take
                few draws; "paper" for the paper's CERTIFY (`FixedN`); or a procedure with settings of its own.
            radii: decide which of these radii hold, instead of finding one as large as the draws allow.
            label: with `radii` or a `Grid`, the true class, one per input, to evaluate a test set: tested directly.
            alpha: the failure probability per input, 0.001 by default.
            n_max: the most draws per input, besides the few that plan them; 100,000 by default.
            effort: "quick", "balanced" or "full": how many draws a certificate is worth (see `Grid` and `Planned`).
            margin: certify the radius within which the class leads every other class by at least this much in
                probability (Section 3.2.1 of the paper), so that perturbations within it cannot force `predict` to
                abstain; 0 by default.
            index: names the input in the noise stream, such as its place in a test set; of a batch the first one, or
                each by a list. By default the name is derived from the content.
        """
        given = {"alpha": alpha, "n_max": n_max, "effort": effort, "margin": margin}
        settings = {name: value for name, value in given.items() if value is not None}
        procedure_for = self._certify_procedures(procedure, radii, label, settings)

        def conclude(theorem: Noise, bounds: Bounds, **common: Any) -> Certificate:
            radius = theorem.radius(bounds)
            label = bounds.label if radius > 0 else None
            return Certificate(label=label, radius=radius, bounds=bounds, **common)

        return self._answer(x, procedure_for, conclude, index)

    def predict(
        self,
        x: Any,
        procedure: Procedure[Decision] | str | None = None,
        *,
        alpha: float | None = None,
        n_max: int | None = None,
        index: int | Sequence[int] | None = None,
    ) -> Prediction | list[Prediction]:
        """The smoothed classifier's class for one input, or for each of a batch; None where it is too close to call.

        With probability at least 1 − alpha over the noise, each prediction is the smoothed classifier's class or None.
        By default `SequentialPredict`, which takes few draws; "paper" for the paper's PREDICT with n_max draws; or a
        procedure with settings of its own. The other arguments are as for `certify`.
        """
        given = {"alpha": alpha, "n_max": n_max}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        chosen: Procedure[Decision]
        if procedure is None:
            chosen = SequentialPredict(**settings)
        elif isinstance(procedure, str):
            check_choice("procedure", procedure, ["paper"])
            chosen = Predict(**_renamed(settings))
        else:
            _refuse_settings(settings)
            chosen = procedure

        def conclude(_: Noise, decision: Decision, **common: Any) -> Prediction:
            return Prediction(label=decision.label, p_value=decision.p_value, reason=decision.reason, **common)

        return self._answer(x, lambda *_: chosen, conclude, index)

    def _certify_procedures(
        self,
        procedure: Procedure[Bounds] | str | None,
        radii: Sequence[float] | None,
        label: int | Sequence[int] | None,
        settings: dict[str, Any],
    ) -> Callable[[int, int], Procedure[Bounds]]:
        """The procedure for the input at a place of so many."""
        if label is not None and radii is None and not isinstance(procedure, Grid):
            raise ConfigError("A known `label` goes with `radii`: it is what the grid of radii is tested for.")
        if procedure is not None and radii is not None:
            raise ConfigError("Expected either `radii` or a `procedure`, got both: a Grid has its own radii.")
        if isinstance(procedure, Grid) and procedure.sigma != self.sigma:
            raise ConfigError(f"Expected a Grid with sigma={self.sigma:g}, got {procedure.sigma:g}.")
        if isinstance(procedure, str):
            check_choice("procedure", procedure, ["paper"])
            paper = FixedN(**_renamed(settings))
            return lambda *_: paper
        if procedure is not None:
            _refuse_settings(settings)
            if isinstance(procedure, Grid) and label is not None:
                return lambda place, count: replace(procedure, label=_label_at(label, place, count))
            return lambda *_: procedure
        if radii is None:
            planned = Planned(**settings)
            return lambda *_: planned
        grid = Grid(radii=tuple(float(radius) for radius in radii), sigma=self.sigma, **settings)
        return lambda place, count: replace(grid, label=_label_at(label, place, count))

    def _answer(
        self,
        x: Any,
        procedure_for: Callable[[int, int], Procedure[Any]],
        conclude: Callable[..., Result],
        index: int | Sequence[int] | None,
    ) -> Result | list[Result]:
        """Answer for one input or each of a batch; `procedure_for(i, n)` is the procedure for the i-th of n."""
        inputs, batched = split_batch(x, self.input_shape)
        names = _input_ids(inputs, index)
        cases = []
        for i, (one, name) in enumerate(zip(inputs, names, strict=True)):  # all are looked at before any forward pass
            check_values(one, self.input_range)
            procedure = procedure_for(i, len(inputs))
            cases.append(_Case(one, name, self._noise_for(one), procedure, Running(procedure)))
        self._run(cases)
        executed = self.executed(inputs[0].shape)
        results = [self._result(case, conclude, executed) for case in cases]
        return results if batched else results[0]

    def _run(self, cases: list[_Case]) -> None:
        """Run every case to its conclusion, in rounds of draws that share their forward batches."""
        shape = cases[0].x.shape
        with self._random_state(Stream(self._key, "probe", _PROBE_STAGE)):
            contract = self._check_model(cases[0].noise, cases[0].x)
            model = self._execution.executed(shape)
            plan = self._execution.plan_for(shape)
        for case in cases:
            label = getattr(case.procedure, "label", None)
            if label is not None and label >= contract.num_classes:
                raise InputError(
                    f"Expected labels below {contract.num_classes}, the model's number of classes, got {label} for "
                    f"{case.input_id}. Nothing was drawn."
                )
        with evaluating(model), listening(self._show_life):
            laid = in_layout(model, channels_last=plan.channels_last and len(shape) == 3)  # once for all rounds
            weights = checksums(laid)  # of a copy perhaps, which the model's own code may change too
            try:
                self._run_rounds(cases, laid, plan, contract)
            except ModelError:
                self._check_weights()  # which would be the cause
                _check_unchanged(weights, laid)
                raise
            self._check_weights()
            _check_unchanged(weights, laid)

    def _check_weights(self) -> None:
        """Raise ModelChangedError if the model is not the one whose contract was checked."""
        _check_unchanged(self._checked_weights, self.model)

    def _run_rounds(self, cases: list[_Case], model: Model, plan: Plan, contract: Contract) -> None:
        pending = deque(case for case in cases if not case.running.finished)
        # The one input's draws are worth watching, and of several how many are done.
        shows_draws, shows_inputs = (self._progress, False) if len(cases) == 1 else (False, self._progress)
        with ProgressBar("inputs", len(cases), enabled=shows_inputs) as inputs:
            while pending:
                chosen = _next_round(pending, plan)
                requests = [case.request(self._key, self._naming) for case in chosen]
                with (
                    self._random_state(requests[0].stream),
                    ProgressBar("draws", sum(request.n for request in requests), enabled=shows_draws) as draws,
                ):

                    def on_draws(number: int, draws: ProgressBar = draws) -> None:
                        draws.advance(number)
                        if self._on_draws is not None:
                            self._on_draws(number)
                        inputs.advance(0)  # lets it appear before the first input is done

                    votes = count_votes_together(
                        model,
                        requests,
                        num_classes=contract.num_classes,
                        plan=plan,
                        device=self.device,
                        on_draws=on_draws,
                        again=self._reclassification(requests, contract.spread),
                    )
                for case, counted in zip(chosen, votes, strict=True):
                    case.running.give(counted)
                unfinished = [case for case in chosen if not case.running.finished]
                pending.extendleft(reversed(unfinished))
                inputs.advance(len(chosen) - len(unfinished))

    def _random_state(self, stream: Stream) -> AbstractContextManager[None]:
        """The caller's random state is restored afterwards; a model that is random on purpose has one of its own.

        It follows from the stream: processes that start alike would else draw the same randomness for several inputs.
        """
        return preserved_random_state(stream.model_seed if self._allow_random else None)

    def _reclassification(self, requests: Sequence[Request], spread: float) -> Reclassification:
        """The samples of these requests that are classified again alone."""
        samples = []
        for request in requests:
            size = sample_size(request.n, first=request.stream.stage == 0, allow_random=self._allow_random)
            samples.append(request.stream.sample(request.n, size))
        return Reclassification(samples, spread, allow_random=self._allow_random)

    def _result(self, case: _Case, conclude: Callable[..., Result], executed: str | None) -> Result:
        return conclude(
            case.noise,
            case.running.conclusion,
            alpha=case.procedure.alpha,
            sigma=self.sigma,
            noise=case.noise.name,
            procedure=describe(case.procedure),
            stages=tuple(case.running.stages),
            key=self.key,
            input_id=case.input_id,
            executed=executed,
        )

    def _noise_for(self, x: npt.NDArray[np.float32]) -> Noise:
        if isinstance(self._noise, Noise):
            noise = self._noise
        elif self._noise == "gaussian":
            noise = GaussianNoise(self.sigma)
        else:
            noise = GridGaussianNoise(self.sigma)
        try:
            noise.centre(x)
        except InputError:
            if self._noise == "auto" and not self._secure:
                return GaussianNoise(self.sigma)
            raise
        return noise

    def _check_model(self, noise: Noise, x: npt.NDArray[np.float32]) -> Contract:
        """Check the model's contract once per input shape and state of its weights, on noise that no procedure sees."""
        weights = checksums(self.model)
        if weights != self._checked_weights:
            self._checked_weights = weights
            self._checked.clear()
        if x.shape not in self._checked:
            # First as it is, in small batches: whoever measures which way to run it is fastest takes for granted that
            # it runs at all. Then as it will be run, in batches of the size that will be counted.
            with listening(self._show_life):
                try:
                    self._check_fit(noise, x)
                    size = self._execution.plan_for(x.shape).batch_size
                    self._checked[x.shape] = self._check_executed(noise, x, size)
                except ModelError:
                    self._check_weights()  # whose change would be the cause
                    raise
        return self._checked[x.shape]

    def _show_life(self) -> None:
        """Report a forward pass that counts no draws, so that a timeout does not take it for a hang."""
        if self._on_draws is not None:
            self._on_draws(0)

    def _check_executed(self, noise: Noise, x: npt.NDArray[np.float32], size: int) -> Contract:
        """Check the contract of what is executed, in batches of `size`, or of as many rows as memory has room for."""
        try:
            return check_contract(
                self._execution.executed(x.shape),
                self._probes(noise, x),
                num_classes=self.num_classes,
                allow_random=self._allow_random,
                batch_size=size,
            )
        except Exception as error:
            if not is_out_of_memory(error) or size == 1:
                raise
        return self._check_executed(noise, x, size // 2)

    def _check_fit(self, noise: Noise, x: npt.NDArray[np.float32]) -> None:
        """Check the contract of the model as it is, in small batches."""
        check_contract(
            self.model, self._probes(noise, x), num_classes=self.num_classes, allow_random=self._allow_random
        )

    def _probes(self, noise: Noise, x: npt.NDArray[np.float32]) -> torch.Tensor:
        """Noisy samples [8, *D] that no procedure sees."""
        rows = np.empty((_PROBES, x.size), np.float32)
        noise.fill(noise.centre(x), Stream(self._key, "probe", _PROBE_STAGE), 0, rows)
        return torch.from_numpy(rows).view(_PROBES, *x.shape).to(self.device)

    def check_fit(self, x: Any) -> None:
        """Check that the model takes inputs like `x` and keeps its contract in small batches, before it is tuned."""
        one = as_float32(x)
        check_values(one, self.input_range)
        with self._random_state(Stream(self._key, "probe", _PROBE_STAGE)):
            self._check_fit(self._noise_for(one), one)

    def check(self, x: Any) -> int:
        """Check the model's contract on noisy samples of one input; return the number of classes."""
        one = as_float32(x)
        check_values(one, self.input_range)
        with self._random_state(Stream(self._key, "probe", _PROBE_STAGE)):
            return self._check_model(self._noise_for(one), one).num_classes

    def seconds_per_draw(self, x: Any, draws: int = 256) -> float:
        """How long a draw takes, on noisy copies of one input that no procedure sees."""
        one = as_float32(x)
        num_classes = self.check(one)
        request = Request(self._noise_for(one), one, draws, Stream(self._key, "timing", _PROBE_STAGE))
        started = time.perf_counter()
        count_votes_together(
            self._execution.executed(one.shape),
            [request],
            num_classes=num_classes,
            plan=self.plan_for(one.shape),
            device=self.device,
        )
        return (time.perf_counter() - started) / draws

    def plan_for(self, shape: tuple[int, ...]) -> Plan:
        """How forward passes on inputs of this shape are run: as given, as remembered, or as measured now."""
        return self._execution.plan_for(shape)

    def tune(self, shape: tuple[int, ...], on_trial: OnTrial = lambda _: None) -> Plan:
        """Measure every way to run the forward passes on inputs of this shape, take the fastest and remember it.

        `on_trial` is told of each in the end.
        """
        plan = self._execution.tune(shape, on_trial)
        self._checked.pop(shape, None)
        return plan

    def tunable(self, shape: tuple[int, ...]) -> bool:
        """True where it is not known yet how this model is run fastest, and measuring may find out."""
        return self._execution.tunable(shape)

    def executed(self, shape: tuple[int, ...]) -> str | None:
        """What answers in the base classifier's place: backend, precision and a hash; None for the network itself."""
        content = self._execution.content_hash(shape)
        return None if content is None else f"{self.plan_for(shape).execution}, {content}"

"""The smoothed classifier g: drives a procedure against a base classifier f under noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smoothcert.checks import check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError, InputError
from smoothcert.inputs import Range, check_values, content_id, split_batch
from smoothcert.models.contract import Model, check_contract
from smoothcert.noise import NOISES, GaussianNoise, GridGaussianNoise, Noise
from smoothcert.progress import ProgressBar
from smoothcert.records import Bounds, Certificate, Decision, Prediction, Votes
from smoothcert.sampling import Plan, count_votes, pick_device, preserved_random_state, worker_count
from smoothcert.stats.procedures import FixedN, Predict, Procedure, describe, run
from smoothcert.streams import Stream, make_key
from smoothcert.tuning import tuned_plan

Result = TypeVar("Result", Certificate, Prediction)
_PROBE_STAGE = -1
_PROBES = 8


class Smoothed:
    """The classifier that answers with the class `model` chooses most often on noisy copies of the input.

    Args:
        model: any callable from a batch [B, *D] to scores [B, K] or integer labels [B]; a module is put into eval
            mode while it is used and moved to `device`. Normalisation belongs inside it (see `Normalize`). A module
            on the CPU is called from several threads at once.
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
        secure: for evidence against an adversary who may have chosen the model: only grid noise, no seed.
        allow_random: accept a model whose answers are random (fresh for every row); Theorem 1 covers it.
        progress: show a progress bar for what takes longer than two seconds; by default on a terminal.
    """

    def __init__(
        self,
        model: Model,
        sigma: float,
        num_classes: int | None = None,
        *,
        noise: str | Noise = "auto",
        input_shape: Sequence[int] | None = None,
        input_range: Range | None = (0.0, 1.0),
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        seed: int | None = None,
        secure: bool = False,
        allow_random: bool = False,
        progress: bool | None = None,
    ) -> None:
        if not callable(model):
            raise ConfigError(f"Expected `model` to be callable on a batch, got {type(model).__name__}.")
        self.sigma = check_sigma(sigma)
        if num_classes is not None:
            check_count("num_classes", num_classes, least=2)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        if isinstance(noise, Noise):
            if noise.sigma != self.sigma:
                raise ConfigError(f"Expected `noise` with sigma={self.sigma:g}, got {noise.sigma:g}.")
        else:
            check_choice("noise", noise, ["auto", *NOISES])
        if secure and seed is not None:
            raise ConfigError("A secure run draws its key from the operating system: drop `seed` or `secure`.")
        if secure and noise not in ("auto", "grid"):
            raise ConfigError("A secure run needs grid noise: float noise can be seen through by a hostile model.")
        self.device = pick_device(model, device)
        self.model = model.to(self.device) if isinstance(model, nn.Module) else model
        self.num_classes = num_classes
        self.input_shape = None if input_shape is None else tuple(input_shape)
        self.input_range = input_range
        self._noise, self._batch_size = noise, batch_size
        self._secure, self._allow_random, self._progress = secure, allow_random, progress
        self._key = make_key(seed)
        self._checked: dict[tuple[int, ...], int] = {}

    def __repr__(self) -> str:
        noise = self._noise if isinstance(self._noise, str) else self._noise.name
        return f"Smoothed({type(self.model).__name__}, sigma={self.sigma:g}, noise={noise!r}, device='{self.device}')"

    @property
    def key(self) -> str:
        """The key that all noise derives from, in hexadecimal."""
        return self._key.hex()

    def certify(
        self, x: Any, procedure: Procedure[Bounds] | None = None, *, index: int | None = None
    ) -> Certificate | list[Certificate]:
        """Certify one input, or each of a batch: a class and the L2 radius within which it cannot change.

        With probability at least 1 − alpha over the noise, each certificate's claim is true (Cohen et al. 2019,
        Proposition 2, for the default `FixedN()`, which is the paper's CERTIFY).

        `index` names the input in the noise stream, such as its place in a test set, and of a batch the first one;
        by default the name is derived from the content.
        """
        procedure = procedure or FixedN()

        def conclude(theorem: Noise, bounds: Bounds, **common: Any) -> Certificate:
            radius = theorem.radius(bounds)
            label = bounds.label if radius > 0 else None
            return Certificate(label=label, radius=radius, bounds=bounds, **common)

        return self._answer(x, procedure, conclude, index)

    def predict(
        self, x: Any, procedure: Procedure[Decision] | None = None, *, index: int | None = None
    ) -> Prediction | list[Prediction]:
        """The smoothed classifier's class for one input, or for each of a batch; None where it is too close to call.

        With probability at least 1 − alpha over the noise, each prediction is the smoothed classifier's class or
        None (Cohen et al. 2019, Proposition 1, for the default `Predict()`). `index` is as for `certify`.
        """
        procedure = procedure or Predict()

        def conclude(_: Noise, decision: Decision, **common: Any) -> Prediction:
            return Prediction(label=decision.label, p_value=decision.p_value, **common)

        return self._answer(x, procedure, conclude, index)

    def _answer(
        self, x: Any, procedure: Procedure[Any], conclude: Callable[..., Result], index: int | None
    ) -> Result | list[Result]:
        inputs, batched = split_batch(x, self.input_shape)
        if index is not None:
            check_count("index", index, least=0)
        for one in inputs:  # all are looked at before the first forward pass
            check_values(one, self.input_range)
            self._noise_for(one)
        names = [content_id(one) if index is None else f"index:{index + i}" for i, one in enumerate(inputs)]
        results = [self._answer_one(*pair, procedure, conclude) for pair in zip(inputs, names, strict=True)]
        return results if batched else results[0]

    def _answer_one(
        self, x: npt.NDArray[np.float32], input_id: str, procedure: Procedure[Any], conclude: Callable[..., Result]
    ) -> Result:
        noise = self._noise_for(x)
        with preserved_random_state(enabled=not self._allow_random):
            num_classes = self._check_model(noise, x)
            plan = self._plan(x.shape)

            def draw(stage: int, n: int) -> Votes:
                with ProgressBar("draws", n, enabled=self._progress) as bar:
                    return count_votes(
                        self.model,
                        noise,
                        x,
                        n,
                        num_classes=num_classes,
                        stream=Stream(self._key, input_id, stage),
                        plan=plan,
                        device=self.device,
                        on_draws=bar.advance,
                    )

            conclusion, stages = run(procedure, draw)
        return conclude(
            noise,
            conclusion,
            alpha=procedure.alpha,
            sigma=self.sigma,
            noise=noise.name,
            procedure=describe(procedure),
            stages=stages,
            key=self.key,
            input_id=input_id,
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

    def _check_model(self, noise: Noise, x: npt.NDArray[np.float32]) -> int:
        """Check the model's contract once per input shape, on noise that no procedure sees."""
        if x.shape not in self._checked:
            rows = np.empty((_PROBES, x.size), np.float32)
            noise.fill(noise.centre(x), Stream(self._key, "probe", _PROBE_STAGE), 0, rows)
            probes = torch.from_numpy(rows).view(_PROBES, *x.shape).to(self.device)
            self._checked[x.shape] = check_contract(
                self.model, probes, num_classes=self.num_classes, allow_random=self._allow_random
            )
        return self._checked[x.shape]

    def _plan(self, shape: tuple[int, ...]) -> Plan:
        if self._batch_size is not None:
            return Plan(self._batch_size, workers=worker_count(self.model, self.device))
        return tuned_plan(self.model, shape, self.device)

"""A first look at a model on data: is it the right model, fed as it was trained, and what would certifying it take?"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smoothcert.data.dataset import Dataset
from smoothcert.execution import calibration_inputs
from smoothcert.inputs import as_float32
from smoothcert.models.agreement import is_labels
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import evaluating
from smoothcert.models.layers import Normalize
from smoothcert.progress import ProgressBar
from smoothcert.records import Decision, Votes
from smoothcert.replay import replay
from smoothcert.smoothed import Smoothed
from smoothcert.stats.accuracy import floor_percent
from smoothcert.stats.bounds import clopper_pearson_lower, clopper_pearson_upper
from smoothcert.stats.planned import Planned
from smoothcert.stats.procedures import FixedN
from smoothcert.streams import make_key

_CHUNK = 64
_MOST_COPIES = 100
_TIMED_SECONDS = 1.0
_INTERVAL = 0.05  # the reported intervals hold with probability 1 − this
# Scalings that networks are commonly trained on, each as (mean, std) of the layer that would bring it about.
_SCALINGS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "[-1, 1]": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "0 to 255": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
_GREY_SCALINGS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "[-1, 1]": ((0.5,), (0.5,)),
    "MNIST's": ((0.1307,), (0.3081,)),
    "0 to 255": ((0.0,), (1 / 255,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A procedure that draws and concludes nothing."""

    n: int
    alpha: float = 0.001

    def __call__(self) -> Generator[int, Votes, Decision]:
        yield self.n
        return Decision(None, 1.0, "looked")


@dataclass(frozen=True, slots=True)
class Share:
    """How many of so many, with the exact interval that covers the true share with probability 95 %."""

    hits: int
    of: int

    @property
    def value(self) -> float:
        """The share itself."""
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's two-sided interval."""
        half = _INTERVAL / 2
        low, high = (bound(self.hits, self.of, half) for bound in (clopper_pearson_lower, clopper_pearson_upper))
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What certifying so many inputs by a procedure would take on this machine."""

    procedure: str
    inputs: int
    draws_per_input: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found. Shares are of inputs, or of noisy copies; none of it is certified."""

    clean: Share | None
    noisy: Share | None
    copies: int
    throughput: float
    estimates: tuple[Estimate, ...]
    executed: str | None = None
    noisy_in_fp32: Share | None = None
    better_scaling: tuple[str, Share, tuple[float, ...], tuple[float, ...]] | None = None
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """For machines: plain values under plain names."""

        def share(one: Share | None) -> dict[str, Any] | None:
            return None if one is None else {"value": one.value, "interval": list(one.interval), "of": one.of}

        return {
            "clean_accuracy": share(self.clean),
            "noisy_accuracy": share(self.noisy),
            "noisy_accuracy_in_fp32": share(self.noisy_in_fp32),
            "executed": self.executed,
            "copies_per_input": self.copies,
            "noisy_copies_per_second": self.throughput,
            "estimates": [
                {
                    "procedure": e.procedure,
                    "inputs": e.inputs,
                    "draws_per_input": e.draws_per_input,
                    "seconds": e.seconds,
                }
                for e in self.estimates
            ],
            "warnings": list(self.warnings),
        }


def inspect_model(
    classifier: Classifier,
    data: Dataset,
    indices: Sequence[int],
    *,
    sigma: float,
    alpha: float = 0.001,
    n_max: int = 100_000,
    seconds: float = 20.0,
    device: str | None = None,
    batch_size: int | None = None,
    plan: str = "auto",
    precision: str = "fp32",
    total: int | None = None,
) -> Inspection:
    """Look at `classifier` on the inputs of `data` under `indices`, in about `seconds` of noisy copies.

    `total` is the number of inputs that the estimate of a certification is made for, by default all of the data. In a
    `precision` other than fp32, accuracy under noise is that of the network in this precision, and that in fp32 on the
    same noise is told beside it.
    """
    inputs = data.batch(indices)
    truths = None if data.labels is None else data.labels[np.asarray(indices)]
    calibration = calibration_inputs(data) if precision == "int8" else None
    common: dict[str, Any] = {"device": device, "batch_size": batch_size, "key": make_key(None).hex()}
    smoothed = Smoothed(classifier, sigma, plan=plan, precision=precision, calibration=calibration, **common)
    throughput = _throughput(smoothed, inputs[0])
    copies = max(1, min(_MOST_COPIES, int(seconds * throughput / len(inputs))))
    votes = _votes(smoothed, inputs, copies)
    clean = better = noisy = in_fp32 = None
    if truths is not None:
        network = smoothed.model
        clean = _accuracy(classify(network, inputs, smoothed.device), truths)
        better = _better_scaling(smoothed, inputs, truths, clean)
        noisy = _noisy_accuracy(votes, truths, copies)
        if precision != "fp32":
            in_fp32 = _noisy_accuracy(_votes(Smoothed(classifier, sigma, **common), inputs, copies), truths, copies)
    count = len(data) if total is None else total
    return Inspection(
        clean=clean,
        noisy=noisy,
        copies=copies,
        throughput=throughput,
        estimates=_estimates(votes, sigma, alpha, n_max, throughput, count),
        executed=smoothed.executed(inputs.shape[1:]),
        noisy_in_fp32=in_fp32,
        better_scaling=better,
        warnings=tuple(_warnings(classifier, data, votes.shape[1], clean, better, sigma)),
    )


def classify(network: Callable[..., Any], inputs: npt.NDArray[Any], device: torch.device) -> npt.NDArray[np.int64]:
    """The class that a network gives each of `inputs` [N, *D] without noise; −1 where its scores are NaN."""
    answers = []
    with torch.inference_mode(), evaluating(network), ProgressBar("clean inputs", len(inputs)) as bar:
        for start in range(0, len(inputs), _CHUNK):
            batch = torch.from_numpy(as_float32(inputs[start : start + _CHUNK])).to(device)
            output = network(batch)
            if is_labels(output):
                labels = output.long()
            else:
                labels = output.argmax(dim=1).masked_fill(output.isnan().any(dim=1), -1)
            answers.append(labels.cpu().numpy())
            bar.advance(len(batch))
    return np.concatenate(answers)


def _accuracy(labels: npt.NDArray[np.int64], truths: npt.NDArray[np.int64]) -> Share:
    return Share(int((labels == truths).sum()), len(truths))


def _noisy_accuracy(votes: npt.NDArray[np.int64], truths: npt.NDArray[np.int64], copies: int) -> Share:
    known = truths < votes.shape[1]  # a class that the model does not have gets no votes
    return Share(int(votes[known, truths[known]].sum()), copies * len(truths))


def _throughput(smoothed: Smoothed, x: npt.NDArray[Any]) -> float:
    """Noisy copies per second, after a first call in which the model is checked and the batch size found."""
    smoothed.predict(x, _Look(n=1), index=0)
    n = 16
    while True:
        started = time.perf_counter()
        smoothed.predict(x, _Look(n=n), index=0)
        elapsed = time.perf_counter() - started
        if elapsed >= _TIMED_SECONDS or n >= 2**20:
            return n / elapsed
        n *= 2 if elapsed > _TIMED_SECONDS / 8 else 4


def _votes(smoothed: Smoothed, inputs: npt.NDArray[Any], copies: int) -> npt.NDArray[np.int64]:
    """The votes [N, K] of a few noisy copies of each input."""
    rows = smoothed.predict(inputs, _Look(n=copies), index=0)
    assert isinstance(rows, list)  # noqa: S101 - a batch was given
    return np.array([row.stages[0].counts for row in rows])


def _better_scaling(
    smoothed: Smoothed, inputs: npt.NDArray[Any], truths: npt.NDArray[np.int64], found: Share
) -> tuple[str, Share, tuple[float, ...], tuple[float, ...]] | None:
    """A common scaling of pixels at which the model is clearly more accurate than as it is: it was trained on that."""
    scalings = {1: _GREY_SCALINGS, 3: _SCALINGS}.get(inputs.shape[1] if inputs.ndim == 4 else 0, {})
    best = None
    for name, (mean, std) in scalings.items():
        scaled = nn.Sequential(Normalize(mean, std).to(smoothed.device), smoothed.model)
        share = _accuracy(classify(scaled, inputs, smoothed.device), truths)
        if share.interval[0] > found.interval[1] and (best is None or share.hits > best[1].hits):
            best = (name, share, mean, std)
    return best


def _estimates(
    votes: npt.NDArray[np.int64], sigma: float, alpha: float, n_max: int, throughput: float, inputs: int
) -> tuple[Estimate, ...]:
    """Draws and time by the default procedure, replayed on the shares of votes seen here, and by the paper's."""
    # A class with no vote among a hundred may have a thousandth of them: half a vote is left to the others.
    shares = np.rint(1000 * votes).astype(np.int64)
    shares[np.arange(len(votes)), np.argsort(votes, axis=1)[:, -2]] += 500
    procedures = {"default": Planned(alpha=alpha, n_max=n_max), "paper": FixedN(alpha=alpha, n=n_max)}
    estimates = []
    for name, procedure in procedures.items():
        rows = replay(shares, lambda _, procedure=procedure: procedure, sigma=sigma)
        draws = sum(row.draws for row in rows) / len(rows)
        estimates.append(Estimate(name, inputs, draws, draws * inputs / throughput))
    return tuple(estimates)


def _warnings(
    classifier: Classifier,
    data: Dataset,
    classes: int,
    clean: Share | None,
    better: tuple[str, Share, tuple[float, ...], tuple[float, ...]] | None,
    sigma: float,
) -> list[str]:
    found = []
    if better is not None and clean is not None:
        name, share, mean, std = better
        flags = f"--mean {' '.join(f'{m:.6g}' for m in mean)} --std {' '.join(f'{s:.6g}' for s in std)}"
        better_share, given_share = floor_percent(share.value, 0), floor_percent(clean.value, 0)
        found.append(
            f"On pixels scaled to {name} range the model is right on {better_share}% instead of {given_share}%: "
            f"it was probably trained on those. Add {flags}"
        )
    if data.labels is not None and int(data.labels.max(initial=0)) >= classes:
        found.append(f"The data has labels up to {data.labels.max()}, the model {classes} classes only.")
    elif data.classes is not None and len(data.classes) != classes:
        found.append(f"The data names {len(data.classes)} classes, the model has {classes}.")
    elif data.classes is not None and classifier.classes is not None:
        found += _differing_names(classifier.classes, data.classes)
    if clean is not None and classes > 1 and clean.interval[1] < 2 / classes and better is None:
        found.append("The model is hardly better than guessing: are labels, classes and normalisation those it knows?")
    if classifier.sigma is not None and classifier.sigma != sigma:
        found.append(f"The model was trained with noise σ = {classifier.sigma:g}, not {sigma:g}.")
    return found


def _differing_names(of_model: Sequence[str], of_data: Sequence[str]) -> list[str]:
    """Class numbers that mean different things to model and data, seen from names that both have."""
    plain = [name.lower().strip() for name in of_model]
    for number, name in enumerate(of_data):
        name = name.lower().strip()
        if name in plain and plain.index(name) != number:
            return [f"Class {number} of the data, {name!r}, is number {plain.index(name)} of the model."]
    return []

"""Procedures on recorded votes: what they would have concluded, and with how many draws, without any network."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_choice, check_count
from smoothcert.data.names import printable
from smoothcert.data.numpy_files import read_numpy
from smoothcert.errors import InputError
from smoothcert.files import Limits, read_at_most, zip_fault
from smoothcert.noise import GaussianNoise
from smoothcert.records import Bounds, Votes
from smoothcert.stats.procedures import Procedure, run

Counts = npt.NDArray[np.int64]

_UNPACKED = Limits(ratio=10)  # torch.save compresses no tensors


class Draw(Protocol):
    """Answers a procedure's request: the votes of n draws for a stage."""

    def __call__(self, stage: int, n: int) -> Votes:
        """Draw n times."""
        ...


def multinomial(row: Counts, rng: np.random.Generator) -> Draw:
    """Draws in the proportions of recorded votes, as many as one likes: a classifier with just these probabilities."""
    shares = row / row.sum()

    def draw(_: int, n: int) -> Votes:
        return Votes.of(rng.multinomial(n, shares))

    return draw


def without_replacement(row: Counts, rng: np.random.Generator) -> Draw:
    """The recorded votes themselves in random order, each of them once over all stages."""
    left = row.copy()

    def draw(stage: int, n: int) -> Votes:
        if n > left.sum():
            raise InputError(
                f"Stage {stage} asks for {n:,} more votes, but only {left.sum():,} of {row.sum():,} recorded ones are "
                "left. Lower n_max, or draw by multinomial."
            )
        taken = rng.multivariate_hypergeometric(left, n, method="marginals")
        left[:] -= taken
        return Votes.of(taken)

    return draw


METHODS: dict[str, Callable[[Counts, np.random.Generator], Draw]] = {
    "multinomial": multinomial,
    "without-replacement": without_replacement,
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a procedure concluded on one row of recorded votes; radius 0.0 for predictions and abstentions."""

    label: int | None
    radius: float
    draws: int
    reason: str


def replay(
    votes: Counts,
    procedure_for: Callable[[int], Procedure[Any]],
    *,
    sigma: float,
    seed: int = 0,
    method: str = "multinomial",
    indices: Sequence[int] | None = None,
    on_row: Callable[[], None] | None = None,
) -> list[Replayed]:
    """Run `procedure_for(i)` on row i of recorded votes [N, K], for every row or those in `indices`.

    A row's draws depend on the seed and its number alone, not on which other rows are replayed.
    """
    check_choice("method", method, METHODS)
    check_count("seed", seed, least=0)
    noise = GaussianNoise(sigma)
    results = []
    for i in range(len(votes)) if indices is None else indices:
        draw = METHODS[method](votes[i], np.random.default_rng([seed, i]))
        conclusion, stages = run(procedure_for(i), draw)
        radius = noise.radius(conclusion) if isinstance(conclusion, Bounds) else 0.0
        claimed = conclusion.label is not None and (radius > 0 or not isinstance(conclusion, Bounds))
        draws = sum(stage.n for stage in stages)
        results.append(Replayed(conclusion.label if claimed else None, radius, draws, conclusion.reason))
        if on_row is not None:
            on_row()
    return results


def load_votes(path: Path, array: str | None = None, *, sigma: float | None = None) -> Counts:
    """Recorded votes [N, K] from an .npy, .npz or .pth file, or the last stages of certificates in a .jsonl file."""
    if path.suffix == ".jsonl":
        counts = _json_votes(path, sigma)
    elif path.suffix == ".pth":
        counts = _tensor_votes(path)
    else:
        counts = _load_array(path, array)
    if counts.ndim != 2 or not np.issubdtype(counts.dtype, np.integer) or counts.size == 0:
        raise InputError(f"Expected whole-number votes [inputs, classes] in {path}, got {counts.dtype} {counts.shape}.")
    if (counts < 0).any() or not (counts.sum(axis=1) > 0).all() or counts.shape[1] < 2:
        raise InputError(f"Expected at least one vote per row, none below 0, for two classes or more, in {path}.")
    return counts.astype(np.int64)


def load_labels(path: Path) -> Counts:
    """True classes [N] from .npy, a text file with one number per line, or a CIFAR-10 batch in the binary version."""
    try:
        if path.suffix == ".bin":
            content = np.fromfile(path, np.uint8)
            if content.size == 0 or content.size % 3073:
                raise InputError(f"Expected rows of 3,073 bytes in {path}, got {content.size:,} bytes in all.")
            return content.reshape(-1, 3073)[:, 0].astype(np.int64)
        labels = (
            _load_array(path, None) if path.suffix in (".npy", ".npz") else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Cannot read labels from {path}: {error}.") from error
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"Expected whole-number labels [N] in {path}, got {labels.dtype} {labels.shape}.")
    return labels.astype(np.int64)


def _load_array(path: Path, array: str | None) -> npt.NDArray[Any]:
    content = read_numpy(path)
    if isinstance(content, np.ndarray):
        return content
    if array is None and len(content) == 1:
        [array] = content
    if array not in content:
        raise InputError(f"Expected one of the arrays of {path}: {', '.join(content)}; got {array!r}.")
    return content[array]


def _tensor_votes(path: Path) -> npt.NDArray[Any]:
    """The tensor in a file of torch.save; as whole numbers where floats hold nothing else. Nothing is executed."""
    import torch

    content = read_at_most(path, None, InputError)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            fault = zip_fault(archive, len(content), _UNPACKED)
        if fault is not None:
            raise ValueError(fault)
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        votes = tensor.numpy()
    except Exception as error:  # torch and zipfile raise many kinds here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"Expected a tensor of votes in {path}, cannot read one: {printable(reason)[:200]}."
        ) from error
    if not np.issubdtype(votes.dtype, np.floating):
        return votes
    exact = 2 ** (np.finfo(votes.dtype).nmant + 1)  # below this, floats hold every whole number
    if not (np.isfinite(votes).all() and (votes == np.round(votes)).all() and (np.abs(votes) < exact).all()):
        raise InputError(f"Expected whole-number votes below {exact:,} in {path}, got other {votes.dtype} numbers.")
    return votes.astype(np.int64)


def _json_votes(path: Path, sigma: float | None) -> npt.NDArray[Any]:
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        levels = sorted({float(line["sigma"]) for line in lines if "sigma" in line})
        lasts = [line["stages"][-1] for line in lines if sigma is None or line.get("sigma", sigma) == sigma]
        unanswered = sum(last.get("invalid", 0) for last in lasts)
        counts = np.array([last["counts"] for last in lasts])
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise InputError(f"Expected one certificate per line with its stages in {path}: {error!r}.") from error
    found = ", ".join(f"{level:g}" for level in levels)
    if not lasts or (sigma is None and len(levels) > 1):
        wanted = "one sigma" if sigma is None else f"votes at sigma {sigma:g}"
        raise InputError(f"Expected {wanted} in {path}, got certificates at {found or 'none'}.")
    if unanswered:  # left out, they would raise every share
        raise InputError(f"Expected every draw in {path} to have an answer, got {unanswered:,} without one.")
    return counts

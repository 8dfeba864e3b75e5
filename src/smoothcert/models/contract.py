"""The model contract, checked on noisy samples before the first draw is counted.

A base classifier takes a batch of inputs [B, *D] and returns scores [B, K] or integer labels [B]. Each row's
answer must depend on that row alone: the theorem is about f(x + ε), and draws that influence each other are
not independent. It must also be repeatable, unless randomness is declared.

A check by examples cannot prove this. It compares the answers to a row alone and in different company, at the batch
size that will be used. `reclassification` goes on checking, for every input, while votes are counted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smoothcert.checks import check_count
from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.models.agreement import differing, is_labels, score_spread, voted
from smoothcert.stats.shares import same_shares_p_value

Model = Callable[[Tensor], Any]

SHARES_LEVEL = 1e-6
"""Level of the tests of random models: a sound one fails by chance once in a million times."""
_SMALL_BATCH = 24
_MOST_SUBJECTS = 16
_RANDOM_ROWS = 256
_RANDOM_ALONE = 64
_REPEATS = 3

INFLUENCE = (
    "The samples in a batch influence each other (batch statistics, dynamic quantisation, …): draws would not be "
    "independent and no certificate would be valid. Use fixed statistics."
)


_listener: ContextVar[Callable[[], None]] = ContextVar("listener", default=lambda: None)


@contextmanager
def listening(on_call: Callable[[], None]) -> Iterator[None]:
    """Have `on_call` called before every call of a model in here: a slow model can then be told from one that hangs."""
    token = _listener.set(on_call)
    try:
        yield
    finally:
        _listener.reset(token)


class Contract(NamedTuple):
    """What the check of a model's contract found: the number of classes, and how far apart scores typically lie."""

    num_classes: int
    spread: float


_modes: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = weakref.WeakKeyDictionary()
_modes_lock = threading.Lock()


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put a module and all its parts into eval mode, and each part back into the mode that it had.

    Several threads may do so with the same parts: the last one to leave restores their modes. ModelChangedError if
    somebody else changed a part's mode meanwhile.
    """
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    with _modes_lock:
        for part in parts:
            users, mode = _modes.get(part, (0, part.training))
            _modes[part] = users + 1, mode
        if isinstance(model, nn.Module):
            model.eval()
        evaluated = [part.training for part in parts]  # a part may insist on training
    try:
        yield
        if [part.training for part in parts] != evaluated:
            raise ModelChangedError(
                "The model was put into another mode while it was being used: its answers are not those of one "
                "classifier. Do not train it at the same time."
            )
    finally:
        with _modes_lock:
            for part in parts:
                users, mode = _modes.pop(part)
                if users > 1:
                    _modes[part] = users - 1, mode
                else:
                    part.training = mode


def is_out_of_memory(error: BaseException) -> bool:
    """True for the ways in which Python and torch say that memory is short: smaller batches may help."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _call(model: Model, batch: Tensor) -> Tensor:
    shape = tuple(batch.shape)
    _listener.get()()
    try:
        output = model(batch.clone())
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            f"The model failed on a batch of shape {shape} ({type(error).__name__}: {error}). It must accept a batch "
            "of any length; if the input itself was meant as a batch or has unusual dimensions, declare input_shape."
        ) from error
    if not isinstance(output, Tensor):
        raise ModelError(
            f"Expected the model to return a tensor of scores [B, K] or labels [B], got {type(output).__name__}. "
            "Wrap it, for instance as lambda batch: model(batch).logits."
        )
    if output.ndim == 0 or len(output) != len(batch):
        raise ModelError(f"Expected one answer per input, {len(batch)} in all, got shape {tuple(output.shape)}.")
    scores = output.ndim == 2 and output.is_floating_point()
    if not scores and not is_labels(output):
        raise ModelError(
            f"Expected scores [B, K] or integer labels [B], got {output.dtype} of shape {tuple(output.shape)}."
        )
    return output


def _classes(output: Tensor, num_classes: int | None) -> int:
    if is_labels(output):
        if num_classes is None:
            raise ModelError("The model returns labels, so the number of classes must be given: num_classes=…")
        if int(output.max()) >= num_classes:
            raise ModelError(f"Expected labels below num_classes={num_classes}, got {int(output.max())}.")
        return num_classes
    if num_classes is not None and output.shape[1] != num_classes:
        raise ModelError(f"Expected scores for num_classes={num_classes}, got {output.shape[1]} columns.")
    if output.shape[1] < 2:
        raise ModelError(
            "Expected scores for at least two classes, got one column. For a single logit, return both: "
            "torch.stack([-logit, logit], dim=1)."
        )
    return int(output.shape[1])


def answers_alone(model: Model, rows: Tensor) -> Tensor:
    """The answers to some rows [N, *D], each classified in a batch of its own.

    A model that runs batches of one fixed size fills them up with zeros; it gets all rows in one such batch, since
    each of them would cost as much as a whole batch.
    """
    parts = model.modules() if isinstance(model, nn.Module) else ()
    if any(getattr(part, "fixed_batch_size", None) for part in parts):
        return _call(model, rows)
    return torch.cat([_call(model, rows[number : number + 1]) for number in range(len(rows))])


def _companions(subjects: Tensor) -> dict[str, Tensor]:
    """Rows to put beside the subjects [N, *D], chosen so that whatever is computed over the batch changes."""
    generator = torch.Generator().manual_seed(0)
    strangers = torch.rand(subjects.shape, generator=generator).to(subjects.device)
    return {
        "shifted up": subjects * 10 + 3,
        "shifted down": subjects * -10 - 3,
        "other inputs": strangers,
        "in another order": subjects.flip(0),
    }


def _in_company(model: Model, subjects: Tensor, companions: Tensor, batch_size: int) -> Tensor:
    """The answers to the subjects, mixed with companions in batches of at most `batch_size` rows."""
    share = max(1, min(len(subjects), batch_size // 2))
    answers = []
    for start in range(0, len(subjects), share):
        group = subjects[start : start + share]
        beside = companions.repeat(-(-batch_size // len(companions)), *[1] * (companions.ndim - 1))
        beside = beside[: max(0, batch_size - len(group))]
        shuffle = torch.Generator().manual_seed(start)
        order = torch.randperm(len(group) + len(beside), generator=shuffle).to(group.device)
        answer = _call(model, torch.cat([group, beside])[order])
        answers.append(answer[order.argsort()[: len(group)]])
    return torch.cat(answers)


def _check_random(model: Model, probes: Tensor, num_classes: int, batch_size: int) -> None:
    """Compare the vote shares of a random model alone and in company, and between batches.

    Randomness that is shared by the rows of a batch makes their votes rise and fall together: between repetitions of
    the same batch, shares then differ by more than independent votes would.
    """

    def shares(answers: Tensor) -> list[int]:
        labels = voted(answers).clamp(max=num_classes - 1)  # larger ones are refused when votes are counted
        return torch.bincount(labels.cpu() + 1, minlength=num_classes + 1).tolist()

    def repeated(rows: int) -> Tensor:
        return probes.repeat(-(-rows // len(probes)), *[1] * (probes.ndim - 1))[:rows]

    def in_batches(rows: Tensor) -> Tensor:
        return torch.cat([_call(model, batch) for batch in rows.split(batch_size)])

    alone = shares(answers_alone(model, repeated(_RANDOM_ALONE)))
    many = repeated(_RANDOM_ROWS)
    again = [shares(in_batches(many)) for _ in range(_REPEATS)]
    mixed = [shares(_in_company(model, many, beside, batch_size)) for beside in _companions(probes).values()]
    pairs = [(again[0], later) for later in again[1:]] + [(alone, other) for other in (*again, *mixed)]
    if min(same_shares_p_value(a, b) for a, b in pairs) < SHARES_LEVEL:
        raise ModelError(
            "The samples in a batch influence each other: this random model votes differently alone and in company, or "
            "draws its randomness once for a whole batch. It must be fresh for every row."
        )


def check_contract(
    model: Model,
    probes: Tensor,
    *,
    num_classes: int | None,
    allow_random: bool = False,
    batch_size: int = _SMALL_BATCH,
) -> Contract:
    """Check `model` on noisy samples `probes` [8, *D], in batches of up to `batch_size`.

    Raises ModelError when the output has the wrong form or number of classes, is NaN everywhere, differs
    between two calls, or changes with the other rows of the batch.
    """
    if num_classes is not None:
        check_count("num_classes", num_classes, least=2)
    with torch.inference_mode(), evaluating(model):
        together = _call(model, probes)
        classes = _classes(together, num_classes)
        if together.is_floating_point() and bool(together.isnan().any(dim=1).all()):
            raise ModelError("The model returns NaN for every probed input; it cannot be certified.")
        if allow_random:
            _check_random(model, probes, classes, batch_size)
            return Contract(classes, 0.0)
        # Inputs of another kind beside the noisy samples: where scores are near a tie, their spread is not typical.
        subjects = torch.cat([probes, _companions(probes)["other inputs"]])[:_MOST_SUBJECTS]
        alone = answers_alone(model, subjects)
        _classes(alone, num_classes)
        spread = 0.0 if is_labels(alone) else score_spread(alone)
        repeated = torch.cat([together, alone[: len(probes)]])
        seen = torch.cat([_call(model, probes), answers_alone(model, probes)])
        if differing(repeated, seen, spread).any():
            raise ModelError(
                "The model gives different answers to the same batch. Theorem 1 covers a random base classifier "
                "too; if the randomness is meant, and fresh for every row, declare allow_random=True."
            )
        for companions in _companions(subjects).values():
            if differing(alone, _in_company(model, subjects, companions, batch_size), spread).any():
                raise ModelError(INFLUENCE)
        if differing(alone, answers_alone(model, subjects), spread).any():
            raise ModelError(
                "The model's answer to an input depends on what it classified before (state carried between calls, a "
                "cache): draws would not be independent. Make it answer each batch by itself."
            )
    return Contract(classes, spread)

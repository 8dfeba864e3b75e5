"""The model contract, checked on a handful of noisy copies before the first draw is counted.

A base classifier takes a batch of inputs [B, *D] and returns scores [B, K] or integer labels [B]. Each row's
answer must depend on that row alone: the theorem is about f(x + ε), and draws that influence each other are
not independent. It must also be repeatable, unless randomness is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.checks import check_count
from smoothcert.errors import ModelError

Model = Callable[[Tensor], Any]

# Other batch sizes take other summation orders: float32 scores then differ by about 1e-6 of their spread, TF32
# ones by 1e-3; batch statistics and dynamic quantisation by 1e-2 and more.
_TOLERANCE = 3e-3


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put a module and all its parts into eval mode, and each part back into the mode that it had."""
    modes = [(part, part.training) for part in model.modules()] if isinstance(model, nn.Module) else []
    if isinstance(model, nn.Module):
        model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def is_labels(output: Tensor) -> bool:
    """True for a batch of class labels rather than of scores."""
    return output.ndim == 1 and not output.is_floating_point() and not output.is_complex()


def _call(model: Model, batch: Tensor) -> Tensor:
    shape = tuple(batch.shape)
    try:
        output = model(batch.clone())
    except Exception as error:
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


def _agree(a: Tensor, b: Tensor) -> bool:
    if is_labels(a) or is_labels(b):
        return torch.equal(a, b)
    a, b = a.double(), b.double()
    usable = a.isfinite() & b.isfinite()
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    spread = float((a[usable].max() - a[usable].min()).clamp(min=1e-30)) if usable.any() else 1.0
    return bool(((a - b).abs()[usable] <= _TOLERANCE * spread).all())


def check_contract(model: Model, probes: Tensor, *, num_classes: int | None, allow_random: bool = False) -> int:
    """Check `model` on noisy copies `probes` [8, *D]; return the number of classes.

    Raises ModelError when the output has the wrong form or number of classes, is NaN everywhere, differs
    between two calls, or changes with the other rows of the batch.
    """
    if num_classes is not None:
        check_count("num_classes", num_classes, least=2)
    with torch.inference_mode(), evaluating(model):
        alone = _call(model, probes)
        classes = _classes(alone, num_classes)
        if alone.is_floating_point() and bool(alone.isnan().any(dim=1).all()):
            raise ModelError("The model returns NaN for every probed input; it cannot be certified.")
        if allow_random:
            return classes
        if not _agree(alone, _call(model, probes)):
            raise ModelError(
                "The model gives different answers to the same batch. Theorem 1 covers a random base classifier "
                "too; if the randomness is meant, and fresh for every row, declare allow_random=True."
            )
        # Companions of quite another scale shift whatever is computed over the whole batch.
        crowd = torch.cat([probes * 10 - 3, probes.flip(0), torch.zeros_like(probes)])
        if not _agree(alone, _call(model, crowd)[len(probes) : 2 * len(probes)].flip(0)):
            raise ModelError(
                "The samples in a batch influence each other (batch statistics, dynamic quantisation, …): draws "
                "would not be independent and no certificate would be valid. Use fixed statistics."
            )
    return classes

"""How an attack gets at a model: as it classifies, with gradients of its inputs only, and leaving no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from smoothcert.attacks.soft import frozen
from smoothcert.errors import InputError, ModelError
from smoothcert.models.classifier import Classifier
from smoothcert.models.contract import Model
from smoothcert.sampling import preserved_random_state

_ADVICE = "Attack a module, or another function of torch operations, that returns scores [B, K]."


@contextmanager
def attacked(model: Model) -> Iterator[Model]:
    """The network of `model` in eval mode, its weights without gradients; afterwards all is as it was, also on errors.

    Gradients are on inside, even within no_grad or inference mode, and the global random state is put back.
    """
    network = model.network if isinstance(model, Classifier) else model
    still = frozen(network) if isinstance(network, nn.Module) else nullcontext()
    with preserved_random_state(), torch.inference_mode(False), torch.enable_grad(), still:
        yield network


def check_differentiable(model: Model, inputs: Tensor, labels: Tensor) -> int:
    """Ask `model` for scores and their gradients at inputs [B, *D]; ModelError unless it has both.

    InputError if a label is none of its classes. Returns how many there are.
    """
    point = inputs.clone().requires_grad_()
    try:
        scores = model(point)
    except Exception as error:  # what is not torch's fails in many ways at tensors that want gradients
        raise ModelError(
            f"The model failed where gradients are wanted ({type(error).__name__}: {error}). {_ADVICE}"
        ) from error
    if (
        not isinstance(scores, Tensor)
        or scores.ndim != 2
        or not scores.is_floating_point()
        or len(scores) != len(inputs)
    ):
        got = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ModelError(f"Expected scores [{len(inputs)}, K], got {got}. {_ADVICE}")
    if not scores.requires_grad or torch.autograd.grad(scores.sum(), point, allow_unused=True)[0] is None:
        raise ModelError(f"Expected scores that can be differentiated by the inputs, got none. {_ADVICE}")
    if int(labels.min()) < 0 or int(labels.max()) >= scores.shape[1]:
        raise InputError(f"Expected labels from 0 to {scores.shape[1] - 1}, got {labels.tolist()}.")
    return int(scores.shape[1])

"""Bounds by auto_LiRPA (Xu et al. 2020) in place of our own: for more kinds of layers, and with optimised slopes.

auto_LiRPA is not among our extras: its release on PyPI asks for a torch older than ours, so that it is installed from
its repository. Only a few names of it are used, all of them here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.baselines.relaxation import margin_rows
from smoothcert.baselines.search import confirmed, largest_radius
from smoothcert.checks import check_choice
from smoothcert.errors import MissingExtraError, ModelError
from smoothcert.models.contract import evaluating

LIRPA_METHODS = {
    "CROWN": "Zhang et al. 2018, linear relaxation with slopes chosen at once",
    "CROWN-Optimized": "Xu et al. 2021, with slopes found by gradient ascent: tighter and many times slower",
}
_ROUNDING = 1e-9  # of a margin in float64, relative to the scores: allowed for, not proved
_AGREEMENT = 1e-3  # between margins of the module and of the network as read, relative to the scores


class MissingLirpaError(MissingExtraError):
    """auto_LiRPA is not installed."""

    def __init__(self) -> None:
        ImportError.__init__(self)

    def __str__(self) -> str:
        source = "git+https://github.com/Verified-Intelligence/auto_LiRPA"
        return f"auto_LiRPA is needed for this: pip install '{source}'"


class LirpaMargins:
    """A margin as `search.largest_radius` takes it: lower bounds within L2 balls around x [B, *D], by auto_LiRPA.

    Margins of the model's own answers, by `scores` [B, K] in float64.
    """

    def __init__(self, model: nn.Module, x: Tensor, method: str = "CROWN") -> None:
        self._method = check_choice("method", method, LIRPA_METHODS)
        self._lirpa, self._x = require(), x.detach().double()
        exact = copy.deepcopy(model).double().eval().requires_grad_(False)
        self.scores: Tensor = exact(self._x.clone())
        self._rows = margin_rows(self.scores.argmax(1), self.scores.shape[1], self._x)
        self._module = self._read(exact)

    def _read(self, model: nn.Module) -> Any:
        try:
            with _float64():
                return self._lirpa.BoundedModule(model, self._x[:1], device=self._x.device)
        except Exception as error:  # it has many of its own, for what it does not know
            raise ModelError(f"auto_LiRPA could not follow the network ({type(error).__name__}: {error}).") from error

    def __call__(self, eps: Tensor, places: Tensor) -> Tensor:
        """The least margin [B] over the other classes, within eps [B] of the inputs at `places` [B]."""
        # One input after the other: auto_LiRPA has a single L2 radius for a batch.
        with _float64(), torch.set_grad_enabled(self._method == "CROWN-Optimized"):
            found = [self._one(radius, place) for radius, place in zip(eps.tolist(), places.tolist(), strict=True)]
        return torch.tensor(found, dtype=eps.dtype, device=eps.device)

    def _one(self, radius: float, place: int) -> float:
        ball = self._lirpa.PerturbationLpNorm(norm=2, eps=radius)
        bounded = self._lirpa.BoundedTensor(self._x[place : place + 1], ball)
        rows = self._rows[place : place + 1]
        lower, _ = self._module.compute_bounds(x=(bounded,), C=rows, method=self._method)
        return float(lower.detach().amin())


def lirpa_radii(model: nn.Module, x: Tensor, method: str = "CROWN") -> tuple[Tensor, Tensor]:
    """Answers [B] and certified radii [B] for a batch x [B, *D], with bounds by a method of `LIRPA_METHODS`.

    As sound as auto_LiRPA is: a radius counts if its lower bound of the margin at it is above what float64 may lose.
    The claim is about the network in exact arithmetic. ModelError if at x auto_LiRPA's bounds are not the module's own
    margins.
    """
    margins = LirpaMargins(model, x, method)
    sizes = margins.scores.abs().amax(1).clamp_min(1.0)
    rounding = _ROUNDING * sizes
    _check_at_inputs(model, margins, x, _AGREEMENT * sizes)
    found = largest_radius(margins, torch.full((len(x),), 0.5, dtype=torch.float64, device=x.device))
    return margins.scores.argmax(1), confirmed(margins, found, rounding) * (1 - 1e-9)


@torch.no_grad()
def _check_at_inputs(model: nn.Module, margins: LirpaMargins, x: Tensor, tolerance: Tensor) -> None:
    """Raise ModelError unless, at x itself, bounds are the margins that the module has in its own precision."""
    with evaluating(model):
        like = next(model.parameters(), x)
        scores = model(x.to(like, copy=True)).double()
    labels = margins.scores.argmax(1, keepdim=True)
    own = scores.gather(1, labels) - scores.scatter(1, labels, -torch.inf).amax(1, keepdim=True)
    read = margins(torch.zeros(len(x), dtype=torch.float64, device=x.device), torch.arange(len(x), device=x.device))
    wrong = ~((read - own[:, 0]).abs() <= tolerance) & x.flatten(1).isfinite().all(1)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ModelError(
            f"auto_LiRPA did not read the network as it computes: at input {place} of the batch the module's margin is "
            f"{float(own[place]):.6g}, but {float(read[place]):.6g} according to auto_LiRPA."
        )


def require() -> Any:
    """The library; MissingLirpaError if it is not installed."""
    try:
        return import_module("auto_LiRPA")
    except ImportError as error:
        raise MissingLirpaError from error


@contextmanager
def _float64() -> Iterator[None]:
    """New tensors are in float64 meanwhile: auto_LiRPA makes some without saying of which kind."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

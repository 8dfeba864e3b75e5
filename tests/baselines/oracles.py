"""The true radius of tiny networks, by going through all their linear pieces, and random networks to try it on.

Nothing here calls the library. A network of ReLU, max-pooling and affine layers is linear wherever it is known which
unit is active and which pixel of a window is the largest. On such a piece, a polytope, the nearest point at which
another class is ahead is the solution of a least-distance problem, which non-negative least squares solves exactly
(Lawson & Hanson 1974, chapter 23). Pieces are gone through from near to far, and the first that is complete is nearest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

Form = tuple[np.ndarray, np.ndarray]
"""Rows [n, d] and constants [n]: n affine functions of the input."""


class Residual(nn.Module):
    """Two branches, added."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.shortcut(x)


# ---- a network as steps -------------------------------------------------------------------------------------------


def dense(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> Form:
    """Matrix and offset of an affine function, found by trying every unit vector in float64."""
    size = math.prod(shape)
    with torch.no_grad():
        offset = function(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        values = function(torch.eye(size, dtype=torch.float64).view(size, *shape)).flatten(1)
    return (values - offset).T.numpy(), offset.numpy()


def steps(model: nn.Module, shape: tuple[int, ...]) -> tuple[list[tuple[Any, ...]], tuple[int, ...]]:
    """What a model in float64 and eval mode does, one step after the other on a stack of values; and the last shape."""
    if isinstance(model, nn.Sequential):
        found = []
        for part in model:
            more, shape = steps(part, shape)
            found += more
        return found, shape
    if isinstance(model, Residual):
        body, after = steps(model.body, shape)
        shortcut, _ = steps(model.shortcut, shape)
        return [("copy",), *body, ("swap",), *shortcut, ("add",)], after
    if isinstance(model, nn.ReLU):
        return [("relu",)], shape
    after = tuple(model(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
    if isinstance(model, nn.MaxPool2d):
        return [("max", windows(model, shape))], after
    return [("affine", *dense(model, shape))], after


def windows(pool: nn.MaxPool2d, shape: tuple[int, ...]) -> list[list[int]]:
    """The places of the pixels in each window, in the order of the pool's outputs."""
    size, stride, padding = (np.broadcast_to(one, 2) for one in (pool.kernel_size, pool.stride, pool.padding))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    ends = np.array(shape[1:]) + padding - size + 1
    rows, columns = (range(-pad, end, step) for pad, end, step in zip(padding, ends, stride, strict=True))
    return [
        numbers[channel, max(row, 0) : row + size[0], max(column, 0) : column + size[1]].flatten().tolist()
        for channel, row, column in itertools.product(range(shape[0]), rows, columns)
    ]


# ---- the nearest point of a polytope ------------------------------------------------------------------------------


def nearest(x: np.ndarray, rows: np.ndarray, constants: np.ndarray) -> np.ndarray | None:
    """The point y nearest to x with rows·y + constants >= 0; None if there is none."""
    least = -(rows @ x + constants)
    norms = np.linalg.norm(rows, axis=1)
    flat = norms < 1e-12
    if np.any(least[flat] > 1e-12):
        return None
    rows, least = rows[~flat] / norms[~flat, None], least[~flat] / norms[~flat]
    matrix, target = np.vstack([rows.T, least]), np.zeros(len(x) + 1)
    target[-1] = 1.0
    weights, _ = nnls(matrix, target)
    rest = matrix @ weights - target
    return None if np.linalg.norm(rest) < 1e-7 else x - rest[:-1] / rest[-1]


# ---- the nearest point with another class -------------------------------------------------------------------------


Row = tuple[np.ndarray, float]
"""One affine function: coefficients [d], and a constant."""


class Piece(NamedTuple):
    """A part of the input space on which everything up to some step is linear, and its point nearest to x."""

    distance: float
    point: np.ndarray
    step: int
    stack: tuple[Form, ...]
    done: tuple[Row, ...]  # the outputs of the current step that are settled
    conditions: tuple[Row, ...]  # what is >= 0 in this part


@dataclass(frozen=True)
class Nearest:
    """The distance to the nearest input at which another class is at least level, and that input; inf and None."""

    distance: float
    point: np.ndarray | None


def nearest_other(model: nn.Module, x: np.ndarray, shape: tuple[int, ...], label: int, reach: float = 4.0) -> Nearest:
    """How far it is from x [d] to the nearest input to which `model` need not answer `label`; inf if beyond `reach`."""
    program, _ = steps(model, shape)
    size, numbers = len(x), itertools.count()
    whole = Piece(0.0, x, 0, ((np.eye(size), np.zeros(size)),), (), ())
    waiting = [(0.0, next(numbers), whole)]
    while waiting:
        _, _, piece = heapq.heappop(waiting)
        if piece.step > len(program):
            return Nearest(piece.distance, piece.point)
        for part in _parts(piece, program, x, label):
            if part.distance <= reach:
                heapq.heappush(waiting, (part.distance, next(numbers), part))
    return Nearest(math.inf, None)


def _parts(piece: Piece, program: list[tuple[Any, ...]], x: np.ndarray, label: int) -> Iterator[Piece]:
    """A piece cut along the next unit or window that bends; along classes at the end."""
    while piece.step < len(program) and program[piece.step][0] not in ("relu", "max"):
        piece = piece._replace(stack=_moved(piece.stack, program[piece.step]), step=piece.step + 1)
    rows, constants = piece.stack[-1]
    if piece.step == len(program):
        for rival in set(range(len(rows))) - {label}:
            conditions = [(rows[rival] - rows[label], constants[rival] - constants[label])]
            yield from _cut(piece._replace(step=piece.step + 1), conditions, x)
        return
    kind, *details = program[piece.step]
    count = len(rows) if kind == "relu" else len(details[0])
    for output, conditions in _options(kind, details, rows, constants, len(piece.done)):
        part = piece._replace(done=(*piece.done, output))
        if len(part.done) == count:
            form = np.array([row for row, _ in part.done]), np.array([constant for _, constant in part.done])
            part = part._replace(step=piece.step + 1, stack=(*piece.stack[:-1], form), done=())
        yield from _cut(part, conditions, x)


def _options(
    kind: str, details: list[Any], rows: np.ndarray, constants: np.ndarray, at: int
) -> Iterator[tuple[Row, list[Row]]]:
    """What output `at` of a step may be, each with the conditions (row, constant), row·y + constant >= 0, for it."""
    if kind == "relu":
        yield (rows[at], constants[at]), [(rows[at], constants[at])]
        yield (np.zeros_like(rows[at]), 0.0), [(-rows[at], -constants[at])]
        return
    window = details[0][at]
    for place, one in enumerate(window):
        if any(np.array_equal(rows[one], rows[i]) and constants[one] == constants[i] for i in window[:place]):
            continue  # the same function, as inactive units are: nothing to tell apart
        others = [(rows[one] - rows[i], constants[one] - constants[i]) for i in window if i != one]
        yield (rows[one], constants[one]), others


def _moved(stack: tuple[Form, ...], step: tuple[Any, ...]) -> tuple[Form, ...]:
    """The stack of affine functions after a step that does not bend."""
    *below, (rows, constants) = stack
    if step[0] == "affine":
        return (*below, (step[1] @ rows, step[1] @ constants + step[2]))
    if step[0] == "copy":
        return (*stack, stack[-1])
    other = below.pop()
    return (*below, stack[-1], other) if step[0] == "swap" else (*below, (other[0] + rows, other[1] + constants))


def _cut(piece: Piece, conditions: list[Row], x: np.ndarray) -> Iterator[Piece]:
    """The part of a piece in which more conditions hold, if there is any."""
    part = piece._replace(conditions=(*piece.conditions, *conditions))
    if all(row @ piece.point + constant >= 0 for row, constant in conditions):
        yield part  # the nearest point has not changed
        return
    rows, constants = zip(*part.conditions, strict=True)
    point = nearest(x, np.array(rows), np.array(constants))
    if point is not None:
        yield part._replace(point=point, distance=float(np.linalg.norm(point - x)))


# ---- random tiny networks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network in eval mode, inputs [B, *shape] in float64, its answers [B] and their true radii [B]."""

    name: str
    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    radii: torch.Tensor


def _one_layer(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, k)), (d,)


def _two_layers(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 4), nn.ReLU(), nn.Linear(4, k)), (d,)


def _residual(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    block = Residual(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Identity())
    return nn.Sequential(nn.Linear(d, 4), nn.ReLU(), block, nn.Linear(4, k)), (d,)


def _residual_relu(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    block = Residual(nn.Sequential(nn.Linear(d, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(d, 4, bias=False))
    return nn.Sequential(block, nn.ReLU(), nn.Linear(4, k)), (d,)


def _convolution(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Conv2d(1, 2, 2, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8, k)
    return nn.Sequential(*layers), (1, 2, 2)


def _normed(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Conv2d(1, 3, 2, padding=1, bias=False), nn.BatchNorm2d(3), nn.AvgPool2d(2), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, k)), (1, 2, 2)


def _max_pool(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Conv2d(1, 1, 2, padding=1), nn.MaxPool2d(2, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, k)
    return nn.Sequential(*layers), (1, 2, 2)


def _max_pool_last(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers = nn.Conv2d(1, 2, 2, padding=(0, 1)), nn.ReLU(), nn.MaxPool2d((1, 2), 1), nn.Flatten(), nn.Linear(4, k)
    return nn.Sequential(*layers), (1, 2, 2)


def _wide(d: int, h: int, k: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A first layer with fewer units than inputs."""
    return nn.Sequential(nn.Linear(d, d - 1), nn.ReLU(), nn.Linear(d - 1, h), nn.ReLU(), nn.Linear(h, k)), (d,)


FAMILIES: dict[str, Callable[[int, int, int], tuple[nn.Module, tuple[int, ...]]]] = {
    "one layer": _one_layer,
    "two layers": _two_layers,
    "more inputs than units": _wide,
    "residual": _residual,
    "residual, then ReLU": _residual_relu,
    "convolution": _convolution,
    "batch norm and average": _normed,
    "max-pool, then ReLU": _max_pool,
    "ReLU, then max-pool": _max_pool_last,
}


def random_network(family: str, seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A network of a family with 2 to 4 inputs and classes, in float64: weights large enough to bend near the input."""
    numbers = np.random.default_rng([seed, len(family)])
    sizes = int(numbers.integers(2, 5)), int(numbers.integers(4, 9)), int(numbers.integers(2, 5))
    model, shape = FAMILIES[family](*sizes)
    model = model.double().eval()
    with torch.no_grad():
        for one in itertools.chain(model.parameters(), model.buffers()):
            if one.is_floating_point():
                values = torch.from_numpy(numbers.normal(size=one.shape))
                one.copy_(values if one.ndim > 1 else 0.3 * values)
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_var.abs_().add_(0.3)
                part.weight.add_(1.0)
    return model.requires_grad_(False), shape


def random_case(family: str, seed: int, inputs: int = 2) -> Case:
    """A random network and inputs, with their true radii."""
    model, shape = random_network(family, seed)
    numbers = np.random.default_rng([seed, 1])
    x = torch.from_numpy(numbers.uniform(-1, 1, size=(inputs, *shape)))
    labels = model(x).argmax(1)
    radii = [
        nearest_other(model, one.flatten().numpy(), shape, int(label)).distance
        for one, label in zip(x, labels, strict=True)
    ]
    return Case(f"{family} {seed}", model, x, labels, torch.tensor(radii, dtype=torch.float64))


def steep_case(name: str, first: nn.Module, shape: tuple[int, ...]) -> Case:
    """A network of two classes whose margin falls as fast as the norm of its first, affine part allows.

    All ReLUs stay on as far as the answer does, and the head looks along the first part's largest singular vector.
    """
    first = first.double()
    matrix, offset = dense(first, shape)
    left, values, _ = np.linalg.svd(matrix)
    shift, head = nn.BatchNorm1d(len(matrix)).double(), nn.Linear(len(matrix), 2).double()
    nn.init.constant_(shift.bias, 100.0)
    shift.running_mean.copy_(torch.from_numpy(offset))
    shift.running_var.fill_(1 - shift.eps)
    head.weight.data = torch.from_numpy(np.stack([left[:, 0], -left[:, 0]]))
    head.bias.data = head.weight.data.sum(1) * -100 + torch.tensor([0.5, -0.5])
    model = nn.Sequential(first, nn.Flatten(), shift, nn.ReLU(), head).eval().requires_grad_(False)
    x = torch.zeros(1, *shape, dtype=torch.float64)
    radius = torch.tensor([1 / (2 * values[0])], dtype=torch.float64)
    return Case(name, model, x, torch.tensor([0]), radius)

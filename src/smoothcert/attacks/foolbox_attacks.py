"""Attacks on the base classifier with foolbox: how small an L2 perturbation is known to change its answer.

Foolbox (Rauber et al. 2017, 2020) brings independent implementations of the attacks that most papers report. None of
them is trusted here: what they return is clipped, classified afresh and measured anew (see `judging`).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothcert.attacks.access import attacked, check_differentiable
from smoothcert.attacks.geometry import lengths, within_ball
from smoothcert.attacks.judging import Perturbed, check_batch, joined, judge, margins, misses
from smoothcert.checks import check_choice, check_count
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.models.contract import Model

_ROOM = 10.0  # how far beyond [0, 1] values may go without clipping: foolbox wants to be told an end
_PGD_STEP = 0.3  # of the radius


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"Expected `{name}` to be a finite number > 0, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class BaseAttack(ABC):
    """One of foolbox's attacks and its settings; `steps` is the number of gradients of one ascent."""

    name: ClassVar[str]
    steps: int

    def __post_init__(self) -> None:
        check_count("steps", self.steps)

    @abstractmethod
    def search(self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Points [B, *D] near the inputs [B, *D] to which foolbox's `model` probably gives other labels than these."""


@dataclass(frozen=True, kw_only=True)
class DeepFool(BaseAttack):
    """Steps to the nearest boundary of the linearised classifier (Moosavi-Dezfooli et al. 2016)."""

    name = "deepfool"
    steps: int = 50

    def search(self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Foolbox's implementation, with the ten likeliest classes as candidates."""
        return foolbox.attacks.L2DeepFoolAttack(steps=self.steps).run(model, inputs, labels)


@dataclass(frozen=True, kw_only=True)
class DDN(BaseAttack):
    """Decoupled direction and norm (Rony et al. 2019)."""

    name = "ddn"
    steps: int = 100

    def search(self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Foolbox's implementation."""
        return foolbox.attacks.DDNAttack(steps=self.steps).run(model, inputs, labels)


@dataclass(frozen=True, kw_only=True)
class CarliniWagner(BaseAttack):
    """Length and margin in one loss, with a binary search for their balance (Carlini & Wagner 2017)."""

    name = "cw"
    steps: int = 200
    searches: int = 6
    step_size: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("searches", self.searches)
        _check_positive("step_size", self.step_size)

    def search(self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Foolbox's implementation; its steps are in units of half the range of values."""
        width = model.bounds.upper - model.bounds.lower
        attack = foolbox.attacks.L2CarliniWagnerAttack(
            binary_search_steps=self.searches, steps=self.steps, stepsize=self.step_size / width, initial_const=0.1
        )
        return attack.run(model, inputs, labels)


@dataclass(frozen=True, kw_only=True)
class PGD(BaseAttack):
    """Projected gradient ascent (Madry et al. 2018) within the smallest ball in which it succeeds, input by input.

    The radius doubles from `start` until an ascent gets through, then `halvings` narrow it down. In each ball there is
    an ascent of the margin and one of the cross-entropy, both from the input itself, then `restarts` of them in turn
    from random points. Steps of three tenths of the radius found the smallest perturbations of a LeNet.
    """

    name = "pgd"
    steps: int = 40
    restarts: int = 1
    start: float = 0.25
    halvings: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("restarts", self.restarts, least=0)
        check_count("halvings", self.halvings, least=0)
        _check_positive("start", self.start)

    def search(self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """A ladder of radii, then bisection, each input with a radius of its own."""
        best, low = inputs.clone(), torch.zeros(len(inputs), device=inputs.device)
        high, radius = torch.full_like(low, torch.inf), torch.full_like(low, self.start)
        halved = torch.zeros_like(low)
        diameter = (model.bounds.upper - model.bounds.lower) * inputs[0].numel() ** 0.5
        while True:
            [active] = torch.where(high.isinf(), low < diameter, halved < self.halvings).nonzero(as_tuple=True)
            if len(active) == 0:
                return best
            points, hit = self._ascend(foolbox, model, inputs[active], labels[active], radius[active])
            halved[active] += high[active].isfinite()
            best[active[hit]] = points[hit]
            high[active[hit]] = lengths(points - inputs[active]).flatten()[hit].minimum(radius[active[hit]])
            low[active[~hit]] = radius[active[~hit]]
            radius = torch.where(high.isinf(), 2 * radius, (low + high) / 2)

    def _ascend(
        self, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor, radius: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Where the first successful ascents ended, and for which inputs there was one."""
        from eagerpy import astensor

        points, hit = inputs.clone(), torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        kinds = (_ascent(foolbox, margins), _ascent(foolbox, _cross_entropies))
        for number in range(2 + self.restarts):
            [left] = (~hit).nonzero(as_tuple=True)
            if len(left) == 0:
                break
            ascent = kinds[number % 2](steps=self.steps, rel_stepsize=_PGD_STEP, random_start=number >= 2)
            balls = radius[left].view(-1, *[1] * (inputs.ndim - 1))
            ends = ascent.run(model, inputs[left], labels[left], epsilon=astensor(balls))
            through = misses(model(ends), labels[left])
            points[left[through]], hit[left[through]] = ends[through], True
        return points, hit


def _cross_entropies(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")


def _ascent(foolbox: Any, loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Foolbox's projected gradient ascent on a loss [B] of scores and labels, with a radius for each input."""
    from eagerpy import astensor  # what foolbox computes with

    class Ascent(foolbox.attacks.L2ProjectedGradientDescentAttack):  # type: ignore[misc]
        def get_loss_fn(self, model: Any, labels: Any) -> Any:
            return lambda inputs: astensor(loss(model(inputs).raw, labels.raw).sum())

        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            return x0 + astensor(within_ball((x - x0).raw, epsilon.raw))  # epsilon [B, 1, …]

    return Ascent


BASE_ATTACKS: dict[str, BaseAttack] = {attack.name: attack for attack in (DeepFool(), PGD(), DDN(), CarliniWagner())}


def attack_base(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    attacks: Sequence[str] = tuple(BASE_ATTACKS),
    *,
    steps: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    clip: bool = True,
) -> dict[str, Perturbed]:
    """Look, with each of the `attacks`, for small L2 perturbations of the inputs with which `model` misses the labels.

    Args:
        model: what `models.load` gives, a module, or any function from inputs [B, *D] to scores [B, K] that torch can
            differentiate; ModelError for others.
        inputs: [B, *D].
        labels: [B], the answers that count as right.
        attacks: names in `BASE_ATTACKS`.
        steps: gradients of one ascent, for all attacks; by default each has its own number.
        batch_size: how many inputs are attacked at a time.
        seed: of the attacks' random starts. No global random state is read or left changed.
        clip: keep what is found in [0, 1], where the inputs must be too. Without, it may be anything, as certified
            balls are not limited to pixels either.

    What foolbox returns is clipped, classified afresh as the float32 input that the model is fed, and its norm measured
    in float64. An input that the model gets wrong already has norm 0; inf says that nothing was found.
    """
    chosen = [_chosen(name, steps) for name in attacks]
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    check_batch(inputs, labels)
    inputs, labels = inputs.detach().float(), labels.detach()
    bounds = _bounds(inputs, clip)
    foolbox = load_foolbox()
    with attacked(model) as network:
        check_differentiable(network, inputs[:1], labels)
        wrapped = foolbox.PyTorchModel(_as_module(network), bounds=bounds, device=inputs.device)

        def found_by(attack: BaseAttack) -> Perturbed:
            _seed(seed, inputs.device)  # so that no attack depends on those before it
            rows = torch.arange(len(inputs)).split(batch_size)
            return joined([_one_batch(attack, foolbox, wrapped, inputs[row], labels[row], clip) for row in rows])

        return {attack.name: found_by(attack) for attack in chosen}


def smallest(found: Mapping[str, Perturbed]) -> Perturbed:
    """For each input the smallest perturbation that any attack found."""
    results = list(found.values())
    if not results:
        raise ConfigError("Expected the results of at least one attack, got none.")
    norms, best = torch.stack([result.norms for result in results]).min(dim=0)
    inputs = torch.stack([result.inputs for result in results])
    return Perturbed(norms, inputs[best, torch.arange(len(norms), device=best.device)])


def _chosen(name: str, steps: int | None) -> BaseAttack:
    attack = BASE_ATTACKS[check_choice("attacks", name, BASE_ATTACKS)]
    return attack if steps is None else replace(attack, steps=steps)


def _bounds(inputs: Tensor, clip: bool) -> tuple[float, float]:
    """The range of values that foolbox is told; without clipping, one so wide that it hardly matters."""
    low, high = float(inputs.min()), float(inputs.max())
    if not inputs.isfinite().all() or (clip and not (low >= 0 and high <= 1)):
        raise InputError(f"Expected inputs in [0, 1], got [{low:g}, {high:g}]. Scale them, or take clip=False.")
    return (0.0, 1.0) if clip else (min(low, 0.0) - _ROOM, max(high, 1.0) + _ROOM)


def load_foolbox() -> Any:
    """The library; MissingExtraError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # foolbox still asks scipy by old names
            import foolbox
    except ImportError as error:
        raise MissingExtraError("foolbox", "attacks") from error
    return foolbox


def _seed(seed: int, device: torch.device) -> None:
    """Seed what foolbox draws from; `attacked` puts it back."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _one_batch(attack: BaseAttack, foolbox: Any, model: Any, inputs: Tensor, labels: Tensor, clip: bool) -> Perturbed:
    """Attack the inputs that are classified as their labels, and judge what came of it."""
    with torch.no_grad():
        [right] = (~misses(model(inputs), labels)).nonzero(as_tuple=True)
    points = inputs.clone()
    if len(right):
        points[right] = attack.search(foolbox, model, inputs[right], labels[right]).detach().float()
    return judge(model, inputs, points.clamp(0, 1) if clip else points, labels)


def _as_module(model: Model) -> nn.Module:
    return model if isinstance(model, nn.Module) else _Function(model).eval()


class _Function(nn.Module):
    """Any function from inputs to scores as the module that foolbox wants."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = (model,)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, K] of a batch [B, *D]."""
        scores: Tensor = _InputsOnly.apply(x, self._model[0])
        return scores


class _InputsOnly(torch.autograd.Function):
    """Hands gradients to the inputs and to nothing else: foolbox would leave them in a function's hidden weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, model: Model) -> Tensor:
        """Scores, with their graph kept apart."""
        with torch.enable_grad():
            ctx.point = x.detach().requires_grad_()
            ctx.scores = model(ctx.point)
        scores: Tensor = ctx.scores.detach()
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The inputs' gradients."""
        return torch.autograd.grad(ctx.scores, ctx.point, gradients)[0], None

"""Base classifiers whose smoothed versions are known exactly: the theorems' own extreme cases, used as oracles."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from smoothcert.checks import check_sigma
from smoothcert.errors import ConfigError

Vector = npt.NDArray[np.float64]


class LinearClassifier:
    """f(x) = 1 if wᵀx + b > 0, else 0. Smoothing leaves it as it is: Cohen et al. 2019, Propositions 3 to 5.

    g = f for every σ, Theorem 1 with the true probabilities gives exactly the distance to the boundary, and one step
    beyond that the class changes.
    """

    def __init__(self, weights: npt.ArrayLike, bias: float) -> None:
        self.weights = np.asarray(weights, np.float64).reshape(-1)
        self.bias = float(bias)
        self.norm = float(np.linalg.norm(self.weights))
        if not self.norm > 0:
            raise ConfigError("Expected weights with at least one that is not 0.")

    def __call__(self, batch: Tensor) -> Tensor:
        """Scores [B, 2] of a batch [B, *D]."""
        weights = torch.from_numpy(self.weights).to(batch)
        score = batch.flatten(1) @ weights + self.bias
        return torch.stack([-score, score], dim=1)

    def _signed_distance(self, x: npt.ArrayLike) -> float:
        return float(np.asarray(x, np.float64).reshape(-1) @ self.weights + self.bias) / self.norm

    def label(self, x: npt.ArrayLike) -> int:
        """The class of `x`, before and after smoothing."""
        return int(self._signed_distance(x) > 0)

    def exact_radius(self, x: npt.ArrayLike) -> float:
        """|wᵀx + b| / ‖w‖: how far the boundary is, and what a perfect certificate would say."""
        return abs(self._signed_distance(x))

    def vote_probability(self, x: npt.ArrayLike, sigma: float) -> float:
        """P(f(x + ε) = 1) for ε ~ N(0, σ²I)."""
        return float(ndtr(self._signed_distance(x) / check_sigma(sigma)))

    def nearest_change(self, x: npt.ArrayLike, radius: float) -> Vector:
        """The perturbation of L2 norm `radius` that goes straight for the boundary."""
        return -math.copysign(radius, self._signed_distance(x)) * self.weights / self.norm


class WorstCase:
    """f* of Cohen et al. 2019, Theorem 2: among all classifiers with these probabilities at x, the first to change.

    Class 0 (c_A) holds the half-space A behind x as seen along δ, with probability p_A; class 1 (c_B) the half-space
    B ahead, with p_B; class 2 what is left between. For ‖δ‖ > R the smoothed classifier changes at x + δ.
    """

    def __init__(self, x: npt.ArrayLike, delta: npt.ArrayLike, p_a: float, p_b: float, sigma: float) -> None:
        self.x = np.asarray(x, np.float64).reshape(-1)
        self.sigma = check_sigma(sigma)
        delta = np.asarray(delta, np.float64).reshape(-1)
        if not (0 < p_b <= p_a < 1 and p_a + p_b <= 1):
            raise ConfigError(f"Expected 0 < p_b <= p_a < 1 and p_a + p_b <= 1, got {p_a!r} and {p_b!r}.")
        self.direction = delta / np.linalg.norm(delta)
        self.below = self.sigma * float(ndtri(p_a))
        self.above = -self.sigma * float(ndtri(p_b))

    def __call__(self, batch: Tensor) -> Tensor:
        """Labels [B] of a batch [B, *D]."""
        along = (batch.flatten(1).double() - torch.from_numpy(self.x)) @ torch.from_numpy(self.direction)
        ahead = torch.where(along >= self.above, 1, 2)
        return torch.where(along <= self.below, 0, ahead)

    def vote_probabilities(self, shift: float) -> Vector:
        """The probabilities of the three classes at x + shift·δ/‖δ‖."""
        p_a = float(ndtr((self.below - shift) / self.sigma))
        p_b = float(ndtr((shift - self.above) / self.sigma))
        return np.array([p_a, p_b, max(0.0, 1 - p_a - p_b)])


class RobustEverywhere:
    """The classifier of Cohen et al. 2019, Proposition 6: Theorem 1 says τ, the truth is ∞.

    On the real line with σ = 1, class 1 outside [−t, t] and class 0 inside, t = −Φ⁻¹(½Φ(τ)). The smoothed
    classifier is 1 everywhere, yet at 0 its probability is Φ(τ), for which Theorem 1 certifies only τ.
    """

    sigma = 1.0

    def __init__(self, tau: float) -> None:
        if not tau > 0:
            raise ConfigError(f"Expected `tau` > 0, got {tau!r}.")
        self.tau = float(tau)
        self.t = -float(ndtri(0.5 * ndtr(self.tau)))

    def __call__(self, batch: Tensor) -> Tensor:
        """Labels [B] of a batch [B, 1]."""
        return (batch.reshape(len(batch)).abs() > self.t).long()

    def vote_probability(self, x: float) -> float:
        """P(f(x + ε) = 1)."""
        return float(ndtr(-self.t - x) + ndtr(x - self.t))

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from smoothcert.attacks.copies import NoisyCopies, prefers_channels_last
from smoothcert.training.loop import seeded

SIGMA = 0.3


def seeded_by(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(size: int = 15) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, 3)), 1)


def point() -> torch.Tensor:
    return torch.rand(3, 5, generator=seeded_by(2))  # 15 values, of which torch draws 16 at a time


class Recording(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = model(), []

    def forward(self, batch):
        self.seen.append(batch.detach().clone())
        return self.inner(batch)


@pytest.mark.parametrize("batch_size", [1, 7, 50, 64])
def test_the_copies_do_not_depend_on_how_they_are_batched(batch_size):
    drawn = []
    for size in (50, batch_size):
        recording = Recording()
        NoisyCopies(recording, SIGMA, size).votes(point(), seeded_by(), 50)
        assert max(len(batch) for batch in recording.seen) <= size
        drawn.append(torch.cat(recording.seen))
    assert torch.equal(*drawn)


def test_the_noise_is_gaussian_of_level_sigma_and_independent_between_values_and_copies():
    recording = Recording()
    NoisyCopies(recording, SIGMA, 256).votes(point(), seeded_by(), 20_000)
    noise = ((torch.cat(recording.seen) - point()) / SIGMA).flatten(1).double()
    assert noise.mean(0).abs().max() < 5 / math.sqrt(20_000)
    torch.testing.assert_close(noise.T.cov(), torch.eye(15).double(), rtol=0, atol=0.06)
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 5 / math.sqrt(20_000 * 15)
    assert float((noise**4).mean()) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("batch_size", [9, 40])
def test_a_look_sums_the_gradients_of_all_copies_and_averages_their_probabilities(batch_size):
    recording = Recording()
    seen = NoisyCopies(recording, SIGMA, batch_size).look(point(), seeded_by(), 40, lambda scores: scores[:, 1] ** 2)
    copies = torch.cat(recording.seen).requires_grad_()
    scores = recording.inner(copies)
    expected = torch.autograd.grad((scores[:, 1] ** 2).sum(), copies)[0].sum(0)
    torch.testing.assert_close(seen.gradient, expected)
    torch.testing.assert_close(seen.probabilities, scores.detach().double().softmax(1).mean(0), rtol=1e-5, atol=0)
    assert seen.votes.tolist() == [int((scores.argmax(1) == k).sum()) for k in range(3)]


def test_votes_are_those_of_a_look_with_the_same_generator():
    copies = NoisyCopies(model(), SIGMA, 16)
    votes = copies.votes(point(), seeded_by(5), 100)
    assert votes.tolist() == copies.look(point(), seeded_by(5), 100, lambda scores: scores[:, 0]).votes.tolist()
    assert votes.sum() == 100
    assert (votes > 0).sum() >= 2


def test_copies_with_nan_scores_vote_for_nothing():
    def some_nan(batch):
        a = batch.flatten(1).sum(1)
        return torch.stack([torch.where(a > 0, math.nan, a), a], dim=1)

    seen = NoisyCopies(some_nan, 1.0, 64).look(torch.zeros(4), seeded_by(), 500, lambda scores: scores[:, 1])
    assert 200 < seen.votes.sum() < 300
    assert float(seen.probabilities.sum()) == pytest.approx(int(seen.votes.sum()) / 500)
    assert seen.gradient.tolist() == [500.0] * 4  # their gradients are finite


def test_copies_without_a_finite_gradient_are_left_out_of_it():
    def roots(batch):
        a = batch[:, 0]
        return torch.stack([torch.where(a > 0, a, 0 * a).sqrt() * 0 + a, a], dim=1)  # 0 · ∞ below 0

    seen = NoisyCopies(roots, 1.0, 64).look(torch.zeros(1), seeded_by(), 400, lambda scores: scores[:, 0])
    assert 150 < seen.gradient.item() < 250


def test_mean_scores_are_averaged_over_copies_that_have_some():
    copies = NoisyCopies(model(), SIGMA, 16)
    recording = Recording()
    NoisyCopies(recording, SIGMA, 100).votes(point(), seeded_by(3), 100)
    expected = recording.inner(torch.cat(recording.seen)).detach().double().mean(0)
    torch.testing.assert_close(copies.mean_scores(point(), seeded_by(3), 100), expected, rtol=1e-5, atol=1e-6)
    nothing = NoisyCopies(lambda batch: batch[:, :2] * math.nan, SIGMA, 8)
    assert nothing.mean_scores(torch.zeros(4), seeded_by(), 8).tolist() == [-math.inf] * 2


def test_only_images_for_convolutions_on_the_cpu_get_their_channels_last():
    convolution = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten())
    assert prefers_channels_last(convolution, torch.zeros(3, 4, 4))
    assert not prefers_channels_last(convolution, torch.zeros(4, 4))
    assert not prefers_channels_last(convolution, torch.zeros(3, 4, 4, device="meta"))
    assert not prefers_channels_last(model(), torch.zeros(3, 4, 4))
    assert not prefers_channels_last(lambda batch: batch, torch.zeros(3, 4, 4))
    recording = nn.Sequential(Recording())
    NoisyCopies(recording[0], SIGMA, 4, channels_last=True).votes(torch.zeros(3, 5, 1), seeded_by(), 4)
    assert recording[0].seen[0].is_contiguous(memory_format=torch.channels_last)

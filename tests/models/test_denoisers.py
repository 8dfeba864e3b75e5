import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from pictures import noisy, psnr, scene
from smoothcert import GaussianNoise, Smoothed
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.models.contract import check_contract
from smoothcert.models.denoisers import CLASSICAL, Denoised, TotalVariation, make_denoiser


def make(name, sigma):
    if name == "nl-means":
        pytest.importorskip("skimage")
    return make_denoiser(name, sigma)


# Decibels above the noisy image at sigma 0.12 and 0.25, about one less than measured here.
GAINS = {"tv": (8.4, 11.2), "nl-means": (7.6, 10.3)}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CLASSICAL)
def test_denoises(name, channels):
    truth = torch.stack([scene(channels, seed=seed) for seed in range(3)])
    for sigma, gain in zip((0.12, 0.25), GAINS[name], strict=True):
        x = noisy(truth, sigma)
        y = make(name, sigma)(x)
        assert psnr(y, truth) > psnr(x, truth) + gain
        assert (y.shape, y.dtype) == (x.shape, torch.float32)
        assert y.min() >= 0
        assert y.max() <= 1


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 5, 9), (1, 2, 33, 16), (0, 3, 8, 8), (1, 3, 4, 4)])
def test_takes_images_of_any_size(name, shape):
    y = make(name, 0.5)(noisy(torch.full(shape, 0.5), 0.5))
    assert y.shape == shape
    assert y.isfinite().all()


@pytest.mark.parametrize("name", CLASSICAL)
def test_each_image_is_denoised_by_itself_in_any_thread_and_each_time(name):
    denoiser = make(name, 0.25)
    x = noisy(torch.stack([scene(seed=seed, side=24) for seed in range(6)]), 0.25)
    x[3] *= 10
    kept = x.clone()
    together = denoiser(x)
    assert torch.equal(x, kept)
    for i in range(6):
        assert torch.allclose(denoiser(x[i : i + 1])[0], together[i], atol=1e-6)
    with ThreadPoolExecutor(4) as pool:
        for again in pool.map(denoiser, [x] * 8):
            assert torch.equal(again, together)
    assert torch.equal(deepcopy(denoiser)(x), together)
    assert denoiser(x.double()).dtype == torch.float64


@pytest.mark.parametrize("name", CLASSICAL)
def test_keeps_the_contract_before_a_classifier(name):
    torch.manual_seed(0)
    model = Denoised(make(name, 0.25), nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)))
    probes = noisy(scene(side=16).expand(8, -1, -1, -1), 0.25)
    assert check_contract(model, probes, num_classes=None).num_classes == 4


@pytest.mark.parametrize("name", CLASSICAL)
def test_gradients_pass(name):
    x = noisy(scene(side=16)[None], 0.1).requires_grad_()
    y = make(name, 0.1)(x)
    y.sum().backward()
    assert x.grad.abs().sum() > 0
    assert torch.allclose(y, make(name, 0.1)(x.detach()), atol=1e-6)


@pytest.mark.parametrize("x", [torch.rand(3, 8, 8), torch.rand(2, 8), torch.ones(1, 3, 8, 8, dtype=torch.int64)])
def test_what_is_no_batch_of_images_is_refused(x):
    with pytest.raises(InputError, match=r"\[B, C, H, W\]"):
        make_denoiser("tv", 0.25)(x)


def test_noise_beyond_the_range_is_not_clipped_before():
    """Black and white under strong noise come out even, which they would not from clipped noise."""
    x = noisy(torch.zeros(1, 1, 64, 64), 0.5)
    assert make_denoiser("tv", 0.5)(x).mean() < 0.06
    assert make_denoiser("tv", 0.5)(x.clamp(0, 1)).mean() > 0.15


@pytest.mark.parametrize("weight", [0.05, 0.3])
def test_total_variation_converges_to_scikit_images(weight):
    restoration = pytest.importorskip("skimage.restoration")
    x = noisy(scene(1, side=20), 0.25).double()
    expected = restoration.denoise_tv_chambolle(x[0].numpy(), weight=weight, eps=0, max_num_iter=20_000)
    ours = TotalVariation(0.25, weight, iterations=1500).denoise(x[None])[0, 0]
    assert np.allclose(ours.numpy(), expected, atol=1e-3)


def test_total_variation_reaches_the_least_of_what_it_minimises():
    """In colour, where scikit-image has another norm: no small step in any direction is lower."""
    x = noisy(scene(side=12), 0.25).double()
    weight = 0.2

    def energy(u):
        down = nn.functional.pad(u[:, 1:] - u[:, :-1], (0, 0, 0, 1))
        right = nn.functional.pad(u[:, :, 1:] - u[:, :, :-1], (0, 1))
        return (u - x).square().sum() / 2 + weight * (down.square() + right.square()).sum(dim=0).sqrt().sum()

    best = TotalVariation(0.25, weight, iterations=3000).denoise(x[None])[0]
    for seed in range(20):
        step = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for length in (1e-3, 1e-2, 0.1):
            assert energy(best + length * step) > energy(best)
    assert energy(best) < 0.7 * energy(x)


def test_scikit_image_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(MissingExtraError, match=r"scikit-image .*smoothcert\[denoise\]"):
        make_denoiser("nl-means", 0.25)
    assert make_denoiser("tv", 0.25)(torch.rand(1, 1, 8, 8)).shape == (1, 1, 8, 8)


def test_unknown_names_and_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"one of tv, nl-means, got 'nlmeans'\. Did you mean 'nl-means'"):
        make_denoiser("nlmeans", 0.25)
    with pytest.raises(ConfigError, match=r"there is no .*none\.safetensors"):
        make_denoiser(tmp_path / "none.safetensors", 0.25)
    for sigma in (0, -1, float("nan"), "0.25"):
        with pytest.raises(ConfigError, match="sigma"):
            make_denoiser("tv", sigma)
    with pytest.raises(ConfigError, match="iterations"):
        TotalVariation(0.25, iterations=0)


class Ripples(nn.Module):
    """Tells a bright half from a dark one, but is put off by fine ripples: good on clean images, lost in noise."""

    def forward(self, x):
        half = x[:, 0, :8].mean(dim=(1, 2)) - x[:, 0, 8:].mean(dim=(1, 2))
        roughness = (x[:, 0, 1:] - x[:, 0, :-1]).abs().mean(dim=(1, 2))
        return torch.stack([half, -half, 2 * roughness - 0.15], dim=1)


def test_certifies_more_than_the_plain_classifier():
    x = torch.full((1, 16, 16), 0.3)
    x[:, :8] = 0.7
    noise = GaussianNoise(0.25)
    plain = Smoothed(Ripples(), 0.25, noise=noise, seed=1, input_shape=x.shape).certify(x, n_max=2000)
    model = Denoised(make_denoiser("tv", 0.25), Ripples())
    denoised = Smoothed(model, 0.25, noise=noise, seed=1, input_shape=x.shape).certify(x, n_max=2000)
    assert Ripples()(x[None]).argmax() == 0
    assert plain.label != 0  # noise is nothing but ripples
    assert denoised.label == 0
    assert denoised.radius > 0.4
    again = Smoothed(model, 0.25, noise=noise, seed=1, input_shape=x.shape, batch_size=7).certify(x, n_max=2000)
    assert again.stages == denoised.stages

import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from smoothcert import (
    Certificate,
    FixedN,
    GaussianNoise,
    GridGaussianNoise,
    Normalize,
    Predict,
    Prediction,
    Smoothed,
)
from smoothcert.worst_cases import LinearClassifier

PIXELS = np.arange(48, dtype=np.uint8).reshape(3, 4, 4) * 5


class ChannelMeans(nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


def smoothed(model=None, sigma=0.5, **settings):
    return Smoothed(model or ChannelMeans(), sigma, **{"seed": 1, **settings})


QUICK = FixedN(n=2000, n0=50, alpha=0.01)


def test_a_certificate_carries_its_claim_its_settings_and_its_evidence():
    certificate = smoothed().certify(PIXELS, QUICK)
    assert isinstance(certificate, Certificate)
    assert certificate.label == 2
    assert [stage.n for stage in certificate.stages] == [50, 2000]
    assert (certificate.alpha, certificate.sigma, certificate.noise) == (0.01, 0.5, "grid")
    assert certificate.procedure == {
        "name": "FixedN",
        "n": 2000,
        "n0": 50,
        "alpha": 0.01,
        "runner_up": False,
        "margin": 0.0,
    }
    assert certificate.draws == 2050
    assert certificate.key == smoothed().key
    assert certificate.radius == GridGaussianNoise(0.5).radius(certificate.bounds) > 0


def test_results_survive_json():
    certificate, prediction = smoothed().certify(PIXELS, QUICK), smoothed().predict(PIXELS, Predict(n=100))
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    assert Prediction.from_dict(json.loads(json.dumps(prediction.to_dict()))) == prediction


def test_numpy_torch_uint8_and_floats_on_the_grid_are_the_same_input():
    forms = [
        PIXELS,
        torch.from_numpy(PIXELS),
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        torch.from_numpy(PIXELS).float() / 255,
        np.asfortranarray(PIXELS / 255),
        (torch.from_numpy(PIXELS).double() / 255).requires_grad_(),
    ]
    g = smoothed()
    first, *rest = [g.certify(form, QUICK) for form in forms]
    assert all(other == first for other in rest)


def test_a_batch_gives_each_input_what_it_gets_alone():
    g, batch = smoothed(), np.stack([PIXELS, 255 - PIXELS, PIXELS // 2])
    assert g.certify(batch, QUICK) == [g.certify(x, QUICK) for x in batch]
    assert [p.label for p in g.predict(batch, Predict(n=200))] == [g.predict(x, Predict(n=200)).label for x in batch]


def test_indices_name_the_noise_and_count_up_through_a_batch():
    g = smoothed()
    pair = g.certify(np.stack([PIXELS, PIXELS]), QUICK, index=7)
    assert [c.input_id for c in pair] == ["index:7", "index:8"]
    assert pair[0] == g.certify(PIXELS, QUICK, index=7)
    assert pair[0].stages != pair[1].stages


def test_asking_again_gives_the_same_answer_and_another_key_another():
    g, other = smoothed(seed=None), smoothed(seed=None)
    answers = {json.dumps(g.certify(PIXELS, QUICK).to_dict()) for _ in range(20)}
    assert len(answers) == 1
    # Of one input the votes may fall alike by chance; of six they do not.
    first, second = ([one.certify(PIXELS, QUICK, index=i).stages for i in range(6)] for one in (g, other))
    assert first != second
    assert len(bytes.fromhex(g.key)) == 32


def test_selection_and_estimation_use_different_noise():
    equal = smoothed().certify(PIXELS, FixedN(n=500, n0=500, alpha=0.01))
    assert equal.stages[0] != equal.stages[1]


def test_noise_is_grid_where_the_input_is_and_float_elsewhere():
    g = smoothed()
    assert g.certify(PIXELS, QUICK).noise == "grid"
    assert g.certify(PIXELS / 256, QUICK).noise == "gaussian"
    assert smoothed(noise="gaussian").certify(PIXELS, QUICK).noise == "gaussian"
    assert smoothed(noise=GaussianNoise(0.5)).certify(PIXELS, QUICK).noise == "gaussian"


def test_models_that_return_labels_agree_with_those_that_return_scores():
    by_label = smoothed(lambda batch: batch.mean(dim=(2, 3)).argmax(1), num_classes=3)
    assert by_label.certify(PIXELS, QUICK).stages == smoothed().certify(PIXELS, QUICK).stages


def test_noise_comes_before_normalisation():
    """A normalised model sees normalised noise, so its votes are those of the plain model on the same copies."""
    plain, shifted = ChannelMeans(), nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), ChannelMeans())
    answers = [smoothed(model).certify(PIXELS, QUICK, index=0).stages for model in (plain, shifted)]
    assert answers[0] == answers[1]


def test_too_close_to_call_abstains_with_radius_zero():
    grey = np.full((3, 4, 4), 100, np.uint8)
    certificate, prediction = smoothed().certify(grey, QUICK), smoothed().predict(grey, Predict(n=300))
    assert certificate.label is None
    assert certificate.abstained
    assert certificate.radius == 0.0
    assert prediction.label is None
    assert "abstains" in repr(certificate)


def test_the_rival_bound_certifies_more_where_the_rest_is_spread_out():
    """Ten classes, the first ahead: 1 − p_A is far more than any single rival has."""

    class Spread(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :10]

    x = np.zeros(10, np.uint8)
    x[0] = 150
    g = smoothed(Spread(), sigma=0.5)
    paper = g.certify(x, FixedN(n=5000, alpha=0.01))
    rival = g.certify(x, FixedN(n=5000, alpha=0.01, runner_up=True))
    assert rival.radius > paper.radius + 0.05
    assert rival.bounds.p_b_upper < rival.bounds.q_a_upper


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_certificates_of_linear_classifiers_are_true(count):
    """Through the real sampler in 3,072 dimensions: not more false ones than alpha allows, and few abstain."""
    rng = np.random.default_rng(5)
    alpha, wrong, certified, ratios = 0.05, 0, 0, []
    procedure = FixedN(n=200, n0=20, alpha=alpha)
    for i in range(count):
        weights, x = rng.standard_normal(3072), rng.random(3072)
        # distances that make p_A run from 1/2 to 0.999
        distance = rng.uniform(-1.5, 1.5)
        f = LinearClassifier(weights, distance * np.linalg.norm(weights) - weights @ x)
        g = Smoothed(f, 0.5, 2, noise="gaussian", batch_size=256, seed=i)
        certificate = g.certify(x, procedure)
        if certificate.label is None:
            continue
        certified += 1
        truth = f.exact_radius(x.astype(np.float32))
        wrong += certificate.label != f.label(x) or certificate.radius > truth
        ratios.append(certificate.radius / truth)
    assert certified > 0.7 * count
    assert binomtest(wrong, count, alpha, alternative="greater").pvalue > 1e-3
    assert 0.5 < np.median(ratios) < 1  # true, and not idly small


def test_repr_and_html_tell_the_claim():
    certificate = smoothed().certify(PIXELS, QUICK)
    for text in (repr(certificate), certificate._repr_html_()):
        assert "class 2" in text
        assert "0.01" in text
        assert "2,000" in text
    assert certificate._repr_html_().startswith("<table")


def test_a_progress_bar_is_shown_for_long_jobs_and_leaves_results_alone(capsys, monkeypatch):
    quiet = smoothed(progress=True).certify(PIXELS, QUICK)
    assert capsys.readouterr().err == ""  # over before two seconds
    monkeypatch.setattr("smoothcert.progress.PATIENCE", 0.0)
    assert smoothed(progress=True).certify(PIXELS, QUICK) == quiet
    assert "draws" in capsys.readouterr().err
    assert smoothed(progress=False).certify(PIXELS, QUICK) == quiet
    assert capsys.readouterr().err == ""


def test_the_smoothed_classifier_tells_what_it_is():
    assert repr(smoothed()) == "Smoothed(ChannelMeans, sigma=0.5, noise='auto', device='cpu')"

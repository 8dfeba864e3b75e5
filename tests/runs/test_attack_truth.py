"""What an attack achieved is for fresh draws to say, and they say the truth where it is known."""

import shutil

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare, norm
from torch import nn

from attack_fixtures import (
    SIGMA,
    Straight,
    attack,
    certified,
    direction,
    distance,
    forged,
    half_spaces,
    inputs,
    linear,
    replaced,
)
from smoothcert import Predict, Smoothed
from smoothcert.attacks.on_smoothed import SMOOTHED_ATTACKS
from smoothcert.data import ArrayData
from smoothcert.runs import attacking
from smoothcert.runs.attack_summary import outcomes, summarize_attack, violations
from smoothcert.runs.attacking import OnGrid, unpack
from smoothcert.streams import Stream


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("certified") / "run")


@pytest.fixture
def fixed_draws(monkeypatch):
    """Have the judge make all the draws that it may."""
    monkeypatch.setattr(attacking, "SequentialPredict", lambda alpha, n_max: Predict(n=n_max, alpha=alpha))


def votes_for(attempt, label):
    return sum(stage["votes"].get(str(label), 0) for stage in attempt["stages"])


# ---- the judge -----------------------------------------------------------------------------------------------------


def test_the_judge_draws_noise_of_its_own(monkeypatch, tmp_path):
    """None that a certificate rests on, though both runs have the same key, and none twice."""
    from smoothcert import smoothed

    made = []

    def recorded(key, input_id, stage, question=""):
        made.append((key, input_id, stage, question))
        return Stream(key, input_id, stage, question)

    monkeypatch.setattr(smoothed, "Stream", recorded)
    run = certified(tmp_path / "certified")
    before, made[:] = set(made), []
    replaced(monkeypatch, lambda target, *_: target.x)  # the very inputs that were certified
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(1.0,))
    assert found.manifest.values["key"] == run.manifest.values["key"]
    used = [one for one in made if one[2] >= 0]  # the others only look at the model
    assert len(used) == sum(len(one["stages"]) for row in found.rows for one in row["attempts"])
    assert len(set(used)) == len(used)
    assert not set(used) & before
    assert len({Stream(*one).philox_key for one in {*used, *before}}) == len({*used, *before})


def test_whatever_an_attack_returns_is_brought_within_its_radius(monkeypatch, run, tmp_path):
    seen = []
    predict = Smoothed.predict

    def watched(self, x, *args, **options):
        seen.append(np.array(x, np.float64))
        return predict(self, x, *args, **options)

    monkeypatch.setattr(Smoothed, "predict", watched)
    replaced(monkeypatch, lambda target, *_: target.x + 1e3 * torch.sign(target.x - 0.5))
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(0.5, 1.0, 2.0))
    attempts = [(row, one) for row in found.rows for one in row["attempts"]]
    for point, (row, one) in zip(seen, attempts, strict=True):
        x = inputs()[row["index"]].astype(np.float64)
        assert one["norm"] == pytest.approx(float(np.sqrt(((point - x) ** 2).sum())), rel=1e-12)
        limit = one["factor"] * row["radius"]
        assert 0.99 * limit < one["norm"] < limit
    assert not violations(found), "who lies about where he was has not changed an answer"


@pytest.mark.parametrize("lie", [float("nan"), float("inf")])
def test_points_that_are_no_numbers_leave_the_input_as_it_was(monkeypatch, run, tmp_path, lie):
    replaced(monkeypatch, lambda target, *_: torch.full_like(target.x, lie))
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(2.0,), most=3)
    for row in found.rows:
        [one] = row["attempts"]
        assert (one["norm"], one["label"]) == (0.0, row["label"])


def test_votes_are_those_of_the_smoothed_classifier_at_the_point(monkeypatch, fixed_draws, run, tmp_path):
    """At the end of the ball the class keeps a share of Φ(distance / σ), whatever the attack thought of it."""
    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Straight)
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=(0.5, 1.0, 2.0), n_max=20_000)
    for row in found.rows:
        d = abs(distance(inputs()[row["index"]]))
        for one in row["attempts"]:
            expected = norm.cdf((d - one["factor"] * row["radius"]) / SIGMA)
            assert binomtest(votes_for(one, row["label"]), 20_000, expected).pvalue > 1e-6


# ---- where the truth is known --------------------------------------------------------------------------------------


def test_honest_certificates_of_a_linear_classifier_are_not_violated_by_the_best_attack(monkeypatch, tmp_path):
    """With α of 0.05 each for certificate and judge, so that there is something to be seen."""
    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Straight)
    network, data = linear(), half_spaces(np.linspace(0.05, 0.7, 25), labelled=False)
    tried = broken = too_large = 0
    for seed in range(8):
        run = certified(tmp_path / f"certified-{seed}", data, network=network, alpha=0.05, seed=seed, n_max=100)
        found = attack(
            run,
            tmp_path / f"run-{seed}",
            data,
            network=network,
            attacks=("strong",),
            factor=(1.0,),
            alpha=0.05,
            n_max=300,
            seed=100 + seed,
        )
        tried += len(found.rows)
        broken += len({one.index for one in violations(found)})
        too_large += sum(row["radius"] > abs(distance(data[row["index"]])) for row in found.rows)
    assert tried > 150
    assert too_large >= 1, "no certificate was false, so that nothing was tested"
    assert binomtest(too_large, tried, 0.05, alternative="greater").pvalue > 1e-4
    assert binomtest(broken, tried, 0.05 + 0.05, alternative="greater").pvalue > 1e-4
    assert broken <= too_large + 0.05 * tried


def test_false_certificates_are_found_and_their_points_kept(monkeypatch, run, tmp_path):
    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Straight)
    shutil.copytree(run.path, tmp_path / "forged")
    false = forged(tmp_path / "forged", lambda row: row.update(radius=5 * row["radius"]))
    found = attack(false, tmp_path / "run", attacks=("strong",), factor=(1.0,))
    broken = violations(found)
    assert {one.index for one in broken} == {row["index"] for row in found.rows}
    smoothed = Smoothed(linear(), SIGMA, seed=123, noise="gaussian", input_range=None)
    for one in broken:
        point = unpack(one.point)
        assert float(np.linalg.norm(point.astype(np.float64) - inputs()[one.index].astype(np.float64))) == one.norm
        assert one.norm < one.radius == 5 * run.rows[one.index]["radius"]
        answer = smoothed.predict(point, Predict(n=1000))
        assert answer.label == one.answer == 1 - one.label == int(distance(point) > 0)


@pytest.mark.parametrize("name", ["paper", "strong"])
def test_the_real_attacks_find_a_false_certificate_too(run, tmp_path, name):
    shutil.copytree(run.path, tmp_path / "forged")
    false = forged(tmp_path / "forged", lambda row: row.update(radius=3 * row["radius"]))
    found = attack(false, tmp_path / "run", attacks=(name,), factor=(1.0,), most=2)
    assert [one.index for one in violations(found)] == found.manifest.indices
    assert summarize_attack(found)["violated"] == found.manifest.indices


def test_beyond_the_boundary_attacks_succeed_and_before_it_none_does(monkeypatch, run, tmp_path):
    monkeypatch.setitem(SMOOTHED_ATTACKS, "strong", Straight)
    factors = (0.5, 1.0, 1.25, 1.5, 2.0)
    found = attack(run, tmp_path / "run", attacks=("strong",), factor=factors, n_max=20_000)
    seen = set()
    for row in found.rows:
        d = abs(distance(inputs()[row["index"]]))
        for one in row["attempts"]:
            away = (one["factor"] * row["radius"] - d) / SIGMA  # beyond the boundary, in standard deviations
            if abs(away) > 0.1:  # else 20,000 draws may not tell
                assert one["label"] == (1 - row["label"] if away > 0 else row["label"])
                seen.add((one["factor"], away > 0))
            assert "point" not in one
    assert {(0.5, False), (2.0, True)} <= seen
    assert [one.violations for one in outcomes(found)] == [0] * len(factors)
    assert [one.successes for one in outcomes(found)][-1] == len(found.rows)


def test_a_success_within_the_radius_is_a_violation_also_where_more_was_allowed(monkeypatch, run, tmp_path):
    def near(target, radius):
        way = torch.from_numpy(direction()).view(target.x.shape)
        return target.x + 0.4 * radius * (-way if target.label else way)

    replaced(monkeypatch, near)
    shutil.copytree(run.path, tmp_path / "forged")
    false = forged(tmp_path / "forged", lambda row: row.update(radius=5 * row["radius"]))
    found = attack(false, tmp_path / "run", attacks=("strong",), factor=(2.0,))
    assert len(violations(found)) == len(found.rows)
    assert all("point" in one for row in found.rows for one in row["attempts"])


# ---- forcing abstention --------------------------------------------------------------------------------------------


def test_forcing_abstention_makes_the_judge_abstain_which_is_no_success(run, tmp_path):
    choice = {"factor": (2.0,), "most": 4, "n_max": 1000}
    tie = attack(run, tmp_path / "tie", attacks=("abstain",), **choice)
    win = attack(run, tmp_path / "win", attacks=("paper",), **choice)
    [forced], [other] = outcomes(tie), outcomes(win)
    assert forced.abstentions > other.abstentions
    assert forced.abstentions >= 3
    assert forced.successes + forced.abstentions <= forced.attempts
    assert other.successes == 4
    assert {one["label"] for row in tie.rows for one in row["attempts"]} >= {None}


# ---- the pixel grid ------------------------------------------------------------------------------------------------


def test_on_the_grid_is_rounded_as_the_noise_rounds():
    class Same(nn.Module):
        def forward(self, x):
            return x

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, generator=generator) * 3 - 1
    rounded = OnGrid(Same())(x)
    steps = np.rint(x.double().numpy() * 255)
    sure = np.abs(np.abs(x.double().numpy() * 255 - steps) - 0.5) > 1e-4
    assert np.array_equal(rounded.numpy()[sure], (steps.astype(np.float32) / np.float32(255))[sure])
    again = OnGrid(Same())(rounded)
    assert torch.equal(again, rounded)
    every = torch.arange(256, dtype=torch.float32) / 255
    assert torch.equal(OnGrid(Same())(every), every)


def test_gradients_pass_the_rounding():
    network = linear()
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scores = OnGrid(network)(x)
    [gradient] = torch.autograd.grad(scores[:, 1].sum(), x)
    assert torch.allclose(gradient, network[1].weight[1].view(1, 4, 4).expand(3, 1, 4, 4))
    rounded = torch.round(x.detach() * 255) / 255
    assert torch.equal(scores.detach(), network(rounded))


class Levels(nn.Module):
    """The class of an input of one value is its place on the grid around the middle, of seven; the ends are open."""

    def forward(self, x):
        steps = (x.flatten(1)[:, :1] * 255 - 128 + 3).round().clamp(0, 6)
        return -(torch.arange(7) - steps).abs() + 0.0 * x.flatten(1)[:, :1]


def test_rounded_gaussian_noise_votes_as_grid_noise_does():
    """On one pixel, where the probability of every grid value is known."""
    sigma, n = 1.7 / 255, 40_000
    x = np.full((1, 1, 1), 128 / 255, np.float32)
    edges = np.array([-np.inf, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf]) / 1.7
    expected = n * np.diff(norm.cdf(edges))
    for model, noise in ((Levels(), "grid"), (OnGrid(Levels()), "gaussian")):
        smoothed = Smoothed(model, sigma, 7, noise=noise, seed=3, batch_size=1000)
        found = smoothed.predict(x, Predict(n=n))
        assert found.noise == noise
        assert chisquare(found.votes.counts, expected).pvalue > 1e-4


class SeesTheGrid(nn.Module):
    """Class 0 on the pixel grid and class 1 elsewhere: smoothed by grid noise it is 0 everywhere, by other noise 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 1e-3))

    def forward(self, x):
        off = ((x * 255 - (x * 255).round()).abs() > 1e-2).flatten(1).any(1).float()
        slope = self.weight * x.flatten(1).mean(1)
        return torch.stack([0.5 + slope, off], dim=1)


def test_certificates_of_grid_noise_are_judged_by_what_grid_noise_smooths(tmp_path):
    data = ArrayData(np.random.default_rng(0).integers(256, size=(2, 1, 4, 4), dtype=np.uint8), None, None, "bytes")
    network = SeesTheGrid()
    run = certified(tmp_path / "certified", data, network=network)
    assert [(row["label"], row["noise"]) for row in run.rows] == [(0, "grid")] * 2
    found = attack(run, tmp_path / "run", data, network=network, attacks=("paper",), factor=(1.0,))
    assert [one["label"] for row in found.rows for one in row["attempts"]] == [0, 0]
    assert Smoothed(network, SIGMA, seed=0, noise="gaussian").predict(data[0]).label == 1, "else nothing was tested"


def test_the_judge_of_a_grid_run_votes_as_its_certificates_do(monkeypatch, fixed_draws, tmp_path):
    """At the input itself, where both are draws of the same distribution."""
    replaced(monkeypatch, lambda target, *_: target.x)
    data = ArrayData((inputs((0.3, -0.3)) * 255).round().astype(np.uint8), None, None, "bytes")
    run = certified(tmp_path / "certified", data, n_max=4000)
    found = attack(run, tmp_path / "run", data, attacks=("strong",), factor=(1.0,), n_max=4000)
    for row, old in zip(found.rows, run.rows, strict=True):
        votes = [votes_for(row["attempts"][0], row["label"]), old["stages"][1]["votes"][str(row["label"])]]
        assert row["noise"] == "grid"
        assert votes[0] != votes[1], "these would be the same draws"
        assert abs(votes[0] - votes[1]) < 5 * np.sqrt(2 * 4000 * 0.25)

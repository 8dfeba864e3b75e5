"""Figures drawn from the paper's logs, and from votes of its networks, hold what its tables and text say.

The votes were sampled by others from the paper's released networks (github.com/FireShadow05/accelerated_smoothing,
MIT).
"""

from __future__ import annotations

import numpy as np
import pytest

from evidence import LOGS, VOTES
from smoothcert.report.figures import draw_figure, recorded_run
from smoothcert.report.figures.theorems import COHEN, LECUYER, LI, theorem_radii
from smoothcert.runs.exchange import import_log
from smoothcert.stats.radii import max_radius

N = 100_000
# Cohen et al. 2019, Tables 2 and 3 (Appendix E.1): network, σ, radii 0, step, 2·step, … and percentages.
TABLES = [
    ("imagenet/resnet50", "0.25", 0.5, [67, 49, 0]),
    ("imagenet/resnet50", "0.50", 0.5, [57, 46, 37, 29, 0]),
    ("imagenet/resnet50", "1.00", 0.5, [44, 38, 33, 26, 19, 15, 12]),
    ("cifar10/resnet110", "0.50", 0.25, [66, 55, 43, 32, 22, 14, 8]),
    ("cifar10/resnet110", "1.00", 0.25, [47, 41, 34, 28, 22, 17, 14]),
]
pytestmark = pytest.mark.skipif(not LOGS.exists(), reason=f"the published logs are not there: {LOGS}")


@pytest.fixture
def certified(tmp_path):
    def make(network, trained, sigma, alpha=0.01):
        log = LOGS / "certify" / network / f"noise_{trained}" / "test" / f"sigma_{sigma}"
        out = tmp_path / f"{network.split('/')[0]}-{trained}-{sigma}"
        return import_log(log, out, sigma=float(sigma), alpha=alpha, n=N)

    return make


def lines(figure):
    return list(figure.axes[0].get_lines())


def value(line, radius):
    """The height of a step curve at a radius: that of the first corner at or beyond it."""
    at, shares = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    return shares[np.searchsorted(at, radius)] if radius <= at[-1] else 0.0


@pytest.mark.parametrize(("network", "sigma", "step", "printed"), TABLES)
def test_the_curves_pass_through_the_paper_s_tables(certified, network, sigma, step, printed):
    (line,) = lines(draw_figure("certified-accuracy", [certified(network, sigma, sigma)], {}))
    found = [value(line, step * place) for place in range(len(printed))]
    if network.startswith("imagenet"):
        assert [round(share) for share in found] == printed
    else:  # the tables of CIFAR-10 are of all 10,000 test images, the logs of every 20th
        np.testing.assert_allclose(found, printed, atol=3)


def test_every_curve_ends_where_unanimous_votes_end_it(certified):
    (line,) = lines(draw_figure("certified-accuracy", [certified("imagenet/resnet50", "0.25", "0.25")], {}))
    assert line.get_xdata()[-1] == pytest.approx(max_radius(N, 0.01, 0.25), abs=0.0005)


def test_theorem_1_dominates_the_others_at_every_radius(certified):
    run = certified("imagenet/resnet50", "0.25", "0.25")
    radii = theorem_radii(run)
    claimed = radii[COHEN] > 0
    assert np.all(radii[COHEN][claimed] > radii[LI][claimed])
    assert np.all(radii[LI][claimed] >= radii[LECUYER][claimed])
    cohen, li, lecuyer = lines(draw_figure("theorem-accuracy", [run], {}))
    for radius in np.linspace(0.001, 1, 400):
        assert value(cohen, radius) >= value(li, radius) >= value(lecuyer, radius)
    assert value(cohen, 0.9) > value(li, 0.9) == 0


def test_projections_move_the_end_and_hardly_anything_else(certified):
    run = certified("imagenet/resnet50", "0.25", "0.25")
    by_n = lines(draw_figure("other-n", [run], {"n": [1_000, N, 10_000_000]}))
    ends = [line.get_xdata()[-1] for line in by_n]
    np.testing.assert_allclose(ends, [max_radius(n, 0.01, 0.25) for n in (1_000, N, 10_000_000)], rtol=1e-6)
    (own,) = lines(draw_figure("certified-accuracy", [run], {}))
    for radius in np.linspace(0.01, 0.97, 60):  # the log's own n and α: only its printed digits are lost
        assert value(by_n[1], radius) == pytest.approx(value(own, radius), abs=1.5)
    weak, strong = lines(draw_figure("other-alpha", [run], {"alphas": [1e-5, 0.1]}))
    for radius in np.linspace(0.01, 0.75, 60):  # "not very sensitive to α"
        assert 0 <= value(strong, radius) - value(weak, radius) < 3.5


def test_training_with_other_noise_certifies_less(certified):
    for network, levels in (("cifar10/resnet110", ("0.12", "0.25", "0.50")), ("imagenet/resnet50", ("0.25", "0.50"))):
        runs = [certified(network, level, "0.50") for level in levels]
        drawn = lines(draw_figure("training-noise", runs, {"trained": [float(level) for level in levels]}))
        starts = [value(line, 0.0) for line in drawn]
        assert starts == sorted(starts)  # the last is the one that was trained for this noise
        assert starts[-1] > starts[-2] + 20


def test_the_lower_bound_is_close_to_the_approximate_accuracy(certified):
    run = certified("cifar10/resnet110", "0.12", "0.12", alpha=0.001)
    assert len(run.rows) == 500
    approximate, exact, papers = lines(draw_figure("lower-bound", [run], {"rho": 0.001}))
    for radius in np.linspace(0, 0.45, 50):
        assert 0 < value(approximate, radius) - value(exact, radius) < 0.81  # four of 500
        assert 0 < value(approximate, radius) - value(papers, radius) < 1.2


def test_predictions_are_nearly_all_accurate_and_abstain_ever_less(tmp_path):
    runs = []
    for n in (100, 1_000, 10_000, N):
        log = LOGS / "predict" / "imagenet/resnet50" / "noise_0.25" / "test" / f"N_{n}"
        runs.append(import_log(log, tmp_path / str(n), sigma=0.25, alpha=0.01, n=n))
    cells = np.array([float(text.get_text()) for text in draw_figure("predictions", runs, {}).axes[1].texts])
    right, lucky, wrong, odd, abstained = cells.reshape(3, 5).T
    np.testing.assert_allclose(right, [65, 68, 69], atol=1.1)
    assert lucky.max() == odd.max() == 0
    np.testing.assert_allclose(wrong, [23, 28, 30], atol=2)
    # The table, at α = 0.001, has 12, 4 and 1; these logs abstain less, as they would at α = 0.01.
    np.testing.assert_allclose(abstained, [9.2, 3.2, 1.0], atol=0.05)


def test_votes_on_record_give_the_paper_s_table_of_cifar10(tmp_path):
    with np.load(VOTES) as arrays:
        counts = arrays[f"test_sigma0.25_n{N}"][::20]
    np.save(tmp_path / "votes.npy", counts)
    run = recorded_run(tmp_path / "votes.npy", sigma=0.25)
    (line,) = lines(draw_figure("certified-accuracy", [run], {}))
    log = np.loadtxt(
        LOGS / "certify/cifar10/resnet110/noise_0.25/test/sigma_0.25", skiprows=1, usecols=(2, 3), dtype=float
    )
    for radius in (0.001, 0.25, 0.5, 0.75):  # the same images, other draws, α = 0.001 instead of 0.01
        assert value(line, radius) == pytest.approx(100 * np.mean((log[:, 0] >= 0) & (log[:, 1] >= radius)), abs=2)
    cohen, li, lecuyer = lines(draw_figure("theorem-accuracy", [run], {}))
    for radius in np.linspace(0.001, 1, 200):
        assert value(cohen, radius) >= value(li, radius) >= value(lecuyer, radius)

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp
from scipy import stats

from smoothcert import noise as noise_module
from smoothcert.errors import ConfigError, InputError
from smoothcert.noise import NOISES, GaussianNoise, GridGaussianNoise, grid_table, rows_per_block
from smoothcert.records import Bounds
from smoothcert.streams import Stream, make_key

KEY = make_key(1)
SIGMAS = [0.01, 0.12, 0.25, 1.0]


def draw(noise, x, rows, block=0, stage=0):
    x = np.asarray(x, np.float32)
    out = np.empty((rows, x.size), np.float32)
    noise.fill(noise.centre(x), Stream(KEY, "index:0", stage), block, out)
    return out


@pytest.fixture(params=["kernel", "numpy"])
def path(request, monkeypatch):
    """Both ways to make grid noise."""
    if request.param == "numpy":
        monkeypatch.setattr(noise_module, "fused_fill", None)
    elif noise_module.fused_fill is None:
        pytest.skip("the kernel was not built: no C compiler at install time")
    return request.param


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_table_holds_the_exact_distribution_of_the_rounded_gaussian(sigma):
    """By integer arithmetic on the table: every value's probability, to 2^-78, against 50 digits."""
    table = grid_table(sigma, 255)
    count = len(table.low)
    mass = dict.fromkeys(range(-count, 1), Fraction(0))
    for cell in range(2**15):
        inside = [0, *(int(t) for t in table.low[table.start[cell] : table.start[cell + 1]]), 2**63]
        for passed, (a, b) in enumerate(pairwise(inside)):
            mass[int(table.start[cell]) - count + passed] += Fraction(b - a, 2**79)
    assert sum(mass.values()) == Fraction(1, 2)
    with mp.workdps(50):
        step = 1 / (mp.mpf(sigma) * 255)
        for value in range(-count, 0, max(1, count // 300)):
            exact = mp.ncdf((value + 0.5) * step) - (mp.ncdf((value - 0.5) * step) if value > -count else 0)
            ours = mp.mpf(mass[value].numerator) / mass[value].denominator
            assert abs(ours - exact) <= mp.mpf(2) ** -78


def test_refinement_agrees_with_whole_number_arithmetic():
    table = grid_table(1.0, 255)
    rng = np.random.default_rng(0)
    ambiguous = np.flatnonzero(np.isnan(table.steps)).astype(np.uint16)
    # the two tail cells hold hundreds of thresholds: give them extra weight, down to the last bits
    cells = np.concatenate([rng.choice(ambiguous, 2000), np.repeat([0, 65535], 200)]).astype(np.uint16)
    extra = rng.integers(0, 2**63, len(cells), dtype=np.int64) >> rng.integers(0, 63, len(cells))
    edge = table.low[table.start[np.minimum(cells, 65535 - cells)]]
    extra[::3] = edge[::3]  # exactly on a threshold counts as past it
    cell_of = np.searchsorted(table.start, np.arange(len(table.low)), side="right") - 1
    thresholds = [(int(c) << 63) | int(low) for c, low in zip(cell_of, table.low, strict=True)]
    for cell, bits, value in zip(cells, extra, table.refine(cells, extra), strict=True):
        lower = min(int(cell), 65535 - int(cell))
        expected = sum(t <= (lower << 63 | int(bits)) for t in thresholds) - len(thresholds)
        assert value == (expected if cell < 2**15 else -expected)


@pytest.mark.parametrize("sigma", [*SIGMAS, 3.0])
@pytest.mark.parametrize("size", [1, 3, 64, 784, 3072])
def test_the_kernel_makes_what_numpy_makes_bit_for_bit(sigma, size, monkeypatch):
    if noise_module.fused_fill is None:
        pytest.skip("the kernel was not built: no C compiler at install time")
    noise, x = GridGaussianNoise(sigma), (np.arange(size) % 256) / 255
    rows = min(rows_per_block(size), 333)
    fused = draw(noise, x, rows, block=5)
    monkeypatch.setattr(noise_module, "fused_fill", None)
    assert np.array_equal(fused, draw(noise, x, rows, block=5))


@pytest.mark.parametrize("sigma", [0.12, 1.0])
def test_grid_noise_follows_its_distribution(sigma, path):
    steps = np.rint((draw(GridGaussianNoise(sigma), np.full(512, 77 / 255), 512) - np.float32(77 / 255)) * 255)
    edges = np.arange(-int(4 * 255 * sigma), int(4 * 255 * sigma) + 1) + 0.5
    observed = np.bincount(np.searchsorted(edges, steps.ravel()), minlength=len(edges) + 1)
    expected = np.diff(stats.norm.cdf(edges / (255 * sigma)), prepend=0, append=1) * steps.size
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_float_noise_is_normal_and_its_two_halves_are_uncorrelated():
    z = draw(GaussianNoise(0.5), np.zeros(1001), 200) / 0.5
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:, :500].ravel(), z[:, 501:].ravel())[0, 1]) < 0.02
    assert np.isfinite(z).all()


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("size", [1, 7, 784])
def test_fewer_rows_are_the_first_of_more(name, size, path):
    noise = NOISES[name](0.25)
    x = np.zeros(size)
    assert np.array_equal(draw(noise, x, 40)[:13], draw(noise, x, 13))


@pytest.mark.parametrize("name", NOISES)
def test_blocks_and_stages_differ(name):
    noise, x = NOISES[name](0.25), np.zeros(100)
    first = draw(noise, x, 4)
    assert not np.array_equal(first, draw(noise, x, 4, block=1))
    assert not np.array_equal(first, draw(noise, x, 4, stage=1))


def test_noisy_copies_lie_on_the_grid_and_are_not_clipped(path):
    noisy = draw(GridGaussianNoise(1.0), np.tile([0.0, 1.0], 50), 500)
    steps = np.rint(noisy.astype(np.float64) * 255)
    assert np.array_equal((steps / 255).astype(np.float32), noisy)
    assert noisy.min() < -1
    assert noisy.max() > 2


def test_the_noise_added_does_not_depend_on_the_input(path):
    """x' + ε is made from the very same ε: what is left after taking the whole-number input away is equal."""
    noise = GridGaussianNoise(0.25)
    black, grey = np.zeros(300), np.full(300, 100 / 255)
    steps = [np.rint(draw(noise, x, 50).astype(np.float64) * 255) for x in (black, grey)]
    assert np.array_equal(steps[0] + 100, steps[1])


def test_all_256_grey_values_are_on_the_grid():
    values = np.arange(256, dtype=np.float32) / np.float32(255)
    assert np.array_equal(GridGaussianNoise(0.5).centre(values), np.arange(256))


@pytest.mark.parametrize("levels", [255, 65535])
@pytest.mark.parametrize("steps", [2.0**16 * 1.01, 4194304.5, 1e7, 1e12])
def test_values_that_float32_cannot_tell_from_the_grid_are_refused(steps, levels):
    """From 2^22 steps on the tolerance is half a step, and a value between two grid points would count as on it."""
    with pytest.raises(InputError, match=r"cannot tell|k/"):
        GridGaussianNoise(0.25, levels).centre(np.full(4, steps / levels, np.float32))


@pytest.mark.parametrize("levels", [255, 65535])
def test_every_value_on_the_grid_up_to_the_limit_is_known_and_none_between(levels):
    noise, steps = GridGaussianNoise(0.25, levels), np.arange(2**16 + 1)
    assert np.array_equal(noise.centre((steps / levels).astype(np.float32)), steps)
    between = ((steps + 0.02) / levels).astype(np.float32)
    for first in range(0, len(steps), 4096):
        with pytest.raises(InputError, match="k/"):
            noise.centre(between[first : first + 1])


def test_noise_so_wide_that_float32_cannot_add_it_exactly_is_refused():
    with pytest.raises(InputError, match=r"2\^24"):
        GridGaussianNoise(1e4).centre(np.zeros(4, np.float32))


@pytest.mark.parametrize("value", [0.5, 1e-4, 1 / 255 + 1e-6, np.nan, np.inf])
def test_values_off_the_grid_are_refused_with_their_place(value):
    x = np.zeros(10, np.float32)
    x[4] = value
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="index 4"):
        GridGaussianNoise(0.5).centre(x)


def test_other_grids_work_too(path):
    noisy = draw(GridGaussianNoise(0.25, levels=16), np.full(64, 3 / 16), 100)
    assert np.array_equal(noisy * 16, np.rint(noisy * 16))
    assert abs(noisy.std() - 0.25) < 0.01


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("sigma", [0, -1, float("nan"), float("inf"), "abc", True])
def test_a_noise_level_that_is_none_is_refused(name, sigma):
    with pytest.raises(ConfigError, match="sigma"):
        NOISES[name](sigma)


def test_no_label_means_no_radius():
    assert GaussianNoise(1.0).radius(Bounds(None, 1e-6, 1e-6)) == 0.0
    assert GaussianNoise(1.0).radius(Bounds(2, 0.01, 0.01)) == pytest.approx(2.3263, abs=1e-4)

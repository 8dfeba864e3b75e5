"""Bad inputs and faults, row by row (A01 …): what must happen is an explained error or a harmless result.

The rows on command lines and files are in tests/cli, on exact arithmetic in tests/stats.
"""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import FixedN, Predict, Smoothed
from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.inputs import check_labels
from smoothcert.records import floor_decimal, floor_float32
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.radii import cohen_radius

# The last channel is brighter, but not by so much that all noisy copies agree: votes of about 1 : 1 : 8.
IMAGE = (np.arange(64).reshape(8, 8) + np.array([0, 5, 25]).reshape(3, 1, 1)).astype(np.uint8)
NAN = float("nan")
QUICK = FixedN(n=300, n0=20, alpha=0.01)


class Means(nn.Module):
    """Three classes, the last one ahead on IMAGE. Counts its calls, so that "before any forward pass" shows."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.mean(dim=(2, 3))


def smoothed(model=None, **settings):
    return Smoothed(
        model or Means(), **{"sigma": 0.5, "seed": 0, "batch_size": 64, "input_shape": (3, 8, 8), **settings}
    )


def votes(model, **settings):
    return smoothed(model, **settings).certify(IMAGE, QUICK).stages


def test_the_image_of_these_tests_divides_the_votes():
    """Else equal votes would prove nothing."""
    assert all(count > 3 for count in votes(Means())[1].counts)


@pytest.mark.parametrize("sigma", [0, -0.5, NAN, float("inf"), "abc", None, True])
def test_a01_a_noise_level_out_of_range_is_refused(sigma):
    with pytest.raises(ConfigError, match=r"`sigma`.*> 0.*got"):
        smoothed(sigma=sigma)


@pytest.mark.parametrize("alpha", [0, -1e-3, 0.5, 1, NAN, "0.1"])
@pytest.mark.parametrize("procedure", [FixedN, Predict])
def test_a02_a_failure_probability_out_of_range_is_refused(procedure, alpha):
    with pytest.raises(ConfigError, match=r"`alpha` in \(0, 0.5\), got"):
        procedure(alpha=alpha)


def test_a03_a_tiny_failure_probability_neither_underflows_nor_becomes_nan():
    certificate = smoothed(lambda b: b[:, :1, 0, 0] * torch.tensor([0.0, 0.0]) + torch.tensor([1.0, 0.0]))
    result = certificate.certify(IMAGE, FixedN(n=5000, alpha=1e-300))
    # all 5,000 votes: 1 − p = 1 − 1e-300^(1/5000)
    assert result.bounds.q_a_upper == pytest.approx(-np.expm1(-300 * np.log(10) / 5000), rel=1e-8)
    assert 0 < result.radius < 1


@pytest.mark.parametrize("n", [0, -5, 2.5, 2**53 + 1, "10", True])
@pytest.mark.parametrize("procedure", [FixedN, Predict])
def test_a04_a_number_of_draws_that_is_none_is_refused(procedure, n):
    with pytest.raises(ConfigError, match="`n`"):
        procedure(n=n)


def test_a05_no_selection_draws_are_refused():
    with pytest.raises(ConfigError, match="`n0`"):
        FixedN(n0=0)


@pytest.mark.parametrize(("procedure", "least"), [(FixedN, 10), (Predict, 11)])
def test_a06_too_few_draws_are_refused_with_the_number_needed(procedure, least):
    with pytest.raises(ConfigError, match=rf"n=5 can never certify at alpha=0.001; need n>={least}"):
        procedure(n=5, alpha=0.001)
    assert procedure(n=least, alpha=0.001)
    with pytest.raises(ConfigError):
        procedure(n=least - 1, alpha=0.001)


@pytest.mark.parametrize("batch_size", [0, -1, 0.5])
def test_a07_a_batch_size_that_is_none_is_refused(batch_size):
    with pytest.raises(ConfigError, match="batch_size"):
        smoothed(batch_size=batch_size)


def test_a09_one_class_is_refused():
    with pytest.raises(ConfigError, match="num_classes"):
        smoothed(num_classes=1)


def bad_image(value):
    x = IMAGE / np.float32(255)
    x[1, 2, 3] = value
    return x


@pytest.mark.parametrize("value", [NAN, np.inf, -np.inf])
def test_a11_a12_values_that_are_not_finite_are_refused_with_their_place(value):
    model = Means()
    for x in (bad_image(value), torch.from_numpy(bad_image(value))):
        with pytest.raises(InputError, match=r"\(1, 2, 3\)"):
            smoothed(model).certify(x)
    assert model.calls == 0


def test_a13_8_bit_images_are_divided_by_255_and_never_taken_as_they_are():
    assert smoothed().certify(IMAGE, QUICK) == smoothed().certify(IMAGE / 255, QUICK)


def test_a14_pixels_from_0_to_255_are_refused():
    with pytest.raises(InputError, match="outside the declared range"):
        smoothed().certify(IMAGE.astype(np.float32))


@pytest.mark.parametrize("settings", [{"noise": "grid"}, {"secure": True, "seed": None}])
def test_a15_values_off_the_grid_are_refused_where_the_grid_is_demanded(settings):
    with pytest.raises(InputError, match=r"index 83\..*Quantise"):
        smoothed(**settings).certify(bad_image(0.12345))


def test_a16_a_batch_is_not_taken_for_one_input():
    g = smoothed()
    assert len(g.certify(np.stack([IMAGE, IMAGE]), QUICK)) == 2
    with pytest.raises(InputError, match="shape"):
        g.certify(IMAGE[None, None])


@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 8, 8), (3, 8, 7), (3, 0, 8), (0,), (8, 8, 3)])
def test_a17_a18_other_shapes_and_orders_are_refused_with_both(shape):
    with pytest.raises(InputError, match=r"\(3, 8, 8\).*got \(" + ", ".join(map(str, shape))):
        smoothed().certify(np.zeros(shape))


def test_a17_an_empty_input_is_refused_without_a_declared_shape_too():
    with pytest.raises(InputError):
        smoothed(input_shape=None).certify(np.zeros((3, 0, 8)))


def test_a19_types_and_memory_layouts_are_defined():
    on_grid = torch.from_numpy(IMAGE).double() / 255
    g = smoothed(noise="gaussian")
    expected = g.certify(on_grid.float(), QUICK)
    for x in (on_grid, on_grid.float().requires_grad_(), on_grid.permute(2, 1, 0).contiguous().permute(2, 1, 0)):
        assert g.certify(x, QUICK) == expected
    for dtype in (torch.float16, torch.bfloat16):
        x = on_grid.to(dtype)
        assert g.certify(x, QUICK) == g.certify(x.float(), QUICK)
    for x in (on_grid.cfloat(), on_grid.to_sparse(), on_grid.long()):
        with pytest.raises(InputError):
            g.certify(x)


def test_a20_an_input_without_values_is_refused_and_others_are_moved():
    with pytest.raises(InputError, match="meta"):
        smoothed().certify(torch.zeros(3, 8, 8, device="meta"))
    devices = set()

    class Spy(Means):
        def forward(self, x):
            devices.add(x.device)
            return super().forward(x)

    g = smoothed(Spy(), device="cpu")
    g.certify(IMAGE, QUICK)
    assert devices == {g.device}


def test_a21_a_model_that_overwrites_its_input_is_harmless():
    class Clamps(Means):
        def forward(self, x):
            scores = super().forward(x)
            x.clamp_(0, 0.1)
            return scores

    x = (IMAGE / 255).astype(np.float32)
    before = x.copy()
    assert smoothed(Clamps()).certify(x, QUICK).stages == votes(Means())
    assert np.array_equal(x, before)


@pytest.mark.parametrize("label", [-1, 3, NAN, "cat", None])
def test_a22_labels_that_are_no_class_are_refused(label):
    with pytest.raises(InputError, match="labels"):
        check_labels([0, label], 3)


def test_a23_a_model_that_only_says_nan_is_refused():
    with pytest.raises(ModelError, match="NaN"):
        votes(lambda b: torch.full((len(b), 3), NAN))


def test_a23_a_model_that_says_nan_on_all_but_a_few_abstains():
    def rarely(batch):
        scores = batch.mean(dim=(2, 3))
        scores[batch[:, 0, 0, 0] < 0.25] = torch.nan  # leaves about three samples in ten
        return scores

    result = smoothed(rarely).certify(IMAGE, QUICK)
    assert result.label is None
    assert result.radius == 0.0
    assert result.invalid > 150
    assert result.to_dict()["stages"][1]["invalid"] > 150


def test_a24_some_nan_answers_count_against_the_claim():
    def sometimes(batch):
        scores = torch.stack([torch.ones(len(batch)), torch.zeros(len(batch))], 1)
        scores[batch[:, 0, 0, 0] > 1.16] = torch.nan  # 2.3 standard deviations: about one in a hundred
        return scores

    clean = smoothed(lambda b: torch.tensor([[1.0, 0.0]]).repeat(len(b), 1))
    procedure = FixedN(n=20_000, alpha=0.001)
    with_nan, without = smoothed(sometimes).certify(IMAGE, procedure), clean.certify(IMAGE, procedure)
    assert 100 < with_nan.invalid < 400
    assert sum(with_nan.stages[1].counts) + with_nan.stages[1].invalid == 20_000
    failures = 20_000 - with_nan.stages[1].counts[0]
    assert with_nan.radius == cohen_radius(clopper_pearson_upper(failures, 20_000, 0.001), sigma=0.5) < without.radius
    assert "without an answer" in repr(with_nan)


def test_a25_infinite_scores_are_ordered_and_two_are_a_tie():
    def model(batch):
        scores = torch.zeros(len(batch), 3)
        scores[:, 1] = torch.inf
        scores[batch[:, 0, 0, 0] > 0, 2] = torch.inf
        return scores

    first = votes(model)[1]
    assert first.counts[1] == 300  # the lower of two infinite ones
    assert 0 < first.ties < 300


def test_a26_ties_go_to_the_lowest_class_and_are_flagged():
    first = votes(lambda b: torch.zeros(len(b), 3))[1]
    assert first.counts == (300, 0, 0)
    assert first.ties == 300


@pytest.mark.parametrize(
    "output",
    [
        lambda b: torch.zeros(len(b), 4),
        lambda b: torch.zeros(len(b), 2),
        lambda b: torch.zeros(len(b)),
        lambda b: (torch.zeros(len(b), 3),),
        lambda b: {"logits": torch.zeros(len(b), 3)},
        lambda b: torch.zeros(len(b) + 1, 3),
        lambda b: b.mean(dim=(2, 3))[:1],
    ],
)
def test_a27_a28_outputs_of_another_form_are_refused_before_sampling(output):
    draws = []

    def model(batch):
        draws.append(len(batch))
        return output(batch)

    with pytest.raises(ModelError, match="Expected"):
        votes(model, num_classes=3)
    assert sum(draws) <= 8


def test_a28_a_batch_length_that_goes_wrong_later_is_refused_too():
    with pytest.raises(ModelError, match="one answer per input"):
        votes(lambda b: torch.zeros(min(len(b), 30), 3))


def test_a29_batch_norm_in_train_mode_is_put_into_eval_and_without_statistics_refused():
    kept, none = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
    model = nn.Sequential(kept, Means()).train()
    before = kept.running_mean.clone()
    votes(model)
    assert torch.equal(kept.running_mean, before)
    with pytest.raises(ModelError, match="influence each other"):
        votes(nn.Sequential(none, Means()))


def test_a30_quantisation_by_the_batchs_own_range_is_refused():
    class Dynamic(Means):
        def forward(self, x):
            scale = x.abs().max() / 127
            return super().forward((x / scale).round() * scale)

    with pytest.raises(ModelError, match="influence each other"):
        votes(Dynamic())


def test_a31_dropout_left_on_is_switched_off_and_back_on():
    model = nn.Sequential(nn.Dropout(0.9), Means()).train()
    assert votes(model) == votes(Means())
    assert model.training


def test_a31_randomness_must_be_declared_and_then_counts():
    class Noisy(Means):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 3)

    with pytest.raises(ModelError, match="allow_random"):
        votes(Noisy())
    assert sum(votes(Noisy(), allow_random=True)[1].counts) == 300


@pytest.mark.parametrize(("k", "n"), [(0, 100), (50, 100), (100, 100), (10**9, 10**9)])
def test_a36_extreme_counts_give_finite_radii(k, n):
    radius = cohen_radius(clopper_pearson_upper(n - k, n, 0.001), sigma=1.0)
    assert np.isfinite(radius)
    assert (radius > 0) == (k == n)


def test_a36_one_half_exactly_abstains():
    assert cohen_radius(0.5, sigma=1.0) == 0.0


def test_a38_written_radii_never_exceed_the_computed_one():
    result = smoothed().certify(IMAGE, QUICK)
    assert json.loads(json.dumps(result.to_dict()))["radius"] == result.radius
    assert float(floor_decimal(result.radius)) <= result.radius
    assert float(floor_float32(result.radius)) <= result.radius
    assert float(repr(result).split("radius ")[1].split(";")[0]) <= result.radius


def test_a40_a_thousand_equal_requests_have_one_answer():
    g = smoothed(seed=None)
    answers = {g.predict(IMAGE, Predict(n=20, alpha=0.01)).stages for _ in range(1000)}
    assert len(answers) == 1


def test_a41_without_a_seed_the_key_is_fresh_and_recorded():
    keys = {smoothed(seed=None).certify(IMAGE, QUICK).key for _ in range(5)}
    assert len(keys) == 5
    assert all(len(key) == 64 for key in keys)


def test_a42_a_secure_run_takes_no_seed_and_no_float_noise():
    with pytest.raises(ConfigError, match="seed"):
        smoothed(secure=True, seed=1)
    with pytest.raises(ConfigError, match="grid noise"):
        smoothed(secure=True, seed=None, noise="gaussian")
    assert smoothed(secure=True, seed=None).certify(IMAGE, QUICK).noise == "grid"


def test_a43_global_random_state_is_neither_read_nor_changed():
    class Reseeds(Means):
        def forward(self, x):
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002
            random.seed(0)
            return super().forward(x)

    torch.manual_seed(123)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert votes(Reseeds()) == votes(Means())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]  # noqa: NPY002


WORKER = """
import sys, json, numpy as np
from smoothcert import FixedN, Smoothed
g = Smoothed(lambda b: b.mean(dim=(2, 3)), 0.5, seed=0, batch_size=64)
x = (np.arange(64).reshape(8, 8) + np.array([0, 5, 25]).reshape(3, 1, 1)).astype(np.uint8)
print(json.dumps(g.certify(x, FixedN(n=300, n0=20, alpha=0.01), index=int(sys.argv[1])).to_dict()["stages"]))
"""


def test_a44_processes_draw_disjoint_streams_and_the_same_as_one_process():
    printed = [
        json.loads(subprocess.run([sys.executable, "-c", WORKER, i], capture_output=True, check=True).stdout)
        for i in ("0", "1")
    ]
    assert printed[0] != printed[1]
    for index, stages in enumerate(printed):
        assert stages == smoothed().certify(IMAGE, QUICK, index=index).to_dict()["stages"]


def test_a45_batch_sizes_see_the_same_noise():
    seen = {}
    for size in (1, 7, 4096):
        rows = seen[size] = []

        def record(batch, rows=rows):
            rows.append(batch.clone())
            return batch.mean(dim=(2, 3))

        g = smoothed(record, batch_size=size)
        g.check(IMAGE)
        rows.clear()
        g.predict(IMAGE, Predict(n=100))
    assert [len(torch.cat(rows)) for rows in seen.values()] == [104] * 3  # four are classified again
    copies = [torch.cat(rows)[:100] for rows in seen.values()]
    assert torch.equal(copies[0], copies[1])
    assert torch.equal(copies[0], copies[2])

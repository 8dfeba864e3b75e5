import threading

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.errors import ModelError
from smoothcert.noise import NOISES, GaussianNoise, GridGaussianNoise, rows_per_block
from smoothcert.records import Votes
from smoothcert.sampling import Plan, Tally, count_votes, pick_device, preserved_random_state, worker_pool
from smoothcert.streams import Stream, make_key

CPU = torch.device("cpu")
IMAGE = (np.arange(192, dtype=np.float32) % 256 / np.float32(255)).reshape(3, 8, 8)


class Brightest(nn.Module):
    """Votes for the channel with the largest pixel: no arithmetic, so no batch size can change an answer."""

    def forward(self, x):
        return x.amax(dim=(2, 3))


def votes(model=None, n=1000, *, noise=None, plan=None, x=IMAGE, stage=0, name="index:0", classes=3, **settings):
    return count_votes(
        model or Brightest(),
        noise or GridGaussianNoise(0.5),
        x,
        n,
        num_classes=classes,
        stream=Stream(make_key(3), name, stage),
        plan=plan or Plan(64),
        device=CPU,
        **settings,
    )


def noisy_copies(noise, n, x=IMAGE):
    """The first n copies by the definition: block after block, straight from the noise."""
    rows = rows_per_block(x.size)
    blocks = []
    for block in range(-(-n // rows)):
        out = np.empty((rows, x.size), np.float32)
        noise.fill(noise.centre(x), Stream(make_key(3), "index:0", 0), block, out)
        blocks.append(out)
    return np.concatenate(blocks)[:n].reshape(n, *x.shape)


@pytest.mark.parametrize("name", NOISES)
def test_votes_are_the_argmax_of_the_model_on_the_streams_copies(name):
    noise = NOISES[name](0.5)
    n = 3 * rows_per_block(IMAGE.size) + 17
    labels = noisy_copies(noise, n).max(axis=(2, 3)).argmax(axis=1)
    expected = Votes.of(np.bincount(labels, minlength=3))
    counted = votes(noise=noise, n=n)
    assert counted.counts == expected.counts
    assert counted.n == n


@pytest.mark.parametrize("name", NOISES)
def test_batch_size_layout_and_workers_do_not_change_the_votes(name):
    n = 5000
    noise = NOISES[name](0.5)
    reference = votes(n=n, noise=noise, plan=Plan(64))
    for plan in (
        Plan(1),
        Plan(7),
        Plan(4096),
        Plan(100, channels_last=True),
        Plan(33, workers=2),
        Plan(9999, workers=3),
    ):
        few = 300 if plan.batch_size == 1 else n
        assert votes(n=few, noise=noise, plan=plan) == (votes(n=few, noise=noise) if few != n else reference)


def test_channels_last_reaches_the_model():
    seen = []

    class Spy(Brightest):
        def forward(self, x):
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    votes(Spy(), plan=Plan(64, channels_last=True))
    assert all(seen)


def test_fewer_draws_are_the_first_of_more():
    first, more = votes(n=1000), votes(n=4000)
    assert all(a <= b for a, b in zip(first.counts, more.counts, strict=True))


def test_inputs_and_stages_have_noise_of_their_own():
    assert votes(name="index:0") != votes(name="index:1")
    assert votes(stage=0) != votes(stage=1)


def test_a_model_that_changes_its_input_in_place_changes_nothing_else():
    class Vandal(Brightest):
        def forward(self, x):
            scores = super().forward(x)
            x.zero_()
            return scores

    assert votes(Vandal(), n=3000) == votes(n=3000)
    assert IMAGE.any()


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("out"), RuntimeError("can't allocate memory")])
@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_memory_halves_the_batch_and_keeps_the_noise(error, workers, caplog):
    sizes = []

    class Hungry(Brightest):
        def forward(self, x):
            sizes.append(len(x))
            scores = super().forward(x)
            x.zero_()  # fails after it has spoilt its input
            if len(x) > 9:
                raise error
            return scores

    assert votes(Hungry(), n=3000, plan=Plan(64, workers=workers)) == votes(n=3000)
    assert max(sizes) == 64
    assert sizes[-1] <= 8
    assert "going on with 8" in caplog.text
    assert caplog.text.count("out of memory") <= 3 * workers  # said once per size, not once per batch


def test_out_of_memory_at_batch_size_one_is_an_error():
    class Insatiable(nn.Module):
        def forward(self, x):
            raise MemoryError("no room")

    with pytest.raises(MemoryError):
        votes(Insatiable(), n=10)


def test_other_errors_are_not_swallowed():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no kernel")

    for workers in (1, 2):
        with pytest.raises(RuntimeError, match="no kernel"):
            votes(Broken(), n=20_000, plan=Plan(64, workers=workers))


def test_modes_are_eval_during_and_restored_after():
    model = nn.Sequential(Brightest(), nn.Dropout(0.9)).train()
    assert votes(model) == votes()
    assert model.training
    assert model[1].training


def test_memory_does_not_grow_with_the_number_of_draws():
    largest = []

    class Spy(Brightest):
        def forward(self, x):
            largest.append(len(x))
            return super().forward(x)

    votes(Spy(), n=20_000, plan=Plan(50))
    assert max(largest) == 50


def test_progress_is_told_of_every_draw():
    told = []
    votes(n=12_345, plan=Plan(64, workers=2), on_draws=told.append)
    assert sum(told) == 12_345
    assert len(told) > 1


def test_workers_share_the_threads_and_the_caller_keeps_its_own():
    before = torch.get_num_threads()
    pool = worker_pool(2)
    assert torch.get_num_threads() == before
    barrier = threading.Barrier(2)

    def threads():
        barrier.wait()
        return torch.get_num_threads()

    both = [pool.submit(threads) for _ in range(2)]
    assert [future.result() for future in both] == [max(1, before // 2)] * 2
    assert torch.get_num_threads() == before


def test_a_model_that_is_interrupted_stops_the_other_workers():
    calls = []

    class Interrupted(nn.Module):
        def forward(self, x):
            calls.append(len(x))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        votes(Interrupted(), n=10**6, plan=Plan(1000, workers=2))
    assert sum(calls) < 10**5


def tally(output, classes=3):
    counter = Tally(classes, CPU)
    counter.add(output)
    [counted] = counter.votes()
    return counted


def test_nan_scores_vote_for_no_class_even_when_another_score_is_larger():
    scores = torch.tensor([[1.0, 0, 0], [torch.nan, 5, 0], [0, torch.nan, torch.nan], [0, 0, 1]])
    assert tally(scores) == Votes((1, 0, 1), invalid=2)


def test_infinite_scores_are_ordered_and_two_of_them_are_a_tie():
    inf = torch.inf
    scores = torch.tensor([[0.0, inf, 0], [inf, 0, inf], [-inf, 0, -inf], [-inf, -inf, -inf]])
    assert tally(scores) == Votes((2, 2, 0), ties=2)


def test_ties_go_to_the_lowest_class_and_are_counted():
    assert tally(torch.tensor([[1.0, 1, 1], [0, 2, 2], [3, 0, 0]])) == Votes((2, 1, 0), ties=2)


def test_ties_far_down_a_long_batch_follow_the_same_rule():
    assert tally(torch.zeros(5000, 1000), 1000).counts[0] == 5000


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_any_integer_type_are_counted(dtype):
    assert tally(torch.tensor([0, 2, 2], dtype=dtype)) == Votes((1, 0, 2))


def test_negative_labels_are_no_class_and_too_large_ones_an_error():
    assert tally(torch.tensor([-1, 1])) == Votes((0, 1, 0), invalid=1)
    with pytest.raises(ModelError, match="num_classes=3"):
        tally(torch.tensor([3, 1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_of_any_float_type_are_counted(dtype):
    assert tally(torch.tensor([[0, 1, 0], [2, 1, 0]], dtype=dtype)) == Votes((1, 1, 0))


def test_the_device_is_the_one_asked_for_or_the_cpu_for_plain_callables():
    assert pick_device(Brightest(), "meta").type == "meta"
    assert pick_device(lambda x: x, None).type == "cpu"
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert pick_device(Brightest(), None).type == "cpu"


def test_the_callers_random_state_survives_what_a_model_does():
    import random

    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    before = states()
    with preserved_random_state():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.rand(3)
    assert states() == before


def test_float_noise_on_vectors_works_without_declared_range():
    x = np.array([1000.0, -3.5], np.float32)
    result = votes(lambda b: torch.stack([b[:, 0], b[:, 1]], 1), noise=GaussianNoise(2.0), x=x, classes=2)
    assert result.counts == (1000, 0)

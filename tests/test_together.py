"""The draws of several inputs share forward batches, and each input is answered as if it were alone."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import FixedN, Smoothed
from smoothcert.errors import ModelError
from smoothcert.noise import GaussianNoise, GridGaussianNoise, rows_per_block
from smoothcert.records import Bounds, Votes
from smoothcert.sampling import Plan, Request, Tally, count_votes, count_votes_together
from smoothcert.stats.procedures import Running, run
from smoothcert.streams import Stream, make_key

CPU = torch.device("cpu")
RNG = np.random.default_rng(8)
BLOCK = rows_per_block(192)
COUNTS = [1, 30, BLOCK, 5, BLOCK + 1, 3 * BLOCK - 7, 1, 2 * BLOCK, 100]
PLANS = [Plan(size, workers=workers) for size in (1, 7, 64, 4096) for workers in (1, 2)]


class Brightest(nn.Module):
    """Votes for the channel with the largest pixel: no arithmetic, so no batch size can change an answer."""

    def forward(self, x):
        return x.amax(dim=(2, 3))


class Watched(Brightest):
    """Remembers how long its batches were."""

    def __init__(self):
        super().__init__()
        self.lengths = []

    def forward(self, x):
        self.lengths.append(len(x))
        return super().forward(x)


def images(count):
    return RNG.integers(0, 256, (count, 3, 8, 8)).astype(np.float32) / np.float32(255)


def requests(counts=COUNTS):
    noises = [GridGaussianNoise(0.5), GaussianNoise(0.5), GaussianNoise(0.25)]
    return [
        Request(noises[i % 3], x, n, Stream(make_key(3), f"index:{i}", i % 2))
        for i, (x, n) in enumerate(zip(images(len(counts)), counts, strict=True))
    ]


def together(wishes, plan, model=None, classes=3, **settings):
    return count_votes_together(model or Brightest(), wishes, num_classes=classes, plan=plan, device=CPU, **settings)


def alone(wishes, plan):
    settings = {"num_classes": 3, "plan": plan, "device": CPU}
    return [count_votes(Brightest(), r.noise, r.x, r.n, stream=r.stream, **settings) for r in wishes]


def by_definition(request):
    """The votes of a request, block after block, straight from the noise."""
    rows = np.empty((-(-request.n // BLOCK) * BLOCK, request.x.size), np.float32)
    for block in range(len(rows) // BLOCK):
        out = rows[block * BLOCK : (block + 1) * BLOCK]
        request.noise.fill(request.noise.centre(request.x), request.stream, block, out)
    labels = rows[: request.n].reshape(-1, *request.x.shape).max(axis=(2, 3)).argmax(axis=1)
    return Votes.of(np.bincount(labels, minlength=3)).counts


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_votes_together_are_those_alone_and_those_of_the_definition(plan):
    wishes = requests()
    shared = together(wishes, plan)
    assert shared == alone(wishes, Plan(256))
    assert [votes.n for votes in shared] == COUNTS
    assert [votes.counts for votes in shared] == [by_definition(request) for request in wishes]


def test_the_company_does_not_matter():
    wishes = requests()
    shared = together(wishes, Plan(64))
    assert together(wishes[::-1], Plan(64)) == shared[::-1]
    assert together(wishes[3:6], Plan(50, workers=2)) == shared[3:6]


def test_no_request_and_no_draws_give_no_votes():
    assert together([], Plan(64)) == []
    some = requests([0, 5, 0])
    assert [votes.n for votes in together(some, Plan(64))] == [0, 5, 0]
    assert together(some[:1], Plan(64, workers=2)) == [Votes((0, 0, 0))]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("count", "size"), [(10, 64), (100, 64), (700, 64), (300, 96), (1025, 1000), (3, 4)])
def test_every_batch_but_the_last_is_full(count, size, workers):
    model, total = Watched(), 40 * count
    together(requests([count] * 40), Plan(size, workers=workers), model)
    assert sum(model.lengths) == total
    assert sorted(model.lengths, reverse=True) == [size] * (total // size) + [total % size] * (total % size > 0)


def test_which_copies_share_a_batch_does_not_depend_on_the_workers_haste():
    class Batches(Brightest):
        def __init__(self):
            super().__init__()
            self.seen = set()

        def forward(self, x):
            self.seen.add(x.numpy().tobytes())
            return super().forward(x)

    wishes, seen = requests([300] * 10), []
    for workers in (1, 2, 2, 3):
        model = Batches()
        together(wishes, Plan(64, workers=workers), model)
        seen.append(model.seen)
    assert all(batches == seen[0] for batches in seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_memory_halves_the_batch_and_keeps_every_requests_noise(workers, caplog):
    class Hungry(Watched):
        def forward(self, x):
            scores = super().forward(x)
            x.zero_()  # fails after it has spoilt its input
            if len(x) > 9:
                raise MemoryError
            return scores

    wishes, model = requests(), Hungry()
    assert together(wishes, Plan(64, workers=workers), model) == alone(wishes, Plan(64))
    assert max(model.lengths) == 64
    assert "going on with 8" in caplog.text


def test_each_request_keeps_its_ties_and_its_draws_without_an_answer():
    tally = Tally(3, CPU, requests=3)
    scores = torch.tensor([[1.0, 1, 0], [torch.nan, 5, 0], [0, 0, 1], [2, 2, 2], [0, 3, 0]])
    tally.add(scores, torch.tensor([0, 2, 2, 2, 0]))
    other = Tally(3, CPU, requests=3)
    other.add(torch.tensor([-1, 2]), torch.tensor([0, 1]))
    tally.join(other)
    assert tally.votes() == [
        Votes((1, 1, 0), invalid=1, ties=1),
        Votes((0, 0, 1)),
        Votes((1, 0, 1), invalid=1, ties=1),
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_out_of_range_is_an_error_and_no_vote_for_the_neighbour(workers):
    wishes = requests([600] * 5)
    for model in (lambda x: torch.full((len(x),), 3), lambda x: torch.eye(7)[[5] * len(x)]):
        with pytest.raises(ModelError, match=r"num_classes=3, got 3000 larger"):
            together(wishes, Plan(64, workers=workers), model)


def test_inputs_of_different_shapes_are_refused():
    first, second = requests([5, 5])
    turned = Request(second.noise, second.x.reshape(8, 8, 3), 5, second.stream)
    with pytest.raises(ValueError, match="one shape"):
        together([first, turned], Plan(64))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("no kernel")])
def test_an_interruption_or_error_ends_all_work(error, workers):
    class Stopping(Watched):
        def forward(self, x):
            super().forward(x)
            raise error

    model = Stopping()
    with pytest.raises(error if isinstance(error, type) else type(error)):
        together(requests([1000] * 100), Plan(50, workers=workers), model)
    assert len(model.lengths) <= workers


def test_progress_is_told_of_every_draw():
    told = []
    together(requests(), Plan(64, workers=2), on_draws=told.append)
    assert sum(told) == sum(COUNTS)
    assert len(told) > 1


def test_the_input_is_put_on_the_noises_grid_once_per_request():
    looks = []

    class Looked(GridGaussianNoise):
        def centre(self, x):
            looks.append(1)
            return super().centre(x)

    wishes = [Request(Looked(0.5), r.x, 5000, r.stream) for r in requests([1, 1])]
    together(wishes, Plan(64, workers=2))
    assert len(looks) == 2


# ---- procedures that stop at different times ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UntilAhead:
    """Asks for `step` draws at a time until one class is `lead` votes ahead, or no more stages are left."""

    step: int = 10
    lead: int = 15
    most: int = 12
    alpha: float = 0.01

    def __call__(self) -> Generator[int, Votes, Bounds]:
        total = Votes((0, 0, 0))
        for _ in range(self.most):
            total += yield self.step
            label = total.leader
            if total.counts[label] - total.rival(label) >= self.lead:
                return Bounds(label, 0.25, 0.25)
        return Bounds(None)


@dataclass(frozen=True, kw_only=True)
class Unasked:
    """Concludes without a single draw."""

    alpha: float = 0.01

    def __call__(self) -> Generator[int, Votes, Bounds]:
        return Bounds(None)
        yield 0


def smoothed(model=None, **settings):
    return Smoothed(model or Brightest(), 0.5, 3, **{"seed": 1, "batch_size": 64, **settings})


def test_inputs_that_stop_early_leave_the_others_untouched():
    batch, g = images(70), smoothed()
    certificates = g.certify(batch, UntilAhead())
    lengths = {len(certificate.stages) for certificate in certificates}
    assert len(lengths) > 4, "the inputs should stop at different times"
    assert certificates == [g.certify(x, UntilAhead()) for x in batch]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_windows_of_any_length_give_the_same_results_in_order(size):
    batch = images(30)
    expected = smoothed().certify(batch, UntilAhead(), index=5)
    assert smoothed(batch_size=size).certify(batch, UntilAhead(), index=5) == expected
    assert [certificate.input_id for certificate in expected] == [f"index:{5 + i}" for i in range(30)]


def test_grid_and_float_noise_share_a_call():
    batch = images(6)
    batch[1::2] *= np.float32(0.999)
    g = smoothed()
    certificates = g.certify(batch, UntilAhead())
    assert [certificate.noise for certificate in certificates] == ["grid", "gaussian"] * 3
    assert certificates == [g.certify(x, UntilAhead()) for x in batch]


def test_forward_batches_are_full_when_every_input_asks_for_a_few_draws():
    model = Watched()
    g = smoothed(lambda x: model(x))  # a plain callable has one worker
    g.certify(images(1), UntilAhead(most=1))  # the contract is checked
    model.lengths.clear()
    g.certify(images(40), UntilAhead(most=1))
    assert [length for length in model.lengths if length > 1] == [64] * 6 + [16]
    assert model.lengths.count(1) == 40 * 4  # each input's samples that are classified again, alone


def test_a_long_request_is_not_held_up_by_the_inputs_behind_it():
    """Cases are served in order, so that the first are done while the last have not begun."""
    model, done = Watched(), []

    @dataclass(frozen=True, kw_only=True)
    class Telling(FixedN):
        def __call__(self):
            bounds = yield from super().__call__()
            done.append(sum(model.lengths))
            return bounds

    smoothed(model, batch_size=8).certify(images(10), Telling(n=3000, n0=10, alpha=0.01))
    assert done == sorted(done)
    assert done[0] < 5000


def test_a_procedure_without_draws_has_its_say():
    first, second = smoothed().certify(images(2), Unasked())
    assert first.stages == second.stages == ()
    assert first.label is None


def test_a_batch_shows_how_many_inputs_are_done(capsys, monkeypatch):
    batch = images(20)
    quiet = smoothed(progress=False).certify(batch, UntilAhead())
    monkeypatch.setattr("smoothcert.progress.PATIENCE", 0.0)
    assert smoothed(progress=True).certify(batch, UntilAhead()) == quiet
    shown = capsys.readouterr().err
    assert "inputs" in shown
    assert "20/20" in shown
    assert "draws" not in shown


# ---- the protocol ---------------------------------------------------------------------------------------------------


def test_a_running_procedure_tells_what_it_wants_until_it_has_finished():
    running = Running(FixedN(n=20, n0=5, alpha=0.01))
    assert (running.wanted, running.finished) == (5, False)
    running.give(Votes((5, 0)))
    assert (running.wanted, running.finished) == (20, False)
    running.give(Votes((20, 0)))
    assert running.finished
    assert running.conclusion.label == 0
    assert running.stages == [Votes((5, 0)), Votes((20, 0))]


def test_a_running_procedure_refuses_votes_of_another_number_of_draws():
    with pytest.raises(ValueError, match="stage 0 asked for 5 draws and was given 6"):
        Running(FixedN(n=20, n0=5, alpha=0.01)).give(Votes((6, 0)))


def test_run_drives_a_procedure_that_wants_nothing():
    assert run(Unasked(), lambda _, n: Votes((n,))) == (Bounds(None), ())

import torch
from torch import nn

from smoothcert import tuning
from smoothcert.models.architectures import small_cnn
from smoothcert.sampling import in_layout
from smoothcert.tuning import tuned_plan

CPU = torch.device("cpu")


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.flatten(1)[:, :2]


def test_the_plan_is_measured_once_per_model_and_shape():
    model = Counting()
    first = tuned_plan(model, (1, 4, 4), CPU)
    calls = model.calls
    assert calls > 0
    assert tuned_plan(model, (1, 4, 4), CPU) is first
    assert model.calls == calls
    tuned_plan(model, (1, 8, 8), CPU)
    assert model.calls > calls


def test_the_plan_is_forgotten_with_the_model():
    model = Counting()
    tuned_plan(model, (4,), CPU)
    before = len(tuning._plans)
    del model
    assert len(tuning._plans) == before - 1


def test_a_plan_is_a_power_of_two_within_bounds():
    plan = tuned_plan(small_cnn(), (1, 8, 8), CPU)
    assert plan.batch_size & (plan.batch_size - 1) == 0
    assert 8 <= plan.batch_size <= 1024


def test_memory_running_out_ends_the_search_with_what_fitted():
    class Hungry(nn.Module):
        def forward(self, x):
            if len(x) > 16:
                raise MemoryError
            return x.flatten(1)[:, :2]

    assert tuned_plan(Hungry(), (4,), CPU).batch_size <= 16


def test_plain_callables_are_run_by_one_worker():
    assert tuned_plan(lambda x: x, (4,), CPU).workers == 1


def test_callables_that_cannot_be_remembered_are_still_planned_for():
    class Slotted:
        __slots__ = ()

        def __call__(self, x):
            return x

    assert tuned_plan(Slotted(), (4,), CPU).batch_size >= 8


def test_models_that_return_labels_are_not_called_just_to_measure_them():
    rows = []

    def service(batch):
        rows.append(len(batch))
        return torch.zeros(len(batch), dtype=torch.int64)

    assert tuned_plan(service, (4,), CPU).batch_size == 256
    assert sum(rows) == 1


def test_weights_follow_the_layout_in_a_copy_while_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 2))
    before = [one.detach().clone() for one in model.parameters()]
    identities = [id(one) for one in model.parameters()]
    tuned_plan(model, (1, 8, 8), CPU)
    for channels_last, layout in ((True, torch.channels_last), (False, torch.contiguous_format)):
        laid = in_layout(model, channels_last=channels_last)
        assert all(one.is_contiguous(memory_format=layout) for one in laid.parameters() if one.ndim == 4)
        assert all(torch.equal(one, old) for one, old in zip(laid.parameters(), before, strict=True))
        # With one channel the input alone would not say which layout it has.
        assert laid[0](torch.rand(2, 1, 8, 8)).is_contiguous(memory_format=layout)
        assert [id(one) for one in model.parameters()] == identities
        assert all(one.is_contiguous() for one in model.parameters())
        assert laid[4].weight is model[4].weight  # only what lies otherwise is copied
    model(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(one.grad is not None for one in model.parameters())

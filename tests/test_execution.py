"""Finding, remembering and building what runs the base classifier; stale or foreign plans are never taken."""

import json
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import FixedN, Smoothed
from smoothcert.allocator import keep_freed_memory
from smoothcert.backends import BACKENDS, PRECISIONS
from smoothcert.data import load
from smoothcert.errors import ConfigError, ModelError
from smoothcert.execution import Execution, Trial, _tried_backends, best_plan, calibration_inputs
from smoothcert.models.architectures import cifar_resnet, small_cnn
from smoothcert.options import PlanName, Precision
from smoothcert.plan_cache import plan_file, remember_plan, remembered_plan
from smoothcert.sampling import Plan
from smoothcert.training.loop import seeded

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


@pytest.fixture
def network():
    return seeded(small_cnn, 0).eval()


@pytest.fixture
def quick(monkeypatch):
    """Measurements that take no time: this is not about which is the fastest."""
    monkeypatch.setattr("smoothcert.execution._SECONDS", 0.001)
    monkeypatch.setattr("smoothcert.execution._ROUNDS", 1)
    monkeypatch.setattr("smoothcert.execution.SIZES", (8, 16))


def execution(network, **settings):
    return Execution(network, 0.25, CPU, **settings)


def inputs(count=4, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE)).astype(np.float32) / 255


# What is run


def test_eager_runs_the_network_itself(network):
    made = execution(network, plan="eager")
    assert made.executed(SHAPE) is network
    assert made.content_hash(SHAPE) is None


def test_a_named_batch_size_has_a_layout_that_is_not_measured(network, own_cache, monkeypatch):
    monkeypatch.setattr("smoothcert.execution.tuned_plan", None)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = [execution(one, batch_size=5).plan_for(SHAPE) for one in (network, linear, lambda x: linear(x))]
    assert [(plan.batch_size, plan.channels_last) for plan in found] == [(5, True), (5, False), (5, False)]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_named_backend_is_built_and_gives_the_same_scores(network, backend, quick, own_cache):
    made = execution(network, plan=backend)
    built = made.executed(SHAPE)
    assert built is not network
    assert made.executed(SHAPE) is built
    assert made.content_hash(SHAPE).startswith("sha256:")
    x = torch.from_numpy(inputs(5))
    with torch.inference_mode():
        torch.testing.assert_close(built(x), network(x), rtol=1e-3, atol=1e-4)
    assert list(own_cache.rglob("plans/*")) == []  # one backend alone says nothing about the fastest


def test_weights_that_change_are_built_anew(network):
    made = execution(network, plan=Plan(8, backend="onnxruntime"))
    x = torch.from_numpy(inputs(3))
    before, named = made.executed(SHAPE)(x), made.content_hash(SHAPE)
    with torch.no_grad():
        next(reversed(list(network.parameters()))).data.add_(torch.arange(10.0))
    after = made.executed(SHAPE)(x)
    assert made.content_hash(SHAPE) != named
    torch.testing.assert_close(after, before + torch.arange(10.0), rtol=1e-4, atol=1e-4)


def test_certificates_are_those_of_the_eager_network_but_for_rounding(network):
    x = inputs(3)
    plain = Smoothed(network, 0.25, seed=1, plan="eager", progress=False).certify(x, FixedN(n0=50, n=2_000))
    other = Smoothed(network, 0.25, seed=1, plan=Plan(64, workers=2, backend="openvino"), progress=False)
    results = other.certify(x, FixedN(n0=50, n=2_000))
    for mine, theirs in zip(results, plain, strict=True):
        assert np.abs(np.subtract(mine.votes.counts, theirs.votes.counts)).sum() <= 4
        assert theirs.executed is None
        assert mine.executed == other.executed(SHAPE)
        assert mine.executed.startswith("openvino, fp32, sha256:")
        assert "openvino" in repr(mine)
        assert "openvino" not in repr(theirs)


def test_int8_is_another_network_and_says_so(network):
    settings = {"precision": "int8", "calibration": inputs(32), "progress": False, "seed": 1}
    smoothed = Smoothed(network, 0.25, plan=Plan(32, backend="onnxruntime", precision="int8"), **settings)
    result = smoothed.certify(inputs(1)[0], FixedN(n0=20, n=200))
    assert result.executed.startswith("onnxruntime, int8, sha256:")
    assert type(result).from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_int8_scales_depend_on_the_noise_level(network):
    plan = Plan(32, backend="onnxruntime", precision="int8")
    hashes = {
        sigma: Execution(network, sigma, CPU, plan=plan, calibration=inputs(32)).content_hash(SHAPE)
        for sigma in (0.25, 1.0)
    }
    again = Execution(network, 0.25, CPU, plan=plan, calibration=inputs(32)).content_hash(SHAPE)
    assert hashes[0.25] == again != hashes[1.0]


def test_a_backend_that_depends_on_the_batch_is_refused_by_the_contract(network, monkeypatch):
    class Mean(nn.Module):
        thread_safe = True

        def forward(self, x):
            return network(x) + 1e3 * x.mean() * torch.arange(10.0)  # as dynamic quantisation by the batch's range does

    monkeypatch.setattr(type(BACKENDS["folded"]), "build", lambda *_: Mean())
    with pytest.raises(ModelError, match=r"batch|alone|row"):
        Smoothed(network, 0.25, plan=Plan(8, backend="folded"), progress=False).check(inputs(1)[0])


# What cannot be


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"plan": "fastest"}, "plan"),
        ({"precision": "int4"}, "precision"),
        ({"plan": Plan(8), "batch_size": 8}, "either `plan` or `batch_size`"),
        ({"precision": "int8"}, "calibration"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_cannot_be(network, settings, said):
    with pytest.raises(ConfigError, match=said):
        execution(network, **settings)


def test_a_precision_that_a_backend_does_not_have_names_those_that_do(network):
    made = execution(network, plan=Plan(8, backend="folded", precision="int8"), calibration=inputs(4))
    with pytest.raises(ConfigError, match="folded has no int8; these do: onnxruntime, openvino"):
        made.executed(SHAPE)


def test_functions_are_run_as_they_are(network, own_cache):
    def function(x):
        return network(x)

    assert execution(function).executed(SHAPE) is function
    assert not execution(function).tunable(SHAPE)
    with pytest.raises(ConfigError, match="runs torch modules, got function"):
        execution(function, plan=Plan(8, backend="onnxruntime")).executed(SHAPE)


def test_a_remembered_plan_that_no_longer_runs_gives_way_to_eager_mode(network, own_cache, monkeypatch, caplog):
    execution(network, weights_hash="x").plan_for(SHAPE)
    made, asked_first = execution(network, weights_hash="x"), execution(network, weights_hash="x")
    remember_plan(made._plan_file(SHAPE), Plan(8, backend="openvino"), [])

    def fail(*_):
        raise ModelError("gone")

    monkeypatch.setattr(type(BACKENDS["openvino"]), "build", fail)
    assert made.plan_for(SHAPE).backend == "openvino"
    assert made.executed(SHAPE) is network
    assert made.plan_for(SHAPE).backend == "eager"
    assert made.content_hash(SHAPE) is None
    assert asked_first.content_hash(SHAPE) is None
    assert "eager mode it is: gone" in caplog.text


def test_a_module_without_weights_has_no_plan_of_its_own(own_cache):
    class Bare(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3]

    made = execution(Bare())
    assert made.remembered(SHAPE) is None
    assert not made.tunable(SHAPE)


# Measuring


def test_tuning_tries_all_backends_and_remembers_the_fastest(network, quick, own_cache):
    tried = []
    made = execution(network, weights_hash="sha256:x")
    assert made.tunable(SHAPE)
    plan = made.tune(SHAPE, tried.append)
    assert {trial.plan.backend for trial in tried} == {"eager", "onnxruntime", "openvino"}  # nothing to fold in it
    assert {trial.plan.channels_last for trial in tried if trial.plan.backend == "eager"} == {True, False}
    assert plan == max(tried, key=lambda trial: trial.rate).plan == made.plan_for(SHAPE)
    other = execution(network, weights_hash="sha256:x")
    assert other.plan_for(SHAPE) == plan
    assert not other.tunable(SHAPE)
    assert execution(network, weights_hash="sha256:y").tunable(SHAPE)
    assert execution(network, weights_hash="sha256:x", plan="eager").plan_for(SHAPE).backend == "eager"
    assert execution(network, weights_hash="sha256:x", batch_size=5).plan_for(SHAPE).batch_size == 5


def test_the_fastest_are_measured_again_as_the_machine_may_have_been_slow(network, quick, own_cache, monkeypatch):
    measured = []

    def rate(_model, _shape, _device, plan):
        measured.append((plan.backend, plan.channels_last, plan.batch_size))
        slow_at_first = plan.batch_size == 8 and measured.count(measured[-1]) == 1
        return {8: 90.0 if slow_at_first else 120.0, 16: 100.0}[plan.batch_size] * (plan.backend == "eager")

    monkeypatch.setattr("smoothcert.execution.measured_rate", rate)
    tried = []
    plan = execution(network, weights_hash="sha256:x").tune(SHAPE, tried.append)
    assert (plan.backend, plan.batch_size) == ("eager", 8)
    assert len(tried) == len({trial.plan for trial in tried})  # each told of once, as it came out
    assert sorted(trial.rate for trial in tried)[-4:] == [100.0, 100.0, 120.0, 120.0]
    assert all(measured.count(one) == 1 for one in measured if one[0] != "eager")  # far behind


@pytest.mark.parametrize(("rate", "tried"), [(4.0, {8}), (1e6, {8, 16})])
def test_batches_stop_growing_where_a_forward_pass_takes_long(network, quick, own_cache, monkeypatch, rate, tried):
    sizes = set()

    def measured(_model, _shape, _device, plan):
        sizes.add(plan.batch_size)
        return rate

    monkeypatch.setattr("smoothcert.execution.measured_rate", measured)
    execution(network, plan="onnxruntime").tune(SHAPE)
    assert sizes == tried


def test_on_a_gpu_torch_is_tried_in_all_its_ways_and_nothing_that_runs_on_the_cpu():
    assert _tried_backends(torch.device("cuda")) == ["eager", "folded", "compile"]


def test_a_backend_that_fails_is_told_of_and_left_out(network, quick, own_cache, monkeypatch):
    def fail(*_):
        raise ModelError("cannot run\nthis network")

    for name in ("onnxruntime", "openvino", "folded"):
        monkeypatch.setattr(type(BACKENDS[name]), "build", fail)
    tried = []
    assert execution(network, weights_hash="x").tune(SHAPE, tried.append).backend == "eager"
    failures = {trial.plan.backend: trial.failure for trial in tried if trial.failure}
    assert failures == dict.fromkeys(("folded", "onnxruntime", "openvino"), "cannot run this network")


def test_what_suits_all_batch_sizes_is_built_once(network, quick, own_cache, monkeypatch):
    built = []
    real = type(BACKENDS["onnxruntime"]).build
    monkeypatch.setattr(
        type(BACKENDS["onnxruntime"]), "build", lambda *args: (built.append("onnxruntime"), real(*args))[1]
    )
    monkeypatch.setattr("smoothcert.execution._CLOSE", 0.0)  # all are measured once more
    tried = []
    execution(network, plan="onnxruntime").tune(SHAPE, tried.append)
    assert len(tried) == 2
    assert built == ["onnxruntime"]


def test_batch_norm_is_folded_where_there_is_some(quick, own_cache):
    tried = []
    execution(seeded(lambda: cifar_resnet(8), 0).eval(), plan="folded").tune((3, 8, 8), tried.append)
    assert {trial.plan.backend for trial in tried} == {"folded"}


def test_a_named_backend_is_kept_even_where_it_changes_nothing(network, quick, own_cache):
    """Else a run could not go on by the command that began it."""
    made = execution(network, plan="folded")
    assert made.executed(SHAPE) is network
    assert made.plan_for(SHAPE).backend == "folded"
    assert made.content_hash(SHAPE).startswith("sha256:")


def test_one_worker_that_fails_does_not_leave_the_others_waiting(network, quick, own_cache, monkeypatch):
    class Fails(nn.Module):
        thread_safe = True

        def forward(self, x):
            raise RuntimeError("no")

    monkeypatch.setattr(type(BACKENDS["folded"]), "build", lambda *_: Fails())
    tried = []
    execution(network, weights_hash="x").tune(SHAPE, tried.append)
    assert any(trial.plan.backend == "folded" and trial.failure for trial in tried)


def test_nothing_that_can_be_run_is_an_error_with_reasons():
    with pytest.raises(ModelError, match="No backend can run this network in int8: openvino: why"):
        best_plan([Trial(Plan(8, backend="openvino", precision="int8"), failure="why")])
    with pytest.raises(ConfigError, match="None of the backends"):
        best_plan([])


def test_calibration_inputs_are_spread_over_the_data_and_the_same_each_time():
    data = load("digits", split="test")
    chosen = calibration_inputs(data)
    assert chosen.shape == (256, 1, 8, 8)
    assert chosen.max() <= 1
    np.testing.assert_array_equal(chosen, calibration_inputs(data))
    assert len(np.unique(chosen.reshape(256, -1), axis=0)) > 250


def test_the_command_line_offers_what_there_is():
    assert get_args(PlanName) == ("auto", *BACKENDS)
    assert set(get_args(Precision)) == set(PRECISIONS)


# Remembering


def test_a_plan_is_kept_for_one_network_shape_precision_and_machine(own_cache, monkeypatch):
    def path(weights="a", shape=SHAPE, precision="fp32"):
        return plan_file(weights, shape, CPU, precision)

    paths = {path(), path("b"), path(shape=(3, 8, 8)), path(precision="int8")}
    monkeypatch.setattr("smoothcert.plan_cache.processor", lambda: "another")
    assert len(paths | {path()}) == 5
    assert all(own_cache in one.parents for one in paths)


def test_what_is_remembered_comes_back(tmp_path):
    plan = Plan(64, True, 2, backend="openvino")
    remember_plan(tmp_path / "plans" / "p.json", plan, [])
    assert remembered_plan(tmp_path / "plans" / "p.json") == plan


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"plan": 3}',
        '{"plan": {"batch_size": 0}}',
        '{"plan": {"batch_size": 1e9}}',
        '{"plan": {"batch_size": 8, "workers": "two"}}',
        '{"plan": {"batch_size": 8, "backend": "gone"}}',
        '{"plan": {"batch_size": 8, "precision": "int1"}}',
        '{"plan": {"batch_size": 8, "colour": "red"}}',
    ],
)
def test_a_damaged_plan_is_no_plan(tmp_path, content):
    path = tmp_path / "p.json"
    path.write_text(content)
    assert remembered_plan(path) is None


def test_a_plan_for_a_backend_that_is_gone_is_no_plan(tmp_path, monkeypatch):
    remember_plan(tmp_path / "p.json", Plan(8, backend="openvino"), [])
    monkeypatch.setattr(type(BACKENDS["openvino"]), "missing", lambda _: "openvino")
    assert remembered_plan(tmp_path / "p.json") is None


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path):
    (tmp_path / "file").write_text("")
    remember_plan(tmp_path / "file" / "p.json", Plan(8), [])


def test_the_allocator_is_told_once_and_says_whether_it_listened(monkeypatch):
    assert keep_freed_memory() is keep_freed_memory()
    keep_freed_memory.cache_clear()
    monkeypatch.setattr("sys.platform", "win32")
    assert keep_freed_memory() is False
    keep_freed_memory.cache_clear()

"""Several processes at work: the same rows as one, whatever happens to them."""

import contextlib
import os
import random
import signal

import numpy as np
import pytest

from run_fixtures import (
    INPUTS,
    ROWS,
    arguments,
    certify,
    launch,
    make_images,
    settings,
    size_of,
    wait_for,
    wilful,
    wilful_data,
)
from smoothcert import Smoothed, runs
from smoothcert.data import load
from smoothcert.errors import ModelChangedError, ModelError
from smoothcert.models.spec import ModelSpec
from smoothcert.runs import PredictSettings, driver, engines, predict_dataset
from smoothcert.runs.directory import Run
from smoothcert.runs.engines import run_here
from smoothcert.runs.smoothing import run_dataset
from smoothcert.sampling import Plan
from smoothcert.stats.procedures import FixedN

pytest_plugins = ["run_fixtures"]

ALONE = {"workers": 1, "timeout": 600.0}  # one process, but not this one


def children(pid):
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry))
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def new_children(before):
    """The children that are alive and were not there before, without Python's own helper."""
    found = []
    for pid in set(children(os.getpid())) - set(before):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            if "resource_tracker" not in file.read() and alive(pid):
                found.append(pid)
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_certificates_do_not_depend_on_the_number_of_processes(files, reference, tmp_path, workers):
    before = children(os.getpid())
    run = certify(files, tmp_path / "run", workers=workers)
    assert (tmp_path / "run" / ROWS).read_bytes() == reference
    assert run.rows == runs.open(tmp_path / "run").rows
    assert not new_children(before)


def test_processes_that_wait_for_work_go_by_themselves(files, tmp_path, monkeypatch):
    """Killed, they would leave semaphores of libraries behind, of which Python then complains to the user."""
    codes, end = [], engines._Hand.end

    def watched(hand):
        waiting = hand.ready and hand.chunk is None
        end(hand)
        codes.append((waiting, hand.process.exitcode))

    monkeypatch.setattr(engines._Hand, "end", watched)
    certify(files, tmp_path / "run", workers=2)
    assert len(codes) == 2
    assert (True, 0) in codes
    assert all(code == 0 for waiting, code in codes if waiting)  # one that is still loading may be killed or not


def predict(files, out, **changes):
    chosen = PredictSettings(sigma=0.5, n_max=500, seed=1, batch_size=32, chunk=4, **changes)
    return predict_dataset(str(files.model), load(files.data), out, chosen)


def test_predictions_do_not_depend_on_the_number_of_processes(files, tmp_path):
    here = predict(files, tmp_path / "here")
    predict(files, tmp_path / "two", workers=2)
    content = (tmp_path / "here" / "predictions.jsonl").read_bytes()
    assert content.count(b"\n") == INPUTS
    assert (tmp_path / "two" / "predictions.jsonl").read_bytes() == content
    assert len({row["label"] for row in here.rows}) > 1


# What may come from workers: in any order, more than once


def shuffled(worker, chunks):
    done = list(run_here(worker, chunks))
    random.Random(0).shuffle(done)
    return iter(done)


def twice(worker, chunks):
    done = list(run_here(worker, chunks))
    return iter([*done[1:3], *done[::-1], *done])


def twice_in_a_row(worker, chunks):
    for one in run_here(worker, chunks):
        yield one
        yield one


@pytest.mark.parametrize("engine", [shuffled, twice, twice_in_a_row])
def test_rows_are_written_once_and_in_order_however_chunks_come(files, tmp_path, reference, monkeypatch, engine):
    monkeypatch.setattr(driver, "run_here", engine)
    run = certify(files, tmp_path / "run")
    assert (tmp_path / "run" / ROWS).read_bytes() == reference
    assert run.complete


def test_rows_are_in_the_order_of_the_indices(files, reference, tmp_path):
    order = list(range(INPUTS))
    random.Random(1).shuffle(order)
    run = certify(files, tmp_path / "run", indices=order)
    assert [row["index"] for row in runs.open(tmp_path / "run").rows] == order
    ordered = certify(files, tmp_path / "ordered", indices=sorted(order)).rows
    assert sorted(run.rows, key=lambda row: row["index"]) == ordered  # noise is an input's own, not its place's


def test_inputs_do_not_depend_on_their_neighbours(files, whole, tmp_path):
    some = certify(files, tmp_path / "run", indices=[30, 2, 17])
    everything = {row["index"]: row for row in runs.open(whole).rows}
    assert some.rows == [everything[30], everything[2], everything[17]]


def test_what_a_run_says_is_said_alike_by_all_its_views(whole):
    run = runs.open(whole)
    table, frame = run.table(), run.to_pandas()
    assert list(table) == list(frame.columns)
    assert all(len(column) == INPUTS for column in table.values())
    for name, column in table.items():
        assert [None if value is None or value != value else value for value in frame[name]] == column
    for place, result in enumerate(run.certificates):
        for name in ("label", "radius", "draws"):
            assert getattr(result, name) == table[name][place]
        assert result.input_id == f"index:{table['index'][place]}"
        total = sum((np.array(stage.counts) for stage in result.stages), np.zeros(10, int))
        assert run.votes[place].tolist() == total.tolist()
    assert run.votes.shape == (INPUTS, 10)
    assert run.votes.sum(axis=1).tolist() == table["draws"]
    assert table["true"] == make_images()[1].tolist()
    assert table["correct"] == [a is not None and a == b for a, b in zip(table["label"], table["true"], strict=True)]
    assert 0 < sum(label is None for label in table["label"]) < INPUTS


def smoothed_of(run, files):
    """The smoothed classifier that a run's manifest describes."""
    values = run.manifest.values
    plan = Plan(values["plan"]["batch_size"], values["plan"]["channels_last"], threads=values["plan"]["threads"])
    return Smoothed(ModelSpec(source=str(files.model)).load(), values["sigma"], plan=plan, key=values["key"])


def test_certificates_of_a_run_are_those_of_the_smoothed_classifier(files, whole):
    run = runs.open(whole)
    smoothed = smoothed_of(run, files)
    assert smoothed.certify(make_images()[0], FixedN(n=64), index=0) == run.certificates
    [alone] = smoothed.certify(make_images()[0][[13]], FixedN(n=64), index=[13])
    assert alone == run.certificates[13]


def test_predictions_of_a_run_are_those_of_the_smoothed_classifier(files, tmp_path):
    run = predict(files, tmp_path / "run")
    smoothed = smoothed_of(run, files)
    assert smoothed.predict(make_images()[0], n_max=500, index=0) == run.certificates


# Processes that die, hang or fail


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> Run:
    """A run of two processes in which one input raises, one kills its process once, one always, and one hangs."""
    folder = tmp_path_factory.mktemp("troubled")
    model = wilful(
        folder,
        """
def quarter_0(self):
    raise ValueError("no\\nsuch picture")

def quarter_1(self):
    if multiprocessing.parent_process() is not None and not (MARKS / "died").exists():
        (MARKS / "died").touch()
        os._exit(1)

def quarter_2(self):
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), 9)

def quarter_3(self):
    if multiprocessing.parent_process() is not None:
        time.sleep(3600)
""",
    )
    data = wilful_data(quarter_0=4, quarter_1=9, quarter_2=14, quarter_3=19)
    choice = {"data": data, "model": model, "sigma": 0.25, "chunk": 1}
    run = certify(None, folder / "run", **choice, workers=2, timeout=10.0)
    assert (folder / "died").exists()
    return run


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory) -> list:
    """The rows of the same inputs by the same network when all is well."""
    folder = tmp_path_factory.mktemp("untroubled")
    quiet = "\n".join(f"def quarter_{k}(self): pass" for k in range(4))
    data = wilful_data(quarter_0=4, quarter_1=9, quarter_2=14, quarter_3=19)
    run = certify(None, folder / "run", data=data, model=wilful(folder, quiet), sigma=0.25, chunk=1)
    assert not run.errors
    return run.rows


def test_every_input_has_one_row_whatever_happened(troubled):
    assert [row["index"] for row in runs.open(troubled.path).rows] == list(range(INPUTS))
    assert troubled.complete
    assert troubled.rows == runs.open(troubled.path).rows


def test_an_input_whose_process_died_once_is_done_by_another(troubled, untroubled):
    assert troubled.rows[9] == untroubled[9]


def test_all_other_inputs_are_as_if_nothing_had_happened(troubled, untroubled):
    for index in set(range(INPUTS)) - {4, 14, 19}:
        assert troubled.rows[index] == untroubled[index]


def test_an_input_that_fails_dies_or_hangs_has_a_row_that_says_so(troubled):
    errors = {row["index"]: row["error"] for row in troubled.errors}
    assert set(errors) == {4, 14, 19}
    assert errors[4].startswith("ModelError: ") or errors[4].startswith("ValueError: ")
    assert "no such picture" in errors[4]
    assert errors[14] == "ModelError: the worker process died"
    assert errors[19] == "ModelError: no forward pass was done within 10 seconds"
    assert all("\n" not in error for error in errors.values())
    labels = make_images()[1]
    assert [row["true"] for row in troubled.errors] == [int(labels[index]) for index in (4, 14, 19)]


def test_rows_that_failed_are_left_out_of_the_votes_and_kept_in_the_table(troubled):
    table = troubled.table()
    for index in (4, 14, 19):
        assert troubled.certificates[index] is None
        assert troubled.votes[index].sum() == 0
        assert (table["label"][index], table["radius"][index], table["correct"][index]) == (None, 0.0, False)


def test_a_model_that_cannot_be_loaded_in_another_process_ends_the_run(tmp_path):
    body = """
def __init__(self):
    super().__init__()
    if multiprocessing.parent_process() is not None:
        raise OSError("no such weights here")
"""
    with pytest.raises(ModelError, match="no such weights here"):
        certify(None, tmp_path / "run", data=wilful_data(), model=wilful(tmp_path, body), **ALONE)
    assert runs.open(tmp_path / "run").rows == []


def test_a_model_that_dies_while_it_is_loaded_ends_the_run(tmp_path):
    body = """
def __init__(self):
    super().__init__()
    if multiprocessing.parent_process() is not None:
        os._exit(7)
"""
    with pytest.raises(ModelError, match="before they are ready"):
        certify(None, tmp_path / "run", data=wilful_data(), indices=[0], model=wilful(tmp_path, body), **ALONE)
    assert runs.open(tmp_path / "run").rows == []


def test_a_model_with_other_weights_in_another_process_ends_the_run(tmp_path):
    body = """
def __init__(self):
    super().__init__()
    if multiprocessing.parent_process() is not None:
        self.last.bias.data += 1
"""
    with pytest.raises(ModelError, match="Expected the model of the run"):
        certify(None, tmp_path / "run", data=wilful_data(), model=wilful(tmp_path, body), **ALONE)
    assert runs.open(tmp_path / "run").rows == []


# The third input of the run changes the weights, in a way that torch counts or behind its back.
CHANGES = {
    "weight": "self.last.weight += 1",
    "buffer": "self.seen += 1",
    "replaced": "self.last.bias = nn.Parameter(torch.ones(10))",
    "data": "self.last.weight.data += 1",
    "numpy": "self.last.weight.detach().numpy()[0] += 1",
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_row_is_written_once_the_weights_have_changed(tmp_path, change):
    model = wilful(tmp_path, f"def quarter_0(self): {CHANGES[change]}")
    choice = {"data": wilful_data(quarter_0=9), "model": model, "sigma": 0.25}
    with pytest.raises(ModelChangedError, match="changed"):
        certify(None, tmp_path / "run", **choice)
    assert [row["index"] for row in runs.open(tmp_path / "run").rows] == list(range(8))


@pytest.mark.parametrize("change", ["buffer", "data"])
def test_no_row_is_written_once_the_weights_have_changed_in_another_process(tmp_path, change):
    model = wilful(tmp_path, f"def quarter_0(self): {CHANGES[change]}")
    choice = {"data": wilful_data(quarter_0=9), "model": model, "sigma": 0.25}
    with pytest.raises(ModelChangedError, match="changed"):
        certify(None, tmp_path / "run", **choice, **ALONE)
    assert [row["index"] for row in runs.open(tmp_path / "run").rows] == list(range(8))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes in /proc")


@needs_proc
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)], ids=["a few times", "many times"])
def test_killed_with_its_processes_at_work_a_run_leaves_none_behind_and_goes_on(files, reference, tmp_path, kills):
    generator = random.Random(kills)
    out, killed = tmp_path / "run", 0
    for attempt in range(100):
        goal = size_of(out / ROWS) + generator.randrange(len(reference) // 3)  # past the end, it is left to finish
        driver_process = launch([*arguments(files, out), "--workers", "2", "--resume"])
        reached = wait_for(lambda goal=goal, rows=out / ROWS: size_of(rows) > goal, driver_process)
        workers = children(driver_process.pid)
        if reached and driver_process.poll() is None:
            os.kill(driver_process.pid, signal.SIGKILL)
        _, err = driver_process.communicate()
        assert "Traceback" not in err
        assert wait_for(lambda workers=workers: not any(alive(pid) for pid in workers))
        assert reference.startswith((out / ROWS).read_bytes())
        if driver_process.returncode == 0:  # it was faster than we were
            assert (out / ROWS).read_bytes() == reference
            out = tmp_path / f"run-{attempt}"
            continue
        assert driver_process.returncode == -signal.SIGKILL
        killed += len(workers) >= 2  # else they had ended already
        if killed == kills:
            break
    assert killed == kills
    certify(files, out, resume=True)
    assert (out / ROWS).read_bytes() == reference


@needs_proc
def test_processes_end_when_the_run_is_interrupted(files, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    before = children(os.getpid())
    with pytest.raises(KeyboardInterrupt):
        run_dataset(
            ModelSpec(source=str(files.model)), load(files.data), settings(workers=2), tmp_path / "run", on_rows=stop
        )
    assert not new_children(before)
    assert len(runs.open(tmp_path / "run").rows) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", [0, 2], ids=["the first", "the last"])
def test_a_signal_while_a_process_is_started_takes_effect_once_it_is(monkeypatch, number, place):
    """Starting one writes to it, which takes as long as it loads Python: a key press then must not be lost."""
    started, ended = [], []

    class Starting:
        pid, exitcode = 2**30, 0

        def start(self):
            started.append(self)
            if len(started) == place + 1:
                os.kill(os.getpid(), number)
                assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # which the process inherits

        def kill(self):
            ended.append(self)

        def join(self, *_): ...

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        processes = engines.Processes(None, 3, timeout=None, on_draws=lambda _: None)
        monkeypatch.setattr(processes._context, "Process", lambda **_: Starting(), raising=False)
        with pytest.raises(KeyboardInterrupt):
            next(processes.run(iter([engines.Chunk(0, (5,), ("",), (1,))])))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(started) == place + 1
    assert ended == started
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_silent_process_is_given_up_only_after_the_timeout_and_a_second_try(monkeypatch):
    """By the clock that cannot be set; loading and waiting for work do not count."""
    now = [1000.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    processes = engines.Processes(None, 1, timeout=60.0, on_draws=lambda _: None)
    monkeypatch.setattr(processes, "_hire", lambda: None)
    chunk = engines.Chunk(0, (5,), ("",), (1,))

    def after(hand, seconds):
        processes._hands = [hand]
        done = []
        for _ in range(round(seconds / 0.5)):
            now[0] += 0.5
            done += processes._hung()
        return done

    hand = engines._Hand(Ended(), Ended(), chunk=chunk)
    assert after(hand, 600) == []  # it is still loading the model
    hand.ready = True
    assert after(hand, 59) == []
    assert not processes._waiting
    assert after(hand, 1.5) == []
    assert list(processes._waiting) == [chunk]  # to be tried again
    [(number, rows, _)] = after(engines._Hand(Ended(), Ended(), chunk=chunk, ready=True), 60.5)
    assert number == 0
    assert rows == [{"index": 5, "true": 1, "error": "ModelError: no forward pass was done within 60 seconds"}]
    assert after(engines._Hand(Ended(), Ended(), ready=True), 600) == []  # it has nothing to do


class Ended:
    """Stands for a process, and for its pipe."""

    exitcode = 0
    pid = 2**30  # no process of ours

    def kill(self): ...

    def join(self): ...

    def close(self): ...

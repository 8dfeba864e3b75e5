"""Runs on Ray: the same bytes as on one machine, whatever dies on the way."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from networks import BLUEPRINT
from smoothcert import data, runs
from smoothcert.data import ArrayData
from smoothcert.errors import ConfigError, InputError, MissingExtraError, ModelChangedError, ModelError
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import save_checkpoint
from smoothcert.models.spec import ModelSpec
from smoothcert.runs import ray_engine, smoothing
from smoothcert.runs.engines import run_here
from smoothcert.runs.ray_engine import Answer, run_on_ray
from smoothcert.runs.smoothing import SmoothingTask
from smoothcert.runs.work import Chunk
from smoothcert.sampling import Plan
from smoothcert.streams import STREAM_NAMING
from smoothcert.training.loop import seeded, train
from smoothcert.training.settings import TrainSettings

WHITE = 2  # the place of the input that models below are made to stumble over; they know it by its brightness
ODD_MODEL = """
import os, time, torch
from pathlib import Path
from smoothcert.models.checkpoints import load_checkpoint

elsewhere = os.getpid() != {driver}
marker = Path({marker!r})

class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = load_checkpoint(Path({checkpoint!r})).network

    def forward(self, x):
        mean = x.mean(dim=(1, 2, 3))
        white = bool(((mean > 0.8) & (mean < 1.2)).any())
        if white and elsewhere:
            {trouble}
        return self.network(x)

def make():
    {loading}
    return Odd()
"""
CHANGE = "next(self.parameters()){data}.mul_(1.5)"


@pytest.fixture(scope="module")
def ray():
    """A cluster of one node, started before the engine: it must use it, and leave it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    quiet = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, object_store_memory=256 * 2**20, **quiet)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    training = data.load("digits", split="train")
    settings = TrainSettings(sigma=0.25, epochs=2, batch_size=64, learning_rate=0.05, seed=0)
    path = tmp_path_factory.mktemp("model") / "digits.safetensors"
    save_checkpoint(path, train(seeded(small_cnn, 0), training, settings), BLUEPRINT)
    return path


@pytest.fixture(scope="module")
def inputs():
    test = data.load("digits", split="test")
    images = test.inputs[[4, 7, 0, 12, 20]]
    images[WHITE] = 255
    return ArrayData(images, test.labels[[4, 7, 0, 12, 20]], None, "five digits")


@pytest.fixture
def odd(checkpoint, tmp_path):
    """Writes a model that has the checkpoint's weights and gets into trouble in other processes than this one."""

    def write(trouble="pass", loading="pass"):
        path, words = tmp_path / "odd.py", {"trouble": trouble, "loading": loading, "driver": os.getpid()}
        path.write_text(ODD_MODEL.format(checkpoint=str(checkpoint), marker=str(tmp_path / "marker"), **words))
        return f"{path}:make"

    return write


@pytest.fixture(scope="module")
def expected(checkpoint, inputs, tmp_path_factory):
    """The run on one machine, chunk by chunk, by a model in the same words as the odd ones."""
    folder = tmp_path_factory.mktemp("expected")
    words = {"trouble": "pass", "loading": "pass", "driver": 0, "marker": "", "checkpoint": str(checkpoint)}
    (folder / "odd.py").write_text(ODD_MODEL.format(**words))
    return certify(f"{folder / 'odd.py'}:make", inputs, folder / "run", engine="local")


def settings_with(**changes):
    common = {"sigma": 0.25, "n_max": 2000, "seed": 0, "batch_size": 128, "chunk": 1, "device": "cpu", "workers": 1}
    return runs.CertifySettings(**{**common, "engine": "ray", **changes})


def certify(model, inputs, out, **changes):
    return runs.certify_dataset(model, inputs, out, settings_with(**changes))


def task_of(model):
    settings, spec = settings_with(), ModelSpec(source=model)
    words = {"kind": "certify", "sigma": 0.25, "noise": "auto", "procedure": settings.make_procedure(), "device": "cpu"}
    words |= {"shape": (1, 8, 8), "executed": None, "calibration": None}
    words |= {"tests_true_labels": False, "num_classes": 10, "key": "00" * 32, "secure": False, "allow_random": False}
    words |= {"naming": STREAM_NAMING}
    return SmoothingTask(model=spec, weights_hash=spec.load().weights_hash, plan=Plan(128, threads=1), **words)


def bytes_of(run):
    return (run.path / "certificates.jsonl").read_bytes()


def assert_only_white_failed(run, expected, reason):
    rows = list(expected.rows)
    assert run.rows[WHITE] == {"index": WHITE, "true": rows[WHITE]["true"], "error": reason}
    assert [row for row in run.rows if "error" not in row] == rows[:WHITE] + rows[WHITE + 1 :]


def test_same_bytes_as_on_one_machine(ray, checkpoint, inputs, tmp_path):
    here = certify(str(checkpoint), inputs, tmp_path / "here", engine="local", chunk=2)
    drawn = []
    there = smoothing.run_dataset(
        ModelSpec(source=str(checkpoint)),
        inputs,
        settings_with(chunk=2, workers=2),
        tmp_path / "there",
        on_draws=drawn.append,
    )
    assert bytes_of(there) == bytes_of(here)
    assert len({tuple(stage["votes"]) for row in here.rows for stage in row["stages"]}) > 1, "votes that say something"
    assert sum(drawn) == sum(there.table()["draws"])
    assert ray.is_initialized(), "a Ray that was there before is left running"


def test_an_object_is_sent_to_the_actors(ray, inputs, tmp_path):
    network = seeded(small_cnn, 0)
    here = certify(network, inputs, tmp_path / "here", engine="local")
    assert bytes_of(certify(network, inputs, tmp_path / "there")) == bytes_of(here)


def test_an_actor_that_dies_is_replaced(ray, odd, inputs, expected, tmp_path):
    model = odd("marker.exists() or (marker.touch(), os._exit(1))")
    run = certify(model, inputs, tmp_path / "run", workers=2)
    assert (tmp_path / "marker").exists()
    assert bytes_of(run) == bytes_of(expected)


def test_a_chunk_that_kills_its_actors_is_given_up(ray, odd, inputs, expected, tmp_path):
    run = certify(odd("os._exit(1)"), inputs, tmp_path / "run", workers=2)
    assert_only_white_failed(run, expected, "ModelError: the worker process died")


def test_a_model_that_raises_spoils_its_input_only(ray, odd, inputs, expected, tmp_path):
    run = certify(odd("raise ValueError('too bright')"), inputs, tmp_path / "run")
    [failed] = run.errors
    assert failed["index"] == WHITE
    assert failed["error"] == "ValueError: too bright"
    assert [row for row in run.rows if row != failed] == [row for row in expected.rows if row["index"] != WHITE]


def test_a_model_that_hangs_is_given_up(ray, odd, inputs, expected, tmp_path):
    run = certify(
        odd("time.sleep(1000)"), inputs, tmp_path / "run", timeout=10.0
    )  # of which others need far less, even on a busy machine
    assert_only_white_failed(run, expected, "ModelError: no forward pass was done within 10 seconds")


def test_chunks_that_come_twice_or_out_of_order_are_written_once(odd, inputs, expected, tmp_path, monkeypatch):
    def run(task, settings, chunks, on_draws):
        yield from sorted([*run_here(task.start(), chunks)] * 2, key=lambda done: -done[0])

    monkeypatch.setattr(ray_engine, "run_on_ray", run)
    assert bytes_of(certify(odd(), inputs, tmp_path / "run")) == bytes_of(expected)


def test_a_model_that_cannot_be_loaded_there_ends_the_run(ray, odd, inputs, tmp_path):
    with pytest.raises(ModelError, match="failed to make a model: OSError: no such disk") as caught:
        certify(odd(loading="if elsewhere: raise OSError('no such\\n disk')"), inputs, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert "on the node" in str(caught.value)


def test_actors_that_die_while_loading_end_the_run(ray, odd, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "ATTEMPTS", 1)
    with pytest.raises(ModelError, match=r"A Ray actor died before it had loaded the model, 1 times: .*every node"):
        certify(odd(loading="if elsewhere: os._exit(1)"), inputs, tmp_path / "run")


@pytest.mark.parametrize("where", ["", ".data"], ids=["seen at once", "seen by the hash"])
def test_weights_that_change_end_the_run(ray, odd, inputs, tmp_path, where):
    with pytest.raises(ModelChangedError, match="weights") as caught:
        certify(odd(CHANGE.format(data=where)), inputs, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_closing_ends_the_actors_and_chunks_are_read_as_needed(ray, odd, inputs, tmp_path):
    model = odd("marker.write_text(str(os.getpid())); time.sleep(1000)")
    read, done = [], []
    chunks = (read.append(k) or Chunk(k, (k,), (inputs[k],), (None,)) for k in range(len(inputs)))
    results = run_on_ray(task_of(model), settings_with(), chunks, lambda _: None)
    for _ in range(WHITE):
        done.append(next(results)[0])
        assert len(read) <= len(done) + 1, "one chunk is worked on, one is at hand"
    assert done == [0, 1]
    marker = tmp_path / "marker"
    threading.Thread(target=interrupt_after, args=[marker]).start()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert ends(int(marker.read_text()))
    assert ray.is_initialized()


def interrupt_after(marker):
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.05)
    signal.raise_signal(signal.SIGINT)


def ends(process):
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_goes_on_with_the_actors_that_fit(ray, odd, inputs, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ray_engine, "_LATE_SECONDS", 0.5)
    with caplog.at_level(logging.WARNING, logger="smoothcert"):
        run = certify(odd(), inputs, tmp_path / "run", workers=3)
    assert "of 3 Ray actors have not started after" in caplog.text
    assert "each needs 1 CPU free on one node" in caplog.text
    assert bytes_of(run) == bytes_of(expected)


def test_missing_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"Ray is needed for this: pip install 'smoothcert\[ray\]'"):
        next(run_on_ray(None, settings_with(), iter([]), lambda _: None))


def test_no_cluster_at_the_address(ray, monkeypatch):
    def init(**settings):
        raise ConnectionError(f"nothing at\n {settings['address']}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError, match=r"Expected a Ray cluster at the address 'nowhere:1'.*ray start --head"):
        next(run_on_ray(None, settings_with(address="nowhere:1"), iter([]), lambda _: None))


def test_a_model_that_cannot_be_sent(ray, inputs, tmp_path):
    network = seeded(small_cnn, 0)
    network.lock = threading.Lock()
    with pytest.raises(ModelError, match="Expected a model that can be sent to other processes"):
        certify(network, inputs, tmp_path / "run")


def nodes(*resources):
    return [{"Alive": True, "Resources": {"CPU": cpu, "GPU": gpu} if gpu else {"CPU": cpu}} for cpu, gpu in resources]


@pytest.mark.parametrize(
    ("there", "asked", "gpu", "crew"),
    [
        ([(2.0, 0)], None, False, (1, 2, 0)),
        ([(2.0, 0)], 2, False, (2, 1, 0)),
        ([(2.0, 0)], 5, False, (5, 1, 0)),  # more than fit: those that start do the work
        ([(8.0, 0), (8.0, 0)], None, False, (4, 4, 0)),
        ([(2.0, 0), (2.0, 0)], None, False, (2, 2, 0)),  # an actor lives on one node
        ([(7.0, 0)], None, False, (2, 3, 0)),
        ([(16.0, 4), (16.0, 0)], None, True, (4, 1, 1)),
        ([(4.0, 4), (4.0, 2)], None, True, (6, 1, 1)),
        ([(16.0, 4)], 2, True, (2, 1, 1)),
    ],
)
def test_actors_fit_on_the_nodes(there, asked, gpu, crew):
    assert ray_engine._crew(nodes(*there), asked, on_gpus=gpu) == crew


def test_dead_nodes_do_not_count():
    dead = [{**node, "Alive": False} for node in nodes((8.0, 0))]
    assert ray_engine._crew(dead + nodes((2.0, 0)), None, on_gpus=False).workers == 1
    with pytest.raises(ConfigError, match="Expected a GPU and a CPU on one node in the Ray cluster, there is none"):
        ray_engine._crew(nodes((2.0, 0)), None, on_gpus=True)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (("InputError", "Expected 3 channels."), InputError, "Expected 3 channels."),
        (("KeyError", "'x'"), ModelError, "KeyError: 'x'"),
        (("MissingExtraError", "timm is needed"), ModelError, "MissingExtraError: timm is needed"),
        (("SystemError", "x"), ModelError, "SystemError: x"),
    ],
)
def test_errors_of_actors_keep_their_kind(error, kind, text):
    with pytest.raises(kind) as caught:
        ray_engine._check(Answer(0, error=error))
    assert str(caught.value) == text
    assert type(caught.value) is kind


def command(checkpoint, out, *more):
    words = ["certify", str(checkpoint), "digits", "--sigma", "0.25", "--first", "16", "--seed", "0", "--out", str(out)]
    words += ["--batch-size", "128", "--chunk", "1", "--device", "cpu", *more]
    return [sys.executable, "-m", "smoothcert", *words]


@pytest.fixture(scope="module")
def expected_rows(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "run"
    subprocess.run(command(checkpoint, out), check=True, capture_output=True)
    return (out / "certificates.jsonl").read_bytes()


def wait_for_rows(process, path):
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_a_cluster_of_its_own_ends_by_sigterm_and_the_run_goes_on(checkpoint, expected_rows, tmp_path):
    rows = tmp_path / "run" / "certificates.jsonl"
    ours = command(checkpoint, rows.parent, "--engine", "ray", "--workers", "2")
    first = subprocess.Popen(ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_rows(first, rows)
    first.terminate()
    first.communicate()
    assert first.returncode == 128 + signal.SIGTERM
    subprocess.run([*ours, "--resume"], check=True, capture_output=True)
    assert rows.read_bytes() == expected_rows


@pytest.mark.slow
def test_a_node_may_die(checkpoint, expected_rows, tmp_path):
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        rows = tmp_path / "run" / "certificates.jsonl"
        ours = command(checkpoint, rows.parent, "--engine", "ray", "--address", cluster.address, "--workers", "2")
        run = subprocess.Popen(ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_rows(run, rows)
        cluster.remove_node(other, allow_graceful=False)
        _, said = run.communicate()
        assert run.returncode == 0, said
        assert b"a Ray actor was lost" in said
        assert rows.read_bytes() == expected_rows
    finally:
        cluster.shutdown()

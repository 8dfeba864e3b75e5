"""What every backend must do, asked of each in the same words, and the networks that it is asked with."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smoothcert.backends import BACKENDS, Source
from smoothcert.data.digits import load_digits
from smoothcert.models.architectures import cifar_resnet, lenet, mlp, small_cnn
from smoothcert.models.contract import check_contract
from smoothcert.models.layers import Normalize
from smoothcert.sampling import worker_pool
from smoothcert.training.loop import seeded

BATCH = 48


def _behind_normalize(network):
    return nn.Sequential(Normalize([0.49, 0.48, 0.45], [0.2, 0.2, 0.2]), network)


NETWORKS = {
    "mlp": ((1, 8, 8), lambda: mlp(64, 48, 48, 48)),
    "small-cnn": ((1, 8, 8), small_cnn),
    "lenet": ((1, 28, 28), lenet),
    "resnet8": ((3, 12, 12), lambda: _behind_normalize(cifar_resnet(8))),
    "resnet20": ((3, 32, 32), lambda: _behind_normalize(cifar_resnet(20))),
}


def noisy(shape, rows, seed=0):
    return np.random.default_rng(seed).normal(0.5, 0.4, (rows, *shape)).astype(np.float32)


def fresh(name):
    """A network in evaluation whose batch norms are not the identity."""
    shape, make = NETWORKS[name]
    network = seeded(make, 0)
    generator = torch.Generator().manual_seed(1)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.running_mean, part.bias):
                tensor.data.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
            for tensor in (part.running_var, part.weight):
                tensor.data.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return Source(network.eval(), shape, BATCH, noisy(shape, 100, seed=1))


def by_batches(model, inputs, size=BATCH):
    with torch.inference_mode():
        return torch.cat([model(piece) for piece in inputs.split(size)])


def from_threads(model, inputs, workers):
    """The same batches as `by_batches`, by the sampler's workers, each with one of torch's threads."""
    answers = worker_pool(workers, 1).map(lambda piece: by_batches(model, piece), inputs.split(BATCH))
    return torch.cat(list(answers))


@pytest.fixture(scope="session")
def source():
    """Networks by name, as sources."""
    return fresh


@pytest.fixture(scope="session")
def conforms():
    """Asserts that a backend's fp32 module is the network, in every way that it will be called."""

    def check(backend, name):
        given = fresh(name)
        before = {key: tensor.clone() for key, tensor in given.network.state_dict().items()}
        built = BACKENDS[backend].build(given)
        inputs = torch.from_numpy(noisy(given.shape, 2_000))
        kept = inputs.clone()
        expected, scores = (from_threads(model, inputs, 1) for model in (given.network, built))
        largest = float(expected.abs().max())

        def same(answer, wanted):
            torch.testing.assert_close(answer, wanted, rtol=0, atol=1e-4 * largest)

        same(scores, expected)
        assert (scores.argmax(1) == expected.argmax(1)).float().mean() >= 0.998
        for rows in (1, 7, BATCH, BATCH + 3):
            same(by_batches(built, inputs[:rows], size=rows), expected[:rows])
        for workers in (2, 4):
            rows = BATCH * 3 * workers
            assert torch.equal(from_threads(built, inputs[:rows], workers), scores[:rows])
        with torch.no_grad():
            turned = inputs[:BATCH].contiguous(memory_format=torch.channels_last)
            same(built(turned), expected[:BATCH])
        assert check_contract(built, inputs[:8], num_classes=None).num_classes == 10
        assert getattr(built, "thread_safe", True)
        assert not built.training
        assert torch.equal(inputs, kept)
        assert all(torch.equal(tensor, before[key]) for key, tensor in given.network.state_dict().items())

    return check


@pytest.fixture(scope="session")
def digits_network():
    """A network that was trained under noise, as a source, and noisy test images with their labels."""
    training, test = load_digits()
    network, rng = seeded(small_cnn, 0), np.random.default_rng(0)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)

    def perturbed(images):
        return (images + 0.25 * rng.standard_normal(images.shape)).astype(np.float32)

    def learn():
        for _ in range(300):
            rows = rng.integers(len(training), size=128)
            scores = network(torch.from_numpy(perturbed(training.inputs[rows])))
            optimizer.zero_grad()
            functional.cross_entropy(scores, torch.from_numpy(training.labels[rows])).backward()
            optimizer.step()

    worker_pool(1, 1).submit(learn).result()  # with one thread: such small batches are slower with more
    numbers = np.arange(2_000) % len(test)
    given = Source(network.eval(), (1, 8, 8), BATCH, perturbed(training.inputs[:200]))
    return given, torch.from_numpy(perturbed(test.inputs[numbers])), torch.from_numpy(test.labels[numbers])


@pytest.fixture(scope="session")
def conforms_in_int8(digits_network):
    """Asserts that a backend's int8 module is nearly the network, and a base classifier in its own right."""

    def check(backend):
        given, inputs, labels = digits_network
        built = BACKENDS[backend].build(given, "int8")
        expected, scores = (from_threads(model, inputs, 1) for model in (given.network, built))
        assert not torch.allclose(scores, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))  # it is 8 bits
        assert (scores.argmax(1) == expected.argmax(1)).float().mean() > 0.98
        accuracies = [(answer.argmax(1) == labels).float().mean() for answer in (expected, scores)]
        assert accuracies[0] > 0.9
        assert abs(accuracies[1] - accuracies[0]) < 0.02
        assert torch.equal(by_batches(built, inputs), scores)
        assert torch.equal(from_threads(built, inputs, 4), scores)
        assert check_contract(built, inputs[:8], num_classes=10).num_classes == 10
        crowd = inputs[:BATCH].clone()
        crowd[1:] = 50 * crowd[1:] - 20  # ranges taken from the batch would be wide now
        assert torch.equal(by_batches(built, crowd)[0], scores[0])

    return check


TINY = """
import numpy as np
import torch
from smoothcert.backends import BACKENDS, Source, content_hash
from smoothcert.models.architectures import mlp

def tiny_hash(backend, precision):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = mlp(64, 48, 48).eval()
    inputs = np.random.default_rng(0).normal(0.5, 0.4, (100, 1, 8, 8)).astype(np.float32)
    return content_hash(BACKENDS[backend].build(Source(network, (1, 8, 8), 16, inputs), precision))
"""


@pytest.fixture
def is_built_the_same_everywhere(tmp_path):
    """Asserts that every build has one hash, here and in a new process, which prints nothing and leaves no files."""

    def check(*backends):
        here = {}
        exec(TINY, here)
        hashes, again = ([here["tiny_hash"](*backend) for backend in backends] for _ in range(2))
        (tmp_path / "temporary").mkdir()
        code = f"{TINY}\nfor backend in {backends!r}: print(tiny_hash(*backend))"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "temporary"), "PYTHONHASHSEED": "7"},
            cwd=tmp_path,
        )
        assert done.stderr == ""
        assert done.stdout.split() == hashes == again
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    return check

"""The buffers noisy copies are made in: on a GPU two take turns, and none is filled while it is still being read."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smoothcert import FixedN, GaussianNoise, GridGaussianNoise, Smoothed
from smoothcert.device_noise import fill_on_device, philox_words
from smoothcert.models.architectures import small_cnn
from smoothcert.runs.attacking import OnGrid
from smoothcert.sampling import Plan
from smoothcert.staging import DeviceStaging, HostStaging, make_staging, own_stream
from smoothcert.streams import Stream
from smoothcert.training.loop import seeded

CPU = torch.device("cpu")
NOISE, CENTRE, STREAM = GridGaussianNoise(0.25), np.array([0, 128, 255], np.float32), Stream(bytes(32), "index:0", 1)


class Event:
    """Stands for a GPU's: recorded behind the transfers so far, waited for before the buffer is used again."""

    def __init__(self, log):
        self.log, self.number = log, sum(1 for word, _ in log if word == "made")
        log.append(("made", self.number))

    def record(self):
        self.log.append(("recorded", self.number))

    def synchronize(self):
        self.log.append(("waited", self.number))


def test_on_the_cpu_there_is_one_buffer_and_nothing_is_copied():
    staging = HostStaging(CPU, 4, 3)
    staging.open()
    staging.fill(0, 4, NOISE, CENTRE, STREAM, 0)
    sent = staging.send(1, 3)
    expected = np.empty((4, 3), np.float32)
    NOISE.fill(CENTRE, STREAM, 0, expected)
    np.testing.assert_array_equal(sent.numpy(), expected[1:3])
    staging.close()
    staging.open()
    assert staging.send(1, 3).data_ptr() == sent.data_ptr()


def test_two_buffers_take_turns_and_are_waited_for_before_they_are_filled_again():
    log = []
    staging = HostStaging(CPU, 2, 2, make_event=lambda: Event(log))
    places = []
    for _ in range(4):
        staging.open()
        places.append(staging.send(0, 2).data_ptr())
        staging.close()
    assert places[0] == places[2] != places[1] == places[3]
    words = [entry for entry in log if entry[0] != "made"]
    assert words == [
        ("recorded", 0),
        ("recorded", 1),
        ("waited", 0),
        ("recorded", 2),
        ("waited", 1),
        ("recorded", 3),
    ]


def test_without_a_gpu_there_is_no_stream_to_wait_for():
    with own_stream(CPU):
        assert torch.ones(2).sum() == 2


# Noise made on the device


@pytest.mark.parametrize(("block", "lane", "count"), [(0, 0, 1), (0, 1, 4), (3, 0, 1001), (2**40, 7, 64)])
def test_words_are_those_of_the_host(block, lane, count):
    found = philox_words(STREAM, block, lane, count, CPU).numpy().view(np.uint64)
    np.testing.assert_array_equal(found, STREAM.words(block, lane, count))


def test_no_words_are_no_words():
    assert philox_words(STREAM, 0, 1, 0, CPU).tolist() == []


@pytest.mark.parametrize("sigma", [0.01, 0.25, 1.0, 30.0])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 784), (7, 3072)])
def test_noise_has_the_bits_of_the_hosts(sigma, rows, size):
    noise, centre = GridGaussianNoise(sigma), np.arange(size, dtype=np.float32) % 256
    for block in (0, 5):
        expected, found = np.empty((rows, size), np.float32), torch.empty(rows, size)
        noise.fill(centre, STREAM, block, expected)
        fill_on_device(noise, torch.from_numpy(centre), STREAM, block, found)
        np.testing.assert_array_equal(found.numpy(), expected)


class Divisors(TorchDispatchMode):
    """Record the divisors of all divisions."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_):
            self.found.append(args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rounding", [fill_on_device, OnGrid], ids=["noise", "rounding"])
def test_the_grid_is_divided_by_a_tensor(rounding):
    """CUDA multiplies by the reciprocal of a Python number: k/255 would differ from the host's in its last bit."""
    with Divisors() as divisors:
        if rounding is OnGrid:
            OnGrid(torch.nn.Identity())(torch.rand(2, 4))
        else:
            fill_on_device(GridGaussianNoise(0.25), torch.arange(4.0), STREAM, 0, torch.empty(2, 4))
    [divisor] = divisors.found
    assert isinstance(divisor, torch.Tensor)
    assert divisor.dtype == torch.float32
    assert divisor.ndim == 0
    assert divisor == 255


def test_a_gpu_makes_grid_noise_itself_and_gets_other_noise_from_the_host(monkeypatch):
    made = []
    monkeypatch.setattr("smoothcert.staging.DeviceStaging", lambda *_: made.append("device"))
    monkeypatch.setattr("smoothcert.staging.HostStaging", lambda *_: made.append("host"))
    cuda, grid, gaussian = torch.device("cuda"), GridGaussianNoise(0.25), GaussianNoise(0.25)
    for device, noises in ((cuda, [grid, grid]), (cuda, [grid, gaussian]), (CPU, [grid])):
        make_staging(device, 1, 1, noises)
    assert made == ["device", "host", "host"]


def test_votes_are_the_same_wherever_the_noise_is_made(monkeypatch):
    x = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.float32) / 255
    network = seeded(small_cnn, 0).eval()

    def votes():
        smoothed = Smoothed(network, 0.5, seed=0, plan=Plan(50, workers=2), progress=False)
        return [one.stages for one in smoothed.certify(x, FixedN(n0=20, n=3_000))]

    on_host = votes()
    monkeypatch.setattr("smoothcert.sampling.make_staging", lambda *args: DeviceStaging(*args[:3]))
    assert votes() == on_host

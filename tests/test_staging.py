"""The buffers noisy copies are made in: on a GPU two take turns, and none is filled while it is still being read."""

import numpy as np
import torch

from smoothcert.staging import Staging, own_stream

CPU = torch.device("cpu")


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
    staging = Staging(CPU, 4, 3)
    first = staging.open()
    first[:] = np.arange(12, dtype=np.float32).reshape(4, 3)
    sent = staging.send(1, 3)
    assert sent.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert sent.data_ptr() == first[1:].ctypes.data
    staging.close()
    assert staging.open().ctypes.data == first.ctypes.data


def test_two_buffers_take_turns_and_are_waited_for_before_they_are_filled_again():
    log = []
    staging = Staging(CPU, 2, 2, make_event=lambda: Event(log))
    places = []
    for _ in range(4):
        places.append(staging.open().ctypes.data)
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

"""A model that does not fit its input is refused in one clear sentence, with the defaults that users get."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import Smoothed
from smoothcert.cli import main
from smoothcert.errors import ModelError

IMAGE = np.zeros((3, 8, 8), np.uint8)

MODULE = """
import torch
from torch import nn

def wrong_size():
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 10))

def wrong_channels():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))

class Output:
    def __init__(self, logits):
        self.logits = logits

class Wrapped(nn.Module):
    def forward(self, batch):
        return Output(batch.flatten(1)[:, :10])

def wrapped():
    return Wrapped()
"""


class Wrapped(nn.Module):
    """Returns an object with the scores in it, as Hugging Face's models do."""

    def forward(self, batch):
        return SimpleNamespace(logits=batch.flatten(1)[:, :5])


class Short(nn.Module):
    """Takes batches of at most 40 rows."""

    def forward(self, batch):
        if len(batch) > 40:
            raise ValueError("too long")
        return batch.flatten(1)[:, :5]


MISFITS = {
    "flat size": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 10)), "mat1 and mat2"),
    "channels": (lambda: nn.Conv2d(1, 4, 3), "channels"),
    "dimensions": (lambda: nn.Linear(8, 10), "one answer per input|scores"),
    "wrapped output": (Wrapped, r"\.logits"),
    "tuple": (lambda: lambda batch: (batch,), "tuple"),
    "one logit": (lambda: lambda batch: batch.flatten(1)[:, :1], "two classes"),
    "no rows": (lambda: lambda batch: batch.sum(), "one answer per input"),
    "python error": (lambda: lambda batch: batch.no_such_thing, "no_such_thing"),
}


@pytest.mark.parametrize("method", ["certify", "predict"])
@pytest.mark.parametrize("name", MISFITS)
def test_python_says_what_does_not_fit(name, method):
    make, message = MISFITS[name]
    with pytest.raises(ModelError, match=message):
        getattr(Smoothed(make(), 0.25), method)(IMAGE)


def test_a_model_that_takes_short_batches_gets_short_batches():
    g = Smoothed(Short(), 0.25)
    assert g.certify(IMAGE, n_max=500).draws > 0
    assert g.plan_for((3, 8, 8)).batch_size <= 40


@pytest.mark.parametrize("function", ["wrong_size", "wrong_channels", "wrapped"])
@pytest.mark.parametrize(
    "command",
    [
        ["certify", "MODEL", "digits", "--sigma", "0.25", "--first", "2", "--out", "run"],
        ["certify", "MODEL", "digits", "--sigma", "0.25", "--first", "2", "--workers", "2", "--out", "run"],
        ["predict", "MODEL", "digits", "--sigma", "0.25", "--first", "2", "--out", "run"],
        ["tune", "MODEL", "--data", "digits"],
        ["baseline", "MODEL", "digits", "--first", "2", "--out", "run"],
        ["attack-base", "MODEL", "digits", "--first", "2", "--out", "run"],
    ],
    ids=["certify", "certify with workers", "predict", "tune", "baseline", "attack-base"],
)
def test_the_command_line_says_so_in_one_line(command, function, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODULE)
    arguments = [f"nets.py:{function}" if argument == "MODEL" else argument for argument in command]
    assert main(arguments) == 3
    errors = capsys.readouterr().err.strip().splitlines()
    assert errors[-1].startswith("error: ")
    assert "Traceback" not in "".join(errors)
    assert len(errors) <= 3


@pytest.mark.parametrize("function", ["wrong_size", "wrapped"])
def test_inspect_says_so_too(function, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODULE)
    code = main(["inspect", f"nets.py:{function}", "--data", "digits", "--sigma", "0.25"])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert code == 3 or "failed" in printed.out or "Expected" in printed.out


def test_torch_is_where_the_message_comes_from():
    """Inside the model, the cause is kept for whoever debugs it."""
    with pytest.raises(ModelError) as caught:
        Smoothed(nn.Sequential(nn.Flatten(), nn.Linear(100, 10)), 0.25).certify(torch.zeros(3, 8, 8))
    assert isinstance(caught.value.__cause__, RuntimeError)

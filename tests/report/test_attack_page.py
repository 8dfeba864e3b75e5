"""docs/results/attack-cifar10.md is what its script makes from the kept runs."""

import importlib
import sys
from pathlib import Path

import pytest

from smoothcert.cli import main

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "results" / "attack-cifar10"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "reproduce")
    yield importlib.import_module("attack_cifar10")
    for name in ("attack_cifar10", "results"):
        sys.modules.pop(name, None)


def test_the_page_is_made_from_the_kept_runs(script):
    assert (ROOT / "docs" / "results" / "attack-cifar10.md").read_text("utf-8") == script.page()


def test_the_kept_runs_verify():
    assert main(["verify", str(KEPT / "smoothed")]) == 0
    assert main(["verify", str(KEPT / "attacked")]) == 0

"""`make reproduce-paper`: docs/results/published.md is what its scripts make from the published evidence.

The votes were sampled by others from the paper's released networks (github.com/FireShadow05/accelerated_smoothing,
MIT).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.making import real_root
from evidence import PUBLISHED
from smoothcert.data.known import CIFAR10, find
from smoothcert.stats.radii import max_radius

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "published.md"


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """reproduce/tables.py, with a data folder that has what it needs."""
    if not PUBLISHED.is_dir() or find(CIFAR10, real_root(), "test") is None:
        pytest.skip(f"the published evidence or CIFAR-10 is not there: {PUBLISHED}, {real_root()}")
    root = tmp_path / "root"
    root.mkdir()
    (root / "cohen2019").symlink_to(PUBLISHED / "cohen2019")
    (root / "cohen2019-votes").symlink_to(PUBLISHED / "accelerated_smoothing")
    (root / "cifar10").symlink_to(real_root() / "cifar10")
    monkeypatch.setenv("SMOOTHCERT_DATA", str(root))
    monkeypatch.syspath_prepend(ROOT / "reproduce")
    yield importlib.import_module("tables")
    for name in ("tables", "published"):
        sys.modules.pop(name, None)


def test_the_page_has_the_tables_that_follow_from_the_logs(tables, tmp_path):
    published, text = tables.Published(tmp_path), PAGE.read_text("utf-8")
    imagenet, cifar = (published.all_certified(network) for network in (tables.IMAGENET, tables.CIFAR))
    title = "Table 3: CIFAR-10, ResNet-110, from the logs of every 20th image"
    for section in (
        tables.best_by_radius(imagenet),
        tables.side_by_side("Table 2: ImageNet, ResNet-50, from the logs", imagenet, tables.IMAGENET),
        tables.side_by_side(title, cifar, tables.CIFAR, tables.SAMPLE),
        tables.predictions(published.predicted()),
    ):
        assert "\n".join(section) in text


@pytest.mark.slow
def test_the_page_is_the_one_that_is_made(tables, tmp_path):
    assert tables.page(tables.Published(tmp_path)) == PAGE.read_text("utf-8")


def test_the_row_in_which_the_paper_contradicts_itself_is_shown_with_both_figures():
    """ImageNet at r = 2."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = lines.index("| 2 | printed | σ = 0.5 | 19 | 57 |")
    assert lines[start + 1] == "| | printed in Table 2 | σ = 1 | 19 | 44 |"
    assert lines[start + 2] == "| | from the logs | σ = 1 | 19.4 | 43.6 |"
    assert 1.9 < max_radius(100_000, 0.001, 0.5) < 1.91, "what the page says no network can exceed at σ = 0.50"
    assert max_radius(100_000, 0.01, 0.5) < 2


@pytest.mark.parametrize("script", ["tables.py", "figures.py"])
def test_without_the_evidence_one_line_says_what_to_run(script, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "reproduce" / script, "--out", tmp_path / "out"],
        env={**os.environ, "SMOOTHCERT_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cohen2019 is not there")
    assert done.stderr.endswith("Run: smoothcert data fetch cohen2019\n")

"""The logic of the benchmarks, without any timing that matters."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import common
import everything
import peers

IMAGE = np.zeros((1, 4, 4), np.uint8)


def test_a_search_stops_when_larger_sizes_are_slower(monkeypatch):
    speeds = {1: 10.0, 2: 100.0, 4: 90.0, 8: 70.0, 16: 1000.0}
    warmed = []
    monkeypatch.setattr(common, "rate", lambda work, _: speeds[work()])
    rates = common.rates_by_size(speeds, lambda size: lambda: warmed.append(size) or size, 0.1)
    assert rates == {1: 10.0, 2: 100.0, 4: 90.0, 8: 70.0}
    assert warmed == [1, 1, 2, 2, 4, 4, 8, 8]


def test_a_peer_runs_at_its_fastest_batch_size_and_the_search_is_printed(monkeypatch, capsys):
    tried = []
    monkeypatch.setattr(peers, "loop_certifier", lambda _: lambda _, n, size: tried.append((n, size)))
    monkeypatch.setattr(common, "rate", lambda work, _: work() and {16: 50.0, 32: 80.0}.get(tried[-1][1], 1.0))
    certify, note = peers.certifier("loop", torch.nn.Identity(), IMAGE.shape, IMAGE)
    certify(IMAGE, 7)
    assert tried[-1] == (7, 32)
    assert note == "batch 32"
    assert "16: 50, 32: 80, 64: 1" in capsys.readouterr().out


@pytest.mark.parametrize(("n", "size", "sizes"), [(10, 4, [4, 4, 2]), (8, 8, [8]), (3, 100, [3])])
def test_the_papers_loop_makes_just_its_draws(n, size, sizes):
    seen = []

    def model(batch):
        seen.append(len(batch))
        return torch.nn.functional.one_hot(torch.ones(len(batch), dtype=torch.long), 10).float()

    loop = peers.PapersLoop(SimpleNamespace(eval=lambda: model), 10)
    assert loop._counts(torch.zeros(1, 4, 4), n, size).tolist() == [0, n] + 8 * [0]
    assert seen == sizes


def test_a_tables_figures_show_both_factors():
    """Ten images: a tenth of CERTIFY's draws, at twice and four times the speed in the median round."""
    draws = (peers.N0 + peers.N) // 10
    found = [SimpleNamespace(radius=0.5, label=3, draws=draws)] * 7 + [
        SimpleNamespace(radius=0.0, label=None, draws=draws)
    ] * 3
    ours, rates = [100.0, 200.0, 400.0], {"loop": [50.0, 100.0, 100.0], "art": [25.0, 50.0, 200.0]}
    notes = {"ours": "eager", "loop": "batch 16", "art": "batch 64"}
    fewer, *others = peers.table_figures("table", found, 12.0, ours, rates, notes)
    assert fewer.value == pytest.approx(10)
    assert "70 % at 0, 70 % at 0.25, 70 % at 0.5, 0 % at 0.75" in fewer.detail
    assert [round(one.value, 6) for one in others] == [2, 20, 4, 40]
    assert "batch 16" in others[0].detail
    assert "extrapolated" in others[1].detail
    assert "10.0 × 2.00" in others[1].detail


def test_a_page_keeps_the_sections_that_were_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "PAGE", tmp_path / "page.md")
    one, other = common.Figure("old", 1.0), common.Figure("new", 2.0)
    everything.write_page({"noise": [one], "throughput": [one], "large": [one]})
    everything.write_page({"large": [other], "noise": []})
    text = (tmp_path / "page.md").read_text("utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [f"## {everything.NAMES[name][0]}" for name in ("throughput", "large", "noise")]
    assert text.count("| old | 1.00 |") == 2
    assert text.count("| new | 2.00 |") == 1

"""Standard data sets made small, and a server to fetch from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data.making import COUNT, Server
from smoothcert.data import known


@pytest.fixture
def small(monkeypatch):
    """Standard data sets count six images per split, so that tests can write them."""
    for name, data in list(known.KNOWN.items()):
        monkeypatch.setitem(known.KNOWN, name, replace(data, counts=dict.fromkeys(data.counts, COUNT)))


@pytest.fixture
def server():
    one = Server()
    yield one
    one.close()

"""What all tests share: the user's cache is neither read nor written, and Ctrl-C interrupts."""

import signal

import pytest

from smoothcert.stats.boundary_cache import boundary


@pytest.fixture(autouse=True, scope="session")
def _cache_apart(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMOOTHCERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _interrupts():
    """Where tests are started in the background, Ctrl-C is ignored, by the processes that they start too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """No boundary comes from outside the test, and none stays."""
    monkeypatch.setenv("SMOOTHCERT_CACHE", str(tmp_path))
    boundary.cache_clear()
    yield tmp_path
    boundary.cache_clear()

import json

import pytest
from scipy.special import ndtr

from smoothcert.stats import boundary_cache
from smoothcert.stats.boundaries import crossing_probability, look_schedule, new_boundary
from smoothcert.stats.boundary_cache import boundary

LOOKS = look_schedule(2_000)
TEST = (float(ndtr(-0.5)), 0.01, LOOKS, 1e6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test, on disk and in memory."""
    monkeypatch.setenv("SMOOTHCERT_CACHE", str(tmp_path))
    boundary.cache_clear()
    yield tmp_path / "boundaries"
    boundary.cache_clear()


def stored(folder):
    (path,) = folder.glob("*.json")
    return path


def test_a_boundary_is_written_once_and_read_back_equal(folder, monkeypatch):
    first = boundary(*TEST)
    assert first == new_boundary(*TEST)
    boundary.cache_clear()
    monkeypatch.setattr(boundary_cache, "new_boundary", lambda *_: pytest.fail("was computed again"))
    assert boundary(*TEST) == first
    assert len(list(folder.iterdir())) == 1


def test_every_setting_has_a_file_of_its_own(folder):
    q, alpha, looks, patience = TEST
    for other in (TEST, (q * 0.999, alpha, looks, patience), (q, alpha / 2, looks, patience), (q, alpha, looks, 2e6)):
        boundary(*other)
    boundary(q, alpha, look_schedule(1_900), patience)
    assert len(list(folder.iterdir())) == 5


DAMAGE = {
    "empty": lambda _: "",
    "cut off": lambda content: json.dumps(content)[:-30],
    "not JSON": lambda _: "\x00\xff" * 50,
    "another file": lambda _: json.dumps([1, 2, 3]),
    "a version to come": lambda content: json.dumps({**content, "version": 2}),
    "of another test": lambda content: json.dumps({**content, "alpha": (0.02).hex()}),
    "with a key too many": lambda content: json.dumps({**content, "more": 1}),
    "with a key too few": lambda content: json.dumps({k: v for k, v in content.items() if k != "give_up"}),
    "of numbers with decimals": lambda content: json.dumps({**content, "accept": [a + 0.5 for a in content["accept"]]}),
    "too short": lambda content: json.dumps({**content, "accept": content["accept"][:-1]}),
    "that accepts too easily": lambda content: json.dumps(
        {**content, "accept": [a + 8 for a in content["accept"]], "give_up": [g + 8 for g in content["give_up"]]}
    ),
    "that accepts everything": lambda content: json.dumps(
        {**content, "accept": LOOKS, "give_up": [n + 1 for n in LOOKS]}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_file_that_is_not_sound_is_replaced(folder, damage):
    right = boundary(*TEST)
    path = stored(folder)
    content = json.loads(path.read_text())
    path.write_bytes(damage(content).encode("utf-8", "surrogatepass"))
    boundary.cache_clear()
    assert boundary(*TEST) == right
    assert json.loads(path.read_text()) == content


def test_what_is_read_is_sound_even_if_it_is_not_what_we_would_write(folder):
    """A boundary that accepts less is no danger, and is taken as it is."""
    boundary(*TEST)
    path = stored(folder)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "accept": [max(a - 3, -1) for a in content["accept"]]}))
    boundary.cache_clear()
    assert crossing_probability(TEST[0], LOOKS, boundary(*TEST).accept) <= TEST[1]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SMOOTHCERT_CACHE", str(tmp_path / "file"))
    assert boundary(*TEST) == new_boundary(*TEST)


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SMOOTHCERT_CACHE", "here")
    assert boundary_cache.cache_folder().parts == ("here", "boundaries")
    monkeypatch.delenv("SMOOTHCERT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    assert boundary_cache.cache_folder().parts == ("there", "smoothcert", "boundaries")

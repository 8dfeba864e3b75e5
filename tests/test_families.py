"""Registries of interchangeable parts: by name, with settings, from files and from installed packages."""

import hashlib
from importlib.metadata import EntryPoint

import pytest

from shapes import SHAPES, Circle, Shape, Square
from smoothcert import families
from smoothcert.errors import ConfigError
from smoothcert.families import member_summary, origin, split_settings

FILE = """
from dataclasses import dataclass
from shapes import Shape

@dataclass(frozen=True)
class Blob(Shape):
    "No shape at all."
    wobble: float = 0.5

class NoShape:
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "blobs.py"
    path.write_text(FILE)
    return path


def test_members_are_found_by_name_with_a_line_about_each():
    assert list(SHAPES) == ["square", "circle"]
    assert SHAPES["circle"] is Circle
    assert SHAPES.summaries() == {"square": "Four equal sides.", "circle": "Round."}


def test_two_members_cannot_have_the_same_name():
    class Other(Shape):
        name = "circle"

    with pytest.raises(ValueError, match="a shape called 'circle' already"):
        SHAPES.register(Other)
    assert SHAPES.register(Circle) is Circle


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("square:side=2", Square(2.0)),
        ("square:side=0.5,filled=true", Square(0.5, filled=True)),
        ("circle", Circle()),
        ("circle:radius=4", Circle(4)),
    ],
)
def test_a_text_is_a_member_with_settings_and_back(text, member):
    assert SHAPES.parse(text) == member
    assert SHAPES.parse(SHAPES.text(member)) == member


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("squar:side=2", "one of square, circle or file.py:Class, got 'squar'. Did you mean 'square'?"),
        ("square", "The shape square needs side"),
        ("circle:radius", "as name=value, got 'radius'"),
        ("circle:radius=1,radius=2", "`radius` of the shape circle is given twice"),
        ("circle:radius=1.5", "'1.5' is no value for `radius`"),
        ("circle:side=1", "Expected radius=… of the shape circle, got 'side=1'"),
        ("nowhere.py:Blob", "Expected a Python file nowhere.py, there is none"),
    ],
)
def test_what_cannot_be_read_is_said(text, message):
    with pytest.raises(ConfigError) as error:
        SHAPES.parse(text)
    assert message in str(error.value)


def test_members_come_from_files_and_say_where_from(file):
    blob = SHAPES.parse(f"{file}:Blob:wobble=2")
    assert blob.wobble == 2.0
    assert member_summary(type(blob)) == "No shape at all."
    found = origin(type(blob))
    assert found.source == f"{file}:Blob"
    assert found.sha256 == hashlib.sha256(FILE.encode()).hexdigest()
    assert SHAPES.record(blob) == {
        "name": "Blob",
        "wobble": 2.0,
        "origin": {"source": found.source, "sha256": found.sha256},
    }
    assert SHAPES.text(blob) == f"{file}:Blob:wobble=2.0"


def test_members_of_this_package_have_no_origin_in_a_record():
    from smoothcert.training.recipes import RECIPES

    assert RECIPES.record(RECIPES.parse("consistency:weight=5"))["weight"] == 5.0
    assert "origin" not in RECIPES.record(RECIPES.parse("gaussian"))


def test_what_is_no_member_of_the_family_is_refused(file):
    with pytest.raises(ConfigError, match="to be a subclass of Shape"):
        SHAPES.find(f"{file}:NoShape")
    with pytest.raises(ConfigError, match="no such name"):
        SHAPES.find(f"{file}:Missing")
    file.write_text("raise RuntimeError('not today')")
    with pytest.raises(ConfigError, match="RuntimeError: not today"):
        SHAPES.find(f"{file}:Blob")


def test_installed_packages_bring_members_by_entry_points(monkeypatch):
    entry = EntryPoint("disc", "shapes:Circle", "smoothcert.shape")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry] if group == "smoothcert.shape" else [])
    assert SHAPES.parse("disc:radius=5") == Circle(5)
    with pytest.raises(ConfigError, match="one of square, circle, disc or"):
        SHAPES.find("disk-like")


def test_settings_follow_the_reference():
    assert split_settings("a.py:B:c=1") == ("a.py:B", "c=1")
    assert split_settings("a.py:B") == ("a.py:B", "")
    assert split_settings("name:c=1") == ("name", "c=1")

"""docs/paper.md has a row for every item of the paper, and what its rows name exists: commands, functions, tests."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from smoothcert.cli import _parse
from test_citations import ITEMS, cited

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper.md").read_text("utf-8")
LINES = TEXT.splitlines()
ROWS = [line for line in LINES if line.startswith("| ")]
FENCED = [line for block in re.findall(r"```\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
SPANS = sorted(set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", TEXT)) | set(FENCED))

COMMANDS = [span for span in SPANS if re.match(r"(torchrun .* -m )?smoothcert ", span)]
TARGETS = [span for span in SPANS if span.startswith("make ")]
NAMES = [span for span in SPANS if re.fullmatch(r"smoothcert(\.\w+)+", span)]
TESTS = [span for span in SPANS if span.startswith("tests/")]
PSEUDOCODE = ("PREDICT", "CERTIFY", "SAMPLEUNDERNOISE", "LOWERCONFBOUND", "BINOMPVALUE")


def test_the_page_was_read():
    assert len(ROWS) > 60
    assert len(COMMANDS) > 30
    assert len(TESTS) > 40
    assert len(NAMES) > 20
    assert len(TARGETS) >= 3


def test_every_item_of_the_paper_has_a_row():
    named = {item for row in ROWS for item, _ in cited(row)}
    missing = {item for item in ITEMS if not item.startswith(("Section", "Appendix")) and item not in named}
    assert not missing
    assert {f"Appendix {letter}" for letter in "ABCDEFGHIJK"} <= named
    assert {"Section 3.2.1", "Section 3.2.2", "Section 3.3"} <= named
    for name in PSEUDOCODE:
        assert any(row.startswith(f"| {name} |") for row in ROWS), name


def test_no_row_is_empty_or_says_that_something_is_missing():
    for row in ROWS:
        item, here, *_ = (cell.strip() for cell in row.strip("|").split(" | "))
        assert item
        assert here
        assert not re.search(r"missing|todo|tbd", row, re.IGNORECASE), row


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command):
    words = shlex.split(command[command.index("smoothcert ") :])
    parsed = _parse(words[1:])
    assert callable(parsed.run)


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_exists(target):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(rf"^{target.split()[1]}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_and_class_exists(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} does not exist")


@pytest.mark.parametrize("test", TESTS)
def test_every_test_exists(test):
    path, _, function = test.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert not function or function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

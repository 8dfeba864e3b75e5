from __future__ import annotations

import pytest

from smoothcert.data.names import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tab\there", "tab\\there"),
        ("line\nbreak\r", "line\\nbreak\\r"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("right\u202eleft", "right\\u202eleft"),
        ("line\u2028separator", "line\\u2028separator"),
        ("\udcff", "\\udcff"),
        ("\0", "\\x00"),
    ],
)
def test_what_would_steer_the_terminal_is_escaped(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["", "n01440764", "Käfer 犬 😀", "a\u00a0b", "=cmd()|'x", "C:\\data"])
def test_what_can_be_read_stays(text):
    assert printable(text) == text


def test_what_is_no_text_is_shown_as_text():
    assert printable(17) == "17"

"""Names: those of data sets taken apart, and those from files made safe to print."""

from __future__ import annotations

import re
import unicodedata

_NAMED_SPLIT = re.compile(r"(.+) \(([^()]+)\)")


def source_and_split(name: str) -> tuple[str, str]:
    """A data set's source and split, from the name that it goes by in records.

    >>> source_and_split("mnist (train)"), source_and_split("images.npz")
    (('mnist', 'train'), ('images.npz', 'test'))
    """
    found = _NAMED_SPLIT.fullmatch(name)
    return (found[1], found[2]) if found else (name, "test")


def printable(text: object) -> str:
    r"""`text` with everything escaped that is not meant to be seen; letters of all scripts stay.

    Names may hold tabs, line breaks or commands to the terminal.

    >>> printable("Käfer\t\x1b[31m")
    'Käfer\\t\\x1b[31m'
    """
    return "".join(one if _is_visible(one) else one.encode("unicode_escape").decode() for one in str(text))


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"

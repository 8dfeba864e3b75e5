"""Names from files and folders, made safe to print: they may hold tabs, line breaks or commands to the terminal."""

from __future__ import annotations

import unicodedata


def printable(text: object) -> str:
    r"""`text` with everything escaped that is not meant to be seen; letters of all scripts stay.

    >>> printable("Käfer\t\x1b[31m")
    'Käfer\\t\\x1b[31m'
    """
    return "".join(one if _is_visible(one) else one.encode("unicode_escape").decode() for one in str(text))


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"

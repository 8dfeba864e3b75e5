"""Small pieces of HTML: whatever is not HTML already is escaped when it is put into an element."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from smoothcert.data.names import printable

_VOID = frozenset({"img", "input", "br"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def safe(value: object) -> Html:
    r"""Text as HTML that shows it and does nothing else; `Html` stays as it is.

    >>> safe("<b>\x1b & co")
    '&lt;b&gt;\\x1b &amp; co'
    """
    return value if isinstance(value, Html) else Html(html.escape(printable(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Pieces in a row, `between` being HTML."""
    return Html(between.join(safe(part) for part in parts))


def element(name: str, *content: object, **attributes: object) -> Html:
    """An element with this content. Attributes that are None or False are left out; `class_` is class, `a_b` is a-b.

    >>> element("p", "a < b", class_="note", hidden=True)
    '<p class="note" hidden>a &lt; b</p>'
    """
    opening = "".join([name, *(_attribute(key, value) for key, value in attributes.items())])
    return Html(f"<{opening}>" if name in _VOID else f"<{opening}>{join(content)}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{safe(value)}"'


def table(head: Iterable[object], rows: Iterable[Iterable[object]], *, caption: object, **attributes: object) -> Html:
    """A table that scrolls by itself where it is wider than the page; the first cell of a row is its heading."""
    heads = join(element("th", cell, scope="col") for cell in head)
    lines = [
        element(
            "tr",
            *(element("td" if place else "th", cell, scope=None if place else "row") for place, cell in enumerate(row)),
        )
        for row in rows
    ]
    inner = element("table", element("thead", element("tr", heads)), element("tbody", *lines), **attributes)
    title = element("p", caption, class_="caption")  # outside, as it should not be scrolled out of sight
    return join([title, element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)])


def embedded_json(values: Any) -> Html:
    r"""JSON for a script element: no character of it can end the element or a line.

    >>> embedded_json("</script>\u2028")
    '"\\u003c/script\\u003e\\u2028"'
    """
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)  # pure ASCII
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

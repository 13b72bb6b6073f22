"""Elements of HTML. Texts are escaped once, by the functions of this module.

Texts come from tables, and any writer of a table may choose them. A text never becomes an element,
an attribute's end, a link or a style.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

MOST_CHARS = 300
"""Maximum length of a text on the page."""

_REPLACEMENT = "\ufffd"
_BIDI_CONTROLS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""Characters that change the order of the text around them."""


class Markup(str):
    """HTML made by this module."""

    __slots__ = ()


def show(value: object, *, most: int = MOST_CHARS) -> Markup:
    """Returns a text from a table, cut, escaped, and with its own direction.

    Control characters and characters of half a code point become the replacement character.
    """
    text = str(value)
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return Markup(f"<bdi>{html.escape(''.join(map(_printable, cut)))}</bdi>")


def element(name: str, *children: object, **attributes: object) -> Markup:
    """Returns an element. Children other than :class:`Markup` are escaped.

    An attribute `data_head` is `data-head`, and `class_` is `class`. None leaves an attribute out.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Returns children in a row, without None."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else html.escape(str(child))
            for child in children
            if child is not None
        )
    )


def facts(pairs: Sequence[tuple[object, object]]) -> Markup | None:
    """Returns names with their present values as a list; None without any value."""
    present = [(name, value) for name, value in pairs if value not in (None, "")]
    if not present:
        return None
    return element(
        "dl", *(join((element("dt", name), element("dd", value))) for name, value in present)
    )


def grid(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup | None:
    """Returns a table; None without rows. On a narrow page each row repeats the heads."""
    if not rows:
        return None
    head = element("thead", element("tr", *(element("th", name) for name in heads)))
    body = [
        element(
            "tr",
            *(element("td", cell, data_head=name) for name, cell in zip(heads, row, strict=True)),
        )
        for row in rows
    ]
    return element("table", head, element("tbody", *body))


def bar(part: int, total: int) -> Markup:
    """Returns a bar of a share."""
    return element("progress", max=max(1, total), value=min(part, max(1, total)))


def fold(
    summary: Markup, *children: object, is_open: bool = False, class_: str | None = None
) -> Markup:
    """Returns a part of the page that a click opens."""
    return element(
        "details",
        element("summary", summary),
        *children,
        class_=class_,
        open="" if is_open else None,
    )


def _printable(char: str) -> str:
    if char in "\n\t":
        return " "
    is_hidden = unicodedata.category(char) in ("Cc", "Cs") or char in _BIDI_CONTROLS
    return _REPLACEMENT if is_hidden else char

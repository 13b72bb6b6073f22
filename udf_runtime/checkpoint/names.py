"""Texts as parts of object names, unchanged by every store and file system."""

from __future__ import annotations

import re

_MOST_BYTES = 160
"""A file name has at most 255 bytes, and holds further parts."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile("=([0-9A-F]{2})")


def quote(text: str) -> str:
    """Returns a text as ASCII letters, digits, `_`, `-`, and `=XX` for other bytes of its UTF-8.

    Raises:
        ValueError: The text is empty or too long for a file name.
    """
    quoted = _escape(text)
    if not 0 < len(quoted) <= _MOST_BYTES:
        raise ValueError(
            f"The name {text[:40]!r} has {len(quoted)} bytes as part of a file name. At least 1 and at most "
            f"{_MOST_BYTES} are possible. Give a shorter name, of ASCII letters and digits."
        )
    return quoted


def unquote(quoted: str) -> str:
    """Returns the original text of a result of :func:`quote`.

    Raises:
        ValueError: The argument is no result of :func:`quote`.
    """
    raw = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), quoted).encode("latin-1")
    text = raw.decode("utf-8")
    if _escape(text) != quoted:
        raise ValueError(
            f"The object {quoted!r} has no quoted name. Another program made the object."
        )
    return text


def _escape(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in text.encode("utf-8"))

"""Values of options from their texts, and the fields of options in dataclasses.

A parser raises a ValueError for a text that is no value. The module
:mod:`lance_spark.options.io_options` makes an :class:`~lance_spark.errors.OptionError` of the
ValueError.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_spark.queries.parameters import TextQuery, VectorQuery

_MOST = 1 << 63
"""More than any number that Lance takes: signed 64 bits."""


def option_field(
    parse: Callable[[str], object],
    accepted: str,
    doc: str,
    *,
    default: object = None,
    name: str | None = None,
) -> Any:  # noqa: ANN401 - dataclasses.field is typed so too
    """Returns the field of an option in a dataclass of options.

    Args:
        parse: Returns the value of a text. A ValueError refuses the text.
        accepted: The accepted texts, for errors and for the documentation.
        doc: The documentation.
        default: The value without the option.
        name: The name in the documentation, if it is not the name of the field.
    """
    return dataclasses.field(
        default=default, metadata={"parse": parse, "accepted": accepted, "doc": doc, "name": name}
    )


def parse_boolean(text: str) -> bool:
    """Returns the value of `true` or `false`, in upper or lower case."""
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def parse_positive(text: str) -> int:
    """Returns a whole number of 1 or more, in signed 64 bits."""
    number = parse_not_negative(text)
    if number == 0:
        raise ValueError
    return number


def parse_not_negative(text: str) -> int:
    """Returns a whole number of 0 or more, in signed 64 bits."""
    number = int(text)
    if not 0 <= number < _MOST:
        raise ValueError
    return number


def byte_size(text: str) -> int:
    """Bytes, as a number or with a binary unit: `67108864`, `64m`, `64MiB`, `1g`."""
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(i?b)?\s*", text.lower())
    if match is None or int(match[1]) == 0:
        raise ValueError
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]
    if size >= _MOST:
        raise ValueError
    return size


def parse_names(text: str) -> tuple[str, ...]:
    """Column names: a JSON array, needed for a name with a comma, or a comma-separated list."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ValueError
    else:
        names = [part.strip() for part in text.split(",")]
    if not names or not all(names) or len(set(names)) != len(names):
        raise ValueError
    return tuple(names)


def parse_fragment_ids(text: str) -> tuple[int, ...]:
    """Returns ids of fragments in ascending order, from a JSON array or a comma-separated list."""
    ids = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [int(part) for part in text.split(",")]
    )
    if not ids or not all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 32 for i in ids
    ):
        raise ValueError
    return tuple(sorted(set(ids)))


def parse_timestamp(text: str) -> datetime:
    """ISO 8601; without an offset it is UTC."""
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_version_text(text: str) -> str:
    """Returns the text of a version: a number, a tag, or `branch:version`."""
    match = re.fullmatch(r"(?:([^\s:]+):)?(\d+)|[^\s:]+", text.strip())
    if match is None or (match[2] is not None and int(match[2]) >= 1 << 63):
        raise ValueError
    return text.strip()


def parse_branch(text: str) -> str:
    """Returns the name of a branch."""
    if not re.fullmatch(r"[^\s:]+", text):
        raise ValueError
    return text


def parse_text(text: str) -> str:
    """Returns a text that is not blank."""
    if not text.strip():
        raise ValueError
    return text


def parse_one_of(*choices: str) -> Callable[[str], str]:
    """Returns the parser of an option with few accepted texts, in lower case."""

    def parse(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError
        return text.strip().lower()

    return parse


def parse_vector_query(text: str) -> VectorQuery:
    """Returns a search for near vectors, from JSON."""
    # Imported here: workers of plain scans import this module, and start sooner without more.
    from lance_spark.queries.parameters import VectorQuery

    return VectorQuery.of_json(text)


def parse_text_query(text: str) -> TextQuery:
    """Returns a full-text search, from its words or from JSON."""
    from lance_spark.queries.parameters import TextQuery

    return TextQuery.of_text(text)

"""JSON of other writers: in a table's folder, in SQL, in the metadata of columns.

The text may be damaged or forged, so the types of fields are checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Kinds: TypeAlias = Mapping[str, type | tuple[type, ...]]
"""Fields of an object and the types that each may have."""


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Returns the value of a JSON text. Runs anywhere.

    Raises:
        ValueError: The text is no JSON, or is nested more deeply than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON text is nested too deeply") from error


def load_object(text: str | bytes, kinds: Kinds | None = None) -> dict[str, Any]:
    """Returns a JSON object. Runs anywhere.

    Args:
        text: The JSON text.
        kinds: Required fields and their types. `bool` does not count as `int`.

    Raises:
        ValueError: The text is no JSON object, or a field is missing or has another type.
    """
    values = parse_json(text)
    if not isinstance(values, dict):
        raise ValueError(f"a JSON object is expected, not {type(values).__name__}")  # noqa: TRY004 - text, not an argument
    check_fields(values, kinds or {})
    return values


def check_fields(values: Mapping[str, object], kinds: Kinds) -> None:
    """Checks that fields are present and have their types.

    Raises:
        ValueError: A field is missing or has another type.
    """
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"the field {name!r} is missing")
        if not _has_kind(values[name], kind):
            raise ValueError(
                f"the field {name!r} is {type(values[name]).__name__}: {str(values[name])[:100]!r}"
            )


def _has_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    allowed = kind if isinstance(kind, tuple) else (kind,)
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))

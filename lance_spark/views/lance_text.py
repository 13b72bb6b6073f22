"""Checks of texts in Lance SQL, at the creation of a view and at each refresh."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lance_spark.errors import RegistrationError
from lance_spark.read.filtering import check_filter

if TYPE_CHECKING:
    import lance

_UNSTEADY = (
    "_rowaddr",
    "_rowoffset",
    "_fragid",
    "_row_last_updated_at_version",
    "current_date",
    "current_time",
    "current_timestamp",
)
_UNSTEADY_CALLS = ("random", "uuid", "now", "today")


def check_lance_texts(dataset: lance.LanceDataset, expressions: Iterable[str], condition: str | None) -> None:
    """Refuses invalid expressions and conditions over a source.

    Raises:
        RegistrationError: A value may change without a change of its row.
        FilterError: The condition is not valid.
    """
    for text in (*expressions, condition or ""):
        _refuse_unsteady(text, dataset.uri)
    if condition is not None:
        check_filter(dataset, condition, dataset.uri, "descriptor")


def _refuse_unsteady(text: str, uri: str) -> None:
    """Refuses an expression whose value may change without a change of its row."""
    bare = re.sub(r"'[^']*'|`[^`]*`", "", text)
    match = re.search(rf"\b(?:(?:{'|'.join(_UNSTEADY)})\b|(?:{'|'.join(_UNSTEADY_CALLS)})\s*\()", bare, re.IGNORECASE)
    if match is not None:
        raise RegistrationError(
            f"{match[0]!r} in {text!r} has other values without any change of the row's columns, so no refresh could "
            f"tell which rows are out of date - for a view over {uri} - compute it in queries over the view"
        )

"""References of checkpoints to column files, as stored text states them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.task.messages import FragmentRows

if TYPE_CHECKING:
    from udf_runtime.checkpoint import ColumnFileReference

_LOG = logging.getLogger(__name__)

_STATED = frozenset({"computed", "own"})
"""Row sets in every reference of this package."""


@dataclass(frozen=True, slots=True)
class StoredReference:
    """The validated content of a reference.

    Attributes:
        data_file: Name in `data/` of the column file.
        rows: The rows with values in the file.
        fragment_id: The fragment of the rows; None if not stated.
    """

    data_file: str
    rows: FragmentRows
    fragment_id: int | None

    @staticmethod
    def of(body: ColumnFileReference | None) -> StoredReference | None:
        """Returns the content of a reference; None without content, or with foreign content."""
        if body is None:
            return None
        absent_sets = sorted(_STATED - body["rows"].keys())
        if absent_sets:
            _warn(body, f"row sets are missing: {', '.join(absent_sets)}")
            return None
        try:
            rows = FragmentRows.from_json({name: str(text) for name, text in body["rows"].items()})
        except (TypeError, ValueError) as error:
            _warn(body, error)
            return None
        number = body["context"].get("fragment")
        fragment_id = number if isinstance(number, int) and not isinstance(number, bool) else None
        return StoredReference(data_file=body["data_file"], rows=rows, fragment_id=fragment_id)


def _warn(body: ColumnFileReference, reason: object) -> None:
    _LOG.warning(
        "The reference to the column file %r is not used, and its rows are computed again: %s",
        body["data_file"],
        reason,
    )

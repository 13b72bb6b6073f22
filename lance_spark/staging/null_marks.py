"""Rows computed as NULL, as metadata of a column file: :class:`NullMarks`.

A version alone does not tell whether a NULL was computed or is missing. The column file of a
backfill therefore names the rows computed as NULL, so that streams know them as soon as the version
exists. Records of computed rows follow after the commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.rows.row_set import RowSet
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    from lance.file import LanceFileSession

_LOG = logging.getLogger(__name__)

MARKS_KEY = "lance-spark:computed-nulls"
"""Metadata of a column file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullMarks:
    """The rows of a column file whose value was computed as NULL.

    Attributes:
        rows: All known rows, of this job and of earlier jobs.
        new: Subset of `rows` that no version marked before, as far as the job knows.
    """

    rows: RowSet
    new: RowSet

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the column file; empty without a row."""
        if not self.rows:
            return {}
        return {MARKS_KEY: json.dumps({"rows": self.rows.to_text(), "new": self.new.to_text()})}

    @staticmethod
    def of(metadata: Mapping[bytes, bytes]) -> NullMarks:
        """Returns the marks of the metadata of a file. A damaged mark counts as no mark."""
        text = metadata.get(MARKS_KEY.encode())
        if text is None:
            return NO_MARKS
        try:
            values = load_object(text, {"rows": str, "new": str})
            rows = RowSet.from_text(values["rows"])
            return NullMarks(rows=rows, new=RowSet.from_text(values["new"]) & rows)
        except ValueError as error:
            _LOG.warning(
                "the marks of computed NULLs in a column file are damaged and not used: %s", error
            )
            return NO_MARKS


NO_MARKS = NullMarks(rows=RowSet.empty(), new=RowSet.empty())


def read_marks(session: LanceFileSession, file: str) -> NullMarks:
    """Returns the marks of a data file of a table.

    Raises:
        OSError, ValueError: The file cannot be read.
    """
    return NullMarks.of(session.open_reader(f"data/{file}").metadata().schema.metadata or {})

"""Metadata of columns: a part of the facade of a table."""

from __future__ import annotations

from collections.abc import Mapping

from lance_spark.columns.field_metadata import update_field_metadata
from lance_spark.dml.results import ChangeResult
from lance_spark.table.versions import TableVersions


class TableColumnMetadata(TableVersions):
    """The methods of :class:`lance_spark.Table` for metadata of its columns."""

    def update_field_metadata(self, *updates: Mapping[str, object]) -> ChangeResult:
        """Sets and removes keys of the metadata of columns, in one commit.

        The schema has the metadata: `table.schema.field(name).metadata`.

        Args:
            *updates: Dicts with the column as `path`, its keys as `metadata` (None removes a key),
                and `replace`: whether other keys are removed. Keys of Lance and of this package
                stay, and cannot be set.

        Returns:
            The version of the commit.

        Raises:
            OptionError: An update is not valid, or sets a key of Lance. Nothing was changed.
            ColumnNotFoundError: The table has no such column. Nothing was changed.
            CommitConflictError: Concurrent writers changed the table again and again.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.update_field_metadata({"path": "price", "metadata": {"unit": "cent"}})
            assert books.schema.field("price").metadata == {b"unit": b"cent"}
            ```
        """
        return ChangeResult(version=update_field_metadata(self._ref, updates))

    def replace_field_metadata(self, field_name: str, new_metadata: Mapping[str, str]) -> None:
        """Replaces the metadata of a column, as :meth:`update_field_metadata` with `replace`.

        Raises:
            LanceSparkError: As in :meth:`update_field_metadata`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.replace_field_metadata("price", {"unit": "euro"})
            assert books.schema.field("price").metadata == {b"unit": b"euro"}
            ```
        """
        update_field_metadata(
            self._ref, [{"path": field_name, "metadata": new_metadata, "replace": True}]
        )

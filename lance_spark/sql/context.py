"""Context of a procedure's call: :class:`CallContext`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lance_spark.dataset import DatasetRef
from lance_spark.sql.catalog_location import CatalogLocation
from lance_spark.table.connection import open_table
from lance_spark.table.table import Table
from lance_spark.types.names import quote_identifier


def drop_nulls(**options: object) -> dict[str, Any]:
    """Returns the options with a value in a call. NULL takes the default."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call of a procedure.

    Attributes:
        location: The namespace of the table, in its catalog.
        name: Name of the table in the namespace, or its path.
        ref: The table.
        session: The JVM's session that runs the statement.
    """

    location: CatalogLocation
    name: str
    ref: DatasetRef
    session: Any

    @property
    def spark(self) -> SparkSession:
        """The session that runs the statement."""
        return SparkSession(SparkContext.getOrCreate(), self.session)

    @property
    def quoted_name(self) -> str:
        """The table as a name in SQL."""
        parts: Sequence[str] = (self.location.catalog, *self.location.namespace, self.name)
        return ".".join(map(quote_identifier, parts))

    def table(self) -> Table:
        """Opens the table at its latest version, for jobs of the session.

        This thread's active session is another session, and its settings do not count.
        """
        session = None if self.session is None else self.spark
        return open_table(self.ref.uri, session, storage_options=self.ref.storage)

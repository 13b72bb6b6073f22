"""Errors of SQL only."""

from __future__ import annotations

from lance_spark.errors import LanceSparkError, TableNotFoundError


class NamespaceNotFoundError(LanceSparkError):
    """A namespace of a catalog does not exist. Spark reports its own error."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"there is no namespace at {folder}")


class SimilarTableError(TableNotFoundError):
    """A table has the name in another case. Spark shows this error unchanged."""

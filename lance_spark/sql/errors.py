"""Errors that only SQL has."""

from __future__ import annotations

from lance_spark.errors import LanceSparkError, TableNotFoundError


class NamespaceNotFoundError(LanceSparkError):
    """A namespace of a catalog is not there. Spark says it in its own words."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"there is no namespace at {folder}")


class SimilarTableError(TableNotFoundError):
    """A table of another case has the name. Spark shows this error as it is."""

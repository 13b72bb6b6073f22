"""The error of the change feed and of streams."""

from __future__ import annotations

from lance_spark.errors import LanceSparkError


class ChangeFeedError(LanceSparkError, RuntimeError):
    """The changes of a version cannot be read.

    A version was cleaned up, the table was recreated or overwritten, or the table has no stable row
    ids. The message lists the ways to continue.

    Attributes:
        uri: The location of the table.
        version: The version whose changes cannot be read.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.changes(1, 1).collect()
        except lance_spark.ChangeFeedError as error:
            print(error.version)
        ```
    """

    def __init__(self, message: str, *, uri: str, version: int) -> None:
        super().__init__(message)
        self.uri = uri
        self.version = version

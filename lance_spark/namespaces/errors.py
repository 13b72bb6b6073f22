"""Errors of Lance namespaces."""

from __future__ import annotations

from typing import ClassVar

from lance_spark.errors import LanceSparkError


class NamespaceError(LanceSparkError, RuntimeError):
    """A namespace refused a request, or lacks the requested object.

    Example:
        ```python
        import lance_spark

        root = {"root": "library"}
        db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
        db.create_namespace(["novels"])
        try:
            db.create_namespace(["novels"])
        except lance_spark.NamespaceError as error:
            print(error)
        ```
    """


class NamespaceUnavailableError(NamespaceError, ConnectionError):
    """A namespace does not answer. The same call can succeed later.

    Example:
        ```python
        import lance_spark

        uri = {"uri": "http://127.0.0.1:9"}
        db = lance_spark.connect(namespace_client_impl="rest", namespace_client_properties=uri)
        try:
            db.table_names()
        except lance_spark.NamespaceUnavailableError as error:
            assert error.retryable
        ```
    """

    retryable: ClassVar[bool] = True

"""References to tables, for other processes: :class:`TableReference`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from lance_spark.arguments import ARGUMENTS
from lance_spark.commit.store_check import without_secrets
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.jobs.tables import ERRORS, JOBS
from lance_spark.storage.objects import checkpoint_store
from lance_spark.table.connections.connection import Connection, connect
from lance_spark.table.table import Table
from udf_runtime.checkpoint import CheckpointStore

_SYSTEM_TABLES = {"jobs": JOBS.name, "errors": ERRORS.name}


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class TableReference:
    """The location of a table, as a value without secrets that can be pickled, logged and sent.

    Made by :meth:`lance_spark.Table.get_reference`. Storage options with names of keys, tokens and
    the like are left out. Give them again when the table is opened, or set them in the environment,
    as for Lance.

    Attributes:
        uri: Location of the table, or of its branch.
        name: Name of the table.
        branch: The branch; None is the main branch.
        version: The version, by number, or as `branch:number` for another branch; None is the
            latest.
        storage_options: Options of the object store without secrets.
        checkpoint: Location of the checkpoints, if outside the table.
        namespace_client_impl: Implementation of the table's namespace; None without a namespace.
            Properties of the namespace may be secrets, so the reference has none.
        table_id: The names from the root of the namespace to the table; None without a namespace.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        reference = books.get_reference()
        assert reference.open().count_rows() == 10
        ```
    """

    uri: str
    name: str
    branch: str | None = None
    version: int | str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    namespace_client_impl: str | None = None
    table_id: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage_options", without_secrets(self.storage_options))

    def open(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        namespace_client_properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Opens the table. A missing session is made for the first job.

        Args:
            storage_options: Further options of the object store, such as secrets.
            namespace_client_properties: Properties of the table's namespace, as in
                :func:`lance_spark.connect`.

        Raises:
            TableNotFoundError: The table does not exist any more.
            VersionNotFoundError: The version does not exist any more.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            reference = books.get_reference()
            assert reference.open().count_rows() == 10
            ```
        """
        db = self.open_db(storage_options, namespace_client_properties=namespace_client_properties)
        *namespace, name = self.table_id or (self.name,)
        table = db.open_table(name, branch=self.branch, namespace=namespace)
        if self.version is not None:
            table.checkout(self.version)
        return table

    def open_db(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        namespace_client_properties: Mapping[str, str] | None = None,
    ) -> Connection:
        """Returns a connection to the folder, or to the namespace, of the table.

        Args:
            storage_options: As in :meth:`open`.
            namespace_client_properties: As in :meth:`open`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.get_reference().open_db().table_names() == ["books"]
            ```
        """
        # Checkpoints of a table lie two levels below the shared folder.
        shared = None if self.checkpoint is None else self.checkpoint.rsplit("/", 2)[0]
        if self.namespace_client_impl is not None:
            return connect(
                namespace_client_impl=self.namespace_client_impl,
                namespace_client_properties=namespace_client_properties or {},
                checkpoint=shared,
            )
        folder = DatasetRef(uri=self.uri, branch=self.branch).table_uri.rpartition("/")[0]
        return connect(folder, storage_options=self._options(storage_options), checkpoint=shared)

    def as_system_table(self, table_name: str) -> TableReference:
        """Returns the reference of a table about the table.

        Args:
            table_name: `jobs`, the history of jobs, or `errors`, the rows that failed.

        Raises:
            OptionError: The name is another.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            reference = books.get_reference().as_system_table("jobs")
            assert reference.name == "jobs"
            ```
        """
        if table_name not in _SYSTEM_TABLES:
            raise OptionError("table_name", table_name, " or ".join(_SYSTEM_TABLES))
        path = _SYSTEM_TABLES[table_name]
        name = path.rpartition("/")[2].removesuffix(".lance")
        self._refuse_namespace(f"as_system_table({table_name!r})")
        return replace(
            self, uri=f"{self.uri}/{path}", name=name, branch=None, version=None, checkpoint=None
        )

    def open_checkpoint_store(
        self, storage_options: Mapping[str, str] | None = None
    ) -> CheckpointStore:
        """Returns the store of the checkpoints. Touches no storage.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            print(books.get_reference().open_checkpoint_store())
            ```
        """
        self._refuse_namespace("open_checkpoint_store()")
        options = DatasetRef.at(self.uri, self._options(storage_options)).storage_options
        return checkpoint_store(self.uri, options, self.checkpoint)

    @property
    def namespace_client_properties(self) -> NoReturn:
        """Refused: properties may be secrets, and a reference has no secrets.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise _namespace_error()

    @property
    def namespace_client_pushdown_operations(self) -> NoReturn:
        """Refused, as :attr:`namespace_client_properties`.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise _namespace_error()

    def open_db_async(self) -> NoReturn:
        """Refused: connections have no asynchronous form.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            "Connections have no asynchronous form. Call open_db() in a thread. Jobs run in the background with "
            "backfill_async and refresh_async."
        )

    def open_system_db_async(self) -> NoReturn:
        """Refused, as :meth:`open_db_async`.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            "Connections have no asynchronous form. Open the history of the jobs with as_system_table('jobs').open(), "
            "and the rows that failed with as_system_table('errors').open()."
        )

    def _refuse_namespace(self, method: str) -> None:
        """Refuses a method that needs the properties of a namespace.

        Raises:
            UnsupportedOperationError: The table is one of a namespace.
        """
        if self.namespace_client_impl is not None:
            raise UnsupportedOperationError(
                f"{method} works only for tables of a folder, because a reference has no properties of a namespace. "
                "Open the table with open(namespace_client_properties={...}), and call list_jobs() or get_errors()."
            )

    def _options(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**self.storage_options, **(more or {})}


def _namespace_error() -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "A reference has no properties of a namespace, because properties may be secrets. Pass the properties to "
        "open(namespace_client_properties={...}). Read the location from `uri`, and the names from `table_id`."
    )

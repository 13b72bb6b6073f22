"""Connections: a folder of Lance tables, and the Spark session for their jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef
from lance_spark.environments.stored import choose_default
from lance_spark.errors import (
    OptionError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.ingest.rows import Data, write_rows
from lance_spark.ingest.streams import storable_field
from lance_spark.ingest.vectors import OnBadVectors, VectorRepair
from lance_spark.locations import is_local, normalize_uri
from lance_spark.namespaces.reference import NamespaceClientSpec
from lance_spark.options.io_options import check_number
from lance_spark.pushdown.rule import enable_pushdown
from lance_spark.read.ranking.functions import register_functions
from lance_spark.session.sessions import session_or_local
from lance_spark.storage.objects import checkpoint_place
from lance_spark.table.connections.agents import ConnectionAgents
from lance_spark.table.connections.container import TableContainer
from lance_spark.table.connections.folders import SUFFIX, FolderTables
from lance_spark.table.connections.manifests import ConnectionManifests
from lance_spark.table.connections.namespace_methods import NamespaceMethods
from lance_spark.table.connections.namespaces import NamespaceTables
from lance_spark.table.connections.places import (
    NewTableDefaults,
    client_of,
    folder_of,
    refuse_pushdown,
    refuse_remote_arguments,
)
from lance_spark.table.connections.views import ConnectionViews
from lance_spark.table.display import render_tables
from lance_spark.table.indexes import ignore_cache_size
from lance_spark.table.table import Table
from lance_spark.types.model_schema import ModelClass, schema_of
from udf_runtime import Manifest

_MOST_NAMES = 20


@ARGUMENTS.function
def connect(  # noqa: PLR0913 - the specification's parameters
    uri: str | os.PathLike[str] | None = None,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    default_manifest: Manifest | str | None = None,
    namespace_client_impl: str | None = None,
    namespace_client_properties: Mapping[str, str] | None = None,
    namespace_client_pushdown_operations: Sequence[str] | None = None,
    api_key: str | None = None,
    region: str | None = None,
    host_override: str | None = None,
    read_consistency_interval: timedelta | None = None,
) -> Connection:
    """Connects to a folder of Lance tables, or to a Lance namespace.

    Runs on the driver, and touches neither the storage nor Spark.

    Args:
        uri: The folder: a local path as text or `pathlib.Path`, or a URI of an object store that
            Lance supports. None for a namespace.
        spark: The Spark session for jobs, or a function that returns the session. The first job
            calls the function. By default the active session, or a new local session on all cores.
        storage_options: Options of the object store, as Lance takes them. LanceDB's options
            `new_table_enable_stable_row_ids` and `new_table_data_storage_version` are the defaults
            of :meth:`Connection.create_table`.
        checkpoint: Folder or URI for the checkpoints of all tables. By default each table keeps its
            checkpoints in its own folder.
        progress: Whether jobs show progress bars. By default on a terminal and in notebooks.
        default_manifest: The environment of UDFs without a manifest, at their registration: a
            manifest, or the name of a manifest of this folder. By default the setting
            `spark.lance.manifest` of the application (JSON of a manifest, or a name) if a session
            exists, else the Python of the executors.
        namespace_client_impl: The implementation of a Lance namespace: `rest`, `dir`, a name of the
            package `lance-namespace-impls` such as `glue`, or the path of a class. The namespace
            tells locations and options of the store.
        namespace_client_properties: Properties of the namespace, such as `uri` for `rest`, and
            `root` for `dir`.
        namespace_client_pushdown_operations: Operations for the service of the namespace itself.
            None or empty: Spark runs all operations. `QueryTable` and `CreateTable` are refused.
        api_key: Refused, because no remote service exists.
        region: Refused, because no remote service exists. Give the region of a bucket as a storage
            option.
        host_override: Refused, because no remote service exists.
        read_consistency_interval: Maximum age of what a table shows, as in LanceDB. Tables always
            show their latest version, which every interval allows.

    Returns:
        The connection.

    Raises:
        UnsupportedOperationError: The URI or an argument means a remote service, or an operation
            is to run in the service of a namespace.
        OptionError: A location is empty or has an unknown scheme. The message has the right
            spelling. Or the arguments name both a folder and a namespace.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": 1, "title": "Faust"}])
        assert db.table_names() == ["books"]
        ```
    """
    refuse_remote_arguments(api_key=api_key, region=region, host_override=host_override)
    refuse_pushdown(namespace_client_pushdown_operations)
    if read_consistency_interval is not None and read_consistency_interval < timedelta(0):
        raise OptionError(
            "read_consistency_interval",
            read_consistency_interval,
            "a timedelta of zero or more, or None",
        )
    if default_manifest is not None and not isinstance(default_manifest, (Manifest, str)):
        raise OptionError(
            "default_manifest", default_manifest, "a Manifest, or the name of one that is defined"
        )
    place: str | NamespaceClientSpec
    if namespace_client_impl is None and namespace_client_properties is None:
        place = folder_of(uri)
    else:
        place = client_of(uri, storage_options, namespace_client_impl, namespace_client_properties)
    return Connection(
        place,
        spark,
        storage_options or {},
        checkpoint=None if checkpoint is None else normalize_uri(checkpoint, option="checkpoint"),
        progress=progress,
        default_manifest=default_manifest,
    )


@ARGUMENTS.function
def open_table(
    uri: str | os.PathLike[str],
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    branch: str | None = None,
) -> Table:
    """Opens a table by its own location. Runs on the driver.

    Args:
        uri: Location of the table. The suffix `.lance` may be missing.
        spark: As in :func:`connect`.
        storage_options: As in :func:`connect`.
        checkpoint: As in :func:`connect`. The table uses the subfolder of its name.
        progress: As in :func:`connect`.
        branch: The branch for reads and writes; None is the main branch.

    Returns:
        The table.

    Raises:
        TableNotFoundError: The location has no table.
        VersionNotFoundError: The table has no such branch.
        TableUnreadableError: The table cannot be opened.
        UnsupportedOperationError: The URI means a remote service.
        OptionError: The URI is empty.

    Example:
        ```python
        import lance_spark

        lance_spark.connect("library").create_table("books", [{"id": 1}, {"id": 2}])
        assert lance_spark.open_table("library/books.lance").count_rows() == 2
        ```
    """
    place = connect(uri, spark, storage_options, checkpoint=checkpoint, progress=progress)
    ref = DatasetRef.find(_locate_table(place), place.storage_options, branch)
    return place._table_at(ref, ref.table_uri.rpartition("/")[2].removesuffix(SUFFIX))  # noqa: SLF001 - same module


def _locate_table(place: Connection) -> str:
    """Returns the location of a table: the location itself, or with the suffix.

    Raises:
        TableNotFoundError: No table is there.
    """
    for uri in (place.uri, f"{place.uri}{SUFFIX}"):
        if DatasetRef.at(uri, place.storage_options).exists():
            return uri
    inside = place.table_names()
    if inside:
        locations = ", ".join(f"{place.uri}/{name}{SUFFIX}" for name in inside[:_MOST_NAMES])
        more = ", ..." if len(inside) > _MOST_NAMES else ""
        raise TableNotFoundError(
            place.uri, hint=f"it is a folder with the tables {locations}{more}: name one of them"
        )
    DatasetRef.at(place.uri, place.storage_options).open_latest()
    return place.uri


def _rows_or_none(data: Data | None, schema: pa.Schema | None) -> Data:
    """Returns the rows of a new table: none for a schema alone."""
    if data is not None:
        return data
    if schema is None:
        raise OptionError("data", None, "rows, or a schema for an empty table")
    return schema.empty_table()


def _move_folder(old: str, new: str) -> None:
    """Moves a folder of a local file system, if the folder exists and its new place is free."""
    if is_local(old) and os.path.isdir(old) and not os.path.exists(new):
        os.rename(old, new)


@ARGUMENTS.methods
class Connection(
    ConnectionViews, ConnectionManifests, NamespaceMethods, ConnectionAgents, TableContainer
):
    """A folder of Lance tables, or a Lance namespace.

    In a folder, each table is a folder `<name>.lance`. A namespace chooses the locations of its
    tables, and may have namespaces in namespaces.

    Attributes:
        uri: Location of the folder; the textual form of a namespace.
        storage_options: Options of the object store; none for a namespace.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        db.create_table("books", [{"id": 1}])
        print(db, db.table_names())
        ```
    """

    def __init__(
        self,
        place: str | NamespaceClientSpec,
        spark: SparkSession | Callable[[], SparkSession] | None,
        storage_options: Mapping[str, str],
        *,
        checkpoint: str | None,
        progress: bool | None,
        default_manifest: Manifest | str | None = None,
    ) -> None:
        self._new_tables, self.storage_options = NewTableDefaults.split(storage_options)
        if isinstance(place, str):
            self._tables = FolderTables(place, self.storage_options)
        else:
            self._tables = NamespaceTables(place)
        self.uri = self._tables.label
        self._make_session = spark if callable(spark) else lambda: session_or_local(None)
        self._spark = None if callable(spark) else spark
        self._pushes_down = (
            self._spark is not None
        )  # a session that is given has been decided about
        self._checkpoint = checkpoint
        self._progress = progress
        self._manifest = default_manifest
        if self._spark is not None:
            register_functions(self._spark)

    @property
    def spark(self) -> SparkSession:
        """The session, with the planner rule. A missing session is made at the first access."""
        session = self._session()
        if not self._pushes_down:
            enable_pushdown(session)
            self._pushes_down = True
        return session

    def _session(self) -> SparkSession:
        """Returns the session without the planner rule, which takes a second."""
        if self._spark is None:
            self._spark = self._make_session()
            register_functions(self._spark)
        return self._spark

    def table_names(
        self,
        page_token: str | None = None,
        limit: int | None = None,
        *,
        namespace: Sequence[str] | None = None,
    ) -> list[str]:
        """Returns the sorted names of all tables, or of a page of tables.

        A folder without a version is no table. A damaged table is in the list, although it cannot
        be opened.

        Args:
            page_token: The last name of the previous page; None begins with the first table.
            limit: Maximum number of names; None is no limit.
            namespace: The names from the root of a namespace to the namespace of the tables.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.create_table("authors", [{"name": "Goethe"}])
            assert db.table_names() == ["authors", "books"]
            assert db.table_names("authors", limit=1) == ["books"]
            ```
        """
        check_number("limit", limit, least=1)
        names = self._tables.names(namespace or ())
        return [name for name in names if page_token is None or name > page_token][:limit]

    def exists(self) -> bool:
        """Tells whether the folder exists. On an object store, a folder exists if it holds files.

        A namespace exists if it answers.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            assert not db.exists()
            db.create_table("books", [{"id": 1}])
            assert db.exists()
            ```
        """
        return self._tables.exists()

    def open_table(
        self,
        name: str,
        *,
        branch: str | None = None,
        version: int | str | None = None,
        namespace: Sequence[str] | None = None,
        index_cache_size: int | None = None,
    ) -> Table:
        """Opens a table.

        Args:
            name: Name of the table.
            branch: The branch for reads and writes; None is the main branch.
            version: A version to check out, as in :meth:`lance_spark.Table.checkout`.
            namespace: As in :meth:`table_names`.
            index_cache_size: As in :meth:`lance_spark.Table.create_index`.

        Returns:
            The table.

        Raises:
            TableNotFoundError: The folder has no such table.
            VersionNotFoundError: The table has no such branch or version.
            TableUnreadableError: The table cannot be opened.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}]).add([{"id": 2}])
            assert db.open_table("books").count_rows() == 2
            assert db.open_table("books", version=1).count_rows() == 1
            ```
        """
        ignore_cache_size("open_table", index_cache_size)
        ref = self._tables.lookup(name, namespace or ())
        if ref is None:
            raise self._tables.absence_error(name, namespace or ())
        table = self._table_at(DatasetRef.find(ref.uri, ref.storage, branch), name)
        if version is not None:
            table.checkout(version)
        return table

    def create_table(  # noqa: PLR0913 - the specification's parameters
        self,
        name: str,
        data: Data | None = None,
        schema: pa.Schema | ModelClass | None = None,
        mode: Literal["create", "overwrite", "exist_ok"] = "create",
        *,
        exist_ok: bool = False,
        on_bad_vectors: OnBadVectors = "error",
        fill_value: float = 0.0,
        enable_stable_row_ids: bool | None = None,
        data_storage_version: str | None = None,
        namespace: Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Table:
        """Creates a table.

        Args:
            name: Name of the table.
            data: The rows, as in :meth:`lance_spark.Table.add`.
            schema: The Arrow schema, or a class of pydantic such as a LanceModel. Without data the
                table is empty. Values are cast exactly to its types, and columns without data are
                NULL. By default the types of the data: lists of numbers of one length in a Python,
                NumPy or pandas column called `vector` or `embedding` become vectors of float32, or
                of uint8 if all numbers are whole and from 0 to 255.
            mode: What happens if the table exists: `create` raises, `overwrite` replaces the rows
                by a new version, `exist_ok` opens the table without a change.
            exist_ok: Whether `create` opens an existing table, as the mode `exist_ok` does.
            on_bad_vectors: What happens to a bad vector, as in :meth:`lance_spark.Table.add`.
            fill_value: The number for `on_bad_vectors="fill"`.
            enable_stable_row_ids: Whether rows keep their ids through updates and compaction; by
                default true, unless an option of :func:`connect` says otherwise.
            data_storage_version: Lance file format; by default the option of :func:`connect`, else
                Lance's stable format.
            namespace: As in :meth:`table_names`.
            storage_options: Options of this table, in place of equal options of :func:`connect`.
                Other calls need the same options of the store.

        Returns:
            The table.

        Raises:
            TableExistsError: The table exists, and `mode` is `create`.
            OptionError: An argument is not valid.
            SchemaMismatchError: The data cannot be a table, or the table exists with another
                schema.
            ValueConversionError: A value does not fit the schema. Nothing was written.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa

            db = lance_spark.connect("library")
            schema = pa.schema({"id": pa.int64(), "title": pa.string()})
            books = db.create_table("books", [{"id": 1, "title": "Faust"}], schema=schema)
            assert books.schema == schema
            ```
        """
        if mode not in ("create", "overwrite", "exist_ok"):
            raise OptionError("mode", mode, "create, overwrite or exist_ok")
        tables, new_tables = self._with_options(storage_options)
        mode = "exist_ok" if exist_ok and mode == "create" else mode
        schema = schema_of(schema)
        repair = VectorRepair.of(on_bad_vectors, fill_value, schema, is_new=True)
        rows = _rows_or_none(
            data if repair is None or data is None else repair.repair(data), schema
        )
        ref = tables.lookup(name, namespace or ())
        if ref is None:
            tables.check_can_hold_tables()
            ref = tables.place(name, namespace or ())
        elif mode == "create":
            raise TableExistsError(
                ref.uri, hint="open it with open_table, or say mode='overwrite' or mode='exist_ok'"
            )
        elif mode == "exist_ok":
            return self._same_table(ref, name, schema)
        try:
            write_rows(
                ref,
                rows,
                mode="create" if mode == "exist_ok" else mode,
                schema=schema,
                enable_stable_row_ids=new_tables.has_stable_row_ids(enable_stable_row_ids),
                data_storage_version=data_storage_version or new_tables.data_storage_version,
            )
        except TableExistsError:
            if mode != "exist_ok":
                raise
        return self._table_at(ref, name)

    def drop_table(
        self, name: str, *, ignore_missing: bool = False, namespace: Sequence[str] | None = None
    ) -> None:
        """Deletes a table with all its versions, branches, checkpoints and history.

        Foreign files in the folder of the table stay, and the folder with them. The next drop
        finishes a drop whose process died. A namespace deletes its tables itself, where it can.

        Args:
            name: Name of the table.
            ignore_missing: Whether to accept a missing table.
            namespace: As in :meth:`table_names`.

        Raises:
            TableNotFoundError: The folder has no such table, and `ignore_missing` is false.
            UnsupportedOperationError: The folder of the table is a link.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.drop_table("books")
            db.drop_table("books", ignore_missing=True)
            assert db.table_names() == []
            ```
        """
        if not self._tables.drop(name, namespace or ()) and not ignore_missing:
            raise TableNotFoundError(
                self._tables.locate(name, namespace or ()), hint="table_names() lists the tables"
            )

    def rename_table(
        self, name: str, new_name: str, *, namespace: Sequence[str] | None = None
    ) -> None:
        """Renames a table on a local file system, with its versions, checkpoints and history.

        A namespace renames its tables itself, where its implementation can.

        Args:
            name: Name of the table.
            new_name: The new name.
            namespace: As in :meth:`table_names`.

        Raises:
            TableNotFoundError: The folder has no such table.
            TableExistsError: A table has the new name.
            UnsupportedOperationError: The table is on an object store, which cannot rename, or has
                branches, or the namespace cannot rename.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.rename_table("books", "volumes")
            assert db.table_names() == ["volumes"]
            ```
        """
        locations = self._tables.rename(name, new_name, namespace or ())
        if locations is not None and self._checkpoint is not None:
            _move_folder(*(checkpoint_place(self._checkpoint, uri) for uri in locations))

    def __repr__(self) -> str:
        return f"Connection({self.uri!r})"

    def _repr_html_(self) -> str:
        """Returns the location and the names of the first tables, as HTML."""
        return render_tables(self.uri, self.table_names())

    def _with_options(
        self, storage_options: Mapping[str, str] | None
    ) -> tuple[FolderTables | NamespaceTables, NewTableDefaults]:
        """Returns the tables and the defaults of new tables, with options of a call.

        Raises:
            OptionError: An option is not valid, or the connection is a namespace.
        """
        new_tables, options = NewTableDefaults.split(
            {**self._new_tables.to_options(), **(storage_options or {})}
        )
        if not options:
            return self._tables, new_tables
        if isinstance(self._tables, NamespaceTables):
            accepted = (
                "no options of the store with a namespace, whose properties may have storage.*"
            )
            raise OptionError("storage_options", ", ".join(sorted(options)), accepted)
        return replace(self._tables, storage={**self.storage_options, **options}), new_tables

    def _same_table(self, ref: DatasetRef, name: str, schema: pa.Schema | None) -> Table:
        """Opens a table.

        Raises:
            SchemaMismatchError: A schema is given, and the table has other columns.
        """
        table = self._table_at(ref, name)
        if schema is not None and not table.schema.equals(pa.schema(map(storable_field, schema))):
            raise SchemaMismatchError(
                f"The table {table.uri} exists with other columns than the schema. Nothing was changed. Open the table "
                f"with open_table, or replace it with mode='overwrite'. Its columns are:\n{table.schema}"
            )
        return table

    def _ref_of(self, name: str) -> DatasetRef:
        """Returns the place of a clone, which may be absent.

        Raises:
            UnsupportedOperationError: The connection is a namespace.
        """
        if isinstance(self._tables, NamespaceTables):
            raise UnsupportedOperationError(
                f"{self._tables.client.subject} has no clones of tables. Nothing was changed. Write the rows of the "
                "source to a new table: db.create_table(name, source.to_spark())."
            )
        return self._tables.place(name, ())

    def _table_at(self, ref: DatasetRef, name: str) -> Table:
        return Table(
            ref,
            name,
            self._session,
            query_spark=lambda: self.spark,
            checkpoint=self._checkpoint_of(ref.uri),
            progress=self._progress,
            default_manifest=lambda: self._default_manifest(ref),
        )

    def _default_manifest(self, ref: DatasetRef) -> Manifest | None:
        """Returns the environment of UDFs without a manifest, for a table."""
        spark = self._spark or SparkSession.getActiveSession()
        return choose_default(
            self._manifest, spark, lambda name: self._tables.find_manifest(name, ref)
        )

    def _checkpoint_of(self, uri: str) -> str | None:
        return None if self._checkpoint is None else checkpoint_place(self._checkpoint, uri)

    def _choose_place(self, name: str, namespace: Sequence[str] | None) -> DatasetRef:
        """Returns the place of a new table.

        Raises:
            TableExistsError: A table has this name.
        """
        existing = self._tables.lookup(name, namespace or ())
        if existing is not None:
            raise TableExistsError(
                existing.uri, hint="choose another name, or drop the table first"
            )
        return self._tables.place(name, namespace or ())

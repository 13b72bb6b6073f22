"""Connections: a folder of Lance tables, and the Spark session that works on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef, branches_of, is_local, normalize_uri, table_exists
from lance_spark.environments.capture import capture
from lance_spark.environments.stored import StoredManifests
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    TableExistsError,
    TableNotFoundError,
    TableUnreadableError,
    UnsupportedOperationError,
)
from lance_spark.objects import MOST_NAME_BYTES, checkpoint_place, open_session
from lance_spark.pushdown.rule import enable_pushdown
from lance_spark.read.ranking.functions import register_functions
from lance_spark.search.query import Query
from lance_spark.session.sessions import session_or_local
from lance_spark.staging.table_folder import delete_leftovers, delete_table_folder
from lance_spark.table.display import render_tables
from lance_spark.table.table import Table
from lance_spark.tabular import Data, write_rows
from lance_spark.views.create import create_spark_view, create_view
from lance_spark.views.spark.query import text_query
from udf_runtime import UDF, Manifest, as_udf
from udf_runtime.definition import UdfFactory

_SUFFIX = ".lance"
_SHOWN = 20
_REMOTE = "open the bucket or folder that holds the tables: connect('s3://bucket/path', storage_options={...})"


@ARGUMENTS.function
def connect(  # noqa: PLR0913 - the specification's parameters
    uri: str,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | None = None,
    progress: bool | None = None,
    default_manifest: Manifest | str | None = None,
    api_key: str | None = None,
    region: str | None = None,
    host_override: str | None = None,
) -> Connection:
    """Connects to a folder of Lance tables.

    Runs on the driver; touches neither storage nor Spark yet.

    Args:
        uri: The folder: a local path, or a URI of an object store that Lance knows.
        spark: The session that jobs run on, or a function that returns the session; the first job
            calls the function. By default the active session, or a new local one on all cores.
        storage_options: Options of the object store, as Lance takes them.
        checkpoint: Where checkpoints of all tables are kept: a folder or URI. By default each table
            keeps its own, beside its data.
        progress: Whether jobs show progress bars; by default where there is a reader: on a terminal
            and in notebooks.
        default_manifest: The environment of UDFs that have none, when they are registered: a
            manifest, or the name of one that is defined here. By default the
            application's setting `spark.lance.manifest` (JSON of a manifest, or a name), if there
            is a session already; else the executors' own Python.
        api_key: Refused: there is no remote service.
        region: Refused: there is no remote service; the region of a bucket is a storage option.
        host_override: Refused: there is no remote service.

    Raises:
        UnsupportedOperationError: The URI or an argument means a remote service.
        OptionError: A location is empty, or has an unknown scheme. The message has the right
            spelling.
    """
    for name, value in (("api_key", api_key), ("region", region), ("host_override", host_override)):
        if value is not None:
            raise UnsupportedOperationError(
                f"{name} is for a remote database service, and Spark works on the tables themselves - in connect - "
                f"{_REMOTE}"
            )
    if default_manifest is not None and not isinstance(default_manifest, (Manifest, str)):
        raise OptionError("default_manifest", default_manifest, "a Manifest, or the name of one that is defined")
    if not isinstance(uri, str) or not uri.strip():
        raise OptionError("uri", uri, "the location of a folder of Lance tables")
    if uri.startswith("db://"):
        raise UnsupportedOperationError(f"{uri} names a remote database service - in connect - {_REMOTE}")
    return Connection(
        normalize_uri(uri, option="uri"),
        spark,
        storage_options or {},
        checkpoint=None if checkpoint is None else normalize_uri(checkpoint, option="checkpoint"),
        progress=progress,
        default_manifest=default_manifest,
    )


@ARGUMENTS.function
def open_table(
    uri: str,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | None = None,
    progress: bool | None = None,
    branch: str | None = None,
) -> Table:
    """Opens one table by its own location. Runs on the driver.

    Args:
        uri: Location of the table.
        spark: As in :func:`connect`.
        storage_options: As there.
        checkpoint: As there; the table's own checkpoints are in the folder there that has its name.
        progress: As there.
        branch: The branch that is read and written; None is the main one.

    Raises:
        TableNotFoundError: There is no table.
        VersionNotFoundError: It has no such branch.
        TableUnreadableError: It cannot be opened.
        UnsupportedOperationError: The URI means a remote service.
        OptionError: The URI is empty.
    """
    place = connect(uri, spark, storage_options, checkpoint=checkpoint, progress=progress)
    if not table_exists(place.uri, place.storage_options):
        inside = place.table_names()
        if inside:
            shown = ", ".join(f"{place.uri}/{name}{_SUFFIX}" for name in inside[:_SHOWN])
            more = ", ..." if len(inside) > _SHOWN else ""
            raise TableNotFoundError(place.uri, hint=f"it is a folder with the tables {shown}{more}: name one of them")
        raise TableNotFoundError(place.uri)
    ref = DatasetRef.find(place.uri, place.storage_options, branch)
    return place._table_at(ref, ref.table_uri.rpartition("/")[2].removesuffix(_SUFFIX))  # noqa: SLF001 - same module


def table_uri(folder: str, name: str) -> str:
    """Returns the location of a table of a folder.

    Raises:
        OptionError: No table can have this name.
    """
    if not is_folder_name(name) or (is_local(folder) and len(f"{name}{_SUFFIX}".encode()) > MOST_NAME_BYTES):
        raise OptionError(
            "name",
            name,
            "the name of a table: not empty, in one line, without slashes, not beginning with a dot or an underscore, "
            f"and with {_SUFFIX} at most {MOST_NAME_BYTES} bytes on a file system",
        )
    return f"{folder}/{name}{_SUFFIX}"


def is_folder_name(name: object) -> bool:
    """Tells whether a table or a namespace may have this name."""
    return (
        isinstance(name, str)
        and bool(name)
        and not name.startswith((".", "_"))
        and not any(sign in "/\\" or sign < " " or "\ud800" <= sign <= "\udfff" for sign in name)
        and name == name.strip()
    )


@ARGUMENTS.methods
class Connection:
    """A folder of Lance tables. Each table is a folder `<name>.lance` in it.

    Attributes:
        uri: Location of the folder.
        storage_options: Options of the object store.
    """

    def __init__(
        self,
        uri: str,
        spark: SparkSession | Callable[[], SparkSession] | None,
        storage_options: Mapping[str, str],
        *,
        checkpoint: str | None,
        progress: bool | None,
        default_manifest: Manifest | str | None = None,
    ) -> None:
        self.uri = uri
        self.storage_options = dict(storage_options)
        self._make_session = spark if callable(spark) else lambda: session_or_local(None)
        self._spark = None if callable(spark) else spark
        self._pushes_down = self._spark is not None  # a session that is given has been decided about
        self._checkpoint = checkpoint
        self._progress = progress
        self._manifest = default_manifest
        if self._spark is not None:
            register_functions(self._spark)

    @property
    def spark(self) -> SparkSession:
        """The session; made now if there is none, with the planner rule."""
        session = self._session()
        if not self._pushes_down:
            enable_pushdown(session)
            self._pushes_down = True
        return session

    def _session(self) -> SparkSession:
        """Returns the session without the planner rule: jobs need none, and it takes a second."""
        if self._spark is None:
            self._spark = self._make_session()
            register_functions(self._spark)
        return self._spark

    def table_names(self) -> list[str]:
        """Returns the names of all tables, sorted.

        A folder without a version is no table; a damaged table is one that cannot be opened.
        """
        return sorted(name for name in self._folders() if self._is_there(name))

    def exists(self) -> bool:
        """Tells whether the folder exists. On an object store, a folder exists if it holds files.

        Example:
            >>> lance_spark.connect("/no/such/folder").exists()
            False
        """
        if is_local(self.uri):
            return os.path.isdir(self.uri)
        listing = self._list_entries()
        return bool(listing.common_prefixes or listing.objects)

    def open_table(self, name: str, *, branch: str | None = None, version: int | str | None = None) -> Table:
        """Opens a table.

        Args:
            name: Its name.
            branch: The branch that is read and written; None is the main one.
            version: A version to check out, as :meth:`lance_spark.Table.checkout` takes it.

        Raises:
            TableNotFoundError: There is none of this name.
            VersionNotFoundError: There is no such branch or version.
            TableUnreadableError: It cannot be opened.
        """
        uri = self._uri_of(name)
        if not table_exists(uri, self.storage_options):
            raise TableNotFoundError(uri, hint=self._suggest_tables(name))
        table = self._table_at(DatasetRef.find(uri, self.storage_options, branch), name)
        if version is not None:
            table.checkout(version)
        return table

    def create_table(
        self,
        name: str,
        data: Data | None = None,
        *,
        schema: pa.Schema | None = None,
        mode: Literal["create", "overwrite", "exist_ok"] = "create",
        enable_stable_row_ids: bool = True,
        data_storage_version: str | None = None,
    ) -> Table:
        """Makes a table.

        Args:
            name: Its name.
            data: Its rows: a Spark DataFrame (written by Spark's tasks), or Arrow, pandas, a list
                of dicts, a dict of lists, an iterator over record batches (written by this
                process).
            schema: Its Arrow schema; without data the table is empty. Values become its types
                exactly, and columns that the data lacks are NULL.
            mode: What to do where there is one: raise, replace its rows by a new version, or open
                it as it is.
            enable_stable_row_ids: Whether rows keep their ids through updates and compaction.
            data_storage_version: Lance file format; by default Lance's stable one.

        Raises:
            TableExistsError: There is one, and `mode` is `create`.
            OptionError: An argument is not valid.
            SchemaMismatchError: The data cannot be a table.
            ValueConversionError: A value does not fit the schema. Nothing was written.
        """
        if mode not in ("create", "overwrite", "exist_ok"):
            raise OptionError("mode", mode, "create, overwrite or exist_ok")
        if data is None and schema is None:
            raise OptionError("data", None, "rows, or a schema for an empty table")
        uri = self._uri_of(name)
        exists = table_exists(uri, self.storage_options)
        if exists and mode == "create":
            raise TableExistsError(uri, hint="open it with open_table, or say mode='overwrite' or mode='exist_ok'")
        if not (exists and mode == "exist_ok"):
            with contextlib.suppress(TableExistsError) if mode == "exist_ok" else contextlib.nullcontext():
                write_rows(
                    DatasetRef.at(uri, self.storage_options),
                    data if data is not None else schema.empty_table(),  # type: ignore[union-attr]
                    mode="overwrite" if mode == "overwrite" else "create",
                    schema=schema,
                    enable_stable_row_ids=enable_stable_row_ids,
                    data_storage_version=data_storage_version,
                )
        return self._table(name)

    def create_materialized_view(self, name: str, query: Query | str) -> Table:
        """Makes a materialized view, without rows; :meth:`lance_spark.Table.refresh` fills it.

        The view is a table: it can be read, indexed, have computed columns of its own, and be the
        source of another view. Its column `__source_row_id` (int64) is the row id of the source's
        row. What it is made of is kept in its schema's metadata, without options of the store.

        Args:
            name: Name of the view.
            query: A query over one table of any connection to the same store:
                `table.search(None)` with `select` and `where`; or a SELECT in Spark SQL as text,
                FROM a table of this connection by its name. Write a DataFrame as such a SELECT.

        Raises:
            TableExistsError: There is a table of this name.
            RegistrationError: The query cannot be a view, or does not fit its source.
            ColumnNotFoundError, FilterError, UnsupportedTypeError: As there.
            OptionError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so that the view cannot follow it.
        """
        uri = self._uri_of(name)
        if table_exists(uri, self.storage_options):
            raise TableExistsError(uri, hint="choose another name, or drop the table first")
        ref = DatasetRef.at(uri, self.storage_options)
        if isinstance(query, Query):
            create_view(ref, query, manifest=self._default_manifest(self.uri))
        else:
            create_spark_view(ref, text_query(self._session(), query, self._source_of_view))
        return self._table(name)

    def create_udtf_view(
        self, name: str, source: Query, udtf: UDF | UdfFactory, *, manifest: Manifest | None = None
    ) -> Table:
        """Makes a view of the rows that a chunker or a table function makes of a query's.

        It is empty; :meth:`lance_spark.Table.refresh` fills it. A chunker's view follows its source
        row by row: it has columns `__source_row_id` (int64, the row id of the source's row),
        `__child_index` (int64, the number of the chunk in its row, from 0), those that the query
        selects, and those of the chunks. A table function is called anew by each refresh, with all
        rows of the query, and its view has what it yields.

        Args:
            name: Name of the view.
            source: A query over one table: `table.search(None)`, with `where` for its rows. For a
                chunker `select` says which columns the chunks have beside their own, by default
                none; for a table function, which columns that gets, by default all.
            udtf: What makes the rows: decorated with `@chunker` or `@udtf`.
            manifest: The environment of the function, if it has none of its own; by default that of
                the connection.

        Raises:
            TableExistsError: There is a table of this name.
            RegistrationError: The function is neither, or does not fit the source.
            ColumnNotFoundError, FilterError, UnsupportedTypeError: As in
                :meth:`create_materialized_view`.
            OptionError, UnsupportedOperationError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so that the view cannot follow it.
        """
        if not isinstance(source, Query):
            raise OptionError("source", source, "a query over one table: table.search(None)")
        function = as_udf(udtf)
        if function is None or not function.kind.makes_rows:
            raise RegistrationError(
                f"{udtf!r} makes no rows - in create_udtf_view - decorate a function with @chunker or @udtf; a UDF "
                "that makes one value of each row is selected: create_materialized_view"
            )
        uri = self._uri_of(name)
        if table_exists(uri, self.storage_options):
            raise TableExistsError(uri, hint="choose another name, or drop the table first")
        default = self._default_manifest(self.uri) if manifest is None else manifest
        create_view(DatasetRef.at(uri, self.storage_options), source, function, manifest=default)
        return self._table(name)

    def capture_local_environment(self, name: str | None = None, *, skip_site_packages: bool = False) -> Manifest:
        """Captures the environment of this process, for UDFs that are to find it on executors.

        The working directory goes along, without hidden files, virtual environments and data; the
        UDF finds its modules. So do the installed packages, for executors of the same platform and
        Python. Both are put into the tables' store as zip files, once per content.

        Args:
            name: Name of the manifest; by default made of the user and the time.
            skip_site_packages: Whether to leave out the installed packages: then the UDF sees those
                of the executors' own Python.

        Raises:
            UdfDefinitionError: The working directory is the home directory, or has more than a
                gibibyte.
            TableUnwritableError: The store refused.
        """
        return capture(name, self._manifests().objects, skip_site_packages=skip_site_packages)

    def define_manifest(self, name: str, manifest: Manifest) -> None:
        """Keeps a manifest under a name, for `connect(default_manifest=name)` and other processes.

        Another one of that name is replaced. Columns and views have copies of their own.

        Raises:
            OptionError: It is no name, or no manifest.
            UdfDefinitionError: A file of the manifest is neither in the store nor of this process.
        """
        self._manifests().define(name, manifest)

    def list_manifests(self) -> dict[str, Manifest]:
        """Returns the manifests that are kept under names, sorted by these."""
        return self._manifests().all()

    def get_manifest(self, name: str) -> Manifest:
        """Returns a manifest that is kept under a name.

        Raises:
            RegistrationError: There is none.
        """
        return self._manifests().get(name)

    def delete_manifest(self, name: str) -> None:
        """Deletes a manifest that is kept under a name; columns and views keep their copies.

        Raises:
            RegistrationError: There is none.
        """
        self._manifests().delete(name)

    def drop_table(self, name: str, *, ignore_missing: bool = False) -> None:
        """Deletes a table with all its versions, branches, checkpoints and history.

        Files of others in the table's folder stay, and the folder with them. A drop that was killed
        is finished by the next.

        Raises:
            TableNotFoundError: No table is there, and `ignore_missing` is false.
            UnsupportedOperationError: The table's folder is a link.

        Example:
            >>> lance_spark.connect("/data/tables").drop_table("documents")  # doctest: +SKIP
        """
        ref = DatasetRef.at(self._uri_of(name), self.storage_options)
        if table_exists(ref.uri, self.storage_options):
            delete_table_folder(ref)
        elif not delete_leftovers(ref) and not ignore_missing:
            raise TableNotFoundError(ref.uri, hint="table_names() lists the tables")

    def rename_table(self, name: str, new_name: str) -> None:
        """Renames a table on a local file system, with its versions, checkpoints and history.

        Raises:
            TableNotFoundError: There is none of this name.
            TableExistsError: There is one of the new name.
            UnsupportedOperationError: The tables are on an object store, which cannot rename, or it
                has branches.
        """
        old, new = self._uri_of(name), self._uri_of(new_name)
        if not table_exists(old, self.storage_options):
            raise TableNotFoundError(old, hint="table_names() lists the tables")
        if not is_local(old):
            raise UnsupportedOperationError(
                f"an object store cannot rename - {old} "
                f"- copy the folder to {new} with the store's own tools, and drop the old one"
            )
        branches = branches_of(DatasetRef.at(old, self.storage_options).open_latest())
        if branches:
            raise UnsupportedOperationError(
                f"the branches {', '.join(branches)} name their first files by the table's location - {old} - nothing "
                "was renamed; delete the branches first, or write a new table"
            )
        if os.path.exists(new):
            raise TableExistsError(new, hint="drop it first, or choose another name")
        os.rename(old, new)
        checkpoints, kept = self._checkpoint_of(old), self._checkpoint_of(new)
        movable = checkpoints is not None and is_local(checkpoints) and os.path.isdir(checkpoints)
        if checkpoints is not None and kept is not None and movable and not os.path.exists(kept):
            os.rename(checkpoints, kept)

    def __repr__(self) -> str:
        return f"Connection({self.uri!r})"

    def _repr_html_(self) -> str:
        """Returns the location and the names of the first tables, as HTML."""
        return render_tables(self.uri, self.table_names())

    def _suggest_tables(self, name: str) -> str:
        """Returns the hint of an error about a table that does not exist."""
        place = f"{self.uri}/{name}"
        if table_exists(place, self.storage_options):
            return f"A table exists at {place}, without the suffix {_SUFFIX}. Open it with open_table({place!r})."
        names = ", ".join(map(repr, self.table_names()))
        return f"the tables here are {names}" if names else "there is no table here yet: create_table makes one"

    def _table(self, name: str) -> Table:
        return self._table_at(DatasetRef.at(self._uri_of(name), self.storage_options), name)

    def _table_at(self, ref: DatasetRef, name: str) -> Table:
        return Table(
            ref,
            name,
            self._session,
            query_spark=lambda: self.spark,
            checkpoint=self._checkpoint_of(ref.uri),
            progress=self._progress,
            default_manifest=lambda: self._default_manifest(ref.table_uri.rpartition("/")[0]),
        )

    def _default_manifest(self, folder: str) -> Manifest | None:
        """Returns the environment of UDFs that have none, of tables in a folder."""
        spark = self._spark or SparkSession.getActiveSession()
        return self._manifests(folder).default(self._manifest, spark)

    def _manifests(self, folder: str | None = None) -> StoredManifests:
        ref = DatasetRef.at(self.uri if folder is None else folder, self.storage_options)
        return StoredManifests.of(ref.uri, ref.storage_options)

    def _source_of_view(self, name: tuple[str, ...]) -> DatasetRef:
        """Returns the table that a SELECT names."""
        if len(name) == 1 and table_exists(self._uri_of(name[0]), self.storage_options):
            return DatasetRef.at(self._uri_of(name[0]), self.storage_options)
        raise RegistrationError(
            f"The query of the view selects from {'.'.join(name)!r}, which is no table of this connection. Select from "
            f"one of its tables: {', '.join(self.table_names()) or 'there is none yet'}."
        )

    def _checkpoint_of(self, uri: str) -> str | None:
        return None if self._checkpoint is None else checkpoint_place(self._checkpoint, uri)

    def _uri_of(self, name: str) -> str:
        return table_uri(self.uri, name)

    def _is_there(self, name: str) -> bool:
        try:
            return table_exists(f"{self.uri}/{name}{_SUFFIX}", self.storage_options)
        except TableUnreadableError:
            return True

    def _folders(self) -> list[str]:
        if is_local(self.uri):
            folders = []
            if os.path.isdir(self.uri):
                with os.scandir(self.uri) as entries:
                    folders = [entry.name for entry in entries if entry.is_dir()]
        else:
            prefixes = self._list_entries().common_prefixes
            folders = sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in prefixes})
        return [entry.removesuffix(_SUFFIX) for entry in folders if entry.rstrip("/").endswith(_SUFFIX)]

    def _list_entries(self) -> Any:  # noqa: ANN401 - a class of pylance without types
        return open_session(self.uri, tuple(sorted(self.storage_options.items()))).list_with_delimiter("")

"""Connections: a folder of Lance tables, and the Spark session that works on them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.dataset import DatasetRef, is_local, normalize_uri, table_exists
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    TableExistsError,
    TableNotFoundError,
    TableUnreadableError,
    UnsupportedOperationError,
)
from lance_spark.objects import checkpoint_place, open_session
from lance_spark.pushdown.rule import enable_pushdown
from lance_spark.session.sessions import session_or_local
from lance_spark.table import Table
from lance_spark.tabular import Data, is_spark, write_rows
from lance_spark.views.create import create_spark_view, create_view
from lance_spark.views.query import Query
from lance_spark.views.spark.query import frame_query, text_query
from udf_runtime import UDF, as_udf
from udf_runtime.definition import UdfFactory

_SUFFIX = ".lance"
_REMOTE = "open the bucket or folder that holds the tables: connect('s3://bucket/path', storage_options={...})"


def connect(  # noqa: PLR0913 - the specification's parameters
    uri: str,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | None = None,
    progress: bool | None = None,
    default_manifest: object | None = None,
    api_key: str | None = None,
    region: str | None = None,
    host_override: str | None = None,
) -> Connection:
    """Connects to a folder of Lance tables.

    Runs on the driver; touches neither storage nor Spark yet.

    Args:
        uri: The folder: a local path, or a URI of an object store that Lance knows.
        spark: The session that jobs run on. By default the active one, or a new local one on all
            cores; made when it is first needed.
        storage_options: Options of the object store, as Lance takes them.
        checkpoint: Where checkpoints of all tables are kept: a folder or URI. By default each table
            keeps its own, beside its data.
        progress: Whether jobs show progress bars; by default where there is a reader: on a terminal
            and in notebooks.
        default_manifest: Refused: environments per UDF come with a later release.
        api_key: Refused: there is no remote service.
        region: Refused: there is no remote service; the region of a bucket is a storage option.
        host_override: Refused: there is no remote service.

    Raises:
        UnsupportedOperationError: The URI or an argument means a remote service.
        OptionError: The URI is empty.
    """
    for name, value in (("api_key", api_key), ("region", region), ("host_override", host_override)):
        if value is not None:
            raise UnsupportedOperationError(
                f"{name} is for a remote database service, and Spark works on the tables themselves - in connect - "
                f"{_REMOTE}"
            )
    if default_manifest is not None:
        raise UnsupportedOperationError(
            "environments per UDF are not available in this release - in connect, default_manifest "
            "- install what UDFs need on the executors"
        )
    if not isinstance(uri, str) or not uri.strip():
        raise OptionError("uri", repr(uri), "the location of a folder of Lance tables")
    if uri.startswith("db://"):
        raise UnsupportedOperationError(f"{uri} names a remote database service - in connect - {_REMOTE}")
    return Connection(normalize_uri(uri), spark, storage_options or {}, checkpoint=checkpoint, progress=progress)


def open_table(
    uri: str,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    checkpoint: str | None = None,
    progress: bool | None = None,
) -> Table:
    """Opens one table by its own location. Runs on the driver.

    Args:
        uri: Location of the table.
        spark: As in :func:`connect`.
        storage_options: As there.
        checkpoint: As there; the table's own checkpoints are in the folder there that has its name.
        progress: As there.

    Raises:
        TableNotFoundError: There is no table.
        TableUnreadableError: It cannot be opened.
        UnsupportedOperationError: The URI means a remote service.
        OptionError: The URI is empty.
    """
    place = connect(uri, spark, storage_options, checkpoint=checkpoint, progress=progress)
    if not table_exists(place.uri, place.storage_options):
        raise TableNotFoundError(place.uri)
    return place._table_at(place.uri, place.uri.rpartition("/")[2].removesuffix(_SUFFIX))  # noqa: SLF001 - same module


class Connection:
    """A folder of Lance tables. Each table is a folder `<name>.lance` in it.

    Attributes:
        uri: Location of the folder.
        storage_options: Options of the object store.
    """

    def __init__(
        self,
        uri: str,
        spark: SparkSession | None,
        storage_options: Mapping[str, str],
        *,
        checkpoint: str | None,
        progress: bool | None,
    ) -> None:
        self.uri = uri
        self.storage_options = dict(storage_options)
        self._spark = spark
        self._pushes_down = spark is not None  # a session that is given has been decided about
        self._checkpoint = checkpoint
        self._progress = progress

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
            self._spark = session_or_local(None)
        return self._spark

    def table_names(self) -> list[str]:
        """Returns the names of all tables, sorted.

        A folder without a version is no table; a damaged table is one that cannot be opened.
        """
        return sorted(name for name in self._folders() if self._is_there(name))

    def open_table(self, name: str) -> Table:
        """Opens a table.

        Raises:
            TableNotFoundError: There is none of this name.
            TableUnreadableError: It cannot be opened.
        """
        uri = self._uri_of(name)
        if not table_exists(uri, self.storage_options):
            names = ", ".join(map(repr, self.table_names()))
            raise TableNotFoundError(
                uri,
                hint=f"the tables here are {names}" if names else "there is no table here yet: create_table makes one",
            )
        return self._table(name)

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
            data: Its rows: a Spark DataFrame (written by Spark's tasks), Arrow, pandas, or a list
                of dicts (written by this process).
            schema: Its Arrow schema; without data the table is empty.
            mode: What to do where there is one: raise, replace its rows by a new version, or open
                it as it is.
            enable_stable_row_ids: Whether rows keep their ids through updates and compaction.
            data_storage_version: Lance file format; by default Lance's stable one.

        Raises:
            TableExistsError: There is one, and `mode` is `create`.
            OptionError: An argument is not valid.
            SchemaMismatchError: The data cannot be a table.
        """
        if mode not in ("create", "overwrite", "exist_ok"):
            raise OptionError("mode", str(mode), "create, overwrite or exist_ok")
        if data is None and schema is None:
            raise OptionError("data", None, "rows, or a schema for an empty table")
        uri = self._uri_of(name)
        exists = table_exists(uri, self.storage_options)
        if exists and mode == "create":
            raise TableExistsError(uri, hint="open it with open_table, or say mode='overwrite' or mode='exist_ok'")
        if not (exists and mode == "exist_ok"):
            write_rows(
                DatasetRef.at(uri, self.storage_options),
                data if data is not None else schema.empty_table(),  # type: ignore[union-attr]
                schema=schema,
                overwrite=exists,
                enable_stable_row_ids=enable_stable_row_ids,
                data_storage_version=data_storage_version,
            )
        return self._table(name)

    def create_materialized_view(self, name: str, query: Query | DataFrame | str) -> Table:
        """Makes a materialized view, without rows; :meth:`lance_spark.Table.refresh` fills it.

        The view is a table: it can be read, indexed, have computed columns of its own, and be the
        source of another view. Its column `__source_row_id` (int64) is the row id of the source's
        row. What it is made of is kept in its schema's metadata, without options of the store.

        Args:
            name: Name of the view.
            query: A query over one table of any connection to the same store:
                `table.search(None)` with `select` and `where`; or a SELECT in Spark SQL as text,
                FROM a table of this connection by its name; or a Spark DataFrame over such a table.

        Raises:
            TableExistsError: There is a table of this name.
            RegistrationError: The query cannot be a view, or does not fit its source.
            ColumnNotFoundError, FilterError, UnsupportedTypeError: As there.
            OptionError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so that the view cannot follow it.
        """
        if not isinstance(query, (Query, str)) and not is_spark(query):
            accepted = "a query over one table: table.search(None).select(...), a SELECT as text, or a Spark DataFrame"
            raise OptionError("query", repr(query), accepted)
        uri = self._uri_of(name)
        if table_exists(uri, self.storage_options):
            raise TableExistsError(uri, hint="choose another name, or drop the table first")
        ref = DatasetRef.at(uri, self.storage_options)
        if isinstance(query, Query):
            create_view(ref, query)
        elif isinstance(query, str):
            create_spark_view(ref, text_query(self._session(), query, self._named, ref.storage_options))
        else:
            create_spark_view(ref, frame_query(query, ref.storage_options))
        return self._table(name)

    def create_udtf_view(self, name: str, source: Query, udtf: UDF | UdfFactory, *, manifest: object = None) -> Table:
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
            manifest: Refused: environments of single UDFs are not available.

        Raises:
            TableExistsError: There is a table of this name.
            RegistrationError: The function is neither, or does not fit the source.
            ColumnNotFoundError, FilterError, UnsupportedTypeError: As in
                :meth:`create_materialized_view`.
            OptionError, UnsupportedOperationError: An argument is not valid.

        Warns:
            UserWarning: The source has no stable row ids, so that the view cannot follow it.
        """
        if manifest is not None:
            raise UnsupportedOperationError(
                "environments per UDF are not available in this release - in create_udtf_view, manifest - install what "
                "the function needs on the executors"
            )
        if not isinstance(source, Query):
            raise OptionError("source", repr(source), "a query over one table: table.search(None)")
        function = as_udf(udtf)
        if function is None or not function.kind.makes_rows:
            raise RegistrationError(
                f"{udtf!r} makes no rows - in create_udtf_view - decorate a function with @chunker or @udtf; a UDF "
                "that makes one value of each row is selected: create_materialized_view"
            )
        uri = self._uri_of(name)
        if table_exists(uri, self.storage_options):
            raise TableExistsError(uri, hint="choose another name, or drop the table first")
        create_view(DatasetRef.at(uri, self.storage_options), source, function)
        return self._table(name)

    def drop_table(self, name: str, *, ignore_missing: bool = False) -> None:
        """Deletes a table with all its versions, checkpoints and history.

        Raises:
            TableNotFoundError: There is none, and `ignore_missing` is false.
        """
        uri = self._uri_of(name)
        if not table_exists(uri, self.storage_options):
            if ignore_missing:
                return
            raise TableNotFoundError(uri, hint="table_names() lists the tables")
        if is_local(uri):
            shutil.rmtree(uri)
        else:
            import lance

            lance.LanceDataset.drop(uri, storage_options=self.storage_options or None)

    def rename_table(self, name: str, new_name: str) -> None:
        """Renames a table on a local file system, with its versions, checkpoints and history.

        Raises:
            TableNotFoundError: There is none of this name.
            TableExistsError: There is one of the new name.
            UnsupportedOperationError: The tables are on an object store, which cannot rename.
        """
        old, new = self._uri_of(name), self._uri_of(new_name)
        if not table_exists(old, self.storage_options):
            raise TableNotFoundError(old, hint="table_names() lists the tables")
        if not is_local(old):
            raise UnsupportedOperationError(
                f"an object store cannot rename - {old} "
                f"- copy the folder to {new} with the store's own tools, and drop the old one"
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

    def _table(self, name: str) -> Table:
        return self._table_at(self._uri_of(name), name)

    def _table_at(self, uri: str, name: str) -> Table:
        ref = DatasetRef.at(uri, self.storage_options)
        return Table(
            ref,
            name,
            self._session,
            query_spark=lambda: self.spark,
            checkpoint=self._checkpoint_of(ref.uri),
            progress=self._progress,
        )

    def _named(self, name: str) -> DatasetRef | None:
        """Returns a table by its name; None where there is none, or no table can have that name."""
        try:
            uri = self._uri_of(name)
        except OptionError:
            return None
        return DatasetRef.at(uri, self.storage_options) if table_exists(uri, self.storage_options) else None

    def _checkpoint_of(self, uri: str) -> str | None:
        return None if self._checkpoint is None else checkpoint_place(self._checkpoint, uri)

    def _uri_of(self, name: str) -> str:
        if (
            not isinstance(name, str)
            or not name
            or name.startswith((".", "_"))
            or any(sign in name for sign in "/\\\0")
            or name != name.strip()
        ):
            raise OptionError(
                "name",
                repr(name),
                "the name of a table: not empty, without slashes, and not beginning with a dot or an underscore",
            )
        return f"{self.uri}/{name}{_SUFFIX}"

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
            session = open_session(self.uri, tuple(sorted(self.storage_options.items())))
            folders = sorted(
                {path.rstrip("/").rsplit("/", 1)[-1] for path in session.list_with_delimiter("").common_prefixes}
            )
        return [entry.removesuffix(_SUFFIX) for entry in folders if entry.rstrip("/").endswith(_SUFFIX)]

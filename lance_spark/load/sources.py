"""Sources of a load: files, a Lance table, a Spark DataFrame, or data of this process."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import ColumnNotFoundError, OptionError
from lance_spark.ingest.rows import to_reader
from lance_spark.ingest.staging import LocalRows, discard, stage
from lance_spark.ingest.streams import is_spark
from lance_spark.load.files import (
    Piece,
    PieceReader,
    SourceFile,
    check_unchanged,
    list_files,
    pieces_of,
    rows_of,
    schema_of,
)
from lance_spark.load.request import SourceFormat
from lance_spark.load.source_alignment import SourceAlignment, align_source
from lance_spark.locations import normalize_uri
from lance_spark.staging.area import Staging
from lance_spark.storage.file_systems import ARROW_SCHEMES, FileSystem
from lance_spark.types import ReadConverter, to_spark_schema
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    import lance

_COUNTED_FILES = 100
"""Maximum number of files for a count of rows from their footers."""


class Source(Protocol):
    """Rows of keys and values, equal at each read.

    Attributes:
        name: Name in messages.
        format: A format of files, `data`, or `DataFrame`.
        identity: Equal for two sources of the same rows.
        columns: Names of all columns.
    """

    name: str
    format: str
    identity: str

    @property
    def columns(self) -> Sequence[str]:
        """Names of all columns."""

    @property
    def rows(self) -> int | None:
        """Number of rows, if known without a read."""

    @property
    def stored_bytes(self) -> int | None:
        """Bytes on storage or in memory, if known."""

    def schema(self, columns: Sequence[str]) -> StructType:
        """Returns some columns with Spark's types.

        Raises:
            ColumnNotFoundError: A column does not exist.
            UnsupportedTypeError: Spark does not support the type of a column.
        """

    def frame(
        self, spark: SparkSession, columns: Sequence[str], *, along: Sequence[str] = ()
    ) -> DataFrame:
        """Returns a DataFrame with some columns of all rows.

        Tasks check each of several files for the columns `along`, too.
        """

    def refuse_changed(self) -> None:
        """Checks that the rows have not changed.

        Raises:
            SourceChangedError: The rows may have changed.
        """


def open_source(
    source: object, asked: SourceFormat | None, options: Mapping[str, str], *, job_id: str | None
) -> Source:
    """Opens a source, and reads its columns. Runs on the driver.

    Args:
        source: A path, a folder, a pattern, a list of paths, a Spark DataFrame, Arrow, pandas, or
            a list of dicts.
        asked: Format of files; None for the format of their names.
        options: Options of the store.
        job_id: Id of the job, if given. Two DataFrames count as equal only by the id of their job.

    Raises:
        SourceError: Files cannot be found or read, or their format is unknown.
        TableNotFoundError, TableUnreadableError: The Lance table does not exist, or cannot be read.
        OptionError: Options contradict the source, or PyArrow does not support its store.
        SchemaMismatchError: The source has no readable form.
    """
    if is_spark(source):
        if asked is not None:
            raise OptionError(
                "source_format", asked, "None", problem="is of files, and the source is a DataFrame"
            )
        return SparkSource(cast(DataFrame, source), job_id)
    paths = _paths(source)
    if paths is None:
        if asked is not None:
            raise OptionError(
                "source_format", asked, "None", problem="is of files, and the source is none"
            )
        return DataSource(source)
    if asked == "lance" or (asked is None and len(paths) == 1 and _is_lance(paths[0], options)):
        if len(paths) > 1:
            raise OptionError(
                "source", ", ".join(paths), "one location, where the source is a Lance table"
            )
        return LanceSource(DatasetRef.at(paths[0], options).pin(None))
    return FileSource(
        *list_files(paths, options, asked), name=", ".join(paths[:3]) + ", ..." * (len(paths) > 3)
    )


def _paths(source: object) -> tuple[str, ...] | None:
    paths = source if isinstance(source, (list, tuple)) else [source]
    if paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return tuple(map(os.fspath, paths))
    return None


def _is_lance(path: str, options: Mapping[str, str]) -> bool:
    uri = normalize_uri(path, option="source", also=ARROW_SCHEMES)
    if uri.endswith(".lance"):
        return True
    is_pattern = any(sign in path for sign in "*?[")
    never = is_pattern or "." in path.rpartition("/")[2] or uri.partition("://")[0] in ARROW_SCHEMES
    return not never and table_exists(uri, options)


class _ArrowColumns:
    """Columns with known Arrow fields."""

    name: str
    _schema: pa.Schema

    @property
    def columns(self) -> Sequence[str]:
        """Names of all columns."""
        return self._schema.names

    def fields(self, columns: Sequence[str]) -> pa.Schema:
        """Returns some of the columns.

        Raises:
            ColumnNotFoundError: A column does not exist.
        """
        refuse_missing(columns, self._schema.names, self.name)
        return pa.schema([self._schema.field(name) for name in columns])

    def schema(self, columns: Sequence[str]) -> StructType:
        """Returns some columns with Spark's types."""
        return to_spark_schema(self.fields(columns), blob_handling="bytes")


class FileSource(_ArrowColumns):
    """Parquet or Arrow IPC files, all with the columns of the first file."""

    def __init__(
        self, system: FileSystem, format: SourceFormat, files: tuple[SourceFile, ...], *, name: str
    ) -> None:
        self.name, self.format = name, str(format)
        self._system, self._format, self._files = system, format, files
        self._schema = schema_of(system, format, files[0]).remove_metadata()
        listed = [[file.path, file.size_bytes, file.changed_ns] for file in files]
        self.identity = _digest([format, system.type_name, *listed])

    @property
    def rows(self) -> int | None:
        """Number of rows, from the footers of a few files."""
        if self._format != "parquet" or len(self._files) > _COUNTED_FILES:
            return None
        return sum(rows_of(self._system, self._format, file) or 0 for file in self._files)

    @property
    def stored_bytes(self) -> int | None:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self._files)

    def frame(
        self, spark: SparkSession, columns: Sequence[str], *, along: Sequence[str] = ()
    ) -> DataFrame:
        """Returns a DataFrame with some columns of all rows, read by Spark's Python workers."""
        reader = self.reader(columns, pieces_of(self._system, self._format, self._files), along)
        count = len(reader.pieces)
        return spark.range(0, count, 1, count).mapInArrow(reader, reader.target)

    def reader(
        self, columns: Sequence[str], pieces: tuple[Piece, ...] = (), along: Sequence[str] = ()
    ) -> PieceReader:
        """Returns the reader of some columns on executors, which also checks columns `along`."""
        return PieceReader(
            system=self._system,
            format=self._format,
            pieces=pieces,
            fields=self.fields(columns),
            required=self.fields([*columns, *along]),
            target=self.schema(columns),
        )

    def pieces_at(self, places: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
        """Returns row groups as pieces, by pairs of file number and row group number."""
        return tuple(Piece(self._files[file], group, group + 1) for file, group in places)

    def alignment(
        self, dataset: lance.LanceDataset, key: str, columns: Sequence[str], slots: int
    ) -> SourceAlignment | None:
        """Returns the alignment of a table with the files; None if the load needs a shuffle."""
        if self._format != "parquet":
            return None
        return align_source(dataset, key, self._system, self._files, columns, slots)

    def refuse_changed(self) -> None:
        """Checks all files."""
        check_unchanged(self._system, self._files)


class LanceSource(_ArrowColumns):
    """A pinned version of a Lance table."""

    format = "lance"

    def __init__(self, ref: DatasetRef) -> None:
        self._ref, self._dataset = ref, ref.open()
        self._schema = self._dataset.schema
        self.name = f"{ref.uri}, version {ref.version}"
        self.identity = _digest(["lance", ref.uri, ref.version, ref.incarnation])

    @property
    def rows(self) -> int | None:
        """Number of rows, from the manifest."""
        return self._dataset.count_rows()

    @property
    def stored_bytes(self) -> int | None:
        """Not known."""
        return None

    def frame(
        self,
        spark: SparkSession,
        columns: Sequence[str],
        *,
        along: Sequence[str] = (),  # noqa: ARG002 - a table has them
    ) -> DataFrame:
        """Returns a DataFrame with some columns of all rows, read as a Lance table."""
        options = self._ref.storage_settings
        options |= {
            "version": str(self._ref.version),
            "columns": json.dumps(list(columns)),
            "blob_handling": "bytes",
        }
        return spark.read.format("lance").options(**options).load(self._ref.uri)

    def refuse_changed(self) -> None:
        """A version does not change."""


class DataSource(_ArrowColumns):
    """Arrow, pandas, or Python data of this process.

    The memory holds few rows only. A load stages more rows with :meth:`stage`.
    """

    format = "data"
    identity = ""

    def __init__(self, data: object) -> None:
        self.name = f"a {type(data).__name__}"
        self._local = LocalRows(to_reader(data, None))
        self._schema = self._local.schema.remove_metadata()
        if self._local.table is not None:
            digest = _RowDigest(self._local.schema)
            for batch in self._local.table.to_batches():
                digest.add(batch)
            self.identity = digest.text()

    @property
    def rows(self) -> int | None:
        """Number of rows; None if the memory does not hold all rows."""
        return None if self._local.table is None else self._local.table.num_rows

    @property
    def stored_bytes(self) -> int | None:
        """Bytes in memory; None if the memory does not hold all rows."""
        return None if self._local.table is None else self._local.table.nbytes

    def stage(self, ref: DatasetRef, columns: Sequence[str]) -> Source:
        """Returns a source with some columns for a load into a table: few rows, or staged rows."""
        return (
            self
            if self._local.table is not None
            else StagedSource.of(self._local, ref, columns, name=self.name)
        )

    def frame(
        self,
        spark: SparkSession,
        columns: Sequence[str],
        *,
        along: Sequence[str] = (),  # noqa: ARG002 - it has them
    ) -> DataFrame:
        """Returns a DataFrame with some columns of all rows."""
        target = self.schema(columns)
        converter = ReadConverter(self.fields(columns), target)
        parts = [
            part
            for batch in self._held().select(columns).to_batches()
            for part in converter.convert_split(batch)
        ]
        rows = pa.Table.from_batches(parts, schema=converter.schema)
        return spark.createDataFrame(rows, schema=target)

    def _held(self) -> pa.Table:
        assert self._local.table is not None, "many rows are staged before their use"
        return self._local.table

    def refuse_changed(self) -> None:
        """The data is a copy, or cannot change."""


class StagedSource(LanceSource):
    """Rows of this process, staged next to the table until the end of the load."""

    format = "data"

    def __init__(
        self, ref: DatasetRef, staging: Staging, *, name: str, identity: str, stored_bytes: int
    ) -> None:
        super().__init__(ref)
        self.name, self.identity = name, identity
        self.staging, self._bytes = staging, stored_bytes

    @staticmethod
    def of(local: LocalRows, ref: DatasetRef, columns: Sequence[str], *, name: str) -> StagedSource:
        """Stages some columns, batch by batch."""
        staging, names = Staging.of_new_job(ref), list(columns)
        digest = _RowDigest(pa.schema([local.schema.field(column) for column in names]))

        def digested() -> Iterator[pa.RecordBatch]:
            for batch in local.take():
                chosen = batch.select(names)
                digest.add(chosen)
                yield chosen

        staging.open_job()
        try:
            rows = pa.RecordBatchReader.from_batches(digest.schema, digested())
            place, _ = stage(rows, ref, staging, version=ref.open_latest().data_storage_version)
            pinned = DatasetRef.at(place, ref.storage).pin(None)
            return StagedSource(
                pinned, staging, name=name, identity=digest.text(), stored_bytes=digest.nbytes
            )
        except BaseException:
            discard(staging)
            raise

    @property
    def stored_bytes(self) -> int | None:
        """Bytes of the rows in memory."""
        return self._bytes


@dataclass
class SparkSource:
    """A Spark DataFrame. The caller guarantees equal rows at each read."""

    data: DataFrame
    job_id: str | None
    name: str = "a DataFrame"
    format: str = "DataFrame"
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        import uuid

        self.identity = _digest(["DataFrame", self.job_id or uuid.uuid4().hex])

    @property
    def columns(self) -> Sequence[str]:
        """Names of all columns."""
        return self.data.columns

    @property
    def rows(self) -> int | None:
        """Not known."""
        return None

    @property
    def stored_bytes(self) -> int | None:
        """Not known."""
        return None

    def schema(self, columns: Sequence[str]) -> StructType:
        """Returns some columns."""
        refuse_missing(columns, self.data.columns, self.name)
        counts = Counter(name.lower() for name in self.data.columns)
        for name in columns:
            if counts[name.lower()] > 1:
                hint = "another one differs from it only in capitals, which Spark does not tell apart; rename one"
                raise ColumnNotFoundError(name, self.name, hint=hint)
        fields = {field.name: field for field in self.data.schema.fields}
        return StructType([fields[name] for name in columns])

    def frame(
        self,
        spark: SparkSession,  # noqa: ARG002 - it has its own
        columns: Sequence[str],
        *,
        along: Sequence[str] = (),  # noqa: ARG002 - it has them
    ) -> DataFrame:
        """Returns some columns of all rows."""
        return self.data.select(*[quote_identifier(name) for name in columns])

    def refuse_changed(self) -> None:
        """Checks nothing: a change of a DataFrame is not detectable."""


class _RowDigest:
    """The digest of batches, which identifies their rows.

    Attributes:
        schema: The columns of the batches.
        nbytes: Bytes of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.nbytes = schema, 0
        self._digest = hashlib.blake2b(str(schema.remove_metadata()).encode(), digest_size=16)
        self._stream = pa.ipc.new_stream(_Hashed(self._digest), schema)  # type: ignore[arg-type]

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a batch."""
        self._stream.write_batch(batch)
        self.nbytes += batch.nbytes

    def text(self) -> str:
        """Returns the digest of all batches."""
        self._stream.close()
        text: str = self._digest.hexdigest()
        return text


class _Hashed:
    """A file without content, with the digest of its writes."""

    closed = False

    def __init__(self, digest: Any) -> None:  # noqa: ANN401 - hashes have no public class
        self._digest = digest

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes or a buffer of PyArrow
        self._digest.update(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def release_source(source: Source) -> None:
    """Deletes the staged rows of a source, if any. Raises nothing."""
    if isinstance(source, StagedSource):
        discard(source.staging)


def refuse_missing(columns: Sequence[str], present: Sequence[str], where: str) -> None:
    """Refuses missing and ambiguous names.

    Raises:
        ColumnNotFoundError: A name is missing or ambiguous.
    """
    counts = Counter(present)
    for name in columns:
        if counts[name] != 1:
            alike = [
                column for column in present if column.lower() == name.lower() and column != name
            ]
            columns_there = ", ".join(map(str, present)) or "none at all"
            hint = f"did you mean {alike[0]!r}?" if alike else f"its columns are {columns_there}"
            if name in present:
                hint = "it is there twice; rename one of them"
            raise ColumnNotFoundError(name, where, hint=hint)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

"""Files of a load: lists them on the driver, and reads them on executors.

Parquet and Arrow IPC, in any store of PyArrow. The driver lists files once, with their sizes and
times. A task refuses a file that has changed since then.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_spark.errors import OptionError, SourceChangedError, SourceError
from lance_spark.load.request import SourceFormat
from lance_spark.namespaces.access import lasting_options
from lance_spark.storage.file_systems import FileSystem, file_system_of
from lance_spark.types import ReadConverter
from lance_spark.types.mapping import spark_arrow_schema
from udf_runtime.errors import end_sentence

_SUFFIXES: Mapping[str, SourceFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".parq": "parquet",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
}
_REMEDY = "of other stores give a DataFrame: load_columns(spark.read.parquet(...), ...)"
_WILDCARD = re.compile(r"[*?\[]")

_PIECE_BYTES = 128 << 20
"""Approximate bytes of a task. Larger files are cut between row groups or batches."""

_BATCH_BYTES = 8 << 20
_MOST_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A listed file: its path in the file system, bytes, and time of its last change."""

    path: str
    size_bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: row groups or batches from `first` to `stop`, or to the end."""

    file: SourceFile
    first: int = 0
    stop: int | None = None


def list_files(
    source: Sequence[str], options: Mapping[str, str], asked: SourceFormat | None
) -> tuple[FileSystem, SourceFormat, tuple[SourceFile, ...]]:
    """Lists the files of paths, folders and patterns, sorted and unique, and their format.

    In folders and patterns, names with a leading `_` or `.` are skipped, as in Spark.

    Raises:
        SourceError: No file exists, or their format is unknown.
        OptionError: The files are in several stores, or in a store without support of PyArrow.
    """
    store = lasting_options(options)
    systems = [file_system_of(uri, store, option="source", remedy=_REMEDY) for uri in source]
    system = systems[0][0]
    if any(other_system != system for other_system, _ in systems):
        raise OptionError("source", ", ".join(source), "locations in one store")
    files_by_path: dict[str, SourceFile] = {}
    for uri, (_, path) in zip(source, systems, strict=True):
        files = _list(system, path, uri, asked)
        if not files:
            raise SourceError(
                f"There is no file to load at {uri}. Check the path, and source_format.", source=uri
            )
        files_by_path |= {file.path: file for file in files}
    listed = tuple(files_by_path[path] for path in sorted(files_by_path))
    return system, asked or _format_of(listed, ", ".join(source)), listed


def _list(system: FileSystem, path: str, uri: str, asked: SourceFormat | None) -> list[SourceFile]:
    from pyarrow import fs

    segments = path.split("/")
    fixed = list(itertools.takewhile(lambda segment: not _WILDCARD.search(segment), segments))
    base, patterns = "/".join(fixed), segments[len(fixed) :]
    try:
        root = system.get_file_info(base or "/")
        folder = fs.FileSelector(base or "/", recursive=True)
        infos = system.get_file_info(folder) if root.type == fs.FileType.Directory else []
    except OSError as error:
        problem = end_sentence(f"The files at {uri} cannot be listed: {error}")
        raise SourceError(f"{problem} Check permissions.", source=uri) from error
    if root.is_file and not patterns:
        return [_file(root)]
    files = [
        _file(info)
        for info in infos
        if info.is_file and _is_chosen(info.path.removeprefix(base), patterns)
    ]
    if asked is None or patterns:
        return files
    return _of_format(files, asked) or files


def _of_format(files: Sequence[SourceFile], asked: SourceFormat) -> list[SourceFile]:
    return [file for file in files if _SUFFIXES.get(_suffix(file.path)) == asked]


def _is_chosen(path: str, patterns: Sequence[str]) -> bool:
    """Tells whether a file, or one of its folders, matches patterns. Hidden names do not match."""
    names = path.strip("/").split("/")
    is_hidden = any(name.startswith(("_", ".")) for name in names)
    return (
        not is_hidden
        and len(names) >= len(patterns)
        and all(map(fnmatch.fnmatchcase, names, patterns))
    )


def _file(info: Any) -> SourceFile:  # noqa: ANN401 - missing in PyArrow's stubs
    return SourceFile(info.path, int(info.size), int(info.mtime_ns or 0))


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2].lower()}" if "." in name else ""


def _format_of(files: Sequence[SourceFile], source: str) -> SourceFormat:
    formats = {_SUFFIXES.get(_suffix(file.path)): file.path for file in files}
    kinds = [file_format for file_format in formats if file_format is not None]
    if len(formats) == 1 and kinds:
        return kinds[0]
    what = (
        f"several formats: {', '.join(formats.values())}"
        if len(kinds) > 1
        else "no format in their names"
    )
    unknown = formats.get(None)
    example = f", such as {unknown}" if unknown is not None and len(kinds) <= 1 else ""
    raise SourceError(
        f"The files at {source} have {what}{example}. Say source_format='parquet', 'lance' or 'ipc'.",
        source=source,
    )


def schema_of(system: FileSystem, format: SourceFormat, file: SourceFile) -> pa.Schema:
    """Returns the columns of a file.

    Raises:
        SourceError: The file cannot be read.
    """
    with _Opened(system, format, file) as opened:
        return opened.schema


def rows_of(system: FileSystem, format: SourceFormat, file: SourceFile) -> int | None:
    """Returns the number of rows of a file from its footer; None without a footer."""
    with _Opened(system, format, file) as opened:
        return opened.rows


def pieces_of(
    system: FileSystem, format: SourceFormat, files: Sequence[SourceFile]
) -> tuple[Piece, ...]:
    """Cuts files into pieces of about 128 MiB. Reads the footers of larger files."""
    pieces: list[Piece] = []
    for file in files:
        if file.size_bytes <= _PIECE_BYTES:
            pieces.append(Piece(file))
            continue
        with _Opened(system, format, file) as opened:
            parts = max(opened.parts, 1)
        step = max(1, parts * _PIECE_BYTES // file.size_bytes)
        pieces += [Piece(file, first, min(first + step, parts)) for first in range(0, parts, step)]
    return tuple(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReader:
    """Reads the rows of pieces; a callable for Spark's `mapInArrow` over the numbers of pieces.

    Memory: a few batches of about 8 MiB, and PyArrow's buffers of a row group.

    Attributes:
        fields: The columns to read, as in the first file.
        required: These columns, and other columns that every file must have.
        target: The columns to read, with Spark's types.
    """

    system: FileSystem
    format: SourceFormat
    pieces: tuple[Piece, ...]
    fields: pa.Schema
    required: pa.Schema
    target: StructType

    @property
    def schema(self) -> pa.Schema:
        """The columns to read, with the Arrow types for Spark."""
        return spark_arrow_schema(self.target)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each piece."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield from self.read(self.pieces[int(number)])

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a piece.

        Raises:
            SourceChangedError: The file has changed since the listing.
            SourceError: The file cannot be read, or has other columns than the first file.
        """
        check_unchanged(self.system, [piece.file])
        with _Opened(self.system, self.format, piece.file) as opened:
            self._check(opened.schema, piece.file)
            converter = ReadConverter(self.fields, self.target)
            for rows in opened.batches(piece, self.fields.names):
                yield from converter.convert_split(rows)

    def _check(self, schema: pa.Schema, file: SourceFile) -> None:
        for field in self.required:
            at = schema.get_field_index(field.name)
            if at < 0 or schema.field(at).type != field.type:
                has = "missing" if at < 0 else str(schema.field(at).type)
                raise SourceError(
                    f"Column {field.name!r} is {field.type} in the first file, and {has} in {file.path}. Write all "
                    "files with the same columns.",
                    source=file.path,
                )


def check_unchanged(system: FileSystem, files: Sequence[SourceFile]) -> None:
    """Checks that files have not changed since their listing.

    Raises:
        SourceChangedError: A file was deleted or has changed.
    """
    for file, info in zip(files, system.get_file_info([file.path for file in files]), strict=True):
        is_deleted = info.size is None
        if is_deleted or _file(info) != file:
            what = "is gone" if is_deleted else "was written again"
            raise SourceChangedError(
                f"The file {file.path} {what} since the load began. Nothing of the load is committed. Load again when "
                "the source stays as it is.",
                source=file.path,
            )


class _Opened:
    """An open file. The end of a `with` block closes it."""

    def __init__(self, system: FileSystem, format: SourceFormat, file: SourceFile) -> None:
        self._file, self._format, self._system = file, format, system

    def __enter__(self) -> _Opened:
        try:
            self._handle = self._system.open_input_file(self._file.path)
            try:
                self._open()
            except BaseException:
                self._handle.close()
                raise
        except (pa.ArrowException, OSError) as error:
            path = self._file.path
            problem = end_sentence(
                f"The file {path} is no file of format {self._format}, or cannot be read: {error}"
            )
            raise SourceError(
                f"{problem} Check the file, and source_format.", source=path
            ) from error
        return self

    def __exit__(self, *args: object) -> None:
        self._handle.close()

    def _open(self) -> None:
        if self._format == "parquet":
            import pyarrow.parquet as pq

            remote = self._system.type_name != "local"
            self._reader: Any = pq.ParquetFile(self._handle, pre_buffer=remote)
            self.schema: pa.Schema = self._reader.schema_arrow
            self.parts: int = self._reader.num_row_groups
            self.rows: int | None = self._reader.metadata.num_rows
            return
        self.rows = None
        try:
            self._reader = pa.ipc.open_file(self._handle)
            self.parts = self._reader.num_record_batches
        except pa.ArrowInvalid:
            self._handle.seek(0)
            self._reader = pa.ipc.open_stream(self._handle)
            self.parts = 1
        self.schema = self._reader.schema

    def batches(self, piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a piece, in batches of about 8 MiB."""
        if self._format == "parquet":
            groups = range(piece.first, self.parts if piece.stop is None else piece.stop)
            metadata = self._reader.metadata
            for group in groups:
                about = metadata.row_group(group)
                width = about.total_byte_size // max(about.num_rows, 1)
                rows = min(max(_BATCH_BYTES // max(width, 1), 16), _MOST_BATCH_ROWS)
                yield from self._reader.iter_batches(
                    batch_size=rows, row_groups=[group], columns=columns
                )
            return
        if isinstance(self._reader, pa.RecordBatchFileReader):
            numbers = range(piece.first, self.parts if piece.stop is None else piece.stop)
            file_batches: Iterator[pa.RecordBatch] = map(self._reader.get_batch, numbers)
        else:
            file_batches = iter(self._reader)
        for batch in file_batches:
            chosen = batch.select(columns)
            width = chosen.nbytes // max(chosen.num_rows, 1)
            rows = min(max(_BATCH_BYTES // max(width, 1), 16), _MOST_BATCH_ROWS)
            for first in range(0, chosen.num_rows, rows):
                yield chosen.slice(first, rows)

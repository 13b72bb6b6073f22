"""Layout of a table's rows in data files: file format, physical schema, and field ids.

Lance computes the layout when writing a table, but has no call for the layout of a file with our
own name. This module therefore writes a sample: an empty table and an empty file of the same
schema, in a temporary folder on the driver. The sample takes 10 ms, and also shows before any task
runs whether the file format can hold the columns.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.verify import same_columns
from lance_spark.errors import OptionError, UnsupportedTypeError
from lance_spark.lance_compat import unsupported_reason
from lance_spark.staging.blobs import file_field, is_logical_blob, is_stored_as_blob, row_field
from lance_spark.types.fields import check_column_names, check_field_names

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata
    from lance.schema import LanceSchema

_Format = Literal["stable", "2.0", "2.1", "2.2", "2.3", "next"]

_VARIABLE = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """Layout of a table's rows in data files. A picklable value, made on the driver for all tasks.

    Attributes:
        version: File format, such as `2.2`.
        table_schema: Schema of the files' columns as Lance stores the table.
        row_schema: Required schema of rows, with blobs as `large_binary`.
        file: Entry of a file with these columns.
    """

    version: str
    table_schema: pa.Schema
    row_schema: pa.Schema
    fields: tuple[FieldIdentity, ...]
    file: DataFile

    @staticmethod
    def of_new_table(schema: pa.Schema, version: str) -> FileLayout:
        """Returns the layout of a new or overwritten table. Runs on the driver.

        A blob is a binary column with the metadata `lance-encoding:blob`.

        Raises:
            ColumnNameError: Lance cannot read back the name of a column.
            UnsupportedTypeError: The file format cannot hold a column.
            OptionError: The file format is `legacy`. Lance no longer writes this format.
        """
        check_column_names(schema.names)
        for column in schema:
            check_field_names(column, column.name)
        return _build_layout(schema, version, None)

    @staticmethod
    def of_table(dataset: lance.LanceDataset, columns: Collection[str]) -> FileLayout:
        """Returns the layout of new files with some columns of an existing table."""
        chosen = frozenset(columns)
        schema = pa.schema([row_field(f) for f in dataset.schema if f.name in chosen])
        return _build_layout(schema, dataset.data_storage_version, dataset.lance_schema)

    @staticmethod
    def of_file(dataset: lance.LanceDataset, columns: Sequence[str]) -> DataFile:
        """Returns the entry of a file with columns of an existing table, in this order."""
        table = dataset.schema
        schema = pa.schema([row_field(table.field(name)) for name in columns])
        return _build_layout(schema, dataset.data_storage_version, dataset.lance_schema).file

    def fragment(self, name: str, *, rows: int, size_bytes: int | None) -> FragmentMetadata:
        """Returns a new fragment of one file; the commit assigns the fragment's id."""
        from lance.fragment import FragmentMetadata

        file = same_columns(self.file, StagedColumns(name=name, size_bytes=size_bytes))
        return FragmentMetadata(id=0, files=[file], physical_rows=rows)


def _build_layout(schema: pa.Schema, version: str, table: LanceSchema | None) -> FileLayout:
    """Returns the layout of a new table's files, or of files with the field ids of a table."""
    from lance.file import stable_version

    if version in ("legacy", "0.1"):
        raise OptionError(
            "data_storage_version",
            version,
            "2.0 or newer; rewrite a table in the legacy format with pylance first",
        )
    version = stable_version() if version == "stable" else version
    layout = _sample_layout(_Sample(schema, schema.serialize().to_pybytes(), version))
    if table is None:
        return layout
    table_fields = {field.name: field for field in field_identities(table)}
    fields = tuple(table_fields[field.name] for field in layout.fields)
    ids: dict[int, int] = {}
    for column, own, of_table in zip(schema, layout.fields, fields, strict=True):
        # Both trees have one schema, so their nodes correspond in depth-first order. Measured: the
        # number of a blob's descriptors varies with the table's commits, and no file names them.
        count = 1 if is_logical_blob(column) else None
        ids |= zip(own.ids[:count], of_table.ids[:count], strict=True)
    file = copy.copy(layout.file)
    file.fields = [ids[i] for i in file.fields]
    return replace(layout, fields=fields, file=file)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Columns and format of a file; equal if the schemas with all metadata are equal."""

    schema: pa.Schema = field(compare=False)
    serialized: bytes
    version: str


@functools.lru_cache(maxsize=64)
def _sample_layout(sample: _Sample) -> FileLayout:
    """Returns the layout of a new table's files; cached, as a table's schema rarely changes."""
    schema, version = sample.schema, sample.version
    try:
        dataset, file = _write_sample(schema, version)
    except (ValueError, OSError, NotImplementedError) as error:
        raise explain_refusal(schema, version, error) from error
    for column in dataset.schema:
        _refuse_what_cannot_be_read_back(column.name, column)
    return FileLayout(
        version=dataset.data_storage_version,
        table_schema=dataset.schema,
        row_schema=schema,
        fields=field_identities(dataset.lance_schema),
        file=file,
    )


def _write_sample(
    schema: pa.Schema, version: str, batch: pa.RecordBatch | None = None
) -> tuple[lance.LanceDataset, DataFile]:
    """Writes an empty table, and a file with its columns and optional rows."""
    import lance
    from lance.file import LanceFileSession
    from lance.fragment import DataFile

    with tempfile.TemporaryDirectory(prefix="lance-spark-") as folder:
        dataset = lance.write_dataset(
            schema.empty_table(), folder, data_storage_version=cast(_Format, version)
        )
        version = dataset.data_storage_version
        stored = pa.schema([file_field(field, version) for field in schema])
        writer = LanceFileSession(folder).open_writer(
            "data/sample.lance", schema=stored, version=version
        )
        if batch is not None:
            writer.write_batch(batch)
        writer.close()
        return dataset, DataFile.create(dataset, "sample.lance")


def explain_refusal(
    schema: pa.Schema, version: str, error: Exception, batch: pa.RecordBatch | None = None
) -> UnsupportedTypeError:
    """Converts Lance's refusal of a schema, or of rows, to an error about the column at fault."""
    at_fault = schema.field(0)
    for column in schema:
        rows = None if batch is None or is_logical_blob(column) else batch.select([column.name])
        try:
            _write_sample(pa.schema([column]), version, rows)
        except (ValueError, OSError, NotImplementedError) as column_error:
            at_fault, error = column, column_error
            break
    return UnsupportedTypeError(
        at_fault.name,
        str(at_fault.type),
        reason=unsupported_reason(error),
        hint=f"cast or rename the column, or use another file format than {version}: option data_storage_version, "
        "for a new table",
    )


def _refuse_what_cannot_be_read_back(path: str, field: pa.Field[Any]) -> None:
    """Refuses unreadable types, at any depth, although an empty file accepts them (pylance 14).

    Lance writes vectors of structs, but cannot read these vectors together with another column.
    Vectors of strings panic at the first row.
    """
    if is_stored_as_blob(field):
        if "." in path:
            why = "a blob inside another column cannot be written"
            raise UnsupportedTypeError(path, "blob", reason=why, hint="make it a column of its own")
        return
    if pa.types.is_fixed_size_list(field.type):
        element = field.type.value_type
        if pa.types.is_struct(element) or element in _VARIABLE:
            why = f"Lance cannot hold fixed-size lists of {element}"
            raise UnsupportedTypeError(
                path, str(field.type), reason=why, hint="use a list of variable size"
            )
    if pa.types.is_nested(field.type):
        for index in range(field.type.num_fields):
            inner = field.type.field(index)
            _refuse_what_cannot_be_read_back(f"{path}.{inner.name}", inner)

"""How a table's rows lie in data files.

File format, physical schema, and the field ids that a `DataFile` names.

Lance computes these itself where it writes a table, but has no call that tells them for a file that
was named elsewhere. So the same thing is made in small: an empty table and an empty file of the
same schema in a temporary folder on the driver, which take 10 ms and also show whether the file
format can hold the columns at all, before any task runs.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.errors import OptionError, UnsupportedTypeError
from lance_spark.lance_compat import unsupported_reason
from lance_spark.staging.blobs import file_field, is_logical_blob, is_stored_as_blob, prepared_blob_field, row_field

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata

_Format = Literal["stable", "2.0", "2.1", "2.2", "2.3", "next"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How rows of a table lie in data files. A picklable value, made on the driver for all tasks.

    Attributes:
        version: File format, such as `2.2`.
        table_schema: Schema of the table as Lance stores it, of the columns that the files hold.
        row_schema: Arrow schema that rows are to have; blobs are `large_binary` in it.
        blob_columns: Columns of `row_schema` whose values become blob descriptors in the file.
        fields: The columns with their field ids.
        field_ids: Field ids of the file's columns, as a `DataFile` names them.
        column_indices: Positions of the columns in the file.
        file_version: Major and minor number of the file format.
    """

    version: str
    table_schema: pa.Schema
    row_schema: pa.Schema
    blob_columns: tuple[str, ...]
    fields: tuple[FieldIdentity, ...]
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    file_version: tuple[int, int]

    @property
    def file_schema(self) -> pa.Schema:
        """Schema that the file writer takes: as `row_schema`, with prepared blobs."""
        fields = [prepared_blob_field(f) if f.name in self.blob_columns else f for f in self.row_schema]
        return pa.schema(fields)

    @staticmethod
    def of_new_table(schema: pa.Schema, version: str) -> FileLayout:
        """Returns the layout of a table that is created or overwritten. Runs on the driver.

        Args:
            schema: Columns of the table; a blob is a binary column with the metadata
                `lance-encoding:blob`.
            version: File format, or `stable` or `next`.

        Raises:
            UnsupportedTypeError: The file format cannot hold a column.
            OptionError: The file format is `legacy`, which cannot be written any more.
        """
        with tempfile.TemporaryDirectory(prefix="lance-spark-") as folder:
            return _layout_of_empty_table(schema, version, folder)

    @staticmethod
    def of_table(dataset: lance.LanceDataset, columns: Collection[str]) -> FileLayout:
        """Returns the layout of new files of an existing table that hold some of its columns.

        Runs on the driver.

        Raises:
            UnsupportedTypeError, OptionError: As :meth:`of_new_table` says.
        """
        schema = pa.schema([row_field(f) for f in dataset.schema if f.name in columns])
        layout = FileLayout.of_new_table(schema, dataset.data_storage_version)
        identities = {f.name: f for f in field_identities(dataset.lance_schema)}
        fields = tuple(identities[f.name] for f in layout.fields)
        # Both trees are of one schema, so their nodes correspond one to one, depth first.
        ids = dict(zip((i for f in layout.fields for i in f.ids), (i for f in fields for i in f.ids), strict=True))
        return dataclasses.replace(layout, fields=fields, field_ids=tuple(ids[i] for i in layout.field_ids))

    def data_file(self, name: str, size_bytes: int | None) -> DataFile:
        """Returns the `DataFile` of a file of this layout."""
        from lance.fragment import DataFile

        return DataFile(
            path=name,
            fields=list(self.field_ids),
            column_indices=list(self.column_indices),
            file_major_version=self.file_version[0],
            file_minor_version=self.file_version[1],
            file_size_bytes=size_bytes,
        )

    def fragment(self, name: str, *, rows: int, size_bytes: int | None) -> FragmentMetadata:
        """Returns a new fragment of one file; the commit gives it its id."""
        from lance.fragment import FragmentMetadata

        return FragmentMetadata(id=0, files=[self.data_file(name, size_bytes)], physical_rows=rows)


def explain_refusal(
    schema: pa.Schema, version: str, error: Exception, batch: pa.RecordBatch | None = None
) -> UnsupportedTypeError:
    """Turns Lance's refusal of a file into an error that names the first column at fault.

    Args:
        schema: Schema of the file's rows.
        version: File format.
        error: What Lance said to the whole.
        batch: Rows that were refused; None where the schema alone was.
    """
    for field in schema:
        with tempfile.TemporaryDirectory(prefix="lance-spark-") as folder:
            try:
                _write_alone(field, version, folder, batch)
            except (ValueError, OSError, NotImplementedError) as own:
                return _unsupported(field, version, own)
    return _unsupported(schema.field(0), version, error)


def _write_alone(field: pa.Field[Any], version: str, folder: str, batch: pa.RecordBatch | None) -> None:
    import lance

    schema = pa.schema([field])
    dataset = lance.write_dataset(schema.empty_table(), folder, data_storage_version=cast(_Format, version))
    rows = schema.empty_table().to_batches() if batch is None else [batch.select([field.name])]
    _probe_file(
        dataset, folder, pa.schema([file_field(field, version)]), version, [] if is_logical_blob(field) else rows
    )


def _unsupported(field: pa.Field[Any], version: str, error: Exception) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        field.name,
        str(field.type),
        reason=unsupported_reason(error),
        hint=f"cast or rename the column, or use another file format than {version}: option data_storage_version, for a new table",
    )


def _layout_of_empty_table(schema: pa.Schema, version: str, folder: str) -> FileLayout:
    import lance
    from lance.file import stable_version

    if version in ("legacy", "0.1"):
        raise OptionError(
            "data_storage_version", version, "2.0 or newer; rewrite a table in the legacy format with pylance first"
        )
    version = stable_version() if version == "stable" else version
    try:
        dataset = lance.write_dataset(schema.empty_table(), folder, data_storage_version=cast(_Format, version))
        version = dataset.data_storage_version
        file = _probe_file(dataset, folder, pa.schema([file_field(f, version) for f in schema]), version, [])
    except (ValueError, OSError, NotImplementedError) as error:
        raise explain_refusal(schema, version, error) from error
    for path, field in _nodes(dataset.schema):
        _refuse_what_cannot_be_read_back(path, field)
    return FileLayout(
        version=version,
        table_schema=dataset.schema,
        row_schema=schema,
        blob_columns=tuple(f.name for f in dataset.schema if is_stored_as_blob(f)),
        fields=field_identities(dataset.lance_schema),
        field_ids=tuple(file.fields),
        column_indices=tuple(file.column_indices),
        file_version=(file.file_major_version, file.file_minor_version),
    )


def _probe_file(
    dataset: lance.LanceDataset, folder: str, schema: pa.Schema, version: str, batches: list[pa.RecordBatch]
) -> DataFile:
    from lance.file import LanceFileSession
    from lance.fragment import DataFile

    writer = LanceFileSession(folder).open_writer("data/probe.lance", schema=schema, version=version)
    for batch in batches:
        writer.write_batch(batch)
    writer.close()
    return DataFile.create(dataset, "probe.lance")


def _refuse_what_cannot_be_read_back(path: str, field: pa.Field[Any]) -> None:
    """Refuses what an empty file does not show (measured with pylance 14).

    Vectors of structs are written, but then they cannot be read beside another column; vectors of
    strings panic at the first row.
    """
    if pa.types.is_fixed_size_list(field.type):
        element = field.type.value_type
        variable = (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_struct,
        )
        if any(is_type(element) for is_type in variable):
            raise UnsupportedTypeError(
                path,
                str(field.type),
                reason=f"Lance cannot hold fixed-size lists of {element}",
                hint="use a list of variable size",
            )
    if is_stored_as_blob(field) and "." in path:
        raise UnsupportedTypeError(
            path, "blob", reason="a blob inside another column cannot be written", hint="make it a column of its own"
        )


def _nodes(schema: pa.Schema) -> Iterator[tuple[str, pa.Field[Any]]]:
    for field in schema:
        yield from _node(field.name, field)


def _node(path: str, field: pa.Field[Any]) -> Iterator[tuple[str, pa.Field[Any]]]:
    yield path, field
    if pa.types.is_nested(field.type) and not is_stored_as_blob(field):
        for index in range(field.type.num_fields):
            inner = field.type.field(index)
            yield from _node(f"{path}.{inner.name}", inner)

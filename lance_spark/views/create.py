"""Creates a materialized view: an empty table with a stored query. Runs on the driver."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.columns.adding import Computed
from lance_spark.columns.binding import (
    Binding,
    metadata_of,
    output_fields,
    store_udf,
    takes_record_batch,
)
from lance_spark.columns.checking import check_udf
from lance_spark.commit.changes import RowsToCommit
from lance_spark.commit.conflicts.identity import BINDING_KEY, OUTPUT_KEY, TOKEN_KEY, FieldIdentity, field_identities
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.environments.stored import with_default
from lance_spark.errors import ColumnNotFoundError, RegistrationError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.search.query import Query
from lance_spark.session.sessions import session_time_zone
from lance_spark.staging.area import new_id
from lance_spark.staging.table_folder import check_new_table
from lance_spark.types import check_storable
from lance_spark.types.fields import is_blob
from lance_spark.types.names import check_column_names, quote_identifier
from lance_spark.views.definition import (
    CHILD_INDEX,
    EXPRESSION_KEY,
    MADE_KEY,
    SOURCE_ROW_ID,
    VIEW_KEY,
    ViewDefinition,
    stored_source,
    used_fields,
)
from lance_spark.views.lance_text import check_lance_texts
from lance_spark.views.source_pin import SourcePin
from lance_spark.views.spark.query import SparkQuery
from lance_spark.words import warn_caller
from udf_runtime import UDF, Kind, Manifest, UnpackedUDF

if TYPE_CHECKING:
    import lance

_MOST_UDFS = 62
"""A refresh marks the UDFs with changed inputs by the bits of an int64."""


def create_view(
    ref: DatasetRef, query: Query, function: UDF | None = None, *, manifest: Manifest | None = None
) -> None:
    """Creates a view of a query, without rows.

    With a chunker, each row of the query makes rows of the view with its selected columns, by
    default none. With a table function, the selected columns are its input, by default all. UDFs
    without an environment get the environment `manifest`.

    Raises:
        RegistrationError: The query cannot be a view: it has a limit or an offset, names a column
            twice, or has an expression or a UDF unsuitable for the source.
        ColumnNotFoundError: The source lacks a selected column.
        FilterError: The condition is not valid.
        UnsupportedTypeError: Lance cannot store a column.
        TableExistsError: A concurrent writer created the table.
        UnsupportedOperationError: The location holds files, and no table.

    Warns:
        UserWarning: The source has no stable row ids, so a refresh cannot follow its changes.
    """
    query.check_view()
    function = None if function is None else with_default(function, manifest).pickle_once()
    check_new_table(ref)
    refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    source = query.source.pin(None)
    dataset = source.open()
    settled = [
        computed_column.settle(dataset.schema, manifest, lambda: session_time_zone(query.spark()))
        for computed_column in query.computed
    ]
    query = dataclasses.replace(query, computed=tuple(settled))
    names = [name for name in dataset.schema.names if name != SOURCE_ROW_ID]
    everything = tuple((name, quote_identifier(name)) for name in names)
    is_chunker = function is not None and function.kind is Kind.CHUNKS
    columns = query.columns if query.columns is not None else () if is_chunker else everything
    made_columns = () if function is None else UnpackedUDF(function).output_columns
    if len(query.computed) > _MOST_UDFS:
        raise RegistrationError(
            f"a view can have {_MOST_UDFS} UDFs, not {len(query.computed)} - over {source.uri} - make two views, or a "
            "UDF that returns Columns[T]"
        )
    if function is not None and query.computed:
        raise RegistrationError(
            f"a view of {function.name!r} cannot select UDFs - over {source.uri} - add them to the view with "
            "add_columns, and fill them with backfill after each refresh"
        )
    reads = columns if function is not None and not is_chunker else ()
    columns = () if reads else columns
    names_of = [name for name, _ in (*columns, *made_columns)] + [
        name for computed_column in query.computed for _, name in computed_column.columns
    ]
    _refuse_names([*names_of])
    check_lance_texts(dataset, (expression for _, expression in (*columns, *reads)), query.condition)
    fields = _expression_fields(dataset, columns, source.uri)
    bound = [(computed_column, _inputs_of(dataset, computed_column)) for computed_column in query.computed]
    inputs = [field for _, some in bound for field in some]
    _expression_fields(dataset, reads, source.uri)
    binding = None
    if function is not None:
        own = check_udf(dataset, function, ()) if is_chunker else ()
        inputs += own
        binding = dataclasses.replace(Binding.of(function, own, made_columns), bound_at=dataset.version, of_source=True)
    condition = () if query.condition is None else (query.condition,)
    view = ViewDefinition(
        source=stored_source(source, ref.uri),
        columns=tuple(names_of),
        where=query.condition,
        used=used_fields(dataset, [*(expression for _, expression in (*columns, *reads)), *condition], inputs),
        function=binding,
        reads=reads,
        pin=SourcePin.of(source),
    )
    for computed_column, some in bound:
        fields += _computed_fields(dataset, computed_column, some)
    if function is not None:
        fields += _made_fields(function, made_columns, dataset.data_storage_version)
    keys = [pa.field(name, pa.int64(), False) for name in view.row_columns]
    schema = pa.schema([*keys, *fields], metadata={VIEW_KEY: view.to_json()})
    check_storable(pa.schema(fields), dataset.data_storage_version)
    if not view.makes_table:
        _warn_of_unstable(dataset, source, ref)
    for udf in (*(computed_column.udf for computed_column, _ in bound), *(() if function is None else (function,))):
        store_udf(udf, ref)
    _write(ref, schema, dataset.data_storage_version)


def create_spark_view(ref: DatasetRef, query: SparkQuery) -> None:
    """Creates a view of a query of Spark, without rows.

    Raises:
        RegistrationError: The name of a column is not valid.
        UnsupportedTypeError: Lance cannot store a column.
        TableExistsError: A concurrent writer created the table.
        UnsupportedOperationError: The location holds files, and no table.

    Warns:
        UserWarning: The source has no stable row ids, so a refresh cannot follow its changes.
    """
    check_new_table(ref)
    refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    source = query.source.pin(None)
    dataset = source.open()
    _refuse_names(query.schema.names)
    fields = [_plain_field(field, field.name, quote_identifier(field.name), source.uri) for field in query.schema]
    view = ViewDefinition(
        source=stored_source(source, ref.uri),
        columns=tuple(query.schema.names),
        where=None,
        used=query.used,
        spark=query.form,
        pin=SourcePin.of(source),
    )
    schema = pa.schema([pa.field(SOURCE_ROW_ID, pa.int64(), False), *fields], metadata={VIEW_KEY: view.to_json()})
    check_storable(pa.schema(fields), dataset.data_storage_version)
    _warn_of_unstable(dataset, source, ref)
    _write(ref, schema, dataset.data_storage_version)


def _warn_of_unstable(dataset: lance.LanceDataset, source: DatasetRef, ref: DatasetRef) -> None:
    if not dataset.has_stable_row_ids:
        warn_caller(
            f"rows of {source.uri} have no stable ids: the view {ref.uri} is filled from one version of it, and cannot "
            "be refreshed from another one; write the source anew with enable_stable_row_ids=True for that",
            UserWarning,
        )


def _refuse_names(names: Sequence[str]) -> None:
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise RegistrationError(f"two columns of the view are to have the name {twice!r} - name them apart")
    for name in names:
        if name.lower() in (SOURCE_ROW_ID, CHILD_INDEX):
            raise RegistrationError(f"{name!r} cannot be the name of a view's column - select it under another name")
    check_column_names(names, "the view")


def _expression_fields(
    dataset: lance.LanceDataset, columns: Sequence[tuple[str, str]], uri: str
) -> list[pa.Field[Any]]:
    """Returns nullable fields for columns. The metadata of a field is the column's expression."""
    plain_columns = {quote_identifier(name): name for name in dataset.schema.names}
    fields: list[pa.Field[Any]] = []
    for name, expression in columns:
        if expression in plain_columns:
            fields.append(_plain_field(dataset.schema.field(plain_columns[expression]), name, expression, uri))
            continue
        if expression == quote_identifier(name):
            raise ColumnNotFoundError(name, uri, hint=f"its columns are {', '.join(dataset.schema.names)}")
        try:
            with panics_as_errors():
                schema = dataset.scanner(columns={name: expression}, with_row_address=True).projected_schema
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise RegistrationError(
                f"the expression {expression!r} is not valid: {plain(error)} - column {name!r} of a view over {uri} - "
                "expressions are Lance SQL over the source's columns; nothing was made"
            ) from error
        fields.append(_plain_field(schema.field(name), name, expression, uri))
    return fields


def _plain_field(field: pa.Field[Any], name: str, expression: str, uri: str) -> pa.Field[Any]:
    if is_blob(field):
        raise RegistrationError(
            f"blobs cannot be copied into a view - column {name!r} of a view over {uri} - select what is made of them "
            "by a UDF, and join the view with its source by __source_row_id = _rowid for the blobs themselves"
        )
    ours = {TOKEN_KEY, BINDING_KEY.encode(), OUTPUT_KEY.encode()}
    metadata = {key: value for key, value in (field.metadata or {}).items() if key not in ours}
    return pa.field(name, field.type, True, {**metadata, EXPRESSION_KEY: expression.encode()})


def _inputs_of(dataset: lance.LanceDataset, one: Computed) -> tuple[FieldIdentity, ...]:
    if takes_record_batch(one.udf):
        return field_identities(dataset.lance_schema)
    # Columns of the view and of the source may have the same names.
    return check_udf(dataset, one.udf, ())


def _computed_fields(
    dataset: lance.LanceDataset, one: Computed, inputs: Sequence[FieldIdentity]
) -> list[pa.Field[Any]]:
    bound = Binding.of(one.udf, inputs, one.columns)
    binding = dataclasses.replace(bound, bound_at=dataset.version, of_source=True)
    token = uuid.uuid4().hex
    fields = []
    for (output, name), field in zip(
        one.columns, output_fields(one.udf, one.columns, dataset.data_storage_version), strict=True
    ):
        if is_blob(field):
            raise RegistrationError(
                f"a UDF of a view cannot return blobs - column {name!r} - let it return plain binary, or backfill a "
                "column of the source"
            )
        metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
        metadata.update(metadata_of(binding, output, token).items())
        fields.append(field.with_metadata(metadata))
    return fields


def _made_fields(function: UDF, columns: Sequence[tuple[str, str]], version: str) -> list[pa.Field[Any]]:
    fields = []
    for (output, name), field in zip(columns, output_fields(function, columns, version), strict=True):
        if is_blob(field):
            raise RegistrationError(f"{function.name!r} cannot make blobs - column {name!r} - let it make plain binary")
        metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
        fields.append(field.with_metadata({**metadata, MADE_KEY: output.encode()}))
    return fields


def _write(ref: DatasetRef, schema: pa.Schema, version: str) -> None:
    change = RowsToCommit(
        mode="create", schema=schema, fields=(), fragments=(), rows=0, read_version=None, data_storage_version=version
    )
    commit_rows(ref, change, job_id=new_id())

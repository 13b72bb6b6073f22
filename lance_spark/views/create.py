"""Creates a materialized view: an empty table with a stored query. Runs on the driver."""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.columns.adding import Computed
from lance_spark.columns.binding import (
    Binding,
    metadata_of,
    output_fields,
    store_udf,
)
from lance_spark.columns.checking import check_udf
from lance_spark.commit.changes import RowsToCommit
from lance_spark.commit.conflicts.identity import BINDING_KEY, OUTPUT_KEY, TOKEN_KEY, FieldIdentity
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.display import warn_caller
from lance_spark.environments.artifacts import list_artifacts
from lance_spark.environments.stored import with_default
from lance_spark.errors import ColumnNotFoundError, RegistrationError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.search.query import Query
from lance_spark.session.sessions import session_time_zone
from lance_spark.staging.area import new_id
from lance_spark.staging.table_folder import check_new_table
from lance_spark.types import check_storable
from lance_spark.types.fields import check_column_names, is_blob, quote_identifier
from lance_spark.views.definition import (
    AUTO_REFRESH_KEY,
    CHILD_INDEX,
    EXPRESSION_KEY,
    MADE_KEY,
    SOURCE_ROW_ID,
    VIEW_KEY,
    ViewDefinition,
    check_lance_texts,
    source_id_of,
    stored_source,
    used_fields,
)
from lance_spark.views.source_pin import SourcePin
from lance_spark.views.spark.query import SparkQuery
from udf_runtime import UDF, Kind, Manifest, UnpackedUDF

if TYPE_CHECKING:
    import lance

_MOST_UDFS = 62
"""A refresh marks the UDFs with changed inputs by the bits of an int64."""


def create_view(
    ref: DatasetRef,
    query: Query,
    function: UDF | None = None,
    *,
    auto_refresh: bool = False,
    manifest: Manifest | None = None,
) -> None:
    """Creates a view of a query, without rows.

    An agent refreshes a view with `auto_refresh`.

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
    function = (
        None
        if function is None
        else list_artifacts(with_default(function, manifest), ref).pickle_once()
    )
    _check_place(ref)
    parts = _ViewParts.of(query, function, manifest)
    parts.check()
    definition, fields = parts.define(ref)
    udfs = [computed.udf for computed in parts.computed] + ([] if function is None else [function])
    _create(ref, parts.source, definition, fields, udfs, auto_refresh=auto_refresh)


def create_spark_view(ref: DatasetRef, query: SparkQuery, *, auto_refresh: bool = False) -> None:
    """Creates a view of a query of Spark, without rows.

    Raises:
        RegistrationError: The name of a column is not valid.
        UnsupportedTypeError: Lance cannot store a column.
        TableExistsError: A concurrent writer created the table.
        UnsupportedOperationError: The location holds files, and no table.

    Warns:
        UserWarning: The source has no stable row ids, so a refresh cannot follow its changes.
    """
    _check_place(ref)
    source = query.source.pin(None)
    _refuse_names(query.schema.names)
    fields = [
        _plain_field(field, field.name, quote_identifier(field.name), source.uri)
        for field in query.schema
    ]
    definition = ViewDefinition(
        source=stored_source(source, ref.uri),
        columns=tuple(query.schema.names),
        where=None,
        used=query.used,
        spark=query.form,
        pin=SourcePin.of(source),
        source_id=source_id_of(source, ref),
    )
    _create(ref, source, definition, fields, auto_refresh=auto_refresh)


def _check_place(ref: DatasetRef) -> None:
    check_new_table(ref)
    refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())


@dataclass(frozen=True, slots=True, kw_only=True)
class _ViewParts:
    """The parts of a view of a query at the latest version of its source.

    Attributes:
        columns: Names and expressions of the columns with an expression.
        reads: Names and expressions of the inputs of a table function.
        computed: The UDFs over the source, with their columns.
        function: The chunker or the table function.
        made_columns: Output fields of the function, and names of their columns.
    """

    source: DatasetRef
    dataset: lance.LanceDataset
    columns: tuple[tuple[str, str], ...]
    reads: tuple[tuple[str, str], ...]
    condition: str | None
    computed: tuple[Computed, ...]
    function: UDF | None
    made_columns: tuple[tuple[str, str], ...]

    @staticmethod
    def of(query: Query, function: UDF | None, manifest: Manifest | None) -> _ViewParts:
        """Returns the parts, with settled UDFs."""
        source = query.source.pin(None)
        dataset = source.open()
        settled = [
            computed.settle(
                source, dataset.schema, manifest, lambda: session_time_zone(query.spark())
            )
            for computed in query.computed
        ]
        columns = _selected_columns(query, function, dataset)
        is_input = function is not None and function.kind is not Kind.CHUNKS
        return _ViewParts(
            source=source,
            dataset=dataset,
            columns=() if is_input else columns,
            reads=columns if is_input else (),
            condition=query.condition,
            computed=tuple(settled),
            function=function,
            made_columns=() if function is None else UnpackedUDF(function).output_columns,
        )

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        computed = [name for group in self.computed for _, name in group.columns]
        return [*(name for name, _ in (*self.columns, *self.made_columns)), *computed]

    def check(self) -> None:
        """Refuses parts of no view."""
        if len(self.computed) > _MOST_UDFS:
            raise RegistrationError(
                f"A view can have {_MOST_UDFS} UDFs, and this view of {self.source.uri} has {len(self.computed)}. Make "
                "two views, or a UDF that returns Columns[T]."
            )
        if self.function is not None and self.computed:
            raise RegistrationError(
                f"A view of {self.function.name!r} cannot select UDFs. Source: {self.source.uri}. Add the UDFs to the "
                "view with add_columns, and fill their columns with backfill after each refresh."
            )
        _refuse_names(self.names)
        expressions = [expression for _, expression in (*self.columns, *self.reads)]
        check_lance_texts(self.dataset, expressions, self.condition)

    def define(self, view: DatasetRef) -> tuple[ViewDefinition, list[pa.Field[Any]]]:
        """Returns the definition of the view, and the fields of its columns."""
        fields = _expression_fields(self.dataset, self.columns, self.source.uri)
        bindings = [self._bind(computed.udf, computed.columns) for computed in self.computed]
        _expression_fields(self.dataset, self.reads, self.source.uri)
        function = None if self.function is None else self._bind(self.function, self.made_columns)
        input_ids = {
            number
            for binding in (*bindings, function)
            if binding is not None
            for number in binding.input_ids
        }
        expressions = [expression for _, expression in (*self.columns, *self.reads)]
        definition = ViewDefinition(
            source=stored_source(self.source, view.uri),
            columns=tuple(self.names),
            where=self.condition,
            used=used_fields(self.dataset, [*expressions, self.condition or ""], input_ids),
            function=function,
            reads=self.reads,
            pin=SourcePin.of(self.source),
            source_id=source_id_of(self.source, view),
        )
        version = self.dataset.data_storage_version
        for computed, binding in zip(self.computed, bindings, strict=True):
            identify = partial(metadata_of, binding, token=uuid.uuid4().hex)
            fields += _udf_fields(computed.udf, computed.columns, version, identify)
        if self.function is not None:
            fields += _udf_fields(
                self.function, self.made_columns, version, lambda name: {MADE_KEY.decode(): name}
            )
        return definition, fields

    def _bind(self, udf: UDF, columns: Sequence[tuple[str, str]]) -> Binding:
        """Binds a UDF to the source."""
        binding = Binding.of(udf, _inputs_of(self.dataset, udf), columns)
        return dataclasses.replace(binding, bound_at=self.dataset.version, of_source=True)


def _selected_columns(
    query: Query, function: UDF | None, dataset: lance.LanceDataset
) -> tuple[tuple[str, str], ...]:
    if query.columns is not None:
        return query.columns
    if function is not None and function.kind is Kind.CHUNKS:
        return ()
    return tuple(
        (name, quote_identifier(name)) for name in dataset.schema.names if name != SOURCE_ROW_ID
    )


def _refuse_names(names: Sequence[str]) -> None:
    counts = Counter(name.lower() for name in names)
    twice = next((name for name in names if counts[name.lower()] > 1), None)
    if twice is not None:
        raise RegistrationError(
            f"Two columns of the view have the name {twice!r}. Rename one of them."
        )
    for name in names:
        if name.lower() in (SOURCE_ROW_ID, CHILD_INDEX):
            raise RegistrationError(
                f"{name!r} cannot be the name of a view's column. Select it under another name."
            )
    check_column_names(names, "the view")


def _expression_fields(
    dataset: lance.LanceDataset, columns: Sequence[tuple[str, str]], uri: str
) -> list[pa.Field[Any]]:
    """Returns nullable fields for columns. The metadata of a field is the column's expression."""
    plain_columns = {quote_identifier(field.name): field for field in dataset.schema}
    fields: list[pa.Field[Any]] = []
    for name, expression in columns:
        if expression in plain_columns:
            fields.append(_plain_field(plain_columns[expression], name, expression, uri))
            continue
        if expression == quote_identifier(name):
            raise ColumnNotFoundError(
                name, uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
            )
        try:
            with panics_as_errors():
                schema = dataset.scanner(
                    columns={name: expression}, with_row_address=True
                ).projected_schema
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise RegistrationError(
                f"The expression {expression!r} of column {name!r} is no valid Lance SQL over the columns of {uri}. "
                f"Nothing was made. Lance: {plain(error)}"
            ) from error
        fields.append(_plain_field(schema.field(name), name, expression, uri))
    return fields


def _plain_field(field: pa.Field[Any], name: str, expression: str, uri: str) -> pa.Field[Any]:
    if is_blob(field):
        raise RegistrationError(
            f"A view cannot copy blobs, as in column {name!r} of {uri}. Select a UDF over the blobs. For the blobs "
            "themselves, join the view with its source by __source_row_id = _rowid."
        )
    ours = {TOKEN_KEY, BINDING_KEY.encode(), OUTPUT_KEY.encode(), MADE_KEY}
    metadata = {key: value for key, value in (field.metadata or {}).items() if key not in ours}
    return pa.field(name, field.type, True, {**metadata, EXPRESSION_KEY: expression.encode()})


def _inputs_of(dataset: lance.LanceDataset, udf: UDF) -> tuple[FieldIdentity, ...]:
    if udf.kind is Kind.TABLE:
        return ()
    # Columns of the view and of the source may have the same names.
    return check_udf(dataset, udf, ())


def _udf_fields(
    udf: UDF,
    columns: Sequence[tuple[str, str]],
    version: str,
    metadata_of: Callable[[str], Mapping[str, str]],
) -> list[pa.Field[Any]]:
    """Returns the fields of the columns of a UDF, with metadata by output field."""
    fields: list[pa.Field[Any]] = []
    for (output, name), field in zip(columns, output_fields(udf, columns, version), strict=True):
        if is_blob(field):
            raise RegistrationError(
                f"UDF {udf.name!r} of a view cannot return blobs, as in column {name!r}. Return plain binary, or "
                "backfill a column of the source."
            )
        metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
        metadata.update(metadata_of(output).items())
        fields.append(field.with_metadata(metadata))
    return fields


def _create(
    ref: DatasetRef,
    source: DatasetRef,
    definition: ViewDefinition,
    fields: Sequence[pa.Field[Any]],
    udfs: Iterable[UDF] = (),
    *,
    auto_refresh: bool,
) -> None:
    """Creates the table of a view, and stores its UDFs."""
    dataset = source.open()
    version = dataset.data_storage_version
    keys = [pa.field(name, pa.int64(), False) for name in definition.row_columns]
    metadata: dict[bytes | str, bytes | str] = {VIEW_KEY: definition.to_json()}
    if auto_refresh:
        metadata[AUTO_REFRESH_KEY] = "true"
    schema = pa.schema([*keys, *fields], metadata=metadata)
    check_storable(pa.schema(fields), version)
    if not definition.makes_table and not dataset.has_stable_row_ids:
        warn_caller(
            f"Rows of {source.uri} have no stable ids, so the view {ref.uri} can show only a single version of its "
            "source. To follow the source, write the source again with enable_stable_row_ids=True.",
            UserWarning,
        )
    for udf in udfs:
        store_udf(udf, ref)
    change = RowsToCommit(
        mode="create",
        schema=schema,
        fields=(),
        fragments=(),
        rows=0,
        read_version=None,
        data_storage_version=version,
    )
    commit_rows(ref, change, job_id=new_id())

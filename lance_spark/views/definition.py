"""The definition of a view, as JSON in the metadata of its schema: :class:`ViewDefinition`.

A view is checked at its creation and at each refresh, because any writer may change the metadata.

The definition has no secrets: the connection of the view gives the options of the object store.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from lance_spark.backfill.planning.definition import Definition, definition_of
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.task.source_reader import SourceInputs
from lance_spark.columns.binding import Binding, binding_of, inputs_now, load_udf
from lance_spark.commit.conflicts.identity import BINDING_KEY, FieldIdentity, field_identities
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    RegistrationError,
    StoredUdfError,
    TableNotFoundError,
    UnsupportedOperationError,
    VersionNotFoundError,
    ViewError,
    ViewSourceError,
)
from lance_spark.namespaces.reference import NamespaceTable
from lance_spark.read.filtering import check_filter
from lance_spark.storage.objects import objects_of_table
from lance_spark.stored_json import load_object
from lance_spark.views.source_pin import SourcePin, refuse_other_source
from lance_spark.views.spark.form import SparkForm
from lance_spark.views.state import has_unfinished, refreshed_of
from udf_runtime import UDF, Kind

if TYPE_CHECKING:
    import lance

VIEW_KEY = b"lance-spark:view"
"""Schema metadata of a view."""

AUTO_REFRESH_KEY = b"lance-spark:auto_refresh"
"""Schema metadata of a view that an agent refreshes: `true`."""

EXPRESSION_KEY = b"lance-spark:expression"
"""Field metadata of a column with an expression in Lance SQL over the source."""

MADE_KEY = b"lance-spark:made"
"""Field metadata of a column of a chunker or a table function: the name in the function."""

SOURCE_ROW_ID = "__source_row_id"
"""Column of a view: the row id of the source's row, int64, not NULL."""

CHILD_INDEX = "__child_index"
"""Column of a chunker's view: number of the chunk in its source row, int64, not NULL, from 0."""

_UNSTEADY = (
    "_rowaddr",
    "_rowoffset",
    "_fragid",
    "_row_last_updated_at_version",
    "current_date",
    "current_time",
    "current_timestamp",
)
_UNSTEADY_CALLS = ("random", "uuid", "now", "today")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedField:
    """A column of the source in the definition of a view, at the creation of the view."""

    name: str
    id: int
    type: str
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDefinition:
    """The definition of a view.

    Attributes:
        source: Location of the source, or its name in the view's own folder.
        columns: Names of the columns at the creation of the view.
        where: Condition in Lance SQL on rows of the source.
        used: Columns of the source in the condition, the expressions of columns, and the inputs of
            UDFs.
        function: The chunker or the table function, bound to the source; None if each row of the
            view is a row of the source.
        reads: Names of the inputs of a table function, with expressions in Lance SQL.
        spark: The query of Spark, or None. It holds the condition, and the expression of a column
            is its name in the query.
        pin: Version of the source at the creation of the view; None for views of older releases.
        source_id: The names of the source in the namespace of the view; None for a source that is
            known by its location alone.
    """

    source: str
    columns: tuple[str, ...]
    where: str | None
    used: tuple[UsedField, ...]
    function: Binding | None = None
    reads: tuple[tuple[str, str], ...] = ()
    spark: SparkForm | None = None
    pin: SourcePin | None = None
    source_id: tuple[str, ...] | None = None

    @property
    def makes_table(self) -> bool:
        """Whether a table function makes the rows. A refresh then keeps no row."""
        return self.function is not None and self.function.kind == Kind.TABLE.value

    @property
    def makes_chunks(self) -> bool:
        """Whether a chunker makes the rows. Each row of the source is any number of rows."""
        return self.function is not None and not self.makes_table

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that identify rows."""
        if self.makes_table:
            return ()
        return (SOURCE_ROW_ID,) if self.function is None else (SOURCE_ROW_ID, CHILD_INDEX)

    def to_json(self) -> str:
        """Returns the form for the metadata of the schema."""
        values = dataclasses.asdict(self)
        if self.function is not None:
            values["function"] = json.loads(self.function.to_json())
        return json.dumps(values, sort_keys=True)

    def source_of(self, view: DatasetRef) -> DatasetRef:
        """Returns the source at its latest version, with the storage options of the view.

        For a view of a namespace, the namespace supplies the options of the source.
        """
        inside = "://" not in self.source and "/" not in self.source
        uri = f"{view.table_uri.rpartition('/')[0]}/{self.source}" if inside else self.source
        table = NamespaceTable.of(view.storage)
        if table is None or self.source_id is None:
            return DatasetRef.at(uri, view.storage_options)
        return DatasetRef.at(uri, table.at(self.source_id).to_options())

    def pin_source(self, view: DatasetRef, version: int | str | None) -> DatasetRef:
        """Returns a pinned version of the source.

        Raises:
            ViewSourceError: The source does not exist.
            VersionNotFoundError: The source has no such version.
        """
        source = self.source_of(view)
        try:
            return source.pin(version)
        except TableNotFoundError as error:
            raise ViewSourceError(
                f"The source of the view {view.uri} does not exist any more. Source: {source.uri}. The view keeps its "
                "rows. Restore the source, or drop the view.",
                uri=view.uri,
            ) from error

    def fields_in(self, source: DatasetRef, view_uri: str) -> tuple[FieldIdentity, ...]:
        """Returns the used columns at a version of the source.

        Raises:
            ViewSourceError: A column was dropped, renamed, cast or created again.
        """
        fields = {field.name: field for field in field_identities(source.open().lance_schema)}
        present = [fields.get(used.name) for used in self.used]
        changed = [
            used.name
            for used, field in zip(self.used, present, strict=True)
            if field is None
            or (field.id, field.type, field.token) != (used.id, used.type, used.token)
        ]
        if changed:
            raise ViewSourceError(
                f"Columns {', '.join(map(repr, changed))} of the source were dropped, renamed, cast or created again "
                f"after the creation of the view {view_uri}. Source: {source.uri}, version {source.version}. Nothing "
                "was changed. Undo this, or make the view again.",
                uri=view_uri,
            )
        return tuple(field for field in present if field is not None)


def view_of(dataset: lance.LanceDataset) -> ViewDefinition | None:
    """Returns the definition of a view; None for other tables.

    Raises:
        ViewError: The stored definition is damaged.
    """
    text = (dataset.schema.metadata or {}).get(VIEW_KEY)
    if text is None:
        return None
    try:
        values = load_object(text)
        return ViewDefinition(
            source=str(values["source"]),
            columns=tuple(map(str, values["columns"])),
            where=values["where"],
            used=tuple(UsedField(**field) for field in values["used"]),
            function=None
            if values.get("function") is None
            else Binding.from_json(json.dumps(values["function"]), ""),
            reads=tuple((str(name), str(text)) for name, text in values.get("reads", ())),
            spark=SparkForm.of(values.get("spark")),
            pin=SourcePin.from_json(values.get("pin")),
            source_id=_names_of(values.get("source_id")),
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        StoredUdfError,
    ) as error:
        raise ViewError(
            f"The stored definition of the view {dataset.uri} is damaged. Make the view again. Reason: {error}",
            uri=dataset.uri,
        ) from error


def is_auto_refreshed(dataset: lance.LanceDataset) -> bool:
    """Tells whether an agent refreshes a view."""
    return (dataset.schema.metadata or {}).get(AUTO_REFRESH_KEY) == b"true"


def refuse_view(dataset: lance.LanceDataset) -> None:
    """Refuses to change rows of a view.

    Raises:
        UnsupportedOperationError: The table is a view.
    """
    if view_of(dataset) is not None:
        raise UnsupportedOperationError(
            f"The rows of the view {dataset.uri} follow its source. Nothing was changed. Change the source, and "
            "refresh the view."
        )


def existing_view(dataset: lance.LanceDataset) -> ViewDefinition:
    """Returns the definition of a view.

    Raises:
        ViewError: The table is no view.
    """
    definition = view_of(dataset)
    if definition is None:
        raise ViewError(
            f"The table {dataset.uri} is no materialized view. Refresh a table of create_materialized_view. To fill "
            "computed columns of a table, use backfill.",
            uri=dataset.uri,
        )
    schema = dataset.schema
    for name in definition.row_columns:
        if name not in schema.names:
            raise ViewError(
                f"The view {dataset.uri} lacks its column {name!r}, which identifies rows. Restore the version before, "
                "or make the view again.",
                uri=dataset.uri,
            )
    # A cast replaces the column, and drops the metadata about its expression or UDF.
    marks, computed = (
        {EXPRESSION_KEY, BINDING_KEY.encode(), MADE_KEY},
        frozenset(definition.columns),
    )
    for field in schema:
        if field.name in computed and marks.isdisjoint(field.metadata or {}):
            raise ViewError(
                f"Column {field.name!r} of the view {dataset.uri} was cast or created again, so its expression is "
                "unknown. Drop the column, restore the version before, or make the view again.",
                uri=dataset.uri,
            )
    return definition


def expressions_of(dataset: lance.LanceDataset) -> tuple[tuple[str, str], ...]:
    """Returns the present names of the columns with an expression, and the expressions."""
    return tuple(_marked_columns(dataset, EXPRESSION_KEY))


def made_columns(dataset: lance.LanceDataset) -> tuple[tuple[str, str], ...]:
    """Returns the columns of a chunker or a table function: the original and the present name.

    Dropped columns are left out.
    """
    return tuple((output, name) for name, output in _marked_columns(dataset, MADE_KEY))


def _marked_columns(dataset: lance.LanceDataset, key: bytes) -> Iterator[tuple[str, str]]:
    """Yields the names of the columns with a key in their metadata, and its value."""
    for field in dataset.schema:
        value = (field.metadata or {}).get(key)
        if value is not None:
            yield field.name, value.decode()


def _names_of(value: object) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, cast("list[object]", value)))


def source_id_of(source: DatasetRef, view: DatasetRef) -> tuple[str, ...] | None:
    """Returns the names of a source in the namespace of its view; None for another source."""
    table, view_table = NamespaceTable.of(source.storage), NamespaceTable.of(view.storage)
    is_same = table is not None and view_table is not None and table.client == view_table.client
    return table.table_id if table is not None and is_same else None


def stored_source(source: DatasetRef, view_uri: str) -> str:
    """Returns the location of a source in the form that a view stores."""
    folder, _, name = source.uri.rpartition("/")
    return name if folder == view_uri.rpartition("/")[0] else source.uri


def used_fields(
    source: lance.LanceDataset, expressions: Iterable[str], input_ids: Collection[int] = ()
) -> tuple[UsedField, ...]:
    """Returns the inputs of UDFs, and the columns that expressions may read, in the source's order.

    Names are also found in strings. An unnecessary column costs a look at its files.
    """
    texts = [text.lower() for text in expressions]
    return tuple(
        UsedField(name=field.name, id=field.id, type=field.type, token=field.token)
        for field in field_identities(source.lance_schema)
        if field.id in input_ids or any(_is_named_in(field.name.lower(), text) for text in texts)
    )


def check_lance_texts(
    dataset: lance.LanceDataset, expressions: Iterable[str], condition: str | None
) -> None:
    """Refuses invalid expressions and conditions over a source.

    Raises:
        RegistrationError: A value may change without a change of its row.
        FilterError: The condition is not valid.
    """
    for text in (*expressions, condition or ""):
        _refuse_unsteady(text, dataset.uri)
    if condition is not None:
        check_filter(dataset, condition, dataset.uri, "descriptor")


def _refuse_unsteady(text: str, uri: str) -> None:
    """Refuses an expression whose value may change without a change of its row."""
    bare = re.sub(r"'[^']*'|`[^`]*`", "", text)
    match = re.search(
        rf"\b(?:(?:{'|'.join(_UNSTEADY)})\b|(?:{'|'.join(_UNSTEADY_CALLS)})\s*\()",
        bare,
        re.IGNORECASE,
    )
    if match is not None:
        raise RegistrationError(
            f"{match[0]!r} in {text!r} changes its value without a change of the row's columns, so a refresh cannot "
            f"find the outdated rows. Source: {uri}. Compute it in queries over the view."
        )


def _is_named_in(name: str, text: str) -> bool:
    if re.fullmatch(r"\w+", name):
        return re.search(rf"(?<!\w){name}(?!\w)", text) is not None
    return name in text


def groups_of(dataset: lance.LanceDataset) -> list[tuple[Binding, tuple[str, ...]]]:
    """Returns the UDFs of a view over the source, each with its columns in the view."""
    groups: dict[tuple[str, ...], Binding] = {}
    for name in dataset.schema.names:
        binding = binding_of(dataset, name)
        if binding is not None and binding.of_source:
            groups[tuple(column for _, column in binding.columns)] = binding
    return [(binding, columns) for columns, binding in groups.items()]


def define(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    request: BackfillRequest,
    *,
    opened: DatasetRef | None = None,
    functions: Mapping[str, UDF] | None = None,
) -> Definition:
    """Returns the definition of the requested columns. Columns of a view may read its source.

    Args:
        ref: The view.
        dataset: A version of the view.
        request: The request.
        opened: A version of the source that the caller has opened.
        functions: The stored UDFs that the caller has loaded, by the digests of their pickles.

    Raises:
        ViewSourceError: The source cannot be read.
        LanceSparkError: As in `backfill/planning/definition.py`.
    """
    column = request.columns[0]
    binding = binding_of(dataset, column) if column in dataset.schema.names else None
    if binding is None or not binding.of_source:
        return definition_of(ref, dataset, request)
    _check_request(ref, request, binding)
    source = _shown_source(ref, dataset, request.job_id, opened)
    inputs = inputs_now(source.open(), binding, column)
    row_id = next(
        field for field in field_identities(dataset.lance_schema) if field.name == SOURCE_ROW_ID
    )
    loaded = (functions or {}).get(binding.payload)
    if loaded is None and not request.plan_only:
        loaded = load_udf(binding, objects_of_table(ref), column)
    return Definition(
        stored=binding,
        loaded=loaded,
        key=binding.key,
        inputs=(row_id,),
        outputs=binding.columns,
        input_source=SourceInputs(source=source, columns=tuple(field.name for field in inputs)),
    )


def _check_request(ref: DatasetRef, request: BackfillRequest, binding: Binding) -> None:
    """Refuses parameters unsuitable for columns of a UDF over the source."""
    if request.udf is not None:
        raise RegistrationError(
            f"Column {request.columns[0]!r} of the view {ref.uri} is computed from the view's source, so it takes no "
            "other UDF. Make a view with that UDF."
        )
    if request.read_version is not None and request.read_version != ref.open_latest().version:
        raise RegistrationError(
            f"Columns of the view {ref.uri} that are computed from its source take no read_version. Refresh the view "
            "with src_version."
        )
    if len(request.columns) > 1 and set(request.columns) != {name for _, name in binding.columns}:
        raise RegistrationError(
            f"Columns {', '.join(map(repr, request.columns))} of the view {ref.uri} are not the columns of a single "
            "UDF. Call backfill for each."
        )


def _shown_source(
    ref: DatasetRef, dataset: lance.LanceDataset, job_id: str | None, opened: DatasetRef | None
) -> DatasetRef:
    """Returns the shown version of the source of a view, for a backfill.

    The version may be the `opened` version.

    Raises:
        ViewSourceError: The version is uncertain, or cannot be read.
    """
    view = existing_view(dataset)
    state = refreshed_of(dataset)
    refresh = None if job_id is None else job_id.rpartition("-")[0]
    if state is not None and state.lost and has_unfinished(ref, refresh):
        raise ViewSourceError(
            f"The inputs of some rows of the view {ref.uri} are unknown. An unfinished refresh may have committed rows "
            "of another version of the source, and a cleanup removed its transaction. Refresh the view.",
            uri=ref.uri,
        )
    try:
        if opened is not None and state is not None and state.shows(opened):
            source = opened
        else:
            source = view.pin_source(ref, None if state is None else state.version)
    except VersionNotFoundError as error:
        raise ViewSourceError(
            f"A cleanup removed the version of the source that the view {ref.uri} shows, so inputs cannot be read. "
            f"Refresh the view. Reason: {error}",
            uri=ref.uri,
        ) from error
    if state is None or state.incarnation != source.incarnation:
        refuse_other_source(ref, view.source_of(ref), (state, view.pin))
    view.fields_in(source, ref.uri)
    return source

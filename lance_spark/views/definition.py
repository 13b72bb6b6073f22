"""The definition of a view, as JSON in the metadata of its schema: :class:`ViewDefinition`.

The definition has no secrets: the connection of the view gives the options of the object store.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from lance_spark.objects import objects_of_table
from lance_spark.stored_json import load_object
from lance_spark.views.source_pin import SourcePin, refuse_other_source
from lance_spark.views.spark.form import SparkForm
from lance_spark.views.state import has_unfinished, refreshed_of
from udf_runtime import Kind

if TYPE_CHECKING:
    import lance

VIEW_KEY = b"lance-spark:view"
"""Schema metadata of a view."""

EXPRESSION_KEY = b"lance-spark:expression"
"""Field metadata of a column with an expression in Lance SQL over the source."""

MADE_KEY = b"lance-spark:made"
"""Field metadata of a column of a chunker or a table function: the name in the function."""

SOURCE_ROW_ID = "__source_row_id"
"""Column of a view: the row id of the source's row, int64, not NULL."""

CHILD_INDEX = "__child_index"
"""Column of a chunker's view: number of the chunk in its source row, int64, not NULL, from 0."""


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
    """

    source: str
    columns: tuple[str, ...]
    where: str | None
    used: tuple[UsedField, ...]
    function: Binding | None = None
    reads: tuple[tuple[str, str], ...] = ()
    spark: SparkForm | None = None
    pin: SourcePin | None = None

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
        """Returns the source at its latest version, with the storage options of the view."""
        inside = "://" not in self.source and "/" not in self.source
        uri = f"{view.table_uri.rpartition('/')[0]}/{self.source}" if inside else self.source
        return DatasetRef.at(uri, view.storage_options)

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
                f"the source of the view is not there any more - view {view.uri}, source {source.uri} - the view keeps "
                "its rows; put the source back, or drop the view",
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
            if field is None or (field.id, field.type, field.token) != (used.id, used.type, used.token)
        ]
        if changed:
            raise ViewSourceError(
                f"columns {', '.join(map(repr, changed))} of the source were dropped, renamed, cast or made anew since "
                f"the view was made - view {view_uri}, source {source.uri} at version {source.version} - nothing was "
                "changed; undo that, or make the view anew",
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
            function=None if values.get("function") is None else Binding.from_json(json.dumps(values["function"]), ""),
            reads=tuple((str(name), str(text)) for name, text in values.get("reads", ())),
            spark=SparkForm.of(values.get("spark")),
            pin=SourcePin.from_json(values.get("pin")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StoredUdfError) as error:
        raise ViewError(
            f"what is stored of the view is damaged: {error} - in {dataset.uri} - make the view anew", uri=dataset.uri
        ) from error


def refuse_view(dataset: lance.LanceDataset) -> None:
    """Refuses to change rows of a view.

    Raises:
        UnsupportedOperationError: The table is a view.
    """
    if view_of(dataset) is not None:
        raise UnsupportedOperationError(
            f"the rows of a view are those of its source - {dataset.uri} - nothing was changed - change the source, "
            "and refresh"
        )


def existing_view(dataset: lance.LanceDataset) -> ViewDefinition:
    """Returns the definition of a view.

    Raises:
        ViewError: The table is no view.
    """
    definition = view_of(dataset)
    if definition is None:
        raise ViewError(
            f"the table is no materialized view - {dataset.uri} - only what create_materialized_view made can be "
            "refreshed; computed columns of a table are filled by backfill",
            uri=dataset.uri,
        )
    for name in definition.row_columns:
        if name not in dataset.schema.names:
            raise ViewError(
                f"column {name!r} of the view is gone, which tells its rows apart - {dataset.uri} - restore the "
                "version before, or make the view anew",
                uri=dataset.uri,
            )
    # A cast replaces the column, and drops the metadata about its expression or UDF.
    for field in dataset.schema:
        marks = {EXPRESSION_KEY, BINDING_KEY.encode(), MADE_KEY}
        if field.name in definition.columns and marks.isdisjoint(field.metadata or {}):
            raise ViewError(
                f"column {field.name!r} of the view was cast or made anew, so nothing tells what computes it - "
                f"{dataset.uri} - drop the column, restore the version before, or make the view anew",
                uri=dataset.uri,
            )
    return definition


def expressions_of(dataset: lance.LanceDataset) -> tuple[tuple[str, str], ...]:
    """Returns the present names of the columns with an expression, and the expressions."""
    texts = ((field.name, (field.metadata or {}).get(EXPRESSION_KEY)) for field in dataset.schema)
    return tuple((name, text.decode()) for name, text in texts if text is not None)


def made_columns(dataset: lance.LanceDataset) -> tuple[tuple[str, str], ...]:
    """Returns the columns of a chunker or a table function: the original and the present name.

    Dropped columns are left out.
    """
    texts = ((field.name, (field.metadata or {}).get(MADE_KEY)) for field in dataset.schema)
    return tuple((text.decode(), name) for name, text in texts if text is not None)


def stored_source(source: DatasetRef, view_uri: str) -> str:
    """Returns the location of a source in the form that a view stores."""
    folder, _, name = source.uri.rpartition("/")
    return name if folder == view_uri.rpartition("/")[0] else source.uri


def used_fields(
    source: lance.LanceDataset, expressions: Iterable[str], inputs: Iterable[FieldIdentity]
) -> tuple[UsedField, ...]:
    """Returns the inputs, and the columns that expressions may read, in the order of the source.

    Names are also found in strings. An unnecessary column costs a look at its files.
    """
    texts = [text.lower() for text in expressions]
    ids = {field.id for field in inputs}
    return tuple(
        UsedField(name=field.name, id=field.id, type=field.type, token=field.token)
        for field in field_identities(source.lance_schema)
        if field.id in ids or any(_names(field.name.lower(), text) for text in texts)
    )


def _names(name: str, text: str) -> bool:
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


def define(ref: DatasetRef, dataset: lance.LanceDataset, request: BackfillRequest) -> Definition:
    """Returns the definition of the requested columns. Columns of a view may read its source.

    Raises:
        ViewSourceError: The source cannot be read.
        LanceSparkError: As in `backfill/planning/definition.py`.
    """
    column = request.columns[0]
    binding = binding_of(dataset, column) if column in dataset.schema.names else None
    if binding is None or not binding.of_source:
        return definition_of(ref, dataset, request)
    if request.udf is not None:
        raise RegistrationError(
            f"column {column!r} of a view is computed from the view's source, so it takes no other UDF - in {ref.uri} "
            "- make a view with that UDF"
        )
    if request.read_version not in (None, ref.open_latest().version):
        raise RegistrationError(
            f"read_version is not for columns that are computed from a view's source - in {ref.uri} - refresh the view "
            "with src_version"
        )
    _refuse_parts(request.columns, [name for _, name in binding.columns], ref)
    view = existing_view(dataset)
    state = refreshed_of(dataset)
    refresh = None if request.job_id is None else request.job_id.rpartition("-")[0]
    if state is not None and state.lost and has_unfinished(ref, refresh):
        raise ViewSourceError(
            "a refresh that has not ended well may have committed rows of another version of the source, and its "
            f"transaction was cleaned up, so nothing tells which inputs rows have - view {ref.uri} - refresh the view",
            uri=ref.uri,
        )
    try:
        source = view.pin_source(ref, None if state is None else state.version)
    except VersionNotFoundError as error:
        raise ViewSourceError(
            f"the version of the source that the view shows was cleaned up, so inputs cannot be read: {error} - view "
            f"{ref.uri} - refresh the view",
            uri=ref.uri,
        ) from error
    if state is None or state.incarnation != source.incarnation:
        refuse_other_source(ref, view.source_of(ref), (state, view.pin))
    view.fields_in(source, ref.uri)
    inputs = inputs_now(source.open(), binding, column)
    row_id = next(field for field in field_identities(dataset.lance_schema) if field.name == SOURCE_ROW_ID)
    return Definition(
        stored=binding,
        loaded=None if request.plan_only else load_udf(binding, objects_of_table(ref), column),
        key=binding.key,
        inputs=(row_id,),
        outputs=binding.columns,
        input_source=SourceInputs(source=source, columns=tuple(field.name for field in inputs)),
    )


def _refuse_parts(asked: Sequence[str], group: Sequence[str], ref: DatasetRef) -> None:
    if len(asked) > 1 and set(asked) != set(group):
        raise RegistrationError(
            f"columns {', '.join(map(repr, asked))} are not the columns of one UDF - in {ref.uri} - call backfill for "
            "each"
        )

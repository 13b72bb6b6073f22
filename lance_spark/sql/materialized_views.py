"""Materialized views of a SQL catalog: CREATE, REFRESH and DROP. On the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    RegistrationError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
    ViewError,
)
from lance_spark.sql.catalog.lance_namespace import NamespaceLocation
from lance_spark.sql.catalog.location import ProcedureCall, drop_nulls
from lance_spark.sql.catalog.tables import drop_table_at
from lance_spark.types.fields import quote_identifier
from lance_spark.views.create import create_spark_view
from lance_spark.views.definition import existing_view, view_of
from lance_spark.views.spark.query import text_query

Row = Sequence[object]

_CATALOG_TABLES = ("lancespark.LanceTable", "lancespark.EvolvingTable")
"""Java classes of the tables of a catalog."""


def create(
    call: ProcedureCall,
    query: str,
    if_not_exists: bool | None,
    with_data: bool | None,
    auto_refresh: bool | None,
) -> Row:
    """Creates a view of a SELECT, and fills the view if the statement has WITH DATA.

    An agent refreshes a view with `auto_refresh`. An existing view stays unchanged.

    Raises:
        TableExistsError: A table of this name exists.
        RegistrationError: The query cannot be a view.
        UnsupportedOperationError: The source is outside the folder of the catalog.
    """
    ref = call.ref
    if ref.exists():
        if not if_not_exists:
            raise TableExistsError(ref.uri, hint="choose another name, or drop the table first")
        existing_view(ref.open_latest())
    else:
        view = text_query(call.spark, query, lambda name: _catalog_table(call, name))
        _refuse_outside(call, view.source)
        create_spark_view(ref, view, auto_refresh=bool(auto_refresh))
        if with_data:
            call.table().refresh()
    table = call.table()
    return [call.name, table.version, table.count_rows()]


def refresh(call: ProcedureCall, **options: object) -> Row:
    """Refreshes a view from its source.

    Raises:
        ViewError: The table is no view.
        UnsupportedOperationError: The source is outside the folder of the catalog.
    """
    definition = existing_view(call.ref.open_latest())
    _refuse_outside(call, definition.source_of(call.ref))
    view = call.table()
    result = view.refresh(**drop_nulls(**options))
    return [
        result.job_id,
        result.rows_added,
        result.rows_recomputed,
        result.rows_removed,
        view.version,
    ]


def drop(call: ProcedureCall, if_exists: bool | None) -> Row:
    """Deletes a view with all its versions.

    Raises:
        TableNotFoundError: No table has this name.
        ViewError: The table is no view.
    """
    ref = call.ref
    if not ref.exists():
        if not if_exists:
            raise TableNotFoundError(ref.uri)
        return [call.name]
    if view_of(ref.open_latest()) is None:
        raise ViewError(
            f"The table is no materialized view. Table: {ref.uri}. Nothing was dropped. Write DROP TABLE.",
            uri=ref.uri,
        )
    if isinstance(call.location, NamespaceLocation):
        call.location.drop(call.name, purge=True)
    else:
        drop_table_at(ref, call.location.catalog)
    return [call.name]


def has_stored_code(ref: DatasetRef) -> bool:
    """Tells whether a refresh of a view may run a UDF stored with the view."""
    dataset = ref.open_latest()
    view = view_of(dataset)
    is_computed = any(BINDING_KEY.encode() in (field.metadata or {}) for field in dataset.schema)
    return is_computed or (view is not None and view.function is not None)


def _catalog_table(call: ProcedureCall, name: Sequence[str]) -> tuple[DatasetRef, tuple[str, ...]]:
    """Returns the table of a catalog of this package that the session finds under a name.

    Also returns the parts of the full name: `catalog.namespace.table`.

    Raises:
        RegistrationError: The name is one of a view, or of another source.
    """
    text = ".".join(map(quote_identifier, name))
    plan = call.spark.table(text)._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows plans as text alone
    full_name = tuple(name)
    while plan.getClass().getSimpleName() == "SubqueryAlias":
        qualifier = plan.identifier().qualifier()
        full_name = (
            *(qualifier.apply(i) for i in range(qualifier.length())),
            plan.identifier().name(),
        )
        plan = plan.child()
    is_relation = plan.getClass().getSimpleName() == "DataSourceV2Relation"
    if not is_relation or plan.table().getClass().getName() not in _CATALOG_TABLES:
        raise RegistrationError(
            f"The query of the view selects from {text}, which is no table of a Lance catalog. Select from a table of "
            "such a catalog."
        )
    catalog, *namespace, table = full_name
    if isinstance(call.location, NamespaceLocation):
        if catalog != call.location.catalog:
            # A refresh reads the source with the credentials of the view's namespace.
            raise RegistrationError(
                f"The query of the view selects from {text}, which is a table of another catalog. View: "
                f"{call.quoted_name}. Nothing was made. Select from a table of the catalog {call.location.catalog}."
            )
        return replace(call.location, namespace=tuple(namespace)).existing(table), full_name
    return DatasetRef.at(str(plan.table().id()), call.ref.storage_options), full_name


def _refuse_outside(call: ProcedureCall, source: DatasetRef) -> None:
    """Refuses a source outside the catalog, unless writers of its tables are trusted.

    A forged view would copy rows of any table within reach of the server's credentials.
    """
    if call.location.allows_stored_code or call.location.holds(source):
        return
    raise UnsupportedOperationError(
        f"The source of the view is outside the folder of the catalog {call.location.catalog!r}. View: {call.ref.uri}. "
        f"Source: {source.uri}. Nothing was changed. Name a source below {call.location.root}, or use "
        "create_materialized_view and refresh of the table API."
    )

"""Procedures of a SQL catalog: `CALL <catalog>.system.<procedure>(...)`. On the driver.

Statements such as `OPTIMIZE t` are calls of these procedures: LanceStatement.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, StoredUdfError, UnsupportedOperationError
from lance_spark.session.catalogs import ALLOW_STORED_CODE, setting_of
from lance_spark.sql import columns_of_view, materialized_views
from lance_spark.sql.catalog.location import CatalogLocation, ProcedureCall
from lance_spark.sql.procedures import operations

_TABLE = "TABLE"

_PARAMETERS = {
    "columns": "column",
    "index_names": "index",
    "index_type": "type",
    "job_id": "job",
    "tag": "name",
    "transforms": "column",
}
"""Names of parameters in SQL, by their names in the table API."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure.

    Attributes:
        description: Description of the procedure.
        parameters: Name and Spark type of each parameter after the table. `*` marks a required
            parameter. A table is given by its name.
        answer: Spark schema of its single row.
        run: Function over a table; returns the row. Values come by their names.
        runs_code: Whether the procedure unpickles a UDF stored with a table.
        is_for_new: Whether the table may be missing.
    """

    description: str
    parameters: tuple[tuple[str, str], ...]
    answer: str
    run: Callable[..., Sequence[object]]
    runs_code: Callable[[DatasetRef], bool] = lambda _: False
    is_for_new: bool = False


def _always(_: DatasetRef) -> bool:
    return True


PROCEDURES = {
    "add_column": Procedure(
        "adds a column that the stored UDF of a column of another table, by default of the same name, computes",
        (
            ("*column", "STRING"),
            ("*source", _TABLE),
            ("source_column", "STRING"),
            ("auto_backfill", "BOOLEAN"),
        ),
        "column STRING, version BIGINT",
        operations.add_column,
        runs_code=_always,
    ),
    "add_columns": Procedure(
        "adds columns with the values of a view of the session, which has the row addresses of the table",
        (("*columns", "ARRAY<STRING>"), ("*source", "STRING")),
        "columns STRING, version BIGINT",
        columns_of_view.add_columns,
    ),
    "backfill": Procedure(
        "fills a column that a UDF computes",
        (
            ("*column", "STRING"),
            ("where", "STRING"),
            ("stale", "BOOLEAN"),
            ("read_version", "BIGINT"),
            ("num_frags", "INT"),
            ("skip_frags", "INT"),
            ("job_id", "STRING"),
            ("concurrency", "INT"),
            ("intra_applier_concurrency", "INT"),
            ("task_size", "INT"),
            ("checkpoint_size", "INT"),
            ("commit_granularity", "INT"),
            ("commit_max_retries", "INT"),
            ("on_stale", "STRING"),
            ("protect_snapshot", "BOOLEAN"),
            ("max_calls", "BIGINT"),
            ("max_seconds", "DOUBLE"),
            ("max_cost", "DOUBLE"),
            ("txn_app_id", "STRING"),
            ("txn_version", "BIGINT"),
        ),
        "job STRING, computed BIGINT, skipped BIGINT, version BIGINT, status STRING, remaining BIGINT",
        operations.backfill,
        runs_code=_always,
    ),
    "cancel_job": Procedure(
        "ends a job of the table that the process of the catalog runs",
        (("*job", "STRING"),),
        "job STRING, status STRING",
        operations.cancel_job,
    ),
    "cleanup": Procedure(
        "deletes versions that are older",
        (
            ("older_than_days", "DOUBLE"),
            ("retain_hours", "DOUBLE"),
            ("error_if_tagged_old_versions", "BOOLEAN"),
            ("keep_for_streams", "BOOLEAN"),
        ),
        "versions BIGINT, bytes BIGINT",
        operations.cleanup,
    ),
    "compact": Procedure(
        "makes fewer, larger fragments",
        (
            ("target_rows_per_fragment", "BIGINT"),
            ("max_bytes_per_file", "BIGINT"),
            ("materialize_deletions", "BOOLEAN"),
            ("materialize_deletions_threshold", "DOUBLE"),
            ("defer_index_remap", "BOOLEAN"),
            ("batch_size", "INT"),
            ("concurrency", "INT"),
            ("commit_granularity", "INT"),
            ("commit_max_retries", "INT"),
        ),
        "fragments_removed BIGINT, fragments_added BIGINT, version BIGINT",
        operations.compact,
    ),
    "create_branch": Procedure(
        "makes a branch of a branch, a tag or a version, by default of the latest version",
        (("*name", "STRING"), ("from_ref", "STRING"), ("if_not_exists", "BOOLEAN")),
        "name STRING, version BIGINT",
        operations.create_branch,
    ),
    "create_index": Procedure(
        "builds an index: BTREE, BITMAP, FTS, IVF_PQ, ...",
        (("*column", "STRING"), ("type", "STRING")),
        "column STRING, version BIGINT",
        operations.create_index,
    ),
    "create_materialized_view": Procedure(
        "makes a materialized view of a SELECT over one table, without rows, or filled",
        (
            ("*query", "STRING"),
            ("if_not_exists", "BOOLEAN"),
            ("with_data", "BOOLEAN"),
            ("auto_refresh", "BOOLEAN"),
        ),
        "name STRING, version BIGINT, rows BIGINT",
        materialized_views.create,
        is_for_new=True,
    ),
    "drop_branch": Procedure(
        "deletes a branch with its versions",
        (("*name", "STRING"), ("if_exists", "BOOLEAN")),
        "name STRING",
        operations.drop_branch,
    ),
    "drop_materialized_view": Procedure(
        "deletes a materialized view; the source of the view stays",
        (("if_exists", "BOOLEAN"),),
        "name STRING",
        materialized_views.drop,
        is_for_new=True,
    ),
    "drop_tag": Procedure(
        "deletes a tag; the version stays until it is cleaned up",
        (("*name", "STRING"), ("if_exists", "BOOLEAN")),
        "name STRING",
        operations.drop_tag,
    ),
    "optimize_indices": Procedure(
        "takes rows into an index, by default into all indexes, that the index does not serve yet",
        (("index", "STRING"), ("num_indices_to_merge", "INT"), ("retrain", "BOOLEAN")),
        "indexes STRING, version BIGINT",
        operations.optimize_indices,
    ),
    "refresh": Procedure(
        "brings a materialized view up to date with its source",
        (("src_version", "BIGINT"), ("max_rows_per_fragment", "BIGINT"), ("concurrency", "INT")),
        "job STRING, rows_added BIGINT, rows_recomputed BIGINT, rows_removed BIGINT, version BIGINT",
        materialized_views.refresh,
        runs_code=materialized_views.has_stored_code,
    ),
    "restore": Procedure(
        "makes an older version, by its number or tag, the latest",
        (("*version", "STRING"),),
        "version BIGINT",
        operations.restore,
    ),
    "set_primary_key": Procedure(
        "declares the columns that identify a row; Lance checks no uniqueness",
        (("*columns", "ARRAY<STRING>"),),
        "columns STRING, version BIGINT",
        operations.set_primary_key,
    ),
    "tag": Procedure(
        "gives a version, by default the latest, a name",
        (("*name", "STRING"), ("version", "STRING"), ("if_not_exists", "BOOLEAN")),
        "name STRING, version BIGINT",
        operations.tag,
    ),
    "update_columns": Procedure(
        "gives columns the values of a view of the session, which has the row addresses of the table",
        (("*columns", "ARRAY<STRING>"), ("*source", "STRING")),
        "columns STRING, version BIGINT",
        columns_of_view.update_columns,
    ),
}
"""All procedures, by their names in the namespace `system`."""


def list_procedures(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `SHOW PROCEDURES`."""
    del arguments
    return {"names": sorted(PROCEDURES)}


def load_procedure(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a procedure's parameters.

    Raises:
        UnsupportedOperationError: No procedure has this name.
    """
    name = arguments["name"]
    if list(arguments["namespace"]) != ["system"] or name not in PROCEDURES:
        full_name = ".".join((*arguments["namespace"], name))
        raise UnsupportedOperationError(
            f"The procedure {full_name} does not exist. Nothing was changed. Call a procedure of the namespace "
            f"system: {', '.join(sorted(PROCEDURES))}."
        )
    parameters = [
        {
            "name": parameter.lstrip("*"),
            "type": kind.replace(_TABLE, "STRING"),
            "required": parameter.startswith("*"),
            "is_table": kind == _TABLE,
        }
        for parameter, kind in (("*table", _TABLE), *PROCEDURES[name].parameters)
    ]
    return {"name": name, "description": PROCEDURES[name].description, "parameters": parameters}


def call(arguments: Mapping[str, Any], session: Any) -> dict[str, Any]:  # noqa: ANN401 - a Java object
    """Runs a procedure. The table is named as in SQL, without the catalog: `t`, `folder.t`.

    Args:
        arguments: Name of the procedure, values, and parts of the names of tables.
        session: The JVM's session that runs the statement.

    Raises:
        StoredUdfError: The procedure runs a stored UDF, but the catalog forbids stored UDFs, or the
            table is outside the catalog's folder.
        LanceSparkError: See the called method of :class:`lance_spark.Table`.
    """
    procedure = PROCEDURES[arguments["procedure"]]
    parameters = [
        (name.lstrip("*"), kind, name.startswith("*")) for name, kind in procedure.parameters
    ]
    _check_values([("table", _TABLE, True), *parameters], arguments["values"])
    context = _resolve_table(
        arguments, "table", arguments["values"][0], session, is_for_new=procedure.is_for_new
    )
    values: dict[str, object] = {
        name: _resolve_table(arguments, name, value, session).ref if kind == _TABLE else value
        for (name, kind, _), value in zip(parameters, arguments["values"][1:], strict=True)
    }
    tables = [context.ref, *(value for value in values.values() if isinstance(value, DatasetRef))]
    if procedure.runs_code(context.ref):
        _refuse_untrusted(context.location, tables, arguments["procedure"])
    try:
        row = procedure.run(context, **values)
    except OptionError as error:
        # The table API has other names for the arguments.
        own_name = _PARAMETERS.get(error.option)
        if own_name not in values:
            raise
        raise OptionError(
            own_name, values[own_name], error.accepted, problem=error.problem
        ) from error
    return {"schema": procedure.answer, "rows": [list(row)]}


def _check_values(parameters: Sequence[tuple[str, str, bool]], values: Sequence[object]) -> None:
    for (name, _, required), value in zip(parameters, values, strict=True):
        if required and value is None:
            raise OptionError(name, None, "a value, and not NULL")
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, list) and None in value:
            raise OptionError(name, value, "values, and not NULL")
        for text in texts:
            if isinstance(text, str) and "\0" in text:
                raise OptionError(name, text, "text without NUL characters")


def _refuse_untrusted(
    location: CatalogLocation, tables: Sequence[DatasetRef], procedure: str
) -> None:
    """Refuses stored code without permission by the administrator of a catalog."""
    statement = f"CALL {location.catalog}.system.{procedure}"
    if not location.allows_stored_code:
        raise StoredUdfError(
            f"The catalog {location.catalog!r} does not let SQL run stored UDFs. Statement: {statement}. Nothing was "
            "changed. If you trust all writers of the catalog's tables, set "
            f"{setting_of(location.catalog, ALLOW_STORED_CODE)}=true before the application starts, or pass "
            "allow_stored_code=True to configure or catalog."
        )
    for table in tables:
        if not location.holds(table):
            raise StoredUdfError(
                f"The table is outside the folder of the catalog {location.catalog!r}, so SQL cannot run UDFs that are "
                f"stored with the table. Statement: {statement}. Table: {table.uri}. Nothing was changed. Name a "
                f"table below {location.root}, or backfill with the table API."
            )


def _resolve_table(
    arguments: Mapping[str, Any],
    parameter: str,
    name: object,
    session: Any,  # noqa: ANN401 - a Java object
    *,
    is_for_new: bool = False,
) -> ProcedureCall:
    """Returns the table of a parameter. LanceProcedure.java splits the name."""
    parts = arguments["names"].get(parameter)
    if not parts:
        raise OptionError(parameter, name, "the name of a table of the catalog")
    location = CatalogLocation.of({**arguments, "namespace": parts[:-1]})
    try:
        ref = location.place(parts[-1]) if is_for_new else location.existing(parts[-1])
        return ProcedureCall(location, parts[-1], ref, session)
    except OptionError as error:
        raise OptionError(parameter, name, error.accepted) from error

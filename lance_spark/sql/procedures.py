"""Procedures of a SQL catalog: `CALL <catalog>.system.<procedure>(...)`. On the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.columns.binding import binding_of, load_udf
from lance_spark.dataset import DatasetRef, parse_version
from lance_spark.errors import OptionError, RegistrationError, StoredUdfError, UnsupportedOperationError
from lance_spark.objects import objects_of_table
from lance_spark.session.catalogs import ALLOW_STORED_CODE, setting_of
from lance_spark.sql.indexes import build as build_index
from lance_spark.sql.place import Place
from lance_spark.table.connection import open_table
from lance_spark.table.table import Table
from lance_spark.upkeep.cleanup import age_of_days

_TABLE = "TABLE"

_PARAMETERS = {"columns": "column", "index_type": "type", "tag": "name", "transforms": "column"}
"""Names of parameters in SQL, by those of the table API."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure.

    Attributes:
        description: What it does.
        parameters: Name and Spark type of each after the table; those marked `*` have to be given.
            A table is given by its name.
        answer: Spark schema of its one row.
        run: What it does to a table; returns the row.
        runs_code: Whether it unpickles a UDF that is stored with a table.
    """

    description: str
    parameters: tuple[tuple[str, str], ...]
    answer: str
    run: Callable[..., Sequence[object]]
    runs_code: bool = False


def _add_column(table: Table, column: str, source: DatasetRef, source_column: str | None) -> Sequence[object]:
    named = column if source_column is None else source_column
    binding = binding_of(source.open_latest(), named)
    if binding is None:
        raise RegistrationError(
            f"column {named!r} of {source.uri} has no stored UDF - nothing was changed - give one with add_columns of "
            "the table API"
        )
    if len(binding.columns) > 1:
        raise UnsupportedOperationError(
            f"the UDF of column {named!r} of {source.uri} makes {len(binding.columns)} columns - nothing was changed - "
            "add them with add_columns of the table API"
        )
    table.add_columns({column: (load_udf(binding, objects_of_table(source), named), list(binding.inputs))})
    return [column, table.version]


def _backfill(table: Table, column: str, where: str | None) -> Sequence[object]:
    done = table.backfill(column, where=where)
    return [done.job_id, done.rows_computed, done.rows_skipped, table.version]


def _compact(table: Table, target_rows_per_fragment: int | None) -> Sequence[object]:
    if target_rows_per_fragment is None:
        done = table.compact_files()
    else:
        done = table.compact_files(target_rows_per_fragment=target_rows_per_fragment)
    return [done.fragments_removed, done.fragments_added, table.version]


def _cleanup(table: Table, older_than_days: float | None) -> Sequence[object]:
    done = table.cleanup_old_versions(None if older_than_days is None else age_of_days(older_than_days))
    return [done.old_versions, done.bytes_removed]


def _create_index(table: Table, column: str, index_type: str | None) -> Sequence[object]:
    build_index(table, [column], index_type or "")
    return [column, table.version]


def _tag(table: Table, name: str, version: int | None) -> Sequence[object]:
    at = table.version if version is None else version
    table.tags.create(name, at)
    return [name, at]


def _create_branch(table: Table, name: str, from_ref: str | None) -> Sequence[object]:
    made = table.branches.create(name, None if from_ref is None else parse_version(from_ref))
    return [name, made.version]


def _drop_branch(table: Table, name: str) -> Sequence[object]:
    table.branches.delete(name)
    return [name]


def _restore(table: Table, version: str) -> Sequence[object]:
    table.restore(parse_version(version))
    return [table.version]


PROCEDURES = {
    "add_column": Procedure(
        "adds a column that the stored UDF of a column of another table, by default of the same name, computes",
        (("*column", "STRING"), ("*source", _TABLE), ("source_column", "STRING")),
        "column STRING, version BIGINT",
        _add_column,
        runs_code=True,
    ),
    "backfill": Procedure(
        "fills a column that a UDF computes",
        (("*column", "STRING"), ("where", "STRING")),
        "job STRING, computed BIGINT, skipped BIGINT, version BIGINT",
        _backfill,
        runs_code=True,
    ),
    "cleanup": Procedure(
        "deletes versions that are older",
        (("older_than_days", "DOUBLE"),),
        "versions BIGINT, bytes BIGINT",
        _cleanup,
    ),
    "compact": Procedure(
        "makes fewer, larger fragments",
        (("target_rows_per_fragment", "BIGINT"),),
        "fragments_removed BIGINT, fragments_added BIGINT, version BIGINT",
        _compact,
    ),
    "create_branch": Procedure(
        "makes a branch of a branch, a tag or a version, by default of the latest version",
        (("*name", "STRING"), ("from_ref", "STRING")),
        "name STRING, version BIGINT",
        _create_branch,
    ),
    "create_index": Procedure(
        "builds an index: BTREE, BITMAP, FTS, IVF_PQ, ...",
        (("*column", "STRING"), ("type", "STRING")),
        "column STRING, version BIGINT",
        _create_index,
    ),
    "drop_branch": Procedure(
        "deletes a branch with its versions",
        (("*name", "STRING"),),
        "name STRING",
        _drop_branch,
    ),
    "restore": Procedure(
        "makes an older version, by its number or tag, the latest",
        (("*version", "STRING"),),
        "version BIGINT",
        _restore,
    ),
    "tag": Procedure(
        "gives a version, by default the latest, a name",
        (("*name", "STRING"), ("version", "BIGINT")),
        "name STRING, version BIGINT",
        _tag,
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
        UnsupportedOperationError: There is none of this name.
    """
    name = arguments["name"]
    if list(arguments["namespace"]) != ["system"] or name not in PROCEDURES:
        said = ".".join((*arguments["namespace"], name))
        raise UnsupportedOperationError(
            f"there is no procedure {said} - nothing was changed - in the namespace system are "
            f"{', '.join(sorted(PROCEDURES))}"
        )
    parameters = [
        {"name": parameter.lstrip("*"), "type": kind.replace(_TABLE, "STRING"), "required": parameter.startswith("*")}
        for parameter, kind in (("*table", _TABLE), *PROCEDURES[name].parameters)
    ]
    return {"name": name, "description": PROCEDURES[name].description, "parameters": parameters}


def call(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a procedure. The table is named as in SQL, without the catalog: `t`, `folder.t`.

    Raises:
        StoredUdfError: The procedure runs a stored UDF, and the catalog does not allow that, or the
            table is outside the catalog's folder.
        LanceSparkError: As of the method of :class:`lance_spark.Table` that it calls.
    """
    procedure = PROCEDURES[arguments["procedure"]]
    name, *values = arguments["values"]
    for (parameter, _), value in zip((("*table", _TABLE), *procedure.parameters), arguments["values"], strict=True):
        if parameter.startswith("*") and value is None:
            raise OptionError(parameter.lstrip("*"), None, "a value, and not NULL")
        if isinstance(value, str) and "\0" in value:
            raise OptionError(parameter.lstrip("*"), value, "text without NUL characters")
    kinds = [kind for _, kind in procedure.parameters]
    tables = [_named(arguments, "table", name)]
    tables += [
        _named(arguments, parameter.lstrip("*"), value)
        for (parameter, kind), value in zip(procedure.parameters, values, strict=True)
        if kind == _TABLE
    ]
    if procedure.runs_code:
        _refuse_untrusted(Place.of(arguments), tables, arguments["procedure"])
    others = iter(tables[1:])
    given = [next(others) if kind == _TABLE else value for kind, value in zip(kinds, values, strict=True)]
    table = open_table(tables[0].uri, storage_options=tables[0].storage)
    try:
        row = procedure.run(table, *given)
    except OptionError as error:
        # The method of the table API has names of its own for the arguments.
        own_name = _PARAMETERS.get(error.option)
        own_values = dict(zip([name.lstrip("*") for name, _ in procedure.parameters], values, strict=True))
        if own_name not in own_values:
            raise
        raise OptionError(own_name, own_values[own_name], error.accepted, problem=error.problem) from error
    return {"schema": procedure.answer, "rows": [list(row)]}


def _refuse_untrusted(place: Place, tables: Sequence[DatasetRef], procedure: str) -> None:
    """Refuses stored code that the administrator of a catalog has not allowed."""
    called = f"CALL {place.catalog}.system.{procedure}"
    if not place.allows_stored_code:
        raise StoredUdfError(
            f"the catalog {place.catalog!r} does not let SQL run stored UDFs - in {called} - nothing was changed - "
            f"set {setting_of(place.catalog, ALLOW_STORED_CODE)}=true before the application starts, or pass "
            "allow_stored_code=True to configure or catalog, if you trust all writers of the catalog's tables"
        )
    for table in tables:
        if not place.holds(table.uri):
            raise StoredUdfError(
                f"the table is outside the folder of the catalog {place.catalog!r}, so SQL cannot run UDFs that are "
                f"stored with the table - in {called}, {table.uri} - nothing was changed - name a table below "
                f"{place.root}, or backfill with the table API"
            )


def _named(arguments: Mapping[str, Any], parameter: str, name: str | None) -> DatasetRef:
    if not name:
        raise OptionError(parameter, name, "the name of a table of the catalog")
    parts = [name] if "/" in name else name.split(".")
    if len(parts) > 1 and parts[0] == arguments["catalog"]:
        parts = parts[1:]
    place = Place.of({**arguments, "namespace": parts[:-1]})
    try:
        return place.existing(parts[-1])
    except OptionError as error:
        raise OptionError(parameter, name, error.accepted) from error

"""Procedures of a SQL catalog: `CALL <catalog>.system.<procedure>(...)`. On the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.sql.place import Place
from lance_spark.table.connection import open_table
from lance_spark.table.table import Table


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure.

    Attributes:
        description: What it does.
        parameters: Name and Spark type of each after the table; those marked `*` have to be given.
        answer: Spark schema of its one row.
        run: What it does to a table; returns the row.
    """

    description: str
    parameters: tuple[tuple[str, str], ...]
    answer: str
    run: Callable[..., Sequence[object]]


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
    done = table.cleanup_old_versions(None if older_than_days is None else timedelta(days=older_than_days))
    return [done.old_versions, done.bytes_removed]


def _create_index(table: Table, column: str, index_type: str | None) -> Sequence[object]:
    table.create_scalar_index(column, index_type=(index_type or "BTREE").upper())  # type: ignore[arg-type]
    return [column, table.version]


def _tag(table: Table, name: str, version: int | None) -> Sequence[object]:
    at = table.version if version is None else version
    table.tags.create(name, at)
    return [name, at]


def _restore(table: Table, version: str) -> Sequence[object]:
    table.restore(int(version) if version.isdecimal() else version)
    return [table.version]


PROCEDURES = {
    "backfill": Procedure(
        "fills a column that a UDF computes",
        (("*column", "STRING"), ("where", "STRING")),
        "job STRING, computed BIGINT, skipped BIGINT, version BIGINT",
        _backfill,
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
    "create_index": Procedure(
        "builds a scalar index",
        (("*column", "STRING"), ("type", "STRING")),
        "column STRING, version BIGINT",
        _create_index,
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
    parameters = [{"name": "table", "type": "STRING", "required": True}] + [
        {"name": parameter.lstrip("*"), "type": kind, "required": parameter.startswith("*")}
        for parameter, kind in PROCEDURES[name].parameters
    ]
    return {"name": name, "description": PROCEDURES[name].description, "parameters": parameters}


def call(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a procedure. The table is named as in SQL, without the catalog: `t`, `folder.t`.

    Raises:
        LanceSparkError: As of the method of :class:`lance_spark.Table` that it calls.
    """
    procedure = PROCEDURES[arguments["procedure"]]
    name, *values = arguments["values"]
    if not name:
        raise OptionError("table", name, "the name of a table of the catalog")
    place = Place.of({**arguments, "namespace": []})
    parts = [name] if "/" in name else name.split(".")
    if len(parts) > 1 and parts[0] == place.catalog:
        parts = parts[1:]
    ref = Place.of({**arguments, "namespace": parts[:-1]}).existing(parts[-1])
    table = open_table(ref.uri, storage_options=ref.storage)
    return {"schema": procedure.answer, "rows": [list(procedure.run(table, *values))]}

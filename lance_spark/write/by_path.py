"""Writes by path: options select the writer.

Spark's Python data source and the gateway of the JVM both write by this function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lance_spark.dataset import DatasetRef
from lance_spark.errors import NoLocationError
from lance_spark.options.io_options import WriteOptions
from lance_spark.options.statements import check_statement_options, statement_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lance_spark.write.append_writer import LanceAppendWriter
    from lance_spark.write.column_writer import LanceBackfillWriter


def plan_writer(
    options: Mapping[str, str],
    schema: StructType,
    *,
    overwrite: bool,
    spec: Mapping[str, Any] | None = None,
) -> LanceAppendWriter | LanceBackfillWriter:
    """Returns the writer of a new job, and opens the job. Runs on the driver.

    All checks that need no rows happen here. Spark requests a writer when the job runs, after plans
    and explanations.

    Args:
        options: The options of the write, by names in lower case.
        schema: The columns of the rows.
        overwrite: Whether the rows replace all rows.
        spec: The planner rule's facts about the write (`LanceWrites.java`); None without the rule.

    Raises:
        NoLocationError: Spark passed no location.
        OptionError, SchemaMismatchError, UnsupportedTypeError, SnapshotError: The DataFrame or an
            option does not fit the table.
    """
    parsed = WriteOptions.parse(options)
    statement = (
        "BACKFILL" if parsed.mode == "backfill" else "INSERT OVERWRITE" if overwrite else "INSERT"
    )
    check_statement_options(statement, statement_options(options))
    # Never from column metadata: INSERT INTO y SELECT * FROM x passes the metadata of x.
    path = parsed.path or (spec or {}).get("path")
    if not path:
        raise NoLocationError(
            "Spark did not pass the location of the write, as for catalog tables and writeTo. Nothing was written. "
            "Call lance_spark.enable_pushdown(spark) first, or write "
            "df.write.format('lance').mode('append').save(path)."
        )
    ref = DatasetRef.find(path, parsed.storage, parsed.branch)
    writer: LanceBackfillWriter | LanceAppendWriter
    if parsed.mode == "backfill":
        from lance_spark.write.column_writer import LanceBackfillWriter

        writer = LanceBackfillWriter.plan(ref, schema, parsed, spec, overwrite=overwrite)
    else:
        from lance_spark.write.append_writer import LanceAppendWriter

        writer = LanceAppendWriter.plan(
            ref, schema, parsed, overwrite=overwrite, loaded=_loaded(ref, spec)
        )
    writer.staging.open_job()
    return writer


def _loaded(ref: DatasetRef, spec: Mapping[str, Any] | None) -> DatasetRef | None:
    """Returns the version that the catalog has just loaded for the statement, or None."""
    text = (spec or {}).get("pin")
    pinned = None if text is None else DatasetRef.of_snapshot_json(text, ref.storage_options)
    if pinned is None or (pinned.uri, pinned.branch) != (ref.uri, ref.branch):
        return None
    return pinned if pinned.is_just_opened() else None

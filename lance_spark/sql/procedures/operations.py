"""Procedures of a SQL catalog on a table, with rows as their results. On the driver."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lance_spark.columns.binding import binding_of, load_udf
from lance_spark.dataset import DatasetRef, parse_version
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    UnsupportedOperationError,
    VersionNotFoundError,
)
from lance_spark.jobs.handle import running_job
from lance_spark.sql.catalog.location import ProcedureCall, drop_nulls
from lance_spark.sql.indexes import build as build_index
from lance_spark.sql.procedures.conditions import lance_filter
from lance_spark.sql.procedures.primary_key import set_primary_key as declare_primary_key
from lance_spark.storage.objects import objects_of_table
from lance_spark.upkeep.cleanup import age_of

Row = Sequence[object]

CANCEL_WAIT_S = 30
"""Longest wait for the end of a cancelled job."""


def add_column(
    call: ProcedureCall,
    column: str,
    source: DatasetRef,
    source_column: str | None,
    auto_backfill: bool | None,
) -> Row:
    """Adds a column computed by the stored UDF of another table's column.

    An agent keeps the column up to date if `auto_backfill` is true. The default is the UDF's own
    setting.
    """
    table = call.table()
    bound = column if source_column is None else source_column
    binding = binding_of(source.open_latest(), bound)
    if binding is None:
        raise RegistrationError(
            f"Column {bound!r} of {source.uri} has no stored UDF. Nothing was changed. Give the column a UDF with "
            "add_columns of the table API."
        )
    if len(binding.columns) > 1:
        raise UnsupportedOperationError(
            f"The UDF of column {bound!r} of {source.uri} makes {len(binding.columns)} columns. Nothing was changed. "
            "Add the columns with add_columns of the table API."
        )
    udf = load_udf(binding, objects_of_table(source), bound)
    table.add_columns({column: (udf, list(binding.inputs))}, auto_backfill=auto_backfill)
    return [column, table.version]


def backfill(call: ProcedureCall, column: str, where: str | None, **options: object) -> Row:
    """Fills a computed column. The condition is Spark SQL, at the version read by the job.

    The status is DONE, or PARTIAL at the end of a budget with the number of remaining rows.
    """
    table = call.table()
    arguments = drop_nulls(**options)
    if where is not None:
        version = arguments.get("read_version")
        pinned = call.ref.pin(
            None if version is None else parse_version(str(version)), option="read_version"
        )
        arguments["read_version"] = pinned.version
        where = lance_filter(call.spark, call.quoted_name, pinned, where)
    result = table.backfill(column, where=where, **arguments)
    counts = [result.rows_computed, result.rows_skipped, table.version]
    return [result.job_id, *counts, result.status, result.rows_remaining]


def compact(call: ProcedureCall, **options: object) -> Row:
    """Rewrites small fragments as larger fragments."""
    table = call.table()
    result = table.compact_files(**drop_nulls(**options))
    return [result.fragments_removed, result.fragments_added, table.version]


def cleanup(
    call: ProcedureCall,
    older_than_days: float | None,
    retain_hours: float | None,
    error_if_tagged_old_versions: bool | None,
    keep_for_streams: bool | None,
) -> Row:
    """Removes old versions. Files of running jobs stay."""
    if older_than_days is not None and retain_hours is not None:
        raise OptionError("retain_hours", retain_hours, "nothing beside older_than_days")
    age: timedelta | None = None
    if older_than_days is not None:
        age = age_of(older_than_days, "days", option="older_than_days")
    elif retain_hours is not None:
        age = age_of(retain_hours, "hours", option="retain_hours")
    result = call.table().cleanup_old_versions(
        age,
        **drop_nulls(
            error_if_tagged_old_versions=error_if_tagged_old_versions,
            keep_for_streams=keep_for_streams,
        ),
    )
    return [result.old_versions, result.bytes_removed]


def create_index(call: ProcedureCall, column: str, type: str | None) -> Row:
    """Builds an index."""
    table = call.table()
    build_index(table, [column], type or "")
    return [column, table.version]


def optimize_indices(
    call: ProcedureCall, index: str | None, num_indices_to_merge: int | None, retrain: bool | None
) -> Row:
    """Adds new rows to an index, by default to all indexes."""
    table = call.table()
    names = [entry.name for entry in table.list_indices()] if index is None else [index]
    table.optimize_indices(
        names, num_indices_to_merge=num_indices_to_merge, **drop_nulls(retrain=retrain)
    )
    return [", ".join(names), table.version]


def tag(call: ProcedureCall, name: str, version: str | None, if_not_exists: bool | None) -> Row:
    """Gives a version a name."""
    table = call.table()
    present = table.tags.list().get(name) if if_not_exists else None
    if present is not None:
        return [name, present]
    table.tags.create(name, table.version if version is None else parse_version(version))
    table.checkout(name)
    return [name, table.version]


def drop_tag(call: ProcedureCall, name: str, if_exists: bool | None) -> Row:
    """Deletes a tag."""
    table = call.table()
    try:
        table.tags.delete(name)
    except VersionNotFoundError:
        if not if_exists:
            raise
    return [name]


def create_branch(
    call: ProcedureCall, name: str, from_ref: str | None, if_not_exists: bool | None
) -> Row:
    """Makes a branch."""
    branches = call.table().branches
    present = branches.list().get(name) if if_not_exists else None
    if present is not None:
        return [name, present.parent_version]
    branch = branches.create(name, None if from_ref is None else parse_version(from_ref))
    return [name, branch.version]


def drop_branch(call: ProcedureCall, name: str, if_exists: bool | None) -> Row:
    """Deletes a branch with its versions."""
    branches = call.table().branches
    if not if_exists or name in branches.list():
        branches.delete(name)
    return [name]


def restore(call: ProcedureCall, version: str) -> Row:
    """Makes an older version the latest."""
    table = call.table()
    table.restore(parse_version(version))
    return [table.version]


def set_primary_key(call: ProcedureCall, columns: Sequence[str]) -> Row:
    """Declares the columns that identify a row."""
    declare_primary_key(call.ref, columns)
    return [", ".join(columns), call.table().version]


def cancel_job(call: ProcedureCall, job: str) -> Row:
    """Ends a job of this process.

    Raises:
        UnsupportedOperationError: Another process runs the job.
    """
    table = call.table()
    record = table.get_job(job)
    if record.status != "RUNNING":
        return [job, record.status]
    handle = running_job(job, table.name)
    if handle is None:
        driver = record.driver
        raise UnsupportedOperationError(
            f"Another process runs the job {job!r}, and only that process can end the job. Process: {driver.pid} on "
            f"{driver.host}. Table: {table.uri}. Nothing was changed. Call job.cancel() in that process, or end the "
            "process: the next backfill continues from the checkpoints."
        )
    handle.cancel()
    handle.done(CANCEL_WAIT_S)
    return [job, handle.status]

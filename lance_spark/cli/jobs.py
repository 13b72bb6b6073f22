"""Commands for computed columns: jobs, their errors, plans, backfills."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from lance_spark.backfill.request import DEFAULT_COMMIT_GRANULARITY, DEFAULT_CONCURRENCY
from lance_spark.cli.output import (
    join_lines,
    make_console,
    print_facts,
    print_json,
    print_rows,
    show_moment,
)
from lance_spark.cli.parameters import (
    FAILED,
    AsJson,
    Checkpoints,
    Column,
    Concurrency,
    JobId,
    Limit,
    Master,
    NumFrags,
    ReadVersion,
    SkipFrags,
    Stale,
    StorageOptions,
    TaskSize,
    Uri,
    Where,
    app,
    open_on_master,
    parse_count_or_all,
    parse_latency,
    parse_storage,
)
from lance_spark.errors import BackfillIncompleteError, ColumnNotFoundError
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.table.connections.connection import open_table
from lance_spark.table.table import Table


@app.command()
def jobs(
    uri: Uri, limit: Limit = 20, storage: StorageOptions = None, as_json: AsJson = False
) -> None:
    """Lists the jobs of a table, newest first. A job without a living driver is DEAD."""
    records = open_table(uri, storage_options=parse_storage(storage)).list_jobs()[:limit]
    if as_json:
        print_json(records)
        return
    rows = [
        [
            record.job_id,
            record.status,
            ", ".join(record.columns),
            f"{_count_done(record):,} of {record.rows_selected:,}",
            f"{record.fragments_done:,} of {record.fragments_total:,}",
            show_moment(record.launched_at),
            _show_duration(record),
            record.launched_by,
        ]
        for record in records
    ]
    print_rows(
        ["job", "status", "column", "rows", "fragments", "began", "took", "by"],
        rows,
        nothing="no jobs",
    )


@app.command()
def job(uri: Uri, job_id: JobId, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Shows a job."""
    record = open_table(uri, storage_options=parse_storage(storage)).get_job(job_id)
    if as_json:
        print_json(record)
        return
    about = {
        "job": record.job_id,
        "status": record.status,
        "message": record.message,
        "column": ", ".join(record.columns),
        "UDF": f"{record.udf_name}({', '.join(record.input_columns)}), version {record.udf_version}",
        "selection": record.where or "rows without a value",
        "read version": str(record.read_version),
        "began": f"{show_moment(record.launched_at)}, by {record.launched_by}",
        "took": _show_duration(record),
    }
    print_facts(about | _summarize(record))


@app.command()
def errors(
    uri: Uri,
    job_id: Annotated[
        str | None, typer.Option("--job", metavar="JOB_ID", help="Only those of this job")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Only those of this column")
    ] = None,
    error_type: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE", help="Only those of this exception, such as ValueError"
        ),
    ] = None,
    limit: Limit = 100,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists rows and ranges of rows with an error of the UDF, newest last; traces with --json."""
    table = open_table(uri, storage_options=parse_storage(storage))
    records = table.get_errors(job_id, column, error_type)
    if not records:
        _require_names(table, job_id, column)
    latest = records[-limit:]
    if as_json:
        print_json(latest)
        return
    rows = [
        [
            show_moment(error.timestamp),
            error.job_id,
            ", ".join(error.columns),
            error.outcome,
            "" if error.row_address is None else f"{error.row_address} @{error.table_version}",
            error.error_type,
            join_lines(error.error_message),
        ]
        for error in latest
    ]
    heads = ["time", "job", "column", "outcome", "row address @version", "error", "message"]
    print_rows(heads, rows, nothing="no errors")
    if len(records) > len(latest):
        make_console().print(
            f"{len(records) - len(latest):,} older ones; --limit shows more", highlight=False
        )


@app.command()
def plan(  # noqa: PLR0913, PLR0917 - one parameter per option
    uri: Uri,
    column: Column,
    where: Where = None,
    num_frags: NumFrags = None,
    skip_frags: SkipFrags = 0,
    task_size: TaskSize = None,
    read_version: ReadVersion = None,
    stale: Stale = False,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Do not count rows: upper bounds, at once")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROWS", help="Compute so many rows, and estimate time and cost"
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Estimate the job on a cluster with so many tasks at once"
        ),
    ] = None,
    latency_s: Annotated[
        float,
        typer.Option(
            "--latency", parser=parse_latency, metavar="TIME", help="Time of a request to the store"
        ),
    ] = 0.03,
    master: Master = None,
    checkpoints: Checkpoints = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Shows the work of a backfill. Starts no Spark without --sample.

    With --slots also shows time, requests and price on a cluster, by earlier jobs of the table. A
    smaller --concurrency limits the slots; the default, 8, does not.
    """
    table = open_on_master(uri, master, parse_storage(storage), checkpoint=checkpoints)
    if slots is not None and concurrency == DEFAULT_CONCURRENCY:
        concurrency = slots
    backfill_plan = table.plan_backfill(
        column,
        where=where,
        read_version=read_version,
        num_frags=num_frags,
        skip_frags=skip_frags,
        task_size=task_size,
        concurrency=concurrency,
        exact=not bounds,
        stale=stale,
        sample=sample,
    )
    estimate = None
    if slots is not None:
        tasks_at_once = min(slots, concurrency or slots)
        estimate = backfill_plan.estimate(
            slots=tasks_at_once, latency_s=latency_s, jobs=table.list_jobs()
        )
    if as_json:
        computed = {
            "has_work": backfill_plan.has_work,
            "rows_to_compute": backfill_plan.rows_to_compute,
        }
        scaled = {} if estimate is None else {"estimate": dataclasses.asdict(estimate)}
        print_json({**dataclasses.asdict(backfill_plan), **computed, **scaled})
        return
    typer.echo(backfill_plan.explain())
    if estimate is not None:
        typer.echo(estimate.explain())


@app.command()
def backfill(  # noqa: PLR0913, PLR0917 - one parameter per option
    uri: Uri,
    column: Column,
    where: Where = None,
    num_frags: NumFrags = None,
    skip_frags: SkipFrags = 0,
    task_size: TaskSize = None,
    read_version: ReadVersion = None,
    stale: Stale = False,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads per task that call the UDF")
    ] = 1,
    checkpoint_size: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Most rows of a checkpoint")
    ] = None,
    flush_interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Persist results after so long (by default 10)"),
    ] = None,
    commit_granularity: Annotated[
        int | None,
        typer.Option(
            parser=parse_count_or_all, metavar="N|all", help="Finished fragments per commit"
        ),
    ] = DEFAULT_COMMIT_GRANULARITY,
    max_calls: Annotated[
        int | None, typer.Option(metavar="ROWS", help="End early after calls for so many rows")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End early after so long")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="COST", help="End early at this cost, by the UDF")
    ] = None,
    job_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the job (by default a new one)")
    ] = None,
    txn_app_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Application that runs each of its transactions once"),
    ] = None,
    txn_version: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the transaction of --txn-app-id")
    ] = None,
    master: Master = None,
    checkpoints: Checkpoints = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Fills a computed column with the UDF stored with the column.

    Resumes an interrupted run. Unpickling the UDF runs code of any user with write access to the
    table.
    """
    table = open_on_master(uri, master, parse_storage(storage), checkpoint=checkpoints)
    try:
        result = table.backfill(
            column,
            where=where,
            stale=stale,
            num_frags=num_frags,
            skip_frags=skip_frags,
            task_size=task_size,
            read_version=read_version,
            concurrency=concurrency,
            intra_applier_concurrency=threads,
            checkpoint_size=checkpoint_size,
            batch_checkpoint_flush_interval_seconds=flush_interval,
            commit_granularity=commit_granularity,
            max_calls=max_calls,
            max_seconds=max_seconds,
            max_cost=max_cost,
            job_id=job_id,
            txn_app_id=txn_app_id,
            txn_version=txn_version,
        )
    except BackfillIncompleteError as error:
        if isinstance(error.result, BackfillJobResult):
            _print_result(error.result, as_json=as_json)
        raise
    _print_result(result, as_json=as_json)
    # A job without an error ends as PARTIAL at its budget.
    if result.status not in ("DONE", "PARTIAL"):
        raise typer.Exit(FAILED)


def _print_result(result: BackfillJobResult, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    print_facts(
        {"job": result.job_id, "status": result.status, "message": result.message}
        | _summarize(result)
    )


def _summarize(job: JobRecord | BackfillJobResult) -> dict[str, str | None]:
    stages = ", ".join(f"{stage} {seconds:,.1f}" for stage, seconds in job.seconds.items())
    return {
        "rows": (
            f"{job.rows_selected:,} selected: {job.rows_computed:,} computed, "
            f"{job.rows_from_checkpoint:,} from checkpoints, {job.rows_skipped:,} skipped, {job.rows_failed:,} failed"
        ),
        "fragments": f"{job.fragments_done:,} of {job.fragments_total:,}",
        "versions": ", ".join(map(str, job.versions)) or "none",
        "retries": f"{job.retries:,}" if job.retries else None,
        "saved calls": f"{job.rows_deduplicated:,}" if job.rows_deduplicated else None,
        "rows per call": None
        if job.batch_rows is None
        else f"at most {job.batch_rows:,}, as more ran out of memory",
        "seconds": stages or None,
    }


def _require_names(table: Table, job_id: str | None, column: str | None) -> None:
    """Raises an error if a job or a column does not exist."""
    if job_id is not None:
        table.get_job(job_id)
    if column is not None and column not in table.schema.names:
        hint = f"The columns of the table are {', '.join(table.schema.names)}."
        raise ColumnNotFoundError(column, table.uri, hint=hint)


def _count_done(record: JobRecord) -> int:
    return record.rows_computed + record.rows_from_checkpoint


def _show_duration(record: JobRecord) -> str:
    if record.completed_at is None:
        return ""
    return f"{(record.completed_at - record.launched_at).total_seconds():,.1f} s"

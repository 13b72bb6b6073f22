"""The command `lance-spark agent`: keeps columns and views up to date."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from lance_spark.agent.agent import Agent
from lance_spark.agent.plan import AgentPlan
from lance_spark.cli.output import print_json, print_rows, show_number
from lance_spark.cli.parameters import (
    AsJson,
    Checkpoints,
    StorageOptions,
    app,
    parse_pairs,
    parse_storage,
)
from lance_spark.session.sessions import make_session
from lance_spark.table.connections.connection import Connection, connect

_Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="PATTERN",
        help="Run stored code of these tables, such as 'docs*'; may be repeated",
    ),
]
_Claims = Annotated[
    list[str] | None,
    typer.Option(
        "--claim",
        metavar="TABLE.COLUMN",
        help="Fill columns that another product has, too; may be repeated",
    ),
]


def _parse_seconds(text: str | timedelta) -> timedelta:
    if isinstance(text, timedelta):
        return text  # the default
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text} is no number of seconds") from None


@app.command()
def agent(  # noqa: PLR0913, PLR0917 - one parameter per option
    root: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of tables, such as s3://bucket/db")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="IMPL", help="Lance namespace instead of a folder: rest, dir, glue, ..."
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="KEY=VALUE", help="Property of the namespace; may be repeated"
        ),
    ] = None,
    allow: _Patterns = None,
    claim: _Claims = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is out of date, and run nothing")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Compute so many rows for estimates in --dry-run"),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Bring everything up to date once, and exit")
    ] = False,
    max_jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Most jobs at once")] = 1,
    max_calls: Annotated[
        int | None, typer.Option(min=1, metavar="ROWS", help="Most rows for UDFs per hour")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Most seconds of jobs per hour")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="COST", help="Most cost of rows per hour")
    ] = None,
    trigger: Annotated[
        timedelta,
        typer.Option(
            parser=_parse_seconds, metavar="SECONDS", help="Time between looks at the tables"
        ),
    ] = timedelta(minutes=1),
    debounce: Annotated[
        timedelta,
        typer.Option(
            parser=_parse_seconds, metavar="SECONDS", help="Wait so long after small commits"
        ),
    ] = timedelta(seconds=10),
    checkpoints: Checkpoints = None,
    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Spark master that runs the tasks")
    ] = "local[*,4]",
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Keeps columns with auto_backfill and views with auto_refresh up to date until SIGTERM."""
    if sample is not None and not dry_run:
        raise typer.BadParameter("give --sample together with --dry-run")
    db = _connect(root, namespace, properties, storage, partial(make_session, master), checkpoints)
    agent = db.agent(
        allow=allow or (),
        claim=claim or (),
        max_jobs=max_jobs,
        max_calls=max_calls,
        max_seconds=max_seconds,
        max_cost=max_cost,
        trigger=trigger,
        debounce=debounce,
    )
    if dry_run:
        _print_plan(agent.plan(sample=sample), as_json=as_json)
        return
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("lance_spark.agent").setLevel(logging.INFO)
    _stop_at_signals(db, agent)
    if not once:
        agent.run()
        return
    plan = agent.run_once()
    _print_plan(plan, as_json=as_json)
    if any(step.status == "failed" for step in plan.steps):
        raise typer.Exit(1)


def _connect(
    root: str | None,
    namespace: str | None,
    properties: Sequence[str] | None,
    storage: Sequence[str] | None,
    spark: Callable[[], SparkSession],
    checkpoints: str | None,
) -> Connection:
    if (root is None) == (namespace is None):
        raise typer.BadParameter("give one of --root and --namespace")
    if namespace is None:
        return connect(root, spark, parse_storage(storage), checkpoint=checkpoints, progress=False)
    return connect(
        spark=spark,
        checkpoint=checkpoints,
        progress=False,
        namespace_client_impl=namespace,
        namespace_client_properties=parse_pairs(
            properties, "--property", "KEY=VALUE, as in uri=https://catalog"
        ),
    )


def _stop_at_signals(db: Connection, agent: Agent) -> None:
    """Stops the agent at SIGTERM and SIGINT."""
    _ = db.spark  # PySpark sets a handler of its own at the start of a session
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())


def _print_plan(plan: AgentPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    rows = [
        [
            step.action,
            step.name,
            step.status,
            show_number(step.rows),
            "" if step.estimated_seconds is None else f"{step.estimated_seconds:,.1f}",
            "" if not step.estimated_cost else f"{step.estimated_cost:,.4g}",
            step.reason or (step.result.text if step.result is not None else ", ".join(step.after)),
        ]
        for step in plan.steps
    ]
    heads = ["job", "column or view", "status", "rows", "seconds", "cost", "after, or reason"]
    print_rows(heads, rows, nothing="everything is up to date")

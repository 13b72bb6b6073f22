"""Statements that change rows without Spark: their tasks run in turn in this process, with the code of executors."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.commit.changes import CommitNote, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.dataset import DatasetRef
from lance_spark.dml import statement, strategy
from lance_spark.dml.assignments import Assignments
from lance_spark.dml.clauses import MergeClauses
from lance_spark.dml.merge import Merge
from lance_spark.dml.merge_tasks import INSERT, UPDATE, Apply
from lance_spark.dml.results import ChangeResult, RowEditResult, edits_of
from lance_spark.dml.rounds import retry_statement
from lance_spark.dml.statement import Statement
from lance_spark.dml.strategy import UpdateStrategy
from lance_spark.spark_jobs.run import SparkJobs
from lance_spark.spark_jobs.tasks import RunTasks, SparkTask, read_answer
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types import to_spark_schema

TASKS = contextvars.ContextVar("tasks", default=2)
"""Tasks of a job, at most about so many."""


def run(_: SparkJobs, tasks: Sequence[SparkTask[Any]], kind: type[Any]) -> list[Any]:
    """Takes the place of Spark jobs: runs tasks in this process."""
    runner = RunTasks(tasks=tuple(tasks), answers_errors=True)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(tasks)), pa.int64())], names=["id"])
    return results_of(runner(iter([numbers])), kind)


def results_of(answers: Iterable[pa.RecordBatch], kind: type[Any] = RowEditResult) -> list[Any]:
    """Reads answers of tasks."""
    return [read_answer(kind, batch.column(0)[0].as_py()) for batch in answers]


def task_bytes(_: SparkSession, work: Sequence[tuple[int, int]]) -> int:
    """Cuts a statement into tasks."""
    return -(-sum(size for _, size in work) // TASKS.get())


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Runs updates and deletions of this process without Spark."""
    with patch.object(SparkJobs, "run", run), patch.object(statement, "task_bytes", task_bytes):
        yield


def update(
    uri: str, where: str | None, values: dict[str, object] | None = None, **expressions: str
) -> ChangeResult:
    """Sets columns of rows."""
    sets = Assignments(where=where, values=values or {}, expressions=expressions)
    return _run(uri, where, sets)


@contextlib.contextmanager
def only(way: UpdateStrategy) -> Iterator[None]:
    """Forces updates to write column files, or to move rows, regardless of the cost."""
    with (
        patch.object(statement, "choose_strategy", lambda *_: way),
        patch.object(strategy, "choose_strategy", lambda *_: way),
    ):
        yield


def merge(uri: str, key: str, data: pa.Table) -> ChangeResult:
    """Updates rows by their key, and inserts rows with new keys."""
    ref = DatasetRef.at(uri, {}).pin(None)
    staging = Staging(uri=ref.uri, storage_options=(), job_id=new_id())

    def evaluate(version: DatasetRef) -> RowEdits | None:
        dataset = version.open()
        present_rows = dataset.scanner(columns=[key], with_row_address=True).to_table()
        places = dict(
            zip(present_rows[key].to_pylist(), present_rows["_rowaddr"].to_pylist(), strict=True)
        )
        addresses = [places.get(value) for value in data[key].to_pylist()]
        order = sorted(
            range(len(addresses)), key=lambda at: -1 if addresses[at] is None else addresses[at]
        )
        actions = [INSERT if addresses[at] is None else UPDATE for at in order]
        rows = data.take(order).combine_chunks()
        columns = [
            pa.array([addresses[at] for at in order], pa.int64()),
            pa.array(actions, pa.int32()),
        ]
        columns += [column.combine_chunks() for column in rows.columns]
        batch = pa.RecordBatch.from_arrays(
            columns, names=["_rowaddr", "__action", *rows.schema.names]
        )
        apply = Apply(
            table=version,
            staging=staging,
            values=to_spark_schema(data.schema),
            layout=FileLayout.of_table(dataset, dataset.schema.names),
            stable=dataset.has_stable_row_ids,
        )
        return edits_of(version, dataset, results_of(apply(iter([batch]))))

    return retry_statement(ref, staging, CommitPolicy.of(None), evaluate)


def merge_small(
    uri: str, key: str, data: pa.Table, *, updates: bool, inserts: bool
) -> ChangeResult:
    """Merges rows of this process by a key, like :class:`lance_spark.Table` for a merge with a single task."""
    clauses = MergeClauses(on=(key,), updates=updates, inserts=inserts)
    spark = cast("SparkSession", None)
    with inline():
        return Merge(spark, DatasetRef.at(uri, {}).pin(None), clauses, data, table_name="t").run(
            CommitNote()
        )


def delete(uri: str, where: str) -> ChangeResult:
    """Deletes rows."""
    return _run(uri, where, None)


def _run(uri: str, where: str | None, sets: Assignments | None) -> ChangeResult:
    spark = cast("SparkSession", None)
    with inline():
        return Statement(
            spark, DatasetRef.at(uri, {}).pin(None), where=where, sets=sets, table_name="t"
        ).run()

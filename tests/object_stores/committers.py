"""Concurrent commits: functions for a pool of processes, each of which runs one function at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema
from pyspark.sql.types import LongType

from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.rows.append_commit import commit_rows
from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows
from tests.object_stores.stores import StorePlace

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64())])
WAIT_S = 60

_start: list[Barrier] = []


def take_barrier(barrier: Barrier) -> None:
    """Gives a process the barrier for the common start."""
    _start.append(barrier)


def rows_to_commit(place: StorePlace, values: Sequence[int], job_id: str) -> RowsToCommit:
    """Writes rows (v, -v) as an unreferenced file."""
    name = f"{job_id}-{uuid.uuid4().hex}.lance"
    writer = LanceFileSession(place.uri, storage_options=place.storage).open_writer(
        f"data/{name}", schema=SCHEMA, version="2.1"
    )
    writer.write_batch(
        pa.record_batch([pa.array(values), pa.array([-v for v in values])], schema=SCHEMA)
    )
    writer.close()
    fragment = FragmentMetadata(
        0, [DataFile(name, [0, 1], [0, 1], 2, 1, writer.size_bytes)], len(values)
    )
    return RowsToCommit(
        mode="append",
        schema=SCHEMA,
        fields=field_identities(LanceSchema.from_pyarrow(SCHEMA)),
        fragments=(fragment,),
        rows=len(values),
        read_version=None,
    )


def commit_some_rows(place: StorePlace, job: int, commits: int) -> list[int]:
    """Appends rows, or creates the table with rows, `commits` times, and returns the versions."""
    changes = [rows_to_commit(place, [job * 100 + n], f"{job}-{n}") for n in range(commits)]
    _start[0].wait(WAIT_S)
    return [
        commit_rows(place.ref, change, job_id=f"{job}-{n}").version
        for n, change in enumerate(changes)
    ]


def commit_a_column(place: StorePlace, job: int) -> CommitResult:
    """Fills a column of its own in all rows."""
    backfill = Backfill(place.uri, f"c{job}", LongType(), storage=place.storage)
    return _commit(
        backfill, computed(snapshot_rows(place.uri, storage=place.storage), lambda k: k * 10 + job)
    )


def commit_a_fragment(place: StorePlace, job: int) -> CommitResult:
    """Fills its own fragment of a column shared by all processes."""
    backfill = Backfill(place.uri, "c", LongType(), storage=place.storage)
    rows = [(a, k) for a, k in snapshot_rows(place.uri, storage=place.storage) if a >> 32 == job]
    return _commit(backfill, computed(rows, lambda k: k * 10 + job))


def _commit(backfill: Backfill, rows: list[tuple[int, Any]]) -> CommitResult:
    message = backfill.task([backfill.batch(*zip(*rows, strict=True))])
    _start[0].wait(WAIT_S)
    return backfill.commit(message)

"""Stops a backfill at points beyond the reach of a UDF, in its tasks and in its driver, until the file `go` exists or a
test kills the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from lance_spark.backfill.driver import scheduler
from lance_spark.backfill.driver.checkpoint_upkeep import CheckpointUpkeep
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.backfill.driver.job import BackfillJob
from lance_spark.backfill.driver.scheduler import TaskRunner
from lance_spark.backfill.task import range_task
from lance_spark.backfill.task.messages import BackfillSpec, Task
from lance_spark.rows.input_reader import InputReader
from lance_spark.staging.column_file import ColumnFile
from udf_runtime.checkpoint import local


def hold(folder: str) -> None:
    """Waits for the file `go`. Only the first process that arrives waits."""
    try:
        with open(f"{folder}/held", "x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)


def _before(owner: type, name: str, act: Callable[[], None]) -> Any:
    """Patches a method so that `act` runs before it."""
    real = getattr(owner, name)

    def acting(*arguments: Any, **more: Any) -> Any:
        act()
        return real(*arguments, **more)

    return patch.object(owner, name, acting)


@contextlib.contextmanager
def in_read(folder: str) -> Iterator[None]:
    """In a task, between two reads of inputs of ten rows each."""
    real = InputReader.batches

    def batches(self: InputReader, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(real(self, *arguments, **more)):
            if number == 2:
                hold(folder)
            yield batch

    with (
        patch.object(InputReader, "batches", batches),
        patch.object(InputReader, "_batch_rows", return_value=10),
    ):
        yield


def in_checkpoint(folder: str) -> Any:
    """In a task, after the write of a checkpoint and before its rename."""
    real, replacements = os.replace, []

    def replace(source: str, target: str, **folders: int) -> None:
        if target.endswith(".rows"):
            replacements.append(target)
            if len(replacements) == 3:
                hold(folder)
        real(source, target, **folders)

    return patch.object(local.os, "replace", replace)


def in_column_file(folder: str) -> Any:
    """In a task, when a fragment's file has all rows but no footer. A fragment with several ranges reaches the point
    after its last range.
    """
    return _before(ColumnFile, "close", lambda: hold(folder))


def after_column_file(folder: str) -> Any:
    """In a task, after the write of the file and before any record of the file."""
    return _before(range_task.RangeRun, "_finish", lambda: hold(folder))


IN_DRIVER: dict[str, tuple[type, str]] = {
    "before_commit": (GroupCommits, "_commit"),
    "before_record": (GroupCommits, "_record"),
    "before_checkpoints_go": (CheckpointUpkeep, "_drop_covered"),
    "after_commit": (BackfillJob, "_close"),
}


def in_driver(point: str, folders: dict[str, str]) -> Any:
    """In the driver's thread of the job named like the point, before a method."""
    owner, name = IN_DRIVER[point]
    return _before(owner, name, lambda: hold(folders[point]) if _is_thread_of(point) else None)


def _is_thread_of(job_id: str) -> bool:
    return threading.current_thread().name == f"lance-spark-{job_id}"


IN_TASKS = {
    hook.__name__: hook for hook in (in_read, in_checkpoint, in_column_file, after_column_file)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedWork:
    """Work that Spark runs in place of the product's own, with a hook. Worker processes are reused, so the hook travels
    with the task.
    """

    spec: BackfillSpec
    tasks: tuple[Task, ...]
    point: str
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with IN_TASKS[self.point](self.folder):
            yield from TaskRunner(spec=self.spec, tasks=self.tasks)(batches)


@contextlib.contextmanager
def hooked(folders: dict[str, str]) -> Iterator[None]:
    """Stops backfills at points in any process: a job named like a point stops at that point, in its folder."""

    def work(*, spec: BackfillSpec, tasks: tuple[Task, ...]) -> TaskRunner | HookedWork:
        if spec.job_id not in IN_TASKS:
            return TaskRunner(spec=spec, tasks=tasks)
        return HookedWork(spec=spec, tasks=tasks, point=spec.job_id, folder=folders[spec.job_id])

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(scheduler, "TaskRunner", work))
        for point in IN_DRIVER.keys() & folders.keys():
            stack.enter_context(in_driver(point, folders))
        yield

"""Finishing a write whose commit had too much to carry over: what it keeps after a failure, and how it fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

import lance_spark
from lance_spark.backfill import finishing
from lance_spark.errors import (
    CarryOverTooLargeError,
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    JobNotFoundError,
)
from tests.lance_spark.write.backfills import (
    Backfill,
    between_look_and_commit,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


@dataclass
class Executors:
    """As much of a Spark session as is needed, with all tasks in this process.

    Attributes:
        fail: Is called before the first task.
        tasks: The tasks that were run: how many rows each got.
        work: What they ran.
    """

    fail: Callable[[], object] = lambda: None
    tasks: list[int] = field(default_factory=list)
    work: Any = None

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.master": "local[2]"}

    def range(self, _first: int, last: int, _step: int, tasks: int) -> Executors:
        self.tasks = [last * (task + 1) // tasks - last * task // tasks for task in range(tasks)]
        return self

    def mapInArrow(self, work: Any, _schema: str) -> Executors:  # noqa: N802
        self.work = work
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        self.fail()
        return list(self._rows())

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        first = 0
        for rows in self.tasks:
            batch = pa.record_batch([pa.array(range(first, first + rows), pa.int64())], names=["id"])
            first += rows
            try:
                for answer in self.work(iter([batch])):
                    yield from zip(*(values.to_pylist() for values in answer.columns), strict=True)
            except Exception as error:  # noqa: BLE001 - as Spark says it
                raise RuntimeError(f"An exception was thrown from the Python worker: {error!r}") from None


def too_large(path: str, *, fragments: int = 3, **options: str) -> str:
    """Writes to a table that is compacted meanwhile; returns the id of the job, which is not committed."""
    make_table(path, fragments=fragments, c=pa.int64())
    told = {"input_columns": "text", "carry_over_max_bytes": "16", **options}
    job = Backfill(path, "c", LongType(), options=told)
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    lance.dataset(path).optimize.compact_files()
    with pytest.raises(CarryOverTooLargeError) as caught:
        job.commit(message)
    job.writer.abort([message])
    return caught.value.job_id


def lost() -> None:
    raise RuntimeError("Job aborted due to stage failure: executor lost")


def interrupted() -> None:
    raise KeyboardInterrupt


def others_first() -> None:
    raise CommitConflictError("other writers kept coming first", uri="here")


@pytest.mark.parametrize("fail", [lost, interrupted, others_first])
def test_whatever_fails_finishing_can_be_tried_again(fail: Callable[[], object], path: str) -> None:
    job_id = too_large(path)
    kept = orphans(path)
    with pytest.raises(KeyboardInterrupt if fail is interrupted else CommitError):
        lance_spark.finish_backfill(path, job_id, spark=Executors(fail))  # type: ignore[arg-type]
    assert orphans(path) == kept
    result = lance_spark.finish_backfill(path, job_id, spark=Executors())  # type: ignore[arg-type]
    assert (result.rows, result.rows_carried) == (30, 30)
    assert column(path, "c") == {k: k * 10 for k in range(30)}
    assert orphans(path) == set()


def test_what_can_never_be_finished_is_deleted(path: str) -> None:
    job_id = too_large(path)
    lance.dataset(path).drop_columns(["c"])
    with pytest.raises(CommitImpossibleError):
        lance_spark.finish_backfill(path, job_id, spark=Executors())  # type: ignore[arg-type]
    assert orphans(path) == set()
    with pytest.raises(JobNotFoundError):
        lance_spark.finish_backfill(path, job_id, spark=Executors())  # type: ignore[arg-type]


def test_the_bounds_of_the_write_are_those_of_its_finishing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = too_large(path, commit_max_retries="3", commit_timeout="77", allow_unsafe_commits="true")
    seen: list[Any] = []
    real = finishing.commit_columns

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["policy"])
        return real(*args, **kwargs)

    monkeypatch.setattr(finishing, "commit_columns", noted)
    lance_spark.finish_backfill(path, job_id, spark=Executors())  # type: ignore[arg-type]
    assert [(one.max_retries, one.timeout_s, one.allow_unsafe) for one in seen] == [(3, 77.0, True)]


def test_an_error_of_a_task_is_raised_as_what_it_is(path: str) -> None:
    job_id = too_large(path, on_stale="error")
    lance.dataset(path).update({"text": "'changed'"}, where="id = 3")
    with pytest.raises(CommitConflictError, match="input columns of 1 rows changed") as caught:
        lance_spark.finish_backfill(path, job_id, spark=Executors())  # type: ignore[arg-type]
    assert caught.value.fragments
    assert set(column(path, "c").values()) == {None}


@pytest.mark.parametrize("fault", ["stale", "lost"])
def test_what_cannot_be_mended_after_the_commit_is_taken_back(
    fault: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are rewritten in the moment of the commit, and the tasks that are to look after it end with an error, or die."""
    job_id = too_large(path, on_stale="error" if fault == "stale" else "null")
    source = pa.table({"id": pa.array([5, 6], pa.int64()), "text": ["u", "u"]})
    jobs: list[int] = []

    def second_dies() -> None:
        jobs.append(1)
        if fault == "lost" and len(jobs) > 1:
            lost()

    between_look_and_commit(
        monkeypatch,
        lambda: (
            lance.dataset(path)
            .merge_insert("id")
            .when_matched_update_all()
            .write_mode("rewrite_columns")
            .execute(source)
        ),
    )
    with pytest.raises(CommitConflictError, match="taken back"):
        lance_spark.finish_backfill(path, job_id, spark=Executors(second_dies))  # type: ignore[arg-type]
    assert len(jobs) == 2
    assert set(column(path, "c").values()) == {None}
    if fault == "lost":
        assert lance_spark.finish_backfill(path, job_id, spark=Executors()).rows_nulled == 2  # type: ignore[arg-type]
        assert column(path, "c") == {k: None if k in {5, 6} else k * 10 for k in range(30)}
        assert orphans(path) == set()


def test_what_executors_need_is_read_once_per_process_and_sent_to_no_task(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = too_large(path, fragments=60)
    lance.dataset(path).update({"other": "1"}, where="id % 20 = 0")
    for first in range(0, 600, 20):  # one fragment each: nothing is compacted any more
        lance.dataset(path).update({"other": "2"}, where=f"id = {first}")
    read: list[str] = []
    for module, name in ((finishing, "find_pending"), (finishing.Lineage, "between")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, name=name: read.append(name) or real(*args))
    executors = Executors()
    result = lance_spark.finish_backfill(path, job_id, spark=executors)  # type: ignore[arg-type]
    assert column(path, "c") == {k: k * 10 for k in range(600)} and result.rows_carried == 600
    assert len(executors.work.fragments) > 8 == len(executors.tasks), "a task has several fragments"
    assert sorted(read) == ["between"] * 2 + ["find_pending"] * 2, "once for the commit, and once for all tasks"
    assert len(pickle.dumps(executors.work)) < 2000, "column files are sent with the work"

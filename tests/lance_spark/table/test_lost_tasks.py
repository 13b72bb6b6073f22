"""Tasks that end by an exception outside the UDF, or by a signal: what users are told of the cause, and what is tried again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors.exceptions.connect import PythonException as ConnectPythonException
from pyspark.errors.exceptions.connect import SparkException as ConnectSparkException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from lance_spark.backfill.driver import scheduler
from lance_spark.backfill.driver.scheduler import Scheduler
from lance_spark.backfill.driver.spark_failure import failure_of
from lance_spark.backfill.planning.fragment_plan import plan_tasks
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from tests.lance_spark.table.conftest import make_table
from udf_runtime import UDF, udf

pytestmark = pytest.mark.spark


@udf
def length(text: str) -> int:
    """Returns the length of a text."""
    return len(text)


class OnlyHere:
    """Can be unpickled in the process that made it, and nowhere else."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("this works only here")
        self._pid = pid

    def __reduce__(self) -> tuple[object, ...]:
        return OnlyHere, (self._pid,)


def bound_to_this_process() -> UDF:
    here = OnlyHere(os.getpid())

    @udf(version="1")
    def bound(text: str) -> int:
        return len(text) + bool(here)

    return bound


@pytest.mark.classic
def test_executors_that_lack_a_package_fail_the_job_at_once_with_the_cause_and_a_record_per_fragment(
    db: Connection,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    table = make_table(db)
    table.add_columns({"n": length})
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="ascii")  # no site-packages
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(
        lance_spark.BackfillIncompleteError, match="executors cannot run its task: ModuleNotFoundError: No module"
    ) as caught:
        table.backfill("n", task_size=10)
    assert "PYSPARK_PYTHON" in str(caught.value)
    assert sum(record.name == scheduler.__name__ for record in caplog.records) == 1, "one Spark job, not four"
    (job,) = table.list_jobs()
    assert job.status == "FAILED"
    assert "ModuleNotFoundError: No module" in (job.message or "")
    errors = table.get_errors(job.job_id, "n", "ModuleNotFoundError")
    assert sorted((error.fragment_id, error.row_address) for error in errors) == [(0, None), (1, None), (2, None)]
    assert all(
        "No module named" in error.error_message and "Traceback" in (error.error_trace or "") for error in errors
    )


def test_a_udf_that_executors_cannot_load_leaves_an_error_record(db: Connection):
    table = make_table(db)
    table.add_columns({"n": bound_to_this_process()})
    with pytest.raises(lance_spark.BackfillIncompleteError, match=r"cannot be loaded on an executor.*only here"):
        table.backfill("n")
    recorded = {error.fragment_id: error.error_message for error in table.get_errors()}
    assert sorted(recorded) == [0, 1, 2]
    assert all("only here" in message for message in recorded.values())


FRAMES = (
    "Traceback (most recent call last):\n"
    '  File "/x/worker.py", line 75, in read_command\n'
    "    command = serializer.loads(file)\n"
    "              ^^^^^^^^^^^^^^^^^^^^^^\n"
)


@pytest.mark.parametrize(
    ("last", "error_type", "message", "retryable"),
    [
        ("ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError", "No module named 'x'", False),
        ("RuntimeError: first line\nsecond: the cause", "RuntimeError", "first line second: the cause", False),
        ("pickle.UnpicklingError: bad", "pickle.UnpicklingError", "bad", False),
        ("MemoryError", "MemoryError", "", True),
        ("BlockingIOError: [Errno 11] no process", "BlockingIOError", "[Errno 11] no process", True),
        ("SystemExit: 3", "SystemExit", "3", True),
    ],
)
def test_the_cause_of_a_python_exception_is_its_last_lines_also_over_connect(
    last: str, error_type: str, message: str, retryable: bool
):
    text = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {FRAMES}{last}\n SQLSTATE: 38000"
    )
    failure = failure_of(ConnectPythonException(message=text))
    assert (failure.error_type, failure.message, failure.retryable) == (error_type, message, retryable)


def test_a_killed_worker_is_tried_again_and_named_without_frames_of_the_jvm():
    text = "Job aborted due to stage failure: Python worker exited unexpectedly (crashed).\n\tat org.apache.spark.X\n\tat y"
    failure = failure_of(ConnectSparkException(message=text))
    assert failure.retryable
    assert failure.message == "Job aborted due to stage failure: Python worker exited unexpectedly (crashed)."


def test_an_exception_around_the_ranges_of_a_task_is_its_answer_and_no_reason_to_run_it_again(
    db: Connection, spark: SparkSession, caplog: pytest.LogCaptureFixture
):
    table = make_table(db)
    table.add_columns({"n": length})
    prepared = prepare(table._ref, BackfillRequest(columns=("n",)), checkpoints=None)
    spec = replace(prepared.spec, threads=0)  # a runner refuses that before the first range
    cluster = Scheduler(spark, spec, limit=None, description="")
    answers = [answer for some in cluster.run(plan_tasks(prepared.work(), 10), 1.0) for answer in some]
    assert sorted((answer.fragment_id, "threads=0" in answer.error) for answer in answers) == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert {error.fragment_id for error in table.get_errors(spec.job_id)} == {0, 1, 2}
    assert not caplog.records, "no Spark job failed"

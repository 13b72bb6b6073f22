"""Tasks that end by an exception outside the UDF, or by a signal: the reported cause, and the retries."""

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
from lance_spark.backfill.planning.fragment_plan import plan_tasks
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.spark_jobs.failures import SparkFailure
from tests.lance_spark.table.conftest import make_table
from udf_runtime import UDF, udf

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=2)]


@udf
def length(text: str) -> int:
    """Returns the length of a text."""
    return len(text)


class OnlyHere:
    """An object that can be unpickled only in the process of its creation."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("this works only here")
        self._pid = pid

    def __reduce__(self) -> tuple[object, ...]:
        return OnlyHere, (self._pid,)


def bound_to_this_process() -> UDF:
    bound_object = OnlyHere(os.getpid())

    @udf(version="1")
    def bound(text: str) -> int:
        return len(text) + bool(bound_object)

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
    bare.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="ascii"
    )  # no site-packages
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(
        lance_spark.BackfillIncompleteError,
        match="executors cannot run its task: ModuleNotFoundError: No module",
    ) as caught:
        table.backfill("n", task_size=10)
    assert "PYSPARK_PYTHON" in str(caught.value)
    assert sum(record.name == scheduler.__name__ for record in caplog.records) == 1, (
        "one Spark job, not four"
    )
    (job,) = table.list_jobs()
    assert job.status == "FAILED"
    assert "ModuleNotFoundError: No module" in (job.message or "")
    errors = table.get_errors(job.job_id, "n", "ModuleNotFoundError")
    assert sorted((error.fragment_id, error.row_address) for error in errors) == [
        (0, None),
        (1, None),
        (2, None),
    ]
    assert all(
        "No module named" in error.error_message and "Traceback" in (error.error_trace or "")
        for error in errors
    )


def test_a_udf_that_executors_cannot_load_leaves_an_error_record(db: Connection):
    table = make_table(db)
    table.add_columns({"n": bound_to_this_process()})
    with pytest.raises(
        lance_spark.BackfillIncompleteError, match=r"cannot be loaded on an executor.*only here"
    ):
        table.backfill("n")
    recorded = {error.fragment_id: error.error_message for error in table.get_errors()}
    assert sorted(recorded) == [0, 1, 2]
    assert all("only here" in message for message in recorded.values())


FRAMES = (
    "Traceback (most recent call last):\n"
    '  File "/x/pyspark/worker.py", line 75, in read_command\n'
    "    command = serializer.loads(file)\n"
    "              ^^^^^^^^^^^^^^^^^^^^^^\n"
)
OF_USER = FRAMES + '  File "/home/me/lance_spark/udfs.py", line 3, in embed\n    open(name)\n'
OF_TASK = FRAMES + '  File "/x/lance_spark/dml/edits.py", line 3, in write\n    open(name)\n'


@pytest.mark.parametrize(
    ("frames", "last", "error_type", "message", "retryable"),
    [
        (
            FRAMES,
            "ModuleNotFoundError: No module named 'x'",
            "ModuleNotFoundError",
            "No module named 'x'",
            False,
        ),
        (
            FRAMES,
            "RuntimeError: first line\nsecond: the cause",
            "RuntimeError",
            "first line second: the cause",
            False,
        ),
        (FRAMES, "pickle.UnpicklingError: bad", "pickle.UnpicklingError", "bad", False),
        (FRAMES, "MemoryError", "MemoryError", "", True),
        (
            FRAMES,
            "BlockingIOError: [Errno 11] no process",
            "BlockingIOError",
            "[Errno 11] no process",
            True,
        ),
        (FRAMES, "SystemExit: 3", "SystemExit", "3", True),
        (OF_USER, "FileNotFoundError: [Errno 2] x", "FileNotFoundError", "[Errno 2] x", False),
        (OF_TASK, "OSError: the store is away", "OSError", "the store is away", True),
    ],
)
def test_the_cause_of_a_python_exception_is_its_last_lines_also_over_connect(
    frames: str, last: str, error_type: str, message: str, retryable: bool
):
    text = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {frames}{last}\n SQLSTATE: 38000"
    )
    failure = SparkFailure.of(ConnectPythonException(message=text))
    assert (failure.error_type, failure.message, failure.retryable) == (
        error_type,
        message,
        retryable,
    )


def test_a_killed_worker_is_tried_again_and_named_without_frames_of_the_jvm():
    text = "Job aborted due to stage failure: Python worker exited unexpectedly (crashed).\n\tat org.apache.spark.X\n\tat y"
    failure = SparkFailure.of(ConnectSparkException(message=text))
    assert failure.retryable
    assert (
        failure.message
        == "Job aborted due to stage failure: Python worker exited unexpectedly (crashed)."
    )


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", False),
        ("[USER_RAISED_EXCEPTION] boo SQLSTATE: P0001", False),
        (
            "[FAILED_EXECUTE_UDF] User defined function (`f`) failed. SQLSTATE: 39000\n\tat org.apache.spark.X",
            False,
        ),
        ("[FAILED_READ_FILE.NO_HINT] Error while reading file x. SQLSTATE: KD001", True),
        (
            "[INTERNAL_ERROR_NETWORK] x SQLSTATE: XX000\nCaused by: [DIVIDE_BY_ZERO] SQLSTATE: 22012",
            True,
        ),
        ("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)", True),
    ],
)
def test_an_error_of_the_statement_is_no_reason_to_run_it_again(text: str, retryable: bool):
    assert SparkFailure.of(ConnectSparkException(message=text)).retryable == retryable


@pytest.mark.long
def test_an_exception_around_the_ranges_of_a_task_is_its_answer_and_no_reason_to_run_it_again(
    db: Connection, spark: SparkSession, caplog: pytest.LogCaptureFixture
):
    table = make_table(db)
    table.add_columns({"n": length})
    prepared = prepare(table._ref, BackfillRequest(columns=("n",)), checkpoints=None)
    spec = replace(prepared.spec, threads=0)  # a runner refuses zero threads before the first range
    cluster = Scheduler(spark, spec, limit=None, description="")
    answers = [
        answer for some in cluster.run(plan_tasks(prepared.work(), 10), 1.0) for answer in some
    ]
    assert sorted((answer.fragment_id, "threads=0" in answer.error) for answer in answers) == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert {error.fragment_id for error in table.get_errors(spec.job_id)} == {0, 1, 2}
    assert not caplog.records, "no Spark job failed"

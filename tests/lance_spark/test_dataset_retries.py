"""Stores without an answer, and the locks of processes that access the stores."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import dataset_retries
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError

DEAD_STORE = {
    "aws_endpoint": "http://127.0.0.1:1",
    "allow_http": "true",
    "aws_region": "x",
    "aws_access_key_id": "x",
    "aws_secret_access_key": "x",
    "client_max_retries": "0",
}

LOCKS_AFTER_A_FORK = """
import importlib, os, pkgutil, sys, threading, types
import lance_spark, udf_runtime

def locks():
    for name, module in list(sys.modules.items()):
        if name.startswith(("lance_spark", "udf_runtime")):
            for key, value in vars(module).items():
                of_object = getattr(value, "__dict__", {}).get("_lock")
                for lock in (value, None if isinstance(value, types.ModuleType) else of_object):
                    if isinstance(lock, type(threading.Lock())):
                        yield f"{name}.{key}", lock

for package in (lance_spark, udf_runtime):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
held = dict(locks())
for lock in held.values():
    lock.acquire()
child = os.fork()
if child == 0:
    print(len(held), *(name for name, lock in locks() if lock.locked()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)  # the locks are held still
"""


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    dataset_retries._silent.clear()
    yield
    dataset_retries._silent.clear()
    dataset_retries._answered.clear()


def test_each_caller_of_a_store_without_an_answer_gets_an_error_of_its_own() -> None:
    errors = []
    for _ in range(3):
        with pytest.raises(TableUnreadableError, match="does not answer") as caught:
            dataset_retries.retry_options("s3://no-bucket/t.lance", DEAD_STORE)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3 and len({str(error) for error in errors}) == 1


def test_no_lock_of_a_module_is_held_after_a_fork() -> None:
    process = subprocess.run(
        [sys.executable, "-c", LOCKS_AFTER_A_FORK],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    number, *locked = process.stdout.split()
    assert int(number) >= 6 and locked == []


def test_an_answer_counts_for_all_processes_of_a_spark_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans, commits and runs tasks in separate processes, and each would meet an outage without a known
    answer.
    """
    uri, other_uri = "s3://bucket/t.lance", "s3://another/t.lance"
    dataset_retries.note_answer(uri, DEAD_STORE)
    assert dataset_retries.has_answered(uri, DEAD_STORE) and not list(tmp_path.iterdir()), (
        "this is no process of Spark"
    )
    dataset_retries._answered.clear()
    folder = tmp_path / "blockmgr-0"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},/another/disk")
    dataset_retries.note_answer(uri, DEAD_STORE)
    dataset_retries._answered.clear()  # the next process
    assert not dataset_retries.has_answered(other_uri, DEAD_STORE)
    options = dataset_retries.retry_options(
        uri, {**DEAD_STORE, "aws_secret_access_key": "of a table"}
    )
    assert (
        options is not None
        and options["client_retry_timeout"] == dataset_retries.RETRIES["client_retry_timeout"]
    )
    dataset_retries.note_failure(
        uri, DEAD_STORE, OSError("Generic S3 error, after 9 retries, max_retries: 9, ")
    )
    dataset_retries._answered.clear()
    assert not list(folder.iterdir()), "the store has to answer a first request again"
    with pytest.raises(TableUnreadableError, match="does not answer"):
        dataset_retries.retry_options(uri, DEAD_STORE)


def test_a_folder_of_many_applications_and_users_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver inherits the setting of the machine; tasks get the folder of their application."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/another/disk")
    dataset_retries.note_answer("s3://bucket/t.lance", DEAD_STORE)
    assert dataset_retries.application_file("safe", ["s3"]) is None and not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_task_has_the_folder_of_its_application(spark: SparkSession) -> None:
    def application_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from lance_spark.dataset_retries import application_file

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [application_file("safe", ["s3"])]})

    rows = spark.range(1).mapInArrow(application_files, "path string").collect()
    assert [os.path.basename(row.path) for row in rows] == [
        "lance-spark-safe-" + hashlib.sha256(b"s3").hexdigest()
    ]


def test_a_reference_tells_the_process_that_gets_it_of_an_answer() -> None:
    ref, local = DatasetRef.at("s3://bucket/t.lance", DEAD_STORE), DatasetRef.at("/t.lance")
    for answers in (False, True):
        if answers:
            dataset_retries.note_answer(ref.uri, ref.storage)
        sent = pickle.dumps([ref, local])
        dataset_retries._answered.clear()
        assert pickle.loads(sent) == [ref, local]
        assert dataset_retries.has_answered(ref.uri, ref.storage) == answers
    assert not dataset_retries.has_answered(local.uri, {})
    assert os.environ.get("SPARK_LOCAL_DIRS") is None

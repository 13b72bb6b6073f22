"""Threads: the session of a DataFrame serves all of them, including threads without an active session in Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from tests.support.java_classes import JVM_OPTIONS

ROOT = Path(__file__).parents[2]
Act = Callable[[], Any]


def in_a_thread(act: Act, kind: type[threading.Thread] = threading.Thread) -> Any:
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(act())
        except Exception as error:  # noqa: BLE001 - raised again where it is asked for
            outcome.set_exception(error)

    thread = kind(target=run)
    thread.start()
    thread.join()
    return outcome.result()


def in_a_thread_of_pyspark(act: Act) -> Any:
    return in_a_thread(act, InheritableThread)


def in_a_pool(act: Act) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


KINDS = [in_a_thread, in_a_thread_of_pyspark, in_a_pool]


def write(df: DataFrame, path: str) -> None:
    df.write.format("lance").mode("append").save(path)


@pytest.mark.parametrize("elsewhere", KINDS)
def test_a_dataframe_is_written_and_read_in_any_thread(
    spark: SparkSession, table_path: str, elsewhere: Callable[[Act], Any]
) -> None:
    df = spark.range(10)
    elsewhere(lambda: write(df, table_path))
    assert (
        elsewhere(lambda: spark.read.format("lance").load(table_path).filter("id < 3").count()) == 3
    )
    elsewhere(lambda: df.write.format("lance").mode("overwrite").save(table_path))
    assert lance.dataset(table_path).version == 2


def test_a_session_is_made_and_used_in_a_thread(spark: SparkSession, table_path: str) -> None:
    other_session = in_a_pool(spark.newSession)
    in_a_thread(lambda: write(other_session.range(3), table_path))
    assert in_a_pool(lambda: other_session.read.format("lance").load(table_path).count()) == 3


def test_sql_creates_and_fills_a_table_in_a_thread(spark: SparkSession, table_path: str) -> None:
    write(spark.range(2), table_path)

    def statements() -> int:
        spark.sql(f"CREATE TABLE of_a_thread USING lance OPTIONS (path '{table_path}')")
        spark.sql("INSERT INTO of_a_thread VALUES (7)")
        return spark.table("of_a_thread").count()

    try:
        assert in_a_pool(statements) == 3
    finally:
        spark.sql("DROP TABLE IF EXISTS of_a_thread")


def test_threads_at_once_write_with_their_own_sessions(spark: SparkSession, tmp_path: Path) -> None:
    sessions = [spark.newSession() for _ in range(4)]
    db = lance_spark.connect(str(tmp_path), spark)

    def work(k: int) -> int:
        table = db.create_table(f"t{k}", sessions[k].range(k + 1))
        table.add(sessions[k].range(10))
        active = SparkSession.getActiveSession()
        assert active is None, "the thread's active session is what it was"
        return table.count_rows()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [11, 12, 13, 14]


def without_the_rule(folder: str) -> None:
    """Runs in another process, in a JVM without the rule: prints one line of JSON."""
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    other_session = spark.newSession()
    db = lance_spark.connect(folder, spark)

    def work() -> list[object]:
        table = db.create_table("t", spark.range(5))
        table.add(other_session.range(3))
        facts = [table.count_rows(), SparkSession.getActiveSession() is None]
        spark.createDataFrame([(1,)], "id long").collect()  # activates the session in this thread
        table.add(other_session.range(2))
        active = SparkSession.getActiveSession()
        return [
            *facts,
            table.to_spark().count(),
            active is not None and active._jsparkSession.equals(spark._jsparkSession),
        ]

    print(
        json.dumps(
            [
                in_a_pool(work),
                in_a_pool(lambda: lance_spark.connect(folder).spark.version == spark.version),
            ]
        )
    )
    spark.stop()


@pytest.mark.long
@pytest.mark.classic
def test_the_table_api_needs_no_rule_in_a_thread(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": JVM_OPTIONS,
    }
    command = [
        sys.executable,
        "-c",
        f"from {__name__} import *; without_the_rule({str(tmp_path)!r})",
    ]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert json.loads(process.stdout.splitlines()[-1]) == [[8, True, 10, True], True]

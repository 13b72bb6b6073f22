"""JVMs without a Python program have the catalog, all statements and pushdown by settings alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import lance
import psutil
import pytest

import lance_spark
from tests.connect.jvm_settings import settings
from tests.connect.sql_client import REPORT, seen_by_client
from tests.lance_spark.write.appends import unused_files
from tests.support.processes import READY_S, SPARK_HOME, daemons, environment, free_port
from tests.support.web_ui import fetch

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow]

STATEMENTS = """
CREATE TABLE lance.t AS SELECT id, 'a' AS s FROM range(10);
UPDATE lance.t SET s = 'z' WHERE id = 2;
EXPLAIN SELECT id FROM lance.t WHERE s = 'z';
SELECT concat('row ', id, s) FROM lance.t WHERE s = 'z';
CREATE TABLE lance.v TBLPROPERTIES ('e.arrow.fixed-size-list.size' = '2') AS
    SELECT id, array(CAST(id AS FLOAT), CAST(0 AS FLOAT)) AS e FROM range(10);
SELECT concat('near ', id) FROM lance_vector_search('tables/v.lance', array(4.0, 0.0), k => 1);
ALTER TABLE lance.t CREATE TAG first;
OPTIMIZE lance.t WITH (target_rows_per_fragment = 100);
SHOW TAGS IN lance.t;
CREATE MATERIALIZED VIEW lance.late AS SELECT id, s FROM lance.t WHERE id > 5 WITH DATA;
SELECT concat('late ', count(*)) FROM lance.late;
"""


INTERRUPTED = """
import os, sys, time
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import lance_spark

@lance_spark.udf(data_type=pa.int64())
def slow(id: int) -> int:
    time.sleep(600)
    return id

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
lance_spark.connect(sys.argv[2], spark).open_table("t").add_columns({"slow": slow})
try:
    spark.sql("CALL trusted.system.backfill('t', 'slow')").collect()
except PySparkException as error:
    print(error)
print(spark.sql("UPDATE lance.t SET n = 1 WHERE id < 3").collect())

def held(batches, folder=sys.argv[2]):
    open(f"{folder}/held", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)
    yield from batches

write = lambda rows: rows.write.format("lance").mode("append").save(f"{sys.argv[2]}/by_path.lance")
try:
    write(spark.range(0, 3, 1, 1).mapInArrow(held, "id long"))
except PySparkException as error:
    print(error)
write(spark.range(4))
"""
"""A client whose first statement never ends by itself, and whose first write by path waits in its task."""


def spark_sql(folder: Path, statements: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(SPARK_HOME / "bin" / "spark-sql"),
        *settings(folder / "tables", **more),
        "-e",
        statements,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=environment(),
        check=False,
    )


def gateways(server: int) -> list[psutil.Process]:
    """Returns the Python processes for catalogs started by a JVM."""
    below = psutil.Process(server).children(recursive=True)
    live = [process for process in below if process.status() != psutil.STATUS_ZOMBIE]
    return [process for process in live if "lance_spark.sql.gateway_process" in process.cmdline()]


def eventually(holds: Callable[[], bool], client: subprocess.Popen[str]) -> None:
    """Waits until a condition holds, while a client runs."""
    deadline = time.monotonic() + READY_S
    while not holds():
        assert client.poll() is None, client.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_spark_sql_runs_statements_with_pushdown(tmp_path: Path) -> None:
    process = spark_sql(tmp_path, STATEMENTS)
    assert process.returncode == 0, process.stderr[-4000:]
    assert {"row 2z", "near 4", "late 4"} <= set(
        process.stdout.splitlines()
    ) and "pushed: `s` = 'z'" in process.stdout
    assert lance.dataset(str(tmp_path / "tables" / "t.lance")).count_rows("s = 'z'") == 1


def test_clients_of_a_stock_server_have_the_catalog_also_after_its_python_process_was_killed(
    tmp_path: Path,
) -> None:
    trusted = {
        "spark.sql.catalog.trusted": "lancespark.LanceCatalog",
        "spark.sql.catalog.trusted.root": str(tmp_path / "tables"),
        "spark.sql.catalog.trusted.allow_stored_code": "true",
    }
    with daemons(tmp_path) as started:
        port, web_port = free_port(), free_port()
        trusted |= {"spark.ui.enabled": "true", "spark.ui.port": str(web_port)}
        server = started.start(
            "connect",
            "org.apache.spark.deploy.SparkSubmit",
            *settings(tmp_path / "tables", **trusted),
            *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
            *("--conf", f"spark.connect.grpc.binding.port={port}"),
            *(
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                "spark-internal",
            ),
            ready="Spark Connect server started at",
        )
        url = f"sc://127.0.0.1:{port}"
        assert seen_by_client(url, f"{tmp_path}/by_path.lance") == REPORT
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, url, str(tmp_path / "tables")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as client:
            table = lance_spark.connect(str(tmp_path / "tables")).open_table("t")
            eventually(lambda: "RUNNING" in [job.status for job in table.list_jobs()], client)
            (gateway,) = gateways(server.pid)
            gateway.send_signal(signal.SIGKILL)
            gateway.wait(60)
            eventually((tmp_path / "tables" / "held").exists, client)
            (gateway,) = gateways(server.pid)
            gateway.send_signal(signal.SIGSTOP)
            (tmp_path / "tables" / "go").touch()
            # The commit waits for the process.
            eventually(
                lambda: not any((tmp_path / "tables").glob("by_path.lance/**/.tmp*")), client
            )
            time.sleep(1)
            gateway.send_signal(signal.SIGKILL)
            gateway.wait(60)
            output, errors = client.communicate(timeout=120)
        assert "GatewayError" in output and "ended during the command call" in output, errors[
            -4000:
        ]
        assert "num_affected_rows=3" in output, errors[-4000:]
        assert "ended during the command commit_write" in output, errors[-4000:]
        assert [job.status for job in table.list_jobs()] == ["DEAD"]
        # The web UI of the server has the job of the client. The killed process could send no end.
        assert table.list_jobs()[0].job_id in fetch(f"http://127.0.0.1:{web_port}/lance/")
        table_path = str(tmp_path / "tables" / "by_path.lance")
        assert (lance.dataset(table_path).version, lance.dataset(table_path).count_rows()) == (1, 4)
        assert unused_files(table_path) == set()
        (new_gateway,) = gateways(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        new_gateway.wait(60)


def test_an_interpreter_without_the_package_and_a_jar_of_another_release_are_errors_that_name_both(
    tmp_path: Path,
) -> None:
    starts, python = tmp_path / "starts", str(tmp_path / "python")
    Path(python).write_text(
        f'#!/bin/sh\necho start >> {starts}\nexec {sys.base_prefix}/bin/python3 "$@"\n'
    )
    Path(python).chmod(0o755)
    goes_on = {"spark.pyspark.driver.python": python, "spark.hive.cli.errors.ignore": "true"}
    process = spark_sql(
        tmp_path, "SELECT * FROM lance.t; SELECT * FROM lance.u; SHOW TABLES IN lance;", **goes_on
    )
    assert process.returncode != 0
    assert (
        "GatewayError" in process.stderr
        and python in process.stderr
        and "lance_spark" in process.stderr
    )
    assert (process.stderr.count("GatewayError"), starts.read_text()) == (3, "start\n")

    other_jar = tmp_path / "other.jar"
    with zipfile.ZipFile(lance_spark.jar()) as source, zipfile.ZipFile(other_jar, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename == "lancespark/release.properties":
                content = b"version=0.0.1\nsources=other\n"
            target.writestr(entry, content)
    process = spark_sql(tmp_path, "SHOW TABLES IN lance", jar=str(other_jar))
    assert process.returncode != 0
    assert (
        "GatewayError" in process.stderr
        and "0.0.1" in process.stderr
        and lance_spark.__version__ in process.stderr
    )


def test_spark_shell_has_the_catalog_and_ends(tmp_path: Path) -> None:
    command = [str(SPARK_HOME / "bin" / "spark-shell"), *settings(tmp_path / "tables")]
    statements = [text for text in STATEMENTS.replace("\n", "").split(";") if text]
    program = "\n".join(f'spark.sql("{text}").show(false)' for text in statements) + "\n:quit\n"
    process = subprocess.run(
        command,
        input=program,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env=environment() | {"TERM": "dumb"},
        check=False,
    )
    assert (
        "|row 2z" in process.stdout
        and "|near 4" in process.stdout
        and "|late 4" in process.stdout
        and process.returncode == 0
    ), process.stderr[-4000:]


def test_a_client_of_the_thrift_server_has_the_catalog(tmp_path: Path) -> None:
    with daemons(tmp_path) as started:
        port = free_port()
        started.start(
            "thrift",
            "org.apache.spark.deploy.SparkSubmit",
            *settings(tmp_path / "tables"),
            *(
                "--class",
                "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2",
                "spark-internal",
            ),
            *(
                "--hiveconf",
                f"hive.server2.thrift.port={port}",
                "--hiveconf",
                "hive.server2.thrift.bind.host=127.0.0.1",
            ),
            ready="ThriftBinaryCLIService on port",
        )
        beeline = [
            str(SPARK_HOME / "bin" / "beeline"),
            "-u",
            f"jdbc:hive2://127.0.0.1:{port}",
            "-e",
            STATEMENTS,
        ]
        process = subprocess.run(
            beeline,
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )
        assert (
            "| row 2z" in process.stdout
            and "| near 4" in process.stdout
            and "| late 4" in process.stdout
        ), process.stderr[-4000:]

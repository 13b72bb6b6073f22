"""A Spark Connect server, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import daemons, free_port


@pytest.fixture(scope="session")
def connect_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the server of `connect_url`."""
    return tmp_path_factory.mktemp("connect") / "connect.log"


@pytest.fixture(scope="session")
def connect_url(connect_log: Path) -> Iterator[str]:
    """A server without the jar."""
    with daemons(connect_log.parent) as started:
        port = free_port()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            # Workers forked with loaded modules start in half the time. The server of test_stock_jvms.py has Spark's
            # own daemon.
            "spark.python.daemon.module": "tests.support.daemon",
        }
        started.start(
            "connect",
            *(
                "org.apache.spark.deploy.SparkSubmit",
                "--master",
                "local[2]",
                "--driver-memory",
                "1g",
            ),
            *(text for key, value in settings.items() for text in ("--conf", f"{key}={value}")),
            *(
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                "spark-internal",
            ),
            ready="Spark Connect server started at",
        )
        yield f"sc://127.0.0.1:{port}"

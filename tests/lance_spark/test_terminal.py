"""The terminal of a script: its own lines, without lines of Lance or of Spark's start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.terminal import OF_SPARK

SCRIPT = """
import sys
import pyarrow as pa
import lance_spark

@lance_spark.udf(data_type=pa.int64())
def double(id: int) -> int:
    return 2 * id

@lance_spark.udf(data_type=pa.int64())
def wrong(id: int) -> int:
    raise ValueError("wrong")

table = lance_spark.connect(sys.argv[1]).create_table("t", pa.table({"id": [1, 2, 3]}))
table.add_columns({"twice": double, "nothing": wrong})
table.backfill("twice")
try:
    table.backfill("nothing")
except lance_spark.BackfillIncompleteError:
    pass
print(table.to_arrow(["twice"])["twice"].to_pylist())
"""

PASSES = """
import lance_spark
lance_spark.connect(".").create_table("t", [{"id": 1}])
import logging, lance, os
assert "LANCE_LOG" not in os.environ
print(logging.getLogger("pylance").level, lance.log.get_log_level())
"""


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "LANCE_"))
    }
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**variables, **environment},
    )


@pytest.mark.long
def test_a_job_in_a_session_of_ours_leaves_the_terminal_clean(tmp_path: Path):
    process = run(SCRIPT, tmp_path)
    assert process.stdout == "[2, 4, 6]\n"
    assert OF_SPARK.sub("", process.stderr) == ""


@pytest.mark.long
def test_who_has_configured_logging_sees_all_of_it(tmp_path: Path):
    (tmp_path / "log4j2.properties").write_text("rootLogger.level = warn\n")
    process = run(SCRIPT, tmp_path, SPARK_CONF_DIR=str(tmp_path), LANCE_LOG="warn")
    assert "DataReplacement" in process.stderr
    assert "Setting default log level" in process.stderr


def test_the_other_messages_of_lance_stay_as_they_are(tmp_path: Path):
    assert run(PASSES, tmp_path).stdout == "20 INFO\n"

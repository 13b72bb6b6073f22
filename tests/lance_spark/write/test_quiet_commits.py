"""Commits write no warning of Lance's to the user's terminal, in whichever process they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cloudpickle
import lance
import pyarrow as pa
from pyspark.sql.types import LongType

from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows

COMMIT_PROCESS = """
import importlib.machinery, pickle, sys
worker = print  # what Spark's daemon runs
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
writer, messages = pickle.load(open(sys.argv[1], "rb"))
assert "lance" in sys.modules, "unpickling imports Lance"
writer.commit(messages)
"""
"""The work of Spark's commit process for a DataFrame backfill."""

DRIVER = """
import sys
import lance_spark
assert "lance" not in sys.modules
lance_spark.open_table(sys.argv[1]).add([{"id": 100}])
import lance, pyarrow as pa
from lance.file import LanceFileWriter
schema = pa.schema([("m", pa.int64())])
dataset = lance.dataset(sys.argv[1])
dataset.add_columns(schema)
with LanceFileWriter(sys.argv[1] + "/data/mine.lance", schema) as writer:
    writer.write_batch(pa.record_batch([pa.array(range(10))], schema=schema))
replaced = lance.LanceOperation.DataReplacementGroup(0, lance.fragment.DataFile.create(dataset, "mine.lance"))
operation = lance.LanceOperation.DataReplacement([replaced])
lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
"""
"""A program that uses Lance after lance-spark, and replaces the values of a column."""


def errors_of(code: str, argument: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, argument], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_a_commit_of_a_dataframe_backfill_writes_no_warning(tmp_path: Path) -> None:
    path = str(tmp_path / "table.lance")
    lance.write_dataset(pa.table({"id": range(10)}), path)
    job = Backfill(path, "n", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    (tmp_path / "job").write_bytes(cloudpickle.dumps((job.writer, [message])))
    assert errors_of(COMMIT_PROCESS, str(tmp_path / "job")) == ""
    assert lance.dataset(path).schema.names == ["id", "n"]


def test_a_program_that_uses_lance_spark_first_sees_no_warning(tmp_path: Path) -> None:
    path = str(tmp_path / "table.lance")
    lance.write_dataset(pa.table({"id": range(10)}), path, enable_stable_row_ids=True)
    assert "not stable yet" not in errors_of(DRIVER, path)

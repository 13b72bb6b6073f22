"""Imports of a Python worker before its first batch, because a query with a new worker waits for them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.sql.reads import plan_scan

OURS = {
    "dataset",
    "dataset_retries",
    "errors",
    "lance_compat",
    "lance_sessions",
    "locations",
    "metrics",
    "namespaces",
    "options",
    "read",
    "types",
    "version_times",
}
"""Parts of this package that a scan needs."""

THIRD_PARTY = {
    "cloudpickle",
    "dateutil",
    "lance",
    "numpy",
    "pandas",
    "pyarrow",
    "pyroaring",
    "pyspark",
    "pytz",
    "six",
}

WORKER = """
import json, struct, sys, time
import pyspark.worker
from pyspark.worker_util import pickleSer
if sys.argv[2] == "daemon":
    from lance_spark.session.daemon import preload
    preload()
before, start = set(sys.modules), time.process_time()
answer = open(sys.argv[1], "rb").read()
pieces = []
while answer:
    (size,) = struct.unpack(">i", answer[:4])
    pieces.append(answer[4 : 4 + size])
    answer = answer[4 + size :] if len(pieces) > 1 else answer[4 + size + 4 :]
read, _ = pickleSer.loads(pieces[0])
import pyarrow as pa
batch = next(iter(read(iter([pa.RecordBatch.from_pydict({"partition": [pieces[1]]})]))))
spent = time.process_time() - start
start = time.process_time()
print(json.dumps([batch.num_rows, sorted(set(sys.modules) - before), spent]))
"""
"""A worker up to its first batch, with the input that Spark's own worker would receive."""

IMPORTS = "import pyspark.worker, time; s = time.process_time(); import pandas, pyarrow.dataset, lance; print(time.process_time() - s)"


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The file of a planned read, as the planner rule passes it to Spark."""
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), tmp_path / "t.lance")
    empty = {
        "columns": None,
        "predicate": None,
        "limit": None,
        "aggregate": None,
        "whole_fragments": False,
    }
    answer = plan_scan({"options": {"path": str(tmp_path / "t.lance")}, "pin": None, "spec": empty})
    (tmp_path / "read").write_bytes(zlib.decompress(base64.b64decode(answer["read"])))
    return tmp_path / "read"


def first_batch(planned: Path, how: str) -> tuple[set[str], float]:
    run = subprocess.run(
        [sys.executable, "-c", WORKER, planned, how], capture_output=True, check=True
    )
    rows, modules, seconds = json.loads(run.stdout.splitlines()[-1])
    assert rows == 3
    return set(modules), seconds


def packages(modules: set[str]) -> set[str]:
    """Returns the packages of modules, without Python's own packages and packages of compilers."""
    roots = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    return {root for root in roots if not root.startswith(("_", "cython"))}


def test_a_worker_imports_only_modules_needed_for_reads(planned: Path):
    modules, seconds = first_batch(planned, "alone")
    ours = {name.split(".")[1] for name in modules if name.startswith("lance_spark.")}
    assert ours == OURS
    assert packages(modules) <= {*THIRD_PARTY, "lance_spark"}
    assert len([name for name in modules if name.startswith("lance_spark")]) <= 42
    least = float(
        subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True).stdout
    )
    assert seconds < 1.6 * least + 0.1


def test_a_worker_of_our_daemon_imports_nothing_but_lance(planned: Path):
    modules, _ = first_batch(planned, "daemon")
    assert "lance" in packages(modules)
    assert not {"pandas", "lance_spark"} & packages(modules)

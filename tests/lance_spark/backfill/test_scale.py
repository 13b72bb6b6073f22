"""A backfill of 100,000 fragments is planned in seconds and within a gigabyte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata

FRAGMENTS = 100_000

PLAN = """
import sys, time
from lance_spark.backfill.planning.fragment_plan import plan_tasks
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.dataset import DatasetRef
ref = DatasetRef.at(sys.argv[1])
began = time.process_time()
prepared = prepare(ref, BackfillRequest(columns=("v",)), checkpoints=None)
tasks = plan_tasks(prepared.work(), prepared.task_rows(None))
# Not ru_maxrss, which a process inherits from the one that started it.
peak_mib = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')) >> 10
print(time.process_time() - began, peak_mib, len(tasks), sum(len(t.work) for t in tasks))
"""


@pytest.fixture(scope="module")
def huge_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Many fragments with the same small data file: the manifest of a huge table without its data."""
    import lance_spark
    from udf_runtime import udf

    home = tmp_path_factory.mktemp("huge")
    path = str(home / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": pa.array(range(10), pa.int64())}), path)
    file = dataset.get_fragments()[0].metadata.files
    template = FragmentMetadata(
        id=0, files=file, physical_rows=10, deletion_file=None, row_id_meta=None
    )
    append = lance.LanceOperation.Append([template] * (FRAGMENTS - 1))
    lance.LanceDataset.commit(path, append, read_version=dataset.version)

    def f(id: int) -> int:
        return id

    lance_spark.connect(str(home)).open_table("t").add_columns({"v": udf(f)})
    return path


@pytest.mark.long
def test_planning_is_quick_and_small(huge_table: str):
    # In another process, to measure only the memory of planning; in processor time, to exclude other load.
    process = subprocess.run(
        [sys.executable, "-c", PLAN, huge_table],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    seconds, mib, tasks, fragments = map(float, process.stdout.split())
    assert seconds < 30
    assert mib < 1024
    assert fragments == FRAGMENTS
    assert tasks <= 200, "small fragments share tasks"

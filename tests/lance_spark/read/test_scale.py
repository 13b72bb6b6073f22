"""A table of 100,000 fragments is planned in seconds and within a gigabyte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata

from tests.lance_spark.read.scans import make_reader

FRAGMENTS = 100_000

PLAN = """
import pickle, sys, time
from lance_spark.read.planning.partitioning import ScanTask
from tests.lance_spark.read.scans import make_reader
import lance
options = dict(pair.split("=", 1) for pair in sys.argv[2:])
began = time.process_time()
reader = make_reader(sys.argv[1], **options)
sent = [pickle.dumps(task) for task in reader.partitions()]
seconds = time.process_time() - began
numbers = [number for text in sent for number in pickle.loads(text).fragments]
assert numbers == sorted(set(numbers))
# Not ru_maxrss, which a process inherits from the one that started it.
peak_mib = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')) >> 10
print(seconds, peak_mib, len(sent), len(numbers), sum(map(len, sent)))
"""


@pytest.fixture(scope="module")
def huge_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Many fragments with the same small data file: the manifest of a huge table without its data."""
    path = str(tmp_path_factory.mktemp("huge") / "table.lance")
    table = pa.table({"id": pa.array(range(10), pa.int64()), "text": ["x"] * 10})
    dataset = lance.write_dataset(table, path)
    file = dataset.get_fragments()[0].metadata.files
    template = FragmentMetadata(
        id=0, files=file, physical_rows=10, deletion_file=None, row_id_meta=None
    )
    append = lance.LanceOperation.Append([template] * (FRAGMENTS - 1))
    lance.LanceDataset.commit(path, append, read_version=dataset.version)
    return path


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.long),
        pytest.param(["filter=id = 3"], marks=pytest.mark.long),
        pytest.param(["limit=500000"], marks=pytest.mark.long),
        ["columns=id", "target_partition_bytes=64k"],
    ],
)
def test_planning_is_quick_and_small(huge_table: str, options: list[str]):
    # In another process, to measure only the memory of planning; in processor time, to exclude other load.
    process = subprocess.run(
        [sys.executable, "-c", PLAN, huge_table, *options],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    seconds, mib, tasks, fragments, sent = map(float, process.stdout.split())
    assert seconds < 10
    assert mib < 1024
    assert sent < 16 << 20
    if options == ["limit=500000"]:
        assert fragments == 50_000
    else:
        assert fragments == FRAGMENTS
    if not options:
        assert 50 < tasks < 200


@pytest.mark.long
def test_a_partition_of_many_small_fragments_is_read(
    huge_table: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.read.scan.MERGE_S", 600)
    reader = make_reader(huge_table, columns="id")
    task = reader.partitions()[0]
    batches = list(reader.read(task))
    assert sum(b.num_rows for b in batches) == 10 * len(task.fragments) > 5000
    assert len(batches) <= 2

"""Parts of the commit benchmark in separate processes: `python -m benchmarks.commits_child KIND
JSON`.

Each process prints a line of JSON with its results and ends, so its peak memory belongs to a single
part. Writers first report
readiness, and start after a line of input.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata

WIDTH = 768
FRAGMENTS = 8
TYPES: dict[str, pa.DataType] = {"int64": pa.int64(), "vectors": pa.list_(pa.float32(), WIDTH)}
_BATCH_ROWS = 8192


def main() -> None:
    """Runs one part."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, text = sys.argv[1:]
    parts: dict[str, Callable[..., Any]] = {
        "stage": stage,
        "carry": carry,
        "copy": copy,
        "writer": writer,
    }
    question = json.loads(text)
    if kind == "writer":
        question["ready"] = lambda: print(json.dumps("ready"), file=answers, flush=True)
    print(json.dumps(parts[kind](**question)), file=answers, flush=True)


def peak_mib() -> int:
    """Returns the peak memory of this process. ru_maxrss is no option, because a child inherits its
    parent's value."""
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(
        int(line.split()[1]) >> 10 for line in text.splitlines() if line.startswith("VmHWM:")
    )


def values(kind: str, start: int, rows: int) -> pa.Array:
    """Returns random values, which do not compress."""
    rng = np.random.default_rng(start)
    if kind == "int64":
        return pa.array(rng.integers(0, 1 << 62, rows, dtype=np.int64))
    return pa.FixedSizeListArray.from_arrays(
        pa.array(rng.random(rows * WIDTH, dtype=np.float32)), WIDTH
    )


def make_table(path: str, kind: str, rows: int) -> None:
    """Writes a table of ids with an empty column `v`."""
    for number in range(FRAGMENTS):
        ids = np.arange(
            rows * number // FRAGMENTS, rows * (number + 1) // FRAGMENTS, dtype=np.int64
        )
        lance.write_dataset(
            pa.table({"id": ids}),
            path,
            mode="append" if number else "create",
            enable_stable_row_ids=True,
        )
    lance.dataset(path).add_columns(pa.schema([("v", TYPES[kind])]))


def stage(path: str, kind: str, rows: int, message: str) -> dict[str, Any]:
    """Makes a table, writes the column files of a DataFrame backfill, and compacts the table before
    the commit."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import LongType, StructField, StructType

    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions, WriteOptions
    from lance_spark.write.column_writer import LanceBackfillWriter

    make_table(path, kind, rows)
    ref = DatasetRef.resolve(ReadOptions(path=path, version=None, storage=()))
    spark_type = from_arrow_type(pa.list_(pa.float32()) if kind == "vectors" else TYPES[kind])
    table = {"lance.table": ref.snapshot_json()}
    schema = StructType(
        [StructField("_rowaddr", LongType(), True, table), StructField("v", spark_type)]
    )
    options = WriteOptions.parse({"path": path, "mode": "backfill"})
    backfill = LanceBackfillWriter.plan(DatasetRef.at(path), schema, options, {"exclusive": True})
    backfill.staging.open_job()

    def batches() -> Iterator[pa.RecordBatch]:
        for fragment in lance.dataset(path).get_fragments():
            for first in range(0, fragment.physical_rows, _BATCH_ROWS):
                count = min(_BATCH_ROWS, fragment.physical_rows - first)
                addresses = np.arange(first, first + count) + (fragment.fragment_id << 32)
                array = values(kind, fragment.fragment_id * rows + first, count)
                sent = array.cast(pa.list_(pa.float32())) if kind == "vectors" else array
                yield pa.record_batch({"_rowaddr": addresses, "v": sent})

    commit_message = backfill.write(batches())
    Path(message).write_bytes(pickle.dumps((backfill, commit_message)))
    lance.dataset(path).optimize.compact_files()
    files = [part.staged.name for part in commit_message.fragments]
    return {"files": files, "bytes": sum(os.path.getsize(f"{path}/data/{name}") for name in files)}


def carry(message: str, rows: int) -> dict[str, Any]:
    """Commits the staged backfill, as Spark's commit process does."""
    from lance_spark.rebase.carry_over import CarryOver

    backfill, commit_message = pickle.loads(Path(message).read_bytes())
    real, spent = CarryOver.__call__, []

    def timed(self: CarryOver, *arguments: Any) -> Any:
        began = time.perf_counter()
        rebased = real(self, *arguments)
        spent.append(time.perf_counter() - began)
        return rebased

    CarryOver.__call__ = timed  # type: ignore[method-assign]
    before, began, cpu = peak_mib(), time.perf_counter(), time.process_time()
    result = backfill.commit_result([commit_message])
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if result.rows_carried != rows:
        raise RuntimeError(f"{result.rows_carried} of {rows} rows were carried over")
    return {
        "seconds": sum(spent),
        "commit_s": seconds,
        "cpu_s": cpu,
        "mib": peak_mib(),
        "mib_before": before,
    }


def copy(path: str, files: list[str], rows: int) -> dict[str, Any]:
    """Copies the rows of column files batch by batch: the minimal work of a carry-over."""
    before, began, cpu = peak_mib(), time.perf_counter(), time.process_time()
    count = 0
    for number, name in enumerate(files):
        reader = LanceFileReader(f"{path}/data/{name}")
        with LanceFileWriter(f"{path}/copy-{number}.lance") as file_writer:
            for batch in reader.read_all(batch_size=_BATCH_ROWS).to_batches():
                file_writer.write_batch(batch)
                count += batch.num_rows
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if count != rows:
        raise RuntimeError(f"{count} of {rows} rows were copied")
    return {"seconds": seconds, "cpu_s": cpu, "mib": peak_mib(), "mib_before": before}


def staged_column(path: str, name: str, rows: int, version: str) -> tuple[str, int]:
    """Writes a column file of small numbers. Returns its name and its size in bytes."""
    file = f"{uuid.uuid4().hex}.lance"
    schema = pa.schema([(name, pa.int64())])
    with LanceFileWriter(f"{path}/data/{file}", schema, version=version) as file_writer:
        file_writer.write_batch(pa.record_batch([pa.array(range(rows), pa.int64())], schema=schema))
    return file, os.path.getsize(f"{path}/data/{file}")


def stage_of(dataset: lance.LanceDataset) -> Any:
    """Returns the stager for additional files of a commit."""
    from lance_spark.dataset import DatasetRef
    from lance_spark.staging.area import Staging
    from lance_spark.staging.column_file import NullColumnFiles

    staging = Staging(uri=DatasetRef.at(dataset.uri).uri, job_id=uuid.uuid4().hex)
    return NullColumnFiles(staging, dataset.data_storage_version)


def column_change(dataset: lance.LanceDataset, fragment: int, file: str, size: int) -> Any:
    """Returns the change to fill column `v`, computed from `id`, of a fragment of a version."""
    from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns, StagedColumns
    from lance_spark.commit.conflicts.identity import field_identities
    from lance_spark.rows.row_set import RowSet

    fields = {column.name: column for column in field_identities(dataset.lance_schema)}
    handle = dataset.get_fragment(fragment)
    if handle is None:
        raise KeyError(fragment)
    part = FragmentColumns(
        fragment=handle.metadata,
        staged=StagedColumns(name=file, size_bytes=size),
        given=RowSet.of(np.arange(handle.physical_rows)),
    )
    return ColumnsToCommit(
        read_version=dataset.version,
        targets=(fields["v"],),
        new_columns=pa.schema([]),
        inputs=(fields["id"],),
        inputs_from="option",
        fragments=(part,),
    )


def replace_bare(path: str, fragment: int, file: str, **more: Any) -> None:
    """Commits a column file as in pylance's documentation."""
    dataset = lance.dataset(path)
    groups = [lance.LanceOperation.DataReplacementGroup(fragment, DataFile.create(dataset, file))]
    operation = lance.LanceOperation.DataReplacement(groups)
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, **more)


def writer(
    path: str, who: str, what: str, number: int, commits: int, ready: Callable[[], None]
) -> dict[str, Any]:
    """Commits in sequence: appends of prepared fragments with one row, or column files of the
    writer's own fragments."""
    acts = {"appends": _appends, "columns": _columns}[what](path, who, number, commits)
    ready()
    sys.stdin.readline()
    began, succeeded, longest, retries = time.monotonic(), 0, 0.0, 0
    errors: list[str] = []
    for act in acts:
        at = time.monotonic()
        try:
            retries += act() or 0
            succeeded += 1
        except Exception as error:  # noqa: BLE001 - what pylance raises after its retries is part of the result
            errors.append(f"{type(error).__name__}: {error}"[:200])
        longest = max(longest, time.monotonic() - at)
    return {
        "began": began, "ended": time.monotonic(), "done": succeeded, "longest_s": longest, "retries": retries, "errors": errors,
    }  # fmt: skip


def _appends(path: str, who: str, number: int, commits: int) -> list[Callable[[], int | None]]:
    from lance_spark.commit.changes import RowsToCommit
    from lance_spark.commit.conflicts.identity import field_identities
    from lance_spark.commit.rows.append_commit import commit_rows
    from lance_spark.dataset import DatasetRef

    dataset = lance.dataset(path)
    fields = field_identities(dataset.lance_schema)

    def staged() -> FragmentMetadata:
        file, size = staged_column(path, "id", 1, dataset.data_storage_version)
        like = DataFile.create(dataset, file)
        entry = DataFile(
            file,
            list(like.fields),
            list(like.column_indices),
            like.file_major_version,
            like.file_minor_version,
            size,
        )
        return FragmentMetadata(
            id=0, files=[entry], physical_rows=1, deletion_file=None, row_id_meta=None
        )

    def ours(fragment: FragmentMetadata, job: str) -> int:
        # The planned version of a write. pylance's contestant opens the dataset too.
        planned = lance.dataset(path).version
        change = RowsToCommit(
            mode="append",
            schema=dataset.schema,
            fields=fields,
            fragments=(fragment,),
            rows=1,
            read_version=planned,
        )
        return commit_rows(DatasetRef.at(path), change, job_id=job).retries

    def bare(fragment: FragmentMetadata) -> None:
        operation = lance.LanceOperation.Append([fragment])
        lance.LanceDataset.commit(path, operation, read_version=lance.dataset(path).version)

    fragments = [staged() for _ in range(commits)]
    if who == "pylance":
        return [lambda fragment=fragment: bare(fragment) for fragment in fragments]  # type: ignore[misc]
    return [
        lambda fragment=fragment, job=f"{number}-{i}": ours(fragment, job)
        for i, fragment in enumerate(fragments)
    ]  # type: ignore[misc]


def _columns(path: str, who: str, number: int, commits: int) -> list[Callable[[], int | None]]:
    from lance_spark.commit.column_commit import commit_columns
    from lance_spark.commit.conflicts.table_state import SeenHistory
    from lance_spark.dataset import DatasetRef

    snapshot = DatasetRef.at(path).pin(None)
    dataset = snapshot.open()
    fragment_ids = frozenset(dataset.fragment_ids())
    history = SeenHistory()
    acts: list[Callable[[], int | None]] = []
    for i in range(commits):
        fragment = number * commits + i
        rows = dataset.get_fragment(fragment).physical_rows  # type: ignore[union-attr]
        file, size = staged_column(path, "v", rows, dataset.data_storage_version)
        if who == "pylance":
            acts.append(lambda fragment=fragment, file=file: replace_bare(path, fragment, file))  # type: ignore[misc]
            continue
        change = column_change(dataset, fragment, file, size)

        def ours(change: Any = change, job: str = f"{number}-{i}") -> int:
            return commit_columns(
                snapshot,
                change,
                job_id=job,
                stage=stage_of(dataset),
                snapshot_fragments=fragment_ids,
                history=history,
            ).result.retries

        acts.append(ours)
    return acts


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()

"""Commits of column files without a job, here and in other processes.

python -m tests.lance_spark.commit.column_commits TABLE FRAGMENT NAME JOB [die]

commits a staged column file and prints the result as JSON; with `die` the process kills itself right after the commit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter

from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.column_commit import commit_columns
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.dataset import DatasetRef
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.file_layout import FileLayout

ROWS = 10


class NoStage:
    """For commits whose files need no stage."""

    def __init__(self, path: str) -> None:
        self.path = path

    def missing(self, names: Any) -> list[str]:
        return [name for name in names if not Path(self.path, "data", name).exists()]

    def restore(self, fragment_id: int) -> Any:
        raise AssertionError(fragment_id)

    def entry(self, dataset: Any, columns: Any) -> Any:
        return FileLayout.of_file(dataset, columns)

    def blank(self, dataset: Any, fragment_id: int, columns: Any) -> Any:
        raise AssertionError(fragment_id)


def make_table(path: str, fragments: int) -> None:
    """Makes a table of ids with a column `v` without values."""
    table = pa.table({"id": np.arange(fragments * ROWS, dtype=np.int64)})
    lance.write_dataset(table, path, max_rows_per_file=ROWS, enable_stable_row_ids=True)
    lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))


def stage(path: str, value: int) -> str:
    """Writes an unreferenced column file of one value."""
    schema = pa.schema([("v", pa.int64())])
    name = f"{uuid.uuid4().hex}.lance"
    with LanceFileWriter(
        f"{path}/data/{name}", schema, version=lance.dataset(path).data_storage_version
    ) as writer:
        writer.write_batch(pa.record_batch([pa.array([value] * ROWS, pa.int64())], schema=schema))
    return name


def commit(
    path: str,
    fragment: int,
    name: str,
    job: str,
    *,
    version: int = 2,
    history: SeenHistory | None = None,
    **policy: Any,
) -> CommitResult:
    """Commits a staged column file of one fragment, with values computed on a version."""
    snapshot = DatasetRef.at(path).pin(version)
    dataset = snapshot.open()
    fields = {column.name: column for column in field_identities(dataset.lance_schema)}
    part = FragmentColumns(
        fragment=dataset.get_fragment(fragment).metadata,  # type: ignore[union-attr]
        staged=StagedColumns(name=name, size_bytes=Path(path, "data", name).stat().st_size),
        given=RowSet.of(np.arange(ROWS)),
    )
    change = ColumnsToCommit(
        read_version=version,
        targets=(fields["v"],),
        new_columns=pa.schema([]),
        inputs=(fields["id"],),
        inputs_from="option",
        fragments=(part,),
        commit_message="a message",
    )
    outcome = commit_columns(
        snapshot,
        change,
        job_id=job,
        stage=NoStage(path),
        snapshot_fragments=frozenset(
            fragment_.fragment_id for fragment_ in dataset.get_fragments()
        ),
        policy=CommitPolicy(**policy),
        history=history,
    )
    assert not outcome.conflicts
    return outcome.result


def commit_elsewhere(
    path: str, fragment: int, name: str, job: str, *more: str
) -> tuple[int, CommitResult | None]:
    """Commits in another process, and returns its exit code and its report."""
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.lance_spark.commit.column_commits",
            path,
            str(fragment),
            name,
            job,
            *more,
        ],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode > 0:
        raise AssertionError(process.stderr)
    report = json.loads(process.stdout) if process.stdout else None
    result = (
        None
        if report is None
        else CommitResult.from_json(report["summary"], uri=report["uri"], version=report["version"])
    )
    return process.returncode, result


def _main(path: str, fragment: str, name: str, job: str, die: str = "") -> None:
    real = lance.LanceDataset.commit

    def commit_and_die(*arguments: Any, **more: Any) -> Any:
        real(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    if die:
        lance.LanceDataset.commit = commit_and_die  # type: ignore[method-assign]
    result = commit(path, int(fragment), name, job)
    print(json.dumps({"summary": result.to_json(), "uri": result.uri, "version": result.version}))


if __name__ == "__main__":
    _main(*sys.argv[1:])

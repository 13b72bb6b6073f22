"""Cleanup, statistics, and both with compaction and indexes in one call."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark import (
    CommitError,
    Connection,
    OptionError,
    Table,
    UnsupportedOperationError,
    VersionNotFoundError,
)

pytestmark = pytest.mark.spark

NO_AGE = timedelta(0)


@pytest.fixture
def table(db: Connection) -> Table:
    """Forty rows in four fragments, with an index of the first thirty; five are deleted."""
    new_table = db.create_table(
        "t", pa.table({"id": pa.array(range(10), pa.int64()), "text": [f"t{i}" for i in range(10)]})
    )
    for first in (10, 20):
        new_table.add([{"id": i, "text": f"t{i}"} for i in range(first, first + 10)])
    new_table.create_scalar_index("id")
    new_table.add([{"id": i, "text": f"t{i}"} for i in range(30, 40)])
    new_table.delete("id % 8 = 7")
    return new_table


def files(table: Table) -> set[str]:
    return {path.name for path in Path(table.uri, "data").iterdir()}


def referenced_files(table: Table) -> set[str]:
    return {
        file.path
        for fragment in table.to_lance().get_fragments()
        for file in fragment.metadata.files
    }


def test_statistics_are_those_of_the_metadata(table: Table):
    stats = table.stats()
    assert (stats.rows, stats.deleted_rows, stats.fragments, stats.small_fragments) == (35, 5, 4, 4)
    assert stats.data_files == 4 and stats.version == stats.versions == table.version
    assert stats.size_bytes == sum(
        os.stat(f"{table.uri}/data/{name}").st_size for name in files(table)
    )
    assert stats.unindexed_rows == {"id_idx": 8}
    assert stats.text.startswith(
        f"version {table.version}: 35 rows (5 deleted) in 4 fragments, 4 data files of "
    )
    table.checkout(1)
    assert table.stats().rows == 10


@pytest.mark.guarantee("U02")
def test_old_versions_go_and_those_with_tags_stay(table: Table):
    table.compact_files()
    table.tags.create("first", 1)
    before = files(table)
    assert table.cleanup_old_versions().old_versions == 0  # none is a week old
    with pytest.raises(CommitError, match=r"tag.*error_if_tagged_old_versions=False"):
        table.cleanup_old_versions(NO_AGE)
    assert files(table) == before
    removed = table.cleanup_old_versions(NO_AGE, error_if_tagged_old_versions=False)
    assert removed.old_versions == table.version - 2 and removed.bytes_removed > 0
    assert removed.text.startswith(f"{removed.old_versions} versions removed, ")
    assert table.count_rows() == 35 and files(table) < before
    table.checkout("first")
    assert table.count_rows() == 10
    table.checkout_latest()
    with pytest.raises(VersionNotFoundError):
        table.checkout(2)
    for age in (timedelta(days=-1), 7):
        with pytest.raises(OptionError, match="timedelta"):
            table.cleanup_old_versions(age)  # type: ignore[arg-type]


@pytest.mark.guarantee("U03")
def test_files_that_no_version_names_go_only_when_that_is_asked_for(table: Table):
    orphan = Path(table.uri, "data", "orphan.lance")
    orphan.write_bytes(b"x")
    table.cleanup_old_versions(NO_AGE)
    assert orphan.exists()
    table.cleanup_old_versions(NO_AGE, delete_unverified=True)
    assert not orphan.exists() and files(table) == referenced_files(table)


@pytest.mark.guarantee("U01")
def test_maintenance_runs_due_steps_and_reports_them(table: Table):
    content = sorted(table.to_arrow()["id"].to_pylist())
    report = table.optimize(cleanup_older_than=NO_AGE)
    assert (report.compaction.fragments_removed, report.compaction.fragments_added) == (4, 1)
    assert report.indexes == ("id_idx",) and report.cleanup.old_versions > 0
    assert "4 fragments became 1" in report.text and "indexes id_idx optimised" in report.text
    stats = table.stats()
    assert (stats.fragments, stats.deleted_rows, stats.unindexed_rows) == (1, 0, {"id_idx": 0})
    assert stats.versions == 1 and files(table) == referenced_files(table)
    assert sorted(table.to_arrow()["id"].to_pylist()) == content
    version = table.version
    again = table.maintain()
    assert again.text == "nothing to compact; no index to optimise; 0 versions removed, 0 bytes"
    assert table.version == version


def test_a_version_that_is_checked_out_is_not_kept_up(table: Table):
    table.checkout(1)
    for change in (table.cleanup_old_versions, table.optimize, table.maintain, table.compact_files):
        with pytest.raises(UnsupportedOperationError, match="checked out"):
            change()
    assert lance.dataset(table.uri).version > 1

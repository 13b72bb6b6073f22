"""Writes with `txn_app_id` and `txn_version`: a repeated write changes nothing, and returns the first result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql.types import LongType

import lance_spark
from lance_spark import udf
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.commit import column_commit
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.changes import CommitResult
from lance_spark.dml.results import ChangeResult
from lance_spark.errors import OptionError
from tests.lance_spark.write.backfills import Backfill, column, snapshot_rows
from tests.support.faults import unused_files


@pytest.fixture
def table(jobs: Any, tmp_path: Path) -> lance_spark.Table:
    db = lance_spark.connect(str(tmp_path), jobs, progress=False)
    return db.create_table("t", [{"id": i, "n": 0} for i in range(4)])


Write = Callable[[lance_spark.Table, dict[str, Any]], ChangeResult]

WRITES: dict[str, Write] = {
    "add": lambda table, txn: table.add([{"id": 4, "n": 1}], **txn),
    "overwrite": lambda table, txn: table.add([{"id": 4, "n": 1}], mode="overwrite", **txn),
    "update": lambda table, txn: table.update("id = 1", values_sql={"n": "n + 1"}, **txn),
    "delete": lambda table, txn: table.delete("id < 2", **txn),
    "delete nothing": lambda table, txn: table.delete("id > 100", **txn),
    "merge_insert": lambda table, txn: (
        table.merge_insert("id").when_not_matched_insert_all().execute([{"id": 4, "n": 1}], **txn)
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_repeated_write_changes_nothing(table: lance_spark.Table, name: str) -> None:
    transaction = {"txn_app_id": "nightly", "txn_version": 7}
    first = WRITES[name](table, transaction)
    rows, version = table.to_arrow(), table.to_lance().version
    assert WRITES[name](table, transaction) == first
    assert (table.to_arrow().to_pylist(), table.to_lance().version) == (rows.to_pylist(), version)
    assert {file for file in unused_files(table.uri) if "staging" in file} == set()
    with pytest.raises(lance_spark.StreamRewoundError, match="Batch 6 is older than batch 7"):
        WRITES[name](table, {"txn_app_id": "nightly", "txn_version": 6})
    assert table.to_lance().version == version
    WRITES[name](table, {"txn_app_id": "another", "txn_version": 6})
    WRITES[name](table, {"txn_app_id": "nightly", "txn_version": 8})
    assert (table.to_lance().version > version) == (
        name not in ("delete", "delete nothing", "merge_insert")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"txn_app_id": "a"},
        {"txn_version": 1},
        {"txn_app_id": "", "txn_version": 1},
        {"txn_app_id": "a", "txn_version": -1},
    ],
    ids=["no number", "no id", "empty id", "negative"],
)
def test_half_a_transaction_is_refused(table: lance_spark.Table, arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="txn_"):
        table.add([{"id": 9, "n": 9}], **arguments)
    assert table.count_rows() == 4


def test_a_failed_evaluation_leaves_no_record(table: lance_spark.Table) -> None:
    with pytest.raises(Exception, match="x1"):
        table.update(
            "id = 1",
            values_sql={"n": "cast(concat('x', id) as bigint)"},
            txn_app_id="nightly",
            txn_version=7,
        )
    assert not Path(table.uri, "_lance_spark", "apps").exists()
    table.update("id = 1", values_sql={"n": "n + 1"}, txn_app_id="nightly", txn_version=6)
    assert sum(row["n"] for row in table.to_arrow().to_pylist()) == 1


@pytest.mark.long
def test_a_repeated_add_of_a_dataframe_returns_the_first_result(spark: Any, tmp_path: Path) -> None:
    table = lance_spark.connect(str(tmp_path), spark, progress=False).create_table("t", [{"id": 0}])
    first = table.add(spark.range(5), txn_app_id="nightly", txn_version=7)
    table.add([{"id": 9}])
    assert table.add(spark.range(5), txn_app_id="nightly", txn_version=7) == first
    assert (first.rows_inserted, table.count_rows()) == (5, 7)


@udf
def double(id: int) -> int:
    return 2 * id


ALL_ROWS: dict[str, Any] = {"where": "1=1", "txn_app_id": "nightly", "txn_version": 7}


@pytest.fixture
def backfilled(table: lance_spark.Table) -> lance_spark.Table:
    table.add([{"id": i, "n": 0} for i in range(4, 8)])
    table.add_columns({"double": double})
    assert table.backfill("double", commit_granularity=1, **ALL_ROWS).rows_computed == 8
    return table


def test_a_repeated_backfill_computes_nothing_and_says_so(backfilled: lance_spark.Table) -> None:
    version = backfilled.version
    for result in (
        backfilled.backfill("double", **ALL_ROWS),
        backfilled.backfill_async("double", **ALL_ROWS).result(),
    ):
        assert (result.status, result.rows_computed, result.versions) == ("DONE", 0, ())
        expected = (
            "Transaction 7 of the application 'nightly' was committed before. Nothing was computed."
        )
        assert result.message == expected
    with pytest.raises(lance_spark.StreamRewoundError, match="Batch 6 is older than batch 7"):
        backfilled.backfill("double", **{**ALL_ROWS, "txn_version": 6})
    with pytest.raises(OptionError, match="txn_version"):
        backfilled.backfill_async("double", txn_app_id="nightly")
    assert backfilled.version == version
    assert backfilled.backfill("double", **{**ALL_ROWS, "txn_version": 8}).rows_computed == 8


def test_a_backfill_whose_driver_died_before_its_record_is_resumed(
    table: lance_spark.Table,
) -> None:
    table.add_columns({"double": double})
    with (
        patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        table.backfill("double", **ALL_ROWS)
    version = table.version
    assert table.backfill("double", **ALL_ROWS).rows_computed == 0
    assert table.backfill("double", **ALL_ROWS).message is not None
    assert table.version == version


def test_a_backfill_of_a_replaced_driver_commits_nothing(table: lance_spark.Table) -> None:
    table.add_columns({"double": double})
    version, commit = table.version, GroupCommits.commit

    def go_on(commits: GroupCommits, outcomes: Any) -> None:
        with patch.object(GroupCommits, "commit", commit):
            table.add([{"id": 9, "n": 9}], txn_app_id="nightly", txn_version=8)
        commit(commits, outcomes)

    with (
        patch.object(GroupCommits, "commit", go_on),
        pytest.raises(lance_spark.StreamRewoundError, match="Batch 7 is older than batch 8"),
    ):
        table.backfill("double", **ALL_ROWS)
    assert (table.version, table.count_rows("double IS NOT NULL")) == (version + 1, 0)


def test_a_repeated_backfill_of_a_dataframe_changes_nothing(table: lance_spark.Table) -> None:
    def write(transaction: int, factor: int) -> CommitResult | None:
        options = {"txn_app_id": "nightly", "txn_version": str(transaction)}
        backfill = Backfill(table.uri, "n", LongType(), options=options)
        return backfill.run([(address, factor * key) for address, key in snapshot_rows(table.uri)])

    first = write(7, 10)
    version = table.version
    assert write(7, 99) == first
    with pytest.raises(lance_spark.StreamRewoundError, match="Batch 6 is older than batch 7"):
        write(6, 99)
    assert (table.version, column(table.uri, "n")) == (version, {0: 0, 1: 10, 2: 20, 3: 30})
    assert unused_files(table.uri) == set()
    write(8, 20)
    assert column(table.uri, "n") == {0: 0, 1: 20, 2: 40, 3: 60}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_backfill_of_a_dataframe_is_committed_once_after_a_crash(
    table: lance_spark.Table, moment: str
) -> None:
    def write(factor: int) -> CommitResult | None:
        options = {"txn_app_id": "nightly", "txn_version": "7"}
        backfill = Backfill(table.uri, "n", LongType(), options=options)
        return backfill.run([(address, factor * key) for address, key in snapshot_rows(table.uri)])

    owner, name = (column_commit, "attempt_commit") if moment == "before" else (AppLedger, "finish")
    with patch.object(owner, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        write(10)
    result = write(20)
    assert result is not None
    assert result.version == table.version
    assert column(table.uri, "n")[1] == (20 if moment == "before" else 10)

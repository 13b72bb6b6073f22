"""Writes with `txn_app_id` and `txn_version`: a repeated write changes nothing, and returns the first result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lance_spark
from lance_spark.dml.results import ChangeResult
from lance_spark.errors import OptionError
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
    assert (table.to_lance().version > version) == (name not in ("delete", "delete nothing", "merge_insert"))


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
        table.update("id = 1", values_sql={"n": "cast(concat('x', id) as bigint)"}, txn_app_id="nightly", txn_version=7)
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

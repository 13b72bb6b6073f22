"""Records of rows follow compactions: computed rows, failed rows, and disposable files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from udf_runtime import UDF, Skip, udf

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 40


def make(db: lance_spark.Connection, *, stable: bool = True) -> lance_spark.Table:
    data = pa.table({"id": range(ROWS)})
    lance.write_dataset(
        data, f"{db.uri}/t.lance", max_rows_per_file=10, enable_stable_row_ids=stable
    )
    return db.open_table("t")


def logging_udf(log: Path, version: str = "1", *, add: int = 0) -> UDF:
    def f(id: int):
        with open(log, "a") as file:
            file.write(f"{id}\n")
        return None if id % 5 == 0 else id + add

    return udf(f, data_type=pa.int64(), version=version, name="f")


def calls(log: Path) -> list[int]:
    rows = sorted(int(line) for line in log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return rows


def values(table: lance_spark.Table) -> dict[int, int | None]:
    return {row["id"]: row["v"] for row in table.to_arrow(["id", "v"]).to_pylist()}


def compact(table: lance_spark.Table) -> None:
    table.to_lance().optimize.compact_files(target_rows_per_fragment=1000)
    assert len(table.to_lance().get_fragments()) == 1


stable_or_not = pytest.mark.parametrize("stable", [True, False], ids=["stable", "unstable"])


@pytest.mark.sample(4)
@stable_or_not
def test_a_replaced_udf_computes_all_rows_once_whatever_is_compacted(
    stable: bool, db: lance_spark.Connection, tmp_path: Path
):
    table, log = make(db, stable=stable), tmp_path / "log"
    table.add_columns({"v": logging_udf(log)})
    table.backfill("v")
    table.alter_columns({"path": "v", "udf": logging_udf(log, "2", add=100)})
    calls(log)
    compact(table)
    table.backfill("v")
    assert calls(log) == list(range(ROWS))
    table.add([{"id": 100}])
    compact(table)
    table.backfill("v")
    assert calls(log) == [100]
    table.backfill("v")
    assert calls(log) == []
    assert values(table) == {i: None if i % 5 == 0 else i + 100 for i in [*range(ROWS), 100]}


def test_two_backfills_of_one_fragment_leave_one_truth(db: lance_spark.Connection, tmp_path: Path):
    table, log = make(db), tmp_path / "log"
    table.add_columns({"v": logging_udf(log)})
    table.backfill("v", where="id % 10 < 5")
    table.backfill("v")
    assert calls(log) == list(range(ROWS))
    version = table.version
    assert table.backfill("v").versions == ()
    assert calls(log) == []
    assert table.version == version


@stable_or_not
def test_addresses_of_failed_rows_follow_a_compaction(
    stable: bool, db: lance_spark.Connection, tmp_path: Path
):
    table, log = make(db, stable=stable), tmp_path / "log"

    def odd(id: int):
        if id in (13, 17, 31):
            raise ValueError(f"row {id}")
        return id

    table.add_columns(
        {"v": udf(odd, data_type=pa.int64(), version="1", name="f", on_error=[Skip(ValueError)])}
    )
    result = table.backfill("v")
    assert (result.status, result.rows_skipped) == ("DONE", 3)
    table.to_lance().delete("id IN (2, 17)")
    compact(table)
    addresses = table.get_failed_row_addresses(result.job_id, "v")
    addresses_found = (
        table.to_lance().scanner(columns=["id"], with_row_address=True).to_table().to_pylist()
    )
    assert [row["id"] for row in addresses_found if row["_rowaddr"] in addresses] == [13, 31]
    again = table.backfill(
        "v", udf=logging_udf(log), where=f"_rowaddr IN ({', '.join(map(str, addresses))})"
    )
    assert (again.status, again.rows_selected) == ("DONE", 2)
    assert calls(log) == [13, 31]


def test_cleanup_leaves_what_a_job_can_use_and_nothing_else(
    db: lance_spark.Connection, tmp_path: Path
):
    table, log = make(db), tmp_path / "log"

    def bad(id: int):
        if id == 39:
            raise ValueError("no")
        return id

    table.add_columns({"v": udf(bad, data_type=pa.int64(), version="1", name="f")})
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill("v", commit_granularity=None, checkpoint_size=2, min_checkpoint_size=2)
    folder = tmp_path / "db" / "t.lance" / "_lance_spark" / "checkpoints"
    assert [path for path in folder.rglob("*") if path.is_file()] != []
    lance_spark.cleanup(table.uri, older_than=timedelta(0))

    def good(id: int):
        return id

    assert (
        table.backfill(
            "v", udf=udf(good, data_type=pa.int64(), version="1", name="f")
        ).rows_computed
        <= 4
    ), "what was computed before the error is still there"
    table.drop_columns("v")
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert values_of_ids(table) == list(range(ROWS))
    assert not log.exists()


def values_of_ids(table: lance_spark.Table) -> list[int]:
    ids: list[int] = table.to_arrow(["id"]).column(0).to_pylist()
    return ids

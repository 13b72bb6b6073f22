"""Changes of rows through the table, on Spark: merges compared with pylance, and updates and deletions once."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    Connection,
    MergeError,
    MergeTimeoutError,
    OptionError,
    SchemaMismatchError,
    Table,
    UnsupportedOperationError,
)
from tests.lance_spark.dml.tables import acting_once, content, lineage, make, rows

pytestmark = [pytest.mark.spark]


@pytest.fixture
def table(db: Connection) -> Table:
    """Thirty rows in three fragments."""
    make(f"{db.uri}/t.lance")
    return db.open_table("t")


@pytest.fixture
def db(tmp_path: Path, jobs: Any) -> Connection:
    (tmp_path / "db").mkdir()
    return lance_spark.connect(str(tmp_path / "db"), jobs, progress=False)


def copy_of(table: Table, tmp_path: Path) -> str:
    """Another table with the same rows, for pylance."""
    uri = str(tmp_path / "theirs")
    make(uri)
    assert content(uri) == content(table.uri)
    return uri


def source(ids: list[int]) -> pa.Table:
    changed = [
        {**row, "a": 1000 + row["id"], "s": f"new {row['id']}", "t": {"x": 0, "y": "m"}}
        for row in rows(range(60)).to_pylist()
    ]
    return pa.Table.from_pylist([changed[i] for i in ids], schema=rows(range(1)).schema)


CLAUSES = [
    ("update", "insert"),
    ("insert",),
    ("update",),
    ("update", "insert", "delete"),
    ("delete",),
    ("update", "delete where"),
    ("update where", "insert"),
]


@pytest.mark.sample(2)
@pytest.mark.guarantee("C03")
@pytest.mark.parametrize(
    "clauses",
    [
        pytest.param(
            clauses_, id="-".join(clauses_), marks=() if len(clauses_) > 1 else pytest.mark.long
        )
        for clauses_ in CLAUSES
    ],
)
def test_a_merge_does_what_pylance_does(table: Table, tmp_path: Path, clauses: tuple[str, ...]):
    lance_copy = copy_of(table, tmp_path)
    table.delete("id IN (3, 14)")
    lance.dataset(lance_copy).delete("id IN (3, 14)")
    chosen = random.Random(" ".join(clauses)).sample(range(45), 20)
    data = source(sorted({*chosen, 3}))
    before = lineage(table.uri)
    merge, builder = table.merge_insert("id"), lance.dataset(lance_copy).merge_insert("id")
    for clause in clauses:
        kind, _, where = clause.partition(" ")
        if kind == "update":
            merge = merge.when_matched_update_all(
                "target.id > 10 AND source.a <> 1012" if where else None
            )
            builder = builder.when_matched_update_all(
                "target.id > 10 AND source.a <> 1012" if where else None
            )
        elif kind == "insert":
            merge, builder = (
                merge.when_not_matched_insert_all(),
                builder.when_not_matched_insert_all(),
            )
        else:
            merge = merge.when_not_matched_by_source_delete("target.id < 9" if where else None)
            builder = builder.when_not_matched_by_source_delete("id < 9" if where else None)
    if clauses == ("delete",):  # pylance requires a second clause
        lance.dataset(lance_copy).delete(
            f"id NOT IN ({', '.join(map(str, data['id'].to_pylist()))})"
        )
    else:
        expected = builder.execute(data)
    result = merge.execute(data)
    assert content(table.uri) == content(lance_copy)
    if clauses != ("delete",):
        assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (
            expected["num_inserted_rows"],
            expected["num_updated_rows"],
            expected["num_deleted_rows"],
        )
    # One version; rows keep their ids, and only updated and added rows have its number.
    assert result.version == table.version == 3
    lineage_after = lineage(table.uri)
    changed = {number for number, entry in lineage_after.items() if entry[2] == result.version}
    assert len(changed) == result.rows_inserted + result.rows_updated
    assert all(
        lineage_after[number][:2] == before[number][:2]
        for number in lineage_after.keys() & before.keys()
    )
    assert all(
        lineage_after[number] == before[number]
        for number in (lineage_after.keys() & before.keys()) - changed
    )


@pytest.mark.guarantee("C04")
def test_a_source_may_be_of_any_form_and_lack_columns(table: Table, spark: SparkSession):
    expected = {row["id"]: row for row in rows(range(30)).to_pylist()}
    small: list[Any] = [
        [{"id": 1, "a": 5}, {"id": 50, "a": 6}],
        pd.DataFrame({"id": [2, 51], "a": [5, 6]}),
        pa.table({"id": [3, 52], "a": pa.array([5, 6], pa.int32())}),
        spark.range(4, 54, 49).select("id", sf.lit(5).alias("a")),
    ]
    for number, data in enumerate(small):
        result = (
            table.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(data)
        )
        assert (result.rows_inserted, result.rows_updated) == (1, 1), number
        expected[number + 1]["a"] = 5
        new = 50 + number
        expected[new] = {"id": new, "a": 5 if number == 3 else 6, "s": None, "v": None, "t": None}
    assert content(table.uri) == sorted(expected.values(), key=lambda row: row["id"])
    assert not list(Path(table.uri, "_lance_spark").glob("staging/*"))


def test_keys_of_several_columns_and_null(table: Table):
    table.add([{"id": None, "s": "s1"}])
    data = [
        {"id": 1, "s": "s1", "a": 77},
        {"id": 2, "s": "other", "a": 78},
        {"id": None, "s": "s1", "a": 79},
    ]
    result = (
        table.merge_insert(["id", "s"])
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(data)
    )
    assert (result.rows_inserted, result.rows_updated) == (2, 1)
    assert (
        sorted(table.to_arrow(["a"], "a >= 77")["a"].to_pylist()) == [77, 78, 79]
        and table.count_rows("id IS NULL") == 2
    )


def test_two_rows_for_one_are_refused(table: Table):
    before = content(table.uri)
    for data in (source([4, 5, 4]), source([11, 12, 12])):
        with pytest.raises(MergeError, match=r"Several rows of the source match.*dropDuplicates"):
            table.merge_insert(
                "id"
            ).when_matched_update_all().when_not_matched_insert_all().execute(data)
    assert content(table.uri) == before and table.version == 1
    # Without a match in the table, all rows are added.
    assert (
        table.merge_insert("id")
        .when_not_matched_insert_all()
        .execute(source([40, 41, 40, 1, 1]))
        .rows_inserted
        == 3
    )
    result = (
        table.merge_insert("id").when_matched_update_all("source.a = 1").execute(source([4, 4]))
    )
    assert str(result) == "no row concerned, version 2"


def test_unsupported_merges_are_refused_before_they_run(
    table: Table, db: Connection, spark: SparkSession
):
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    blobs = db.create_table(
        "blobs", pa.table([[1, 2], [b"x", b"y"]], pa.schema([("id", pa.int64()), blob]))
    )
    strict = db.create_table(
        "strict",
        pa.table(
            [[1], [2]], pa.schema([("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
        ),
    )
    blob_file = [{"id": 1, "a": 1}]
    frame: DataFrame = spark.range(3).select("id", sf.lit("x").alias("a"))
    for error, message, do in (
        (OptionError, "a clause first", lambda: table.merge_insert("id").execute(blob_file)),
        (OptionError, "key columns", lambda: table.merge_insert([]).execute(blob_file)),
        (OptionError, "key columns", lambda: table.merge_insert(["id", "id"]).execute(blob_file)),
        (
            ColumnNotFoundError,
            "'key' does not exist in .*t.lance",
            lambda: table.merge_insert("key").when_matched_update_all().execute(blob_file),
        ),
        (
            ColumnNotFoundError,
            "'s' does not exist in the source",
            lambda: table.merge_insert("s").when_matched_update_all().execute(blob_file),
        ),
        (
            SchemaMismatchError,
            "'z'",
            lambda: table.merge_insert("id").when_matched_update_all().execute([{"id": 1, "z": 1}]),
        ),
        (
            SchemaMismatchError,
            "a: ",
            lambda: table.merge_insert("id").when_matched_update_all().execute(frame),
        ),
        (
            SchemaMismatchError,
            "a: ",
            lambda: (
                table.merge_insert("id")
                .when_matched_update_all()
                .execute(pa.table({"id": [1], "a": ["x"]}))
            ),
        ),
        (
            OptionError,
            "source.zz",
            lambda: (
                table.merge_insert("id").when_matched_update_all("source.zz > 1").execute(blob_file)
            ),
        ),
        (OptionError, "''", lambda: table.merge_insert("id").when_matched_update_all("")),
        (
            SchemaMismatchError,
            "may not be NULL: 'n'",
            lambda: strict.merge_insert("id").when_not_matched_insert_all().execute([{"id": 3}]),
        ),
        (
            UnsupportedOperationError,
            "blobs of 'b'.*load_columns",
            lambda: blobs.merge_insert("id").when_matched_update_all().execute([{"id": 1}]),
        ),
    ):
        with pytest.raises(error, match=message):
            do()
    assert (table.version, strict.version, blobs.version) == (1, 1, 1)
    merge_result = (
        blobs.merge_insert("id").when_matched_update_all().execute([{"id": 2, "b": b"new"}])
    )
    assert merge_result.rows_updated == 1
    assert sorted(
        blob_file.read() for blob_file in blobs.to_lance().take_blobs("b", indices=[0, 1])
    ) == [b"new", b"x"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_merge_with_concurrent_writers(table: Table, moment: str):
    uri = table.uri
    acts: list[Any] = [
        lambda: lance.dataset(uri).delete("id = 1"),
        lambda: lance.dataset(uri).optimize.compact_files(num_threads=1),
        lambda: (
            lance.dataset(uri)
            .merge_insert("id")
            .when_not_matched_insert_all()
            .execute(source([40]))
        ),
        lambda: lance.dataset(uri).update({"s": "'other'"}, where="id = 2"),
        lambda: lance.write_dataset(rows(range(70, 72)), uri, mode="append"),
    ]
    for number, act in enumerate(acts):
        data = source([1, 2, 40, 41 + number])
        with acting_once(moment, act) as acted:
            table.merge_insert(
                "id"
            ).when_matched_update_all().when_not_matched_insert_all().execute(data)
        assert acted
        rows_by_id = {row["id"]: row for row in content(uri)}
        assert [rows_by_id[row["id"]] for row in data.to_pylist()] == data.to_pylist()
    assert rows_by_id.keys() == {*range(30), *range(40, 46), 70, 71}


def test_update_and_delete_on_spark(table: Table):
    assert (
        str(table.update("id % 3 = 0", {"a": 7}, values_sql={"s": "concat(s, '!')"}))
        == "10 rows updated, version 2"
    )
    assert (
        table.update("id = 1", {"v": [1.0, 2.0], "t": {"x": 5, "y": "z"}, "s": "moved"}).version
        == 3
    )
    assert table.delete("id >= 25").rows_deleted == 5
    rows_by_id = {row["id"]: row for row in content(table.uri)}
    assert (
        rows_by_id[6]["a"] == 7
        and rows_by_id[6]["s"] == "s6!"
        and rows_by_id[1]["t"] == {"x": 5, "y": "z"}
        and len(rows_by_id) == 25
    )
    for statement in (
        lambda: table.update("id = 1"),
        lambda: table.update(None, {"a": 1}, values_sql={"a": "2"}),
    ):
        with pytest.raises(OptionError):
            statement()
    with pytest.raises(OptionError, match="deletes all"):
        table.delete(None)  # type: ignore[arg-type]
    assert table.delete("true").rows_deleted == 25 and table.count_rows() == 0
    assert (
        table.merge_insert("id").when_not_matched_insert_all().execute(source([1, 2])).rows_inserted
        == 2
    )


def test_rows_of_a_view_are_not_changed(table: Table, db: Connection):
    view = db.create_materialized_view("view", table.search().select(["id", "a"]))
    view.refresh()
    for change in (
        lambda: view.update("id = 1", {"a": 1}),
        lambda: view.delete("id = 1"),
        lambda: view.merge_insert("id").when_matched_update_all().execute([{"id": 1, "a": 1}]),
    ):
        with pytest.raises(UnsupportedOperationError, match=r"rows of the view.*refresh"):
            change()


@pytest.mark.long
@pytest.mark.classic
def test_a_merge_that_takes_too_long_changes_nothing(
    db: Connection, table: Table, spark: SparkSession
) -> None:
    def sleep(rows: Any) -> Any:
        time.sleep(60)
        yield from rows

    slow = spark.createDataFrame(source([1, 40]).to_pandas()[["id", "s"]]).mapInPandas(
        sleep, "id BIGINT, s STRING"
    )
    table = lance_spark.connect(db.uri, spark, progress=False).open_table("t")
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    before, began = content(table.uri), time.monotonic()
    with pytest.raises(MergeTimeoutError, match="timed out after 2 s"):
        merge.execute(slow, timeout=timedelta(seconds=2))
    assert time.monotonic() - began < 30 and table.version == 1 and content(table.uri) == before
    data = {path.name for path in Path(table.uri, "data").iterdir()}
    assert data == {
        file.path for part in table.to_lance().get_fragments() for file in part.data_files()
    }
    with pytest.raises(OptionError, match="zero or more"):
        merge.execute([{"id": 1, "s": "x"}], timeout=timedelta(-1))
    assert merge.execute([{"id": 1, "s": "x"}], timeout=timedelta(minutes=5)).rows_updated == 1

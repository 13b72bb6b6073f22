"""The change feed: equal to a comparison of versions by row id and value, made with plain pylance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark import (
    ChangeFeedError,
    ColumnNotFoundError,
    Connection,
    FilterError,
    OptionError,
    Table,
    UnsupportedOperationError,
    VersionNotFoundError,
)
from tests.lance_spark.changes.histories import STEPS, History, changes_in, swap_names
from tests.lance_spark.table.conftest import make_table

pytestmark = pytest.mark.spark


def read(spark: SparkSession, table: Table, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("lance").options(change_feed="true", **texts).load(table.uri)


def kinds(frame: DataFrame) -> list[tuple[int, str, int]]:
    """Returns the changes as version, change type and id."""
    return sorted(
        (row["_commit_version"], row["_change_type"], row["id"]) for row in frame.collect()
    )


def check(history: History, data: st.DataObject) -> None:
    """Compares feeds of random versions with the comparison by row id and value."""
    table = history.table
    last = data.draw(st.integers(history.begin, table.version))
    first = data.draw(st.integers(history.begin, last))
    columns = table.to_lance().checkout_version(last).schema.names
    everything = lambda row: True  # noqa: E731
    assert changes_in(table.changes(first, last), columns) == history.expected(
        first, last, columns, everything
    )
    net = changes_in(table.changes(first, last, columns=["text"], net=True), ["text"])
    assert net == history.expected(first, last, ["text"], everything, net=True)

    def even(row: dict[str, Any]) -> bool:
        return bool(row["id"] % 2 == 0 or "changed" in row["text"])

    frame = table.changes(
        first, last, columns=["id", "text"], filter="id % 2 = 0 OR text LIKE '%changed%'"
    )
    assert changes_in(frame, ["id", "text"]) == history.expected(first, last, ["id", "text"], even)


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=12), st.data())
def test_a_feed_of_a_long_history_equals_a_comparison_by_row_id_and_value(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    steps: list[str],
    data: st.DataObject,
) -> None:
    db = lance_spark.connect(str(tmp_path_factory.mktemp("feed")), spark, progress=False)
    check(History.of(db, data, steps), data)


def test_each_version_has_its_changes_and_what_changes_no_value_has_none(
    table: Table, spark: SparkSession
) -> None:
    first = table.version + 1
    table.update("id = 3", values={"text": "three"})
    table.delete("id = 4")
    table.update("id = 5", values_sql={"text": "text"})
    table.add([{"id": 100, "text": "late"}])
    table.to_lance().add_columns({"double": "id * 2"})
    table.to_lance().optimize.compact_files()
    changes = [
        (first, "update_postimage", 3),
        (first, "update_preimage", 3),
        (first + 1, "delete", 4),
        (first + 3, "insert", 100),
    ]
    assert kinds(table.changes(first, columns=["id", "text"])) == changes
    assert kinds(read(spark, table, startingVersion=first, columns="id,text")) == changes
    as_rows = read(spark, table, startingVersion=first, endingVersion=first, computeUpdates=False)
    assert kinds(as_rows) == [(first, "delete", 3), (first, "insert", 3)]
    filtered = table.changes(first, columns=["id", "text"], filter="text LIKE 'word%'")
    assert kinds(filtered) == [(first, "delete", 3), (first + 1, "delete", 4)]
    row = table.changes(first, first).where("_change_type = 'update_postimage'").first()
    assert row is not None and (row.text, row._rowid) == ("three", 3)
    assert row._commit_timestamp.astimezone(UTC) == table.versions[first - 1].timestamp
    assert table.changes(first + 4).where("double IS NOT NULL").count() == 30


def test_a_renamed_swapped_or_recreated_column_has_other_values_in_equal_files(
    db: Connection,
) -> None:
    table = db.create_table("names", pa.table({"id": [1, 2], "a": ["x", "y"], "b": ["u", "v"]}))
    first = table.version

    def updates(columns: list[str], since: int) -> set[tuple[Any, ...]]:
        rows = table.changes(since, columns=columns, net=True).collect()
        return {
            (row._change_type.removeprefix("update_"), *(row[name] for name in columns))
            for row in rows
        }

    swap_names(table.to_lance(), "a", "b")
    swapped = {
        ("preimage", "x", "u"),
        ("preimage", "y", "v"),
        ("postimage", "u", "x"),
        ("postimage", "v", "y"),
    }
    assert updates(["a", "b"], first + 1) == swapped
    assert table.diff(first).updated.count() == 2
    renamed = table.version + 1
    table.to_lance().alter_columns({"path": "b", "name": "c"})
    assert updates(["c"], renamed) == {("preimage", None), ("postimage", "x"), ("postimage", "y")}
    table.to_lance().drop_columns(["a"])
    table.to_lance().add_columns(pa.schema([("a", pa.string())]))
    assert updates(["a"], renamed + 1) == {
        ("preimage", "u"),
        ("preimage", "v"),
        ("postimage", None),
    }


def test_bounds_and_times_select_versions(table: Table, spark: SparkSession) -> None:
    first = table.version
    table.delete("id = 1")
    table.delete("id = 2")
    times = [version.timestamp for version in table.versions]

    def deleted(**options: object) -> list[int]:
        return [
            number for _, kind, number in kinds(read(spark, table, **options)) if kind == "delete"
        ]

    assert deleted(startingVersion=first) == [1, 2]
    assert deleted(startingVersion=first + 1, startingBoundInclusive=False) == [2]
    assert deleted(startingVersion=first, endingVersion=first + 2, endingBoundInclusive=False) == [
        1
    ]
    assert deleted(startingTimestamp=times[first].isoformat()) == [1, 2]
    assert deleted(startingTimestamp=(times[first] + timedelta(microseconds=1)).isoformat()) == [2]
    assert deleted(startingVersion=first, endingTimestamp=times[first].isoformat()) == [1]
    assert read(spark, table, startingVersion=first + 3).count() == 0


def test_files_of_equal_fragments_are_not_read(table: Table) -> None:
    first = table.version + 1
    table.to_lance().delete("id = 3")
    table.to_lance().update({"text": "'x'"}, where="id = 5")
    for fragment in table.to_lance().get_fragments()[1:3]:
        for file in fragment.data_files():
            Path(table.uri, "data", file.path).unlink()
    assert {number for _, _, number in kinds(table.changes(first))} == {3, 5}


def test_a_branch_has_a_feed_of_its_own(table: Table) -> None:
    trial = table.branches.create("trial")
    begin = trial.version
    trial.delete("id = 1")
    table.delete("id = 2")
    assert kinds(trial.changes(begin)) == [(begin + 1, "delete", 1)]
    assert kinds(table.changes(begin + 1)) == [(begin + 1, "delete", 2)]
    with pytest.raises(UnsupportedOperationError, match="version of another branch"):
        table.changes(f"trial:{begin}")


def test_a_version_that_was_cleaned_up_is_an_error_with_the_way_to_continue(
    table: Table, spark: SparkSession
) -> None:
    table.delete("id = 1")
    table.delete("id = 2")
    last = table.version
    table.to_lance().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(ChangeFeedError, match=rf"was cleaned up.*startingVersion {last + 1}"):
        table.changes(last).collect()
    with pytest.raises(PySparkException, match=r"ChangeFeedError.*was cleaned up"):
        read(spark, table, startingVersion=last - 1)


def test_without_stable_row_ids_only_appends_have_changes(db: Connection) -> None:
    table = make_table(db, "plain", fragments=2, rows=2, enable_stable_row_ids=False)
    table.to_lance().optimize.compact_files()
    last = table.version
    assert kinds(table.changes(1)) == [
        (1, "insert", 0),
        (1, "insert", 1),
        (2, "insert", 2),
        (2, "insert", 3),
    ]
    table.to_lance().add_columns({"double": "id * 2"})
    assert table.changes(last, columns=["id"]).count() == 0
    table.to_lance().delete("id = 1")
    with pytest.raises(
        PySparkException, match=r"ChangeFeedError.*Delete.*enable_stable_row_ids=True"
    ):
        table.changes(last, columns=["id"]).collect()


def test_wrong_requests_of_changes_are_refused(table: Table, spark: SparkSession) -> None:
    with pytest.raises(OptionError, match=r"startingVersion.*a version up to"):
        table.changes(3, 1)
    with pytest.raises(VersionNotFoundError):
        table.changes(99)
    with pytest.raises(ColumnNotFoundError):
        table.changes(1, columns="nothing")
    with pytest.raises(FilterError):
        table.changes(1, filter="nothing = 1")
    for options, text in [
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "not both"),
        ({"startingVersion": "0"}, "a version number"),
        ({"startingVersion": "1", "deduplicationMode": "some"}, "netChanges"),
        ({"startingVersion": "1", "columns": "_rowaddr"}, "with_row_id"),
        ({"startingVersion": "1", "limit": "3"}, "limit"),
        ({"startingVersion": "1", "endingTimestamp": "1999-01-01"}, "time of the oldest version"),
    ]:
        with pytest.raises(PySparkException, match=f"OptionError.*{text}"):
            read(spark, table, **options)
    for options in (
        {},
        {"startingVersion": "latest"},
        {"startingVersion": "1", "maxRowsPerTrigger": "3"},
    ):
        with pytest.raises(PySparkException, match=r"OptionError.*(startingVersion|readStream)"):
            read(spark, table, **options).collect()
    with pytest.raises(PySparkException, match=r"OptionError.*true beside startingVersion"):
        spark.read.format("lance").option("startingVersion", 2).load(table.uri).collect()


def test_a_table_with_a_column_of_the_feed_names_the_conflict(db: Connection) -> None:
    table = db.create_table("odd", pa.table({"id": [1], "_change_type": ["x"]}))
    with pytest.raises(OptionError, match="names of the feed"):
        table.changes(1)
    assert table.changes(1, columns="id").count() == 1


def test_blobs_and_dates_of_a_feed_are_values(db: Connection) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    table = db.create_table(
        "blobs", pa.table({"id": [1, 2], "b": [b"one", None], "at": [moment, None]}, schema=schema)
    )
    rows = table.changes(1, columns=["id", "b", "at"]).orderBy("id").collect()
    assert [(row.id, row.b and bytes(row.b)) for row in rows] == [(1, b"one"), (2, None)]
    assert rows[0]["at"].astimezone(UTC) == moment

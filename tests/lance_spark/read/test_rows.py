"""Rows of a scan: filters, limits, fragments, ranges and indexes, separately and together."""

from __future__ import annotations

import dataclasses
import random
import shutil

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_spark.dataset import forget_open_datasets
from lance_spark.read.filtering import ask_index
from lance_spark.read.planning.pushdown_request import ScanSpec
from tests.lance_spark.read.conftest import MakeTable
from tests.lance_spark.read.scans import (
    count,
    describe,
    make_reader,
    partitions,
    read,
    read_partitions,
)

pytestmark = pytest.mark.sample(4, tests=2)

ID = StructType([StructField("id", LongType())])
PUSHED = ScanSpec(columns=ID, filtered=True)
FILTERS = [
    "id < 100",
    "even",
    "word = 'word-3'",
    "word IS NULL",
    "word = 'moved'",
    "id = 777",
    "id >= 590 AND id < 630",
    "id < 0",
]


@pytest.fixture
def dirty_table(make_table: MakeTable) -> lance.LanceDataset:
    """Made once for all examples of a property."""
    return make_table()


def ids(table: pa.Table) -> list[int]:
    return table["id"].to_pylist()


def lance_ids(path: str, **scan: object) -> list[int]:
    return ids(lance.dataset(path).scanner(columns=["id"], **scan).to_table())


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("2.0", marks=pytest.mark.long),
        pytest.param("2.1", marks=pytest.mark.long),
        "2.2",
    ],
)
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("target", [2000, 1 << 27])
def test_a_filter_selects_what_lance_selects(
    make_table: MakeTable, table_path: str, stable: bool, indexed: bool, target: int, version: str
):
    dataset = make_table(stable=stable, version=version)
    if indexed:
        dataset.create_scalar_index("id", "BTREE")
        dataset.create_scalar_index("word", "BITMAP")
        lance.write_dataset(lance.dataset(table_path).to_table(limit=20), table_path, mode="append")
    for text in [None, *FILTERS]:
        expected = lance_ids(table_path, filter=text, use_scalar_index=False)
        options = {"target_partition_bytes": target} | ({} if text is None else {"filter": text})
        assert ids(read(table_path, **options)) == expected, text
        if text is not None:
            pushed = dataclasses.replace(PUSHED, filter_sql=text)
            assert ids(read(table_path, pushed, target_partition_bytes=target)) == expected, text


def test_a_fragment_is_cut_into_ranges_where_it_is_big(make_table: MakeTable, table_path: str):
    make_table()
    for options in ({}, {"filter": "even"}):
        tasks = partitions(make_reader(table_path, target_partition_bytes=5000, **options))
        assert len(tasks) > 10
        assert any(task.start for task in tasks)


@pytest.mark.parametrize("stable", [True, False])
def test_a_range_with_a_filter_looks_only_at_its_own_rows(
    make_table: MakeTable, table_path: str, stable: bool
):
    """Counting rows after the filter would give the same rows in all, and read the whole fragment for every range."""
    make_table(stable=stable)
    reader = make_reader(
        table_path, filter="even", with_row_address=True, target_partition_bytes=5000
    )
    for task in partitions(reader):
        offsets = [
            a & 0xFFFFFFFF for batch in reader.read(task) for a in batch["_rowaddr"].to_pylist()
        ]
        assert all(task.start <= offset < task.stop for offset in offsets if task.start is not None)


def test_legacy_files_are_read_with_and_without_a_filter(make_table: MakeTable, table_path: str):
    make_table(version="legacy", dirty=False)
    assert ids(read(table_path, target_partition_bytes=5000)) == list(range(1000))
    assert ids(read(table_path, target_partition_bytes=5000, filter="id % 3 = 0")) == list(
        range(0, 1000, 3)
    )


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_limit_gives_exactly_the_first_rows_of_the_table(
    dirty_table, table_path: str, data: st.DataObject
):
    limit = data.draw(st.integers(0, 1100))
    text = data.draw(st.sampled_from([None, *FILTERS]))
    target = data.draw(st.sampled_from([3000, 50_000, 1 << 27]))
    options = {"limit": limit, "target_partition_bytes": target} | (
        {} if text is None else {"filter": text}
    )
    expected = lance_ids(table_path, filter=text)[:limit]
    assert ids(read(table_path, **options)) == expected
    # The option `limit` applies before Spark's filter, so Spark's filter must not be pushed below the limit.
    pushed = dataclasses.replace(PUSHED, filter_sql="id > 500")
    assert ids(read(table_path, pushed, **options)) == expected


def test_a_limit_of_spark_bounds_each_partition_and_prunes_the_rest(
    make_table: MakeTable, table_path: str
):
    make_table()
    spec = ScanSpec(columns=ID, limit=7)
    assert ids(read(table_path, spec, target_partition_bytes=3000)) == lance_ids(table_path)[:7]
    assert len(partitions(make_reader(table_path, spec, target_partition_bytes=3000))) == 1
    with_filter = read_partitions(table_path, spec, target_partition_bytes=3000, filter="even")
    assert max(part.num_rows for part in with_filter) == 7
    assert set(ids(pa.concat_tables(with_filter))) <= set(lance_ids(table_path, filter="even"))


@pytest.mark.parametrize("sql", ["id > 900", None])
def test_a_limit_of_spark_above_its_own_filter_is_not_applied(
    make_table: MakeTable, table_path: str, sql: str | None
):
    """Lance's rows are a superset of Spark's: the first seven need not contain seven rows that pass Spark's filter."""
    make_table()
    spec = ScanSpec.parse(
        {
            "columns": None,
            "predicate": {"op": "lit"},
            "limit": 7,
            "aggregate": None,
            "whole_fragments": False,
        }
    )
    spec = dataclasses.replace(spec, predicate=None, filter_sql=sql)
    assert ids(read(table_path, spec)) == lance_ids(table_path, filter=sql)


def test_only_the_named_fragments_are_read(make_table: MakeTable, table_path: str):
    dataset = make_table()
    chosen = [dataset.get_fragment(n) for n in (1, 3)]
    for text in (None, "even"):
        options = {} if text is None else {"filter": text}
        expected = lance_ids(table_path, fragments=chosen, filter=text)
        assert ids(read(table_path, fragments="1,3", **options)) == expected
        assert ids(read(table_path, fragments="1,3", limit=50, **options)) == expected[:50]


def test_whole_fragments_arrive_in_one_partition_each(make_table: MakeTable, table_path: str):
    make_table()
    spec = ScanSpec(columns=None, whole_fragments=True)
    for options in ({}, {"filter": "even"}):
        parts = read_partitions(
            table_path, spec, target_partition_bytes=3000, with_row_address=True, **options
        )
        homes = [{address >> 32 for address in part["_rowaddr"].to_pylist()} for part in parts]
        assert sum(map(len, homes)) == len(set().union(*homes)) > 3
    assert (
        describe(table_path, ScanSpec(columns=None), target_partition_bytes=3000)["splits"] is True
    )
    assert describe(table_path, spec, target_partition_bytes=3000)["splits"] is False


def test_both_filters_hold_whatever_is_in_them(make_table: MakeTable, table_path: str):
    make_table()
    pushed = dataclasses.replace(PUSHED, filter_sql="id < 10 OR id = 500")
    assert ids(read(table_path, pushed, filter="even OR id = 7 -- a comment")) == [
        0,
        2,
        4,
        6,
        7,
        500,
    ]


def test_a_pushed_filter_that_lance_refuses_is_left_to_spark(
    make_table: MakeTable, table_path: str, caplog
):
    make_table()
    pushed = dataclasses.replace(PUSHED, filter_sql="no_such_function(id)")
    assert ids(read(table_path, pushed)) == lance_ids(table_path)
    assert "no_such_function" in caplog.text


def test_an_index_narrows_a_look_up_to_one_fragment(make_table: MakeTable, table_path: str):
    dataset = make_table(rows=5000, per_file=100, dirty=False)
    spec = ScanSpec(columns=ID, filtered=True, filter_sql="id = 4321")
    assert len({n for t in partitions(make_reader(table_path, spec)) for n in t.fragments}) == 50
    dataset.create_scalar_index("id", "BTREE")
    assert [t.fragments for t in partitions(make_reader(table_path, spec))] == [(43,)]
    assert ids(read(table_path, spec)) == [4321]
    assert describe(table_path, spec)["rows"] == 1


@pytest.mark.parametrize("columns", [ID, StructType([])], ids=["id", "count"])
@pytest.mark.parametrize(("rows", "tasks"), [(1000, 1), (100_000, 2)])
def test_rows_that_no_index_covers_are_found(
    table_path: str, columns: StructType, rows: int, tasks: int
):
    """Small files are one partition, because each partition opens the table.

    The filter reads its column of a whole file, which the scan may not return.
    """
    keys = [random.randbytes(48).hex() for _ in range(rows)]
    dataset = lance.write_dataset(pa.table({"id": range(rows), "key": keys}), table_path)
    dataset.create_scalar_index("key", "BTREE")
    lance.write_dataset(pa.table({"id": [-1], "key": keys[77:78]}), table_path, mode="append")
    spec = ScanSpec(columns=columns, filtered=True, exact=True, filter_sql=f"key = '{keys[77]}'")
    assert ids(read(table_path, dataclasses.replace(spec, columns=ID))) == [77, -1]
    planned = partitions(make_reader(table_path, spec))
    assert (len(planned), count(table_path, spec)) == (tasks, 2)
    assert {number for task in planned for number in task.fragments} == {0, 1}


def test_an_index_that_finds_too_much_is_not_asked_by_every_task(
    make_table: MakeTable, table_path: str, monkeypatch
):
    monkeypatch.setattr("lance_spark.read.filtering.MAX_INDEX_MATCHES", 10)
    ask_index.cache_clear()
    dataset = make_table(dirty=False)
    dataset.create_scalar_index("id", "BTREE")
    tasks = partitions(make_reader(table_path, filter="id < 500"))
    assert not any(task.use_index for task in tasks)
    assert ids(read(table_path, filter="id < 500")) == list(range(500))


def test_an_index_serves_a_scan_of_few_rows(make_table: MakeTable, table_path: str, monkeypatch):
    monkeypatch.setattr("lance_spark.read.filtering.MIN_LISTED_ROWS", 10)
    dataset = make_table(rows=800, dirty=False)
    dataset.create_scalar_index("id", "BTREE")
    for limit, serves in ((50, True), (51, False)):
        tasks = partitions(make_reader(table_path, filter=f"id < {limit}"))
        assert all((task.use_index or task.mask is not None) == serves for task in tasks)
        assert ids(read(table_path, filter=f"id < {limit}")) == list(range(limit))


@pytest.mark.parametrize("stable", [True, False])
def test_only_the_driver_searches_the_index_of_a_look_up(
    make_table: MakeTable, table_path: str, stable: bool
):
    dataset = make_table(stable=stable)
    dataset.create_scalar_index("id", "BTREE")
    text = "id IN (7, 450, 777, 778)"
    reader = make_reader(table_path, filter=text)
    tasks = partitions(reader)
    shutil.rmtree(f"{table_path}/_indices")
    forget_open_datasets()
    assert [
        row for task in tasks for batch in reader.read(task) for row in batch["id"].to_pylist()
    ] == lance_ids(table_path, filter=text, use_scalar_index=False)


def test_many_matches_of_an_index_are_searched_by_the_tasks(
    make_table: MakeTable, table_path: str, monkeypatch
):
    monkeypatch.setattr("lance_spark.read.filtering.MAX_MASKED_MATCHES", 9)
    dataset = make_table(dirty=False)
    dataset.create_scalar_index("id", "BTREE")
    for matches in (9, 10):
        tasks = partitions(make_reader(table_path, filter=f"id < {matches}"))
        assert [(task.use_index, task.mask is None) for task in tasks] == [
            (matches == 10, matches == 10)
        ]
        assert ids(read(table_path, filter=f"id < {matches}")) == list(range(matches))


def test_a_filter_that_an_index_answers_in_part_is_right(make_table: MakeTable, table_path: str):
    dataset = make_table()
    dataset.create_scalar_index("id", "BTREE")
    text = "id < 100 AND word LIKE 'w%-1%' AND even"
    assert ids(read(table_path, filter=text, target_partition_bytes=3000)) == lance_ids(
        table_path, filter=text, use_scalar_index=False
    )


def test_a_scan_without_columns_counts_rows_without_reading_them(
    make_table: MakeTable, table_path: str
):
    make_table()
    empty = ScanSpec(columns=StructType([]))
    assert count(table_path, empty) == len(lance_ids(table_path))
    filtered = dataclasses.replace(empty, filtered=True, filter_sql="word = 'word-3'")
    assert count(table_path, filtered) == len(lance_ids(table_path, filter="word = 'word-3'"))
    assert count(table_path, empty, limit=13) == 13


def test_an_empty_table_gives_no_rows(table_path: str):
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), table_path)
    assert read(table_path).num_rows == 0
    assert read(table_path, filter="id = 1").num_rows == 0
    assert read(table_path, limit=3).num_rows == 0
    assert count(table_path, ScanSpec(columns=StructType([]))) == 0


def test_batches_are_neither_tiny_nor_above_the_option(
    make_table: MakeTable, table_path: str, monkeypatch
):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("lance_spark.read.scan.MERGE_S", 600)
    make_table(rows=1000, per_file=10, dirty=False)
    reader = make_reader(table_path, batch_size=400)
    batches = [b.num_rows for task in partitions(reader) for b in reader.read(task)]
    assert batches == [400, 400, 200]


def test_wide_columns_are_fetched_only_for_rows_that_pass(
    make_table: MakeTable, table_path: str, monkeypatch
):
    """Lance by itself fetches narrow columns late too, which took eight times as long with half of the rows passing."""
    make_table()
    requests: list[object] = []
    scanner = lance.LanceDataset.scanner

    def note(self: lance.LanceDataset, columns: list[str], **options: object) -> object:
        requests.append(options.get("late_materialization"))
        return scanner(self, columns=columns, **options)

    reader = make_reader(table_path, filter="even")
    tasks = partitions(reader)
    monkeypatch.setattr(lance.LanceDataset, "scanner", note)
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) > 0
    assert ["wide"] in requests


def test_a_description_names_what_lance_does(make_table: MakeTable, table_path: str):
    make_table()
    spec = dataclasses.replace(PUSHED, filter_sql="id < 100")
    about = describe(table_path, spec, filter="even")
    assert "id < 100" in about["description"]
    assert "even" in about["description"]
    assert "[id]" in about["description"]
    assert about["bytes"] < describe(table_path, ScanSpec())["bytes"] / 5
    word = StructType([StructField("word", StringType())])
    assert describe(table_path, ScanSpec(columns=word))["rows"] == len(lance_ids(table_path))

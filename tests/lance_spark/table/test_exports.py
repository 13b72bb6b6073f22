"""Rows of tables, queries and searches in other libraries, and rows of other libraries in tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import lance
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    Connection,
    OptionError,
    RegistrationError,
    Table,
    UnsupportedOperationError,
    ValueConversionError,
)
from lance_spark.ingest import staging

ROWS = 60


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    """A database without a session: these reads and writes start no Spark."""
    return lance_spark.connect(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def table(db: Connection) -> Table:
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "x": [None if i % 7 == 0 else i / 4 for i in range(ROWS)],
            "text": [None if i % 5 == 0 else f"word {i % 9}" for i in range(ROWS)],
            "vector": pa.array([[float(i), 1.0] for i in range(ROWS)], pa.list_(pa.float32(), 2)),
            "json": pa.array(['{"a":1}'] * ROWS, pa.json_()),
        }
    )
    table = db.create_table("t", rows.slice(0, 40))
    table.add(rows.slice(40))
    table.to_lance().delete("id % 11 = 3")
    return table


def exporters(table: Table) -> dict[str, Any]:
    """Returns all objects with an Arrow stream, with the rows that the stream has."""
    vector = [5.0, 1.0]
    return {
        "table": (table, table.to_arrow()),
        "query": (
            query := table.search().where("id > 7").select(["id", "text"]).limit(30),
            query.to_arrow(),
        ),
        "search": (search := table.search(vector).limit(5).select(["id"]), search.to_arrow()),
        "batches": (table.to_batches(["id"], "id > 9"), table.to_arrow(["id"], "id > 9")),
    }


@pytest.mark.parametrize("name", ["table", "query", "search", "batches"])
def test_any_library_reads_the_stream(table: Table, name: str) -> None:
    exported, expected = exporters(table)[name]
    if name == "batches":  # a stream is read once
        assert pa.table(exported).equals(expected)
        return
    assert pa.table(exported).equals(expected) and pa.table(exported).schema == expected.schema
    assert pl.DataFrame(exported).to_dicts() == expected.to_pylist()
    counted = duckdb.sql("SELECT count(*), sum(id) FROM exported").fetchall()
    assert counted == [(len(expected), sum(expected["id"].to_pylist()))]
    copy = table.search().source and lance_spark.connect(Path(table.uri).parent).create_table(
        f"copy_{name}", exported
    )
    assert copy.to_arrow().to_pylist() == expected.to_pylist()


def test_batches_are_a_stream_of_one_version_with_a_schema(db: Connection) -> None:
    table = db.create_table("streamed", pa.table({"id": range(10)}))
    query = table.search().where("id >= 2")
    streams = [table.to_batches(batch_size=4), query.to_batches(4)]
    table.add([{"id": 99}])
    for stream, first in zip(streams, (0, 2), strict=True):
        assert isinstance(stream, pa.RecordBatchReader) and stream.schema.names == ["id"]
        batches = list(stream)
        assert max(batch.num_rows for batch in batches) <= 4
        assert [n for batch in batches for n in batch["id"].to_pylist()] == [*range(first, 10)]
    assert pa.table(table).num_rows == 11
    empty = db.create_table("empty", schema=pa.schema({"a": pa.list_(pa.float32(), 2)}))
    assert pa.table(empty).schema == empty.schema == pa.table(empty.search()).schema
    for read in (table.to_batches, table.search().to_batches):
        for size in (0, True, 1.5):
            with pytest.raises(OptionError, match="batch_size"):
                read(batch_size=size)  # type: ignore[arg-type]
    for read in (table.to_batches, table.to_polars):
        with pytest.raises(ColumnNotFoundError, match="nope"):
            read(["nope"])


STEPS: dict[str, Callable[[Any], Any]] = {
    "id": lambda frame: frame.filter(pl.col("id") > 23),
    "x": lambda frame: frame.filter(pl.col("x") < 9),
    "text": lambda frame: frame.filter(pl.col("text") != "word 1"),
    "no text": lambda frame: frame.filter(pl.col("text").is_null()),
    "vector": lambda frame: frame.filter(pl.col("vector").arr.sum() > 20),
    "nothing": lambda frame: frame.filter(pl.col("id") < 0),
    "head": lambda frame: frame.head(17),
    "tail": lambda frame: frame.tail(31),
    "slice": lambda frame: frame.slice(3, 9),
    "no rows": lambda frame: frame.head(0),
    "double": lambda frame: frame.with_columns(x=pl.col("x") * 2),
    "group": lambda frame: frame.group_by("text", maintain_order=True).agg(pl.all().first()),
}
columns = st.sampled_from([["id"], ["text", "id"], ["x"], ["id", "x", "text", "vector"]])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([*STEPS]), max_size=3),
    columns,
    st.sampled_from([None, "id > 20 AND x IS NOT NULL"]),
    st.sampled_from(["streaming", "in-memory"]),
    st.booleans(),
)
def test_a_query_of_the_lazy_frame_is_that_of_the_whole_frame(
    table: Table, steps: list[str], names: list[str], filter: str | None, engine: Any, joins: bool
) -> None:
    lazy: Any = table.to_polars(filter=filter)
    eager: Any = pl.from_arrow(table.to_arrow(filter=filter))
    for step in steps:
        lazy, eager = STEPS[step](lazy), STEPS[step](eager)
    if joins:  # at the end, because Polars defines no order of the rows of a join
        lazy, eager = (
            rows.join(rows.select("id", n="x"), on="id").sort("id", nulls_last=True)
            for rows in (lazy, eager)
        )
    assert_frame_equal(lazy.select(names).collect(engine=engine), eager.select(names))
    assert lazy.select(pl.len()).collect(engine=engine).item() == len(eager)


def test_the_lazy_frame_reads_its_columns_of_a_pinned_version(
    db: Connection, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = db.create_table("pinned", pa.table({"id": range(10), "other": range(10)})).to_polars()
    db.open_table("pinned").add([{"id": 10, "other": 0}])
    read: list[Any] = []
    scanner = lance.LanceDataset.scanner
    monkeypatch.setattr(
        lance.LanceDataset,
        "scanner",
        lambda self, *args, **kw: read.append(kw["columns"]) or scanner(self, *args, **kw),
    )
    assert frame.select(pl.col("id").sum()).collect().item() == 45
    assert [list(names) for names in read] == [["id"]]
    assert table.search([5.0, 1.0]).limit(2).select(["id"]).to_polars()["id"].to_list() == [5, 4]


def test_without_polars_the_message_says_what_to_install(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    for act in (table.to_polars, table.search().to_polars):
        with pytest.raises(UnsupportedOperationError, match="pip install polars, or call to_arrow"):
            act()


def test_duckdb_reads_only_the_columns_and_rows_of_its_query(table: Table) -> None:
    books = table.to_lance()  # noqa: F841 - DuckDB looks for the name
    query = "SELECT id FROM books WHERE id > 50 ORDER BY id"
    assert [n for (n,) in duckdb.sql(query).fetchall()] == table.to_arrow(["id"], "id > 50")[
        "id"
    ].to_pylist()
    plan = duckdb.sql(f"EXPLAIN {query}").fetchall()[0][1]
    assert "Projections: id" in plan and "Filters: " in plan


FRAME = pl.DataFrame({"id": [1, 2, 3], "n": [10, None, 30]}, schema={"id": pl.Int64, "n": pl.Int64})


def test_a_large_source_of_a_merge_streams_to_its_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_HELD_BYTES", 0)
    table = lance_spark.connect(tmp_path, spark).create_table(
        "t", pa.table({"id": [5, 7], "n": [0, 0]})
    )
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    result = merge.execute(FRAME.with_columns(id=pl.col("id") + 4).lazy())
    assert (result.rows_inserted, result.rows_updated) == (1, 2)
    expected = [(5, 10), (6, None), (7, 30)]
    assert sorted((row["id"], row["n"]) for row in table.to_arrow().to_pylist()) == expected
    version, files = table.version, {path for path in tmp_path.rglob("*") if path.is_file()}
    misfit = (pa.table({"id": [at], "n": [value]}) for at, value in ((1, 1.0), (2, 1.5)))
    with pytest.raises(ValueConversionError, match="column 'n', row 1 of the data"):
        merge.execute(misfit)  # type: ignore[arg-type]
    assert table.version == version
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_list_becomes_a_vector_as_the_messages_say(db: Connection) -> None:
    rows = [{"id": i, "v": [i / 3, 1.0, -i]} for i in range(20)]
    declared = db.create_table(
        "vectors", rows, schema=pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 3)})
    )
    table = db.create_table("lists", rows)
    call = r"table\.alter_columns\(\{'path': 'v', 'data_type': pa\.list_\(pa\.float32\(\), 3\)\}\)"
    query = [2.0, 1.0, -6.0]
    acts: list[Callable[[], object]] = [
        table.search(query).to_list,
        table.search(query, "v").to_list,
        lambda: table.create_index(vector_column_name="v", index_type="IVF_FLAT"),
    ]
    for act in acts:
        with pytest.raises((OptionError, lance_spark.UnsupportedTypeError), match=call):
            act()
    table.alter_columns({"path": "v", "data_type": pa.list_(pa.float32(), 3)})
    assert table.to_arrow().equals(declared.to_arrow())
    assert table.search(query).limit(3).to_list() == declared.search(query).limit(3).to_list()
    other = db.create_table("other", [{"v": [1.0]}, {"v": [1.0, 2.0]}])
    with pytest.raises(RegistrationError, match="2 items instead of 1"):
        other.alter_columns({"path": "v", "data_type": pa.list_(pa.float32(), 1)})
    assert pa.types.is_list(other.schema.field("v").type)


def test_lists_of_one_length_are_searched_without_a_schema(db: Connection) -> None:
    values = np.random.default_rng(1).random((30, 4), np.float32)
    forms: list[Any] = [
        [{"id": i, "vector": row.tolist()} for i, row in enumerate(values)],
        {"id": range(30), "vector": values.astype(np.float64)},
    ]
    for at, data in enumerate(forms):
        table = db.create_table(f"searched{at}", data)
        assert table.search(values[7]).limit(1).to_list()[0]["id"] == 7


def batches_of(count: int, rows: int) -> Iterator[pa.RecordBatch]:
    for at in range(count):
        ids = np.arange(at * rows, (at + 1) * rows)
        yield pa.record_batch(
            {"id": ids, "text": pa.array(["x" * 1000]).take(pa.array(np.zeros(rows, np.int64)))}
        )


@pytest.mark.long
def test_streams_have_bounded_memory(tmp_path: Path) -> None:
    """A gigabyte goes through each entry point in a process that may have 900 MiB more than at its start."""
    import subprocess

    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import duckdb, polars, pyarrow as pa, lance_spark
from tests.lance_spark.table.test_exports import batches_of
db = lance_spark.connect({str(tmp_path)!r})
db.create_table("warm", batches_of(1, 10)).to_polars().collect()
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
books = db.create_table("t", batches_of(64, 16_000))
def grown(): return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) >> 10
sizes = [grown()]
db.create_table("copy", books)
sizes.append(grown())
db.create_table("rows", books.search().where("id >= 0"))
sizes.append(grown())
assert duckdb.sql("SELECT count(text) FROM books").fetchall() == [(64 * 16_000,)]
sizes.append(grown())
print(*sizes)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert max(map(int, done.stdout.split())) < 900, done.stdout

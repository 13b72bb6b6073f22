"""If a table is laid out like its source, a load needs no shuffle. A wrong guess gives the same rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lance_spark import Connection, SourceKeysError
from lance_spark.load import source_alignment
from tests.lance_spark.load.loads import assert_same, left_join, load, make_table

pytestmark = pytest.mark.sample(9, tests=3)

KEYS: dict[str, Any] = {
    "numbers": lambda n: n,
    "text": lambda n: f"key {n:06}",
    "days": lambda n: dt.date(2000, 1, 1) + dt.timedelta(days=n),
    "moments": lambda n: dt.datetime(2000, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets parts of few rows be looked up by tasks of their own."""
    monkeypatch.setattr(source_alignment, "_LEAST_PART_ROWS", 5)


def source_of(kind: str, order: list[int]) -> pa.Table:
    keys = [KEYS[kind](n) for n in order]
    return pa.table(
        {
            "k": keys,
            "v": pa.array([n * 10 for n in order], pa.int64()),
            "w": [[n, n] for n in order],
        }
    )


def in_groups(source: pa.Table, folder: Path) -> str:
    """Writes Parquet files of 50 rows, with row groups of eight."""
    folder.mkdir()
    for number in range(0, len(source), 50):
        pq.write_table(source.slice(number, 50), folder / f"{number:04}.parquet", row_group_size=8)
    return str(folder)


def table_of(db: Connection, kind: str) -> Any:
    keys = pa.array([None if n == 9 else KEYS[kind](n) for n in range(0, 300, 3)])
    return make_table(
        db, pa.table({"k": keys, "v": pa.array(range(-100, 0), pa.int64())}), fragment_rows=40
    )


@pytest.mark.parametrize(
    ("table_type", "source_type"),
    [(pa.uint64(), pa.int64()), pytest.param(pa.int32(), pa.uint64(), marks=pytest.mark.long)],
    ids=str,
)
def test_a_look_up_in_order_compares_unsigned_keys_of_64_bits_with_other_integers_by_value(
    table_type: pa.DataType, source_type: pa.DataType, db: Connection, tmp_path: Path
) -> None:
    table = make_table(
        db, pa.table({"k": pa.array(range(0, 300, 3), table_type)}), fragment_rows=40
    )
    source = pa.table(
        {"k": pa.array(range(0, 300, 2), source_type), "v": pa.array(range(150), pa.int64())}
    )
    location = in_groups(source, tmp_path / "ordered")
    assert not table.plan_load_columns(location, "k", ["v"]).shuffles
    before = table.to_arrow()
    load(table, location, "k", ["v"])
    assert_same(table.to_arrow(), left_join(before, source, "k", ["v"]))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("on_missing", ["carry", "null"])
def test_a_source_in_the_order_of_the_table_needs_no_shuffle(
    kind: str, on_missing: Any, db: Connection, tmp_path: Path
) -> None:
    table = table_of(db, kind)
    source = source_of(kind, [n for n in range(300) if n % 5])
    location = in_groups(source, tmp_path / "ordered")
    plan = table.plan_load_columns(location, "k", ["v", "w"])
    assert not plan.shuffles and "without a shuffle" in plan.explain()
    before = table.to_arrow()
    load(table, location, "k", ["v", "w"], on_missing=on_missing)
    joined = left_join(before, source, "k", ["v", "w"])
    if on_missing == "null":
        matched = pc.is_in(before["k"], source["k"])
        joined = joined.set_column(1, "v", pc.if_else(matched, joined["v"], None))
    assert_same(table.to_arrow(), joined)


def test_a_source_in_another_order_is_shuffled_and_looked_up_by_force_gives_the_same(
    db: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(db, "numbers")
    order = np.random.default_rng(3).permutation(300).tolist()
    source = source_of("numbers", order)
    location = in_groups(source, tmp_path / "other")
    assert table.plan_load_columns(location, "k", ["v", "w"]).shuffles
    monkeypatch.setattr(source_alignment, "_MOST_READS", float("inf"))
    assert not table.plan_load_columns(location, "k", ["v", "w"]).shuffles
    before = table.to_arrow()
    load(table, location, "k", ["v", "w"])
    assert_same(table.to_arrow(), left_join(before, source, "k", ["v", "w"]))


def test_keys_of_several_columns_are_looked_up_by_the_first(db: Connection, tmp_path: Path) -> None:
    rows = range(100)
    keys = {"a": [n // 10 for n in rows], "b": [f"{n % 10}" for n in rows]}
    table = make_table(db, pa.table(keys), fragment_rows=30)
    source = pa.table({"b": keys["b"], "a": keys["a"], "x": [n * 2 for n in rows]}).filter(
        pc.field("a") != 4
    )
    location = in_groups(source, tmp_path / "pairs")
    assert not table.plan_load_columns(location, ["a", "b"], ["x"]).shuffles
    load(table, location, ["a", "b"], ["x"])
    assert table.to_arrow()["x"].to_pylist() == [None if n // 10 == 4 else n * 2 for n in rows]


def test_files_that_do_not_tell_their_keys_are_shuffled(db: Connection, tmp_path: Path) -> None:
    table = table_of(db, "numbers")
    path = tmp_path / "silent.parquet"
    pq.write_table(
        source_of("numbers", list(range(300))), path, row_group_size=8, write_statistics=False
    )
    assert table.plan_load_columns(str(path), "k", ["v"]).shuffles


def test_rows_without_a_match_are_an_error_without_a_shuffle_too(
    db: Connection, tmp_path: Path
) -> None:
    table = table_of(db, "numbers")
    location = in_groups(source_of("numbers", list(range(290))), tmp_path / "short")
    with pytest.raises(SourceKeysError, match=r"4 rows of the table have no match.*None, 291"):
        table.load_columns(location, "k", ["v"], on_missing="error")


def test_many_small_fragments_read_each_row_group_together(db: Connection, tmp_path: Path) -> None:
    table = make_table(db, pa.table({"k": pa.array(range(60), pa.int64())}), fragment_rows=2)
    source = source_of("numbers", list(range(60)))
    location = in_groups(source, tmp_path / "ordered")
    assert not table.plan_load_columns(location, "k", ["v"]).shuffles
    load(table, location, "k", ["v"])
    assert table.to_arrow()["v"].to_pylist() == source["v"].to_pylist()


def test_small_fragments_in_no_order_among_themselves_are_shuffled(
    db: Connection, tmp_path: Path
) -> None:
    order = np.random.default_rng(5).permutation(100)
    keys = [int(n) * 3 + at for n in order for at in range(3)]
    table = make_table(db, pa.table({"k": pa.array(keys, pa.int64())}), fragment_rows=3)
    location = in_groups(source_of("numbers", list(range(300))), tmp_path / "ordered")
    assert table.plan_load_columns(location, "k", ["v"]).shuffles

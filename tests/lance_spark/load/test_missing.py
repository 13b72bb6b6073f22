"""Rows without a match: they keep their values, become NULL, or nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, Connection
from lance_spark.errors import LanceSparkError, SchemaMismatchError, SourceKeysError
from tests.lance_spark.load.loads import (
    assert_same,
    left_join,
    load,
    make_table,
    nothing_changes,
    numbered,
    of_ids,
    old_files_stay,
    values,
    write_file,
)

pytestmark = pytest.mark.sample(2, tests=3)

OLD = pa.array([None if i % 5 == 0 else -i for i in range(30)], pa.int64())


@pytest.mark.guarantee("L09", "L10")
@pytest.mark.parametrize("on_missing", ["carry", "null"])
def test_rows_without_a_match_keep_their_values_or_become_null_in_existing_and_new_columns(
    on_missing: Any, db: Connection
) -> None:
    table = make_table(db, numbered(v=OLD, name=[f"old {i}" for i in range(30)]))
    source = pa.table(
        {
            "id": pa.array([1, 2, 5, 15, 29, 99], pa.int64()),
            # NULL in the source counts as a value.
            "v": pa.array([10, None, 50, 150, 290, 990], pa.int64()),
            "name": ["one", None, "five", "fifteen", "last", "absent"],
            "fresh": [1.5, 2.5, None, 3.5, 4.5, 5.5],
        }
    )
    before = table.to_arrow()
    with old_files_stay(table):
        result = load(table, source, "id", ["v", "fresh", "name"], on_missing=on_missing)
    assert_same(
        table.to_arrow(), left_join(before, source, "id", ["v", "fresh", "name"], on_missing)
    )
    assert (result.status, result.rows_selected, result.rows_failed) == ("DONE", 30, 0)
    if on_missing == "carry":
        assert (result.rows_computed, result.rows_skipped) == (5, 25)


def test_fragments_without_a_match_get_no_file_where_values_are_kept(db: Connection) -> None:
    table = make_table(db, numbered(v=OLD))
    result = load(table, of_ids([11, 12]), "id", ["v"])
    files = [len(fragment.data_files()) for fragment in table.to_lance().get_fragments()]
    assert files == [1, 2, 1] and result.fragments_done == result.fragments_total == 3
    assert values(table) == {i: 10 * i if i in (11, 12) else OLD[i].as_py() for i in range(30)}


def test_a_load_that_matches_nothing_commits_nothing_but_a_new_column(db: Connection) -> None:
    table = make_table(db, numbered(v=OLD))
    with nothing_changes(table):
        assert load(table, of_ids([500]), "id", ["v"]).versions == ()
    before = table.version
    assert load(table, of_ids([500], w=[1]), "id", ["w"]).status == "DONE"
    assert table.version == before + 1 and table.count_rows("w IS NULL") == 30


@pytest.mark.guarantee("L11")
def test_missing_rows_are_refused_with_their_number_and_examples_and_nothing_is_changed(
    db: Connection,
) -> None:
    table = make_table(db, numbered(v=OLD))
    source = of_ids([i for i in range(30) if i not in (4, 17)], fresh=["x"] * 28)
    with (
        nothing_changes(table),
        pytest.raises(SourceKeysError, match="2 rows of the table have no match") as caught,
    ):
        table.load_columns(source, "id", ["v", "fresh"], on_missing="error")
    text = str(caught.value)
    assert (
        "by column 'id' (among them: " in text
        and "4" in text
        and "17" in text
        and table.uri in text
    )
    with (
        nothing_changes(table),
        pytest.raises(SourceKeysError, match="1 row of the table has no match"),
    ):
        table.load_columns(of_ids(range(29)), "id", ["v"], on_missing="error")
    with old_files_stay(table):
        result = load(table, of_ids(range(-5, 31)), "id", ["v"], on_missing="error")
    assert values(table) == {i: 10 * i for i in range(30)} and result.rows_computed == 30


def test_a_null_key_of_the_table_is_missing_and_a_deleted_row_is_not(db: Connection) -> None:
    table = make_table(db, pa.table({"id": pa.array([1, 2, None, 4], pa.int64())}))
    with (
        nothing_changes(table),
        pytest.raises(SourceKeysError, match=r"1 row of .*among them: None"),
    ):
        table.load_columns(of_ids([1, 2, 4]), "id", ["v"], on_missing="error")
    lance.dataset(table.uri).delete("id IS NULL")
    table.load_columns(of_ids([1, 2, 4]), "id", ["v"], on_missing="error")
    assert values(table) == {1: 10, 2: 20, 4: 40}


@pytest.mark.long
@pytest.mark.guarantee("L04")
def test_several_loads_that_cover_different_keys_fill_a_column_together(
    db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    for first in (0, 1, 2):
        ids = [i for i in range(first, 30, 3) if i != 6]
        result = load(table, write_file(of_ids(ids), files / f"{first}.parquet"), "id", ["v"])
        assert result.rows_computed == len(ids) and result.rows_from_checkpoint == 0
    assert values(table) == {i: None if i == 6 else 10 * i for i in range(30)}
    # A later load takes precedence, and leaves rows without a match.
    load(table, of_ids([6, 7], factor=-1), "id", ["v"])
    assert values(table) == {i: -i if i in (6, 7) else 10 * i for i in range(30)}
    load(table, str(files), "id", ["v"], on_missing="null")
    assert values(table) == {i: None if i == 6 else 10 * i for i in range(30)}


def test_a_table_without_rows_gets_the_columns(db: Connection) -> None:
    table = make_table(db, numbered(rows=0))
    for rule in ("carry", "null", "error"):
        assert load(table, of_ids([1]), "id", ["v"], on_missing=rule).status == "DONE"
    assert table.to_lance().schema.names == ["id", "v"]


# Columns without NULLs


def required(db: Connection) -> Any:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    return make_table(db, pa.table({"id": range(30), "v": [-i for i in range(30)]}, schema=schema))


@pytest.mark.long
def test_a_column_that_cannot_be_null_takes_values_and_refuses_to_make_rows_null(
    db: Connection,
) -> None:
    table = required(db)
    with (
        nothing_changes(table),
        pytest.raises(SchemaMismatchError, match=r"'v' cannot be NULL.*on_missing='null'"),
    ):
        table.load_columns(of_ids([1]), "id", ["v"], on_missing="null")
    load(table, of_ids([1, 12]), "id", ["v"])
    assert values(table) == {i: 10 * i if i in (1, 12) else -i for i in range(30)}
    assert not table.to_lance().schema.field("v").nullable
    load(table, of_ids(range(30)), "id", ["v"], on_missing="error")
    assert values(table) == {i: 10 * i for i in range(30)}


def test_a_null_for_a_column_that_cannot_be_null_is_an_error_and_no_row_of_its_fragment_is_changed(
    db: Connection,
) -> None:
    table = required(db)
    source = pa.table({"id": pa.array([1, 2], pa.int64()), "v": pa.array([10, None], pa.int64())})
    with nothing_changes(table), pytest.raises(LanceSparkError, match=r"'v'|NULL|null"):
        table.load_columns(source, "id", ["v"])
    assert values(table) == {i: -i for i in range(30)}


@pytest.mark.parametrize("source_values", [pa.array(["1"]), pa.array([[1]])], ids=["text", "lists"])
def test_values_of_another_type_than_the_column_are_refused(
    source_values: pa.Array[Any], db: Connection
) -> None:
    table = make_table(db, numbered(v=OLD))
    source = pa.table({"id": pa.array([1], pa.int64()), "v": source_values, "fresh": [1]})
    with nothing_changes(table), pytest.raises(SchemaMismatchError, match=r"v: .*v: int64"):
        table.load_columns(source, "id", ["fresh", "v"])


@pytest.mark.long
def test_a_value_that_does_not_fit_the_column_ends_the_load_by_its_name_and_none_is_cut_off(
    db: Connection,
) -> None:
    table = make_table(db, numbered(v=OLD, small=pa.array([1] * 30, pa.int8())))
    for name, value in {"v": 1.5, "small": 300}.items():
        source = pa.table({"id": [1, 12], name: [type(value)(7), value]})
        with (
            nothing_changes(table),
            pytest.raises(BackfillIncompleteError, match=rf"{value} .*column '{name}'"),
        ):
            table.load_columns(source, "id", [name])
    source = pa.table({"id": [1, 12], "v": [7.0, 8.0]})
    table.load_columns(source, "id", ["v"])
    assert {i: values(table)[i] for i in (1, 12, 13)} == {1: 7, 12: 8, 13: -13}

"""Updates and deletions compared with the same statements of pylance, without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_spark.dml.edits import UpdateStrategy
from lance_spark.errors import (
    ColumnNotFoundError,
    FilterError,
    OptionError,
    UnsupportedOperationError,
    ValueConversionError,
)
from tests.lance_spark.dml.tables import content, lineage, make, rows
from tests.support import inline_rows

CONDITIONS = st.sampled_from(
    [
        "id = 4",
        "id IN (0, 11, 22)",
        "id % 2 = 0",
        "id < 10",
        "a IS NULL",
        "s > 's2'",
        "t.x > 12",
        "a = 8 OR id = 9",
        "true",
        "false",
        "id >= 10 AND id < 20",
    ]
)
EXPRESSIONS = st.dictionaries(
    st.sampled_from(["a", "s", "v", "t"]), st.integers(0, 1), min_size=1, max_size=3
).map(lambda chosen: {name: TEXTS[name][which] for name, which in chosen.items()})
# pylance evaluates each expression over the results of the expressions before; SQL, and this package, over the original
# row.
TEXTS = {
    "a": ("a + 1", "CAST(id * 2 AS INT)"),
    "s": ("concat(s, '!')", "NULL"),
    "v": ("v", "NULL"),
    "t": ("t", "named_struct('x', id, 'y', 'k')"),
}
STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), CONDITIONS, EXPRESSIONS),
        st.tuples(st.just("delete"), CONDITIONS.filter(lambda text: text != "true"), st.none()),
        st.tuples(st.just("compact"), st.none(), st.none()),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.guarantee("C01", "C02")
@given(
    statements=STATEMENTS,
    stable=st.booleans(),
    indexed=st.booleans(),
    version=st.sampled_from(["2.0", "stable"]),
    tasks=st.integers(1, 2),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_statements_do_what_pylance_does(
    tmp_path_factory: pytest.TempPathFactory,
    statements: list[tuple[str, str, Mapping[str, str]]],
    stable: bool,
    indexed: bool,
    version: str,
    tasks: int,
):
    inline_rows.TASKS.set(tasks)
    folder = tmp_path_factory.mktemp("statements")
    our_uri, lance_uri = str(folder / "ours"), str(folder / "theirs")
    for uri in (our_uri, lance_uri):
        make(uri, stable=stable, version=version)
        if indexed:
            lance.dataset(uri).create_scalar_index("a", "BTREE")
            lance.dataset(uri).create_scalar_index("id", "BTREE")
    for kind, where, expressions in statements:
        before = lineage(our_uri) if stable else {}
        matched = {
            row["id"]
            for row in lance.dataset(our_uri).to_table(columns=["id"], filter=where).to_pylist()
        }
        if kind == "compact":
            lance.dataset(our_uri).optimize.compact_files()
            continue
        if kind == "delete":
            result = inline_rows.delete(our_uri, where)
            lance.dataset(lance_uri).delete(where)
            assert (result.rows_updated, result.rows_deleted) == (0, len(matched))
        else:
            result = inline_rows.update(our_uri, where, **expressions)
            if matched:
                lance.dataset(lance_uri).update(dict(expressions), where=where)
            assert (result.rows_updated, result.rows_deleted) == (len(matched), 0)
        assert result.version == lance.dataset(our_uri).version
        assert content(our_uri) == content(lance_uri)
        if stable:
            lineage_after = lineage(our_uri)
            # Rows keep their ids, and only updated rows have the new version.
            assert lineage_after == {
                number: (*old[:2], result.version if number in matched else old[2])
                for number, old in before.items()
                if kind == "update" or number not in matched
            }
        for condition in ("a = 8", "a > 15", "id = 4"):
            matching_ids = (
                lance.dataset(our_uri).to_table(columns=["id"], filter=condition)["id"].to_pylist()
            )
            scanned = lance.dataset(our_uri).scanner(
                columns=["id"], filter=condition, use_scalar_index=False
            )
            assert sorted(matching_ids) == sorted(scanned.to_table()["id"].to_pylist())


def files(uri: str) -> dict[str, int]:
    return {name: os.stat(f"{uri}/data/{name}").st_size for name in os.listdir(f"{uri}/data")}


def test_many_rows_get_column_files_and_few_rows_move(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri)
    before = files(uri)
    inline_rows.update(uri, "id < 9", {"a": 5})
    new_files = files(uri).keys() - before.keys()
    fragments = lance.dataset(uri).get_fragments()
    assert len(new_files) == 1 and len(fragments) == 3
    assert [len(fragment.metadata.files) for fragment in fragments] == [2, 1, 1]
    assert lance.file.LanceFileReader(f"{uri}/data/{new_files.pop()}").metadata().schema.names == [
        "a"
    ]
    inline_rows.update(uri, "id = 9", {"s": "x", "v": [1, 2], "t": {"x": 1, "y": "y"}})
    fragments = lance.dataset(uri).get_fragments()
    assert [fragment.count_rows() for fragment in fragments] == [9, 10, 10, 1]
    assert {name: size for name, size in files(uri).items() if name in before} == before


def test_values_of_all_kinds_are_set(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri)
    values = {"a": 7, "s": None, "v": [0.5, 1.5], "t": {"x": 1, "y": "é"}}
    result = inline_rows.update(uri, "id >= 5", values)
    assert result.rows_updated == 25 and str(result) == "25 rows updated, version 2"
    assert [row for row in content(uri) if row["id"] >= 5] == [
        {"id": i, **values} for i in range(5, 30)
    ]
    assert content(uri)[:5] == rows(range(5)).to_pylist()


def test_a_blob_is_set_and_others_stay(tmp_path: Path):
    uri = str(tmp_path / "t")
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table(
        [pa.array(range(20)), [bytes([i]) * 100 for i in range(20)]],
        pa.schema([("id", pa.int64()), blob]),
    )
    lance.write_dataset(table, uri, max_rows_per_file=10, enable_stable_row_ids=True)
    inline_rows.update(uri, "id = 3", {"b": b"new"})
    inline_rows.update(uri, "id = 4", id="id + 100")  # no row of a table with blobs moves
    dataset = lance.dataset(uri)
    assert len(dataset.get_fragments()) == 2
    blobs = dict(zip(range(20), dataset.take_blobs("b", indices=list(range(20))), strict=True))
    assert {i: blob_file.read() for i, blob_file in blobs.items()} == {
        i: b"new" if i == 3 else bytes([i]) * 100 for i in range(20)
    }
    with pytest.raises(UnsupportedOperationError, match="cannot make the blobs"):
        inline_rows.update(uri, None, b="b")


def test_nothing_to_do_makes_no_version(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri)
    assert inline_rows.update(uri, "id = 77", {"a": 1}).version == 1
    assert str(inline_rows.delete(uri, "false")) == "no row concerned, version 1"
    assert lance.dataset(uri).version == 1


@pytest.mark.guarantee("C06")
def test_values_that_do_not_fit_are_refused_before_a_write(tmp_path: Path):
    uri = str(tmp_path / "t")
    strict = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("s", pa.string())]
    )
    lance.write_dataset(
        pa.table({"id": [1, 2], "a": [1, None], "s": ["1", "x"]}, strict),
        uri,
        enable_stable_row_ids=True,
    )
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for error, message, statement in (
        (
            ColumnNotFoundError,
            "'z' does not exist.*id, a, s",
            lambda: inline_rows.update(uri, None, {"z": 1}),
        ),
        (ColumnNotFoundError, "'t.x' does not", lambda: inline_rows.update(uri, None, {"t.x": 1})),
        (FilterError, "zz", lambda: inline_rows.update(uri, "zz > 1", {"a": 1})),
        (FilterError, "zz", lambda: inline_rows.delete(uri, "zz > 1")),
        (OptionError, "where", lambda: inline_rows.delete(uri, " ")),
        (OptionError, "values_sql.*nope", lambda: inline_rows.update(uri, None, a="nope(3)")),
        (
            OptionError,
            r"values_sql\['s'\].*nope",
            lambda: inline_rows.update(uri, None, a="a + 1", s="nope(3)"),
        ),
        (
            OptionError,
            "of type int32.*not",
            lambda: inline_rows.update(uri, None, a="named_struct('x', id)"),
        ),
        (
            ValueConversionError,
            "'a lot' does not fit int32",
            lambda: inline_rows.update(uri, None, {"a": "a lot"}),
        ),
        (
            ValueConversionError,
            "does not fit int32",
            lambda: inline_rows.update(uri, None, {"a": 2**40}),
        ),
        (ValueConversionError, "NULL.*'id'", lambda: inline_rows.update(uri, None, {"id": None})),
        # These errors appear in tasks, next to the rows.
        (ValueConversionError, "NULL.*'id'", lambda: inline_rows.update(uri, None, id="a")),
        (
            ValueConversionError,
            "column 'a'",
            lambda: inline_rows.update(uri, None, a="id * 9999999999"),
        ),
        (FilterError, "Cannot cast|parse", lambda: inline_rows.delete(uri, "CAST(s AS INT) = 1")),
    ):
        with pytest.raises(error, match=message):
            statement()
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before, message


NEW = {"k": 77, "s": "another word", "l": [77], "v": [9.0, 9.0]}
QUERIES: dict[str, tuple[str, dict[str, object]]] = {
    "BTREE": ("k", {"filter": "k = 77"}),
    "BITMAP": ("k", {"filter": "k = 77"}),
    "LABEL_LIST": ("l", {"filter": "array_has(l, 77)"}),
    "NGRAM": ("s", {"filter": "contains(s, 'another')"}),
    "INVERTED": ("s", {"full_text_query": "another"}),
    "IVF_FLAT": ("v", {"nearest": {"column": "v", "q": [9.0, 9.0], "k": 4}}),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("kind", QUERIES)
def test_an_index_does_not_hide_current_values(
    tmp_path: Path, kind: str, way: UpdateStrategy, stable: bool
) -> None:
    column, query = QUERIES[kind]
    initial = pa.Table.from_pylist(
        [{"id": i, "k": i, "s": f"word{i}", "l": [i], "v": [i / 40, 0]} for i in range(20)]
    )
    vectors = initial["v"].cast(pa.list_(pa.float32(), 2))
    uri = str(tmp_path / "t.lance")
    table = initial.set_column(4, "v", vectors)
    dataset = lance.write_dataset(table, uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    if kind == "IVF_FLAT":
        dataset.create_index(column, kind, num_partitions=1)
    else:
        dataset.create_scalar_index(column, kind)
    with inline_rows.only(way):
        inline_rows.update(uri, "id = 3", NEW)
    inline_rows.merge(
        uri, "id", pa.Table.from_pylist([{"id": i, **NEW} for i in (12, 20, 21)], table.schema)
    )
    ids_found = lance.dataset(uri).to_table(columns=["id"], **query)["id"].to_pylist()  # type: ignore[arg-type]
    assert sorted(ids_found) == [3, 12, 20, 21]

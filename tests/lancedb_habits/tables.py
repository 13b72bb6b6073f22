"""Habits of databases and tables."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tests.lancedb_habits.habit import Helpers, habit

NAN = float("nan")
ROWS = [{"id": i, "price": 10 * i} for i in range(5)]
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.int64())])


@habit([True, False, 2, ["a", "b"], "a"])
def a_database_is_a_container_of_its_tables(db: Any, h: Helpers) -> Any:
    db.create_table("b", ROWS)
    db.create_table("a", ROWS)
    return ["a" in db, "c" in db, len(db), db.table_names(), db["a"].name]


@habit([0, False])
def drop_all_tables_empties_the_database(db: Any, h: Helpers) -> Any:
    db.create_table("a", ROWS)
    db.create_table("b", ROWS)
    db.drop_all_tables()
    return [len(db), "a" in db]


@habit(["ValueError", "ValueError", "ValueError", "ValueError", "ValueError"])
def errors_of_databases_are_value_errors(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS)
    return h.errors(
        lambda: db.open_table("none"),
        lambda: db["none"],
        lambda: db.create_table("t", ROWS),
        lambda: db.create_table("u"),
        lambda: db.drop_table("none"),
    )


@habit([5, 5])
def exist_ok_opens_the_table(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS)
    table = db.create_table("t", ROWS, exist_ok=True)
    return [len(table), len(db["t"])]


@habit(["ValueError"])
def exist_ok_refuses_another_schema(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS)
    return h.errors(
        lambda: db.create_table("t", schema=pa.schema({"q": pa.int32()}), exist_ok=True)
    )


@habit(
    ["none"],
    differs="LanceDB compares the columns of the data, and lance-spark does not read the data",
)
def exist_ok_reads_no_data(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS)
    return h.errors(lambda: db.create_table("t", [{"q": 1}], exist_ok=True))


@habit([["id", "price"], 0])
def create_table_takes_data_and_schema_by_position(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", None, KEYED)
    return [table.schema.names, len(table)]


@habit([2, 1])
def overwrite_is_a_new_version(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS)
    table = db.create_table("t", ROWS[:1], mode="overwrite")
    return [table.version, len(table)]


@habit([5, 6, 5, ["RuntimeError"]])
def a_clone_shares_the_data_of_its_source(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    clone = db.clone_table("clone", table.uri)
    lengths = [len(clone)]
    clone.add([{"id": 9, "price": 9}])
    table.add(ROWS)
    of_version = db.clone_table("old", table.uri, source_version=1)
    deep = h.errors(lambda: db.clone_table("deep", table.uri, is_shallow=False))
    return [*lengths, len(clone), len(of_version), deep]


@habit([2, 2, 7])
def add_returns_the_version(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    result = table.add(ROWS[:2])
    return [result.version, table.version, len(table)]


@habit([2, 1])
def add_with_overwrite_replaces_the_rows(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    return [table.add(ROWS[:1], mode="overwrite").version, len(table)]


@habit([{"id": 7, "price": None}])
def missing_columns_are_null(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=pa.schema({"id": pa.int64(), "price": pa.int64()}))
    table.add([{"id": 7}])
    return table.to_arrow().to_pylist()


@habit(["ValueError", "ValueError", "ValueError"])
def wrong_rows_are_value_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    return h.errors(
        lambda: table.add([{"id": 1, "title": "x"}]),
        lambda: table.add([{"id": "one", "price": 2}]),
        lambda: table.add({"id": 1, "price": 2}),
    )


@habit([2, 3, 4, 5, ["id", "cents", "y"]])
def changes_of_columns_return_versions(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    versions = [
        table.add_columns({"x": "price + 1"}).version,
        table.add_columns(pa.field("y", pa.int32())).version,
        table.alter_columns({"path": "price", "rename": "cents"}).version,
        table.drop_columns(["x"]).version,
    ]
    return [*versions, table.schema.names]


@habit([["x", "y"], [None, None]])
def columns_of_a_schema_are_null(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", [{"id": 1}])
    table.add_columns(pa.schema({"x": pa.int32(), "y": pa.string()}))
    return [table.schema.names[1:], list(table.to_arrow().to_pylist()[0].values())[1:]]


@habit(["ValueError"] * 6)
def unknown_columns_and_filters_are_value_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    return h.errors(
        lambda: table.drop_columns(["none"]),
        lambda: table.alter_columns({"path": "none", "rename": "x"}),
        lambda: table.search().select(["none"]).to_list(),
        lambda: table.search().where("none = 1").to_list(),
        lambda: table.count_rows("none = 1"),
        lambda: table.create_scalar_index("none"),
    )


@habit([1, 1, ["RuntimeError", "RuntimeError"]])
def tags_name_versions(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.tags.create("first", 1)
    errors = h.errors(
        lambda: table.tags.get_version("none"),
        lambda: table.tags.delete("none"),
    )
    return [table.tags.list()["first"]["version"], table.tags.get_version("first"), errors]


@habit(["ValueError"], differs="LanceDB raises RuntimeError for the name of another tag")
def tags_have_names_of_their_own(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.tags.create("first", 1)
    return h.errors(lambda: table.tags.create("first", 1))


@habit([5, 6, 5, 3])
def checkout_and_restore_move_between_versions(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.add(ROWS[:1])
    table.checkout(1)
    lengths = [len(table)]
    table.checkout_latest()
    lengths.append(len(table))
    table.restore(1)
    return [*lengths, len(table), table.version]


@habit([[1, 2], ["metadata", "timestamp", "version"]])
def list_versions_has_numbers_and_times(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.add(ROWS[:1])
    versions = table.list_versions()
    return [[version["version"] for version in versions], sorted(versions[0])]


@habit(["ValueError", "ValueError", "ValueError"])
def wrong_versions_are_value_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    return h.errors(lambda: table.checkout(99), lambda: table.checkout("none"), table.restore)


@habit([["id"], 1])
def a_model_class_is_a_schema(db: Any, h: Helpers) -> Any:
    def to_arrow_schema(cls: type[object]) -> pa.Schema:
        return pa.schema({"id": pa.int64()})

    if h.is_lancedb:
        model = type("Row", (h.modules["pydantic"].LanceModel,), {"__annotations__": {"id": int}})
    else:
        model = type("Row", (), {"to_arrow_schema": classmethod(to_arrow_schema)})
    table = db.create_table("t", schema=model)
    table.add([{"id": 1}])
    return [table.schema.names, len(table)]


@habit(["none", "ValueError", "ValueError", "ValueError", "ValueError"])
def the_primary_key_is_set_once(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=KEYED)
    other = db.create_table("u", schema=pa.schema([pa.field("x", pa.float32(), nullable=False)]))
    return h.errors(
        lambda: table.set_unenforced_primary_key("id"),
        lambda: other.set_unenforced_primary_key(["x", "y"]),
        lambda: other.set_unenforced_primary_key([]),
        lambda: other.set_unenforced_primary_key("none"),
        lambda: other.set_unenforced_primary_key("x"),
    )


@habit("1")
def the_primary_key_is_lances(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=KEYED)
    table.set_unenforced_primary_key(["id"])
    metadata = table.schema.field("id").metadata
    return metadata[b"lance-schema:unenforced-primary-key:position"].decode()


@habit([2, 1, 2], jobs="inline")
def update_returns_counts_and_version(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    result = table.update(where="id = 3", values={"price": 7})
    return [
        result.version,
        result.rows_updated,
        len(table.search().where("price = 7 or price = 0").to_list()),
    ]


@habit([5, [1, 11, 21, 31, 41]], jobs="inline")
def update_takes_sql(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    result = table.update(values_sql={"price": "price + 1"})
    return [result.rows_updated, sorted(table.to_arrow()["price"].to_pylist())]


@habit(["ValueError", "ValueError"], jobs="inline")
def wrong_updates_are_value_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    return h.errors(lambda: table.update("id = 3", {"none": 1}), lambda: table.update("id = 3"))


@habit([2, 3, 2], jobs="inline")
def delete_returns_counts_and_version(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    result = table.delete("id > 1")
    return [result.version, result.num_deleted_rows, len(table)]


@habit([2, 1, 1, 0, 2, 6], jobs="inline")
def merge_insert_returns_counts(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    result = merge.execute([{"id": 1, "price": 7}, {"id": 9, "price": 7}])
    counts = [
        result.num_updated_rows,
        result.num_inserted_rows,
        result.num_deleted_rows,
        result.num_rows,
    ]
    return [result.version, *counts, len(table)]


@habit([["RuntimeError", "none"], 6], jobs="inline")
def merge_insert_has_a_timeout(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    merge = table.merge_insert("id").when_not_matched_insert_all()
    errors = h.errors(
        lambda: merge.execute([{"id": 8, "price": 7}], timeout=timedelta(0)),
        lambda: merge.execute([{"id": 9, "price": 7}], timeout=timedelta(seconds=60)),
    )
    return [errors, len(table)]


@habit([1, 1, [[1, 7], [9, 7]]], jobs="inline")
def merge_insert_compares_the_primary_key(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", pa.table({"id": [1], "price": [0]}, schema=KEYED))
    table.set_unenforced_primary_key("id")
    merge = table.merge_insert([]).when_matched_update_all().when_not_matched_insert_all()
    result = merge.execute(pa.table({"id": [1, 9], "price": [7, 7]}, schema=KEYED))
    rows = sorted([row["id"], row["price"]] for row in table.to_arrow().to_pylist())
    return [result.num_updated_rows, result.num_inserted_rows, rows]


@habit([0, 1, 4, [0, 9]], jobs="spark")
def merge_insert_deletes_rows_that_the_source_lacks(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    merge = (
        table.merge_insert("id").when_not_matched_insert_all().when_not_matched_by_source_delete()
    )
    result = merge.execute([{"id": 0, "price": 7}, {"id": 9, "price": 7}])
    ids = sorted(table.to_arrow()["id"].to_pylist())
    return [result.num_updated_rows, result.num_inserted_rows, result.num_deleted_rows, ids]


@habit([1, 1, 1, [0, 1, 2, 4]], jobs="spark")
def conditions_of_deletions_name_columns_of_the_table(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", pa.table({"id": [0, 1, 2, 3], "price": [0, 0, 0, 0]}))
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    result = merge.when_not_matched_by_source_delete("id > 2").execute(
        pa.table({"id": [2, 4], "price": [1, 1]})
    )
    counts = [result.num_inserted_rows, result.num_updated_rows, result.num_deleted_rows]
    return [*counts, sorted(table.to_arrow()["id"].to_pylist())]


@habit([[0, 1, 2, 3, 4, 9], [0]], jobs="inline")
def merge_insert_repairs_bad_vectors(db: Any, h: Helpers) -> Any:
    table = db.create_table(
        "t", pa.table({"vector": pa.array([[1.0, 2.0]] * 5, VECTORS.field(0).type), "id": range(5)})
    )
    rows = [{"vector": [NAN, 1.0], "id": 0}, {"vector": [5.0, 6.0], "id": 9}]
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows, on_bad_vectors="drop")
    ids = sorted(table.to_arrow()["id"].to_pylist())
    merge.execute(rows, on_bad_vectors="fill", fill_value=7.0)
    filled = [row["id"] for row in table.to_arrow().to_pylist() if row["vector"] == [7.0, 1.0]]
    return [ids, filled]


GOOD = {"vector": [1.0, 2.0], "id": 0}
BAD = [
    {"vector": [NAN, 2.0], "id": 1},
    {"vector": [1.0], "id": 2},
    {"vector": [1.0, 2.0, 3.0], "id": 3},
]
VECTORS = pa.schema({"vector": pa.list_(pa.float32(), 2), "id": pa.int64()})


@habit([["ValueError"] * 3, 0])
def bad_vectors_are_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=VECTORS)
    return [h.errors(*(lambda row=row: table.add([row]) for row in BAD)), len(table)]


@habit(
    {
        "drop": [[0, [1.0, 2.0]]],
        "fill": [[0, [1.0, 2.0]], [1, [9.0, 2.0]], [2, [1.0, 9.0]], [3, [1.0, 2.0]]],
        "null": [[0, [1.0, 2.0]], [1, None], [2, None], [3, None]],
    }
)
def bad_vectors_are_dropped_filled_or_null(db: Any, h: Helpers) -> Any:
    results = {}
    for way in ("drop", "fill", "null"):
        table = db.create_table(way, schema=VECTORS)
        table.add([GOOD, *BAD], on_bad_vectors=way, fill_value=9.0)
        results[way] = [[row["id"], row["vector"]] for row in table.to_arrow().to_pylist()]
    return results


@habit({"drop": [0, 1], "fill": [0, 1, 2], "null": [0, 1, 2]})
def bad_vectors_of_a_new_table_are_repaired(db: Any, h: Helpers) -> Any:
    results = {}
    for way in ("drop", "fill", "null"):
        rows = [GOOD, {**GOOD, "id": 1}, {**BAD[0], "id": 2}]
        table = db.create_table(way, rows, VECTORS, on_bad_vectors=way)
        results[way] = table.to_arrow()["id"].to_pylist()
    return results


@habit([["ValueError"], ["none"]])
def vectors_of_arrow_have_no_nan(db: Any, h: Helpers) -> Any:
    def create(column: str) -> Any:
        return db.create_table(
            column, pa.table({column: pa.array([[NAN, 1.0]], pa.list_(pa.float32(), 2))})
        )

    return [
        [
            "ValueError" if kind == "RuntimeError" and h.is_lancedb else kind
            for kind in h.errors(lambda: create("vector"))
        ],
        h.errors(lambda: create("coordinates")),
    ]


@habit([[1.0, 1.0]])
def vectors_of_the_data_are_repaired_in_columns_of_lists(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=pa.schema({"v": pa.list_(pa.float32())}))
    vectors = pa.array([[NAN] * 16, [1.0] * 16], pa.list_(pa.float32(), 16))
    table.add(pa.table({"v": vectors}), on_bad_vectors="drop")
    return [vector[:2] for vector in table.to_arrow()["v"].to_pylist()]


@habit([2, 1])
def a_null_vector_is_no_bad_vector(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=VECTORS)
    table.add([{"vector": None, "id": 5}])
    return [table.version, len(table)]


@habit([["b"], ["b", "c"], ["c"]])
def names_of_tables_have_pages(db: Any, h: Helpers) -> Any:
    for name in ("c", "a", "b"):
        db.create_table(name, ROWS)
    return [
        list(names)
        for names in (db.table_names("a", 1), db.table_names("a", limit=9), db.table_names("b", 2))
    ]


@habit([[0, 3], [0, 1, 2, 3]])
def bad_vectors_of_a_stream_are_repaired(db: Any, h: Helpers) -> Any:
    kind = pa.list_(pa.float32(), 2)
    vectors = pa.array([[1.0, 2.0], [float("nan"), 4.0], [5.0, float("nan")], [7.0, 8.0]], kind)
    rows = pa.table({"vector": vectors, "id": range(4)})
    table = db.create_table("t", schema=rows.schema)
    table.add(rows.to_reader(max_chunksize=1), on_bad_vectors="drop")
    dropped = sorted(table.to_arrow()["id"].to_pylist())
    table.add(
        rows.to_reader(max_chunksize=1), mode="overwrite", on_bad_vectors="fill", fill_value=0.0
    )
    return [dropped, sorted(table.to_arrow()["id"].to_pylist())]


@habit([0, 3])
def bad_vectors_of_parts_are_repaired(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", schema=VECTORS)
    batches = pa.Table.from_pylist([BAD[0], {**GOOD, "id": 3}], VECTORS).to_batches(max_chunksize=1)
    table.add(
        iter([pa.Table.from_pylist([GOOD], VECTORS).to_batches()[0], *batches]),
        on_bad_vectors="drop",
    )
    return sorted(table.to_arrow()["id"].to_pylist())


@habit([["ValueError", "none"], 2, [[1.0, 2.0], [3.0, 0.0], [4.0, 5.0]]])
def vectors_of_several_lengths_are_an_error(db: Any, h: Helpers) -> Any:
    vectors = [[1.0, 2.0], [3.0], [4.0, 5.0]]
    rows = [{"vector": vector} for vector in vectors]
    errors = h.errors(
        lambda: db.create_table("t", rows),
        lambda: db.create_table("u", [{"other": vector} for vector in vectors]),
    )
    dropped = db.create_table("dropped", rows, on_bad_vectors="drop")
    filled = db.create_table("filled", rows, on_bad_vectors="fill", fill_value=0.0)
    return [errors, len(dropped), filled.to_arrow()["vector"].to_pylist()]


def _kinds_of_vectors(db: Any, datas: list[Any]) -> Any:
    kinds = [
        db.create_table(f"t{number}", data).schema.field("vector").type
        for number, data in enumerate(datas)
    ]
    return [[str(kind.value_type), getattr(kind, "list_size", None)] for kind in kinds]


@habit([["float", 2], ["uint8", 2], ["float", 2], ["float", 2]])
def lists_of_python_data_become_vectors(db: Any, h: Helpers) -> Any:
    rows = ([1.0, 2.0], [1, 255], [0, 256], [-1, 3])
    return _kinds_of_vectors(db, [[{"vector": numbers}] for numbers in rows])


@habit([["float", None]], differs="LanceDB makes lists of Arrow data vectors of float32, too")
def lists_of_arrow_data_stay_lists(db: Any, h: Helpers) -> Any:
    return _kinds_of_vectors(
        db, [pa.table({"vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32()))})]
    )


@habit([1])
def open_table_ignores_the_size_of_a_cache(db: Any, h: Helpers) -> Any:
    db.create_table("t", ROWS[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [len(db.open_table("t", index_cache_size=0))]


@habit(["int64[pyarrow]", [0, 1]])
def to_pandas_takes_arguments_of_pyarrow(db: Any, h: Helpers) -> Any:
    import pandas as pd

    table = db.create_table("t", ROWS[:2])
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return [str(frame["id"].dtype), table.search().to_pandas(split_blocks=True)["id"].tolist()]


BLOB = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def _blobs(db: Any) -> Any:
    schema = pa.schema([("id", pa.int64()), ("vector", VECTORS.field("vector").type), BLOB])
    rows = [
        {"id": 1, "vector": [1.0, 0.0], "blob": b"one"},
        {"id": 2, "vector": [2.0, 0.0], "blob": b"two"},
    ]
    return db.create_table("blobs", pa.Table.from_pylist(rows, schema))


@habit(
    [["id", "price", "_rowid"], ["id", "price", "_rowid"]],
    differs="LanceDB has the parameter in its base class, and its local tables lack it",
)
def rows_by_number_have_row_ids(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    queries = (table.take_offsets([1], with_row_id=True), table.take_row_ids([1], with_row_id=True))
    return [query.to_arrow().schema.names for query in queries]


@habit([["one", "two"], ["one", "two"], ["two"], ["two"], [False, False], ["ValueError"]])
def pandas_has_blobs_as_files_bytes_or_places(db: Any, h: Helpers) -> Any:
    table = _blobs(db)
    query = table.search().where("id = 2").select(["id", "blob"])
    return [
        [file.readall().decode() for file in table.to_pandas()["blob"]],
        [data.decode() for data in table.to_pandas(blob_mode="bytes")["blob"]],
        [file.readall().decode() for file in query.to_pandas()["blob"]],
        [data.decode() for data in query.to_pandas(blob_mode="bytes")["blob"]],
        [hasattr(place, "readall") for place in table.to_pandas(blob_mode="descriptions")["blob"]],
        h.errors(lambda: table.to_pandas(blob_mode="all")),
    ]


@habit([["two", "one"], ["two"]])
def blobs_are_fetched_by_row_id(db: Any, h: Helpers) -> Any:
    blob = (
        h.modules["lancedb"].blob("blob") if h.is_lancedb else BLOB
    )  # LanceDB fetches blobs of file format 2.2 only
    table = db.create_table("t", schema=pa.schema([("id", pa.int64()), blob]))
    table.add([{"id": 1, "blob": b"one"}, {"id": 2, "blob": b"two"}])
    hits = table.search().with_row_id(True).select(["id"]).to_arrow()
    ids = dict(zip(hits["id"].to_pylist(), hits["_rowid"].to_pylist(), strict=True))
    return [
        [data.decode() for data in table.fetch_blobs("blob", [ids[2], ids[1]]).to_pylist()],
        [file.readall().decode() for file in table.fetch_blob_files("blob", [ids[2]])],
    ]


@habit([["one"], ["one"]], differs="LanceDB refuses blobs of a search in pandas")
def pandas_has_blobs_of_searches(db: Any, h: Helpers) -> Any:
    search = _blobs(db).search([1.0, 0.0]).limit(1)
    files, data = search.to_pandas()["blob"], search.to_pandas(blob_mode="bytes")["blob"]
    return [[file.readall().decode() for file in files], [value.decode() for value in data]]


@habit([["a", "b"], ["c"], None])
def list_tables_has_pages(db: Any, h: Helpers) -> Any:
    for name in ("c", "a", "b"):
        db.create_table(name, ROWS)
    first = db.list_tables(limit=2)
    second = db.list_tables(page_token=first.page_token, limit=2)
    return [first.tables, second.tables, second.page_token]


@habit(0)
def drop_database_drops_the_tables(db: Any, h: Helpers) -> Any:
    db.create_table("a", ROWS)
    db.drop_database()
    return len(db)


@habit([2, {"unit": "cent", "pii": "no"}, {"unit": "euro"}, {"source": "import"}, {"a": "b"}])
def update_field_metadata_sets_and_removes_keys(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)

    def metadata() -> dict[str, str]:
        pairs = (table.schema.field("price").metadata or {}).items()
        return {key.decode(): value.decode() for key, value in pairs}

    result = table.update_field_metadata(
        {"path": "price", "metadata": {"unit": "cent", "pii": "no"}}
    )
    states: list[Any] = [result.version, metadata()]
    table.update_field_metadata({"path": "price", "metadata": {"unit": "euro", "pii": None}})
    states.append(metadata())
    table.update_field_metadata(
        {"path": "price", "metadata": {"source": "import"}, "replace": True}
    )
    states.append(metadata())
    table.replace_field_metadata("price", {"a": "b"})
    return [*states, metadata()]


@habit([None, 1, "trial"])
def branches_have_keys(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    trial = table.branches.create("trial", from_ref="main")
    trial.branches.create("second", from_ref="trial")
    branches = table.branches.list()
    return [
        branches["trial"]["parent_branch"],
        branches["trial"]["parent_version"],
        branches["second"]["parent_branch"],
    ]


@habit([6, 0, 2, 2, {"min": 1, "max": 5, "mean": 3, "p25": 1, "p50": 5, "p75": 5, "p99": 5}])
def stats_have_keys(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.add(ROWS[:1])
    stats = table.stats()
    fragments = stats["fragment_stats"]
    numbers = [fragments["num_fragments"], fragments["num_small_fragments"]]
    return [stats["num_rows"], stats["num_indices"], *numbers, fragments["lengths"]]


@habit([8, [True] * 8])
def iterators_yield_parts_of_any_form(db: Any, h: Helpers) -> Any:
    schema = pa.schema({"vector": pa.list_(pa.float32(), 2), "price": pa.float32()})
    rows = [{"vector": [1, 2], "price": 1}, {"vector": [3.0, 4.0], "price": 2.5}]

    def parts() -> Any:
        yield rows
        yield pa.Table.from_pylist(rows, schema=schema)

    table = db.create_table("t", parts(), schema=schema)
    table.add(parts())
    return [len(table), [row["vector"] in ([1, 2], [3, 4]) for row in table.to_arrow().to_pylist()]]


@habit([["id", "price", "stock"], [[0, None], [1, 7], [2, 8], [3, None], [4, None]]], jobs="spark")
def merge_adds_columns_by_key(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", ROWS)
    table.merge(pa.table({"number": [2, 1], "stock": [8, 7]}), left_on="id", right_on="number")
    return [table.schema.names, [[row["id"], row["stock"]] for row in table.to_arrow().to_pylist()]]

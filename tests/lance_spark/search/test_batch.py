"""Searches for a DataFrame of vectors, compared with pylance's own search for each vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark import (
    BatchSearch,
    ColumnNotFoundError,
    FilterError,
    OptionError,
    Table,
    UnsupportedOperationError,
)
from tests.lance_spark.search.conftest import SIZE, make, rows

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=2)]

KINDS = {
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "uint8": pa.uint8(),
}


def table_of(spark: SparkSession, path: str) -> Table:
    return lance_spark.connect(str(Path(path).parent), spark, progress=False).open_table(
        Path(path).stem
    )


def queries_of(spark: SparkSession, count: int = 9, *, kind: str = "float32") -> DataFrame:
    """Returns vectors with a name; every fifth is NULL, and the last repeats its predecessor."""
    numbers = np.random.default_rng(7).standard_normal((count, SIZE))
    values = [
        row.tolist()
        for row in (numbers if kind != "uint8" else abs(numbers * 80).astype(int).clip(0, 255))
    ]
    values[-1] = values[-2]
    rows = [(f"q{n}", None if n % 5 == 4 else value) for n, value in enumerate(values)]
    return spark.createDataFrame(
        rows, f"name string, q array<{'int' if kind == 'uint8' else 'double'}>"
    ).repartition(3)


def single(path: str, queries: DataFrame, k: int, **options: Any) -> dict[str, list[float]]:
    """Returns the distances of pylance's own searches."""
    dataset, results = lance.dataset(path), {}
    scan = {name: options.pop(name) for name in ("filter", "offset") if name in options}
    kind = dataset.schema.field("vec").type.value_type.to_pandas_dtype()
    for row in queries.where("q IS NOT NULL").collect():
        nearest = {
            "column": "vec",
            "q": np.array(row.q, kind),
            "k": k,
            "use_index": False,
            **options,
        }
        read = dataset.scanner(
            columns=["id", "_distance"], nearest=nearest, prefilter=True, **scan
        ).to_table()
        results[row["name"]] = read["_distance"].to_pylist()
    return results


def distances(frame: DataFrame) -> dict[str, list[float]]:
    by_query: dict[str, list[float]] = {}
    for row in frame.select("name", "_distance").collect():
        by_query.setdefault(row["name"], []).append(row["_distance"])
    return {name: sorted(values) for name, values in by_query.items()}


def check_distances(
    frame: DataFrame, expected: dict[str, list[float]], tolerance: float = 1e-4
) -> None:
    """Checks the distances, and that each row really has its reported distance."""
    by_query = distances(frame)
    assert by_query.keys() == {name for name, values in expected.items() if values}
    for name, values in by_query.items():
        assert values == pytest.approx(expected[name], rel=tolerance, abs=tolerance), name


def exact(metric: str, a: Any, b: Any) -> float:
    a, b = np.array(a, np.float64), np.array(b, np.float64)
    if metric == "hamming":
        return float(sum((int(x) ^ int(y)).bit_count() for x, y in zip(a, b, strict=True)))
    cosine = 1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) if metric == "cosine" else 0
    return float({"l2": ((a - b) ** 2).sum(), "dot": 1 - a @ b, "cosine": cosine}[metric])


CASES = [
    *(
        (kind, metric)
        for kind in ("float16", "float32", "float64")
        for metric in ("l2", "cosine", "dot")
    ),
    ("uint8", "hamming"),
]
QUICK = {("float32", "l2"), ("float16", "cosine"), ("float64", "dot"), ("uint8", "hamming")}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        pytest.param(
            kind,
            metric,
            id=f"{kind}-{metric}",
            marks=() if (kind, metric) in QUICK else pytest.mark.long,
        )
        for kind, metric in CASES
    ],
)
def test_a_batch_finds_the_rows_of_pylance_searches(
    kind: str, metric: str, spark: SparkSession, table_path: str
):
    values = np.random.default_rng(1).standard_normal((300, SIZE)) + 100 * (
        metric == "l2" and kind != "float16"
    )
    vectors = abs(values * 80).astype(int).clip(0, 255) if kind == "uint8" else values
    numbers = vectors.astype(KINDS[kind].to_pandas_dtype())
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(numbers.ravel(), KINDS[kind]),
        SIZE,
        mask=pa.array([i % 7 == 3 for i in range(300)]),
    )
    lance.write_dataset(
        pa.table({"id": range(300), "vec": column}), table_path, max_rows_per_file=70
    )
    lance.dataset(table_path).delete("id % 11 = 2")
    queries = queries_of(spark, kind=kind)
    search = table_of(spark, table_path).search(queries).distance_type(metric).limit(12)
    assert isinstance(search, BatchSearch)
    frame = search.to_spark()
    assert frame.columns == ["name", "q", "id", "vec", "_distance"]
    rough = {"float16": 2e-2, "float32": 1e-3}.get(kind, 1e-4)
    check_distances(frame, single(table_path, queries, 12, metric=metric), rough)
    for row in frame.collect():
        assert row["_distance"] == pytest.approx(
            exact(metric, row.q, row.vec), rel=rough, abs=rough
        )


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda s: s.limit(1000), id="more rows than there are"),
        pytest.param(
            lambda s: s.where("kind = 2").limit(500), id="a filter, and more rows than it leaves"
        ),
        pytest.param(lambda s: s.where("id < 0"), id="a filter that no row passes"),
        pytest.param(lambda s: s.limit(4).offset(3), id="an offset"),
    ],
)
def test_bounds_and_filters_are_those_of_single_searches(
    shape: Callable[[BatchSearch], BatchSearch], spark: SparkSession, table_path: str
):
    make(table_path)
    queries = queries_of(spark)
    search = shape(table_of(spark, table_path).search(queries))
    options = {"offset": search.skipped_rows or None}
    most = search.most_rows or 10
    expected = single(
        table_path, queries, most + search.skipped_rows, filter=search.condition, **options
    )
    check_distances(search.to_spark(), {name: values[:most] for name, values in expected.items()})


def test_an_index_answers_for_the_rows_that_it_serves(
    spark: SparkSession, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    make(table_path)
    table = table_of(spark, table_path)
    table.create_index("cosine", vector_column_name="vec", index_type="IVF_FLAT", num_partitions=2)
    lance.write_dataset(rows(400, 90, 5), table_path, mode="append")
    table.to_lance().delete("id % 11 = 2")
    queries = queries_of(spark)
    search = table.search(queries).nprobes(2)
    assert "index:" not in search.explain_plan() and "metric: cosine" in search.explain_plan()
    monkeypatch.setattr("lance_spark.search.batch.INDEX_NUMBERS", 1)
    assert (
        "index: vec_idx, rows: 363" in search.explain_plan()
        and "compared: rows: 82" in search.explain_plan()
    )
    for variant in (search, search.where("kind = 1"), search.limit(1000)):
        expected = single(
            table_path, queries, variant.most_rows or 10, metric="cosine", filter=variant.condition
        )
        check_distances(variant.to_spark(), expected)
    assert any(row.id >= 400 for row in search.to_spark().collect()), (
        "rows that the index lacks are found"
    )
    for exact_search in (search.bypass_vector_index(), search.metric("l2")):
        assert "index:" not in exact_search.explain_plan()
    check_distances(search.metric("l2").to_spark(), single(table_path, queries, 10, metric="l2"))


def test_queries_keep_their_columns_and_rows_have_those_that_are_selected(
    spark: SparkSession, table_path: str
):
    make(table_path)
    table = table_of(spark, table_path)
    queries = queries_of(spark).selectExpr(
        "struct(name, 1 AS one) AS `a.b`", "q", "array(1L) AS other"
    )
    with pytest.raises(OptionError, match="q, other"):
        table.search(queries).to_spark()
    queries = queries.selectExpr("`a.b`", "q AS vec", "other AS o")
    with pytest.raises(OptionError, match="'vec'"):
        table.search(queries).to_spark()
    rows_found = table.search(queries).select(["text", "id"]).with_row_id().limit(2).to_spark()
    assert rows_found.columns == ["a.b", "vec", "o", "text", "id", "_rowid", "_distance"]
    frame = table.search(queries).select(["text", "id"]).limit(2).to_pandas()
    assert (
        list(frame.columns) == ["a.b", "vec", "o", "text", "id", "_distance"]
        and len(frame) == rows_found.count()
    )
    read = rows_found.collect()
    assert {(row["a.b"]["name"], row.o[0]) for row in read} == {
        (f"q{n}", 1) for n in range(9) if n % 5 != 4
    }
    assert all(row.text.endswith(f"number{row.id}") and row._rowid == row.id for row in read)
    assert table.search(queries).select(["_rowid"]).to_arrow().schema.names == [
        "a.b",
        "vec",
        "o",
        "_rowid",
        "_distance",
    ]
    assert len(table.search(queries).select(["id"]).limit(3).to_list()) == 24
    joined = rows_found.alias("f").join(queries.alias("q"), "vec")
    assert joined.count() == 20, "it is a DataFrame like any other; q8 has the vector of q7"


def test_a_version_is_pinned_and_an_empty_table_gives_no_rows(spark: SparkSession, table_path: str):
    make(table_path)
    table, queries = table_of(spark, table_path), queries_of(spark)
    search = table.search(queries).select(["id"])
    before, expected = search.to_spark(), single(table_path, queries, 10)
    table.to_lance().delete("id >= 0")
    check_distances(before, expected)
    assert search.to_spark().collect() == []
    table.checkout(1)
    check_distances(table.search(queries).select(["id"]).to_spark(), expected)
    assert table.search(queries.where("false")).select(["id"]).to_spark().collect() == []


def test_queries_of_a_source_that_differs_each_time_stay_beside_their_rows(
    spark: SparkSession, table_path: str
):
    make(table_path)
    queries = spark.range(40).selectExpr(
        "uuid() AS name", f"transform(sequence(1, {SIZE}), i -> rand()) AS q"
    )
    for row in table_of(spark, table_path).search(queries).limit(3).to_spark().collect():
        assert row._distance == pytest.approx(exact("l2", row.q, row.vec), abs=1e-4)


def test_unsearchable_columns_are_refused(spark: SparkSession, table_path: str):
    make(table_path)
    table, queries = table_of(spark, table_path), queries_of(spark)
    search = table.search(queries)
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (OptionError, "has no vectors", lambda: table.search(queries.select("name")).to_spark()),
        (
            OptionError,
            "of one name|'id'",
            lambda: table.search(queries.withColumnRenamed("name", "ID")).to_spark(),
        ),
        (OptionError, "query_type", lambda: table.search(queries, query_type="fts")),  # type: ignore[call-overload]
        (ColumnNotFoundError, "'no'", lambda: table.search(queries, "no").to_spark()),
        (OptionError, "vectors", lambda: table.search(queries, "id").to_spark()),
        (OptionError, "hamming", lambda: search.metric("hamming").to_spark()),
        (FilterError, "nothing", lambda: search.where("nothing = 1").to_spark()),
        (UnsupportedOperationError, "DataFrame", lambda: search.where("id = 1", prefilter=False)),
        (UnsupportedOperationError, "one query", lambda: search.rerank(object())),
        (
            UnsupportedOperationError,
            "expressions",
            lambda: search.select({"x": "id + 1"}).to_spark(),
        ),
        (UnsupportedOperationError, "'hybrid'", lambda: search.text("a")),
    ]
    for error, match, act in refused:
        with pytest.raises(error, match=match):
            act()
    for wrong, match in (
        ("slice(q, 1, 3)", "8 numbers"),
        ("transform(q, x -> double('NaN'))", "finite"),
    ):
        with pytest.raises(Exception, match=match):
            table.search(queries.selectExpr("name", f"{wrong} AS q")).to_spark().collect()

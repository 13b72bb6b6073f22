"""Writes through Spark: `df.write.format("lance")`, checked with pylance and against the same rows as Parquet."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import psutil
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's functions are F everywhere

from tests.lance_spark.write.appends import files_in, unused_files
from tests.strategies import facts, schemas, tables
from tests.support.waiting import eventually

pytestmark = pytest.mark.sample(1, tests=3)


def save(df: DataFrame, path: str, mode: str = "append", **options: object) -> None:
    writer = df.write.format("lance").mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    writer.save(path)


def rows_in(path: str, version: int | None = None) -> list[dict[str, object]]:
    rows = lance.dataset(path, version=version).to_table().to_pylist()
    return sorted(rows, key=repr)


@pytest.mark.long
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.data(),
    modes=st.lists(st.sampled_from(["append", "overwrite"]), min_size=1, max_size=3),
    parts=st.integers(1, 3),
)
def test_any_sequence_of_writes_reads_back_as_the_same_rows_as_parquet(
    data: st.DataObject,
    modes: list[str],
    parts: int,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("same")
    table, parquet = str(folder / "table.lance"), str(folder / "parquet")
    schema = data.draw(schemas("spark", most_columns=3))
    for mode in modes:
        rows = data.draw(tables(schema, most_rows=6))
        df = spark.createDataFrame(rows).repartition(parts)
        save(df, table, mode)
        df.write.mode(mode).parquet(parquet)

    dataset = lance.dataset(table)
    expected = spark.read.parquet(parquet).toArrow()
    got = dataset.to_table()
    assert sorted(_rows(got), key=repr) == sorted(
        _rows(expected.select(got.column_names)), key=repr
    )
    # A version without rows exists only if the write creates or overwrites the table.
    assert dataset.version <= len(modes)
    assert unused_files(table) == set()
    shutil.rmtree(folder)


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(facts(column) for column in table.columns), strict=True))


@pytest.mark.long
def test_structs_in_structs_are_cut_into_files_and_filled_in_any_order(
    spark: SparkSession, table_path: str
) -> None:
    nested = "named_struct('a', id, 'n', if(id % 3 = 0, null, named_struct('x', id % 7))) AS s"
    save(spark.range(0, 120, 1, 1).selectExpr("id", nested), table_path, max_rows_per_file=70)
    rows = spark.read.format("lance").option("with_row_address", "true").load(table_path)
    backfilled = rows.selectExpr("_rowaddr", "s AS t").orderBy(F.rand(1)).coalesce(1)
    backfilled.write.format("lance").mode("append").option("mode", "backfill").save(table_path)
    expected = [{"a": i, "n": {"x": i % 7} if i % 3 else None} for i in range(120)]
    dataset = lance.dataset(table_path)
    table = dataset.to_table().sort_by("id")
    assert len(dataset.get_fragments()) == 2
    assert table["s"].to_pylist() == table["t"].to_pylist() == expected


def test_all_partitions_become_one_version(spark: SparkSession, table_path: str) -> None:
    save(spark.range(0, 1000, 1, 7), table_path)
    dataset = lance.dataset(table_path)
    assert (dataset.version, dataset.count_rows(), len(dataset.get_fragments())) == (1, 1000, 7)
    assert dataset.has_stable_row_ids


def test_a_dataframe_without_partitions_creates_an_empty_table(
    spark: SparkSession, table_path: str
) -> None:
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), "a int, b string")
    assert empty.rdd.getNumPartitions() == 0
    save(empty, table_path)
    save(empty, table_path)
    assert (lance.dataset(table_path).version, lance.dataset(table_path).schema.names) == (
        1,
        ["a", "b"],
    )
    save(empty, table_path, "overwrite")
    assert lance.dataset(table_path).version == 2


@pytest.mark.sample(1)
def test_a_table_can_be_overwritten_by_what_is_read_from_it(
    spark: SparkSession, table_path: str
) -> None:
    save(spark.range(100).withColumn("x", F.col("id") * 2), table_path)
    read = spark.read.format("lance").load(table_path)
    save(read.where("id < 50").withColumn("x", F.col("x") + 1), table_path, "overwrite")
    assert rows_in(table_path) == sorted([{"id": i, "x": i * 2 + 1} for i in range(50)], key=repr)
    assert len(rows_in(table_path, 1)) == 100
    # The DataFrame still reads its own version.
    assert read.count() == 100


def test_an_append_keeps_the_exact_types_of_the_table(spark: SparkSession, table_path: str) -> None:
    schema = pa.schema(
        [
            pa.field("v", pa.list_(pa.float32(), 2)),
            pa.field("u", pa.uint32()),
            pa.field("t", pa.large_string(), metadata={"unit": "words"}),
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    first = pa.Table.from_pylist([{"v": [1, 2], "u": 1, "t": "a", "d": "x", "b": b"0"}], schema)
    before = lance.write_dataset(first, table_path)
    df = spark.createDataFrame([Row(v=[3.0, 4.0], u=2**32 - 1, t="b", d="y", b=b"1" * 100_000)])
    save(df.select("b", "d", "t", "u", "v"), table_path)

    after = lance.dataset(table_path)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.to_table(blob_handling="all_binary").to_pylist()[1] == {
        "v": [3.0, 4.0],
        "u": 2**32 - 1,
        "t": "b",
        "d": "y",
        "b": b"1" * 100_000,
    }


def test_missing_nullable_columns_become_null(spark: SparkSession, table_path: str) -> None:
    save(spark.createDataFrame([(1, "a", [1.0])], "i int, s string, l array<double>"), table_path)
    save(spark.createDataFrame([(2,)], "i int"), table_path)
    assert rows_in(table_path) == [{"i": 1, "s": "a", "l": [1.0]}, {"i": 2, "s": None, "l": None}]


def test_vectors_and_blobs_are_named_by_option_or_by_column_metadata(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.createDataFrame(
        [([1.0, 2.0], b"x" * 200_000), (None, None)], "v array<float>, b binary"
    )
    by_option, by_metadata = str(tmp_path / "option.lance"), str(tmp_path / "metadata.lance")
    save(df, by_option, **{"v__arrow__fixed-size-list__size": 2, "b__lance__encoding": "blob"})
    marked = df.withMetadata("v", {"arrow.fixed-size-list.size": "2"}).withMetadata(
        "b", {"lance.encoding": "blob"}
    )
    save(marked, by_metadata)
    for path in (by_option, by_metadata):
        dataset = lance.dataset(path)
        assert dataset.schema.field("v").type == pa.list_(pa.field("element", pa.float32()), 2)
        assert dataset.schema.field("b").type.extension_name == "lance.blob.v2"
        (blob,) = [
            b
            for b in dataset.to_table(blob_handling="all_binary")["b"].to_pylist()
            if b is not None
        ]
        assert blob == b"x" * 200_000
        assert unused_files(path) == set()


WRONG: dict[str, tuple[Callable[[SparkSession], DataFrame], str]] = {
    "an unknown column": (lambda s: s.range(1).selectExpr("id", "'a' AS s", "1 AS extra"), "extra"),
    "another type": (lambda s: s.range(1).selectExpr("id", "array(1) AS s"), "s"),
    "a missing column that is not nullable": (lambda s: s.range(1).selectExpr("'a' AS s"), "id"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", WRONG)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    what: str, spark: SparkSession, table_path: str
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])
    lance.write_dataset(pa.Table.from_pylist([{"id": 1, "s": "a"}], schema), table_path)
    before = files_in(table_path)
    make, expected_name = WRONG[what]
    with pytest.raises(AnalysisException, match="SchemaMismatchError") as caught:
        save(make(spark), table_path)
    assert f"{expected_name}:" in str(caught.value)
    assert files_in(table_path) == before


@pytest.mark.sample(1)
def test_a_value_that_does_not_fit_fails_the_job_and_leaves_nothing(
    spark: SparkSession, table_path: str
) -> None:
    lance.write_dataset(pa.table({"u": pa.array([1], pa.uint8())}), table_path)
    before = files_in(table_path)
    with pytest.raises(PySparkException, match="ValueConversionError"):
        save(spark.range(0, 300, 1, 4).selectExpr("id AS u"), table_path, max_rows_per_file=10)
    eventually(lambda: files_in(table_path) == before)
    assert lance.dataset(table_path).version == 1


def test_a_job_that_fails_leaves_no_folder_where_there_was_no_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "for" / "table.lance"
    failing = spark.range(0, 1000, 1, 4).selectExpr(
        "id", "if(id = 999, raise_error('no'), id) AS x"
    )
    with pytest.raises(PySparkException):
        save(failing, str(path), max_rows_per_file=10)
    eventually(lambda: list(tmp_path.iterdir()) == [])


def test_two_sessions_that_create_one_table_lose_no_row(
    spark: SparkSession, table_path: str
) -> None:
    def create(k: int) -> None:
        # createDataFrame activates the session in this thread, which Spark needs to find Python data sources.
        rows = spark.createDataFrame([(k * 100 + i,) for i in range(20)], "id bigint")
        save(rows.repartition(2), table_path)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(create, range(3)))
    assert sorted(r["id"] for r in rows_in(table_path)) == sorted(
        k * 100 + i for k in range(3) for i in range(20)
    )  # type: ignore[type-var]
    assert lance.dataset(table_path).version == 3
    assert unused_files(table_path) == set()


def test_the_file_options_reach_the_files(spark: SparkSession, table_path: str) -> None:
    save(
        spark.range(0, 1000, 1, 1),
        table_path,
        max_rows_per_file=300,
        data_storage_version="2.1",
        commit_message="first load",
    )
    dataset = lance.dataset(table_path)
    assert [f.count_rows() for f in dataset.get_fragments()] == [300, 300, 300, 100]
    assert dataset.data_storage_version == "2.1"
    assert "first load" in dataset.read_transaction(1).transaction_properties.values()


def test_bytes_of_a_file_are_bounded_by_batches(spark: SparkSession, table_path: str) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        save(spark.range(0, 1000, 1, 1), table_path, max_bytes_per_file=1600)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [f.count_rows() for f in lance.dataset(table_path).get_fragments()] == [200] * 5


def test_metadata_columns_of_a_read_cannot_be_made_into_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = str(tmp_path / "a.lance"), str(tmp_path / "b.lance")
    save(spark.range(3), source)
    df = spark.read.format("lance").option("with_row_address", True).load(source)
    with pytest.raises(AnalysisException, match="_rowaddr"):
        save(df, target)
    assert not Path(target).exists()


def planning_processes() -> set[int]:
    """Python processes in which Spark plans or commits writes."""
    modules = ("write_into_data_source", "commit_data_source_write")
    process_ids = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            if any(name in " ".join(process.cmdline()) for name in modules):
                process_ids.add(process.pid)
    return process_ids


@pytest.mark.parametrize("rule", [True, False], ids=["rule", "no rule"])
def test_a_write_starts_no_process_for_its_plan_and_its_commit(
    rule: bool, spark: SparkSession, plain_spark: SparkSession, table_path: str
) -> None:
    session, before = spark if rule else plain_spark, planning_processes()
    save(session.range(5), table_path)
    save(session.range(3), table_path, "overwrite")
    rows = session.read.format("lance").option("with_row_address", "true").load(table_path)
    values = rows.selectExpr("_rowaddr", "id * 2 AS v")
    values.write.format("lance").mode("append").option("mode", "backfill").save(table_path)
    with pytest.raises(AnalysisException, match="SchemaMismatchError"):
        save(session.range(3).selectExpr("'a' AS id"), table_path)
    with pytest.raises(PySparkException, match="no"):
        save(session.range(3).selectExpr("if(id = 2, raise_error('no'), id) AS id"), table_path)
    assert rows_in(table_path) == [{"id": i, "v": i * 2} for i in range(3)]
    assert planning_processes() <= before


def test_errors_of_a_plan_and_of_a_commit_have_one_frame(
    spark: SparkSession, table_path: str
) -> None:
    save(spark.range(3), table_path)

    def deleting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shutil.rmtree(f"{table_path}/_versions")
        yield from batches

    writes = {
        "plan write": lambda: save(spark.range(3), table_path, nonsense=1),
        "commit write": lambda: save(
            spark.range(0, 3, 1, 1).mapInArrow(deleting, "id long"), table_path
        ),
    }
    for action, write in writes.items():
        with pytest.raises(AnalysisException) as caught:
            write()
        error = caught.value
        assert (error.getCondition(), error.getSqlState()) == ("PYTHON_DATA_SOURCE_ERROR", "38000")
        text = str(error).partition("\n\nJVM stacktrace")[0]
        assert re.match(
            rf"\[PYTHON_DATA_SOURCE_ERROR\] Failed to {action} Python data source lance: lance_spark\.errors\.\w+: ",
            text,
        )
        assert text.count("lance_spark.errors.") == 1 and "Traceback" not in text


def test_explaining_a_write_makes_nothing(spark: SparkSession, table_path: str) -> None:
    save(spark.range(3), table_path)
    before = files_in(table_path)
    spark.sql(f"CREATE TABLE explained USING lance OPTIONS (path '{table_path}')")
    try:
        plan = spark.sql("EXPLAIN EXTENDED INSERT INTO explained SELECT id FROM range(5)").head()
        assert plan is not None
        assert "AppendData" in plan[0]
        assert files_in(table_path) == before
    finally:
        spark.sql("DROP TABLE explained")

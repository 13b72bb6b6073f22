"""Facts from the rule for a write: location, inputs, versions, and rows grouped by fragment and in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import LongType, StructType

from lance_spark.pushdown.rule import enable_pushdown
from lance_spark.spark_jobs.tasks import ANSWER_TO_ALL_ROWS
from lance_spark.sql import writes

pytestmark = pytest.mark.sample(3, tests=3)

ROWS = 60
PER_FRAGMENT = 20


@dataclass(frozen=True)
class Arrived(WriterCommitMessage):
    """The row addresses and ids of one task in order, and rows and bytes of each batch."""

    addresses: list[int]
    ids: list[int]
    batches: list[int]
    bytes: list[int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RecordingWriter(DataSourceArrowWriter):
    """Writes no data; stores the rule's plan and the incoming rows in a file."""

    def __init__(self, options: dict[str, str], schema: StructType, plan: dict[str, Any]) -> None:
        """Stores Spark's arguments."""
        self.options, self.plan, self.metadata = (
            options,
            plan,
            {f.name: f.metadata for f in schema.fields},
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Collects addresses and ids."""
        arrived = Arrived(addresses=[], ids=[], batches=[], bytes=[])
        for batch in iterator:
            arrived.batches.append(batch.num_rows)
            arrived.bytes.append(batch.nbytes)
            for name, values in (("_rowaddr", arrived.addresses), ("id", arrived.ids)):
                if name in batch.schema.names:
                    values.extend(batch.column(name).to_pylist())
        return arrived

    def commit_tasks(self, messages: list[WriterCommitMessage | None]) -> None:
        """Writes the record; no commit has metrics."""
        self.commit(messages)

    def read_answer(self, values: dict[str, Any]) -> Arrived:
        """Returns the result of `to_json`."""
        return Arrived(**values)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Writes the record."""
        arrived = [message for message in messages if isinstance(message, Arrived)]
        record = {
            "plan": self.plan,
            "options": self.options,
            "tasks": [task.addresses for task in arrived],
            "ids": [task.ids for task in arrived],
            "batches": [task.batches for task in arrived],
            "bytes": [task.bytes for task in arrived],
            "metadata": self.metadata,
        }
        Path(self.options["commit_message"]).write_text(json.dumps(record), encoding="utf-8")


def recording_writer(
    options: dict[str, str], schema: StructType, *, overwrite: bool, spec: dict[str, Any]
) -> RecordingWriter:
    """Takes the place of `plan_writer`."""
    return RecordingWriter(options, schema, spec)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the rule, whose writes are only recorded."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    recording = spark.newSession()
    enable_pushdown(recording)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writes, "plan_writer", recording_writer)
        yield recording
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def path(table_path: str) -> str:
    """60 rows in three fragments."""
    table = pa.table(
        {
            "id": range(ROWS),
            "a": range(ROWS),
            "text": [f"t{i}" for i in range(ROWS)],
            "unused": [0] * ROWS,
        }
    )
    lance.write_dataset(table, table_path, max_rows_per_file=PER_FRAGMENT)
    return table_path


@dataclass(frozen=True)
class Record:
    """The record of one write."""

    plan: dict[str, Any]
    tasks: list[list[int]]
    ids: list[list[int]]
    batches: list[list[int]]
    bytes: list[list[int]]
    metadata: dict[str, Any]

    def assert_by_fragment(self) -> None:
        """Asserts the promise of `exclusive`."""
        task_of: dict[int, int] = {}
        for number, addresses in enumerate(self.tasks):
            assert addresses == sorted(addresses)
            for fragment in {address >> 32 for address in addresses}:
                assert task_of.setdefault(fragment, number) == number, (
                    f"fragment {fragment} came in two tasks"
                )


def load(session: SparkSession, path: str, **options: Any) -> DataFrame:
    return session.read.format("lance").options(with_row_address=True, **options).load(path)


def record(df: DataFrame, path: str, **options: Any) -> Record:
    note = Path(path).parent / "record.json"
    df.write.format("lance").mode("append").options(commit_message=str(note), **options).save(path)
    return read(note)


def read(note: Path) -> Record:
    raw = json.loads(note.read_text(encoding="utf-8"))
    record_fields = {name: raw[name] for name in ("tasks", "ids", "batches", "bytes", "metadata")}
    return Record(plan=raw["plan"], **record_fields)


def backfill(df: DataFrame, path: str, mode: str = "backfill") -> Record:
    return record(df, path, mode=mode)


@pandas_udf(LongType())  # type: ignore[call-overload]
def twice(values: pd.Series) -> pd.Series:
    return values * 2


@pytest.mark.parametrize("shape", ["project", "filter", "pandas udf", "python udf", "alias"])
def test_rows_that_nothing_moves_are_not_shuffled(
    shape: str, session: SparkSession, path: str
) -> None:
    df = load(session, path)
    if shape == "filter":
        df = df.filter("a % 3 = 1")
    value = {"pandas udf": twice("a"), "python udf": F.udf(lambda x: x + 1, "bigint")("a")}.get(
        shape, F.col("a") + 1
    )
    df = (
        df.withColumn("x", F.col("_rowaddr")).select(F.col("x").alias("_rowaddr"), value.alias("b"))
        if shape == "alias"
        else df.select("_rowaddr", value.alias("b"))
    )
    got = backfill(df, path)
    assert got.plan["exclusive"] is True
    assert got.plan["input_columns"] == ["a"]
    got.assert_by_fragment()
    assert sum(map(len, got.tasks)) == (20 if shape == "filter" else ROWS)


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize(
    "shape",
    ["repartition", "sort", "join", "union", "map", "explode", "cached", "small partitions"],
)
def test_rows_that_something_moves_are_brought_together_and_sorted(
    shape: str, adaptive: str, session: SparkSession, path: str
) -> None:
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    session.conf.set("spark.sql.adaptive.coalescePartitions.initialPartitionNum", "8")
    try:
        df = load(
            session, path, **({"target_partition_bytes": 1} if shape == "small partitions" else {})
        )
        cached = None
        if shape == "cached":
            df = cached = df.repartition(3).cache()
        if shape == "repartition":
            df = df.repartition(5)
        elif shape == "sort":
            df = df.orderBy(F.col("id").desc())
        elif shape == "join":
            df = df.join(
                session.range(ROWS).withColumnRenamed("id", "other"), F.col("id") == F.col("other")
            )
        elif shape == "union":
            df = df.filter("id >= 30").unionAll(df.filter("id < 30"))
        elif shape == "map":
            df = df.select("_rowaddr", "id", "a").mapInArrow(
                lambda batches: batches, "_rowaddr bigint, id bigint, a bigint"
            )
        elif shape == "explode":
            df = df.withColumn("e", F.explode(F.array(F.lit(1))))
        got = backfill(df.select("_rowaddr", (F.col("a") + 1).alias("b")), path)
        if cached is not None:
            cached.unpersist()
    finally:
        session.conf.unset("spark.sql.adaptive.enabled")
        session.conf.unset("spark.sql.adaptive.coalescePartitions.initialPartitionNum")
    assert got.plan["exclusive"] is True
    got.assert_by_fragment()
    assert sorted(a for task in got.tasks for a in task) == [
        fragment << 32 | row for fragment in range(3) for row in range(PER_FRAGMENT)
    ]


def test_the_option_mode_is_read_in_any_case(session: SparkSession, path: str) -> None:
    assert (
        backfill(load(session, path).select("_rowaddr", "a"), path, mode="BackFill").plan[
            "exclusive"
        ]
        is True
    )


def test_row_ids_alone_and_plain_writes_promise_nothing(session: SparkSession, path: str) -> None:
    by_id = (
        session.read.format("lance").option("with_row_id", True).load(path).select("_rowid", "a")
    )
    got = backfill(by_id, path)
    assert (
        got.plan["exclusive"] is False
        and got.plan["input_columns"] == ["a"]
        and len(got.plan["snapshots"]) == 1
    )
    plain = record(load(session, path).select("id"), path)
    nothing = {"path": None, "exclusive": False, "input_columns": None, "snapshots": []}
    assert plain.plan == {**nothing, "pin": None}


def test_inputs_are_the_columns_that_any_scan_of_the_table_reads(
    session: SparkSession, path: str, tmp_path: Path
) -> None:
    other_path = str(tmp_path / "other.lance")
    lance.write_dataset(pa.table({"key": range(ROWS), "elsewhere": range(ROWS)}), other_path)
    df = load(session, path).filter("text <> 't3'").select("_rowaddr", "a")
    again = session.read.format("lance").load(f"file:{path}").select(F.col("id").alias("key"))
    joined = df.join(again, F.col("a") == F.col("key")).join(
        session.read.format("lance").load(other_path), "key"
    )
    got = backfill(joined.select("_rowaddr", F.col("elsewhere").alias("b")), path)
    assert sorted(got.plan["input_columns"]) == ["a", "id", "text"]


def test_inputs_in_subqueries_and_behind_a_cache_are_found(
    session: SparkSession, path: str
) -> None:
    df = load(session, path)
    df.createOrReplaceTempView("inputs")
    session.read.format("lance").load(path).createOrReplaceTempView("plain_inputs")
    got = backfill(
        session.sql("SELECT _rowaddr, a + (SELECT max(id) FROM plain_inputs) AS b FROM inputs"),
        path,
    )
    assert sorted(got.plan["input_columns"]) == ["a", "id"]
    cached = df.select("_rowaddr", "text").cache()
    try:
        cached.count()
        got = backfill(cached.select("_rowaddr", F.upper("text").alias("b")), path)
        assert got.plan["input_columns"] == ["text"] and len(got.plan["snapshots"]) == 1
    finally:
        cached.unpersist()


def test_inputs_behind_a_checkpoint_are_not_guessed(session: SparkSession, path: str) -> None:
    df = load(session, path).select("_rowaddr", "text").localCheckpoint()
    assert (
        backfill(df.select("_rowaddr", F.upper("text").alias("b")), path).plan["input_columns"]
        is None
    )


def test_addresses_of_two_versions_are_both_named(session: SparkSession, path: str) -> None:
    first = load(session, path).filter("id < 30")
    lance.dataset(path).delete("id = 59")
    second = load(session, path).filter("id >= 30")
    got = backfill(first.unionAll(second).select("_rowaddr", "a"), path)
    assert sorted(json.loads(s)["version"] for s in got.plan["snapshots"]) == [1, 2]
    assert json.loads(got.metadata["_rowaddr"]["lance.table"])["version"] == 1, (
        "Spark keeps the first side's metadata only"
    )


def test_catalog_tables_tell_their_location(
    session: SparkSession, path: str, tmp_path: Path
) -> None:
    session.sql(f"CREATE TABLE located USING lance OPTIONS (path '{path}')")
    note = tmp_path / "note.json"
    try:
        df = session.range(3).selectExpr("id", "id AS a", "'t' AS text", "id AS unused")
        df.writeTo("located").option("commit_message", str(note)).append()
        assert read(note).plan["path"] == f"file:{path}"
    finally:
        session.sql("DROP TABLE located")


def test_a_vector_that_the_scan_gives_in_two_is_one_input_and_keeps_fragments_whole(
    session: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "vectors.lance")
    vectors = pa.array([[float(i)] * 32 for i in range(ROWS)], pa.list_(pa.float32(), 32))
    lance.write_dataset(
        pa.table({"id": range(ROWS), "v": vectors}), path, max_rows_per_file=PER_FRAGMENT
    )
    query = load(session, path).selectExpr("_rowaddr", "v[0] + 1 AS x")
    write_record = backfill(query, path)
    assert write_record.plan["input_columns"] == ["v"]
    assert write_record.plan["exclusive"]
    write_record.assert_by_fragment()
    assert sorted(a for task in write_record.tasks for a in task) == [
        i // 20 << 32 | i % 20 for i in range(ROWS)
    ]


@pytest.fixture
def limit(session: SparkSession) -> Iterator[Callable[..., None]]:
    """Sets Spark's limits for a batch to Python, for one test."""

    def set_limits(**limits: int) -> None:
        for name, value in limits.items():
            session.conf.set(f"spark.sql.execution.arrow.{name}", value)

    yield set_limits
    for name in ("maxBytesPerBatch", "maxRecordsPerBatch"):
        session.conf.unset(f"spark.sql.execution.arrow.{name}")


def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for each batch: its number of rows."""
    for batch in batches:
        yield pa.record_batch({"id": [batch.num_rows]})


def test_a_batch_ends_at_the_limit_of_its_rows_own_sizes(
    session: SparkSession, path: str, limit: Callable[..., None]
) -> None:
    """A row of one number takes 16 bytes in Spark. The vector of 100 numbers is much smaller than 1,600 bytes."""
    limit(maxBytesPerBatch=1600)
    assert record(session.range(0, 1050, 1, 1), path).batches == [[100] * 10 + [50]]
    limit(maxBytesPerBatch=1600, maxRecordsPerBatch=30)
    sizes = record(session.range(0, 1050, 1, 1), path).batches[0]
    assert sum(sizes) == 1050 and max(sizes) == 30


def test_a_batch_of_long_texts_stays_below_the_limit_and_one_more_row(
    session: SparkSession, path: str, limit: Callable[..., None]
) -> None:
    limit(maxBytesPerBatch=50_000)
    texts = session.range(0, 300, 1, 2).selectExpr(
        "id", "repeat('x', cast(id * 100 AS int)) AS text"
    )
    write_record = record(texts, path)
    assert max(max(task) for task in write_record.bytes) < 50_000 + 2 * 30_000
    assert sum(map(sum, write_record.batches)) == 300


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(0, 400), max_size=60),
    bytes_of_batch=st.integers(1, 2000),
    rows_of_batch=st.integers(1, 50),
    tasks=st.integers(1, 3),
)
def test_all_rows_arrive_in_order_whatever_the_limits(
    lengths: list[int], bytes_of_batch: int, rows_of_batch: int, tasks: int,
    session: SparkSession, path: str, limit: Callable[..., None],
) -> None:  # fmt: skip
    limit(maxBytesPerBatch=bytes_of_batch, maxRecordsPerBatch=rows_of_batch)
    lines = session.range(0, len(lengths), 1, tasks).selectExpr(
        "id AS _rowaddr",
        f"repeat('y', element_at(array(0{''.join(f',{n}' for n in lengths)}), cast(id + 2 AS int))) AS t",
    )
    write_record = record(lines, path, mode="append")
    assert [address for task in write_record.tasks for address in task] == list(range(len(lengths)))


def test_batches_for_the_users_python_keep_the_limit_of_the_session(
    session: SparkSession, path: str, limit: Callable[..., None]
) -> None:
    query = session.range(0, 5000, 1, 1).mapInArrow(counts, "id bigint")
    for bytes_of_batch in (1600, 2147483647):
        limit(maxBytesPerBatch=bytes_of_batch)
        assert record(query, path).ids == [[row.id for row in query.collect()]]


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One answer: the number of rows of each batch."""
    yield pa.record_batch({"answer": [json.dumps([batch.num_rows for batch in batches])]})


def test_batches_of_statements_end_by_the_sizes_of_rows(
    session: SparkSession, limit: Callable[..., None]
) -> None:
    limit(maxBytesPerBatch=1600)
    rows = session.range(0, 100_000, 1, 1)
    assert json.loads(rows.mapInArrow(sizes, ANSWER_TO_ALL_ROWS).first()[0]) == [100] * 1000
    assert max(json.loads(rows.mapInArrow(sizes, "answer string").first()[0])) > 100


@pytest.mark.long
def test_rows_of_all_plans_arrive(
    session: SparkSession, path: str, limit: Callable[..., None]
) -> None:
    limit(maxBytesPerBatch=100)
    df = load(session, path)
    for query in (
        df.select("id", twice("a").alias("b")),
        df.where(twice("a") > 3).select("id"),
        df.select("id").mapInArrow(lambda batches: batches, "id bigint"),
        df.select("id").rdd.toDF("id bigint"),
        df.select("id").union(df.select(twice("id"))),
        df.groupBy("a").agg(F.max("id").alias("id")),
        df.select("id").cache(),
        df.select("id").coalesce(1).limit(50),
        session.createDataFrame([(n,) for n in range(50)], "id bigint"),
        session.createDataFrame([], "id bigint"),
    ):
        keys = [key for task in record(query, path).ids for key in task]
        assert sorted(keys) == sorted(row.id for row in query.select("id").collect())


def test_a_write_that_fails_raises_the_error_of_its_row(session: SparkSession, path: str) -> None:
    failing = load(session, path).selectExpr(
        "id", "if(id = 30, cast(raise_error('no') AS bigint), a) AS x"
    )
    with pytest.raises(PySparkException, match="no"):
        record(failing, path)

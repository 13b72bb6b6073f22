"""A driver with an application of its own, which runs operations on demand: `python -m tests.cluster.operations MASTER
SETTINGS`.

SETTINGS is JSON. Each line of the standard input is a `OperationRequest`, and each line of the output is the reply.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr, pandas_udf  # type: ignore[attr-defined]

import lance_spark
from tests.support.faults import BATCH, SETTINGS, counting_function, counting_udf, value
from tests.support.java_classes import JVM_OPTIONS

ROWS, FRAGMENT_ROWS, TASK_ROWS = 240, 80, 40

HELD = 115
"""A row of all operations, in the middle of a task and of a batch."""

PADDING = 20_000
"""Characters beside each value of a DataFrame: more than the buffers between JVM and Python hold, so a task is in the
middle of its file at the row `HELD`.
"""


@dataclass(frozen=True, kw_only=True)
class OperationRequest:
    """An operation on a table.

    Attributes:
        operation: Its name.
        step: `prepare` or `act`.
        root: Folder of the tables.
        orders: Folder of `Orders`.
        storage: Options of the store.
    """

    operation: str
    step: str
    root: str
    orders: str
    storage: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class Place:
    """The tables of a request, on the driver."""

    spark: SparkSession
    request: OperationRequest

    @property
    def uri(self) -> str:
        return f"{self.request.root}/t.lance"

    @cached_property
    def db(self) -> lance_spark.Connection:
        return lance_spark.connect(
            self.request.root, self.spark, self.request.storage, progress=False
        )

    def udf(self) -> lance_spark.UDF:
        return counting_udf(self.request.orders, checkpoint_size=BATCH, min_checkpoint_size=BATCH)

    def values(self, rows: DataFrame) -> DataFrame:
        """Returns `x`, the counted values `v`, and the padding."""
        return rows.select("x", *self._values())

    def addressed_values(self, rows: DataFrame) -> DataFrame:
        return rows.select("_rowaddr", *self._values())

    def rows(self, start: int, stop: int) -> DataFrame:
        return self.spark.range(start, stop, 1, (stop - start) // TASK_ROWS).withColumnRenamed(
            "id", "x"
        )

    def _values(self) -> list[Column | str]:
        function = counting_function(self.request.orders)

        @pandas_udf("bigint")  # type: ignore[untyped-decorator]
        def compute(rows: pd.Series) -> pd.Series:
            return pd.Series([function(int(x)) for x in rows], dtype="Int64")

        return [compute("x").alias("v"), expr(f"repeat('x', {PADDING})").alias("padding")]

    def options(self) -> dict[str, str]:
        return {f"storage.{name}": text for name, text in self.request.storage.items()}

    def make(self, first: int = 0, *, with_values: bool = False) -> None:
        """Makes the table with pylance: the numbers `x`, and maybe columns of NULL."""
        rows: dict[str, Any] = {"x": pa.array(range(first, first + ROWS), pa.int64())}
        if with_values:
            rows |= {"v": pa.nulls(ROWS, pa.int64()), "padding": pa.nulls(ROWS, pa.string())}
        lance.write_dataset(
            pa.table(rows),
            self.uri,
            max_rows_per_file=FRAGMENT_ROWS,
            enable_stable_row_ids=True,
            storage_options=self.request.storage,
        )


@dataclass(frozen=True, kw_only=True)
class ClusterOperation:
    """An operation with counted calls.

    Attributes:
        prepare: Makes the table.
        act: Runs the operation.
        computed: Rows with a call and a value.
        others: Rows without a value.
        repeated: Maximum calls that a lost task repeats.
        table: Name of the table with the values.
    """

    prepare: Callable[[Place], object]
    act: Callable[[Place], object]
    computed: range = range(ROWS)
    others: range = range(0)
    repeated: int = TASK_ROWS
    table: str = "t"

    def expected(self) -> dict[int, int | None]:
        return {x: value(x) for x in self.computed} | dict.fromkeys(self.others)


def prepare_backfill(place: Place) -> None:
    place.make()
    place.db.open_table("t").add_columns({"v": place.udf()})


def backfill_dataframe(place: Place) -> None:
    rows = (
        place.spark.read.format("lance")
        .option("with_row_address", True)
        .options(**place.options())
        .load(place.uri)
    )
    options = {"mode": "backfill", "input_columns": "x", **place.options()}
    place.addressed_values(rows).write.format("lance").mode("append").options(**options).save(
        place.uri
    )


def append(place: Place) -> None:
    place.values(place.rows(0, ROWS)).write.format("lance").mode("append").options(
        **place.options()
    ).save(place.uri)


def merge(place: Place) -> None:
    name = f"catalog_{abs(hash(place.request.root))}"
    lance_spark.catalog(place.spark, name, place.request.root, place.request.storage)
    place.values(place.rows(80, 320)).createOrReplaceTempView("merged")
    place.spark.sql(
        f"MERGE INTO {name}.t t USING merged s ON t.x = s.x WHEN MATCHED THEN UPDATE SET v = s.v, padding = s.padding "
        "WHEN NOT MATCHED THEN INSERT (x, v, padding) VALUES (s.x, s.v, s.padding)"
    ).collect()


def prepare_refresh(place: Place) -> None:
    place.make()
    query = place.db.open_table("t").search(None).select({"x": "x", "v": place.udf()})
    query.create_materialized_view(place.db, "view")


def load(place: Place) -> None:
    rows = place.values(place.rows(0, ROWS))
    place.db.open_table("t").load_columns(
        rows, pk="x", columns=["v"], task_size=TASK_ROWS, commit_granularity=1
    )


OPERATIONS = {
    "backfill": ClusterOperation(
        prepare=prepare_backfill,
        act=lambda place: place.db.open_table("t").backfill(
            "v", **SETTINGS, task_size=TASK_ROWS, commit_granularity=1
        ),
        repeated=BATCH,
    ),
    # Three fragments are two tasks.
    "DataFrame backfill": ClusterOperation(
        prepare=Place.make, act=backfill_dataframe, repeated=2 * FRAGMENT_ROWS
    ),
    "append": ClusterOperation(
        prepare=lambda place: place.make(1000, with_values=True),
        act=append,
        others=range(1000, 1000 + ROWS),
    ),
    "MERGE": ClusterOperation(
        prepare=lambda place: place.make(with_values=True),
        act=merge,
        computed=range(80, 320),
        others=range(80),
        # Values that a lost executor has stored are lost, too.
        repeated=ROWS,
    ),
    "refresh": ClusterOperation(
        prepare=prepare_refresh,
        act=lambda place: place.db.open_table("view").refresh(max_rows_per_fragment=FRAGMENT_ROWS),
        repeated=FRAGMENT_ROWS,
        table="view",
    ),
    # Spark computes the rows of the source again if an executor with its shuffle files is gone.
    "load_columns": ClusterOperation(prepare=Place.make, act=load, repeated=ROWS),
}


def main(master: str, settings: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .appName("operations")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "800m")
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .config("spark.executor.extraJavaOptions", JVM_OPTIONS)
        .config("spark.executor.memory", "600m")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config(map=json.loads(settings))
    )
    session = lance_spark.configure(spark).getOrCreate()
    print(json.dumps({"executors": executors_of(session)}), flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(reply_to(OperationRequest(**json.loads(line)), session)), flush=True)
    finally:
        session.stop()


def reply_to(request: OperationRequest, spark: SparkSession) -> dict[str, Any]:
    place = Place(spark=spark, request=request)
    try:
        getattr(OPERATIONS[request.operation], request.step)(place)
    except Exception:  # noqa: BLE001 - the test shows it
        return {"error": traceback.format_exc()[-6000:]}
    return {"executors": executors_of(spark)}


def executors_of(spark: SparkSession) -> int:
    """Returns the number of registered executors."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


if __name__ == "__main__":
    main(*sys.argv[1:])

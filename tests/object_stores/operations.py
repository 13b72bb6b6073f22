"""Operations with a commit to a table of `id` (0 to 9), `x` (its double), and `v` of a UDF: their effects and the
resulting table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from lance.optimize import Compaction
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

import lance_spark
from lance_spark import udf
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.commit.schema_change import change_schema, set_config
from lance_spark.indexes.upkeep import drop_index
from lance_spark.jobs.history import JobHistory
from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows
from tests.object_stores.stores import StorePlace
from tests.support.records import job_record

IDS = list(range(10))
ROWS = pa.table({"id": IDS, "x": [2 * i for i in IDS]})


@udf(data_type=pa.int64(), version="1", name="tripled")
def tripled(id: int) -> int:
    return 3 * id


@udf(data_type=pa.int64(), version="1", name="fourfold")
def fourfold(id: int) -> int:
    return 4 * id


@dataclass(frozen=True, kw_only=True)
class StoreOperation:
    """One operation.

    Attributes:
        act: Runs the operation.
        shows: The visible state of the table, before and after.
        expected: The visible state afterwards.
        versions: Number of added versions.
        prepare: Preparations other than the table.
        exists: Whether the table exists before.
        rewrites: Whether each attempt writes new data files; cleanup removes the files of a lost attempt.
    """

    act: Callable[[StorePlace], object]
    shows: Callable[[StorePlace], object]
    expected: object
    versions: int = 1
    prepare: Callable[[StorePlace], object] = lambda place: None
    exists: bool = True
    rewrites: bool = False


def connection(place: StorePlace, spark: SparkSession | None = None) -> lance_spark.Connection:
    return lance_spark.connect(place.folder, spark, place.storage, progress=False)


def table_of(place: StorePlace, spark: SparkSession | None = None) -> lance_spark.Table:
    return connection(place, spark).open_table(place.name)


def make(place: StorePlace) -> None:
    """Makes the table in two fragments, as version 1, and adds the column as version 2."""
    lance.write_dataset(
        ROWS,
        place.uri,
        max_rows_per_file=5,
        enable_stable_row_ids=True,
        storage_options=place.storage,
    )
    table_of(place).add_columns({"v": tripled})


def columns(place: StorePlace) -> list[str]:
    return place.open().schema.names


def ids(place: StorePlace) -> list[int]:
    return sorted(row["id"] for row in place.contents())


def compact(place: StorePlace) -> None:
    dataset = place.ref.open_latest()
    task = Compaction.plan(dataset, {"target_rows_per_fragment": 1000}).tasks[0]  # type: ignore[arg-type]
    olds = tuple(task.fragments)
    part = Compacted(olds=olds, rewrite=task.execute(dataset).json())  # type: ignore[attr-defined]
    outcome = commit_compacted(place.ref, Basis.of(dataset), [part], missing=lambda _: ())
    assert outcome.committed == (part,) and not outcome.lost


def fill(place: StorePlace) -> None:
    backfill = Backfill(place.uri, "v", LongType(), storage=place.storage)
    backfill.run(computed(snapshot_rows(place.uri, storage=place.storage), lambda i: 5 * i))


def binding(place: StorePlace) -> str | None:
    text = (place.open().schema.field("v").metadata or {}).get(BINDING_KEY.encode())
    return None if text is None else ("fourfold" if b"fourfold" in text else "tripled")


def view_of(place: StorePlace) -> StorePlace:
    return StorePlace(uri=f"{place.folder}/view.lance", storage=place.storage)


def is_view(place: StorePlace) -> bool:
    return "view" in connection(place).table_names()


OPERATIONS: dict[str, StoreOperation] = {
    "create_table": StoreOperation(
        act=lambda place: connection(place).create_table(place.name, ROWS),
        shows=ids,
        expected=IDS,
        exists=False,
    ),
    "create_table without rows": StoreOperation(
        act=lambda place: connection(place).create_table(place.name, schema=ROWS.schema),
        shows=columns,
        expected=["id", "x"],
        exists=False,
    ),
    "create_materialized_view": StoreOperation(
        act=lambda place: connection(place).create_materialized_view(
            "view", table_of(place).search(None).select(["id"])
        ),
        shows=is_view,
        expected=True,
        versions=0,
    ),
    "add": StoreOperation(
        act=lambda place: table_of(place).add(ROWS), shows=ids, expected=sorted(IDS * 2)
    ),
    "overwrite": StoreOperation(
        act=lambda place: connection(place).create_table(place.name, ROWS, mode="overwrite"),
        shows=ids,
        expected=IDS,
    ),
    "add_columns of a UDF": StoreOperation(
        act=lambda place: table_of(place).add_columns({"w": fourfold}),
        shows=columns,
        expected=["id", "x", "v", "w"],
    ),
    "add_columns of SQL": StoreOperation(
        act=lambda place: table_of(place).add_columns({"w": "id + 1"}),
        shows=lambda place: columns(place)[3:] and sorted(place.column("w").values()),
        expected=[i + 1 for i in IDS],
        rewrites=True,
    ),
    "rename": StoreOperation(
        act=lambda place: table_of(place).alter_columns({"path": "x", "name": "y"}),
        shows=columns,
        expected=["id", "y", "v"],
    ),
    "cast": StoreOperation(
        act=lambda place: table_of(place).alter_columns({"path": "x", "data_type": pa.float64()}),
        shows=lambda place: str(place.open().schema.field("x").type),
        expected="double",
        rewrites=True,
    ),
    "drop_columns": StoreOperation(
        act=lambda place: table_of(place).drop_columns(["x"]), shows=columns, expected=["id", "v"]
    ),
    "another UDF": StoreOperation(
        act=lambda place: table_of(place).alter_columns({"path": "v", "udf": fourfold}),
        shows=binding,
        expected="fourfold",
    ),
    "drop_udf": StoreOperation(
        act=lambda place: table_of(place).alter_columns({"path": "v", "drop_udf": True}),
        shows=binding,
        expected=None,
    ),
    "configuration": StoreOperation(
        act=lambda place: change_schema(place.ref, lambda _: set_config({"k": "1"})),
        shows=lambda place: place.open().config().get("k"),
        expected="1",
    ),
    "restore": StoreOperation(
        act=lambda place: table_of(place).restore(1), shows=columns, expected=["id", "x"]
    ),
    "backfill write": StoreOperation(
        act=fill, shows=lambda place: place.column("v"), expected={i: 5 * i for i in IDS}
    ),
    "compaction": StoreOperation(
        act=compact, shows=lambda place: len(place.open().get_fragments()), expected=1, versions=2
    ),
    "drop_index": StoreOperation(
        prepare=lambda place: place.open().create_scalar_index("id", "BTREE", name="ix"),
        act=lambda place: drop_index(place.ref, "ix"),
        shows=lambda place: len(place.open().describe_indices()),
        expected=0,
    ),
    "job record": StoreOperation(
        prepare=lambda place: JobHistory(place.ref).save(job_record("one", status="RUNNING")),
        act=lambda place: JobHistory(place.ref).save(job_record("one")),
        shows=lambda place: [
            (record.job_id, record.status) for record in JobHistory(place.ref).jobs()
        ],
        expected=[("one", "DONE")],
        versions=0,
    ),
}


def on_spark(spark: SparkSession) -> dict[str, StoreOperation]:
    """Returns operations whose tasks run on Spark."""

    def refresh(place: StorePlace) -> Any:
        view = connection(place, spark).open_table("view")
        return view.refresh()

    def options(place: StorePlace) -> dict[str, str]:
        return {f"storage.{name}": value for name, value in place.storage.items()}

    return {
        "append": StoreOperation(
            # Spark plans in a process of its own: the application has read from the store before.
            prepare=lambda place: (
                spark.read.format("lance").options(**options(place)).load(place.uri).count()
            ),
            act=lambda place: (
                spark.createDataFrame([(10, 20, 30)], "id long, x long, v long")
                .write.format("lance")
                .options(**options(place))
                .mode("append")
                .save(place.uri)
            ),
            shows=ids,
            expected=[*IDS, 10],
        ),
        "backfill": StoreOperation(
            act=lambda place: table_of(place, spark).backfill("v"),
            shows=lambda place: place.column("v"),
            expected={i: 3 * i for i in IDS},
        ),
        "update": StoreOperation(
            act=lambda place: table_of(place, spark).update(where="id < 5", values={"x": 7}),
            shows=lambda place: sorted(place.column("x").values())[:5],
            expected=[7] * 5,
        ),
        "delete": StoreOperation(
            act=lambda place: table_of(place, spark).delete("id < 5"), shows=ids, expected=IDS[5:]
        ),
        "merge": StoreOperation(
            act=lambda place: (
                table_of(place, spark)
                .merge_insert("id")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute(pa.table({"id": [9, 10], "x": [0, 0], "v": [0, 0]}))
            ),
            shows=lambda place: (ids(place), place.column("x")[9]),
            expected=([*IDS, 10], 0),
        ),
        "load_columns": StoreOperation(
            act=lambda place: table_of(place, spark).load_columns(
                pa.table({"id": IDS, "score": [6 * i for i in IDS]}), pk="id", columns=["score"]
            ),
            shows=lambda place: place.column("score") if "score" in columns(place) else {},
            expected={i: 6 * i for i in IDS},
            versions=2,
        ),
        "compact_files": StoreOperation(
            act=lambda place: table_of(place, spark).compact_files(),
            shows=lambda place: len(place.open().get_fragments()),
            expected=1,
            versions=2,
        ),
        "create_scalar_index": StoreOperation(
            act=lambda place: table_of(place, spark).create_scalar_index("id"),
            shows=lambda place: len(place.open().describe_indices()),
            expected=1,
        ),
        "refresh": StoreOperation(
            prepare=lambda place: connection(place).create_materialized_view(
                "view", table_of(place).search(None).select(["id"])
            ),
            act=refresh,
            shows=lambda place: ids(view_of(place)),
            expected=IDS,
            versions=0,
        ),
    }

"""Streams read each row once, when it is inserted, or each change once, over restarts and with limits."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import lance_spark
from lance_spark import OptionError, Table, stream_lag
from tests.lance_spark.changes.histories import STEPS, History, changes_in
from udf_runtime import udf

pytestmark = pytest.mark.spark


@dataclass(slots=True)
class Copy:
    """A stream of a table into a folder of Parquet files, which continues at each run.

    Attributes:
        name: Name of the table in a catalog, in place of its path.
        batches: Rows of each micro-batch of the last run.
        lag: The lag at the end of the last run.
    """

    spark: SparkSession
    table: Table
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    batches: list[int] = field(default_factory=list)
    lag: list[lance_spark.StreamLag] = field(default_factory=list)

    def run(self) -> list[Row]:
        """Reads all available rows, and returns the rows of all runs."""
        reader = self.spark.readStream.options(**self.options)
        stream = (
            reader.table(self.name) if self.name else reader.format("lance").load(self.table.uri)
        )
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / "state")).start(
            str(self.folder / "copy")
        )
        assert query.awaitTermination(120)
        self._keep(query)
        return self.spark.read.parquet(str(self.folder / "copy")).collect()

    def _keep(self, query: StreamingQuery) -> None:
        self.batches = [progress["numInputRows"] for progress in query.recentProgress]
        if query.lastProgress is not None:
            self.lag = stream_lag(query.lastProgress)


@pytest.fixture
def copy(spark: SparkSession, table: Table, tmp_path: Path) -> Callable[..., Copy]:
    """Makes streams of the table, each with its options."""
    count = iter(range(100))

    def make(table: Table = table, name: str | None = None, **options: object) -> Copy:
        texts = {option: str(value) for option, value in options.items()}
        return Copy(spark, table, tmp_path / f"stream{next(count)}", texts, name)

    return make


def ids(rows: list[Row]) -> list[int]:
    return sorted(row.id for row in rows)


@pytest.mark.long
def test_a_stream_reads_each_row_once_when_it_is_inserted(
    table: Table, copy: Callable[..., Copy]
) -> None:
    stream = copy(maxRowsPerTrigger=15)
    assert ids(stream.run()) == list(range(30))
    assert stream.batches == [10, 10, 10]
    assert [(lag.version, lag.versions, lag.is_complete) for lag in stream.lag] == [
        (table.version, 0, True)
    ]
    table.update("id = 3", values={"text": "three"})
    table.delete("id = 4")
    table.add([{"id": 100, "text": "late"}])
    table.to_lance().optimize.compact_files()
    rows = stream.run()
    assert ids(rows) == [*range(30), 100]
    assert next(row.text for row in rows if row.id == 3) == "word 3"


@pytest.mark.long
def test_a_stream_begins_at_a_version_or_a_time(table: Table, copy: Callable[..., Copy]) -> None:
    last = table.version
    times = [version.timestamp.isoformat() for version in table.versions]
    latest = copy(startingVersion="latest")
    assert latest.run() == []
    assert ids(copy(startingVersion=1).run()) == list(range(30))
    assert ids(copy(startingVersion=last).run()) == list(range(20, 30))
    assert ids(copy(startingVersion=last - 1, startingBoundInclusive=False).run()) == list(
        range(20, 30)
    )
    assert ids(copy(startingTimestamp=times[1]).run()) == list(range(10, 30))
    table.add([{"id": 100, "text": "late"}])
    assert ids(latest.run()) == [100]


@pytest.mark.long
def test_limits_bound_each_micro_batch(table: Table, copy: Callable[..., Copy]) -> None:
    for number in range(3):
        table.add([{"id": 100 + number, "text": "late"}])
    by_version = copy(startingVersion=1, maxVersionsPerTrigger=2)
    assert ids(by_version.run()) == [*range(30), 100, 101, 102] and by_version.batches == [
        20,
        11,
        2,
    ]
    by_bytes = copy(maxBytesPerTrigger=1)
    assert ids(by_bytes.run()) == [*range(30), 100, 101, 102] and by_bytes.batches == [
        10,
        10,
        10,
        1,
        1,
        1,
    ]
    by_default = copy()
    assert ids(by_default.run()) == [*range(30), 100, 101, 102] and by_default.batches == [33]


@pytest.mark.long
def test_columns_and_a_filter_of_a_stream(table: Table, copy: Callable[..., Copy]) -> None:
    stream = copy(columns="id", filter="id % 2 = 0", with_row_id=True, startingVersion=2)
    rows = stream.run()
    assert ids(rows) == list(range(10, 30, 2)) and set(rows[0].asDict()) == {"id", "_rowid"}


@pytest.mark.long
def test_a_stream_of_changes_equals_the_change_feed(
    table: Table, copy: Callable[..., Copy]
) -> None:
    first = table.version + 1
    stream = copy(change_feed=True, startingVersion=first, maxRowsPerTrigger=1, with_row_id=True)
    table.update("id = 3", values={"text": "three"})
    table.delete("id = 4")
    stream.run()
    table.to_lance().merge_insert(
        "id"
    ).when_matched_update_all().when_not_matched_insert_all().execute(
        pa.table({"id": [5, 200], "text": ["five", "new"]})
    )
    table.to_lance().optimize.compact_files()
    table.restore(first)
    rows = Counter(
        (row._commit_version, row._change_type, row.id, row.text) for row in stream.run()
    )
    feed = table.changes(first).collect()
    assert rows == Counter(
        (row._commit_version, row._change_type, row.id, row.text) for row in feed
    )
    assert {kind for _, kind, _, _ in rows} == {
        "insert",
        "delete",
        "update_preimage",
        "update_postimage",
    }


@pytest.mark.long
def test_a_stream_of_changes_begins_with_all_rows(table: Table, copy: Callable[..., Copy]) -> None:
    table.delete("id = 3")
    stream = copy(change_feed=True)
    assert {row._change_type for row in stream.run()} == {"insert"}
    table.delete("id = 4")
    rows = stream.run()
    assert len(rows) == 30 and [row.id for row in rows if row._change_type == "delete"] == [4]


@pytest.mark.long
def test_a_stream_of_a_branch(table: Table, copy: Callable[..., Copy]) -> None:
    trial = table.branches.create("trial")
    by_location, by_option = copy(trial), copy(branch="trial", startingVersion="latest")
    assert ids(by_location.run()) == list(range(30)) and by_option.run() == []
    trial.add([{"id": 100, "text": "late"}])
    table.add([{"id": 200, "text": "main"}])
    assert ids(by_location.run()) == [*range(30), 100] and ids(by_option.run()) == [100]


def clean_up(table: Table) -> None:
    table.delete("id = 1")
    table.to_lance().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


def overwrite(table: Table) -> None:
    table.add([{"id": 1, "text": "over"}], mode="overwrite")


def drop_column(table: Table) -> None:
    table.to_lance().drop_columns(["text"])


def create_again(table: Table) -> None:
    rows = table.to_lance().to_table()
    shutil.rmtree(table.uri)
    for _ in range(6):
        lance_spark.connect(str(Path(table.uri).parent)).create_table(
            "words", rows, mode="overwrite"
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (clean_up, "was cleaned up.*another checkpointLocation"),
        (overwrite, "replaces all rows.*another checkpointLocation"),
        (create_again, "was created again.*another checkpointLocation"),
    ],
)
def test_what_a_stream_cannot_follow_is_an_error_that_says_how_to_continue(
    table: Table, copy: Callable[..., Copy], happens: Callable[[Table], None], message: str
) -> None:
    stream = copy()
    stream.run()
    happens(table)
    with pytest.raises(PySparkException, match=f"(?s)ChangeFeedError.*{message}"):
        stream.run()


@pytest.mark.long
def test_a_stream_continues_without_a_dropped_column_after_a_restart(
    spark: SparkSession, table: Table, copy: Callable[..., Copy], tmp_path: Path
) -> None:
    stream = copy()
    stream.run()
    loaded = spark.readStream.format("lance").load(table.uri)
    drop_column(table)
    table.add([{"id": 100}])
    writer = loaded.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other"))
    with pytest.raises(PySparkException, match=r"ChangeFeedError.*no column text"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
    assert ids(stream.run()) == [*range(30), 100]


@pytest.mark.classic
def test_a_stream_of_a_table_in_a_catalog(
    spark: SparkSession, table: Table, copy: Callable[..., Copy]
) -> None:
    lance_spark.catalog(spark, "streamed", str(Path(table.uri).parent))
    name = f"streamed.{table.name}"
    stream, latest = copy(name=name), copy(name=name, startingVersion="latest")
    assert ids(stream.run()) == list(range(30)) and latest.run() == []
    table.add([{"id": 100, "text": "late"}])
    assert ids(stream.run()) == [*range(30), 100] and ids(latest.run()) == [100]
    feed = spark.read.option("change_feed", True).option("startingVersion", 1)
    for read in (copy(name=name, change_feed=True).run, feed.table(name).collect):
        with pytest.raises(
            PySparkException, match=r"OptionError.*change_feed.*table of a catalog.*a read by path"
        ):
            read()


@pytest.mark.long
def test_wrong_options_of_a_stream_are_refused(table: Table, copy: Callable[..., Copy]) -> None:
    for options, text in [
        ({"endingVersion": 3, "startingVersion": 1}, "option of reads that end"),
        ({"startingVersion": 99}, "startingVersion"),
        ({"maxRowsPerTrigger": 0}, "maxrowspertrigger"),
        ({"limit": 3}, "limit"),
        ({"change_feed": True, "deduplicationMode": "netChanges"}, "option of reads that end"),
    ]:
        with pytest.raises(PySparkException, match=f"(?s)OptionError.*{text}"):
            copy(**options).run()
    with pytest.raises(OptionError, match="after its first micro-batch"):
        stream_lag(None)
    assert (
        stream_lag({"sources": [{"endOffset": "5", "latestOffset": json.dumps({"rows": 5})}]}) == []
    )


@pytest.mark.long
# Shrinking would take hours: each example runs several queries.
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(
    st.lists(
        st.sampled_from(sorted({*STEPS} - {"branch", "overwrite", "drop", "widen"})),
        min_size=2,
        max_size=6,
    ),
    st.data(),
)
def test_streams_over_a_random_history_give_each_change_once(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    steps: list[str],
    data: st.DataObject,
) -> None:
    """With restarts between the commits, and limits of the micro-batches."""
    folder = tmp_path_factory.mktemp("stream")
    history = History.of(lance_spark.connect(str(folder), spark, progress=False), data, [])
    table, first = history.table, history.table.version
    limits = data.draw(
        st.sampled_from([{}, {"maxRowsPerTrigger": "3"}, {"maxVersionsPerTrigger": "1"}])
    )
    options = {"columns": "id,text", **limits}
    rows = Copy(spark, table, folder / "rows", options)
    changes = Copy(
        spark,
        table,
        folder / "changes",
        {**options, "change_feed": "true", "startingVersion": str(first)},
    )
    for step in steps:
        history.take(step)
        if data.draw(st.booleans()):
            rows.run()
            changes.run()
    expected = history.expected(first, table.version, ["id", "text"], lambda row: True)
    copied = Counter(
        (row._commit_version, row._change_type, (row.id, row.text)) for row in changes.run()
    )
    assert (
        copied
        == expected
        == changes_in(table.changes(first, columns=["id", "text"]), ["id", "text"])
    )
    read_rows = Counter((row.id, row.text) for row in rows.run())
    begin = int(
        json.loads((folder / "rows" / "state" / "offsets" / "0").read_text().splitlines()[-1])[
            "version"
        ]
    )
    snapshot = Counter(history.rows(begin, ["id", "text"], lambda row: True).values())
    later = history.expected(begin + 1, table.version, ["id", "text"], lambda row: True)
    inserts: Counter[tuple[Any, ...]] = Counter()
    for (_, kind, values), times in later.items():
        inserts[values] += times if kind == "insert" else 0
    assert read_rows == snapshot + inserts


@pytest.mark.long
def test_a_query_with_ready_columns_reads_a_row_when_it_is_computed(
    spark: SparkSession, db: lance_spark.Connection, table: Table, tmp_path: Path
) -> None:
    def odd(id: int) -> int | None:
        return id if id % 2 else None

    table.add_columns({"odd": udf(odd, data_type=pa.int64(), version="1")})
    copy = Copy(spark, table, tmp_path, {"ready_columns": "odd"})
    table.backfill("odd", where="id < 5")
    assert sorted(row.id for row in copy.run()) == list(range(5))
    table.backfill("odd")
    table.compact_files()
    assert sorted((row.id, row.odd) for row in copy.run() if row.id % 2) == [
        (i, i) for i in range(1, 30, 2)
    ]
    assert len(copy.run()) == 30 and sum(copy.batches) == 0

"""The readers of streams, driven like Spark drives them: offsets, restarts, and requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_spark.dataset
from lance_spark import ChangeFeedError, Connection, Table
from lance_spark.changes.by_path import open_changes
from lance_spark.changes.options import ChangeOptions
from lance_spark.changes.streams import ChangeStream, UnlimitedStream, make_stream_reader
from tests.lance_spark.changes.histories import update_unseen

pytestmark = pytest.mark.spark


def unlimited(table: Table, **options: str) -> UnlimitedStream:
    """Returns the reader for Spark 4.1."""
    texts = {"path": table.uri, **options}
    return UnlimitedStream(ChangeOptions.parse(texts), open_changes(texts)[1])


def limited(table: Table, **options: str) -> Any:
    """Returns the reader for Spark 4.2."""
    pytest.importorskip("pyspark.sql.streaming.datasource")
    texts = {"path": table.uri, **options}
    return make_stream_reader(texts, open_changes(texts)[1])


def rows_of(
    stream: ChangeStream, start: dict[str, Any], end: dict[str, Any]
) -> list[dict[str, Any]]:
    """Returns the rows of a micro-batch, whose offsets Spark stores as JSON."""
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def offsets_of(stream: Any, limit: Any) -> Iterator[dict[str, Any]]:
    """Yields the offsets of the micro-batches up to the latest version."""
    offset = stream.initialOffset()
    yield offset
    while (end := stream.latestOffset(offset, limit)) != offset:
        yield end
        offset = end


def test_a_stream_of_spark_4_1_reads_each_version_and_notices_a_table_created_again(
    db: Connection,
) -> None:
    table = db.create_table("plain", pa.table({"id": [1, 2]}))
    stream = unlimited(table)
    start, end = stream.initialOffset(), stream.latestOffset()
    assert [row["id"] for row in rows_of(stream, start, end)] == [1, 2]
    assert rows_of(stream, end, stream.latestOffset()) == []
    table.add([{"id": 3}])
    later = stream.latestOffset()
    assert [row["id"] for row in rows_of(stream, end, later)] == [3]
    shutil.rmtree(table.uri)
    for number in range(4):
        lance.write_dataset(
            pa.table({"id": [number]}), table.uri, mode="append", enable_stable_row_ids=True
        )
    for reader in (stream, unlimited(table)):
        with pytest.raises(ChangeFeedError, match=r"was created again.*another checkpointLocation"):
            reader.partitions(later, reader.latestOffset())


@pytest.mark.parametrize(
    "options", [{}, {"startingversion": "latest"}, {"startingversion": "1"}], ids=str
)
@pytest.mark.parametrize("release", ["4.1", "4.2"])
def test_a_query_that_died_in_its_first_micro_batch_repeats_it(
    db: Connection, release: str, options: dict[str, str]
) -> None:
    table = db.create_table("early", pa.table({"id": [1]}))
    table.add([{"id": 2}])
    if release == "4.1":
        dead = unlimited(table, **options)
        start = dead.initialOffset()
        table.add([{"id": 3}])
        end = dead.latestOffset()
    else:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        dead = limited(table, **options)
        start = dead.initialOffset()
        table.add([{"id": 3}])
        end = dead.latestOffset(start, ReadAllAvailable())
    rows = rows_of(dead, start, end)
    assert sorted(row["id"] for row in rows) == (
        [3] if options.get("startingversion") == "latest" else [1, 2, 3]
    )
    table.add([{"id": 4}])
    table.add([{"id": 5}])
    reader = unlimited(table, **options) if release == "4.1" else limited(table, **options)
    assert rows_of(reader, reader.initialOffset(), end) == rows


def test_names_of_the_change_feed_are_plain_columns_of_a_stream_of_new_rows(db: Connection) -> None:
    row = {"id": 1, "_change_type": "x", "_commit_version": 7, "_commit_timestamp": "noon"}
    stream = unlimited(db.create_table("odd", [row]))
    assert rows_of(stream, stream.initialOffset(), stream.latestOffset()) == [row]


def test_a_stream_continues_in_the_middle_of_a_version_with_other_columns(
    db: Connection, table: Table
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    first = table.version
    dataset = table.to_lance()
    dataset.delete("id >= 10")
    update_unseen(table.to_lance(), "unseen", 5)
    table.restore(first)
    table.delete("id = 29")
    for options in ({"startingversion": str(first + 1)}, {}):
        before = limited(table, columns="id,text", maxrowspertrigger="1", **options)
        after = limited(table, columns="id", **options)
        offsets = list(offsets_of(before, ReadMaxRows(1)))
        everything = sorted(row["id"] for row in rows_of(before, offsets[0], offsets[-1]))
        assert everything == (list(range(10, 30)) if options else list(range(29)))
        for offset in offsets:
            some, rest = rows_of(before, offsets[0], offset), rows_of(after, offset, offsets[-1])
            assert sorted(row["id"] for row in [*some, *rest]) == everything


def test_each_version_of_a_stream_is_opened_once(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    table = db.create_table("many", pa.table({"id": [1]}))
    for number in range(40):
        lance.write_dataset(pa.table({"id": [number]}), table.uri, mode="append")
    opened: list[int | None] = []
    open_version = lance_spark.dataset._open

    def count(
        uri: str, branch: str | None, version: int | None, storage_options: Any
    ) -> lance.LanceDataset:
        opened.append(version)
        return open_version(uri, branch, version, storage_options)

    monkeypatch.setattr(lance_spark.dataset, "_open", count)
    for limit, options in (
        (ReadAllAvailable(), {}),
        (ReadMaxRows(100), {"maxrowspertrigger": "100"}),
    ):
        stream = limited(table, startingversion="2", **options)
        start = stream.initialOffset()
        opened.clear()
        end = stream.latestOffset(start, limit)
        assert len(opened) <= 3 or options
        assert len(stream.partitions(start, end)) == 3, "a task takes few versions"
        assert len(opened) <= 40 + 6

"""Versions that streams need: positions next to the table, and cleanups that warn or keep."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

import lance_spark
from lance_spark import ChangeFeedError, OptionError, Table
from lance_spark.changes import positions
from lance_spark.changes.by_path import open_changes
from lance_spark.changes.options import ChangeOptions
from lance_spark.changes.positions import first_needed_version
from lance_spark.changes.streams import UnlimitedStream, make_stream_reader
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.dataset import DatasetRef
from tests.lance_spark.streaming.micro_batches import MicroBatchQuery, rows_of

NO_AGE = timedelta(0)
Offset = dict[str, Any]


@pytest.fixture
def table(jobs: Any, tmp_path: Path) -> Table:
    table = lance_spark.connect(str(tmp_path), jobs, progress=False).create_table("t", [{"id": 0}])
    for number in range(1, 4):
        table.add([{"id": number}])
    return table


def unlimited(table: Table, **options: str) -> UnlimitedStream:
    """Returns the reader for Spark 4.1."""
    texts = {"path": table.uri, **options}
    return UnlimitedStream(ChangeOptions.parse(texts), open_changes(texts)[1])


def limited(table: Table, **options: str) -> Any:
    """Returns the reader for Spark 4.2."""
    pytest.importorskip("pyspark.sql.streaming.datasource")
    texts = {"path": table.uri, **options}
    return make_stream_reader(texts, open_changes(texts)[1])


def read_with_spark_4_1(table: Table, start: Offset | None) -> Offset:
    """Reads a micro-batch in a new process, and returns its end."""
    stream = unlimited(table, startingversion="2")
    start = stream.initialOffset() if start is None else start
    end = stream.latestOffset()
    stream.partitions(start, end)
    stream.commit(json.loads(json.dumps(end)))
    return end


def read_with_spark_4_2(table: Table, start: Offset | None) -> Offset:
    """Reads a micro-batch in a new process, and returns its end."""
    stream = limited(table, startingversion="2")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    start = stream.initialOffset() if start is None else start
    end: Offset = stream.latestOffset(start, ReadAllAvailable())
    stream.partitions(start, end)
    stream.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    return end


Read = Callable[[Table, Offset | None], Offset]
READERS = [pytest.param(read_with_spark_4_1, id="4.1"), pytest.param(read_with_spark_4_2, id="4.2")]


def position_files(table: Table) -> list[Path]:
    return sorted(Path(table.uri, "_lance_spark", "streams").iterdir())


def versions_of(table: Table) -> list[int]:
    return [int(version["version"]) for version in table.to_lance().version_refs()]


@pytest.mark.parametrize("read", READERS)
def test_a_cleanup_keeps_the_versions_that_a_stream_needs(table: Table, read: Read) -> None:
    offset = read(table, None)
    table.add([{"id": 4}])
    table.add([{"id": 5}])
    assert table.cleanup_old_versions(NO_AGE, keep_for_streams=True).old_versions == 3
    assert sorted(versions_of(table)) == [4, 5, 6]
    offset = read(table, offset)
    assert offset["version"] == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.cleanup_old_versions(NO_AGE).old_versions == 2
    assert len(position_files(table)) == 1, "a stream has one position, also after restarts"


@pytest.mark.parametrize("read", READERS)
def test_a_cleanup_without_the_argument_warns(table: Table, read: Read) -> None:
    offset = read(table, None)
    table.add([{"id": 4}])
    table.add([{"id": 5}])
    with pytest.warns(UserWarning, match=r"from version 4 to version 5.*keep_for_streams=True"):
        assert table.cleanup_old_versions(NO_AGE).old_versions == 5
    with pytest.raises(ChangeFeedError, match="was cleaned up"):
        read(table, offset)


def poll_with_spark_4_1(stream: Any, _start: Offset) -> None:
    stream.latestOffset()


def poll_with_spark_4_2(stream: Any, start: Offset) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    stream.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize(
    ("make", "poll"),
    [(unlimited, poll_with_spark_4_1), (limited, poll_with_spark_4_2)],
    ids=["4.1", "4.2"],
)
def test_a_waiting_stream_writes_a_position_again_after_a_failure(
    table: Table, make: Any, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make(table, startingversion="latest")
    folder = Path(table.uri, "_lance_spark", "streams")
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("in the way of the folder")
    start = stream.initialOffset()
    folder.unlink()
    poll(stream, start)
    assert not folder.exists(), "a stream without the right to write does not try all the time"
    moment = datetime.now(UTC)
    monkeypatch.setattr(
        positions,
        "datetime",
        MagicMock(wraps=datetime, now=lambda _: moment + timedelta(seconds=11)),
    )
    poll(stream, start)
    assert len(position_files(table)) == 1
    monkeypatch.undo()
    assert first_needed_version(DatasetRef.at(table.uri)) == start["version"]


def test_a_stream_in_the_middle_of_a_version_needs_the_version_before(table: Table) -> None:
    stream = limited(table, startingversion="2", maxrowspertrigger="1")
    from pyspark.sql.streaming.datasource import ReadMaxRows

    start = stream.initialOffset()
    ref = DatasetRef.at(table.uri)
    assert first_needed_version(ref) == 1
    middle = {**start, "version": 3, "fragment": 2, "incarnation": ref.pin(3).incarnation}
    stream.latestOffset(middle, ReadMaxRows(1))
    assert first_needed_version(ref) == 2


def test_a_tag_of_a_branch_hides_no_needed_version(table: Table) -> None:
    dataset = table.to_lance()
    branch = dataset.create_branch("b", 2)
    while branch.version < 4:
        branch.insert(table.to_arrow())
    dataset.tags.create("of-branch", ("b", 4))
    read_with_spark_4_1(table, None)
    assert first_needed_version(DatasetRef.at(table.uri)) == 4
    table.add([{"id": 4}])
    table.add([{"id": 5}])
    table.cleanup_old_versions(NO_AGE, keep_for_streams=True)
    assert 4 in versions_of(table)


def test_a_dropped_table_leaves_no_position(table: Table) -> None:
    read_with_spark_4_1(table, None)
    assert position_files(table)
    db = lance_spark.connect(str(Path(table.uri).parent))
    db.drop_table("t")
    assert not Path(table.uri).exists()
    assert db.create_table("t", [{"id": 1}]).count_rows() == 1


def test_tagged_versions_stay_an_error(table: Table) -> None:
    read_with_spark_4_1(table, None)
    table.add([{"id": 4}])
    table.tags.create("first", 1)
    with pytest.raises(lance_spark.CommitError, match="tag"):
        table.cleanup_old_versions(NO_AGE, keep_for_streams=True)
    done = table.cleanup_old_versions(
        NO_AGE, keep_for_streams=True, error_if_tagged_old_versions=False
    )
    assert (done.old_versions, sorted(versions_of(table))) == (2, [1, 4, 5])


def test_old_damaged_and_forged_positions_keep_nothing(table: Table) -> None:
    read_with_spark_4_1(table, None)
    ref, (path,) = DatasetRef.at(table.uri), position_files(table)
    moment = datetime.now(UTC)
    for text in (
        json.dumps({"version": 2, "time": (moment - timedelta(days=8)).isoformat()}),
        json.dumps({"version": 2, "time": (moment + timedelta(days=800)).isoformat()}),
        json.dumps({"version": 2, "time": "2026-01-01T00:00:00"}),
        json.dumps({"version": "2", "time": moment.isoformat()}),
        "{",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert first_needed_version(ref) is None
        assert not path.exists()
    path.parent.mkdir(exist_ok=True)
    path.with_name("other.json").write_text(json.dumps({"version": 1, "time": moment.isoformat()}))
    assert first_needed_version(ref) is None


def test_a_cleanup_keeps_the_versions_since_an_interrupted_commit(table: Table) -> None:
    query = MicroBatchQuery(table=table.uri)
    query.run(0)
    commit = query.write(1)
    with (
        patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        commit()
    table.add([{"id": 100}])
    assert table.cleanup_old_versions(NO_AGE, keep_for_streams=True).old_versions == 5
    query.run(1, 2)
    assert query.ids() == sorted([0, 1, 2, 3, 100, *rows_of(0, 1, 2)])
    assert table.cleanup_old_versions(NO_AGE, keep_for_streams=True).old_versions == 2


def test_a_stream_without_the_right_to_write_reads(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("lance_spark.storage.objects.LanceObjects.put", refuse)
    assert read_with_spark_4_1(table, None)["version"] == 4


def test_keep_for_streams_is_a_boolean(table: Table) -> None:
    with pytest.raises(OptionError, match="keep_for_streams"):
        table.cleanup_old_versions(NO_AGE, keep_for_streams="yes")  # type: ignore[arg-type]

"""Sources of a load: each kind gives the table of a left join, or an error that names the unreadable source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import BackfillIncompleteError, Connection, Table
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.errors import ColumnNotFoundError, OptionError, SourceError, SourceKeysError
from lance_spark.ingest import staging
from lance_spark.load import files as source_files
from lance_spark.load import join
from lance_spark.load.sources import LanceSource
from tests.lance_spark.load.loads import (
    assert_same,
    joins,
    left_join,
    load,
    make_table,
    nothing_changes,
    numbered,
    of_ids,
    old_files_stay,
    write_file,
)

pytestmark = pytest.mark.sample(5, tests=3)

Open = Callable[[pa.Table, Path, SparkSession], Any]


def halves(data: pa.Table) -> tuple[pa.Table, pa.Table]:
    return data.slice(0, 11), data.slice(11)


def of_folder(*names: str) -> Open:
    """Writes a half of the rows into each of two files, and gives the folder."""

    def opened(data: pa.Table, files: Path, _: SparkSession) -> str:
        for half, name in zip(halves(data), names, strict=True):
            write_file(half, files / name)
        return str(files)

    return opened


def of_list(data: pa.Table, files: Path, _: SparkSession) -> list[str]:
    first, second = halves(data)
    # Names that a folder listing would skip are read if they are given explicitly.
    return [
        write_file(first, files / "a" / "_one.parquet"),
        write_file(second, files / "b.parquet"),
    ]


def of_pattern(data: pa.Table, files: Path, _: SparkSession) -> str:
    first, second = halves(data)
    write_file(first, files / "day=1" / "x.parquet")
    write_file(second, files / "day=2" / "deeper" / "x.parquet")
    write_file(of_ids([0], factor=-1), files / "other" / "x.parquet")
    write_file(of_ids([0], factor=-1), files / "day=3" / "_x.parquet")
    return str(files / "day=[12]*" / "*")


def of_lance(data: pa.Table, files: Path, _: SparkSession) -> str:
    lance.write_dataset(data, str(files / "values"), max_rows_per_file=7)
    return str(files / "values")


SOURCES: dict[str, Open] = {
    "a Parquet file": lambda data, files, _: write_file(data, files / "x.parquet"),
    "a folder": of_folder("a.parquet", "b.PARQUET"),
    "a nested folder": of_folder("a/b/c.parquet", "x.pq"),
    "a pattern": of_pattern,
    "a list": of_list,
    "Arrow files": of_folder("a.arrow", "b.feather"),
    "an Arrow stream": lambda data, files, _: write_file(data, files / "stream.arrow"),
    "a Lance table": of_lance,
    "a DataFrame": lambda data, _, spark: spark.createDataFrame(data.to_pandas()).repartition(3),
    "an Arrow table": lambda data, _1, _2: data,
    "an Arrow reader": lambda data, _1, _2: data.to_reader(max_chunksize=4),
    "a lazy frame": lambda data, _1, _2: pl.DataFrame(data).lazy(),
    "pandas": lambda data, _1, _2: data.to_pandas(),
    "dicts": lambda data, _1, _2: data.to_pylist(),
}


@pytest.mark.guarantee("L01", "L03", "L07", "L08")
@pytest.mark.parametrize("kind", SOURCES)
def test_each_source_gives_the_table_that_a_left_join_gives(
    kind: str, db: Connection, files: Path, spark: SparkSession
) -> None:
    table = make_table(db, numbered(v=pa.array(range(-30, 0), pa.int64()), other=["x"] * 30))
    ids = [*range(29, 10, -2), 1000, *range(0, 20, 2), -5]
    source = of_ids(ids, text=[f"text {i}" for i in ids])
    before = table.to_arrow()
    with old_files_stay(table):
        result = load(table, SOURCES[kind](source, files, spark), "id", ["text", "v"])
    assert_same(table.to_arrow(), left_join(before, source, "id", ["text", "v"]))
    assert (result.status, result.rows_computed, result.rows_skipped) == ("DONE", 20, 10)


STAGED = of_ids([*range(25), 1000], text=[f"text {i}" for i in range(26)])


def staged_rows() -> Iterator[pa.RecordBatch]:
    yield from STAGED.append_column("unused", pa.nulls(len(STAGED))).to_batches(max_chunksize=4)


def files_of(table: Table) -> list[Path]:
    """Returns the files of a table, except files of its history."""
    return [
        path
        for path in Path(table.uri).rglob("*")
        if path.is_file() and "jobs.lance" not in path.parts
    ]


def staging_of(table: Table) -> list[Path]:
    return list(Path(table.uri, "_lance_spark", "staging").rglob("*"))


def test_more_rows_than_the_memory_may_hold_are_staged_until_the_end_of_the_job(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_HELD_BYTES", 200)
    table = make_table(db, numbered(v=pa.array(range(-30, 0), pa.int64())))
    before, places = table.to_arrow(), []
    reading = LanceSource.frame

    def frame(source: LanceSource, *arguments: Any, **named: Any) -> Any:
        places.append(source._ref.uri)
        assert source._dataset.schema.names == ["id", "v", "text"]
        return reading(source, *arguments, **named)

    monkeypatch.setattr(LanceSource, "frame", frame)
    plan = table.plan_load_columns(staged_rows(), "id", ["v", "text"])
    assert (plan.source_rows, plan.source_format) == (None, "data") and not places
    result = load(table, staged_rows(), "id", ["v", "text"])
    assert_same(table.to_arrow(), left_join(before, STAGED, "id", ["v", "text"]))
    assert (result.status, result.rows_computed) == ("DONE", 25)
    assert len(set(places)) == 1 and places[0].startswith(f"{table.uri}/_lance_spark/staging/")
    assert staging_of(table) == []


def test_a_failed_load_of_staged_rows_leaves_none_and_is_resumed(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_HELD_BYTES", 200)
    table = make_table(db, numbered(v=pa.array(range(-30, 0), pa.int64())))
    doubled = pa.concat_tables([STAGED, STAGED.slice(3, 1)]).to_reader(max_chunksize=4)
    before = files_of(table)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from staged_rows()
        raise RuntimeError("the source broke")

    for source, message in ((doubled, "1 duplicate key"), (broken(), "the source broke")):
        with pytest.raises((SourceKeysError, RuntimeError), match=message):
            load(table, source, "id", ["v", "text"])
        assert files_of(table) == before
    with patch.object(GroupCommits, "commit", raise_error), pytest.raises(BackfillIncompleteError):
        load(table, staged_rows(), "id", ["v"])
    assert not [path for path in staging_of(table) if path.name == "source"]
    result = load(table, staged_rows(), "id", ["v"])
    assert (result.status, result.rows_from_checkpoint) == ("DONE", 25)
    assert staging_of(table) == []


def raise_error(*_: object) -> None:
    raise RuntimeError("no commit")


@pytest.mark.long
def test_a_load_of_a_stream_has_bounded_memory(db: Connection) -> None:
    """A gigabyte of values; the allocations of Arrow in this process stay below a quarter of it."""
    peaks = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 4_096_000, 64_000):
            peaks.append(pa.total_allocated_bytes())
            texts = pa.array([f"{first:0250}"] * 64_000)
            yield pa.record_batch(
                {"id": pa.array(range(first, first + 64_000), pa.int64()), "text": texts}
            )

    table = make_table(db, numbered(rows=3_000))
    assert load(table, batches(), "id", ["text"]).rows_computed == 3_000
    assert max(peaks) - peaks[0] < 256 << 20


@pytest.mark.long
def test_a_format_that_is_given_says_what_files_without_a_known_name_are(
    db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    for number, (name, form) in enumerate({"x.bin": "parquet", "y.arrow": "ipc"}.items()):
        source = of_ids(range(5 + number), factor=number + 2)
        path = write_file(source, files / name)
        Path(path).rename(files / f"part-{number}")
        load(table, str(files / f"part-{number}"), "id", ["v"], source_format=form)
        assert table.count_rows(f"v = {number + 2} * id") == 5 + number


def test_a_format_that_is_given_chooses_among_the_files_of_a_folder_or_reads_all_where_none_is_named_so(
    db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    write_file(of_ids([1]), files / "a.parquet")
    write_file(of_ids([1], factor=-1), files / "b.arrow")
    (files / "notes.txt").write_text("no values")
    plan = table.plan_load_columns(str(files), "id", ["v"], source_format="parquet")
    assert (plan.source_rows, plan.source_format) == (1, "parquet")
    (files / "sub").mkdir()
    write_file(of_ids([1, 2]), files / "sub" / "x.parquet")
    (files / "sub" / "x.parquet").rename(files / "sub" / "x")
    plan = table.plan_load_columns(str(files / "sub"), "id", ["v"], source_format="parquet")
    assert plan.source_rows == 2


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("a.parquet", "b.arrow"), "several formats: .*a.parquet, .*b.arrow"),
        (("a.csv",), "no format in their names, such as .*a.csv"),
        (("a.parquet", "b"), "no format in their names, such as .*/b"),
        (("_a.parquet", ".b.parquet", "_tmp/c.parquet"), "There is no file to load"),
        ((), "There is no file to load"),
    ],
)
def test_files_of_an_unknown_format_are_refused(
    names: tuple[str, ...], what: str, db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    for name in names:
        write_file(of_ids([1]), files / name)
    with nothing_changes(table), pytest.raises(SourceError, match=what) as caught:
        table.load_columns(str(files), "id", ["v"])
    assert str(files) in str(caught.value) and caught.value.source == str(files)


def test_the_reason_of_an_unreadable_file_ends_with_one_full_stop(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no file of Parquet")
    system, file_format, listed = source_files.list_files([str(tmp_path / "a.parquet")], {}, None)
    with pytest.raises(SourceError, match=r"[^.]\. Check the file"):
        source_files.schema_of(system, file_format, listed[0])


@pytest.mark.guarantee("L05")
def test_unsupported_sources_are_refused_by_name(
    db: Connection, files: Path, spark: SparkSession
) -> None:
    table = make_table(db, numbered())
    path = write_file(of_ids([1]), files / "a.parquet")
    lance.write_dataset(of_ids([1]), str(files / "x.lance"))
    refusals: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (str(files / "absent.parquet"), {}, SourceError, "absent.parquet"),
        (str(files / "absent.lance"), {}, FileNotFoundError, "absent.lance"),
        (str(files / "*.pq"), {}, SourceError, "There is no file"),
        (path, {"source_format": "ipc"}, SourceError, "a.parquet is no file of format ipc"),
        (path, {"source_format": "lance"}, OSError, "a.parquet"),
        (path, {"source_format": "csv"}, OptionError, "'source_format'"),
        ([path, str(files / "absent.parquet")], {}, SourceError, "absent.parquet"),
        ([str(files / "x.lance")] * 2, {"source_format": "lance"}, OptionError, "one location"),
        (
            [path, "s3://bucket/x.parquet"],
            {"source_storage_options": {"aws_region": "x"}},
            OptionError,
            "one store",
        ),
        ("gopher://host/x.parquet", {}, OptionError, "no scheme that Lance knows"),
        (of_ids([1]), {"source_format": "parquet"}, OptionError, "'source_format'"),
        (spark.range(3), {"source_format": "parquet"}, OptionError, "'source_format'"),
        ([], {}, Exception, "id"),
        (17, {}, Exception, "int"),
    ]
    for source, more, kind, message in refusals:
        with nothing_changes(table), pytest.raises(kind, match=message) as caught:
            table.load_columns(source, "id", ["v"], **more)
        assert type(caught.value).__module__ == "lance_spark.errors", source


@pytest.mark.long
@pytest.mark.parametrize("at", ["key", "value"])
@pytest.mark.parametrize("what", ["another type", "no such column", "no Parquet at all"])
def test_a_file_with_other_columns_than_the_first_is_refused_by_its_name_before_anything_is_changed(
    at: str, what: str, db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    write_file(of_ids([1, 2]), files / "a.parquet")
    name = {"key": "id", "value": "v"}[at]
    if what == "no Parquet at all":
        (files / "b.parquet").write_bytes(b"nothing")
    else:
        other_columns = of_ids([3]).drop_columns([name])
        write_file(
            other_columns.append_column(name, pa.array(["3"]))
            if what == "another type"
            else other_columns,
            files / "b.parquet",
        )
    with nothing_changes(table), pytest.raises(SourceError, match=r"b\.parquet"):
        table.load_columns(str(files), "id", ["v"])


def test_other_columns_of_the_files_may_differ_and_their_order_too(
    db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    write_file(of_ids([1, 2], extra=["x", "y"]), files / "a.parquet")
    write_file(of_ids([3], extra=[1]).select(["v", "extra", "id"]), files / "b.parquet")
    table.load_columns(str(files), "id", ["v"])
    assert table.count_rows("v = 10 * id") == 3


@pytest.mark.parametrize("kind", ["a Parquet file", "a Lance table", "a DataFrame", "dicts"])
def test_a_column_that_the_source_lacks_is_named_with_those_it_has(
    kind: str, db: Connection, files: Path, spark: SparkSession
) -> None:
    table = make_table(db, numbered())
    source = SOURCES[kind](of_ids([1]), files, spark)
    for pk, columns, message in [
        ("id", ["w"], "'w'.*Its columns are id, v"),
        ("id", ["V"], "'V'.*Did you mean 'v'"),
        ("ID", ["v"], "'ID'.*Did you mean 'id'"),
        ("absent", ["v"], "'absent'"),
    ]:
        with nothing_changes(table), pytest.raises(ColumnNotFoundError, match=message):
            table.load_columns(source, pk, columns)


def test_an_empty_source_leaves_new_columns_that_are_null(db: Connection, files: Path) -> None:
    table = make_table(db, numbered(v=pa.array(range(30), pa.int64())))
    source = of_ids([], text=pa.array([], pa.string()))
    result = load(table, write_file(source, files / "a.parquet"), "id", ["v", "text"])
    assert (result.status, result.rows_computed) == ("DONE", 0)
    assert table.count_rows("v = id") == 30 and table.count_rows("text IS NULL") == 30


def test_locations_are_absolute_relative_or_uris_and_each_file_is_read_once(
    db: Connection, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(db, numbered())
    path = write_file(of_ids([1, 2]), files / "a b" / "x%20y.parquet")
    monkeypatch.chdir(files)
    folder = str(Path(path).parent)
    for source in (
        path,
        "a b/x%20y.parquet",
        f"file://{folder}",
        f"{folder}/",
        "a b/*.parquet",
        f"{files}/*/x*",
        [path, folder, f"{folder}/*.parquet"],
    ):
        assert table.plan_load_columns(source, "id", ["v"]).source_rows == 2, source


@pytest.mark.long
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "stream.arrow"])
def test_what_is_cut_among_many_tasks_and_joined_by_sorting_is_the_same(
    name: str, db: Connection, files: Path, spark: SparkSession
) -> None:
    # Rows in another order than their keys.
    data = pa.table({"id": [7 * i % 50 for i in range(50)], "v": range(-50, 0)})
    table = make_table(db, data, fragment_rows=25)
    ids = [*range(49, 0, -2), 1000]
    source = of_ids(ids, text=[f"text {i}" for i in ids])
    path = write_file(source, files / name)
    before = table.to_arrow()
    with (
        patch.object(source_files, "_PIECE_BYTES", 200),
        patch.object(join, "_BROADCAST_BYTES", 0),
        patch.object(join, "_TASK_ROWS", 8),
        patch.object(join, "_GROUP_BITS", 3),
    ):
        result = load(table, path, "id", ["text", "v"], checkpoint_size=3)
    assert_same(table.to_arrow(), left_join(before, source, "id", ["text", "v"]))
    assert (result.rows_selected, result.rows_computed, result.rows_skipped) == (50, 25, 25)


def test_a_table_is_read_as_it_was_when_the_load_began(
    db: Connection, files: Path, spark: SparkSession
) -> None:
    table = make_table(db, numbered())
    path = of_lance(of_ids(range(30)), files, spark)
    with joins(before=lambda: lance.dataset(path).update({"v": "-1"})):
        load(table, path, "id", ["v"])
    assert table.count_rows("v = 10 * id") == 30

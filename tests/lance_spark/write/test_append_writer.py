"""The writer's three steps, called directly: several concurrent jobs on one table, without a JVM."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lance_spark.errors import CommitConflictError, OptionError, SchemaMismatchError
from lance_spark.write.append_writer import RowsWritten
from tests.lance_spark.write.appends import (
    ROWS,
    batches,
    child_environment,
    files_in,
    ids_in,
    plan,
    unused_files,
    write,
)

pytestmark = pytest.mark.sample(1, tests=2)


def test_append_creates_then_appends_and_overwrite_keeps_the_old_version(path: Path) -> None:
    write(path, 1, 2)
    write(path, 3)
    write(path, 9, overwrite=True)

    assert [ids_in(path, v) for v in (1, 2, 3)] == [[1, 2], [1, 2, 3], [9]]
    assert lance.dataset(str(path)).has_stable_row_ids
    assert unused_files(path) == set()


@pytest.mark.sample(1)
def test_all_tasks_of_a_job_become_one_version_in_the_order_of_the_tasks(path: Path) -> None:
    job = plan(path)
    messages = [job.write(batches(i, i + 100)) for i in range(5)]
    job.commit([messages[0], None, *messages[1:], job.write(batches())])

    dataset = lance.dataset(str(path))
    assert dataset.version == 1
    assert dataset.to_table()["id"].to_pylist() == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("messages", [[], [None], ["empty"]])
def test_no_rows_create_an_empty_table_of_the_right_format(
    path: Path, messages: list[str | None], version: str
) -> None:
    job = plan(path, data_storage_version=version)
    job.commit([None if m is None else job.write(batches()) for m in messages])

    dataset = lance.dataset(str(path))
    assert (dataset.version, dataset.count_rows(), dataset.schema.names) == (1, 0, ["id", "s"])
    assert dataset.data_storage_version == version
    assert dataset.has_stable_row_ids


def test_no_rows_append_no_version_but_overwrite_with_an_empty_one(path: Path) -> None:
    write(path, 1)
    write(path)
    assert lance.dataset(str(path)).version == 1
    write(path, overwrite=True)
    assert (lance.dataset(str(path)).version, ids_in(path), ids_in(path, 1)) == (2, [], [1])


def test_of_two_concurrent_creations_the_second_becomes_an_append(path: Path) -> None:
    first, second = plan(path), plan(path)
    messages = [first.write(batches(1)), second.write(batches(2))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    assert ids_in(path) == [1, 2]
    assert ids_in(path, 1) == [1]


def test_a_creation_that_finds_a_table_of_other_columns_is_refused_and_leaves_nothing(
    path: Path,
) -> None:
    other_schema = StructType([StructField("id", StringType())])
    first, second = plan(path, schema=other_schema), plan(path)
    first.commit([first.write(iter([pa.record_batch({"id": pa.array(["a"])})]))])
    message = second.write(batches(2))
    with pytest.raises(CommitConflictError) as caught:
        second.commit([message])
    assert caught.value.retryable
    assert lance.dataset(str(path)).to_table().to_pylist() == [{"id": "a"}]
    assert unused_files(path) == set()


def test_two_concurrent_overwrites_make_two_versions(path: Path) -> None:
    write(path, 0)
    first, second = plan(path, overwrite=True), plan(path, overwrite=True)
    messages = [first.write(batches(1)), second.write(batches(2))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    assert [ids_in(path, v) for v in (1, 2, 3)] == [[0], [1], [2]]


def test_an_append_concurrent_with_an_overwrite_of_equal_columns_adds_to_it(path: Path) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    write(path, 1, overwrite=True)
    appending.commit([message])
    assert ids_in(path) == [1, 5]


def test_an_append_concurrent_with_a_new_column_has_null_there(path: Path) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    lance.dataset(str(path)).add_columns({"extra": "id * 2"})
    appending.commit([message])
    assert lance.dataset(str(path)).to_table(["id", "extra"]).to_pylist() == [
        {"id": 0, "extra": 0},
        {"id": 5, "extra": None},
    ]


@pytest.mark.parametrize("change", ["drop", "cast", "rename", "other"])
def test_an_append_concurrent_with_a_changed_column_is_refused_and_leaves_nothing(
    path: Path, change: str
) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    dataset = lance.dataset(str(path))
    if change == "drop":
        dataset.drop_columns(["s"])
    elif change == "cast":
        dataset.alter_columns({"path": "s", "data_type": pa.large_string()})
    elif change == "rename":
        dataset.alter_columns({"path": "s", "name": "t"})
    else:
        dataset.drop_columns(["s"])
        lance.dataset(str(path)).add_columns({"new": "cast(id as string)"})
    before = lance.dataset(str(path)).version
    with pytest.raises(CommitConflictError, match="'s'"):
        appending.commit([message])
    assert lance.dataset(str(path)).version == before
    assert unused_files(path) == set()


@pytest.mark.sample(1)
def test_an_append_to_a_table_that_was_deleted_meanwhile_is_refused(path: Path) -> None:
    write(path, 0)
    dataset = lance.dataset(str(path))
    dataset.drop_columns(["s"])
    appending = plan(path, schema=StructType([ROWS["id"]]))
    message = appending.write(iter([pa.record_batch({"id": pa.array([1])})]))
    for version in (path / "_versions").iterdir():
        version.unlink()
    with pytest.raises(CommitConflictError, match="deleted"):
        appending.commit([message])


def test_overwriting_keeps_what_belongs_to_the_table(path: Path) -> None:
    write(path, 0, data_storage_version="2.1", enable_stable_row_ids="false")
    dataset = lance.dataset(str(path))
    dataset.update_config({"owner": "me"})
    dataset.tags.create("first", 1)
    other_schema = StructType([StructField("k", IntegerType())])
    job = plan(path, overwrite=True, schema=other_schema)
    job.commit([job.write(iter([pa.record_batch({"k": pa.array([1], pa.int32())})]))])

    dataset = lance.dataset(str(path))
    assert dataset.to_table().to_pylist() == [{"k": 1}]
    assert dataset.data_storage_version == "2.1"
    assert dataset.get_fragments()[0].data_files()[0].file_minor_version == 1
    assert not dataset.has_stable_row_ids
    assert dataset.config() == {"owner": "me"}
    assert dataset.tags.list()["first"]["version"] == 1


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        ({"data_storage_version": "2.0"}, "2.2"),
        ({"enable_stable_row_ids": "false"}, "true"),
        ({"version": "3"}, "backfill"),
        ({"input_columns": "a"}, "backfill"),
        ({"s.arrow.fixed-size-list.size": "3"}, "string"),
        ({"s.lance.encoding": "blob"}, "string"),
        ({"nope.lance.encoding": "blob"}, "no such column"),
    ],
)
def test_an_option_that_contradicts_the_table_is_refused_and_says_what_the_table_has(
    path: Path, options: dict[str, str], expected_text: str
) -> None:
    write(path, 0)
    before = files_in(path)
    with pytest.raises(OptionError) as caught:
        plan(path, **options)
    assert caught.value.option in options
    assert expected_text in str(caught.value)
    assert files_in(path) == before


def test_column_options_that_the_table_has_may_be_repeated_in_any_case(path: Path) -> None:
    inner = pa.struct([pa.field("W", pa.list_(pa.int8(), 3))])
    blob = pa.field("B", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("V", pa.list_(pa.float32(), 2)), pa.field("S", inner), blob])
    lance.write_dataset(schema.empty_table(), path)
    values = StructType(
        [
            StructField("V", ArrayType(FloatType())),
            StructField("S", StructType([StructField("W", ArrayType(ByteType()))])),
            StructField("B", BinaryType()),
        ]
    )
    options = {
        "v.arrow.fixed-size-list.size": "2",
        "s.w.arrow.fixed-size-list.size": "3",
        "b.lance.encoding": "blob",
    }
    plan(path, schema=values, **options)
    with pytest.raises(OptionError, match=r"\[3\]"):
        plan(path, schema=values, **{"s.w.arrow.fixed-size-list.size": "4"})


def test_settings_that_the_table_has_may_be_repeated(path: Path) -> None:
    write(path, 0, data_storage_version="2.2", enable_stable_row_ids="true")
    write(path, 1, data_storage_version="stable", enable_stable_row_ids="true")
    assert ids_in(path) == [0, 1]


def test_a_dataframe_without_columns_or_with_doubled_ones_is_refused(path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match="no columns"):
        plan(path, schema=StructType([]))
    with pytest.raises(SchemaMismatchError, match="'id'"):
        plan(path, schema=StructType([ROWS["id"], ROWS["id"]]))
    assert not path.parent.exists()


def test_the_commit_message_and_the_job_are_kept_with_the_version(path: Path) -> None:
    job = write(path, 1, commit_message="nightly load")
    properties = lance.dataset(str(path)).read_transaction(1).transaction_properties
    assert "nightly load" in properties.values()
    assert job.staging.job_id in properties.values()


def test_files_are_rolled_over_by_rows(path: Path) -> None:
    write(path, *range(25), max_rows_per_file="10")
    assert [f.count_rows() for f in lance.dataset(str(path)).get_fragments()] == [10, 10, 5]


def test_a_message_is_a_small_picklable_value(path: Path) -> None:
    message = plan(path).write(batches(1))
    copy = pickle.loads(pickle.dumps(message))
    assert isinstance(copy, RowsWritten)
    assert copy == message
    assert len(pickle.dumps(message)) < 2000


@pytest.mark.long
def test_the_memory_of_a_task_does_not_grow_with_its_rows(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import pickle, resource, sys
        import numpy as np, pyarrow as pa
        job = pickle.load(sys.stdin.buffer)
        rng = np.random.default_rng(0)
        ends = pa.py_buffer(np.arange(0, 1_000_001, 100, dtype=np.int32))
        def batches():
            for i in range(int(sys.argv[1])):
                letters = pa.py_buffer(rng.integers(65, 90, 1_000_000, dtype=np.uint8))
                text = pa.StringArray.from_buffers(10_000, ends, letters)
                yield pa.record_batch({"id": pa.array(rng.integers(0, 1 << 62, 10_000)), "s": text})
        rows = job.write(batches()).rows
        print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)
    used = {}
    for count in (40, 300):  # 43 MB and 320 MB
        job = pickle.dumps(plan(tmp_path / str(count)))
        process = subprocess.run(
            [sys.executable, "-c", script, str(count)],
            input=job,
            env=child_environment(),
            check=True,
            capture_output=True,
        )
        rows, kib = map(int, process.stdout.split())
        assert rows == count * 10_000
        used[count] = kib / 1024
    assert used[300] - used[40] < 60, f"MiB: {json.dumps(used)}"


@pytest.mark.sample(1)
def test_merge_schema_adds_the_columns_that_the_table_lacks(tmp_path: Path) -> None:
    write(tmp_path / "t", 1)
    wider = StructType(
        [*ROWS, StructField("extra", DoubleType(), nullable=False), StructField("More", LongType())]
    )
    with pytest.raises(SchemaMismatchError, match="extra: the table has no such column"):
        plan(tmp_path / "t", schema=wider)
    wrong = StructType([StructField("id", StringType()), *wider.fields[1:]])
    with pytest.raises(SchemaMismatchError, match="id: "):
        plan(tmp_path / "t", schema=wrong, mergeSchema="true")
    assert lance.dataset(str(tmp_path / "t")).version == 1
    job = plan(tmp_path / "t", schema=wider, mergeSchema="true")
    rows = pa.record_batch(
        {"id": [2], "s": ["b"], "extra": [0.5], "More": pa.array([None], pa.int64())}
    )
    job.commit([job.write(iter([rows]))])
    dataset = lance.dataset(str(tmp_path / "t"))
    assert dataset.version == 3 and [field.nullable for field in dataset.schema] == [True] * 4
    assert dataset.to_table().to_pylist() == [
        {"id": 1, "s": "row 1", "extra": None, "More": None},
        {"id": 2, "s": "b", "extra": 0.5, "More": None},
    ]
    assert (
        plan(tmp_path / "t", schema=wider, mergeSchema="true").ref.version == 3
    )  # without a new column
    write(tmp_path / "new", 1, mergeSchema="true")
    write(tmp_path / "t", 5, overwrite=True, mergeSchema="true")
    assert lance.dataset(str(tmp_path / "t")).schema.names == ["id", "s"]

"""Data files with our own names equal the files that Lance itself would write. Without Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.fragment import DataFile

from lance_spark.backfill.planning.planner import targets_of
from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.verify import same_columns
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    ColumnNameError,
    CommitError,
    LancePanicError,
    OptionError,
    UnsupportedTypeError,
)
from lance_spark.staging import area
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.data_file import FragmentSink
from lance_spark.staging.file_layout import FileLayout
from tests.strategies import facts, tables

VERSIONS = ("2.0", "2.1", "2.2")
BLOB = {"lance-encoding:blob": "true"}


def _write(
    uri: str,
    table: pa.Table,
    layout: FileLayout,
    *,
    max_rows: int = 1 << 20,
    max_bytes: int = 1 << 40,
    batch_rows: int = 1 << 20,
) -> list[Any]:
    staging = Staging(uri=uri, job_id=new_id())
    staging.open_job()
    sink = FragmentSink(staging, layout, max_rows=max_rows, max_bytes=max_bytes)
    # PyArrow's cast of slices of lists of nulls to their own type gives invalid arrays.
    columns = [
        c if c.type == f.type else c.cast(f.type)
        for c, f in zip(table.columns, layout.row_schema, strict=True)
    ]
    rows = pa.table(columns, schema=layout.row_schema)
    for batch in rows.to_batches(max_chunksize=batch_rows):
        sink.write(batch)
    return list(sink.finish())


def _create(uri: str, table: pa.Table, version: str) -> lance.LanceDataset:
    layout = FileLayout.of_new_table(table.schema, version)
    return lance.LanceDataset.commit(
        uri, lance.LanceOperation.Overwrite(layout.table_schema, _write(uri, table, layout))
    )


def _append(dataset: lance.LanceDataset, table: pa.Table) -> lance.LanceDataset:
    layout = FileLayout.of_table(dataset, table.column_names)
    operation = lance.LanceOperation.Append(_write(dataset.uri, table, layout))
    return lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def _file(dataset: lance.LanceDataset, fragment: int = 0) -> DataFile:
    (file,) = dataset.get_fragments()[fragment].metadata.files
    return file


def _facts(file: DataFile) -> dict[str, object]:
    return {k: v for k, v in vars(file).items() if k not in ("_path", "file_size_bytes")}


def _field_ids(dataset: lance.LanceDataset) -> list[object]:
    def walk(field: Any) -> list[object]:
        return [field.id(), field.name(), [walk(child) for child in field.children()]]

    return [walk(field) for field in dataset.lance_schema.fields()]


DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)

# name, type, values, metadata, versions with this type
COLUMNS: list[tuple[str, Any, list[Any], dict[str, str], tuple[str, ...]]] = [
    ("bool", pa.bool_(), [True, None, False], {}, VERSIONS),
    *(
        (str(t), t, [1, None, 3], {}, VERSIONS)
        for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    ),
    *(
        (str(t), t, [1, None, 3], {}, VERSIONS)
        for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ),
    *(
        (str(t), t, [1.5, None, float("nan")], {}, VERSIONS)
        for t in (pa.float16(), pa.float32(), pa.float64())
    ),
    (
        "dec128",
        pa.decimal128(38, 3),
        [decimal.Decimal("1.5"), None, decimal.Decimal("-7.125")],
        {},
        VERSIONS,
    ),
    (
        "dec256",
        pa.decimal256(50, 3),
        [decimal.Decimal("1.5"), None, decimal.Decimal("-7.125")],
        {},
        VERSIONS,
    ),
    ("string", pa.string(), ["a", None, "ü" * 50], {}, VERSIONS),
    ("large_string", pa.large_string(), ["a", None, ""], {}, VERSIONS),
    ("binary", pa.binary(), [b"a", None, b""], {}, VERSIONS),
    ("large_binary", pa.large_binary(), [b"a", None, b""], {}, VERSIONS),
    ("fixed_binary", pa.binary(4), [b"abcd", None, b"efgh"], {}, VERSIONS),
    ("date32", pa.date32(), [DAY, None, DAY], {}, VERSIONS),
    ("date64", pa.date64(), [DAY, None, DAY], {}, VERSIONS),
    *((f"ts_{u}", pa.timestamp(u), [1, None, 3], {}, VERSIONS) for u in ("s", "ms", "us", "ns")),
    ("ts_zone", pa.timestamp("us", "Europe/Berlin"), [NOON, None, NOON], {}, VERSIONS),
    ("time32", pa.time32("ms"), [1, None, 3], {}, VERSIONS),
    ("time64", pa.time64("ns"), [1, None, 3], {}, VERSIONS),
    ("duration", pa.duration("us"), [1, None, 3], {}, VERSIONS),
    ("nulls", pa.null(), [None, None, None], {}, VERSIONS),
    ("list", pa.list_(pa.int32()), [[1, None], None, []], {}, VERSIONS),
    ("large_list", pa.large_list(pa.string()), [["a", None], None, []], {}, VERSIONS),
    ("vector", pa.list_(pa.float32(), 3), [[1, 2, 3], None, [4, 5, 6]], {}, VERSIONS),
    ("list_of_vectors", pa.list_(pa.list_(pa.int8(), 2)), [[[1, 2]], None, []], {}, ("2.1", "2.2")),
    (
        "struct",
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": None}, {}],
        {},
        VERSIONS,
    ),
    ("null_struct", pa.struct([("x", pa.int32())]), [{"x": 1}, None, {"x": 3}], {}, ("2.1", "2.2")),
    (
        "nested",
        pa.struct(
            [
                (
                    "l",
                    pa.list_(pa.struct([("a", pa.int8()), ("b", pa.struct([("c", pa.string())]))])),
                ),
                ("z", pa.int64()),
            ]
        ),
        [{"l": [{"a": 1, "b": {"c": "q"}}], "z": 1}, {"l": [], "z": 2}, {"l": None, "z": 3}],
        {},
        VERSIONS,
    ),
    (
        "packed",
        pa.struct([("x", pa.int32()), ("y", pa.int64())]),
        [{"x": 1, "y": 2}] * 3,
        {"lance-encoding:packed": "true"},
        ("2.1", "2.2"),
    ),
    (
        "old_packed",
        pa.struct([("x", pa.int32()), ("y", pa.int64())]),
        [{"x": 1, "y": 2}] * 3,
        {"packed": "true"},
        VERSIONS,
    ),
    ("map", pa.map_(pa.string(), pa.int32()), [[("a", 1)], None, []], {}, ("2.2",)),
    (
        "vector_of_vectors",
        pa.list_(pa.list_(pa.float32(), 2), 2),
        [[[1, 2], [3, 4]]] * 3,
        {},
        VERSIONS,
    ),
    ("vector_of_decimals", pa.list_(pa.decimal128(5, 1), 2), [[1, 2]] * 3, {}, VERSIONS),
    ("dictionary", pa.dictionary(pa.int16(), pa.string()), ["a", None, "a"], {}, VERSIONS),
    ("json", pa.json_(), ['{"a": 1}', None, "[]"], {}, VERSIONS),
    (
        "extension",
        pa.binary(16),
        [b"0123456789abcdef", None, b"f" * 16],
        {"ARROW:extension:name": "arrow.uuid"},
        VERSIONS,
    ),
    ("metadata", pa.int32(), [1, None, 3], {"unit": "m"}, VERSIONS),
    (
        "compressed",
        pa.string(),
        ["a" * 99, None, "b"],
        {"lance-encoding:compression": "zstd"},
        VERSIONS,
    ),
    ("blob", pa.large_binary(), [b"a" * 10, None, b""], BLOB, VERSIONS),
    (
        "big_blob",
        pa.large_binary(),
        [b"a" * 70_000, b"b" * 5_000_000, b"c" * 80_000],
        BLOB,
        ("2.2",),
    ),
]
CASES = [
    pytest.param(*column[:4], version, id=f"{column[0]}-{version}")
    for column in COLUMNS
    for version in column[4]
]


def _table(
    name: str, type_: pa.DataType, values: list[object], metadata: dict[str, str]
) -> pa.Table:
    column = pa.array(values, type_)
    schema = pa.schema(
        [
            pa.field("first", pa.int32(), nullable=False),
            pa.field(name, type_, metadata=metadata),
            pa.field("last", pa.string()),
        ]
    )
    return pa.table(
        [pa.array(range(len(values)), pa.int32()), column, pa.array(["x"] * len(values))],
        schema=schema,
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "type_", "values", "metadata", "version"), CASES)
def test_a_created_table_is_the_one_that_lance_would_have_made(
    name: str,
    type_: pa.DataType,
    values: list[object],
    metadata: dict[str, str],
    version: Any,
    tmp_path: Path,
) -> None:
    table = _table(name, type_, values, metadata)
    lances = lance.write_dataset(table, tmp_path / "lance", data_storage_version=version)
    ours = _create(str(tmp_path / "ours"), table, version)

    assert _facts(_file(ours)) == _facts(_file(lances))
    if not pa.types.is_dictionary(
        type_
    ):  # here Lance writes a few bytes more, for the dictionary's place in the legacy format
        assert _file(ours).file_size_bytes == _file(lances).file_size_bytes
    assert ours.schema.equals(lances.schema, check_metadata=True)
    assert _field_ids(ours) == _field_ids(lances)
    assert ours.data_storage_version == version
    assert _values(ours) == _values(lances)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "type_", "values", "metadata", "version"), CASES)
def test_appended_files_name_the_fields_of_a_table_whose_field_ids_have_gaps(
    name: str,
    type_: pa.DataType,
    values: list[object],
    metadata: dict[str, str],
    version: Any,
    tmp_path: Path,
) -> None:
    table = _table(name, type_, values, metadata)
    holder = pa.struct([("p", pa.int8()), ("q", pa.string())])
    first = table.add_column(
        0, pa.field("dropped", holder), pa.array([{"p": 1, "q": "a"}] * len(table), holder)
    )
    pair = []
    for who in ("lance", "ours"):
        dataset = lance.write_dataset(first, tmp_path / who, data_storage_version=version)
        dataset.drop_columns(["dropped"])
        pair.append(dataset)
    lances = lance.write_dataset(table, pair[0].uri, mode="append")
    ours = _append(pair[1], table)

    # Their sizes differ by some bytes, because Lance also writes the field ids into the file without reading them.
    assert _facts(_file(ours, 1)) == _facts(_file(lances, 1))
    assert (
        _file(ours, 1).file_size_bytes
        == (Path(ours.uri) / "data" / _file(ours, 1).path).stat().st_size
    )
    assert _values(ours) == _values(lances)


def _values(dataset: lance.LanceDataset) -> list[str]:
    # As text, since NaN is not equal to itself.
    return [repr(row) for row in dataset.to_table(blob_handling="all_binary").to_pylist()]


def test_columns_that_a_dataframe_lacks_are_not_in_the_file_and_read_as_null(
    tmp_path: Path,
) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1], "b": ["x"], "c": [2.0]}), tmp_path / "t")
    appended = _append(dataset, pa.table({"c": [3.0], "a": [4]}).select(["a", "c"]))

    assert _file(appended, 1).fields == [0, 2]
    assert appended.to_table().to_pylist()[1] == {"a": 4, "b": None, "c": 3.0}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    max_rows=st.integers(1, 200),
    max_bytes=st.integers(1, 4000),
)
def test_files_hold_at_most_max_rows_and_no_batch_after_max_bytes(
    sizes: list[int], max_rows: int, max_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    uri = str(tmp_path_factory.mktemp("t") / "t")
    batches = [pa.record_batch({"a": pa.array(range(size), pa.int64())}) for size in sizes]
    table = pa.Table.from_batches(batches)
    fragments = _write(
        uri,
        table,
        FileLayout.of_new_table(table.schema, "2.2"),
        max_rows=max_rows,
        max_bytes=max_bytes,
    )

    rows = [fragment.physical_rows for fragment in fragments]
    assert sum(rows) == sum(sizes)
    assert all(0 < n <= max_rows for n in rows)
    # A file is closed at max_bytes, so without its last batch the file is smaller.
    assert all((n - max(sizes)) * 8 < max_bytes for n in rows)
    if rows:
        committed = lance.LanceDataset.commit(
            uri, lance.LanceOperation.Overwrite(table.schema, fragments)
        )
        assert committed.to_table().equals(table)


def test_blobs_of_every_size_come_back_from_many_files(tmp_path: Path) -> None:
    thresholds = {
        **BLOB,
        "lance-encoding:blob-inline-size-threshold": "10",
        "lance-encoding:blob-dedicated-size-threshold": "100",
    }
    thresholds["lance-encoding:blob-pack-file-size-threshold"] = "150"
    schema = pa.schema(
        [
            pa.field("b", pa.large_binary(), metadata=thresholds),
            pa.field("c", pa.large_binary(), metadata=BLOB),
        ]
    )
    values = [None if i % 7 == 0 else bytes([i % 256]) * (i * 3) for i in range(100)]
    table = pa.table(
        [pa.array(values, pa.large_binary()), pa.array(values[::-1], pa.large_binary())],
        schema=schema,
    )
    uri = str(tmp_path / "t")
    layout = FileLayout.of_new_table(schema, "2.2")
    fragments = _write(uri, table, layout, max_rows=30, batch_rows=7)
    dataset = lance.LanceDataset.commit(
        uri, lance.LanceOperation.Overwrite(layout.table_schema, fragments)
    )

    assert dataset.to_table(blob_handling="all_binary").to_pydict() == {
        "b": values,
        "c": values[::-1],
    }
    kinds = {row["kind"] for row in dataset.to_table(["b"])["b"].to_pylist() if row is not None}
    assert kinds == {0, 1, 2}
    dataset.validate()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("field", "version", "expected_name"),
    [
        (pa.field("m", pa.map_(pa.string(), pa.int32())), "2.0", "m"),
        (pa.field("v", pa.list_(pa.struct([("a", pa.int8())]), 2)), "2.1", "v"),
        (pa.field("v", pa.list_(pa.struct([("a", pa.int8())]), 2)), "2.2", "v"),
        (pa.field("w", pa.struct([("v", pa.list_(pa.string(), 2))])), "2.2", "w.v"),
        (pa.field("i", pa.month_day_nano_interval()), "2.2", "i"),
        (pa.field("_rowid", pa.int64()), "2.2", "_rowid"),
        (pa.field("a.b", pa.int64()), "2.2", "a.b"),
        (pa.field("s", pa.struct([pa.field("b", pa.large_binary(), metadata=BLOB)])), "2.2", "s.b"),
    ],
)
def test_a_column_that_the_format_cannot_hold_is_named_before_anything_is_written(
    field: pa.Field[Any], version: str, expected_name: str
) -> None:
    schema = pa.schema([pa.field("fine", pa.int32()), field])
    with pytest.raises((UnsupportedTypeError, ColumnNameError)) as caught:
        FileLayout.of_new_table(schema, version)
    assert caught.value.column == expected_name


def test_a_null_struct_in_format_2_0_is_refused_with_its_column(tmp_path: Path) -> None:
    table = _table("s", pa.struct([("x", pa.int32())]), [{"x": 1}, None, {"x": 2}], {})
    with pytest.raises(UnsupportedTypeError, match="null value") as caught:
        _write(str(tmp_path / "t"), table, FileLayout.of_new_table(table.schema, "2.0"))
    assert caught.value.column == "s"


def test_the_legacy_format_is_refused() -> None:
    with pytest.raises(OptionError, match="legacy"):
        FileLayout.of_new_table(pa.schema([("a", pa.int32())]), "legacy")


_NESTED = {
    "struct": (STRUCT := pa.struct([("x", pa.int64()), ("s", pa.string())])),
    "struct of struct": (TWICE := pa.struct([("a", pa.int64()), ("n", STRUCT)])),
    "struct of struct of struct": pa.struct([("m", TWICE)]),
    "list of struct of struct": pa.list_(TWICE),
    "struct of list of struct": pa.struct([("l", pa.list_(STRUCT))]),
    "struct of vector": pa.struct([("v", pa.list_(pa.float32(), 4))]),
    "struct of map of struct": pa.struct([("m", pa.map_(pa.string(), TWICE))]),
}


@pytest.mark.parametrize("kind", [*_NESTED, None])
def test_rows_of_any_types_are_cut_into_files_anywhere(kind: str | None) -> None:
    schema = None if kind is None else pa.schema([pa.field("c", _NESTED[kind])])

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        tables(schema, fewest_rows=8, most_rows=20, calendar=False),
        st.integers(1, 10),
        st.integers(2, 20),
    )
    def run(table: pa.Table, max_rows: int, batch_rows: int) -> None:
        with tempfile.TemporaryDirectory() as home:
            layout = FileLayout.of_new_table(table.schema, "2.2")
            parts = _write(f"{home}/t", table, layout, max_rows=max_rows, batch_rows=batch_rows)
            assert [part.physical_rows for part in parts[:-1]] == [max_rows] * (len(parts) - 1)
            operation = lance.LanceOperation.Overwrite(layout.table_schema, parts)
            back = lance.LanceDataset.commit(f"{home}/t", operation).to_table()
        for name in table.column_names:
            assert facts(back[name].combine_chunks()) == facts(table[name].combine_chunks()), name

    run()


def test_a_panic_of_lance_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_spark.staging.data_file.from_start", lambda batch: batch)
    inner = pa.StructArray.from_arrays([pa.array(range(4))], ["x"])
    outer = pa.StructArray.from_arrays([inner], ["n"], mask=pa.array([False, True, False, False]))
    table = pa.table({"s": outer})
    with pytest.raises(LancePanicError, match="Report this defect"):
        _write(str(tmp_path / "t"), table, FileLayout.of_new_table(table.schema, "2.2"), max_rows=2)


@pytest.mark.parametrize(
    "ended", ["before it begins", "as it begins", "in a file", "between files", "before it fails"]
)
@pytest.mark.parametrize("scheme", ["", "file-object-store://"])
def test_a_sink_whose_job_has_ended_leaves_no_file(
    ended: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tmp_path / "t"
    staging = Staging(uri=f"{scheme}{uri}", job_id=new_id())
    staging.open_job()
    batch = pa.record_batch({"a": [1, 2, 3]})
    sink = FragmentSink(
        staging, FileLayout.of_new_table(batch.schema, "2.2"), max_rows=3, max_bytes=1000
    )
    if ended == "before it begins":
        staging.sweep()
    if ended == "as it begins":
        monkeypatch.setattr(area, "new_id", lambda: (staging.sweep(), new_id())[1])

    def write() -> None:
        sink.write(batch if ended == "between files" else batch.slice(1))
        staging.sweep()
        if ended == "before it fails":
            sink.abandon()
            assert [p for p in uri.rglob("*") if p.is_file()] == []
        sink.write(batch.slice(2))
        sink.finish()

    with pytest.raises(CommitError, match="came too late"):
        write()
    assert [p for p in uri.rglob("*") if p.is_file()] == []
    assert scheme or not (uri / "_lance_spark").exists()


def test_an_attempt_leaves_finished_files_to_the_end_of_its_job(tmp_path: Path) -> None:
    """The job may have committed a finished file while the task wrote the next."""
    staging = Staging(uri=str(tmp_path), storage_options=(), job_id=new_id(), open_files=3)
    staging.open_job()
    attempt, schema = staging.begin_attempt(), pa.schema([("a", pa.int64())])
    files = [attempt.open_data_file(schema, version="2.1") for _ in range(4)]
    for file in (files[2], files[1]):
        file.close()
    assert staging.find_data_files() == [files[1].name, files[2].name]
    assert not staging.close_job()
    with pytest.raises(CommitError, match="came too late"):
        files[3].close()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        files[1].name,
        files[2].name,
    ]
    assert staging.sweep(keep=[files[2].name]) == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == [files[2].name]
    assert not list(tmp_path.glob("_lance_spark/staging/*"))


def test_a_folder_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job removes the folder after deleting its last file."""
    staging = Staging(uri=str(tmp_path), storage_options=(), job_id=new_id())
    staging.open_job()
    file = staging.begin_attempt().open_data_file(pa.schema([("a", pa.int64())]), version="2.1")
    real, errors = os.makedirs, [FileExistsError("data"), FileNotFoundError("data")]

    def makedirs(folder: str, *args: Any, **more: Any) -> None:
        if folder.endswith("/data") and errors:
            raise errors.pop()
        real(folder, *args, **more)

    monkeypatch.setattr(os, "makedirs", makedirs)
    assert file.close() == 0
    assert (tmp_path / "data" / file.name).exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_entry_of_a_column_file_is_the_entry_that_lance_reads_from_the_file(
    version: str, tmp_path: Path
):
    """With nested columns, in any order, and with field ids in another order than the columns."""
    nested = pa.struct(
        [("x", pa.int32()), ("y", pa.struct([("z", pa.string()), ("w", pa.float64())]))]
    )
    schema = pa.schema(
        [
            ("a", nested),
            ("b", pa.int64()),
            ("c", pa.list_(nested)),
            ("d", pa.list_(pa.float32(), 4)),
        ]
    )
    uri = str(tmp_path / "t")
    lance.write_dataset(schema.empty_table(), uri, data_storage_version=version).drop_columns(["b"])
    lance.dataset(uri).add_columns(pa.schema([("e", pa.list_(pa.int64())), ("b", pa.int64())]))
    dataset, ref = lance.dataset(uri), DatasetRef.at(uri).pin(None)
    staging = Staging.of_new_job(ref)
    staging.open_job()
    names = dataset.schema.names
    for columns in [[name] for name in names] + [
        list(pair) for pair in itertools.permutations(names, 2)
    ]:
        targets = targets_of(dataset, columns)
        file = staging.begin_attempt().open_data_file(targets.schema, version=targets.format)
        file.close()
        assert repr(DataFile.create(dataset, file.name)) == repr(
            same_columns(
                FileLayout.of_file(dataset, columns),
                StagedColumns(name=file.name, size_bytes=file.size_bytes),
            )
        )

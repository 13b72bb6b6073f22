"""Data of this process in every form on its way into a table's types: exact, aligned, or an error with the row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lance.blob import blob_array, blob_field

from lance_spark.errors import LanceSparkError, SchemaMismatchError, ValueConversionError
from lance_spark.ingest.rows import to_reader
from lance_spark.staging.blobs import row_field
from tests.strategies import facts, schemas, tables
from tests.support.buffers import shifted
from tests.support.exact_values import DEPTHS, FITS, MISFITS, WIDE, NestedValue, cases, expected
from udf_runtime.execute.conversion.leaf_values import is_missing

pytestmark = pytest.mark.sample(1, tests=2)

FORMS: dict[str, Callable[[list[object]], Any]] = {
    "rows": lambda values: [{"c": value} for value in values],
    "columns": lambda values: {"c": values},
    "series of objects": lambda values: pd.DataFrame({"c": pd.Series(values, dtype=object)}),
}


def read(data: object, schema: pa.Schema, *, appended: bool) -> pa.Table:
    """Returns the rows that a table receives: with a declared schema, or with the schema of an existing table."""
    if appended:
        return to_reader(data, None, table=schema).read_all()
    return to_reader(data, schema).read_all()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(case=cases(FITS), appended=st.booleans())
def test_python_values_that_fit_stay_what_they_are(
    form: str, case: NestedValue, appended: bool
) -> None:
    schema = pa.schema([pa.field("c", case.data_type), pa.field("other", pa.int8())])
    table = read(FORMS[form]([None, case.value]), schema, appended=appended)
    assert table.schema == (pa.schema([schema.field("c")]) if appended else schema)
    table.validate(full=True)
    inner: Any = table["c"].combine_chunks().slice(1)
    for get in case.get:
        inner = get(inner)
    assert str(inner.slice(len(inner) - 1)) == str(
        expected(case, nan_is_null=form == "series of objects")
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(case=cases(MISFITS), appended=st.booleans())
def test_python_values_that_do_not_fit_are_errors_with_column_and_row(
    form: str, case: NestedValue, appended: bool
) -> None:
    assume(not (form == "series of objects" and is_missing(case.inner)))
    with pytest.raises(ValueConversionError, match="column 'c', row 1 of the data") as caught:
        read(
            FORMS[form]([None, case.value]),
            pa.schema([pa.field("c", case.data_type)]),
            appended=appended,
        )
    assert (caught.value.column, caught.value.row) == ("c", 1)


SAME_RULES = [
    (array, target)
    for array, target in WIDE
    if not (pa.types.is_string(target) or array.type == pa.timestamp("s"))
    # These pairs are never converted, because the intention would be unclear.
    and not (
        pa.types.is_decimal(target) != pa.types.is_decimal(array.type)
        and "float" in f"{array.type}{target}"
    )
]


@pytest.mark.parametrize(("array", "target"), SAME_RULES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_arrow_data_that_does_not_fit_is_an_error_with_column_and_row(
    array: pa.Array, target: pa.DataType, stream: bool
) -> None:
    for wrap, _, _ in (DEPTHS["list"], DEPTHS["struct"], (lambda kind: kind, None, None)):
        source = wrap(array.type)
        rows = (
            pa.concat_arrays([pa.nulls(1, source), array])
            if source == array.type
            else nested(array, source)
        )
        data = pa.table({"c": rows})
        schema = pa.schema([pa.field("c", wrap(target))])
        for appended in (False, True):
            given_data: Any = data.to_batches(max_chunksize=2) if stream else data
            with pytest.raises(LanceSparkError, match=r"column 'c|c: ") as caught:
                read(iter(given_data) if stream else data, schema, appended=appended)
            if isinstance(caught.value, ValueConversionError):
                assert caught.value.row == 2


def nested(array: pa.Array, source: pa.DataType) -> pa.Array:
    null = pa.nulls(1, source)
    if pa.types.is_struct(source):
        return pa.concat_arrays([null, pa.StructArray.from_arrays([array], fields=list(source))])
    return pa.concat_arrays([null, pa.ListArray.from_arrays([0, 1, 2], array).cast(source)])


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    tables(schemas("spark"), fewest_rows=1, calendar=False),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
def test_buffers_at_any_address_are_moved_where_lance_takes_them(
    table: pa.Table, by: int, stream: bool
) -> None:
    table = table.combine_chunks()
    columns = [shifted(table.column(i).chunk(0), by) for i in range(table.num_columns)]
    batch = pa.record_batch(columns, schema=table.schema)
    for data in (
        to_reader(iter([batch]) if stream else batch, None).read_all(),
        read(batch, table.schema, appended=True),
    ):
        assert data.schema.equals(table.schema)
        assert [facts(column) for column in data.columns] == [
            facts(column) for column in table.columns
        ]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([Decimal("1.5"), None], pa.decimal128(9, 2)),
        pa.array([Decimal("1.5"), None], pa.decimal256(9, 2)),
        pa.array(["a" * 20, None], pa.string_view()),
        pa.array([b"a" * 20, None], pa.binary_view()),
        pa.array([[Decimal("1.5")], None], pa.list_(pa.decimal128(9, 2))),
    ],
    ids=lambda array: str(array.type),
)
def test_lance_takes_data_whose_buffers_are_aligned_to_8_bytes(
    array: pa.Array, tmp_path: Path
) -> None:
    batch = pa.record_batch({"c": shifted(array, 8)})
    dataset = lance.write_dataset(to_reader(batch, None), str(tmp_path / "t.lance"))
    assert dataset.to_table()["c"].to_pylist() == array.to_pylist()


def test_keys_that_only_later_rows_have_are_columns() -> None:
    assert to_reader([{"a": 1}, {"b": 2}], None).read_all().to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": 2},
    ]


def test_values_without_a_declared_type_are_exact_as_well() -> None:
    exact = {"i": [1, 2**60], "f": [1, 1.5], "t": [dt.time(1), None], "s": [{"x": 1}, {"y": "z"}]}
    assert to_reader(exact, None).read_all()["s"].to_pylist() == [
        {"x": 1, "y": None},
        {"x": None, "y": "z"},
    ]
    for values in (
        [1, pd.Timestamp("2020-01-01 00:00:00.000000999").to_datetime64()],
        [None, pd.Timestamp("2020-01-01 00:00:00.000000999")],
        [None, pd.Timedelta(999, "ns")],
        [None, dt.time(1, tzinfo=dt.UTC)],
        [1, "x"],
        [1.5, 2**53 + 1],
        [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)],  # noqa: DTZ001 - naive on purpose
        [[1], ["x"]],
        # PyArrow 26 ends the process.
        [np.datetime64("2020-01-01"), np.int64(1)],
        [np.datetime64("2020-01-01"), None, np.float32(1)],
    ):
        for form in FORMS.values():
            with pytest.raises(
                (ValueConversionError, SchemaMismatchError), match=r"(?i)nothing was written"
            ):
                to_reader(form(values), None)


def test_null_is_refused_where_a_column_or_a_nested_field_is_not_nullable() -> None:
    required = pa.field("c", pa.int8(), nullable=False)
    for field, value in (
        (required, None),
        (pa.field("c", pa.struct([required])), {"c": None}),
        (pa.field("c", pa.list_(required)), [None]),
    ):
        loose = (
            pa.field("c", pa.struct([("c", pa.int8())]))
            if pa.types.is_struct(field.type)
            else field.with_nullable(True)
        )
        loose = pa.field("c", pa.list_(pa.int8())) if pa.types.is_list(field.type) else loose
        arrow = pa.Table.from_pylist([{"c": value}], schema=pa.schema([loose]))
        for data in (*(make([value]) for make in FORMS.values()), arrow):
            with pytest.raises(ValueConversionError, match=r"(?i)null.*row 0 of the data"):
                to_reader(data, None, table=pa.schema([field]))


def test_pandas_and_numpy_columns_are_converted_without_python_objects_where_their_type_allows() -> (
    None
):
    schema = pa.schema(
        [
            ("i", pa.int16()),
            ("f", pa.float32()),
            ("t", pa.timestamp("us")),
            ("d", pa.date32()),
            ("v", pa.list_(pa.float32(), 2)),
        ]
    )
    days = np.array(["2020-01-01", "NaT"], "datetime64[ns]")
    columns = {"i": np.array([1.0, np.nan]), "f": np.array([0.5, np.nan]), "t": days, "d": days}
    row = {"i": 1, "f": 0.5, "t": pd.Timestamp("2020-01-01"), "d": dt.date(2020, 1, 1)}
    empty = dict.fromkeys(row)
    converted = to_reader(pd.DataFrame(columns), None, table=schema).read_all().to_pylist()
    assert converted == [row, empty]
    vectors = {
        "i": np.array([1, 2]),
        "v": np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 1], [0, 0]]),
    }
    assert to_reader(vectors, None, table=schema).read_all()["v"].to_pylist() == [
        [1.0, None],
        [3.0, 4.0],
    ]
    for column, value in {
        "i": 1.5,
        "f": 1e300,
        "t": np.datetime64(999, "ns"),
        "d": np.datetime64("2020-01-01T05", "ns"),
    }.items():
        for data in (pd.DataFrame({column: [value, value]}), {column: np.array([value, value])}):
            with pytest.raises(ValueConversionError, match="row 0 of the data"):
                to_reader(data, None, table=schema)
    twice = pd.DataFrame([[1, 2]], columns=["i", "i"])
    with pytest.raises(SchemaMismatchError, match="one name"):
        to_reader(twice, None, table=schema)


def test_text_for_a_column_of_json_is_parsed() -> None:
    schema = pa.schema([pa.field("c", pa.json_())])
    assert to_reader([{"c": '{"a": 1}'}], schema).read_all().schema == schema
    for text in ("", "{", '{"a": 1, "a": 2}', "1e400"):
        with pytest.raises(ValueConversionError, match="JSON"):
            to_reader([{"c": text}], schema)


def test_a_stream_with_other_columns_later_is_an_error() -> None:
    for other_columns in ({"b": [1]}, {"a": [1.5]}, {"a": [1], "b": [2]}):
        with pytest.raises(SchemaMismatchError, match="A batch of the data has the columns"):
            to_reader(
                iter([pa.record_batch({"a": [1]}), pa.record_batch(other_columns)]), None
            ).read_all()


def test_blobs_of_lance_stay_what_they_are_and_bytes_become_blobs_columns() -> None:
    blobs = pa.table(
        [pa.array([1, 2]), blob_array([b"x", None])],
        schema=pa.schema([("k", pa.int64()), blob_field("b")]),
    )
    rows = pa.schema([row_field(field) for field in blobs.schema])
    for data in (
        to_reader(blobs, None),
        to_reader(blobs, blobs.schema),
        to_reader(blobs, None, table=rows),
    ):
        assert data.schema == blobs.schema and data.read_all().num_rows == 2
    assert to_reader([{"k": 1, "b": b"x"}], None, table=rows).read_all()["b"].to_pylist() == [b"x"]

"""The same rows in the containers of many libraries are the same rows of a table."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.pydantic import Vector

from lance_spark.errors import SchemaMismatchError, SourceError, ValueConversionError
from lance_spark.ingest.rows import to_reader
from lance_spark.ingest.streams import open_stream

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("b", pa.binary()),
        pa.field("t", pa.timestamp("us")),
        pa.field("d", pa.date32()),
        pa.field("l", pa.list_(pa.float64())),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("st", pa.struct([pa.field("k", pa.int32()), pa.field("w", pa.string())])),
    ]
)

floats = st.floats(allow_nan=False, width=32)


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


rows_of_schema = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**50), 2**50),
            "x": nullable(floats),
            "s": nullable(st.text(max_size=5)),
            "flag": nullable(st.booleans()),
            "b": nullable(st.binary(max_size=5)),
            "t": nullable(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),  # noqa: DTZ001 - naive
            "d": nullable(st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1))),
            "l": nullable(st.lists(floats, max_size=3)),
            "v": nullable(st.lists(floats, min_size=2, max_size=2)),
            "st": nullable(
                st.fixed_dictionaries({"k": nullable(st.integers(-9, 9)), "w": nullable(st.text())})
            ),
        }
    ),
    min_size=1,
    max_size=5,
)


class Inner(pydantic.BaseModel):
    k: int | None
    w: str | None


class Row(pydantic.BaseModel):
    id: int
    x: float | None
    s: str | None
    flag: bool | None
    b: bytes | None
    t: dt.datetime | None
    d: dt.date | None
    l: list[float] | None  # noqa: E741 - a column
    v: Vector(2) | None  # type: ignore[valid-type]
    st: Inner | None


class Exported:
    """Rows of a library with only the Arrow PyCapsule interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.to_reader(max_chunksize=2).__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class ExportedArray:
    """A batch of a library with only the Arrow PyCapsule interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._batch = rows.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)  # type: ignore[no-untyped-call]


def relation_of(rows: pa.Table) -> Any:
    return duckdb.connect().from_arrow(rows)


ARROW: dict[str, Callable[[pa.Table], Any]] = {
    "batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "reader": lambda rows: rows.to_reader(),
    "iterator of batches": lambda rows: iter(rows.to_batches(max_chunksize=1)),
    "iterator of tables": lambda rows: (rows.slice(at, 1) for at in range(rows.num_rows)),
    "iterator of streams": lambda rows: (
        Exported(rows.slice(at, 1)) for at in range(rows.num_rows)
    ),
    "stream": Exported,
    "array": ExportedArray,
    "struct array": lambda rows: rows.to_struct_array().combine_chunks(),
    "dataset": ds.dataset,
    "scanner": lambda rows: ds.dataset(rows).scanner(),
    "polars": pl.from_arrow,
    "lazy polars": lambda rows: pl.DataFrame(rows).lazy(),
    "iterator of polars": lambda rows: pl.DataFrame(rows).iter_slices(2),
    "duckdb": relation_of,
}

PYTHON: dict[str, Callable[[pa.Table], Any]] = {
    "rows": lambda rows: rows.to_pylist(),
    "columns": lambda rows: rows.to_pydict(),
    "columns of arrow": lambda rows: dict(zip(rows.schema.names, rows.columns, strict=True)),
    "pandas": lambda rows: rows.to_pandas(),
    "pandas of arrow": lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype),
    "models": lambda rows: [Row(**row) for row in rows.to_pylist()],
}


@settings(max_examples=8, deadline=None)
@given(rows=rows_of_schema, appended=st.booleans())
def test_rows_in_any_container_are_the_rows_of_a_list(
    rows: list[dict[str, Any]], appended: bool
) -> None:
    expected = pa.Table.from_pylist(rows, SCHEMA)
    for form, make in (ARROW | PYTHON).items():
        reader = (
            to_reader(make(expected), None, table=SCHEMA)
            if appended
            else to_reader(make(expected), SCHEMA)
        )
        received = reader.read_all()
        assert (form, received.schema, received.to_pylist()) == (form, SCHEMA, rows)
    for form, make in ARROW.items():
        assert (form, to_reader(make(expected), None).read_all().to_pylist()) == (form, rows)
    models = to_reader(PYTHON["models"](expected), None).read_all()
    assert models.schema.field("v").type == pa.list_(pa.float32(), 2) and models.to_pylist() == rows


def test_a_dataset_of_lance_and_its_scanner_are_data(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(9)}), str(tmp_path / "t.lance"))
    assert to_reader(dataset, None).read_all()["id"].to_pylist() == [*range(9)]
    assert to_reader(dataset.scanner(filter="id > 6"), None).read_all()["id"].to_pylist() == [7, 8]


def test_a_stream_is_read_batch_by_batch() -> None:
    read: list[int] = []

    class Source:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            def batches() -> Any:
                for at in range(9):
                    read.append(at)
                    yield pa.record_batch({"id": [at]})

            reader = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())
            return reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    reader = to_reader(Source(), None)
    assert read == []
    assert reader.read_next_batch()["id"].to_pylist() == [0] and read == [0]


def test_an_error_of_another_library_is_an_error_of_the_source() -> None:
    def fail(_: int) -> int:
        raise ValueError("row 3 is bad")

    frame = (
        pl.DataFrame({"id": [1, 2]})
        .lazy()
        .select(pl.col("id").map_elements(fail, return_dtype=pl.Int64))
    )
    with pytest.raises(
        SourceError, match=r"The LazyFrame cannot be read: .*row 3 is bad.*Nothing was written"
    ) as error:
        to_reader(frame, None).read_all()
    assert error.value.source == "LazyFrame" and "Traceback" not in str(error.value)


def test_categories_of_polars_are_dictionaries_or_text() -> None:
    labels = ["a", None, "b"]
    frame = pl.DataFrame(
        {
            "category": pl.Series(labels, dtype=pl.Categorical),
            "label": pl.Series(labels, dtype=pl.Enum(["a", "b"])),
            "labels": pl.Series([labels, None, []], dtype=pl.List(pl.Categorical)),
        }
    )
    rows = to_reader(frame, None).read_all()
    assert rows.to_pylist() == frame.to_dicts()
    assert rows.schema.field("category").type == pa.dictionary(pa.uint32(), pa.string())
    text = pa.schema(
        {"category": pa.string(), "label": pa.string(), "labels": pa.list_(pa.string())}
    )
    assert to_reader(frame, text).read_all().to_pylist() == frame.to_dicts()


def test_models_have_the_types_of_their_annotations() -> None:
    class Color(enum.Enum):
        RED = "red"

    class Picture(pydantic.BaseModel):
        id: int
        color: Color
        vector: list[float]
        parts: list[Inner]

    models = [Picture(id=1, color=Color.RED, vector=[1, 2], parts=[Inner(k=1, w=None)])]
    table = to_reader(models, None).read_all()
    assert table.schema.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    row = {"id": 1, "color": "red", "vector": [1.0, 2.0], "parts": [{"k": 1, "w": None}]}
    assert table.to_pylist() == [row]

    class Loose(pydantic.BaseModel):
        values: object

    with pytest.raises(
        SchemaMismatchError, match=r"model Loose has no Arrow schema.*model\.model_dump\(\)"
    ):
        to_reader([Loose(values={})], None)
    with pytest.raises(SchemaMismatchError, match="models of several classes: Inner, Picture"):
        to_reader([*models, Inner(k=1, w=None)], None)


def test_a_numpy_array_with_named_fields_has_columns() -> None:
    rows = np.array(
        [(1, "x", [1, 2]), (2, "y", [3, 4])], [("id", "i4"), ("s", "U3"), ("vector", "f8", (2,))]
    )
    table = to_reader(rows, None).read_all()
    assert table.schema == pa.schema(
        {"id": pa.int32(), "s": pa.string(), "vector": pa.list_(pa.float32(), 2)}
    )
    assert table.to_pylist() == [
        {"id": 1, "s": "x", "vector": [1, 2]},
        {"id": 2, "s": "y", "vector": [3, 4]},
    ]


VECTORS: dict[str, Callable[[str, list[list[float] | None]], Any]] = {
    "rows": lambda name, values: [{name: value} for value in values],
    "columns": lambda name, values: {name: values},
    "arrays": lambda name, values: [{name: value and np.array(value)} for value in values],
    "small arrays": lambda name, values: {
        name: [value and np.array(value, np.float32) for value in values]
    },
    "pandas": lambda name, values: pd.DataFrame({name: pd.Series(values, dtype=object)}),
    "pandas arrays": lambda name, values: pd.DataFrame(
        {name: [value and np.array(value) for value in values]}
    ),
    "numpy": lambda name, values: {name: np.array(values)},
}


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["vector", "text_embedding", "Vector"]),
    st.integers(1, 4).flatmap(
        lambda n: st.lists(nullable(st.lists(floats, min_size=n, max_size=n)), min_size=1)
    ),
)
def test_lists_of_one_length_are_vectors_where_the_column_is_called_so(
    name: str, lists: list[list[float] | None]
) -> None:
    present = [values for values in lists if values is not None]
    if not present:
        return
    for form, make in VECTORS.items():
        column = present if form == "numpy" else lists
        table = to_reader(make(name, column), None).read_all()
        assert (form, table.schema.field(name).type) == (
            form,
            pa.list_(pa.float32(), len(present[0])),
        )
        assert table[name].to_pylist() == column
        other = to_reader(make("other", column), None).read_all().schema.field("other").type
        assert form == "numpy" or pa.types.is_list(other)


def test_other_lists_stay_lists() -> None:
    for values in ([[1.0], [1.0, 2.0]], [[]], [["x"]], [[[1.0]]]):
        for make in (VECTORS["rows"], VECTORS["columns"], VECTORS["pandas"]):
            assert pa.types.is_list(
                to_reader(make("vector", values), None).schema.field("vector").type
            )
    doubles = pa.table({"vector": pa.array([[1.0, 2.0]], pa.list_(pa.float64()))})
    for data in (
        doubles,
        {"vector": doubles["vector"]},
        doubles.to_pandas(types_mapper=pd.ArrowDtype),
    ):
        assert to_reader(data, None).schema.field("vector").type == pa.list_(pa.float64())
    halves = {"vector": np.array([[1.0, 2.0]], np.float16)}
    assert to_reader(halves, None).schema.field("vector").type == pa.list_(pa.float16(), 2)
    with pytest.raises(ValueConversionError, match="column 'vector', row 1 of the data"):
        to_reader([{"vector": [1.0]}, {"vector": [1e300]}], None)


@pytest.mark.parametrize(
    "data",
    [pl.Series([1]), pa.array([1]), pa.chunked_array([[1]]), np.array([1, 2])],
    ids=lambda value: type(value).__name__,
)
def test_a_single_column_without_a_name_is_no_data(data: object) -> None:
    with pytest.raises(SchemaMismatchError, match=r"(?i)nothing was written"):
        to_reader(data, None)


def test_a_session_without_polars_and_pandas_imports_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("polars", "pandas", "pyarrow.dataset"):
        monkeypatch.delitem(sys.modules, module)
    rows = pa.table({"id": [1]})
    assert open_stream(rows) is rows and open_stream([{"id": 1}]) is None
    assert not {"polars", "pandas"} & set(sys.modules)

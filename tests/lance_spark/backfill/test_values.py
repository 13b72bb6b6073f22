"""Values through a whole backfill: every input and output type of a UDF, and every kind of UDF."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import lance.blob
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_spark import Connection, Table
from udf_runtime import UDF, Columns, udf

pytestmark = pytest.mark.sample(3, tests=5)

ROWS = 12
FORMATS = [pytest.param("2.1", marks=pytest.mark.long), "2.2"]
UTC = dt.UTC
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])

# Each type with the UDF's result for a row; None at every third row.
OUTPUTS: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "bool": (pa.bool_(), lambda i: i % 2 == 0),
    "int8": (pa.int8(), lambda i: i - 6),
    "int64": (pa.int64(), lambda i: (1 << 62) + i),
    "uint64": (pa.uint64(), lambda i: (1 << 63) + i),
    "float32": (pa.float32(), lambda i: i / 4),
    "float64": (pa.float64(), lambda i: -0.0 if i == 1 else math.inf if i == 2 else i / 3),
    "string": (pa.string(), lambda i: "" if i == 1 else "é日\0'\"" * i),
    "large_string": (pa.large_string(), lambda i: f"text {i}"),
    "binary": (pa.binary(), lambda i: bytes([0, 255, i])),
    "fixed binary": (pa.binary(4), lambda i: bytes([i] * 4)),
    "decimal": (pa.decimal128(20, 4), lambda i: decimal.Decimal(f"-{i}.1234")),
    "date": (pa.date32(), lambda i: dt.date(1, 1, 1) + dt.timedelta(days=i * 1000)),
    "timestamp": (
        pa.timestamp("us"),
        lambda i: dt.datetime(1969, 12, 31, 23, 59, 59, i, tzinfo=UTC).replace(tzinfo=None),
    ),
    "timestamp with zone": (
        pa.timestamp("us", "UTC"),
        lambda i: dt.datetime(2262, 1, 1, tzinfo=UTC) + dt.timedelta(i),
    ),
    "time": (pa.time64("us"), lambda i: dt.time(23, 59, i, 999_999)),
    "duration": (pa.duration("us"), lambda i: dt.timedelta(microseconds=-i)),
    "list": (pa.list_(pa.int64()), lambda i: [None if n == 1 else n for n in range(i)]),
    "large_list": (pa.large_list(pa.string()), lambda i: ["x"] * (i % 4)),
    "list of lists": (
        pa.list_(pa.list_(pa.float32())),
        lambda i: [[0.5] * n for n in range(i % 3)],
    ),
    "vector": (pa.list_(pa.float32(), 4), lambda i: [i / 2, 0.0, -1.0, i]),
    "vector of int8": (pa.list_(pa.int8(), 3), lambda i: [i, -i, 0]),
    "struct": (STRUCT, lambda i: {"a": i, "b": None if i % 2 else f"b{i}"}),
    "list of structs": (pa.list_(STRUCT), lambda i: [{"a": n, "b": "x"} for n in range(i % 3)]),
    "nested structs": (
        pa.struct([("s", STRUCT), ("v", pa.list_(pa.float32(), 2)), ("l", pa.list_(pa.string()))]),
        lambda i: {"s": {"a": i, "b": "x"}, "v": [i, 0.5], "l": ["y"] * (i % 3)},
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda i: f"word {i % 2}"),
    "map": (pa.map_(pa.string(), pa.int64()), lambda i: [(f"k{n}", n) for n in range(i % 3)]),
    "struct with a map": (
        pa.struct([("m", pa.map_(pa.string(), STRUCT))]),
        lambda i: {"m": [("k", {"a": i, "b": None})]},
    ),
}
NEEDS_22 = {"map", "struct with a map"}


def ids(db: Connection, version: str = "2.1", *, rows: int = ROWS) -> Table:
    table = db.create_table(
        "t", pa.table({"id": pa.array(range(rows // 2), pa.int64())}), data_storage_version=version
    )
    table.add(pa.table({"id": pa.array(range(rows // 2, rows), pa.int64())}))
    return table


def expected(value: Callable[[int], object], rows: int = ROWS) -> list[object]:
    return [None if i % 3 == 0 else value(i) for i in range(rows)]


def column(table: Table, name: str = "x") -> list[Any]:
    return table.to_arrow([name])[name].to_pylist()


@pytest.mark.long
@pytest.mark.parametrize("version", FORMATS)
def test_every_type_that_a_udf_returns_is_stored_and_read_back(db: Connection, version: str):
    table = ids(db, version)
    names = [name for name in OUTPUTS if version == "2.2" or name not in NEEDS_22]

    def make(name: str) -> UDF:
        value = OUTPUTS[name][1]

        @udf(data_type=OUTPUTS[name][0], name=name.replace(" ", "_"))
        def result_of(id: int) -> object:
            return None if id % 3 == 0 else value(id)

        return result_of

    table.add_columns({name: make(name) for name in names})
    for number, name in enumerate(names):
        # Half of them in several ranges per fragment, by way of checkpoints; the other half straight into the file.
        result = table.backfill(name, task_size=4 if number % 2 else 1000, checkpoint_size=2)
        assert result.rows_computed == ROWS, name
        assert table.schema.field(name).type == OUTPUTS[name][0]
        assert column(table, name) == expected(OUTPUTS[name][1]), name
        assert table.backfill(name).rows_computed == 0, (
            f"{name}: rows computed as NULL are called again"
        )


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_a_vectorised_udf_may_return_every_type(db: Connection, name: str):
    kind, value = OUTPUTS[name]
    table = ids(db, "2.2")

    @udf(data_type=kind)
    def results_of(id: pa.Array) -> pa.Array:
        return pa.array([None if i % 3 == 0 else value(i) for i in id.to_pylist()], kind)

    table.add_columns({"x": results_of})
    table.backfill("x", task_size=3)
    assert column(table) == expected(value)


def test_a_struct_whose_fields_are_all_null_is_a_value_and_a_null_struct_is_none(db: Connection):
    table = ids(db)

    @udf(data_type=STRUCT)
    def result_of(id: int) -> object:
        return {"a": None, "b": None} if id % 2 else None

    table.add_columns({"x": result_of})
    table.backfill("x")
    assert column(table) == [{"a": None, "b": None} if i % 2 else None for i in range(ROWS)]
    assert table.count_rows("x IS NULL") == ROWS // 2
    assert table.backfill("x").rows_computed == 0


def test_annotations_alone_give_the_types(db: Connection):
    @dataclasses.dataclass
    class Box:
        low: float
        high: float | None

    table = ids(db)

    @udf
    def box(id: int) -> Box:
        return Box(id / 2, None)

    @udf
    def words(id: int) -> list[str]:
        return ["w"] * id

    @udf
    def price(id: int) -> Annotated[decimal.Decimal, pa.decimal128(10, 2)]:
        return decimal.Decimal(id)

    @udf
    def maybe(id: int) -> str | None:
        return None if id % 2 else "even"

    udfs = {"box": box, "words": words, "price": price, "maybe": maybe}
    table.add_columns(udfs)
    for name in udfs:
        table.backfill(name)
    row = table.to_arrow(filter="id = 3").to_pylist()[0]
    assert row == {
        "id": 3,
        "box": {"low": 1.5, "high": None},
        "words": ["w"] * 3,
        "price": decimal.Decimal("3.00"),
        "maybe": None,
    }


# Inputs


def inputs() -> pa.Table:
    n = range(ROWS)
    return pa.table(
        {
            "word": pa.array([None if i == 5 else f"w{i % 3}" for i in n]).dictionary_encode(),
            "tags": pa.array(
                [None if i == 5 else [f"t{k}" for k in range(i % 4)] for i in n],
                pa.list_(pa.string()),
            ),
            "numbers": pa.array(
                [None if i == 5 else [float(i)] * (i % 4) for i in n], pa.list_(pa.float64())
            ),
            "vector": pa.array(
                [None if i == 5 else [i, i + 1] for i in n], pa.list_(pa.float32(), 2)
            ),
            "pair": pa.array([None if i == 5 else {"a": i, "b": f"b{i}"} for i in n], STRUCT),
            "when": pa.array(
                [
                    None if i == 5 else dt.datetime(2020, 1, 1 + i, tzinfo=UTC).replace(tzinfo=None)
                    for i in n
                ],
                pa.timestamp("us"),
            ),
            "price": pa.array(
                [None if i == 5 else decimal.Decimal(i) / 4 for i in n], pa.decimal128(9, 2)
            ),
            "data": pa.array([None if i == 5 else bytes([i]) for i in n], pa.binary()),
            "flag": pa.array([None if i == 5 else i % 2 == 0 for i in n]),
        }
    )


@pytest.mark.long
def test_inputs_of_every_type_arrive_as_python_values_and_null_as_none(db: Connection):
    table = db.create_table("t", inputs())

    def told_of(name: str) -> UDF:
        @udf(data_type=pa.string(), input_columns=[name])
        def describe(value) -> str:
            return f"{type(value).__name__}:{value!r}"

        return describe

    column_names = inputs().column_names
    with pytest.warns(UserWarning, match="not checked"):
        table.add_columns({f"of_{name}": told_of(name) for name in column_names})
    for name in column_names:
        table.backfill(f"of_{name}", task_size=5)
        values = table.to_arrow([name])[name].to_pylist()
        assert column(table, f"of_{name}") == [f"{type(v).__name__}:{v!r}" for v in values], name


def test_lists_and_vectors_arrive_as_lists_or_numpy_arrays_as_annotated(db: Connection):
    table = db.create_table("t", inputs())

    @udf
    def by_list(numbers: list[float]) -> str:
        return f"{type(numbers).__name__}:{numbers}"

    @udf
    def by_numpy(numbers: np.ndarray) -> str:
        return "None" if numbers is None else f"{numbers.dtype}:{numbers.tolist()}"

    @udf
    def norm(vector: np.ndarray) -> float:
        return float("nan") if vector is None else float(np.linalg.norm(vector))

    @udf
    def typed(vector: list[float]) -> int:
        return -1 if vector is None else len(vector)

    udfs = {"by_list": by_list, "by_numpy": by_numpy, "norm": norm, "typed": typed}
    table.add_columns(udfs)
    for name in udfs:
        table.backfill(name)
    lists = table.to_arrow(["numbers"])["numbers"].to_pylist()
    assert column(table, "by_list") == [f"{type(v).__name__}:{v}" for v in lists]
    assert column(table, "by_numpy") == ["None" if v is None else f"float64:{v}" for v in lists]
    assert column(table, "norm")[3] == pytest.approx(5.0) and math.isnan(column(table, "norm")[5])
    assert column(table, "typed") == [-1 if i == 5 else 2 for i in range(ROWS)]


def blob_table(db: Connection, version: str) -> Table:
    values = [None if i == 5 else bytes([i]) * (i * 1000) for i in range(ROWS)]
    if version == "2.2":
        schema = pa.schema([pa.field("id", pa.int64()), lance.blob.blob_field("b")])
        data = pa.table([pa.array(range(ROWS)), lance.blob.blob_array(values)], schema=schema)
    else:
        field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        data = pa.table(
            [range(ROWS), pa.array(values, pa.large_binary())],
            schema=pa.schema([("id", pa.int64()), field]),
        )
    return db.create_table("t", data, data_storage_version=version)


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("strategy", ["auto", "legacy", "range"])
def test_blobs_arrive_as_bytes_as_files_and_as_arrow(db: Connection, version: str, strategy: str):
    table = blob_table(db, version)
    table.to_lance().delete("id = 7")

    @udf
    def by_bytes(b: bytes) -> int:
        return -1 if b is None else len(b) * 10 + (b[0] if b else 0)

    @udf
    def by_file(b: BinaryIO) -> int:
        if b is None:
            return -1
        first = b.read(1)
        b.seek(0, 2)
        return b.tell() * 10 + (first[0] if first else 0)

    @udf(data_type=pa.int64())
    def by_arrow(b: pa.Array) -> pa.Array:
        return pa.array(
            [-1 if v is None else len(v) * 10 + (v[0] if v else 0) for v in b.to_pylist()]
        )

    udfs = {"by_bytes": by_bytes, "by_file": by_file, "by_arrow": by_arrow}
    table.add_columns(udfs)
    expected = [-1 if i == 5 else i * 1000 * 10 + i for i in range(ROWS) if i != 7]
    for name, limit in (("by_bytes", None), ("by_file", 2500), ("by_arrow", 2500)):
        table.backfill(name, blob_read_strategy=strategy, blob_read_buffer_size=limit)  # type: ignore[arg-type]
        assert column(table, name) == expected, name


# Kinds


def kinds() -> dict[str, object]:
    @udf
    def scalar(id: int) -> int:
        return id * 2

    @udf(data_type=pa.int64())
    def arrow(id: pa.Array) -> pa.Array:
        return pc.multiply(id, 2)

    @udf(data_type=pa.int64())
    def pandas(id: pd.Series) -> pd.Series:
        return id * 2

    @udf(data_type=pa.int64())
    def batch(rows: pa.RecordBatch) -> pa.Array:
        return pc.multiply(rows.column("id"), 2)

    @udf(data_type=pa.int64(), input_columns=["id"])
    def arrow_iterator(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for part in parts:
            yield pc.multiply(part, 2)

    @udf(data_type=pa.int64(), input_columns=["id", "id"])
    def tuple_iterator(parts: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for first, second in parts:
            yield first + second

    @udf(data_type=pa.int64())
    def batch_iterator(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.Array]:
        for part in parts:
            yield pc.multiply(part.column("id"), 2)

    @udf(data_type=pa.int64())
    class Times:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, id: pa.Array) -> pa.Array:
            return pc.multiply(id, self.factor)

    every = (scalar, arrow, pandas, batch, arrow_iterator, tuple_iterator, batch_iterator)
    return {
        **{kind.name: kind for kind in every},
        "times": Times(2),
        "lambda": udf(data_type=pa.int64(), input_columns=["id"])(lambda value: value * 2),
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the types of 'value' of UDF 'lambda_function' are not checked")
def test_every_kind_of_udf_computes_the_same(db: Connection):
    table = ids(db)
    table.to_lance().delete("id IN (2, 7)")
    all_kinds = kinds()
    table.add_columns(all_kinds)  # type: ignore[arg-type]
    for name in all_kinds:
        for where in ("id < 5", None):
            table.backfill(
                name, where=where, task_size=4, checkpoint_size=2, intra_applier_concurrency=2
            )
        assert (
            table.count_rows(f"{name if name != 'lambda' else '`lambda`'} = id * 2") == ROWS - 2
        ), name
        assert table.backfill(name).rows_computed == 0


def test_a_udf_over_batches_gets_the_columns_of_its_registration_without_its_own(db: Connection):
    table = ids(db)
    table.add_columns({"other": "id * 3"})

    @udf(data_type=pa.string())
    def names(batch: pa.RecordBatch) -> pa.Array:
        return pa.array([",".join(batch.schema.names)] * batch.num_rows)

    table.add_columns({"x": names})
    table.add_columns({"later": "id"})
    table.alter_columns({"path": "other", "name": "renamed"})
    table.backfill("x")
    assert set(column(table)) <= {"id,renamed", "id,other"} and table.count_rows("x IS NULL") == 0


def test_a_class_is_constructed_and_set_up_once_per_process_however_many_batches(
    db: Connection, tmp_path: Path
):
    log = str(tmp_path / "log")

    @udf(data_type=pa.int64())
    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor
            self.ready = False
            self._note("made")

        def setup(self) -> None:
            self.ready = True
            self._note("set up")

        def _note(self, what: str) -> None:
            import os

            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {what}\n")

        def __call__(self, id: int) -> int:
            assert self.ready
            return id * self.factor

    table = ids(db, rows=40)
    table.add_columns({"x": Model(factor=3)})
    assert not Path(log).exists(), "it was constructed on the driver"
    table.backfill("x", task_size=5, checkpoint_size=1)
    assert column(table) == [i * 3 for i in range(40)]
    lines = Path(log).read_text().splitlines()
    assert len(lines) == len(set(lines)) and len(lines) in (2, 4), lines


def test_siblings_of_every_shape_are_stored(db: Connection):
    class Parts(NamedTuple):
        vector: Annotated[list[float], pa.list_(pa.float32(), 2)]
        pair: Annotated[dict[str, object], STRUCT]
        tags: list[str]
        maybe: int | None

    table = ids(db)

    @udf
    def parts(id: int) -> Columns[Parts]:
        return Parts([id, 0.5], {"a": id, "b": None}, ["t"] * (id % 3), None if id % 2 else id)

    table.add_columns(parts)
    table.backfill("tags", task_size=4)
    for row in table.to_arrow().to_pylist():
        i = row["id"]
        assert (row["vector"], row["pair"]) == ([i, 0.5], {"a": i, "b": None})
        assert (row["tags"], row["maybe"]) == (["t"] * (i % 3), None if i % 2 else i)

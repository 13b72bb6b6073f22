"""`add_columns`: its five forms, and errors, after which nothing has changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.functions import arrow_udf, pandas_udf
from pyspark.sql.functions import udf as spark_udf

from lance_spark import ColumnExistsError, Connection, RegistrationError, Table
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from tests.lance_spark.table.call_log import CallLog
from udf_runtime import UDF, Columns, UdfDefinitionError, UdfRuntimeError, UnpackedUDF, udf


class Size(NamedTuple):
    length: int
    first: str


def size() -> UDF:
    @udf
    def size(text: str) -> Columns[Size]:
        return Size(len(text), text[0])

    return size


def double() -> UDF:
    @udf
    def double(id: int) -> int:
        return id * 2

    return double


def kind_of(table: Table, column: str) -> pa.DataType:
    return table.schema.field(column).type


@pytest.mark.guarantee("T06")
def test_a_sql_expression_is_computed_at_once(table: Table):
    table.add_columns({"tenfold": "id * 10", "loud": "upper(text)"})
    assert table.to_arrow(filter="id = 7").to_pylist() == [
        {"id": 7, "text": "word 7", "tenfold": 70, "loud": "WORD 7"}
    ]


@pytest.mark.guarantee("T08")
def test_a_udf_reads_the_columns_that_its_parameters_are_named_like(table: Table):
    table.add_columns({"double": double()})
    assert kind_of(table, "double") == pa.int64() and table.count_rows("double IS NULL") == 30
    assert table.backfill("double").rows_computed == 30
    assert table.count_rows("double = id * 2") == 30


@pytest.mark.guarantee("T10", "T12")
def test_a_tuple_binds_parameters_to_columns_by_position(table: Table):
    @udf
    def join(a: str, b: int) -> str:
        return f"{a}/{b}"

    table.add_columns({"joined": (join, ["text", "id"])})
    table.backfill("joined")
    assert table.to_arrow(["joined"], "id = 3").to_pylist() == [{"joined": "word 3/3"}]


@pytest.mark.guarantee("T13")
def test_a_udf_of_several_columns_adds_one_per_field(table: Table):
    table.add_columns(size())
    assert table.version == 4, "they come in one commit"
    assert (
        table.schema.names == ["id", "text", "length", "first"]
        and kind_of(table, "first") == pa.string()
    )
    table.backfill("length")
    assert table.to_arrow(["length", "first"], "id = 3").to_pylist() == [
        {"length": 6, "first": "w"}
    ]


@pytest.mark.guarantee("T15")
def test_an_unpacked_udf_adds_columns_with_a_prefix(table: Table):
    table.add_columns(UnpackedUDF(size(), prefix="text_"))
    assert table.schema.names == ["id", "text", "text_length", "text_first"]
    table.backfill("text_first")
    assert table.to_arrow(["text_length", "text_first"], "id = 3").to_pylist() == [
        {"text_length": 6, "text_first": "w"}
    ]


@pytest.mark.guarantee("T01")
def test_one_call_takes_several_columns_of_every_form_in_a_dict(table: Table):
    columns: Any = {"tenfold": "id * 10", "double": double(), "other": (double(), ["id"])}
    assert table.add_columns(columns).version == table.version
    assert table.schema.names == ["id", "text", "tenfold", "double", "other"]
    assert (
        table.count_rows("tenfold = id * 10") == 30
        and table.count_rows("double IS NULL AND other IS NULL") == 30
    )


def test_columns_of_udfs_are_added_in_one_commit_that_writes_no_data(table: Table):
    files = [
        file.path
        for fragment in table.to_lance().get_fragments()
        for file in fragment.metadata.files
    ]
    table.add_columns({"a": double(), "b": double()})
    assert table.version == 4
    assert [
        file.path
        for fragment in table.to_lance().get_fragments()
        for file in fragment.metadata.files
    ] == files


def test_a_class_without_arguments_can_be_given_as_it_is(table: Table):
    @udf(data_type=pa.int64())
    class Double:
        def __call__(self, id: int) -> int:
            return id * 2

    table.add_columns({"double": Double})
    table.backfill("double")
    assert table.count_rows("double = id * 2") == 30


@pytest.mark.long
@pytest.mark.spark
def test_pysparks_own_udfs_are_udfs(table: Table):
    @pandas_udf("bigint")
    def by_pandas(id: pd.Series) -> pd.Series:
        return id * 2

    @pandas_udf("bigint")
    def by_pandas_iterator(ids: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for values in ids:
            yield values * 2

    @arrow_udf("bigint")
    def by_arrow(id: pa.Array) -> pa.Array:
        return pc.multiply(id, 2)

    @arrow_udf("bigint")
    def by_arrow_iterator(ids: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for values in ids:
            yield pc.multiply(values, 2)

    plain = spark_udf(lambda value: value * 2, "bigint")
    vectorised = spark_udf(lambda value: value * 2, "bigint", useArrow=True)
    udfs: dict[str, Any] = {
        "pandas": by_pandas,
        "pandas_iterator": (by_pandas_iterator, ["id"]),
        "arrow": by_arrow,
        "arrow_iterator": (by_arrow_iterator, ["id"]),
        "plain": (plain, ["id"]),
        "vectorised": (vectorised, ["id"]),
    }
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        table.add_columns(udfs)
    for column in udfs:
        assert table.backfill(column).rows_computed == 30
        assert table.count_rows(f"{column} = id * 2") == 30, column


@pytest.mark.guarantee("T18")
def test_an_input_of_unknown_type_is_warned_about(table: Table):
    @udf(data_type=pa.int64())
    def length(text) -> int:
        return len(text)

    with pytest.warns(UserWarning, match="'text' of UDF 'length' are not checked") as caught:
        table.add_columns({"length": length})
    assert caught[0].filename == __file__, "the warning does not point at the caller"
    assert "length" in table.schema.names


def test_vector_kinds_without_types_are_not_warned_about(table: Table):
    @udf(data_type=pa.int64())
    def same(id: pa.Array) -> pa.Array:
        return id

    table.add_columns({"same": same})


# Errors


def wrong_type() -> UDF:
    @udf
    def takes_number(text: int) -> int:
        return text

    return takes_number


def missing_input() -> UDF:
    @udf
    def takes_nothing_here(nowhere: int) -> int:
        return nowhere

    return takes_nothing_here


def of_type(kind: pa.DataType) -> UDF:
    @udf(data_type=kind)
    def result_of(id: int) -> object:
        return None

    return result_of


def over_batches() -> UDF:
    @udf(data_type=pa.int64())
    def batches(batch: pa.RecordBatch) -> pa.Array:
        return batch.column("id")

    return batches


def averaging() -> object:
    @pandas_udf("double")
    def mean(id: pd.Series) -> float:
        return float(id.mean())

    return mean


def with_arguments() -> object:
    @udf(data_type=pa.int64())
    class Needs:
        def __init__(self, model: str) -> None:
            self.model = model

        def __call__(self, id: int) -> int:
            return id

    return Needs


WRONG: dict[
    str, tuple[Callable[[], object], type[Exception] | tuple[type[Exception], ...], str]
] = {
    "a number": (lambda: 42, OptionError, "'transforms'"),
    "a text": (lambda: "id * 2", OptionError, "'transforms'"),
    "nothing": (lambda: None, OptionError, "'transforms'"),
    "a list": (lambda: [double()], OptionError, "'transforms'"),
    "a plain function": (lambda: len, OptionError, "'transforms'"),
    "an empty dict": (dict, RegistrationError, "no column to add"),
    "an empty name": (lambda: {"": double()}, RegistrationError, "no name of a column"),
    "a name that is none": (lambda: {3: double()}, OptionError, "'transforms'"),
    "a value that is none": (lambda: {"x": 42}, RegistrationError, "'x'"),
    "None as a value": (lambda: {"x": None}, RegistrationError, "'x'"),
    "an undecorated function": (lambda: {"x": len}, RegistrationError, "'x'"),
    "a tuple of one": (lambda: {"x": (double(),)}, RegistrationError, "'x'"),
    "a tuple of three": (lambda: {"x": (double(), ["id"], 1)}, RegistrationError, "'x'"),
    "inputs that are a text": (
        lambda: {"x": (double(), "id")},
        RegistrationError,
        "no list of columns",
    ),
    "inputs that are numbers": (
        lambda: {"x": (double(), [1])},
        RegistrationError,
        "no list of columns",
    ),
    "inputs that are None": (
        lambda: {"x": (double(), None)},
        RegistrationError,
        "no list of columns",
    ),
    "too many inputs": (
        lambda: {"x": (double(), ["id", "text"])},
        UdfDefinitionError,
        "expects 1 .*2 input columns",
    ),
    "no inputs": (lambda: {"x": (double(), [])}, UdfDefinitionError, "0 input columns"),
    "a UDF of several columns in a dict": (
        lambda: {"x": size()},
        RegistrationError,
        "several columns",
    ),
    "an unpacked UDF in a dict": (lambda: {"x": UnpackedUDF(size())}, RegistrationError, "'x'"),
    "a UDF of one column without a name": (double, RegistrationError, "no name for the column"),
    "an input that is not there": (
        lambda: {"x": missing_input()},
        RegistrationError,
        "'nowhere'.*'id', 'text'",
    ),
    "a bound input that is not there": (
        lambda: {"x": (double(), ["nope"])},
        RegistrationError,
        "'nope'",
    ),
    "an input of another type": (
        lambda: {"x": wrong_type()},
        RegistrationError,
        "Type mismatch.*'text'.*int64.*string",
    ),
    "a column that is there": (lambda: {"text": double()}, ColumnExistsError, "'text'"),
    "a column that is there in capitals": (lambda: {"TEXT": double()}, ColumnExistsError, "'TEXT'"),
    "an expression for a column that is there": (
        lambda: {"text": "id"},
        ColumnExistsError,
        "'text'",
    ),
    "two columns of one name": (
        lambda: {"x": double(), "X": double()},
        RegistrationError,
        "name 'x'",
    ),
    "a path into a struct": (lambda: {"a.b": double()}, RegistrationError, "struct"),
    "a backtick": (lambda: {"a`b": double()}, SchemaMismatchError, "backtick"),
    "a name that Lance keeps": (lambda: {"_rowid": double()}, SchemaMismatchError, "_rowid"),
    "a type that cannot be stored": (
        lambda: {"x": of_type(pa.list_(pa.string(), 2))},
        UnsupportedTypeError,
        "fixed width",
    ),
    "a sibling that is there": (
        lambda: UnpackedUDF(sibling_of_text()),
        ColumnExistsError,
        "'text'",
    ),
    "siblings that are there with their prefix": (
        lambda: UnpackedUDF(sibling_of_text(), prefix="TE"),
        ColumnExistsError,
        "'TExt'",
    ),
    "inputs of a UDF over batches": (
        lambda: {"x": (over_batches(), ["id"])},
        UdfDefinitionError,
        "record batches",
    ),
    "a UDF that aggregates": (lambda: {"x": averaging()}, RegistrationError, "no value per row"),
    "a class that needs arguments": (lambda: {"x": with_arguments()}, UdfDefinitionError, "model"),
    "an expression over nothing": (lambda: {"x": "nope + 1"}, RegistrationError, "'x'.*Lance SQL"),
    "an expression that does not parse": (lambda: {"x": "id +"}, RegistrationError, "'x'"),
    "an expression of an unknown function": (
        lambda: {"x": "unknown_function(id)"},
        RegistrationError,
        "unknown_function",
    ),
    "an expression beside a good one": (
        lambda: {"a": "id + 1", "x": "nope"},
        RegistrationError,
        "'x'",
    ),
    "one that is wrong after one that is right": (
        lambda: {"good": double(), "sql": "id", "x": missing_input()},
        RegistrationError,
        "nowhere",
    ),
    "a UDF over an expression of the same call": (
        lambda: {"sql": "id + 1", "x": (double(), ["sql"])},
        RegistrationError,
        "'sql'",
    ),
}


class Text(NamedTuple):
    xt: int
    text: str


def sibling_of_text() -> UDF:
    @udf
    def sibling(id: int) -> Columns[Text]:
        return Text(id, "x")

    return sibling


@pytest.mark.guarantee("T02", "T03", "T04", "T05", "T09", "T11", "T14", "T16")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.spark) if case == "a UDF that aggregates" else case
        for case in WRONG
    ],
)
def test_what_is_wrong_is_said_and_nothing_changes(table: Table, folder: str, case: str):
    make, expected, message = WRONG[case]
    with pytest.raises(expected, match=message) as error:
        table.add_columns(make())  # type: ignore[arg-type]
    assert isinstance(error.value, (LanceSparkError, UdfRuntimeError)) and isinstance(
        error.value, (ValueError, TypeError)
    )
    assert table.version == 3 and table.schema.names == ["id", "text"]
    assert not list(Path(folder, "words.lance", "_lance_spark").rglob("*")), "a UDF was stored"


def test_a_type_that_the_tables_file_format_lacks_is_refused_and_a_newer_format_takes_it(
    db: Connection,
):
    maps = of_type(pa.map_(pa.string(), pa.int64()))
    older = db.create_table("older", [{"id": 1}], data_storage_version="2.1")
    with pytest.raises(UnsupportedTypeError, match=r"data_storage_version=2\.2"):
        older.add_columns({"x": maps})
    assert older.version == 1 and older.schema.names == ["id"]
    newer = db.create_table("newer", [{"id": 1}], data_storage_version="2.2")
    newer.add_columns({"x": maps})
    assert kind_of(newer, "x") == maps.data_type


@pytest.mark.parametrize("expression", ["1 / (id - 5)", "cast(text AS bigint)"])
def test_an_expression_that_fails_on_a_value_adds_nothing_of_the_whole_call(
    table: Table, expression: str
):
    files = {
        file.path
        for fragment in table.to_lance().get_fragments()
        for file in fragment.metadata.files
    }
    with pytest.raises(RegistrationError, match=r"'bad'.*Nothing was added"):
        table.add_columns({"good": "id + 1", "bad": expression, "double": double()})
    assert table.version == 3 and table.schema.names == ["id", "text"]
    assert {
        file.path
        for fragment in table.to_lance().get_fragments()
        for file in fragment.metadata.files
    } == files


def test_a_column_that_a_concurrent_writer_added_is_found(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    from lance_spark.columns import adding

    store = adding.store_udf

    def late(*arguments: Any) -> str:
        table.to_lance().add_columns({"double": "id * 100"})
        return store(*arguments)

    monkeypatch.setattr(adding, "store_udf", late)
    with pytest.raises(ColumnExistsError):
        table.add_columns({"tenfold": "id * 10", "double": double()})
    assert (
        table.schema.names == ["id", "text", "double"]
        and table.count_rows("double = id * 100") == 30
    )


def test_an_empty_table_takes_columns_of_every_form(db: Connection, call_log: CallLog):
    table = db.create_table("t", schema=pa.schema([("id", pa.int64()), ("text", pa.string())]))
    table.add_columns({"tenfold": "id * 10", "times": call_log.times(2)})
    table.add_columns(size())
    assert table.schema.names == ["id", "text", "tenfold", "times", "length", "first"]
    assert table.backfill("times").status == "DONE" and table.backfill("first").status == "DONE"
    assert call_log.take() == []


def test_an_overwrite_keeps_the_udfs_of_columns_that_keep_name_and_type(db: Connection):
    rows = pa.table({"id": [1, 2], "text": ["a", "b"]})
    table = db.create_table("t", rows)
    table.add_columns({"v": double()})
    table.add_columns({"w": double()})
    schema = rows.schema.append(pa.field("v", pa.int64())).append(pa.field("w", pa.string()))
    table = db.create_table("t", [{"id": 3, "text": "c"}], schema=schema, mode="overwrite")
    assert table.backfill("v").rows_computed == 1 and table.to_arrow()["v"].to_pylist() == [6]
    with pytest.raises(LanceSparkError, match="w"):
        table.backfill("w")
    assert db.create_table("t", rows, mode="overwrite").schema.names == ["id", "text"]
    table = db.create_table("t", [{"id": 3, "text": "c"}], schema=schema, mode="overwrite")
    with pytest.raises(LanceSparkError, match="v"):
        table.backfill("v")

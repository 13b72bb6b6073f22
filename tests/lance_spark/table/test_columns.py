"""The reference's promises about adding and altering columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import ColumnExistsError, Connection, RegistrationError, Table, UnsupportedOperationError
from tests.support.logs import Log, doubled, make, values, with_column
from udf_runtime import UDF, Columns, UdfDefinitionError, UnpackedUDF, udf


def dimensions(log: Log) -> UDF:
    """A UDF of two columns over `x`, which logs the rows it sees."""
    path = log.path

    class Dimensions(NamedTuple):
        height: int
        width: int

    @udf
    def measure(x: int) -> Columns[Dimensions]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        return Dimensions(x + 10, x + 20)

    return measure


def prices(db: Connection) -> Table:
    return make(db, price=lambda x: 10 * x, tax=lambda x: x + 1, text=lambda x: f"t{x}")


@udf
def minus(a: int, b: int) -> int:
    return a - b


def refused(
    table: Table, transforms: Any, error: type[Exception] = RegistrationError, match: str | None = None
) -> None:
    """Asserts that columns are refused, and that nothing came of it: no version, no file, no job."""
    version, names = table.version, table.schema.names
    before = {path for path in Path(table.uri).rglob("*") if path.is_file()}
    with pytest.raises(error, match=match) as caught:
        table.add_columns(transforms)
    assert isinstance(caught.value, ValueError)
    assert (table.version, table.schema.names) == (version, names)
    assert {path for path in Path(table.uri).rglob("*") if path.is_file()} == before
    assert table.list_jobs() == []


@pytest.mark.promise("T01")
def test_columns_of_expressions_and_of_udfs_are_added(db: Connection, log: Log) -> None:
    table = make(db)
    assert table.add_columns({"s": "x + 1", "y": log.doubling()}) is None  # type: ignore[func-returns-value]
    assert table.schema.names == ["x", "s", "y"]
    assert (values(table, "s")[3], values(table, "y")[3]) == (4, None)
    assert log.rows() == []
    table.backfill("y")
    assert values(table) == doubled(range(40))


@pytest.mark.promise("T02")
def test_missing_input_columns_are_refused(db: Connection) -> None:
    refused(make(db), {"y": (minus, ["x", "nope"])}, match=r"'nope'.*columns are 'x'")


@pytest.mark.promise("T03")
def test_input_columns_of_another_type_are_refused(db: Connection) -> None:
    @udf
    def size(text: int) -> int:
        return text

    refused(prices(db), {"y": size}, match="takes int64, column 'text' is string")


@pytest.mark.promise("T03")
def test_a_list_annotation_over_a_plain_column_is_refused(db: Connection) -> None:
    @udf
    def total(text: list[float]) -> float:
        return sum(text)

    refused(prices(db), {"y": total}, match="type mismatch")


@pytest.mark.promise("T04")
def test_a_udf_over_record_batches_declares_no_inputs() -> None:
    with pytest.raises(UdfDefinitionError, match="input_columns") as caught:

        @udf(data_type=pa.int64(), input_columns=["x"])
        def whole(batch: pa.RecordBatch) -> pa.Array:
            return batch.column(0)

    assert isinstance(caught.value, ValueError)


@pytest.mark.promise("T04")
def test_a_udf_over_record_batches_cannot_be_bound_to_columns_either(db: Connection, log: Log) -> None:
    refused(make(db), {"y": (log.batch_doubling(), ["x"])}, UdfDefinitionError)


@pytest.mark.promise("T05")
@pytest.mark.parametrize(
    "second", [{"z": (minus, ["x", "nope"])}, {"z": "nope + 1"}, {"x": "x + 1"}], ids=["input", "expression", "name"]
)
def test_one_mistake_among_several_columns_adds_none(db: Connection, log: Log, second: dict[str, Any]) -> None:
    refused(make(db), {"y": log.doubling(), "s": "x + 1", **second}, ValueError)  # type: ignore[arg-type]


@pytest.mark.promise("T06")
def test_an_expression_is_computed_at_once(db: Connection) -> None:
    table = prices(db)
    table.add_columns({"total": "price + tax"})
    assert values(table, "total") == {x: 11 * x + 1 for x in range(40)}
    with pytest.raises(RegistrationError, match="no UDF is registered"):
        table.backfill("total")


@pytest.mark.promise("T07")
def test_a_cast_of_null_gives_a_column_of_its_type(db: Connection) -> None:
    table = make(db)
    table.add_columns({"empty": "cast(null as string)"})
    assert table.schema.field("empty").type == pa.string()
    assert set(values(table, "empty").values()) == {None}


@pytest.mark.promise("T08")
def test_inputs_are_the_columns_that_the_parameters_are_named_like(db: Connection) -> None:
    @udf
    def gross(tax: int, price: int) -> int:
        return price * 100 + tax

    table = prices(db)
    table.add_columns({"gross": gross})
    table.backfill("gross")
    assert values(table, "gross") == {x: 1000 * x + x + 1 for x in range(40)}


@pytest.mark.promise("T09")
def test_parameters_that_are_named_like_no_column_are_refused(db: Connection) -> None:
    refused(prices(db), {"y": minus}, match="'a', 'b'")


@pytest.mark.promise("T10")
def test_a_tuple_feeds_columns_of_other_names(db: Connection) -> None:
    table = prices(db)
    table.add_columns({"net": (minus, ["price", "tax"])})
    table.backfill("net")
    assert values(table, "net") == {x: 9 * x - 1 for x in range(40)}


@pytest.mark.promise("T11")
@pytest.mark.parametrize("columns", [["price"], ["price", "tax", "x"], []])
def test_as_many_columns_as_parameters_are_needed(db: Connection, columns: list[str]) -> None:
    refused(prices(db), {"y": (minus, columns)}, UdfDefinitionError, match="expects 2 parameters but")


@pytest.mark.promise("T12")
def test_columns_are_bound_by_position(db: Connection) -> None:
    table = prices(db)
    table.add_columns({"net": (minus, ["price", "tax"]), "net_negative": (minus, ["tax", "price"])})
    table.backfill("net")
    table.backfill("net_negative")
    assert values(table, "net_negative") == {x: -value for x, value in values(table, "net").items()}


@pytest.mark.promise("T13")
def test_a_udf_of_several_columns_gives_one_per_field(db: Connection, log: Log) -> None:
    table = make(db)
    version = table.version
    table.add_columns(dimensions(log))
    assert table.schema.names == ["x", "height", "width"]
    assert table.version == version + 1, "siblings come in one commit"


@pytest.mark.promise("T14")
def test_a_udf_of_several_columns_inside_a_dict_is_refused(db: Connection, log: Log) -> None:
    refused(make(db), {"y": dimensions(log)}, match="pass it by itself")


@pytest.mark.promise("T14")
def test_a_udf_of_one_column_without_a_dict_is_refused(db: Connection, log: Log) -> None:
    refused(make(db), log.doubling(), match="no name for it")


@pytest.mark.promise("T15")
def test_a_prefix_comes_before_the_names(db: Connection, log: Log) -> None:
    table = make(db)
    table.add_columns(UnpackedUDF(dimensions(log), prefix="img_"))
    assert table.schema.names == ["x", "img_height", "img_width"]
    table.backfill("img_width")
    assert (values(table, "img_height")[5], values(table, "img_width")[5]) == (15, 25)


@pytest.mark.promise("T16")
@pytest.mark.parametrize("form", ["udf", "sql", "columns"])
def test_an_output_column_that_exists_is_refused(db: Connection, log: Log, form: str) -> None:
    table = make(db, width=lambda x: x)
    transforms: Any = {"udf": {"width": log.doubling()}, "sql": {"width": "x"}, "columns": dimensions(log)}[form]
    refused(table, transforms, ColumnExistsError, match="'width'")


@pytest.mark.promise("T17")
def test_refusals_of_add_columns_are_value_errors(db: Connection, log: Log) -> None:
    table = make(db)
    for transforms in ({}, {"y": 5}, {"y": minus}, {"y": (minus, ["x"])}, {"x": log.doubling()}, 7, {"y": "nope("}):
        refused(table, transforms, ValueError)  # type: ignore[arg-type]


@pytest.mark.promise("T18")
def test_parameters_without_annotations_are_warned_about(db: Connection) -> None:
    @udf(data_type=pa.int64())
    def plain(x):
        return x + 1

    table = make(db)
    with pytest.warns(UserWarning, match="'x' of UDF 'plain' are not checked"):
        table.add_columns({"y": plain})
    table.backfill("y")
    assert values(table) == {x: x + 1 for x in range(40)}


@pytest.mark.promise("T19")
def test_a_column_whose_name_is_no_identifier_can_be_an_input(db: Connection, log: Log) -> None:
    table = make(db, **{"unit price (€)": lambda x: 3 * x})
    table.add_columns({"y": (log.doubling(), ["unit price (€)"])})
    table.backfill("y")
    assert values(table) == {x: 6 * x for x in range(40)}


@pytest.mark.promise("T20")
def test_one_backfill_fills_all_siblings_with_one_call_per_row(db: Connection, log: Log) -> None:
    table = make(db)
    table.add_columns(dimensions(log))
    result = table.backfill("height")
    assert log.take() == list(range(40))
    assert sorted(result.columns) == ["height", "width"]
    assert len(result.versions) == 1
    assert values(table, "height") == {x: x + 10 for x in range(40)}
    assert values(table, "width") == {x: x + 20 for x in range(40)}
    table.backfill("width")
    assert log.take() == []


@pytest.mark.promise("T21")
def test_prefixes_let_one_udf_serve_several_inputs(db: Connection, log: Log) -> None:
    table = make(db, other=lambda x: 100 * x)
    measure = dimensions(log)
    table.add_columns(UnpackedUDF(measure, prefix="x_"))
    table.add_columns(UnpackedUDF(measure.with_input_columns(["other"]), prefix="other_"))
    table.backfill("x_height")
    table.backfill("other_height")
    assert (values(table, "x_width")[7], values(table, "other_width")[7]) == (27, 720)


@pytest.mark.promise("T22")
def test_a_column_gets_another_udf_and_all_values_are_computed_anew(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    table.backfill("y")
    log.take()
    table.alter_columns({"path": "y", "udf": log.doubling(factor=3)})
    assert values(table) == doubled(range(40)), "old values stay until the next backfill"
    table.backfill("y")
    assert log.take() == list(range(40))
    assert values(table) == {x: 3 * x for x in range(40)}


@pytest.mark.promise("T23")
def test_several_alterations_go_into_one_call(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    table.add_columns({"z": log.doubling()})
    table.alter_columns({"path": "y", "udf": log.doubling(factor=3)}, {"path": "z", "udf": log.doubling(factor=4)})
    table.backfill("y")
    table.backfill("z")
    assert (values(table, "y")[5], values(table, "z")[5]) == (15, 20)


@pytest.mark.promise("T23")
def test_one_wrong_alteration_of_several_changes_nothing(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    version = table.version
    with pytest.raises(ValueError, match="path is required"):
        table.alter_columns({"path": "y", "udf": log.doubling(factor=3)}, {"udf": log.doubling()})
    assert table.version == version


@pytest.mark.promise("T24")
def test_a_column_without_a_udf_can_be_given_one(db: Connection, log: Log) -> None:
    table = make(db, y=lambda x: -x)
    table.alter_columns({"path": "y", "udf": log.doubling()})
    table.backfill("y")
    assert log.take() == list(range(40))
    assert values(table) == doubled(range(40))


@pytest.mark.promise("T79")
@pytest.mark.parametrize(
    ("uri", "arguments"),
    [("db://mine", {}), ("/tmp/x", {"api_key": "k"}), ("/tmp/x", {"region": "r"}), ("/tmp/x", {"host_override": "h"})],
)
def test_remote_databases_are_refused_with_what_serves_instead(
    spark: SparkSession, uri: str, arguments: dict[str, str]
) -> None:
    name = next(iter(arguments), "db://mine")
    with pytest.raises(UnsupportedOperationError, match=f"{name}.*open the bucket or folder"):
        lance_spark.connect(uri, spark, **arguments)


@pytest.mark.promise("T80")
def test_a_table_is_a_lance_dataset_that_others_can_open(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    table.backfill("y")
    dataset = lance.dataset(table.uri)
    assert dataset.version == table.version
    assert dataset.to_table(filter="x = 7").to_pylist() == [{"x": 7, "y": 14}]
    assert isinstance(table.to_lance(), lance.LanceDataset)

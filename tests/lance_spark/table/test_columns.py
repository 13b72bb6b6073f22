"""Added and altered columns: casts of NULL, unusual names, another UDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest

from lance_spark import Connection, RegistrationError, Table
from tests.support.logs import Log, doubled, make, values, with_column
from udf_runtime import UDF, Columns, UdfDefinitionError, udf


def dimensions(log: Log) -> UDF:
    """A UDF of two columns over `x`, which logs its rows."""
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


def check_refused(
    table: Table,
    transforms: Any,
    error: type[Exception] = RegistrationError,
    match: str | None = None,
) -> None:
    """Asserts that columns are refused without any effect: no version, no file, no job."""
    version, names = table.version, table.schema.names
    before = {path for path in Path(table.uri).rglob("*") if path.is_file()}
    with pytest.raises(error, match=match) as caught:
        table.add_columns(transforms)
    assert isinstance(caught.value, ValueError)
    assert (table.version, table.schema.names) == (version, names)
    assert {path for path in Path(table.uri).rglob("*") if path.is_file()} == before
    assert table.list_jobs() == []


@pytest.mark.guarantee("T04")
def test_a_udf_over_record_batches_declares_no_inputs() -> None:
    with pytest.raises(UdfDefinitionError, match="input_columns") as caught:

        @udf(data_type=pa.int64(), input_columns=["x"])
        def whole(batch: pa.RecordBatch) -> pa.Array:
            return batch.column(0)

    assert isinstance(caught.value, ValueError)


@pytest.mark.guarantee("T07")
def test_a_cast_of_null_gives_a_column_of_its_type(db: Connection) -> None:
    table = make(db)
    table.add_columns({"empty": "cast(null as string)"})
    assert table.schema.field("empty").type == pa.string()
    assert set(values(table, "empty").values()) == {None}


@pytest.mark.guarantee("T17")
def test_refusals_of_add_columns_are_value_errors(db: Connection, log: Log) -> None:
    table = make(db)
    for transforms in (
        {},
        {"y": 5},
        {"y": minus},
        {"y": (minus, ["x"])},
        {"x": log.doubling()},
        7,
        {"y": "nope("},
    ):
        check_refused(table, transforms, ValueError)  # type: ignore[arg-type]


@pytest.mark.guarantee("T19")
def test_a_column_whose_name_is_no_identifier_can_be_an_input(db: Connection, log: Log) -> None:
    table = make(db, **{"unit price (€)": lambda x: 3 * x})
    table.add_columns({"y": (log.doubling(), ["unit price (€)"])})
    table.backfill("y")
    assert values(table) == {x: 6 * x for x in range(40)}


@pytest.mark.guarantee("T22")
def test_a_column_gets_another_udf_and_all_values_are_computed_anew(
    db: Connection, log: Log
) -> None:
    table = with_column(db, log.doubling())
    table.backfill("y")
    log.take()
    table.alter_columns({"path": "y", "udf": log.doubling(factor=3)})
    assert values(table) == doubled(range(40)), "old values stay until the next backfill"
    table.backfill("y")
    assert log.take() == list(range(40))
    assert values(table) == {x: 3 * x for x in range(40)}


@pytest.mark.guarantee("T80")
def test_a_table_is_a_lance_dataset_that_others_can_open(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    table.backfill("y")
    dataset = lance.dataset(table.uri)
    assert dataset.version == table.version
    assert dataset.to_table(filter="x = 7").to_pylist() == [{"x": 7, "y": 14}]
    assert isinstance(table.to_lance(), lance.LanceDataset)

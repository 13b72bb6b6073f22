"""Lengths of CHAR(n) and VARCHAR(n) columns: a UDF's text is padded, or too long by column and row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import BackfillIncompleteError, Table, udf

DECLARED: dict[str, pa.Field[Any]] = {
    "varchar": pa.field("v", pa.string(), metadata={"spark.type": "varchar(3)"}),
    "char": pa.field("v", pa.string(), metadata={"spark.type": "char(3)"}),
    "list": pa.field(
        "v", pa.list_(pa.field("item", pa.string(), metadata={"spark.type": "varchar(3)"}))
    ),
    "struct": pa.field(
        "v", pa.struct([pa.field("x", pa.string(), metadata={"spark.type": "char(3)"})])
    ),
}
STORED = {
    "varchar": ["äb", "äbc"],
    "char": ["äb ", "äbc"],
    "list": [["äb"], ["äbc"]],
    "struct": [{"x": "äb "}, {"x": "äbc"}],
}


def texts(kind: str, field: pa.Field[Any], *, batch: bool) -> Any:
    def value(text: str) -> object:
        return {"list": [text], "struct": {"x": text}}.get(kind, text)

    if batch:

        @udf(data_type=field.type, version="2", input_columns=["text"])
        def whole(text: pa.Array) -> pa.Array:
            return pa.array([value(item) for item in text.to_pylist()], field.type)

        return whole

    @udf(data_type=field.type, version="1")
    def single(text: str) -> object:
        return value(text)

    return single


def make(db: lance_spark.Connection, kind: str, values: list[str], *, batch: bool) -> Table:
    """Makes a table in fragments of two rows, whose declared column has a UDF."""
    field = DECLARED[kind]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), field])
    table = db.create_table("t", schema=schema)
    for start in range(0, len(values), 2):
        table.add(
            [{"id": start + n, "text": text} for n, text in enumerate(values[start : start + 2])]
        )
    table.alter_columns({"path": "v", "udf": texts(kind, field, batch=batch)})
    return table


@pytest.mark.sample(8)
@pytest.mark.parametrize("batch", [False, True], ids=["rows", "batches"])
@pytest.mark.parametrize("kind", DECLARED)
def test_a_text_of_a_udf_that_is_too_long_is_an_error_with_column_and_row(
    db: lance_spark.Connection, kind: str, batch: bool
) -> None:
    table = make(db, kind, ["äb", "äbc", "x", "abcd"], batch=batch)
    with pytest.raises(
        BackfillIncompleteError, match=r"'abcd'.* more characters than (var)?char\(3\)"
    ) as caught:
        table.backfill("v")
    message = str(caught.value)
    assert (
        "column 'v" in message
        and "row 1 of fragment 1" in message
        and f"row address {(1 << 32) + 1}" in message
    )
    assert table.to_arrow(filter="id < 2")["v"].to_pylist() == STORED[kind]
    assert table.count_rows("v IS NULL") == 2
    assert [error.row_address for error in table.get_errors()] == [(1 << 32) + 1]
    # A checkpoint holds the value, and must be refused too.
    with pytest.raises(BackfillIncompleteError, match=r"char\(3\)"):
        table.backfill("v")
    table.update("id = 3", {"text": "abc"})
    assert table.backfill("v").status == "DONE" and table.count_rows("v IS NULL") == 0

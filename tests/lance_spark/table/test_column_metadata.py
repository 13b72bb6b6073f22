"""Metadata of columns that a caller sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    OptionError,
    Table,
    UnsupportedOperationError,
    ValueConversionError,
    udf,
)


@udf(version="1")
def double(id: int) -> int:
    return 2 * id


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = lance_spark.connect(str(tmp_path)).create_table(
        "t", [{"id": 1, "place": {"city": "Weimar"}}]
    )
    table.add_columns({"double": double})
    return table


def test_replaced_metadata_keep_the_udf_of_a_column(table: Table) -> None:
    before = dict(table.schema.field("double").metadata)
    table.update_field_metadata({"path": "double", "metadata": {"unit": "one"}})
    table.replace_field_metadata("double", {"owner": "us"})
    assert table.schema.field("double").metadata == {**before, b"owner": b"us"}


def test_replaced_metadata_keep_the_declared_type_of_a_column(tmp_path: Path) -> None:
    field = pa.field("code", pa.string(), metadata={"spark.type": "varchar(3)"})
    table = lance_spark.connect(str(tmp_path)).create_table(
        "t", pa.table({"code": ["abc"]}, schema=pa.schema([field]))
    )
    table.replace_field_metadata("code", {"unit": "one"})
    with pytest.raises(ValueConversionError, match="code"):
        table.add([{"code": "abcdef"}])


def test_one_commit_updates_several_columns_and_nested_fields(table: Table) -> None:
    updates: list[dict[str, object]] = [
        {"path": "id", "metadata": {"a": "1"}},
        {"path": "place.city", "metadata": {"b": "2"}},
    ]
    result = table.update_field_metadata(*updates)
    city: Any = table.schema.field("place").type.field("city")
    assert (table.schema.field("id").metadata, city.metadata) == ({b"a": b"1"}, {b"b": b"2"})
    assert result.version == table.version == 3


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        ({"path": "double", "metadata": {"lance-spark:udf": "{}"}}, "for Lance and this package"),
        ({"path": "id", "metadata": {"lance-schema:unenforced-primary-key": "true"}}, "for Lance"),
        ({"path": "id", "metadata": {"lance-encoding:blob": None}}, "for Lance"),
        ({"path": "id", "metadata": {"spark.type": "varchar(3)"}}, "for Lance"),
        ({"path": "id", "metadata": {"a": 1}}, "a dict of texts"),
        ({"path": "id", "metadata": {"\ud800": "x"}}, "a dict of texts"),
        ({"path": "id"}, "a dict of texts"),
        ({"path": "id", "metadata": {}, "replace": 1}, "True or False"),
        ({"path": "id", "metadata": {}, "other": 1}, "path, metadata and maybe replace"),
        ({"metadata": {}}, "path, metadata"),
    ],
)
def test_wrong_updates_are_refused_before_a_change(
    table: Table, update: dict[str, object], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        table.update_field_metadata({"path": "place", "metadata": {"x": "y"}}, update)
    assert table.version == 2


def test_updates_need_columns_that_exist_and_the_latest_version(table: Table) -> None:
    with pytest.raises(ColumnNotFoundError, match="none"):
        table.update_field_metadata({"path": "none", "metadata": {"x": "y"}})
    with pytest.raises(OptionError, match="another path"):
        table.update_field_metadata(*[{"path": "id", "metadata": {"x": "y"}}] * 2)
    with pytest.raises(OptionError, match="one dict or more"):
        table.update_field_metadata()
    table.checkout(1)
    with pytest.raises(UnsupportedOperationError, match="checked out"):
        table.replace_field_metadata("id", {"x": "y"})

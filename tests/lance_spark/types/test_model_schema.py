"""Arrow schemas of classes of pydantic."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated, Optional

import pyarrow as pa
import pydantic
import pytest
from lance.pydantic import MultiVector, Vector, pydantic_to_schema

from lance_spark import OptionError
from lance_spark.ingest.rows import to_reader
from lance_spark.types.model_schema import schema_of


class Author(pydantic.BaseModel):
    name: str


class Book(pydantic.BaseModel):
    id: int
    price: float | None
    vector: Annotated[list[float], 4]
    pages: Annotated[int, pydantic.Field(gt=0)]
    author: Author


class Untyped(pydantic.BaseModel):
    value: object


def test_fields_have_the_types_of_their_annotations():
    author = pa.struct([pa.field("name", pa.string(), nullable=False)])
    assert schema_of(Book) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.float64()),
            pa.field("vector", pa.list_(pa.float64(), 4), nullable=False),
            pa.field("pages", pa.int64(), nullable=False),
            pa.field("author", author, nullable=False),
        ]
    )


class Color(enum.Enum):
    RED = "red"


class Level(enum.Enum):
    LOW = 1


class Picture(pydantic.BaseModel):
    id: int
    seen: dt.datetime = pydantic.Field(json_schema_extra={"tz": "UTC"})
    color: Color
    colors: list[Color]
    level: Level | None
    vector: Vector(2)  # type: ignore[valid-type]
    other: Vector(2, pa.float16(), nullable=False)  # type: ignore[valid-type]
    vectors: MultiVector(2) | None  # type: ignore[valid-type]
    authors: list[Author]
    names: list[str | None]
    days: Optional[list[dt.date]]  # noqa: UP045 - an older spelling


def picture() -> Picture:
    return Picture(
        id=1,
        seen=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        color=Color.RED,
        colors=[Color.RED],
        level=Level.LOW,
        vector=[1, 2],
        other=[1, 2],
        vectors=[[1, 2]],
        authors=[Author(name="x")],
        names=["y", None],
        days=None,
    )


def test_a_class_has_lancedbs_types_as_a_schema_and_as_data():
    schema = schema_of(Picture)
    assert schema == pydantic_to_schema(Picture)
    rows = to_reader([picture()], None).read_all()
    assert rows.schema == schema
    assert rows.to_pylist()[0]["authors"] == [{"name": "x"}]


class Shelf(pydantic.BaseModel):
    labels: dict[str, int]
    sizes: Annotated[list[float], 2] | None
    boxes: tuple[Author, ...]


def test_data_has_the_types_of_udf_annotations_where_lancedb_has_none():
    author = pa.struct([pa.field("name", pa.string(), nullable=False)])
    expected = [
        pa.field("labels", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("sizes", pa.list_(pa.float64(), 2)),
        pa.field("boxes", pa.list_(author), nullable=False),
    ]
    rows = to_reader(
        [Shelf(labels={"a": 1}, sizes=[1, 2], boxes=(Author(name="x"),))], None
    ).read_all()
    assert rows.schema == schema_of(Shelf) == pa.schema(expected)
    assert rows.to_pylist() == [{"labels": [("a", 1)], "sizes": [1, 2], "boxes": [{"name": "x"}]}]


class Tree(pydantic.BaseModel):
    children: list["Tree"]  # noqa: UP037 - not defined yet


def test_a_model_inside_itself_is_refused():
    with pytest.raises(OptionError, match="the model Tree contains itself"):
        schema_of(Tree)


@pytest.mark.parametrize("wrong", [Untyped, int, "id bigint", {"id": pa.int64()}])
def test_a_value_without_a_schema_is_refused(wrong: object):
    with pytest.raises(OptionError, match="schema"):
        schema_of(wrong)  # type: ignore[arg-type]

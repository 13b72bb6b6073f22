"""Arrow schemas of classes of pydantic."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import pydantic
import pytest

from lance_spark import OptionError
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


@pytest.mark.parametrize("wrong", [Untyped, int, "id bigint", {"id": pa.int64()}])
def test_a_value_without_a_schema_is_refused(wrong: object):
    with pytest.raises(OptionError, match="schema"):
        schema_of(wrong)  # type: ignore[arg-type]

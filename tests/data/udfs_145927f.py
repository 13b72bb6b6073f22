"""UDFs of the stored tables. The tables hold versions of this source text: never change this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from udf_runtime import UDF, Columns, chunker, skip_on_error, udf, udtf

CALLS = "LANCE_SPARK_TEST_CALLS"
"""Environment variable: the file for a line per call."""

OUTAGE = "LANCE_SPARK_TEST_OUTAGE"
"""Environment variable: if set, `price_with_tax` fails for ids of 50 and more."""

TAX = {"books": 0.07, "toys": 0.19}


def note(name: str) -> None:
    path = os.environ.get(CALLS)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{name}\n")


@udf
def letters(text: str) -> int:
    note("letters")
    return len(text)


@udf(data_type=pa.string())
def loud(text: pa.Array) -> pa.Array:
    for _ in text:
        note("loud")
    return pc.utf8_upper(text)


@udf
def vector(id: int, price: float) -> Annotated[list[np.float32], 4]:
    note("vector")
    return np.array([id, price, id * price, 1.0], np.float32)


class Halves(NamedTuple):
    first: str
    second: str


@udf(version="3")
def halves(text: str) -> Columns[Halves]:
    note("halves")
    middle = len(text) // 2
    return Halves(text[:middle], text[middle:])


@udf(on_error=skip_on_error())
def odd_only(id: int) -> int | None:
    note("odd_only")
    if id == 7:
        raise ValueError("seven is skipped")
    return id if id % 2 else None


@udf
def price_with_tax(id: int, price: float) -> float:
    if id >= 50 and os.environ.get(OUTAGE):
        raise ConnectionError("the price service is away")
    note("price_with_tax")
    return price * (1 + TAX["books"])


@udf(data_type=pa.int64())
def width(row: pa.RecordBatch) -> pa.Array:
    for _ in range(row.num_rows):
        note("width")
    return pa.array([row.num_columns] * row.num_rows)


@udf(data_type=pa.float64(), input_columns=["price"])
def rounded(prices: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for series in prices:
        for _ in series:
            note("rounded")
        yield series.round()


class Scale:
    """A stateful UDF."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def setup(self) -> None:
        self.offset = 1

    def __call__(self, id: int) -> int:
        note("scale")
        return id * self.factor + self.offset


scale: UDF = udf(data_type=pa.int64(), name="scale")(Scale(3))


def prefixed_with(prefix: str) -> UDF:
    """Returns a UDF that is pickled by value."""

    @udf(name="prefixed")
    def prefixed(text: str) -> str:
        note("prefixed")
        return prefix + text

    return prefixed


@udf
def shout(text: str) -> str:
    note("shout")
    return text.upper() + "!"


class Word(NamedTuple):
    word: str
    length: int


@chunker
def words(text: str) -> Iterator[Word]:
    note("words")
    for part in text.split():
        yield Word(part, len(part))


@udtf(output_schema=pa.schema([("length", pa.int64()), ("documents", pa.int64())]))
def lengths(source: object) -> Iterator[pa.Table]:
    frame = source.to_pandas()  # type: ignore[attr-defined]
    grouped = frame.groupby(frame["text"].str.len()).size()
    yield pa.table({"length": grouped.index, "documents": grouped.to_numpy()})


def spark_udf() -> Callable[..., object]:
    """Returns a UDF of PySpark."""
    from pyspark.sql.functions import pandas_udf

    @pandas_udf("bigint")
    def count_words(text: pd.Series) -> pd.Series:
        return text.str.split().str.len()

    return count_words

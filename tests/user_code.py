"""Code of a user, for type checkers: `mypy --strict` and pyright accept each line without an ignored error.

Nothing runs here. Lines with an ignored error must have this error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, assert_type

import pyarrow as pa
import pyarrow.compute as pc

import lance_spark
from lance_spark import BackfillJobResult, Job
from udf_runtime import UDF, Columns, Retry, Skip, UnpackedUDF, chunker, udf, udtf


@udf
def double(price: int) -> int:
    return 2 * price


@udf(on_error=[Retry(TimeoutError), Skip()], num_cpus=2)
def title(text: str | None, upper: bool = False) -> str | None:
    return None if text is None else text.upper() if upper else text.title()


@udf(data_type=pa.int32())
def letters(text: pa.StringArray) -> pa.Int32Array:
    return pc.utf8_length(text)


class Size(NamedTuple):
    height: int
    width: int


@dataclasses.dataclass
class Sentence:
    text: str


@udf
def size(image: bytes) -> Columns[Size]:
    return Size(image[0], image[1])


@udf(data_type=pa.struct([("height", pa.int64()), ("width", pa.int64())]))
def sizes(images: Iterator[pa.RecordBatch]) -> Iterator[Columns[Size]]:
    yield from images


@udf
class Embedding:
    def __init__(self, model: str) -> None:
        self.model = model

    def __call__(self, text: str) -> list[float]:
        return [float(len(text + self.model))]


class Frame:
    """Rows of another library."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.table({"id": [1]}).__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


class Plain:
    def __call__(self, text: str) -> int:
        return len(text)


@chunker
def sentences(body: str) -> Iterator[Sentence]:
    yield from map(Sentence, body.split("."))


@udtf(output_schema=pa.schema({"rows": pa.int64()}))
def count(source: Any) -> Iterator[pa.Table]:
    yield pa.table({"rows": [source.count_rows()]})


assert_type(double(21), int)
assert_type(title("a", upper=True), str | None)
assert_type(list(sentences("a. b")), list[Sentence])
assert_type(udf(Plain)()("a"), int)
double("a")  # type: ignore[arg-type]
double(1, 2)  # type: ignore[call-arg]


def use(function: UDF) -> UDF:
    return function.with_input_columns(["a"])


functions: list[UDF] = [double, title, letters, size, sizes, sentences, count, use(udf(Plain)())]


def work(uri: str) -> None:
    db = lance_spark.connect(uri)
    books = db.create_table("books", [{"id": 1, "price": 10, "title": "a", "image": b"ab"}])
    books.add(Frame())
    books.add_columns({"double": double, "half": "price / 2", "caption": (title, ["title"])})
    books.add_columns(
        {"vector": Embedding("m"), "vectors": (Embedding("n"), ["title"]), "plain": udf(Plain)()}
    )
    books.add_columns(size)
    books.add_columns(UnpackedUDF(size, prefix="image_"))
    assert_type(books.backfill("double", where="price > 3"), BackfillJobResult)
    job = books.backfill_async("double", concurrency=4)
    assert_type(job, Job[BackfillJobResult])
    assert_type(job.result(), BackfillJobResult)
    assert_type(
        books.backfill_async("double", concurrency=4, _return_future=True),
        Future[BackfillJobResult],
    )
    books.backfill_async("double", concurency=4)  # type: ignore[call-overload]
    try:
        books.backfill("double")
    except lance_spark.BackfillIncompleteError as error:
        print(error.result.status, error.result.rows_failed)
    db.create_udtf_view("parts", books.search(None), sentences)
    db.create_materialized_view(
        "view", books.search(None).select({"id": "id", "vector": Embedding("m")})
    )

"""Chunkers: rows in, any number of rows out, in parts; policies row by row, in child processes too."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udf_runtime import Fail, Retry, Skip, chunker, udf, udtf
from udf_runtime.checkpoint import LocalObjects, chunks
from udf_runtime.checkpoint.chunks import (
    ChunkFolder,
    ChunkReader,
    ChunksLostError,
    ChunksNotStoredError,
)
from udf_runtime.definition import UDF, as_udf
from udf_runtime.errors import UdfDefinitionError, UdfFailedError, UdfOutputError
from udf_runtime.execute import BatchResult, UdfRunner, call_table
from udf_runtime.policies import Backoff

pytestmark = pytest.mark.sample(1, tests=2)

Rows = list[list[dict[str, Any]] | None]


class Word(NamedTuple):
    word: str
    size: int


@dataclasses.dataclass
class WordData:
    size: int
    word: str


WORD = pa.schema([("word", pa.string()), ("size", pa.int64())])
NO_WAIT = Backoff(initial_s=0.0)


def run(chunk_udf: UDF, *texts: str | None, folder: ChunkFolder, **options: Any) -> BatchResult:
    with UdfRunner(chunk_udf, chunks=folder, **options) as runner:
        (result,) = runner.run([pa.record_batch({"text": pa.array(texts, pa.string())})])
    return result


def read(result: BatchResult, chunk_udf: UDF, folder: ChunkFolder, **options: int) -> Rows:
    """Returns the chunks of each row; None for a failed row."""
    fields: Any = chunk_udf.data_type
    reader = ChunkReader(folder, pa.schema(list(fields)))
    values: Any = result.values
    rows: Rows = [[] if value.is_valid else None for value in values]
    valid_rows = np.flatnonzero(np.asarray(values.is_valid()))
    for at, numbers, batch in reader.batches(
        values.drop_null(), **{"max_rows": 1000, "max_bytes": 1 << 20, **options}
    ):
        for row, number, chunk in zip(valid_rows[at], numbers, batch.to_pylist(), strict=True):
            row_chunks = rows[row]
            assert row_chunks is not None
            assert number == len(row_chunks)
            row_chunks.append(chunk)
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> ChunkFolder:
    return ChunkFolder(LocalObjects(str(tmp_path)), "checkpoints/key", "job")


def split(text: str) -> Iterator[Word]:
    for word in (text or "").split():
        yield Word(word, len(word))


def expected(*texts: str | None) -> Rows:
    return [[{"word": word, "size": len(word)} for word in (text or "").split()] for text in texts]


@pytest.mark.parametrize("isolate", [False, True])
def test_each_row_has_its_chunks_in_order(folder: ChunkFolder, isolate: bool) -> None:
    texts = ("a bb", None, "", "ccc", "d e f")
    chunk_udf = chunker(split)
    assert read(
        run(chunk_udf, *texts, folder=folder, isolate=isolate), chunk_udf, folder
    ) == expected(*texts)


@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(st.none() | st.text(" ab", max_size=40), max_size=30),
    most=st.integers(1, 7),
    size=st.integers(1, 400),
)
def test_any_sizes_of_parts_and_of_batches(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], most: int, size: int
) -> None:
    folder = ChunkFolder(
        LocalObjects(str(tmp_path_factory.mktemp("chunks"))), "checkpoints/key", "job"
    )
    chunk_udf = chunker(split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "PART_BYTES", size)
        result = run(chunk_udf, *texts, folder=folder)
    assert read(result, chunk_udf, folder, max_rows=most, max_bytes=size) == expected(*texts)


@pytest.mark.parametrize(
    "chunk",
    [
        lambda word: Word(word, len(word)),
        lambda word: WordData(len(word), word),
        lambda word: {"size": len(word), "word": word},
        lambda word: (word, len(word)),
    ],
)
def test_chunks_come_in_many_forms(folder: ChunkFolder, chunk: Callable[[str], object]) -> None:
    @chunker(output_schema=WORD)
    def listed(text: str) -> object:
        return [chunk(word) for word in text.split()]

    assert read(run(listed, "a bb", folder=folder), listed, folder) == expected("a bb")


def test_a_class_is_made_once_and_none_means_no_chunks(folder: ChunkFolder) -> None:
    @chunker
    class Splitter:
        def __init__(self, least: int) -> None:
            self.least = least

        def __call__(self, text: str) -> Generator[Word, None, None] | None:
            return (
                None
                if text == "none"
                else (Word(w, len(w)) for w in text.split() if len(w) >= self.least)
            )

    chunk_udf = as_udf(Splitter(2))
    assert chunk_udf is not None
    assert read(run(chunk_udf, "a bb", "none", folder=folder), chunk_udf, folder) == [
        [{"word": "bb", "size": 2}],
        [],
    ]


@pytest.mark.parametrize("isolate", [False, True])
def test_rows_that_fail_follow_the_policy_and_leave_no_chunks(
    folder: ChunkFolder, isolate: bool, tmp_path: Path
) -> None:
    log = str(tmp_path / "log")

    @chunker(on_error=[Retry(KeyError, max_attempts=3, backoff=NO_WAIT), Skip(ValueError)])
    def failing(text: str) -> Iterator[Word]:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        yield Word(text, 1)
        if text == "bad":
            raise ValueError(text)
        if text == "twice":
            with open(log, encoding="utf-8") as file:
                if file.read().count("twice") < 3:
                    raise KeyError(text)
        yield Word(text, 2)

    result = run(failing, "a", "bad", "twice", "b", folder=folder, isolate=isolate)
    two = [[{"word": word, "size": 1}, {"word": word, "size": 2}] for word in ("a", "twice", "b")]
    assert read(result, failing, folder) == [two[0], None, *two[1:]]
    assert [(failure.row, failure.error_type) for failure in result.failures] == [(1, "ValueError")]
    assert result.retries == 2
    with open(log, encoding="utf-8") as file:
        assert sorted(file.read().split()) == ["a", "b", "bad", "twice", "twice", "twice"]


def test_an_error_that_no_policy_forgives_names_the_row(folder: ChunkFolder) -> None:
    @chunker(on_error=Fail(ZeroDivisionError))
    def failing(text: str) -> Iterator[Word]:
        yield Word(text, 1 // len(text))

    with pytest.raises(UdfFailedError, match="ZeroDivisionError") as caught:
        run(failing, "a", "", folder=folder)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("make_chunks", "message"),
    [
        (lambda: [("a",)], "chunk 0 of a row"),
        (lambda: [("a", 1), {"word": "b"}], "chunk 1 of a row"),
        (lambda: [("a", 1), None], "chunk 1 of a row.*Yield NamedTuples|it is None"),
        (lambda: [("a", 1.5)], "not a whole number"),
        (lambda: "text", "returned str instead of an iterator"),
        (lambda: 7, "returned int instead of an iterator"),
    ],
)
def test_invalid_chunks_are_errors(
    folder: ChunkFolder, make_chunks: Callable[[], object], message: str
) -> None:
    @chunker(output_schema=WORD)
    def wrong(text: str) -> object:
        return make_chunks()

    with pytest.raises(UdfOutputError, match=message):
        run(wrong, "a", folder=folder)


def test_a_killer_costs_its_row(folder: ChunkFolder) -> None:
    @chunker
    def killing(text: str) -> Iterator[Word]:
        import os

        yield Word(text, 1)
        if text == "kill":
            os.kill(os.getpid(), 9)

    result = run(killing, "a", "kill", folder=folder, isolate=True)
    assert read(result, killing, folder) == [[{"word": "a", "size": 1}], None]
    assert [failure.outcome for failure in result.failures] == ["crashed"]


def test_threads_have_files_of_their_own(folder: ChunkFolder) -> None:
    chunk_udf = chunker(split)
    texts = [[f"{n} {m} x" for m in range(50)] for n in range(20)]
    with UdfRunner(chunk_udf, chunks=folder, threads=4) as runner:
        results = list(runner.run(pa.record_batch({"text": some}) for some in texts))
    for some, result in zip(texts, results, strict=True):
        assert read(result, chunk_udf, folder) == expected(*some)


def test_a_row_of_any_number_of_chunks_is_not_held(
    folder: ChunkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "PART_BYTES", 1 << 20)

    @chunker
    def many(text: str) -> Iterator[Word]:
        for number in range(200_000):
            yield Word("x" * 50, number)

    tracemalloc.start()
    before = pa.total_allocated_bytes()
    result = run(many, "a", folder=folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    rows = largest = 0
    reader = ChunkReader(folder, WORD)
    values: Any = result.values
    for _, numbers, batch in reader.batches(values, max_rows=8192, max_bytes=1 << 20):
        assert numbers[0] == rows
        rows += batch.num_rows
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert rows == 200_000
    assert largest < 8 << 20


def test_missing_or_damaged_chunks_are_reported(folder: ChunkFolder, tmp_path: Path) -> None:
    chunk_udf = chunker(split)
    result = run(chunk_udf, "a b", folder=folder)
    (part,) = tmp_path.rglob("*.chunks")
    part.write_bytes(part.read_bytes()[:-3])
    with pytest.raises(ChunksLostError, match="made again"):
        read(result, chunk_udf, folder)
    part.unlink()
    with pytest.raises(ChunksLostError, match="made again"):
        read(result, chunk_udf, folder)


def test_a_store_that_refuses_is_no_failure_of_the_row(tmp_path: Path) -> None:
    class Full(LocalObjects):
        def put(self, path: str, data: bytes) -> None:
            raise OSError("no space left")

    folder = ChunkFolder(Full(str(tmp_path)), "checkpoints/key", "job")
    with pytest.raises(ChunksNotStoredError, match="no space left"):
        run(chunker(split, on_error=Skip()), "a", folder=folder)


# Definitions


def test_the_version_follows_the_code_and_the_columns() -> None:
    assert chunker(split).version == chunker(split).version
    assert (
        chunker(split).version
        != chunker(split, output_schema=WORD.append(pa.field("n", pa.int8()))).version
    )
    assert chunker(split, version="1").version == "1"
    assert UDF.loads(chunker(split).dumps()).version == chunker(split).version


def test_a_chunker_needs_columns_and_a_real_manifest() -> None:
    def bare(text: str):  # type: ignore[no-untyped-def]
        yield text

    def texts(text: str) -> Iterator[str]:
        yield text

    with pytest.raises(UdfDefinitionError, match="has no annotation"):
        chunker(bare)
    with pytest.raises(UdfDefinitionError, match="have no columns"):
        chunker(texts)
    with pytest.raises(UdfDefinitionError, match="no Arrow schema"):
        chunker(bare, output_schema=pa.schema([]))
    with pytest.raises(UdfDefinitionError, match="argument 'manifest' has the wrong value"):
        chunker(split, manifest=object())
    with pytest.raises(UdfDefinitionError, match="decorated with @chunker"):
        udf(split)


# Table functions


class Source:
    """The numbers from 0 to 9."""

    schema = pa.schema([("x", pa.int64())])

    def count_rows(self) -> int:
        return 10

    def to_batches(self, *, batch_size: int = 8192) -> Iterator[pa.RecordBatch]:
        yield from self.to_arrow().to_batches(max_chunksize=batch_size)

    def to_arrow(self) -> pa.Table:
        return pa.table({"x": range(10)})

    def to_pandas(self) -> Any:
        return self.to_arrow().to_pandas()


SUM = pa.schema([("sum", pa.int64())])


@pytest.mark.parametrize(
    "make",
    [
        lambda source: (
            pa.record_batch({"sum": [sum(b.column(0).to_pylist())]})
            for b in source.to_batches(batch_size=5)
        ),
        lambda source: [pa.table({"sum": pa.array([10, 35], pa.int32())})],
        lambda source: (
            source.to_pandas().groupby(lambda i: i // 5).sum().rename(columns={"x": "sum"})
        ),
    ],
)
def test_a_table_function_makes_rows_of_a_whole_source(make: Callable[[Any], object]) -> None:
    @udtf(output_schema=SUM)
    def sums(source: object) -> object:
        return make(source)

    sums_udf = as_udf(sums)
    assert sums_udf is not None
    assert pa.Table.from_batches(call_table(sums_udf, Source()), schema=SUM).to_pydict() == {
        "sum": [10, 35]
    }


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (7, "got int"),
        (pa.table({"other": [1]}), "got columns other"),
        (pa.table({"sum": ["a"]}), "got string. Place: column 'sum'"),
        (pa.table({"sum": [1.5]}), "column 'sum'"),
    ],
)
def test_invalid_results_of_a_table_function_are_errors(part: object, message: str) -> None:
    @udtf(output_schema=SUM)
    def wrong(source: object) -> Iterator[object]:
        yield part

    wrong_udf = as_udf(wrong)
    assert wrong_udf is not None
    with pytest.raises(UdfOutputError, match=message):
        list(call_table(wrong_udf, Source()))


def test_a_table_function_that_raises() -> None:
    @udtf(output_schema=SUM)
    def failing(source: object) -> Iterator[object]:
        raise KeyError("x")
        yield

    failing_udf = as_udf(failing)
    assert failing_udf is not None
    with pytest.raises(UdfFailedError, match="KeyError"):
        list(call_table(failing_udf, Source()))

"""Merging of values from many places: the order of the rows, the amount read at once, and the time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType

from lance_spark.rows import merge as pieces
from lance_spark.rows.merge import Chunk, FilePiece, NullPiece, chained, merge
from tests.lance_spark.write.backfills import Backfill, column, computed, snapshot_rows


def stream(rows: list[int], size: int) -> Iterator[Chunk]:
    for first in range(0, len(rows), size):
        part = np.array(rows[first : first + size], dtype=np.int64)
        yield part, pa.array(part * 10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 5), st.booleans())
def test_rows_of_all_streams_come_in_order_each_with_its_value(
    owners: list[int], size: int, many: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_MANY_STREAMS", 2 if many else 64)
        patch.setattr(pieces, "_FILE_ROWS", 7)
        streams = [
            stream([row for row, owner in enumerate(owners) if owner == k], size) for k in range(8)
        ]
        merged = list(merge(streams))
    rows = [int(row) for offsets, _ in merged for row in offsets]
    assert rows == list(range(len(owners)))
    assert [value for _, values in merged for value in values.to_pylist()] == [
        row * 10 for row in rows
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 40), max_size=20), max_size=8), st.integers(1, 5), st.booleans()
)
def test_a_row_of_several_streams_comes_once_for_each_in_one_chunk(
    rows: list[set[int]], size: int, many: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_MANY_STREAMS", 2 if many else 64)
        patch.setattr(pieces, "_FILE_ROWS", 7)
        merged = [
            offsets.tolist() for offsets, _ in merge([stream(sorted(part), size) for part in rows])
        ]
    assert list(itertools.chain.from_iterable(merged)) == sorted(
        itertools.chain.from_iterable(rows)
    )
    assert all(chunk[-1] < next_chunk[0] for chunk, next_chunk in itertools.pairwise(merged))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=40))
def test_pieces_of_a_chain_come_one_after_the_other(spans: list[tuple[int, int]]) -> None:
    given_pieces = [
        NullPiece(offsets=np.array(sorted({start, start + length})), type=pa.null())
        for start, length in spans
    ]
    chains = chained(given_pieces)
    assert sorted(map(id, (piece for chain in chains for piece in chain))) == sorted(
        map(id, given_pieces)
    )
    for chain in chains:
        assert all(
            piece.offsets[-1] < next_piece.offsets[0]
            for piece, next_piece in itertools.pairwise(chain)
        )
    most = max((sum(s <= row <= s + n for s, n in spans) for row in range(131)), default=0)
    assert len(chains) == most, "more are read at once than have to be"


@pytest.mark.parametrize("interleaved", [False, True])
def test_thousands_of_streams_take_as_long_as_their_rows(interleaved: bool) -> None:
    count, each = 4000, 3
    rows = (
        np.arange(count * each).reshape(each, count).T
        if interleaved
        else np.arange(count * each).reshape(count, each)
    )
    began = time.monotonic()
    merged = list(merge([stream(part.tolist(), each) for part in rows]))
    assert time.monotonic() - began < 10
    assert np.array_equal(
        np.concatenate([offsets for offsets, _ in merged]), np.arange(count * each)
    )


def test_rows_that_came_from_many_fragments_are_read_one_file_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = str(tmp_path / "table.lance"), 60
    ids = pa.array(range(2 * count), pa.int64())
    table = pa.table({"id": ids, "other": ids, "c": pa.nulls(2 * count, pa.int64())})
    lance.write_dataset(table, path, max_rows_per_file=2, enable_stable_row_ids=True)
    job = Backfill(path, "c", LongType(), options={"input_columns": "id"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    lance.dataset(path).update({"other": "other + 1"}, where="id % 2 = 0")
    real, under_way, most = FilePiece.chunks, [0], [0]

    def counting_chunks(self: FilePiece, *args: Any, **kwargs: Any) -> Iterator[Chunk]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        yield from real(self, *args, **kwargs)
        under_way[0] -= 1

    monkeypatch.setattr(FilePiece, "chunks", counting_chunks)
    assert job.commit(message).rows_carried == count
    assert column(path, "c") == {k: k * 10 for k in range(2 * count)}
    assert most[0] == 1

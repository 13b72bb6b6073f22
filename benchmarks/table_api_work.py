"""The work of every contestant of the table API benchmarks, and a loop with plain pylance.

Imports neither Spark nor lance_spark, so another Python environment can run it too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileWriter
from lance.fragment import DataFile

BUSY_STEPS = 240
"""About 20 microseconds of Python on one core of the machine of the published results."""
WIDTH = 768
_BATCH_ROWS = 10_240
"""The default checkpoint size of the table API, and the batch size of the loop: all functions see
the same batches."""
_WORDS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A column to compute.

    Attributes:
        name: Name of the function.
        data_type: Arrow type of the result.
        column: Input column.
        scalar: Whether the function takes single values instead of an Arrow array.
        function: Makes the function. The function is nested, so pickling stores it by value, and
            executors do not need this module.
    """

    name: str
    data_type: pa.DataType
    column: str
    scalar: bool
    function: Callable[[], Callable[[Any], Any]]

    def on(self, values: pa.Array, function: Callable[[Any], Any]) -> pa.Array:
        """Applies the function to a batch, in minimal Python code."""
        if self.scalar:
            return pa.array([function(value) for value in values.to_pylist()], self.data_type)
        return function(values)


def _utf8_length() -> Callable[[Any], Any]:
    def utf8_length(text: pa.Array) -> pa.Array:
        return pc.utf8_length(text)

    return utf8_length


def _double() -> Callable[[Any], Any]:
    def double(id: int) -> int:
        return id * 2

    return double


def _busy() -> Callable[[Any], Any]:
    steps = BUSY_STEPS

    def busy(id: int) -> int:
        state = id
        for _ in range(steps):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        return state

    return busy


def _embed() -> Callable[[Any], Any]:
    width = WIDTH

    def embed(id: pa.Array) -> pa.Array:
        # Random numbers do not compress in memory or on disk.
        rng = np.random.default_rng(id[0].as_py())
        floats = rng.random(len(id) * width, dtype=np.float32)
        return pa.FixedSizeListArray.from_arrays(pa.array(floats), width)

    return embed


UTF8_LENGTH = Work(
    name="utf8_length", data_type=pa.int32(), column="text", scalar=False, function=_utf8_length
)
DOUBLE = Work(name="double", data_type=pa.int64(), column="id", scalar=True, function=_double)
BUSY = Work(name="busy", data_type=pa.int64(), column="id", scalar=True, function=_busy)
EMBED = Work(
    name="embed",
    data_type=pa.list_(pa.float32(), WIDTH),
    column="id",
    scalar=False,
    function=_embed,
)
WORKS = {work.name: work for work in (UTF8_LENGTH, DOUBLE, BUSY, EMBED)}


def make_table(path: Path, rows: int, fragments: int) -> str:
    """Writes a table of an id and a short text, in fragments of equal size. Returns its location."""
    words = pa.array([f"{'é' * (i % 5)}word {i}" for i in range(_WORDS)])
    for number in range(fragments):
        ids = np.arange(
            rows * number // fragments, rows * (number + 1) // fragments, dtype=np.int64
        )
        table = pa.table({"id": ids, "text": words.take(pa.array(ids * 7919 % _WORDS))})
        mode = "append" if number else "create"
        lance.write_dataset(
            table,
            str(path),
            mode=mode,
            max_rows_per_file=max(len(ids), 1),
            enable_stable_row_ids=True,
        )
    return str(path)


def column_files(
    path: str, column: str, work: Work, fragments: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    """Reads, computes and writes a column file per fragment. Returns pairs of fragment and file
    name.

    Args:
        path: The table.
        column: The existing column to fill.
        work: The work.
        fragments: Fragment ids; by default all fragments.
    """
    dataset = lance.dataset(path)
    function = work.function()
    schema = pa.schema([pa.field(column, work.data_type)])
    column_files_by_fragment = []
    for fragment in dataset.get_fragments():
        if fragments is not None and fragment.fragment_id not in fragments:
            continue
        name = f"{uuid.uuid4().hex}.lance"
        with LanceFileWriter(
            f"{path}/data/{name}", schema, version=dataset.data_storage_version
        ) as writer:
            for batch in _batches(fragment, work.column):
                writer.write_batch(
                    pa.record_batch([work.on(batch.column(0), function)], schema=schema)
                )
        column_files_by_fragment.append((fragment.fragment_id, name))
    return column_files_by_fragment


def _batches(fragment: lance.LanceFragment, column: str) -> Iterator[pa.RecordBatch]:
    return fragment.to_batches(columns=[column], batch_size=_BATCH_ROWS)


def commit(path: str, files: Sequence[tuple[int, str]]) -> None:
    """Commits column files in a single version."""
    dataset = lance.dataset(path)
    groups = [
        lance.LanceOperation.DataReplacementGroup(fragment, DataFile.create(dataset, name))
        for fragment, name in files
    ]
    lance.LanceDataset.commit(
        dataset,
        lance.LanceOperation.DataReplacement(groups),
        read_version=dataset.version,
        max_retries=0,
    )

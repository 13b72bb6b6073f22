"""Values of computed rows for equal inputs, found by a scalar index: `deduplicate="table"`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.reuse.round_context import context_of, done_rows
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.backfill.task.source_reader import TableInputs
from lance_spark.errors import UnsupportedOperationError, panics_as_errors
from lance_spark.jobs.tables import quote_text
from lance_spark.read.filtering import as_filter_error
from lance_spark.rows.row_addresses import (
    ROW_ADDRESS,
    SnapshotRows,
    fragments_of,
    offsets_of,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.types.fields import is_blob, quote_identifier, requested_columns
from udf_runtime import UDF
from udf_runtime.execute.batches.distinct import encode_rows
from udf_runtime.execute.conversion.casts import cast

if TYPE_CHECKING:
    import lance

_INDEX_TYPES = ("BTREE", "BITMAP")

_MOST_KEYS = 1000
_FILTER_CHARS = 1 << 20
"""Maximum number of keys, and length of the keys, of a filter. A longer key has its own filter."""

_FILTER_ROWS = 100_000
"""Maximum number of rows that a scan with a filter reads: some keys may have very many rows."""

_SCAN_ROWS = 1024
_SCAN_BYTES = 16 << 20
_CACHED_FRAGMENTS = 256


def find_indexed_input(spec: BackfillSpec, dataset: lance.LanceDataset) -> str | None:
    """Returns the first input column of text or integers with a scalar index."""
    indexed = {
        index.field_names[0]
        for index in dataset.describe_indices()
        if len(index.field_names) == 1 and index.index_type.upper() in _INDEX_TYPES
    }
    return next(
        (name for name in spec.input_names if name in indexed and _is_key(dataset, name)), None
    )


def check_equal_inputs(spec: BackfillSpec, udf: UDF, dataset: lance.LanceDataset) -> None:
    """Checks that values can be taken from rows with equal inputs.

    Raises:
        UnsupportedOperationError: No index finds the rows, or their inputs or values are not in the
            table.
    """
    what = f"The UDF {udf.name!r} has deduplicate='table'"
    if type(spec.input_source) is not TableInputs:
        raise UnsupportedOperationError(
            f"{what}, and its inputs are columns of a view's source. View: {spec.snapshot.uri}. Use deduplicate=True."
        )
    columns = [*spec.input_names, *(column for _, column in spec.outputs)]
    schema = dataset.schema
    blobs = [name for name in columns if is_blob(schema.field(name))]
    if blobs:
        raise UnsupportedOperationError(
            f"{what}, and column {blobs[0]!r} of {spec.snapshot.uri} has blobs. Use deduplicate=True."
        )
    if find_indexed_input(spec, dataset) is None:
        raise UnsupportedOperationError(
            f"{what}, and no scalar index of an input column of text or integers finds equal rows of "
            f"{spec.snapshot.uri}. Create a BTREE index of {' or '.join(map(repr, spec.input_names))} with "
            "create_scalar_index, or use deduplicate=True."
        )


class EqualInputs:
    """Finds values of computed rows with equal inputs. Belongs to one thread.

    Only rows with a recorded value of this UDF and its version, in fragments covered by the index.
    Memory: some batches of the scan, the values, and the rows of some fragments.
    """

    def __init__(self, spec: BackfillSpec, udf: UDF) -> None:
        """Opens the version of the round."""
        self._spec = spec
        self._data_type = udf.data_type
        self._rows = SnapshotRows(spec.snapshot.open())
        self._dataset = self._rows.dataset
        self._key = find_indexed_input(spec, self._dataset)
        self._computed = functools.lru_cache(maxsize=_CACHED_FRAGMENTS)(self._read_computed)

    def __call__(self, inputs: pa.RecordBatch) -> tuple[np.ndarray, pa.Array[Any]]:
        """Returns the positions of inputs with a value, ascending, and the values.

        Raises:
            TableUnreadableError: A file is missing or damaged.
        """
        sources = np.full(inputs.num_rows, -1)
        pieces: list[pa.RecordBatch] = []
        count = 0
        for rows in self._equal_keys(inputs):
            hits, positions = _match(inputs, rows.select(range(inputs.num_columns)))
            is_new = sources[positions] < 0
            sources[positions[is_new]] = count + np.arange(is_new.sum())
            pieces.append(rows.take(pa.array(hits[is_new])))
            count += int(is_new.sum())
            if (sources >= 0).all():
                break
        offsets = np.flatnonzero(sources >= 0)
        values = pa.concat_arrays([pa.array([], self._data_type), *map(self._values, pieces)])
        return offsets, values.take(pa.array(sources[offsets]))

    def _values(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        """Returns the values of the UDF in rows of the inputs and the target columns."""
        columns = rows.columns[len(self._spec.inputs) :]
        names = [output for output, _ in self._spec.outputs]
        value: Any = pa.StructArray.from_arrays(columns, names=names) if names[0] else columns[0]
        return cast(value, self._data_type)

    def _equal_keys(self, inputs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields inputs and targets of computed rows with a key of the batch, in small batches."""
        if self._key is None:
            return
        names = [*self._spec.input_names, *(column for _, column in self._spec.outputs)]
        for keys in _split(inputs.column(self._spec.input_names.index(self._key))):
            for batch in self._scan(names, f"{quote_identifier(self._key)} IN ({', '.join(keys)})"):
                addresses = batch.column(ROW_ADDRESS).to_numpy()
                parts = [
                    first
                    + np.flatnonzero(
                        np.isin(offsets_of(addresses[first:end]), self._computed(number).to_numpy())
                    )
                    for number, first, end in runs_of(fragments_of(addresses))
                ]
                rows: Any = pa.array(np.concatenate([np.arange(0), *parts]))
                arrays = [batch.column(name).take(rows) for name in names]
                yield pa.RecordBatch.from_arrays(
                    arrays, names=[str(number) for number in range(len(arrays))]
                )

    def _scan(self, names: Sequence[str], text: str) -> Iterator[pa.RecordBatch]:
        try:
            with panics_as_errors():
                yield from self._dataset.scanner(
                    columns=requested_columns(list(dict.fromkeys(names))),
                    filter=text,
                    limit=_FILTER_ROWS,
                    fast_search=True,  # without a scan of the fragments that the index lacks
                    with_row_address=True,
                    batch_size=_SCAN_ROWS,
                    batch_size_bytes=_SCAN_BYTES,
                ).to_reader()
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise as_filter_error(error, self._dataset, -1, text[:1000]) from error

    def _read_computed(self, fragment_id: int) -> RowSet:
        """Returns the rows of a fragment with a recorded value of the UDF."""
        fragment = self._rows.existing_fragment(fragment_id)
        return done_rows(self._spec, fragment.metadata, context_of(self._spec).records).computed


def _match(inputs: pa.RecordBatch, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows that equal an input, one per input, and the positions of these inputs."""
    columns = [
        pa.concat_arrays([left, cast(right, left.type)])
        for left, right in zip(inputs.columns, rows.columns, strict=True)
    ]
    numbers = encode_rows(columns)
    positions = np.full(len(numbers), -1)
    positions[numbers[: inputs.num_rows]] = np.arange(inputs.num_rows)
    matches = positions[numbers[inputs.num_rows :]]
    hits = np.flatnonzero(matches >= 0)
    unique, first = np.unique(matches[hits], return_index=True)
    return hits[first], unique


def _is_key(dataset: lance.LanceDataset, name: str) -> bool:
    kind = dataset.schema.field(name).type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)


def _split(column: pa.Array[Any]) -> Iterator[list[str]]:
    """Yields the keys of a column as literals, without NULL, in lists for a filter."""
    keys: list[str] = []
    length = 0
    for value in column.unique().to_pylist():
        if value is None:
            continue
        literal = _make_literal(value)
        if keys and (len(keys) == _MOST_KEYS or length + len(literal) > _FILTER_CHARS):
            yield keys
            keys, length = [], 0
        keys.append(literal)
        length += len(literal)
    if keys:
        yield keys


def _make_literal(value: int | str) -> str:
    if isinstance(value, str):
        return quote_text(value)
    # Lance parses -9223372036854775808 as the negation of the float 9223372036854775808.
    return f"arrow_cast('{value}', 'Int64')" if value == -(1 << 63) else str(value)

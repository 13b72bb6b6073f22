"""Calls of a deterministic UDF once per distinct input: :class:`DistinctCalls`."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from udf_runtime.definition import UDF
from udf_runtime.errors import UdfRuntimeError
from udf_runtime.execute.call_context import close_results
from udf_runtime.execute.conversion.casts import is_list, nulls
from udf_runtime.execute.result import BatchResult, RowFailure, join_parts, renumber_error
from udf_runtime.optional import np

CACHE_BYTES = 32 << 20
"""Maximum bytes of stored inputs and values of earlier batches."""

CACHE_ROWS = 1 << 16
"""Maximum number of stored distinct inputs of earlier batches."""

_MOST_PARTS = 32

CallBatches: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[BatchResult]]

FindValues: TypeAlias = Callable[[pa.RecordBatch], "tuple[np.ndarray, pa.Array[Any]]"]
"""Returns the ascending positions of inputs with a known value, and these values."""


def encode_rows(columns: Sequence[pa.Array[Any]]) -> np.ndarray:
    """Returns a number per row: rows of equal inputs have equal numbers, from 0 on.

    Values are equal if Arrow stores equal values. So 0.0 and -0.0 differ, NULL equals NULL, and NaN
    equals a NaN of the same bits. The dictionary of a dictionary array, and the bytes behind NULL,
    do not matter.
    """
    return functools.reduce(_combine, map(_encode, columns))


def _combine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if not len(first):
        return first
    # Both are below the number of rows, so the product fits into 64 bits.
    return _number(pa.array(first * (second.max() + 1) + second))


def _number(values: pa.Array[Any]) -> np.ndarray:
    encoded: Any = values.dictionary_encode(null_encoding="encode")
    numbers: np.ndarray = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _encode(column: pa.Array[Any]) -> np.ndarray:
    array: Any = _as_storage(column)
    kind = array.type
    if t.is_struct(kind):
        is_null = array.is_null().to_numpy(zero_copy_only=False).astype(np.int64)
        return functools.reduce(_combine, map(_encode, array.flatten()), is_null)
    if is_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return _number(_as_bytes(array))
    if t.is_union(kind):
        return np.arange(len(array), dtype=np.int64)  # every row counts as distinct
    return _number(_as_comparable(array))


def _as_storage(column: Any) -> Any:  # noqa: ANN401 - one of many kinds of arrays
    """Returns values of extension, dictionary, run-end encoded and map types in simpler types."""
    if isinstance(column, pa.ExtensionArray):
        return _as_storage(column.storage)
    if isinstance(column, pa.DictionaryArray):
        return _as_storage(column.dictionary_decode())
    if t.is_run_end_encoded(column.type):
        return _as_storage(pc.call_function("run_end_decode", [column]))
    if not t.is_map(column.type):
        return column
    items = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(items.type),
        len(column),
        column.buffers()[:2],
        offset=column.offset,
        children=[items],
    )


def _as_bytes(lists: Any) -> pa.Array[Any]:  # noqa: ANN401 - any kind of list array
    """Returns the items of each list as bytes: their bits, or numbers for other kinds of items."""
    items = _fixed_items(lists.flatten())
    lengths: Any = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64) * items.itemsize]
    )
    is_valid = np.packbits(lists.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers: list[Any] = [pa.py_buffer(part.tobytes()) for part in (is_valid, offsets, items)]
    return pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)


def _fixed_items(items: Any) -> np.ndarray:  # noqa: ANN401 - the items of lists
    """Returns a value of the same width per item; items are equal if their values are equal."""
    is_number = t.is_integer(items.type) or t.is_floating(items.type)
    if is_number and not items.null_count:
        numbers: np.ndarray = _as_comparable(items).to_numpy(zero_copy_only=False)
        return numbers
    return _encode(items)


def _as_comparable(array: Any) -> Any:  # noqa: ANN401 - any array without children
    """Returns values whose comparison compares the stored bits."""
    kind = array.type
    if t.is_string_view(kind) or t.is_binary_view(kind):
        return pc.cast(array, pa.large_binary())
    if any(
        check(kind) for check in (t.is_null, t.is_boolean, t.is_string, t.is_binary)
    ) or _is_large(kind):
        return array
    bits = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    return array.view(bits.get(kind.bit_width) or pa.binary(kind.bit_width // 8))


def _is_large(kind: pa.DataType) -> bool:
    return t.is_large_string(kind) or t.is_large_binary(kind)


@dataclasses.dataclass(eq=False, slots=True)
class _Calls:
    """Distinct inputs of calls, and their values after the calls.

    Attributes:
        inputs: The input columns.
        values: None before the calls.
        failures: Failures by row.
    """

    inputs: pa.RecordBatch
    values: pa.Array[Any] | None = None
    failures: dict[int, RowFailure] = dataclasses.field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + (0 if self.values is None else self.values.nbytes)

    def select_values(self) -> _Calls:
        """Returns a copy of the rows that have a value, without the memory of larger arrays."""
        assert self.values is not None
        rows: Any = pa.array(np.delete(np.arange(len(self.values)), list(self.failures)))
        return _Calls(self.inputs.take(rows), self.values.take(rows))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _BatchPlan:
    """The origins of a batch's values.

    Attributes:
        calls: The calls with the values, in order; the last are the calls of this batch.
        places: For each row the place of its value among the values of all calls.
        called: Rows of the batch with a call of their own, ascending.
    """

    calls: tuple[_Calls, ...]
    places: np.ndarray
    called: np.ndarray


class DistinctCalls:
    """Calls a UDF once per distinct input of a batch, and stores values for later batches.

    A later batch takes the value of an equal input, while the store has room: at most `CACHE_ROWS`
    inputs and `CACHE_BYTES` bytes of inputs and values, the oldest leave first. The store ends with
    the runner of a task. A failure applies to all equal rows of the batches in progress; a later
    batch calls the UDF again. Memory: the store, and twice the inputs of a batch. Not thread-safe.
    """

    def __init__(
        self,
        udf: UDF,
        *,
        find: FindValues | None = None,
        cache_bytes: int = CACHE_BYTES,
        cache_rows: int = CACHE_ROWS,
    ) -> None:
        """Starts with an empty store for a UDF.

        `find` is asked for the values of distinct inputs before the UDF is called.
        """
        self._udf = udf
        self._find = find
        self._cache_bytes = cache_bytes
        self._cache_rows = cache_rows
        self._stored: list[_Calls] = []
        self._plans: deque[_BatchPlan] = deque()

    def run(self, batches: Iterable[pa.RecordBatch], call: CallBatches) -> Iterator[BatchResult]:
        """Yields a result per batch, in order.

        Args:
            batches: Batches of the input columns.
            call: Calls the UDF for batches of distinct inputs.

        Raises:
            UdfRuntimeError: As in `call`. The row of the error is counted in the batch.
        """
        self._plans.clear()
        self._stored = [calls for calls in self._stored if calls.values is not None]
        results = call(map(self._reduce, batches))
        try:
            while True:
                try:
                    result = next(results)
                except StopIteration:
                    return
                except UdfRuntimeError as error:
                    raise self._renumber(error) from error.__cause__
                yield self._expand(result)
        finally:
            close_results(results)

    def _reduce(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the distinct inputs without a value, and plans the values of the batch."""
        if self._stored and not batch.schema.equals(self._stored[0].inputs.schema):
            self._stored = []
        origins = tuple(self._stored)
        columns = [
            pa.concat_arrays([*(calls.inputs.column(i) for calls in origins), batch.column(i)])
            for i in range(batch.num_columns)
        ]
        stored_rows = sum(calls.inputs.num_rows for calls in origins)
        numbers = encode_rows(columns)
        first = np.empty(len(numbers), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        places = first[numbers[stored_rows:]]
        is_new = places >= stored_rows
        if is_new.all():
            origins, places, stored_rows = (), places - stored_rows, 0
        new_rows = np.flatnonzero(places == np.arange(stored_rows, stored_rows + batch.num_rows))
        served, new_calls, order = self._split_new(_take(batch, new_rows))
        places[is_new] = (
            stored_rows + order[np.searchsorted(new_rows, places[is_new] - stored_rows)]
        )
        called = new_rows[order[: len(new_rows)] >= served.inputs.num_rows]
        self._plans.append(
            _BatchPlan(calls=(*origins, served, new_calls), places=places, called=called)
        )
        self._stored += [served, new_calls] if served.inputs.num_rows else [new_calls]
        return new_calls.inputs

    def _split_new(self, inputs: pa.RecordBatch) -> tuple[_Calls, _Calls, np.ndarray]:
        """Returns inputs with values of `find`, the other inputs, and the place of each in both."""
        rows, values = (np.arange(0), None) if self._find is None else self._find(inputs)
        rest = np.delete(np.arange(inputs.num_rows), rows)
        order = np.empty(inputs.num_rows, np.int64)
        order[np.concatenate([rows, rest])] = np.arange(inputs.num_rows)
        empty = nulls(0, self._udf.data_type)
        return (
            _Calls(_take(inputs, rows), empty if values is None else values),
            _Calls(_take(inputs, rest)),
            order,
        )

    def _expand(self, result: BatchResult) -> BatchResult:
        """Returns the result of the first planned batch for the result of its distinct inputs."""
        plan = self._plans.popleft()
        own = plan.calls[-1]
        own.values, own.failures = (
            result.values,
            {failure.row: failure for failure in result.failures},
        )
        self._store(own)
        if len(plan.called) == len(plan.places):
            return result
        parts = [calls.values for calls in plan.calls if calls.values is not None]
        values = join_parts(parts, self._udf.name).take(pa.array(plan.places))
        return dataclasses.replace(
            result,
            values=values,
            failures=tuple(_find_failures(plan)),
            deduplicated=len(plan.places) - len(plan.called),
        )

    def _store(self, calls: _Calls) -> None:
        """Stores answered calls for later batches."""
        if calls not in self._stored:  # calls of another schema
            return
        self._stored[self._stored.index(calls)] = calls.select_values()
        answered = [each for each in self._stored if each.values is not None]
        if len(answered) > _MOST_PARTS:
            answered = [_join(answered, self._udf.name)]
        while answered and not self._has_room_for(answered):
            answered.pop(0)
        self._stored = [*answered, *(each for each in self._stored if each.values is None)]

    def _has_room_for(self, answered: Sequence[_Calls]) -> bool:
        rows = sum(calls.inputs.num_rows for calls in answered)
        return (
            rows <= self._cache_rows
            and sum(calls.nbytes for calls in answered) <= self._cache_bytes
        )

    def _renumber(self, error: UdfRuntimeError) -> UdfRuntimeError:
        """Returns an error with its row counted in the batch."""
        row = getattr(error, "row", None)
        if row is None or not self._plans or row >= len(self._plans[0].called):
            return error
        return renumber_error(error, int(self._plans[0].called[row]) - row)


def _take(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """Returns some rows of a batch; all rows without a copy."""
    positions: Any = pa.array(rows, pa.int64())
    return batch if len(rows) == batch.num_rows else batch.take(positions)


def _join(calls: Sequence[_Calls], udf: str) -> _Calls:
    inputs = pa.Table.from_batches([each.inputs for each in calls]).combine_chunks().to_batches()
    values = join_parts([each.values for each in calls if each.values is not None], udf)
    return _Calls(inputs[0], values)


def _find_failures(plan: _BatchPlan) -> Iterator[RowFailure]:
    """Yields the failures of a batch: a failed call applies to every row with equal inputs."""
    failures: dict[int, RowFailure] = {}
    start = 0
    for calls in plan.calls:
        failures.update({start + row: failure for row, failure in calls.failures.items()})
        start += calls.inputs.num_rows
    if failures:
        for row in np.flatnonzero(np.isin(plan.places, list(failures))).tolist():
            failure = failures[int(plan.places[row])]
            yield failure.renumber(rows=row - failure.row, depth=0)
